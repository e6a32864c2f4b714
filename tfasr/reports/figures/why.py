"""Why one group takes longer than another: factors that multiply to the ratio of their times."""

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from tfasr.display.chart import (
    Axis,
    Chart,
    Labels,
    Mark,
    Panel,
    Points,
    Rects,
    Rule,
    Segments,
    rows_axis,
    run_colour,
    shortened,
)
from tfasr.reports.figures.curves import MOST_GROUPS, clock_label
from tfasr.reports.figures.registry import NotDrawnError
from tfasr.reports.groups import GroupResult, Results, group_members, of_single_runs
from tfasr.reports.numbers import Report, target_label
from tfasr.tta.decomposition import FACTORS, Decomposition

_MOST_ROWS = 32
_ROOM = 0.72
_LOG_RATIO = 8
_ROOMY = 12


def bracket_chart(report: Report, results: Results) -> Chart:
    """Returns a row for each target and group, with each run's bracket."""
    if not report.targets or not any(run.curves for run in report.runs):
        raise NotDrawnError("Times to accuracy: there is no target, or no evaluation.")
    caption = (
        "Between which evaluations each run's error curve crosses the target, and where a straight "
        "line does (dot); an arrow where a run never met the target"
    )
    if report.window > 1:
        caption += f"; the rule, a median of {report.window}, is met later"
    if any(len(group.members) > 1 for of_target in results for group in of_target):
        caption += "; tall lines are median times by the rule"
    rows = [(n, group) for of_target in results for n, group in enumerate(of_target[:MOST_GROUPS])]
    rows = rows[:_MOST_ROWS]
    if len(rows) < sum(map(len, results)):
        caption += "; the first of them"
    x = _minutes(report, [result for _, result in rows])
    marks: list[Mark] = []
    for row, (number, result) in enumerate(rows):
        if row and result.target != rows[row - 1][1].target:
            marks.append(Rule(value=row - 0.5, dash="solid"))
        names = [report.runs[run].name for run in result.members]
        marks += _brackets(row, run_colour(number), result, names, x.limits)
        median = result.statistics.median_s
        if median is not None and len(result.brackets) > 1:
            text = f"{result.group}\nmedian: {median / 60:.4g} min"
            at = {"x0": [median / 60], "x1": [median / 60], "texts": [text]}
            marks.append(Segments(y0=[row - 0.44], y1=[row + 0.44], **at))
    labels = [f"{target_label(*group.target)}  {shortened(group.group, 20)}" for _, group in rows]
    panel = Panel(marks, x, rows_axis(labels), 28.0 + 34 * len(rows))
    return Chart("brackets", caption, [panel])


def _minutes(report: Report, results: Sequence[GroupResult]) -> Axis:
    brackets = [bracket for result in results for bracket in result.brackets]
    ends = [bracket.last_miss_s if bracket.censored else bracket.read_s for bracket in brackets]
    minutes = [end / 60 for end in ends if end > 0]
    label = clock_label(report)
    if not minutes:
        return Axis(label, limits=(0.0, 1.0))
    if max(minutes) / min(minutes) > _LOG_RATIO:
        return Axis(label, log=True, limits=(min(minutes) / 1.6, max(minutes) * 1.25))
    return Axis(label, limits=(0.0, max(minutes) * 1.08))


def _brackets(
    row: int, colour: str, result: GroupResult, names: Sequence[str], span: tuple[float, float]
) -> list[Mark]:
    count = len(result.brackets)
    at = row + (np.arange(count) + 0.5) / count * _ROOM - _ROOM / 2
    # With many runs in a row, marks are smaller.
    scale = max(0.15, min(1.0, _ROOMY / count))
    never, met = [], []
    for y, bracket, run in zip(at, result.brackets, names, strict=True):
        # On a logarithmic axis "not at the first evaluation" begins at its left end.
        low = max(bracket.last_miss_s / 60, span[0])
        if bracket.censored:
            never.append((low, span[1] / 1.025, y, f"{run}\nafter {low:.4g} min: never"))
            continue
        high = inside = bracket.first_hit_s / 60
        text = f"{run}\n{low:.4g} to {high:.4g} min"
        if bracket.interpolated_s is not None:
            inside = bracket.interpolated_s / 60
            text += f", interpolated {inside:.4g}"
        met.append((low, high, y, text, inside))
    marks: list[Mark] = []
    if met:
        lows, highs, y, texts, dots = zip(*met, strict=True)
        about = {"colour": colour, "texts": texts}
        marks.append(Segments(x0=lows, x1=highs, y0=y, y1=y, width=3 * scale, **about))
        half = 0.12 * scale
        for ends in (lows, highs):
            y0, y1 = [place - half for place in y], [place + half for place in y]
            marks.append(Segments(x0=ends, x1=ends, y0=y0, y1=y1, colour=colour, width=1.5))
        marks.append(Points(x=dots, y=y, size=6.5 * scale, **about))
    if never:
        lows, highs, y, texts = zip(*never, strict=True)
        about = {"colour": colour, "texts": texts}
        line = {"y0": y, "y1": y, "width": 1.6 * scale, "dash": "dotted"}
        marks.append(Segments(x0=lows, x1=highs, **line, **about))
        marks.append(Points(x=highs, y=y, symbol="arrow", size=8 * scale, **about))
    return marks


