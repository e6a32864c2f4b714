"""Scores and compares the hypotheses of runs and of other systems, and shows their errors.

``tfasr report --errors`` comes here through `errors_text`. Systems are runs, whose
evaluations save hypotheses, and files of hypotheses from any recogniser. `error_report`
scores all of them by one `TextRule`, so that the same texts count as equal everywhere,
and compares each with the first, utterance by utterance. The statistics themselves are
in `tfasr.scoring`.
"""

import dataclasses
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tfasr.display.table import (
    REFUSED,
    UNKNOWN,
    Column,
    Table,
    percent,
    table_of,
    table_to_csv,
    to_json_text,
    to_markdown,
    to_text,
)
from tfasr.errors import UsageError
from tfasr.kit.files import read_bytes, write_whole
from tfasr.kit.registry import Registry
from tfasr.letters import SPECIAL_CASING, primary_language
from tfasr.normalisers import check_normaliser, described
from tfasr.reports.numbers import RunAnalysis, distinct_names, report_written_to
from tfasr.scoring import summary
from tfasr.scoring.errors import (
    Scored,
    alignment_text,
    confusions,
    read_transcripts,
    score,
    worst,
)
from tfasr.scoring.summary import (
    RATES,
    Interval,
    PairedComparison,
    RateSummary,
    SpeakerRow,
)
from tfasr.tta.policies import AccuracyPoint

# The files in a run's folder, one for each evaluation.
HYPOTHESES = "hypotheses/validation-epoch-*.jsonl"


@dataclass(frozen=True)
class System:
    """The scored transcripts of a run, or of a file of hypotheses.

    Attributes:
        name: distinct within the report.
        path: the file of its hypotheses.
        scored: the utterances in the file's order.
        summary: error rates and intervals.
        notes: caveats for readers.
    """

    name: str
    path: Path
    scored: list[Scored]
    summary: RateSummary
    notes: list[str]


@dataclass(frozen=True)
class ErrorReport:
    """What `tfasr report --errors` shows: systems, scored alike, first against others.

    Attributes:
        systems: in the order given.
        comparisons: for each system but the first, the comparison with the first, or
            why that is impossible.
        worst: how many utterances to show of each system.
        notes: caveats about the whole report.
        rule: by which both texts were normalised.
    """

    systems: list[System]
    comparisons: list[PairedComparison | str]
    worst: int
    notes: list[str]
    rule: "TextRule"


@dataclass(frozen=True)
class TextRule:
    """How references and hypotheses are normalised before they are compared.

    Attributes:
        normaliser: a name in `tfasr.normalisers.NORMALISERS`; "" for lower case alone.
        language: a BCP 47 tag, whose rules for case hold.

    Raises:
        UsageError: if either is wrong, or if they don't fit each other.
    """

    normaliser: str = ""
    language: str = ""

    def __post_init__(self):
        primary_language(self.language)
        if self.normaliser:
            check_normaliser(self.normaliser, self.language)

    @property
    def description(self) -> str:
        """The rule for readers and for comparisons; "" for the usual one."""
        if self.normaliser:
            return described(self.normaliser, self.language)

        language = primary_language(self.language)
        if language in SPECIAL_CASING:
            return f"lower case of {language}"

        return ""


def is_hypotheses(path: str | Path) -> bool:
    """Whether a path is a file of hypotheses, not a run or another log."""
    path = Path(path)
    return path.is_file() and path.suffix in (".jsonl", ".json")


