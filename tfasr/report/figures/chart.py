"""A figure over time: what it shows, whoever draws it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tfasr.analysis.bands import Band
from tfasr.analysis.series import Evaluation

_LABEL_HEIGHT = 0.055


@dataclass(frozen=True)
class Mark:
    """Where a group met a target: a point of its line on each axis."""

    group: str
    number: int
    target: float
    at: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Point:
    """One evaluation of one run, for whoever points at it."""

    run: str
    group: str
    number: int
    epoch: int
    x: dict[str, float]
    y: float


@dataclass(frozen=True)
class Rug:
    """When a run evaluated; ``at`` has the evaluated epochs' ends on the other axes."""

    run: str
    group: str
    number: int
    evaluations: list[Evaluation]
    at: dict[str, list[float]]


@dataclass(frozen=True)
class Chart:
    """A figure over time.

    Attributes:
        name: of the figure's file.
        caption: a sentence without its full stop.
        clock: what the minutes are.
        y_label: with its unit.
        unit: of values, for whoever points at one.
        bands: by the axes that all of its curves have.
        limits: of the vertical axis; the lower one only where it is logarithmic.
        log_y: whether it is.
        log_time: whether minutes are.
        targets: drawn as lines.
        marks: drawn as rings.
        points: every evaluation, or [] where they would be too many.
        rugs: evaluations of the first run of each group, drawn beneath.
    """

    name: str
    caption: str
    clock: str
    y_label: str
    unit: str
    bands: dict[str, list[Band]]
    log_y: bool
    log_time: bool
    limits: tuple[float, float]
    targets: list[float] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    rugs: list[Rug] = field(default_factory=list)


def labelled_together(chart: Chart) -> list[list[float]]:
    """Returns the targets that a chart shows; those too close for a label each share one."""
    low, high = chart.limits
    low = low if chart.log_y else 0.0
    groups: list[list[float]] = []
    for target in chart.targets:
        if not low <= target <= high:
            continue
        if groups and _distance(target, groups[-1][-1], low, high, chart.log_y) < _LABEL_HEIGHT:
            groups[-1].append(target)
        else:
            groups.append([target])
    return groups


def _distance(first: float, second: float, low: float, high: float, log: bool) -> float:
    if log:
        return abs(math.log(first / second)) / math.log(high / low)
    return abs(first - second) / (high - low)


def value_limits(
    bands: dict[str, list[Band]], targets: Sequence[float] = (), most: float | None = None
) -> tuple[float, float]:
    """Returns from where to where values go, and targets where they are lower."""
    of_lines = [(one.low, one.middle, one.high) for one in bands["minutes"]]
    values = np.concatenate([own for line in of_lines for own in line if own is not None] or [[]])
    values = values[np.isfinite(values)]
    positive = [*values[values > 0], *(target for target in targets if target > 0)]
    high = 1.12 * float(values.max(initial=0)) or 1.0
    low = float(min(positive, default=high)) / 1.15
    high = high if most is None else min(high, most)
    # Where everything lies above what is worth showing, as before the first epoch of sense.
    return (low, high) if low < high else (high / 10, high)
