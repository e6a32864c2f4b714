"""Why one group takes longer than another: factors that multiply to the ratio of their times."""

import math
from collections.abc import Sequence

from tfasr.analysis.findings import of_single_runs
from tfasr.analysis.groups import GroupResult, group_members
from tfasr.analysis.names import target_label
from tfasr.analysis.report import Report
from tfasr.display.chart import (
    Axis,
    Chart,
    Labels,
    Mark,
    Panel,
    Rects,
    Rule,
    Segments,
    rows_axis,
)
from tfasr.tta.decomposition import FACTORS, Decomposition

SLOWER, FASTER, WHOLE = "#d9660d", "#1f9e6e", "#7d8794"
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_FINE = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5, 3)
_FINEST = (0.9, 0.95, 1, 1.05, 1.1)
_NARROW, _FLAT = 3, 1.25
_MOST = 3
_HALF = 0.31
_SEEN = 0.005


def waterfall_charts(report: Report, results: Sequence[Sequence[GroupResult]]) -> list[Chart]:
    """Returns a chart for each of the first groups, of the first target that has factors."""
    known = [[one for one in own if one.decomposition is not None] for own in results]
    of_target = next((own for own in known if own), [])
    first, first_members = next(iter(group_members(report.runs).items()), ("", []))
    charts = []
    for number, result in enumerate(of_target[:_MOST], start=1):
        caption = (
            f"Why {result.group} takes {result.decomposition.ratio:.2f} times as long as {first} "
            f"to {target_label(*result.target)}: the factors multiply to it"
        )
        said = of_single_runs([len(first_members), len(result.members)])
        caption += f". Of these times {said}" if said else ""
        charts.append(waterfall_chart(f"why_{number}", caption, result.decomposition))
    return charts


def waterfall_chart(name: str, caption: str, found: Decomposition) -> Chart:
    """Returns a bar for each factor, each beginning where the one before it ended.

    The axis is logarithmic, so that equal factors have equal lengths; the last bar is the ratio.
    """
    factors = list(found.factors.values())
    reached = [1.0]
    for factor in factors:
        reached.append(reached[-1] * factor)
    starts, stops = [*reached[:-1], 1.0], [*reached[1:], found.ratio]
    texts = [f"×{one:.2f}" if abs(math.log(one)) >= _SEEN else "–" for one in factors]
    texts.append(f"×{found.ratio:.2f}")
    names = [*FACTORS.values(), "together"]
    said = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
    marks: list[Mark] = [Rule(value=1.0, axis="x", dash="solid")]
    for colour, series, rows in (
        (SLOWER, "slower", [row for row, one in enumerate(factors) if one > 1]),
        (FASTER, "faster", [row for row, one in enumerate(factors) if one <= 1]),
        (WHOLE, "together", [len(factors)]),
    ):
        if rows:
            marks.append(
                Rects(
                    x0=[starts[row] for row in rows], x1=[stops[row] for row in rows],
                    y0=[row - _HALF for row in rows], y1=[row + _HALF for row in rows],
                    colour=colour, series=series, texts=[said[row] for row in rows],
                )
            )  # fmt: skip
    joints = range(len(factors))
    marks.append(
        Segments(x0=reached[1:], x1=reached[1:], y0=[row - _HALF for row in joints],
                 y1=[row + 1 + _HALF for row in joints], width=0.8)
    )  # fmt: skip
    ends = [max(pair) for pair in zip(starts, stops, strict=True)]
    marks.append(Labels(x=ends, y=range(len(names)), words=texts))
    x = _axis(min(reached), max(reached))
    return Chart(name, caption, [Panel(marks, x, rows_axis(names), 270)])


def _axis(low: float, high: float) -> Axis:
    margin = max(1.05, (high / low) ** 0.12)
    bottom, top = low / margin, high * margin**3
    # Over a narrow range a logarithmic axis is all but linear.
    ticks = _TICKS if top / bottom >= _NARROW else _FINE if top / bottom > _FLAT else _FINEST
    shown = [tick for tick in ticks if bottom <= tick <= top]
    return Axis("times as long", log=True, limits=(bottom, top), ticks=shown)