def error_report(
    sources: Sequence[RunAnalysis | Path],
    *,
    worst: int = 10,
    rule: TextRule | None = None,
) -> ErrorReport:
    """Scores the hypotheses of runs and files and compares each with the first.

    Args:
        sources: runs, and files of hypotheses. Runs without hypotheses are left out,
            with a note that says how to write some.
        worst: how many utterances to show of each system.
        rule: how texts are normalised; by default to lower case alone.

    Raises:
        UsageError: if no source has hypotheses.
    """
    rule = rule or TextRule()
    files = [source for source in sources if isinstance(source, Path)]
    of_files = dict(zip(files, distinct_names(files), strict=True))
    systems = []
    notes = []

    for source in sources:
        if isinstance(source, Path):
            systems.append(_system(of_files[source], source, [], rule))
            continue

        path = best_hypotheses(source)
        if path is None:
            notes.append(
                f"{source.name} has no hypotheses in {source.path / 'hypotheses'}. tfasr "
                f"evaluate --run_dir {source.path} --split validation --hypotheses "
                "FILE.jsonl writes them; name FILE.jsonl instead."
            )
        else:
            systems.append(_system(source.name, path, _notes(source, path), rule))

    if not systems:
        raise UsageError(" ".join(notes) or "--errors needs a run or a file.")

    comparisons: list[PairedComparison | str] = []
    for other in systems[1:]:
        try:
            comparisons.append(summary.compare_pairs(systems[0].scored, other.scored))
        except UsageError as error:
            comparisons.append(str(error))

    if rule.description:
        notes.append(
            f"Both texts are normalised by {rule.description} first, so these rates are no "
            "error rates of the texts as they are"
        )

    return ErrorReport(systems, comparisons, worst, notes, rule)


def best_hypotheses(run: RunAnalysis) -> Path | None:
    """Returns the hypotheses of the epoch with the lowest CER; None for a run without any.

    If the ledger has no CER of the epochs with hypotheses, returns those of the last
    epoch.
    """
    files = {_epoch(path): path for path in run.path.glob(HYPOTHESES)}
    if not files:
        return None

    points = [point for point in run.curves.get("cer", []) if point.epoch in files]
    if not points:
        return files[max(files)]

    def rank(point: AccuracyPoint) -> tuple[bool, float, float]:
        return math.isnan(point.value), point.value, point.epoch

    # The earliest of equal epochs, as for the best checkpoint; NaN is never the best.
    return files[min(points, key=rank).epoch]


def hypotheses_of_best(run: RunAnalysis) -> Path | None:
    """Returns the hypotheses of the best checkpoint's epoch, or None if they are missing.

    A card shows errors of this epoch only, since they must be those of the checkpoint.
    """
    path = best_hypotheses(run)
    if path is None or run.best is None or _epoch(path) != run.best[1].epoch:
        return None

    return path


def _system(name: str, path: Path, notes: list[str], rule: TextRule) -> System:
    """Scores a file of hypotheses, after normalising its texts by the rule."""
    scored = score(read_transcripts(path, rule.normaliser, rule.language))
    return System(name, path, scored, summary.summarise_scored(scored), notes)


def _notes(run: RunAnalysis, path: Path) -> list[str]:
    """Returns which epoch of a run is scored, and whether utterances are missing."""
    epoch = _epoch(path)
    which = "the last ones, as the ledger has no CER"
    if any(point.epoch == epoch for point in run.curves.get("cer", [])):
        which = "those with the lowest CER"

    notes = [f"its hypotheses of epoch {epoch} are scored, {which}"]
    expected = (run.comparability or {}).get("validation_utterances")
    written = sum(1 for line in read_bytes(path).split(b"\n") if line.strip())

    if isinstance(expected, int) and written != expected:
        notes.append(
            f"{path.name} holds {written} of the split's {expected} utterances"
        )

    return notes


def _epoch(path: Path) -> float:
    """Returns the epoch in the name of a file of hypotheses; 0 for other names.

    An evaluation within an epoch has the epoch's number and the part that was done:

    >>> _epoch(Path("validation-epoch-3.jsonl")), _epoch(Path("validation-epoch-3-0.5.jsonl"))
    (3, 2.5)
    """
    parts = re.fullmatch(r"validation-epoch-(\d+)(-0\.\d+)?", path.stem)
    if parts is None:
        return 0

    epoch = int(parts[1])
    if parts[2]:
        return epoch - 1 - float(parts[2])

    return epoch


