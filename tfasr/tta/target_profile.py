"""Two groups of runs over all targets that both reached: which is faster where."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.tta.bracketed_means import CONFIDENCE, bracketed_mean, mean_difference
from tfasr.tta.brackets import Bracket, brackets_at
from tfasr.tta.group_comparison import GroupComparison, compare_groups
from tfasr.tta.groups import FEWEST_FOR_INTERVAL
from tfasr.tta.metrics import LOWER, metric_named
from tfasr.tta.time_to_accuracy import AccuracyPoint, medians

FINE_TARGETS = 97
"""Targets of the line; the first and the last are the ends of the range."""

VERDICT_TARGETS = 9
"""Those of them at which a verdict is given: evenly spread, the ends among them."""

_BETWEEN = (FINE_TARGETS - 1) // (VERDICT_TARGETS - 1)

Curve = Sequence[AccuracyPoint]


@dataclass(frozen=True)
class Crossing:
    """Where the faster of two groups becomes the slower one.

    Attributes:
        target: at which both take the same time, between two targets of the line.
        after: "first" or "second": the group that is faster at harder targets.
    """

    target: float
    after: str


@dataclass(frozen=True)
class TargetProfile:
    """How much longer one group takes than another, at each target of a range.

    Arrays run from the easiest target to the hardest.

    Attributes:
        targets: `FINE_TARGETS` in equal ratios, from just harder than the best first value of any
            run to the worst of the runs' best ones: every run missed each of them once and reached
            it.
        first_s: geometric mean of the first group's times, at the middles of the brackets.
        ratio: the second group's over the first's.
        low: lower ends of the 95 % interval at each target by itself; None for fewer than 3 runs
            in a group.
        high: upper ends.
        together_low: at the targets of ``verdicts``, lower ends of intervals that hold together:
            with a probability of 95 % none of them all misses its ratio (Bonferroni).
        together_high: upper ends of those.
        verdicts: comparisons at `VERDICT_TARGETS` of the targets, p-values not yet adjusted.
        crossings: where the line passes a ratio of 1, whether or not that is more than chance.
    """

    targets: np.ndarray
    first_s: np.ndarray
    ratio: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    together_low: np.ndarray | None
    together_high: np.ndarray | None
    verdicts: list[GroupComparison]
    crossings: list[Crossing]

    @property
    def verdict_targets(self) -> np.ndarray:
        """The targets at which verdicts are given."""
        return self.targets[::_BETWEEN]


def common_range(
    curves: Sequence[Curve], window: int, metric: str = "cer"
) -> tuple[float, float] | None:
    """Returns the hardest and the easiest target that all runs missed once and then reached.

    Error rates above 1 are left out. None where there is no such target: a run has one median
    alone, or its first is better than what another one ever reached.
    """
    kind = metric_named(metric)
    found = [
        [
            kind.hardness(value)
            for value in medians([point.value for point in curve], window, kind.worst)
        ]
        for curve in curves
    ]
    if not found or any(len(own) < 2 for own in found):
        return None
    hardest = min(max(own) for own in found)
    # Just harder than the best first value, so that every run missed it.
    easiest = math.nextafter(max(own[0] for own in found), math.inf)
    if kind.rate and kind.better == LOWER:
        easiest = max(easiest, kind.hardness(1.0))
    ends = abs(hardest), abs(easiest)  # of error rates hardness is the negative value
    return ends if easiest < hardest and min(ends) > 0 and math.isfinite(max(ends)) else None


def target_profile(
    first: Sequence[Curve],
    second: Sequence[Curve],
    *,
    window: int,
    shares: int = 1,
    metric: str = "cer",
) -> TargetProfile | None:
    """Returns the ratio of two groups' times over the targets that all of their runs reached.

    Args:
        first: a curve for each run of the group that is compared with.
        window: the evaluations whose median must meet a target.
        shares: how many groups are compared with the first one, among which the intervals that
            hold together share their 5 %.

    Returns:
        None where there is no such range, see `common_range`.
    """
    span = common_range([*first, *second], window, metric)
    if span is None:
        return None
    targets = np.geomspace(span[1], span[0], FINE_TARGETS)
    targets[[0, -1]] = span[1], span[0]  # rounding must not carry the ends out of the range
    groups = [
        [brackets_at(curve, targets, window=window, metric=metric) for curve in curves]
        for curves in (first, second)
    ]
    # (targets, runs)
    lows, highs = zip(*(_ends(group) for group in groups), strict=True)
    middles = [np.mean(low + high, axis=1) / 2 for low, high in zip(lows, highs, strict=True)]
    shift = middles[1] - middles[0]
    bands: list[np.ndarray | None] = [None] * 4
    if min(len(first), len(second)) >= FEWEST_FOR_INTERVAL:
        means = [bracketed_mean(low, high) for low, high in zip(lows, highs, strict=True)]
        alone = mean_difference(*means).reach
        level = (1 - CONFIDENCE) / (VERDICT_TARGETS * shares)
        together = mean_difference(*means, confidence=1 - level).reach
        bands = [np.exp(shift - alone), np.exp(shift + alone)]
        bands += [np.exp(end)[::_BETWEEN] for end in (shift - together, shift + together)]
    verdicts = [
        # All of them arrived: Welch's test it is.
        compare_groups(*([run[index] for run in group] for group in groups), by_order=False)
        for index in range(0, FINE_TARGETS, _BETWEEN)
    ]
    return TargetProfile(
        targets, np.exp(middles[0]), np.exp(shift), *bands, verdicts, _crossings(targets, shift)
    )


def _ends(group: Sequence[Sequence[Bracket]]) -> tuple[np.ndarray, np.ndarray]:
    low = np.array([[one.last_miss_s for one in run] for run in group]).T
    high = np.array([[one.first_hit_s for one in run] for run in group]).T
    # An evaluation at the clock's very zero has no logarithm: a millisecond stands for it.
    return np.log(np.maximum(low, 1e-3)), np.log(np.maximum(high, 1e-3))


def _crossings(targets: np.ndarray, shift: np.ndarray) -> list[Crossing]:
    known = np.flatnonzero(shift)
    found = []
    for before, after in zip(known, known[1:], strict=False):
        if shift[before] * shift[after] < 0:
            share = shift[before] / (shift[before] - shift[after])
            at = np.log(targets[before]) * (1 - share) + np.log(targets[after]) * share
            # A second group that takes longer leaves the first one ahead.
            found.append(Crossing(math.exp(at), "first" if shift[after] > 0 else "second"))
    return found
