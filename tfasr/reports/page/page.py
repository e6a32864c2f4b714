"""``report.html``: one page that needs nothing but itself, and the figures as files."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tfasr.analysis.findings import finding, one_run_each
from tfasr.analysis.groups import GroupResult, colours, group_members, group_results
from tfasr.analysis.names import sentence, target_label
from tfasr.analysis.report import Report
from tfasr.display.table import Table
from tfasr.reports.figures.registry import report_charts
from tfasr.reports.page.parts import (
    controls,
    list_element,
    pictures,
    table_element,
    tip,
    write_document,
)

_MOST_CONFIGURATIONS = 50


def write_page(
    report: Report,
    folder: Path,
    shown: Sequence[Table],
    appendix: str = "",
    *,
    results: Sequence[Sequence[GroupResult]] | None = None,
) -> None:
    """Writes ``report.html`` and each figure as a PNG and an SVG into a folder.

    The page is one file without a reference to any other, and its content policy forbids the
    browser to fetch anything. Its curves are interactive; where no script runs, still figures
    stand in their places. Both have the page's own text colour, so that they read in light and
    in dark. What comes from the runs, names and configurations, is escaped.
    """
    results = group_results(report) if results is None else results
    charts, left_out = report_charts(report, results)
    drawn = pictures(charts, folder)
    body = _body(report, results, drawn, left_out, shown, appendix)
    write_document(folder / "report.html", "Time to accuracy", body, charts)


def _body(
    report: Report,
    results: Sequence[Sequence[GroupResult]],
    drawn: str,
    left_out: Sequence[str],
    shown: Sequence[Table],
    appendix: str,
) -> Iterator[str]:
    first, *others = shown
    of_runs = colours(report)
    yield list_element(answers(report, results), "answers")
    yield table_element(first, of_runs)
    yield f'{controls()}<div class="figures">\n{drawn}{tip()}</div>\n'
    yield list_element(left_out, "notes")
    for one in others:
        yield f"<h2>{escape(one.title)}</h2>{table_element(one, of_runs)}"
    yield appendix
    yield _configurations(report)


def answers(report: Report, results: Sequence[Sequence[GroupResult]]) -> list[str]:
    """Returns a sentence for each target: who met it first, and how long the others took."""
    grouped = any(len(members) > 1 for members in group_members(report.runs).values())
    if grouped:
        return [
            answer
            for of_target in results
            for answer in (
                _group_answer(of_target),
                *(finding(of_target[0], other) for other in of_target[1:4]),
            )
        ]
    return [_answer(report, index) for index in range(len(report.targets))]


def _group_answer(results: Sequence[GroupResult]) -> str:
    parts = []
    for result in results[:4]:
        found = result.statistics
        times = "never" if found.median_s is None else f"median {found.median_s / 60:.3g} min"
        parts.append(f"{result.group}: {times} ({found.reached} of {found.n} runs reached it)")
    if len(results) > 4:
        parts.append(f"{len(results) - 4} more groups")
    return f"{sentence(target_label(*results[0].target))}: {'; '.join(parts)}."


def _answer(report: Report, target: int) -> str:
    label = sentence(target_label(*report.targets[target]))
    compared = [
        (run, run.results[target].tta)
        for index, run in enumerate(report.runs)
        if not report.refused(index)
    ]
    times = sorted(
        ((tta.minutes, run.name, tta.epoch) for run, tta in compared if tta.reached),
        key=lambda found: found[0],
    )
    if not times:
        return f"{label}: no run has reached it."
    (fastest, name, epoch), *slower = times
    parts = [f"{label}: {name} in {fastest:.3g} min (epoch {epoch})"]
    parts += [f"{other} in {took:.3g} min, {took / fastest:.2f} times as long"
              for took, other, _ in slower[:3]]  # fmt: skip
    if slower:
        parts.append(f"n = 1 each, and {one_run_each()}")
    if len(slower) > 3:
        parts.append(f"{len(slower) - 3} more runs after them")
    never = [run.name for run, tta in compared if not tta.reached]
    if never:
        shown = ", ".join(never[:3]) + (f" and {len(never) - 3} more" if len(never) > 3 else "")
        parts.append(f"never: {shown}")
    return "; ".join(parts) + "."


def _configurations(report: Report) -> str:
    saved = [run for run in report.runs if run.config is not None]
    notes = []
    if len(saved) > _MOST_CONFIGURATIONS:
        notes = [f"Those of the first {_MOST_CONFIGURATIONS} of {len(saved)} runs."]
        saved = saved[:_MOST_CONFIGURATIONS]
    if not saved:
        return ""
    shown = "".join(
        f"<details><summary>{escape(run.name)}</summary><pre>{escape(run.config)}</pre></details>\n"
        for run in saved
    )
    return f"<h2>Configurations</h2>\n{shown}{list_element(notes, 'notes')}"
