"""Writes what runs and other systems got wrong, as ``tfasr report --errors`` shows it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.analysis.report import RunAnalysis
from tfasr.errors import RunError, UsageError
from tfasr.registry import Registry

if TYPE_CHECKING:
    from tfasr.analysis.errors import ErrorReport

PathLike = str | Path
_HOME = "tfasr.reports.errors_text"
# Imported when first asked for: a report on times alone does without jiwer and SciPy.
WRITERS: Registry[Callable[["ErrorReport"], str]] = Registry(
    "format of errors",
    {
        "table": f"{_HOME}:errors_to_text",
        "markdown": f"{_HOME}:errors_to_markdown",
        "json": f"{_HOME}:errors_to_json",
    },
    plural="formats of errors",
)
"""The formats of ``tfasr report --errors`` by name."""


def logs_among(paths: Sequence[PathLike]) -> list[PathLike]:
    """Returns the paths that are no files of hypotheses."""
    from tfasr.analysis.errors import is_hypotheses

    return [path for path in paths if not is_hypotheses(path)]


def errors_text(
    paths: Sequence[PathLike],
    runs: Sequence[RunAnalysis],
    worst: int,
    output_format: str,
    out: PathLike | None,
) -> tuple[str, str]:
    """Returns the error report as text, and as the HTML of a page's section.

    Args:
        paths: as they were given.
        runs: those among them, analysed.
        worst: the utterances to show of each system.
        output_format: of `WRITERS`.
        out: a folder that gets the report's files; None for none.

    Raises:
        UsageError: if nothing has hypotheses, or a file is broken.
        RunError: if ``out`` cannot be written.
    """
    # Imported here: a report on times alone does without jiwer and SciPy.
    from tfasr.analysis.errors import error_report
    from tfasr.reports import errors_text as formats

    if output_format not in WRITERS:
        raise UsageError(
            f"--errors must be shown as one of {tuple(WRITERS)}. Received: {output_format!r}. "
            "--out writes its tables as CSV beside them."
        )
    if worst < 0:
        raise UsageError(f"--worst must be 0 utterances or more. Received: {worst}.")
    report = error_report(_in_order(paths, runs), worst=worst)
    if out is not None:
        try:
            Path(out).mkdir(parents=True, exist_ok=True)
            formats.write_errors(report, Path(out))
        except OSError as error:
            raise RunError(
                f"The report must be written to {out}, and could not be: {error}. "
                "Choose another --out, or make room."
            ) from error
    return WRITERS[output_format](report), formats.errors_to_html(report)


def errors_alone(
    paths: Sequence[PathLike], worst: int, output_format: str, out: PathLike | None
) -> str:
    """Returns the error report on files of hypotheses, without any run."""
    text, section = errors_text(paths, [], worst, output_format, out)
    if out is not None:
        from tfasr.reports.page.parts import write_document

        write_document(Path(out) / "report.html", "Errors", [section])
    return text


def _in_order(paths: Sequence[PathLike], runs: Sequence[RunAnalysis]) -> list[RunAnalysis | Path]:
    """Returns runs and files in the order given; a folder of runs is all of its runs."""
    from tfasr.analysis.errors import is_hypotheses

    left = list(runs)
    sources: dict[Path, RunAnalysis | Path] = {}
    for path in map(Path, paths):
        if is_hypotheses(path):
            sources.setdefault(path.resolve(), path)
            continue
        for run in left:
            own = run.path.resolve()
            if path.resolve() in (own, own.parent):
                sources.setdefault(own, run)
    return list(sources.values())
