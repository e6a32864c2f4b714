"""The report's figures, drawn for files and described for the page's interactive curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tfasr.analysis.groups import GroupResult, group_members
from tfasr.analysis.names import target_label
from tfasr.analysis.report import Report
from tfasr.analysis.utilisation import MEAN_OVER_S, utilisation_windows
from tfasr.display.intervals_look import INTERVAL_LABELS
from tfasr.display.style import INTERVAL_COLOURS, add_legend, label_axes, new_figure, shortened
from tfasr.report.figures import bars_plot as interactive_bars
from tfasr.report.figures import curves_plot as interactive
from tfasr.report.figures.brackets_still import bracket_figure, bracket_rows
from tfasr.report.figures.curves import clock_label, curve_charts
from tfasr.report.figures.curves_still import draw_chart
from tfasr.report.figures.utilisation_still import utilisation_figure
from tfasr.report.figures.waterfall_still import waterfall_figure
from tfasr.tta.intervals import INTERVALS

MOST_BARS = 40
_MOST_WATERFALLS = 3


@dataclass(frozen=True)
class Drawing:
    """A figure of the report.

    Attributes:
        name: of its files.
        caption: a sentence without its full stop.
        figure: for files, and for readers whose browser runs no scripts.
        plot: the same for the page's plotting library, see `tfasr.report.figures.curves_plot`.
        wide: whether it takes the page's whole width.
    """

    name: str
    caption: str
    figure: Figure
    plot: dict[str, Any]
    wide: bool = False


def figures(
    report: Report, results: Sequence[Sequence[GroupResult]]
) -> tuple[list[Drawing], list[str]]:
    """Returns the report's figures, and a sentence for each that the runs' logs do not allow.

    Args:
        report: whose runs.
        results: its `tfasr.analysis.groups.group_results`.
    """
    charts, left_out = curve_charts(report)
    drawn = [
        Drawing(one.name, one.caption, draw_chart(one), interactive.chart_plot(one))
        for one in charts
    ]
    if report.targets and any(run.curves for run in report.runs):
        drawn.append(_brackets(report, results))
    drawn += _waterfalls(report, results)
    drawn.append(_intervals(report))
    windows = utilisation_windows(report)
    if windows:
        caption = (
            f"Processors in {windows[0].length_s:.3g} s after warm-up (means over {MEAN_OVER_S:g} "
            "s), and below what the run was doing"
        )
        plot = interactive_bars.utilisation_plot(windows)
        drawn.append(Drawing("utilisation", caption, utilisation_figure(windows), plot, wide=True))
    else:
        left_out.append(
            "Utilisation: no run has a cpu.csv or gpu.csv with samples of steps after warm-up."
        )
    return drawn, left_out


def _brackets(report: Report, results: Sequence[Sequence[GroupResult]]) -> Drawing:
    caption = (
        "What is known of each time to accuracy: the evaluations between which it lies, and "
        "the interpolated time (dot); an arrow where a run never met the target"
    )
    if any(len(one.members) > 1 for of_target in results for one in of_target):
        caption += "; tall lines are medians"
    if len(bracket_rows(results)) < sum(map(len, results)):
        caption += "; the first of them"
    clock = clock_label(report)
    plot = interactive_bars.bracket_plot(report, results, clock=clock)
    return Drawing("brackets", caption, bracket_figure(results, clock=clock), plot)


def _intervals(report: Report) -> Drawing:
    more = f", of the first {MOST_BARS} runs" if len(report.runs) > MOST_BARS else ""
    caption = f"Where the time of the whole run went{more}"
    plot = interactive_bars.intervals_plot(report, MOST_BARS)
    return Drawing("intervals", caption, intervals_figure(report), plot)


def intervals_figure(report: Report) -> Figure:
    """Returns one bar a run, made of the minutes of its intervals; the first run at the top."""
    runs = report.runs[:MOST_BARS]
    figure, axes = new_figure(height_in=1.9 + 0.34 * len(runs))
    left = np.zeros(len(runs))
    handles, labels = [], []
    for name in INTERVALS:
        minutes = np.array([run.intervals_s[name] for run in runs]) / 60
        if minutes.any():
            handles.append(
                axes.barh(range(len(runs)), minutes, 0.66, left, color=INTERVAL_COLOURS[name])
            )
            labels.append(INTERVAL_LABELS[name].replace("\n", " "))
            left += minutes
    names = [shortened(run.name, 20) for run in runs]
    axes.set_yticks(range(len(runs)), names, parse_math=False)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    label_axes(axes, x="minutes", y="")
    add_legend(figure, handles, labels, columns=4)
    return figure


def _waterfalls(report: Report, results: Sequence[Sequence[GroupResult]]) -> list[Drawing]:
    drawn = []
    for number, result in enumerate(_decomposed(results)[:_MOST_WATERFALLS], start=1):
        first, second = next(iter(group_members(report.runs))), result.group
        caption = (
            f"Why {second} takes {result.decomposition.ratio:.2f} times as long as {first} to "
            f"{target_label(*result.target)}: the factors multiply to it"
        )
        figure = waterfall_figure(result.decomposition)
        plot = interactive_bars.waterfall_plot(result.decomposition)
        drawn.append(Drawing(f"why_{number}", caption, figure, plot))
    return drawn


def _decomposed(results: Sequence[Sequence[GroupResult]]) -> list[GroupResult]:
    """Returns the decompositions of the first target that has any: one figure tells the story."""
    for of_target in results:
        known = [result for result in of_target if result.decomposition is not None]
        if known:
            return known
    return []
