"""Figures over time, drawn for files."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from tfasr.analysis.bands import EVERYTHING, Band
from tfasr.display.style import (
    INK,
    add_legend,
    label_axes,
    new_figure,
    new_stack,
    run_colour,
    run_line,
)
from tfasr.report.figures.chart import Chart, Rug, labelled_together

_MARKED_POINTS = 60
_STEPS = (1, 2, 5)
_EVERYTHING_GREY = "#7d8794"


def draw_chart(chart: Chart) -> Figure:
    """Returns a chart over minutes as a figure."""
    if chart.rugs:
        figure, (axes, below) = new_stack([3.2, 0.16 * len(chart.rugs) + 0.04])
        axes.tick_params(labelbottom=False)
        _draw_rugs(below, chart.rugs)
    else:
        figure, axes = new_figure()
        below = axes
    bands = chart.bands["minutes"]
    handles = [_draw_band(axes, band, with_points=bool(chart.points)) for band in bands]
    for mark in chart.marks:
        x, y = mark.at["minutes"]
        axes.plot([x], [y], "o", color=run_colour(mark.number), markersize=9,
                  markerfacecolor="none", markeredgewidth=1.6)  # fmt: skip
    _set_time(axes, bands, log=chart.log_time)
    below.set_xlim(axes.get_xlim())
    _set_values(axes, chart)
    _draw_targets(axes, chart)
    label_axes(axes, x="", y=chart.y_label)
    below.set_xlabel(chart.clock, color=INK, fontsize=10.5)
    _legend(figure, bands, handles)
    return figure


def _draw_band(axes: Axes, band: Band, *, with_points: bool):
    colour = _EVERYTHING_GREY if band.number == EVERYTHING else run_colour(band.number)
    line = "-" if band.number == EVERYTHING else run_line(band.number)
    if band.low is not None:
        axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.22, linewidth=0)
    marked = with_points and band.runs == 1 and band.x.size <= _MARKED_POINTS
    (handle,) = axes.plot(band.x, band.middle, line, color=colour, linewidth=1.8,
                          marker="o" if marked else "", markersize=3)  # fmt: skip
    return handle


def _draw_rugs(axes: Axes, rugs: Sequence[Rug]) -> None:
    for row, rug in enumerate(rugs):
        spans = [(one.start_min, one.stop_min - one.start_min) for one in rug.evaluations]
        colour = run_colour(rug.number)
        # The outline keeps an evaluation of seconds visible in a run of hours.
        axes.broken_barh(spans, (row + 0.15, 0.7), color=colour, linewidth=0.7)
    axes.set_ylim(len(rugs), 0)
    axes.yaxis.set_major_locator(NullLocator())
    axes.grid(False, axis="y")
    axes.set_ylabel("eval", color=INK, fontsize=9, rotation=0, ha="right", va="center")


def _set_time(axes: Axes, bands: Sequence[Band], *, log: bool) -> None:
    ends = [band.x[-1] for band in bands if band.x.size]
    starts = [band.x[band.x > 0][0] for band in bands if (band.x > 0).any()]
    if log and starts:
        axes.set_xscale("log")
        axes.set_xlim(min(starts) / 1.1, max(ends) * 1.08)
        label_log(axes.xaxis, *axes.get_xlim())
    else:
        axes.set_xlim(0, max(ends, default=1) * 1.03 or 1)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))


def _set_values(axes: Axes, chart: Chart) -> None:
    low, high = chart.limits
    if not chart.log_y:
        axes.set_ylim(0, high)
        return
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    label_log(axes.yaxis, low, high)


def label_log(axis, low: float, high: float) -> None:
    """Labels a logarithmic axis with as many plain figures as there is room for."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (range(1, 10), (1, 1.5, 2, 3, 5, 7), _STEPS, (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 8:
            break
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(LogLocator(subs="all") if len(ticks) < 2 else NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _draw_targets(axes: Axes, chart: Chart) -> None:
    """Draws targets as dashed lines with their values beside the axes."""
    for close in labelled_together(chart):
        for target in close:
            axes.axhline(target, color=INK, alpha=0.65, linewidth=1, dashes=(4, 3))
        axes.annotate(
            ", ".join(f"{target:.4g}" for target in close),
            (1.015, close[len(close) // 2]),
            xycoords=("axes fraction", "data"),
            va="center",
            color=INK,
            fontsize=9.5,
            annotation_clip=False,
        )


def _legend(figure: Figure, bands: Sequence[Band], handles: list) -> None:
    names = [band.label for band in bands]
    longest = max(map(len, names), default=1)
    columns = max(1, min(4, len(names), 60 // (longest + 6)))
    add_legend(figure, handles, names, columns=columns)