# How many systems are shown with speakers, confusions and alignments; errors.json
# covers them all.
MOST_IN_DETAIL = 6
# Rows of the table of confusions; errors.json has them all.
_MOST_CONFUSIONS = 10


def _range(interval: Interval, sign: str = "") -> str:
    """Returns a confidence interval in percent as text, "" if it is unknown."""
    return " to ".join(f"{100 * end:{sign}.1f}" for end in interval)


def _rate(share: float) -> str:
    """Returns a share in percent, with the decimals of all error tables.

    It is NaN if the references have no words.
    """
    if math.isnan(share):
        return UNKNOWN

    return f"{100 * share:.2f}"


def error_tables(report: ErrorReport) -> list[Table]:
    """Returns the report's tables: rates, comparisons, speakers, confusions."""
    tables = [_rates_table(report)]
    if len(report.systems) > 1:
        tables.append(_comparison_table(report))

    for system in report.systems[:MOST_IN_DETAIL]:
        tables += [_speaker_table(system), _confusion_table(system)]

    return tables


def _rates_table(report: ErrorReport) -> Table:
    """Returns the table of WER and CER with their intervals and kinds of errors."""
    notes = [
        f"95 %: bootstrap interval from {summary.RESAMPLES} resamples of the utterances. It "
        "applies to other utterances of the same speakers, not to models trained with other "
        "seeds. 95 % by speaker: resamples whole speakers, so it also applies to other "
        f"speakers; needs {summary.FEWEST_SPEAKERS} or more. With few utterances or "
        "speakers, the intervals are widened (expanded percentiles). CER: edits per "
        "character of the longer of reference and hypothesis."
    ]
    for system in report.systems:
        notes += [f"{system.name}: {note}." for note in system.notes]

    notes += report.notes
    if len(report.systems) > MOST_IN_DETAIL:
        notes.append(
            f"The details below cover only the first {MOST_IN_DETAIL} systems."
        )

    columns: list[Column[System]] = [
        Column("System", "", "name"),
        Column("utterances", "", "summary.counts.utterances"),
        Column("words", "", "summary.counts.words"),
        Column("WER %", "", "summary.counts.wer", _rate),
        Column("95 %", "", "summary.wer_interval", _range),
        Column("95 % by\nspeaker", "", "summary.wer_interval_by_speaker", _range),
        Column("CER %", "", "summary.counts.cer", _rate),
        Column("95 % ", "", "summary.cer_interval", _range),
        Column("95 % by\nspeaker ", "", "summary.cer_interval_by_speaker", _range),
    ]
    return table_of("Errors", columns, report.systems, notes)


def _comparison_table(report: ErrorReport) -> Table:
    """Returns the table of differences to the first system, paired by utterance.

    Below it, a sentence for each system says whether it is better, by which test.
    """
    first = report.systems[0].name
    refused = [isinstance(comparison, str) for comparison in report.comparisons]
    tests = refused.count(False)

    notes = []
    rows: list[_Compared] = []

    for system, compared in zip(report.systems[1:], report.comparisons, strict=True):
        if isinstance(compared, str):
            notes.append(f"{system.name} is not compared with {first}. {compared}")
            rows.append((system, None))
        else:
            verdict = summary.verdict(compared, first, system.name, tests)
            notes.append(f"{system.name}: {verdict}.")
            rows.append((system, compared))

    notes.append(
        "WER difference: in percentage points; below 0, the system is better than the "
        "first. Better: share of resamples in which it is better, counting ties half. z and "
        "p: matched-pairs test on the errors of whole utterances. Permutation p: from "
        "swapping the two systems' results, speaker by speaker if all are known and there "
        f"are {summary.FEWEST_SPEAKERS} or more, otherwise utterance by utterance; the "
        "verdict uses this p. It applies to these hypotheses; models trained with other "
        "seeds would give different ones."
    )
    if tests > 1:
        notes.append(
            f"{tests} comparisons: each must reach p < 0.05 / {tests} (Bonferroni)."
        )

    return table_of(f"Word errors against {first}", _COMPARISON, rows, notes)


