"""Whether runs of one configuration reach a target sooner than those of another."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfasr.tta.bracketed_means import bracketed_mean, mean_difference
from tfasr.tta.brackets import Bracket
from tfasr.tta.groups import (
    FEWEST_FOR_INTERVAL,
    FEWEST_FOR_TEST,
    longest_seen_s,
    restricted_mean_s,
)
from tfasr.tta.order_test import order_test

LEVEL = 0.05


@dataclass(frozen=True)
class GroupComparison:
    """How much longer one group takes than another; None where the data do not allow it.

    Attributes:
        ratio: the second group's time over the first's, as read at first hits: of geometric means
            if every run arrived, otherwise of restricted means up to the longest time that both
            groups observed, which counts a run that never arrived as one that arrived then.
        restricted_to_s: that time; None where every run arrived.
        ratio_of_middles: of geometric means of the brackets' middles, which is free of what an
            evaluation comes too late; if every run arrived.
        interval: 95 % interval of the ratio of true times, from the brackets by Welch's t on
            logarithms; n >= 3 in both groups and every run arrived.
        bracket: the time between two evaluations as a share of the time to the target, of the
            group in which it is larger; if every run arrived.
        interpolated_ratio: the second reading, of geometric means of interpolated times.
        interpolated_interval: 95 % interval of that by Welch's t, without regard to brackets.
        p_value: two-sided; "welch" goes with the interval, "gehan" with runs that never arrived.
        test: which of the two it is of, or None.
        permutation_p: of Gehan's test over exchanges of runs, n >= 5 in both groups.
        later: "first" or "second", the group that takes longer by that test.
        adjusted_p: ``p_value`` by Holm's method, which allows for all comparisons of a report.
        comparisons: how many comparisons that are; 1 for one alone.
    """

    ratio: float | None
    restricted_to_s: float | None = None
    ratio_of_middles: float | None = None
    interval: tuple[float, float] | None = None
    bracket: float | None = None
    interpolated_ratio: float | None = None
    interpolated_interval: tuple[float, float] | None = None
    p_value: float | None = None
    test: str | None = None
    permutation_p: float | None = None
    later: str | None = None
    adjusted_p: float | None = None
    comparisons: int = 1

    @property
    def below_bracket(self) -> bool:
        """Whether the gap is no larger than the time between two evaluations."""
        if self.ratio_of_middles is None:
            return False
        return abs(math.log(self.ratio_of_middles)) <= math.log1p(self.bracket)

    @property
    def sooner(self) -> str | None:
        """The group that is faster, "first" or "second"; None where that is undecided.

        A verdict goes by ``adjusted_p`` below 5 %, and needs a gap larger than a bracket.
        """
        if self.adjusted_p is None or self.adjusted_p >= LEVEL or self.below_bracket:
            return None
        return {"first": "second", "second": "first"}.get(self.later)

    @property
    def verdict(self) -> str:
        """What the comparison allows one to say, of "the second" group against the first."""
        if self.ratio is None:
            return "no ratio: a group never reached the target"
        said = f"{self.ratio:.2f} times as long"
        if self.restricted_to_s is not None:
            said += f" within the {self.restricted_to_s:.3g} s that both observed, as a run never "
            said += "arrived"
        if self.interval is not None:
            said += f" (95 % interval {self.interval[0]:.2f} to {self.interval[1]:.2f})"
        if self.adjusted_p is None:
            return f"{said}; no test: too few runs"
        decided = "undecided" if self.sooner is None else f"the {self.sooner} group is faster"
        return f"{said}; {decided}, p = {self.adjusted_p:.2g}"

    @property
    def reading_bias(self) -> float | None:
        """What reading at first hits does to the ratio: a factor, 1 where it does nothing."""
        return None if self.ratio_of_middles is None else self.ratio / self.ratio_of_middles


def compare_groups(
    first: Sequence[Bracket], second: Sequence[Bracket], *, by_order: bool = True
) -> GroupComparison:
    """Returns how the times of two groups stand to each other.

    Args:
        by_order: whether to make Gehan's test, which takes a while for hundreds of runs.
    """
    fewest = min(len(first), len(second))
    tested = by_order and fewest >= FEWEST_FOR_TEST
    order = order_test(_ends(first), _ends(second)) if tested else None
    ratio, restricted_to_s = _ratio_of_hits(first, second)
    found = GroupComparison(
        ratio=ratio,
        restricted_to_s=restricted_to_s,
        p_value=order and order.p_value,
        test=order and "gehan",
        permutation_p=order and order.p_value,
        later=order and _later(order.excess),
        adjusted_p=order and order.p_value,
    )
    # Where the first evaluation hit there is no lower end, and 0 has no logarithm.
    if not all(b.first_hit_s is not None and b.last_miss_s > 0 for b in (*first, *second)):
        return found
    lows, highs = zip(*(np.log(_ends(group)) for group in (first, second)), strict=True)
    shift = float(np.mean(lows[1] + highs[1]) - np.mean(lows[0] + highs[0])) / 2
    width = max(float(np.mean(high - low)) for low, high in zip(lows, highs, strict=True))
    ratio, interval = _interpolated(first, second)
    found = replace(
        found,
        ratio_of_middles=math.exp(shift),
        bracket=math.expm1(width),
        interpolated_ratio=ratio,
        interpolated_interval=interval,
    )
    if fewest < FEWEST_FOR_INTERVAL:
        return found
    welch = mean_difference(*(bracketed_mean(*ends) for ends in zip(lows, highs, strict=True)))
    p_value = float(welch.p_value)
    if not welch.reach > 0:
        return found  # neither a spread nor a bracket: nothing to judge a gap by
    return replace(
        found,
        interval=_exponentials(shift, float(welch.reach)),
        p_value=p_value,
        test="welch",
        later=_later(shift),
        adjusted_p=p_value,
    )


def adjusted(comparisons: Sequence[GroupComparison]) -> list[GroupComparison]:
    """Returns the comparisons of one report with p-values that allow for their number.

    With them the probability of any false verdict in the report is at most 5 %, however the
    comparisons depend on each other. Comparisons without a p-value do not count.

    Source: Holm 1979 (jstor.org/stable/4615733).
    """
    order = sorted(
        (index for index, one in enumerate(comparisons) if one.p_value is not None),
        key=lambda index: comparisons[index].p_value,
    )
    found, largest = list(comparisons), 0.0
    for passed, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - passed) * found[index].p_value))
        found[index] = replace(found[index], adjusted_p=largest, comparisons=len(order))
    return found


def _ends(brackets: Sequence[Bracket]) -> tuple[np.ndarray, np.ndarray]:
    low = np.array([b.last_miss_s for b in brackets], float)
    high = [math.inf if b.first_hit_s is None else b.first_hit_s for b in brackets]
    return low, np.array(high, float)


def _later(excess: float) -> str | None:
    return ("second" if excess > 0 else "first") if excess else None


def _exponentials(centre: float, reach: float) -> tuple[float, float]:
    return math.exp(centre - reach), math.exp(centre + reach)


def _ratio_of_hits(
    first: Sequence[Bracket], second: Sequence[Bracket]
) -> tuple[float | None, float | None]:
    hits = [[b.first_hit_s for b in group] for group in (first, second)]
    if all(time is not None and time > 0 for group in hits for time in group):
        return math.exp(_log_mean(hits[1]) - _log_mean(hits[0])), None
    common = min(longest_seen_s(first), longest_seen_s(second))
    means = [restricted_mean_s(group, common) for group in (first, second)]
    if None in means or not means[0] > 0:
        return None, None
    return means[1] / means[0], common


def _interpolated(
    first: Sequence[Bracket], second: Sequence[Bracket]
) -> tuple[float | None, tuple[float, float] | None]:
    times = [[b.interpolated_s for b in group] for group in (first, second)]
    if not all(time is not None and time > 0 for group in times for time in group):
        return None, None
    shift = _log_mean(times[1]) - _log_mean(times[0])
    logs = [np.log(group) for group in times]
    if min(map(len, logs)) < FEWEST_FOR_INTERVAL or not any(map(np.ptp, logs)):
        return math.exp(shift), None
    # An interval without brackets is one of brackets that have no width.
    welch = mean_difference(*(bracketed_mean(one, one) for one in logs))
    return math.exp(shift), _exponentials(shift, float(welch.reach))


def _log_mean(times: Sequence[float]) -> float:
    return statistics.fmean(map(math.log, times))
