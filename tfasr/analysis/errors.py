"""What runs and other systems got wrong: their hypotheses, scored and compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfasr.analysis.names import distinct_names
from tfasr.analysis.report import RunAnalysis
from tfasr.errors import UsageError
from tfasr.scoring.alignment import Scored, score
from tfasr.scoring.paired import PairedComparison, compare_pairs
from tfasr.scoring.summary import RateSummary, summarise_scored
from tfasr.scoring.transcripts import read_transcripts

SUFFIXES = (".jsonl", ".json")
HYPOTHESES = "hypotheses/validation-epoch-*.jsonl"


@dataclass(frozen=True)
class System:
    """One system's hypotheses: a run's, or those in a file.

    Attributes:
        name: distinct within the report.
        path: the file they were read from.
        scored: the utterances in the file's order.
        summary: error rates and intervals.
        notes: what a reader has to know about them.
    """

    name: str
    path: Path
    scored: list[Scored]
    summary: RateSummary
    notes: list[str]


@dataclass(frozen=True)
class ErrorReport:
    """Systems, and how each stands to the first one.

    Attributes:
        systems: in the order given.
        comparisons: for each system but the first the comparison with it, or why there is none.
        worst: how many utterances to show of each.
        notes: what a reader has to know about the report as a whole.
    """

    systems: list[System]
    comparisons: list[PairedComparison | str]
    worst: int
    notes: list[str]


def is_hypotheses(path: str | Path) -> bool:
    """Whether a path is a file of hypotheses rather than a run or a log."""
    path = Path(path)
    return path.is_file() and path.suffix in SUFFIXES


def error_report(sources: Sequence[RunAnalysis | Path], *, worst: int = 10) -> ErrorReport:
    """Scores the hypotheses of runs and files and compares each with the first.

    A run without hypotheses is left out and said.

    Args:
        sources: runs, and files that `tfasr.scoring.transcripts.read_transcripts` reads; the
            first one is the one that others are compared with.
        worst: how many utterances to show of each.

    Raises:
        UsageError: if nothing has hypotheses, or a file is broken.
    """
    files = [one for one in sources if isinstance(one, Path)]
    of_files = dict(zip(files, distinct_names(files), strict=True))
    systems, notes = [], []
    for source in sources:
        if isinstance(source, Path):
            systems.append(_system(of_files[source], source, []))
            continue
        path = best_hypotheses(source)
        if path is None:
            notes.append(_absent(source))
        else:
            systems.append(_system(source.name, path, _notes(source, path)))
    if not systems:
        raise UsageError(" ".join(notes) or "Errors must be those of a run or a file.")
    comparisons = [_paired(systems[0], other) for other in systems[1:]]
    return ErrorReport(systems, comparisons, worst, notes)


def best_hypotheses(run: RunAnalysis) -> Path | None:
    """Returns the hypotheses of the epoch with the lowest CER, the one of the best checkpoint.

    None where the run has none.
    """
    found = {_epoch(path): path for path in run.path.glob(HYPOTHESES)} if run.path.is_dir() else {}
    points = [point for point in run.curves.get("cer", []) if point.epoch in found]
    if points:
        # The first of equals, as training keeps its best checkpoint; NaN is never the best.
        return found[min(points, key=lambda p: (p.value != p.value, p.value, p.epoch)).epoch]
    return found[max(found)] if found else None


def _system(name: str, path: Path, notes: list[str]) -> System:
    scored = score(read_transcripts(path))
    return System(name, path, scored, summarise_scored(scored), notes)


def _notes(run: RunAnalysis, path: Path) -> list[str]:
    notes = [f"epoch {_epoch(path)}, the one with the lowest CER of those with hypotheses"]
    expected = (run.comparability or {}).get("validation_utterances")
    with path.open("rb") as file:
        written = sum(1 for line in file if line.strip())
    if isinstance(expected, int) and written != expected:
        notes.append(f"{path.name} holds {written} of the split's {expected} utterances")
    return notes


def _absent(run: RunAnalysis) -> str:
    return (
        f"{run.name} has no hypotheses in {run.path / 'hypotheses'}. tfasr evaluate --run_dir "
        f"{run.path} --split validation --hypotheses FILE.jsonl writes them; name FILE.jsonl in "
        "its place."
    )


def _epoch(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def _paired(first: System, other: System) -> PairedComparison | str:
    try:
        return compare_pairs(first.scored, other.scored)
    except UsageError as error:
        return str(error)