# A system, and its comparison with the first one; None if that is impossible.
_Compared = tuple[System, PairedComparison | None]


# An interval of a difference, whose ends need signs.
_signed_range = partial(_range, sign="+")


def _fewer_and_more(row: _Compared) -> str:
    """Returns how many utterances have fewer and more errors than the first system's."""
    compared = row[1]
    if compared is None:
        return REFUSED

    return f"{compared.fewer_errors} / {compared.more_errors}"


def _compared(heading: str, path: str, text: Callable[[Any], str]) -> Column:
    """Returns a column of the comparison.

    A missing value is "refused" if the systems can't be compared, else unknown.
    """

    def missing(row: _Compared) -> str:
        if row[1] is None:
            return REFUSED

        return UNKNOWN

    return Column(heading, "", path, text, missing)


_COMPARISON: list[Column[_Compared]] = [
    Column("System", "", "0.name"),
    _compared("WER\ndifference", "1.wer_difference", lambda rate: f"{100 * rate:+.2f}"),
    _compared("95 %", "1.by_utterance.interval", _signed_range),
    _compared("95 % by\nspeaker", "1.by_speaker.interval", _signed_range),
    _compared("better\n%", "1.by_utterance.probability_of_improvement", percent),
    Column("fewer / more\nerrors in", "", lambda row: None, shown=_fewer_and_more),
    _compared("z", "1.matched_pairs_z", "{:+.2f}".format),
    _compared("p", "1.matched_pairs_p", summary.probability_text),
    _compared("permutation\np", "1.permutation_p", summary.probability_text),
]


def _speaker_table(system: System) -> Table:
    """Returns a system's speakers, the one with the highest WER first.

    It is laid out as by NIST's sclite. If no speaker is known, only the row Sum/Avg is
    left.
    """
    by_speaker = summary.speaker_rows(system.scored)
    sum_row, *others = summary.summary_rows(system.scored, by_speaker)
    rows = [_speaker_cells(row, "d") for row in [*by_speaker, sum_row]]
    rows += [_speaker_cells(row, ".1f") for row in others]
    notes = []

    if not by_speaker:
        notes.append("The hypotheses contain no speakers.")

    return Table(
        f"{system.name}: errors by speaker, % of words",
        ["Speaker", "# Snt", "# Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err"],
        rows,
        notes,
    )


def _speaker_cells(row: SpeakerRow, figure: str) -> list[str]:
    """Returns a speaker's cells: utterances and words, formatted by ``figure``, and rates."""
    cells = [row.name, format(row.utterances, figure), format(row.words, figure)]
    for name in RATES:
        rate = row.rates[name]
        cells.append(UNKNOWN if math.isnan(rate) else percent(rate))

    return cells


def _confusion_table(system: System) -> Table:
    """Returns the words and letters that a system confuses most often.

    Substitutions, deletions and insertions are in columns next to each other, each
    sorted by how often it occurs.
    """
    counts = confusions(system.scored)
    columns = {
        "substitutions": [
            (f"{word} → {got}", times) for (word, got), times in counts.substitutions
        ],
        "deletions": counts.deletions,
        "insertions": counts.insertions,
    }
    kinds = [f"{len(pairs)} different {name}" for name, pairs in columns.items()]
    shown = [pairs[:_MOST_CONFUSIONS] for pairs in columns.values()]

    rows = []
    for number, cells in enumerate(zip_longest(*shown, fillvalue=("", "")), 1):
        row = [str(number)]
        for what, times in cells:
            row += [str(what), str(times)]

        rows.append(row)

    return Table(
        f"{system.name}: most frequent errors",
        ["#", "spoken → recognised", "times", "left out", "times ", "added", "times  "],
        rows,
        [f"{', '.join(kinds)}."],
    )


