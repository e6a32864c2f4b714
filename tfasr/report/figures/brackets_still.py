"""The figure of what is known of each time to accuracy: between which evaluations it lies."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tfasr.analysis.bands import MOST_GROUPS
from tfasr.analysis.groups import GroupResult
from tfasr.analysis.names import target_label
from tfasr.display.style import INK, label_axes, new_figure, run_colour, shortened
from tfasr.report.figures.curves_still import label_log
from tfasr.tta.brackets import Bracket

_MOST_ROWS = 32
_ROOM = 0.72
_LOG_RATIO = 8
_ROOMY = 12

Span = tuple[float, float]


def bracket_figure(results: Sequence[Sequence[GroupResult]], *, clock: str) -> Figure:
    """Returns a row for each target and group, and in it each run's bracket.

    A bar reaches from the last evaluation at which the rule was not met to the first at which it
    was, with a dot at the interpolated time; an arrow begins where a run ended that never met it.
    A tall line is a group's median.
    """
    rows = bracket_rows(results)
    figure, axes = new_figure(height_in=0.95 + 0.34 * len(rows), width_in=7.2)
    begin, end, log = bracket_range(rows)
    for row, (number, result) in enumerate(rows):
        colour = run_colour(number)
        offsets = row_offsets(len(result.brackets), _ROOM)
        _draw_brackets(axes, row + offsets, result.brackets, colour, (begin, end))
        median = result.statistics.median_s
        if median is not None and len(result.brackets) > 1:
            axes.plot([median / 60] * 2, [row - 0.44, row + 0.44], color=INK, linewidth=1.6)
    axes.set_xlim(begin, end)
    if log:
        axes.set_xscale("log")
        label_log(axes.xaxis, begin, end)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    labels = [f"{target_label(*one.target)}  {shortened(one.group, 24)}" for _, one in rows]
    axes.set_yticks(range(len(rows)), labels, parse_math=False)
    axes.grid(False, axis="y")
    for row in range(1, len(rows)):
        if rows[row][1].target != rows[row - 1][1].target:
            axes.axhline(row - 0.5, color=INK, alpha=0.3, linewidth=0.8)
    label_axes(axes, x=clock, y="")
    return figure


def bracket_rows(results: Sequence[Sequence[GroupResult]]) -> list[tuple[int, GroupResult]]:
    """Returns the rows that are drawn, with the numbers of their groups' colours."""
    rows = [(n, one) for of_target in results for n, one in enumerate(of_target[:MOST_GROUPS])]
    return rows[:_MOST_ROWS]


def row_offsets(count: int, room: float) -> np.ndarray:
    """Returns where in a row of height 1 each of several runs stands, 0 being its middle."""
    return (np.arange(count) + 0.5) / count * room - room / 2


def crowding(count: int) -> float:
    """Returns how much smaller than usual the marks of so many runs in one row are."""
    return max(0.15, min(1.0, _ROOMY / count))


def _draw_brackets(
    axes: Axes, rows: np.ndarray, brackets: Sequence[Bracket], colour: str, span: Span
) -> None:
    # On a logarithmic axis "not at the first evaluation" begins at its left end.
    lows = np.maximum(np.array([one.last_miss_s for one in brackets]) / 60, span[0])
    end = arrow_place(span)
    highs = np.array([np.nan if one.censored else one.first_hit_s for one in brackets]) / 60
    at = [np.nan if one.interpolated_s is None else one.interpolated_s for one in brackets]
    met = np.isfinite(highs)
    scale = crowding(len(brackets))
    axes.hlines(rows[met], lows[met], highs[met], color=colour, linewidth=2.2 * scale)
    for edges in (lows, highs):
        axes.plot(edges, rows, "|", color=colour, markersize=6 * scale)
    axes.plot(np.array(at) / 60, rows, "o", color=colour, markersize=4.2 * scale)
    if not met.all():
        never = rows[~met]
        axes.hlines(never, lows[~met], end, color=colour, linewidth=1.1 * scale, linestyle=":")
        axes.plot(np.full(never.size, end), never, ">", color=colour, markersize=5 * scale)


def bracket_range(rows: Sequence[tuple[int, GroupResult]]) -> tuple[float, float, bool]:
    """Returns from where to where minutes go, and whether logarithmically: over decades."""
    ends = [
        (one.last_miss_s if one.censored else one.first_hit_s) / 60
        for _, result in rows
        for one in result.brackets
    ]
    known = [end for end in ends if end > 0]
    if not known:
        return 0.0, 1.0, False
    if max(known) / min(known) > _LOG_RATIO:
        return min(known) / 1.6, max(known) * 1.25, True
    return 0.0, max(known) * 1.08, False


def arrow_place(span: Span) -> float:
    """Returns where the arrow of a run stands that never met its target: at the right end."""
    return span[1] / 1.025