SLOWER, FASTER, WHOLE = "#d9660d", "#1f9e6e", "#7d8794"
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_FINE = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5, 3)
_FINEST = (0.9, 0.95, 1, 1.05, 1.1)
_NARROW, _FLAT = 3, 1.25
_MOST = 3
_HALF = 0.31
_SEEN = 0.005


def waterfall_charts(report: Report, results: Results) -> list[Chart]:
    decomposed = ([result for result in row if result.decomposition is not None] for row in results)
    of_target = next(filter(None, decomposed), [])
    first, first_members = next(iter(group_members(report.runs).items()), ("", []))
    charts = []
    for number, result in enumerate(of_target[:_MOST], start=1):
        caption = (
            f"Why {result.group} takes {result.decomposition.ratio:.2f} times as long as {first} "
            f"to {target_label(*result.target)}: the factors multiply to it"
        )
        caveat = of_single_runs([len(first_members), len(result.members)])
        caption += f". Of these times {caveat}" if caveat else ""
        charts.append(waterfall_chart(f"why_{number}", caption, result.decomposition))
    return charts


def waterfall_chart(name: str, caption: str, product: Decomposition) -> Chart:
    # A bar for each factor, each beginning where the one before it ended, on a logarithmic axis.
    factors = list(product.factors.values())
    reached = [1.0, *accumulate(factors, mul)]
    starts, stops = [*reached[:-1], 1.0], [*reached[1:], product.ratio]
    words = [f"×{factor:.2f}" if abs(math.log(factor)) >= _SEEN else "–" for factor in factors]
    words.append(f"×{product.ratio:.2f}")
    names = [*FACTORS.values(), "together"]
    texts = [f"{name}: {word}" for name, word in zip(names, words, strict=True)]
    marks: list[Mark] = [Rule(value=1.0, axis="x", dash="solid")]
    for colour, series, rows in (
        (SLOWER, "slower", [row for row, factor in enumerate(factors) if factor > 1]),
        (FASTER, "faster", [row for row, factor in enumerate(factors) if factor <= 1]),
        (WHOLE, "together", [len(factors)]),
    ):
        if rows:
            x = {"x0": [starts[row] for row in rows], "x1": [stops[row] for row in rows]}
            y = {"y0": [row - _HALF for row in rows], "y1": [row + _HALF for row in rows]}
            about = {"colour": colour, "series": series, "texts": [texts[row] for row in rows]}
            marks.append(Rects(**x, **y, **about))
    joints = range(len(factors))
    y = {"y0": [row - _HALF for row in joints], "y1": [row + 1 + _HALF for row in joints]}
    marks.append(Segments(x0=reached[1:], x1=reached[1:], **y, width=0.8))
    ends = [max(pair) for pair in zip(starts, stops, strict=True)]
    marks.append(Labels(x=ends, y=range(len(names)), words=words))
    x = _axis(min(reached), max(reached))
    return Chart(name, caption, [Panel(marks, x, rows_axis(names), 270)])


def _axis(low: float, high: float) -> Axis:
    margin = max(1.05, (high / low) ** 0.12)
    bottom, top = low / margin, high * margin**3
    # Over a narrow range a logarithmic axis is almost linear.
    ticks = _TICKS if top / bottom >= _NARROW else _FINE if top / bottom > _FLAT else _FINEST
    shown = [tick for tick in ticks if bottom <= tick <= top]
    return Axis("times as long", log=True, limits=(bottom, top), ticks=shown)