# The columns of errors.csv, which has a row for each utterance of each system.
_UTTERANCES: list[Column[tuple[System, Scored]]] = [
    Column("", "system", "0.name"),
    Column("", "id", "1.transcript.id"),
    Column("", "speaker", "1.transcript.speaker"),
    Column("", "words", "1.counts.words"),
    Column("", "correct", "1.counts.correct_words"),
    Column("", "substitutions", "1.counts.substitutions"),
    Column("", "deletions", "1.counts.deletions"),
    Column("", "insertions", "1.counts.insertions"),
    Column("", "characters", "1.counts.characters"),
    Column("", "character_edits", "1.counts.character_edits"),
    Column("", "reference", "1.transcript.reference"),
    Column("", "hypothesis", "1.transcript.hypothesis"),
]


def errors_to_text(report: ErrorReport) -> str:
    """Returns the report on errors for a terminal: tables, then alignments."""
    alignments = (f"{title}\n\n{text}" for title, text in _alignments(report).items())
    return "\n".join([to_text(error_tables(report)), *alignments])


def errors_to_markdown(report: ErrorReport) -> str:
    """Returns the report on errors as Markdown, with alignments as code."""
    parts = [to_markdown(error_tables(report))]
    for title, text in _alignments(report).items():
        # A hypothesis may contain anything, also a fence.
        fence = "~~~~~~" if "```" in text else "```"
        parts.append(f"## {title}\n\n{fence}\n{text}{fence}\n")

    return "\n".join(parts)


def errors_to_json(report: ErrorReport) -> str:
    """Returns the report on errors for programs; rates are fractions."""
    comparisons = []
    for system, compared in zip(report.systems[1:], report.comparisons, strict=True):
        about = {"first": report.systems[0].name, "second": system.name}
        if isinstance(compared, str):
            comparisons.append(about | {"refused": compared})
        else:
            values = dataclasses.asdict(compared)
            comparisons.append(about | values | {"refused": None})

    record = {
        "systems": [_system_json(system, report.worst) for system in report.systems],
        "comparisons": comparisons,
        "text_normalisation": report.rule.description or "lower case",
        "notes": report.notes,
    }
    return to_json_text(record)


def errors_to_html(report: ErrorReport) -> str:
    """Returns the report on errors as a part of a page, alignments folded."""
    # Imported here: drawing is the slowest thing to load.
    from tfasr.reports.page import table_element

    sections = []
    for table in error_tables(report):
        rows = [list(map(_left_to_right, row)) for row in table.rows]
        element = table_element(dataclasses.replace(table, rows=rows))
        sections.append(f"<h2>{escape(table.title)}</h2>{element}")

    for title, text in _alignments(report).items():
        heading = escape(title)
        alignments = escape(_left_to_right(text))
        sections.append(
            f"<details><summary>{heading}</summary><pre>{alignments}</pre></details>\n"
        )

    return "".join(sections)


def _alignments(report: ErrorReport) -> dict[str, str]:
    """Returns, by heading, the utterances with the most errors, aligned word by word.

    Only of the first `MOST_IN_DETAIL` systems. An utterance without errors is never
    among them, so a perfect system has no entry.
    """
    alignments = {}
    for system in report.systems[:MOST_IN_DETAIL]:
        wrong = worst(system.scored, report.worst)
        if wrong:
            title = (
                f"{system.name}: the {len(wrong)} utterances with the most word errors"
            )
            language = report.rule.language
            texts = [alignment_text(utterance, language) for utterance in wrong]
            alignments[title] = "\n".join(texts)

    return alignments


def _system_json(system: System, count: int) -> dict[str, Any]:
    """Returns a system's counts, intervals, speakers and worst utterances."""
    confused = confusions(system.scored)

    return {
        "system": system.name,
        "path": str(system.path),
        **system.summary.to_json(),
        "speakers": [
            _speaker_json(row) for row in summary.speaker_rows(system.scored)
        ],
        "substitutions_by_pair": [[*pair, times] for pair, times in confused.substitutions],
        "deletions_by_word": confused.deletions,
        "insertions_by_word": confused.insertions,
        "worst": [
            {**dataclasses.asdict(scored.transcript), "word_edits": scored.counts.word_edits}
            for scored in worst(system.scored, count)
        ],
        "notes": system.notes,
    }  # fmt: skip


def _speaker_json(row: SpeakerRow) -> dict[str, Any]:
    """Returns a speaker's counts; the rate is None if no words were spoken."""
    wer = row.rates["errors"] if row.words else None

    return {
        "speaker": row.name,
        "utterances": row.utterances,
        "words": row.words,
        "wer": wer,
    }


def _left_to_right(text: str) -> str:
    """Returns text whose letters of right-to-left scripts can't reorder what follows.

    Alignments put words below each other, so columns must stay where they are.
    """
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in text):
        return text.replace(" ", " \N{LEFT-TO-RIGHT MARK}")

    return text


# The formats of ``tfasr report --errors`` by name
WRITERS: Registry[Callable[[ErrorReport], str]] = Registry(
    "format of errors",
    {
        "table": f"{__name__}:errors_to_text",
        "markdown": f"{__name__}:errors_to_markdown",
        "json": f"{__name__}:errors_to_json",
    },
    plural="formats of errors",
)


def errors_text(
    paths: Sequence[str | Path],
    runs: Sequence[RunAnalysis],
    worst: int,
    output_format: str,
    out: str | Path | None,
    rule: TextRule | None = None,
) -> tuple[str, str]:
    """Returns the error report as text and, with ``out``, as HTML; writes its other files.

    Args:
        paths: runs, folders of runs and files of hypotheses, in the order of systems.
        runs: the runs among them, analysed.
        worst: how many utterances to align.
        output_format: a name in `WRITERS`.
        out: the folder for the files; None to write none, and to return "" as HTML.
        rule: how texts are normalised.
    """
    if output_format not in WRITERS:
        raise UsageError(
            f"With --errors, --format must be one of {tuple(WRITERS)}. Received: "
            f"{output_format!r}. For CSV, use --out: it writes errors.csv, a row per "
            "utterance."
        )

    if worst < 0:
        raise UsageError(f"--worst must be 0 utterances or more. Received: {worst}.")

    section = ""
    report = error_report(_in_order(paths, runs), worst=worst, rule=rule)
    if out is not None:
        folder = Path(out)
        utterances = [
            (system, scored) for system in report.systems for scored in system.scored
        ]

        with report_written_to(out):
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / "errors.txt", errors_to_text(report))
            write_whole(folder / "errors.md", errors_to_markdown(report))
            write_whole(folder / "errors.json", errors_to_json(report))
            table = table_of("Utterances", _UTTERANCES, utterances)
            write_whole(folder / "errors.csv", table_to_csv(table))

        section = errors_to_html(report)

    return WRITERS.call(output_format, report), section


def _in_order(
    paths: Sequence[str | Path], runs: Sequence[RunAnalysis]
) -> list[RunAnalysis | Path]:
    """Returns the systems in the order in which their paths were named, each once.

    A folder of runs stands for the runs in it. A path that was named twice, or is also
    in a folder that was named, counts where it was named first.
    """
    sources: dict[Path, RunAnalysis | Path] = {}
    for path in map(Path, paths):
        if is_hypotheses(path):
            sources.setdefault(path.resolve(), path)
            continue

        for run in runs:
            folder = run.path.resolve()
            if path.resolve() in (folder, folder.parent):
                sources.setdefault(folder, run)

    return list(sources.values())
