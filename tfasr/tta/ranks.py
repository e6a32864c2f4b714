"""Compares times by their order, where each time is only known to lie between two ends.

A run crosses its target between two evaluations, or some time after its last one. So
the ratio of two runs' times also lies between two ends. A count of ratios above 1
includes only those that are certainly above 1, and each end of an interval uses the
ends that make it wider. Both are therefore right wherever in their brackets the times
lie, and whatever a stopped run would have done. Arrays are ``(..., runs)``; all times
are logarithms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tfasr.tta.policies import Bracket

GROUPS = "groups"
PAIRS = "pairs"

# Larger groups use the normal approximation, which then errs by less than 1 %.
_MOST_COUNTED = 60
_LEAST_S = 1e-3  # a time of 0 has no logarithm: it counts as a millisecond

Ends = tuple[np.ndarray, np.ndarray]
"""The lower and the upper ends of times or ratios, as logarithms, ``(..., runs)``."""


@dataclass(frozen=True)
class Ratios:
    """How much later the second group is than the first, as logarithms of ratios."""

    estimate: np.ndarray  # the median ratio; NaN if runs without a time could change it

    # Ends of the interval; infinite if the runs set no limit.
    low: np.ndarray
    high: np.ndarray

    # Two-sided; below ``1 - confidence`` exactly if the interval excludes 0.
    p_value: np.ndarray

    # 1 if more ratios are certainly above 1 than below 1, -1 if fewer, else 0
    sign: np.ndarray


def log_ends(brackets: Sequence[Bracket]) -> Ends:
    """Returns the logarithms of the brackets' ends.

    A run that never met the target lies between its last evaluation and infinity; one
    that met it at its first evaluation has no lower end.

    Returns:
        The lower ends and the upper ends, each ``(runs,)``.
    """
    low = np.array([bracket.last_miss_s for bracket in brackets], float)
    high = np.array([_end_s(bracket) for bracket in brackets], float)
    with np.errstate(divide="ignore"):
        return np.log(low), np.log(np.maximum(high, _LEAST_S))


def _end_s(bracket: Bracket) -> float:
    if bracket.first_hit_s is None:
        return math.inf

    return bracket.first_hit_s


def log_ratios(first: Ends, second: Ends, test: str) -> Ends:
    """Returns the least and the greatest possible ratios, each sorted.

    For "groups", these are the ratios of every run of the second group to every run of
    the first. For "pairs", run 1 of both groups is a pair, and so on: each pair's ratio
    and the (geometric) mean of any two pairs' ratios, known as Walsh averages.

    Args:
        first: the ends of the first group's times.
        second: those of the second's.
        test: `GROUPS` or `PAIRS`.
    """
    if test == PAIRS:
        least = _walsh_averages(second[0] - first[1])
        greatest = _walsh_averages(second[1] - first[0])
    else:
        least = _differences(first[1], second[0])
        greatest = _differences(first[0], second[1])

    return np.sort(least, axis=-1), np.sort(greatest, axis=-1)


def _differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns every run of the second group minus every run of the first.

    The shapes ``(..., first)`` and ``(..., second)`` become ``(..., first * second)``.
    """
    between = second[..., :, None] - first[..., None, :]
    return between.reshape(*between.shape[:-2], -1)


def _walsh_averages(ratios: np.ndarray) -> np.ndarray:
    """Returns the mean of each two ratios, also of each one with itself.

    The shape ``(..., n)`` becomes ``(..., n * (n + 1) / 2)``.
    """
    one, other = np.triu_indices(ratios.shape[-1])
    return (ratios[..., one] + ratios[..., other]) / 2


def compare_ends(first: Ends, second: Ends, test: str, confidence: float) -> Ratios:
    """Compares two groups of runs by the order of their times.

    If the groups are equally fast, the p-value is below any level with at most that
    probability, and the interval contains 0 with a probability of ``confidence`` or
    more: for "groups" if runs are exchangeable between the groups, for "pairs" if they
    are within each pair. Neither the shape of the times' distribution matters nor when
    runs were stopped.

    Args:
        first: the ends of the first group's times.
        second: those of the second's.
        test: `GROUPS` or `PAIRS`.
        confidence: the probability with which the interval contains the true ratio.

    Source: Mann and Whitney 1947 (doi 10.1214/aoms/1177730491) and Wilcoxon 1945 (doi
    10.2307/3001968) for the tests, Hodges and Lehmann 1963 (doi
    10.1214/aoms/1177704172) for the medians and intervals.
    """
    least, greatest = log_ratios(first, second, test)
    first_runs = first[0].shape[-1]
    second_runs = second[0].shape[-1]
    below_or_equal = order_distribution(test, first_runs, second_runs)

    later = np.count_nonzero(least > 0, axis=-1)
    earlier = np.count_nonzero(greatest < 0, axis=-1)
    tail = np.minimum(_tail(below_or_equal, later), _tail(below_or_equal, earlier))

    low = np.full(least.shape[:-1], -np.inf)
    high = np.full(least.shape[:-1], np.inf)
    end = end_of_interval(test, first_runs, second_runs, confidence)
    if end > 0:
        low = least[..., end - 1]
        high = greatest[..., -end]

    return Ratios(
        estimate=_median_ratio(first, second, test),
        low=low,
        high=high,
        p_value=np.minimum(1.0, 2 * tail),
        sign=np.sign(later - earlier),
    )


def _tail(below_or_equal: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Returns the probability of so many ratios above 1, or more.

    The distribution is symmetric: as many above as here are as likely as that many
    below.
    """
    return below_or_equal[below_or_equal.size - 1 - count]


def _median_ratio(first: Ends, second: Ends, test: str) -> np.ndarray:
    """Returns the median ratio of the brackets' middles.

    Runs without a middle leave it between two medians; NaN if these differ.
    """
    least, greatest = log_ratios(_middles(first), _middles(second), test)
    lowest = np.median(least, axis=-1)
    highest = np.median(greatest, axis=-1)
    is_defined = (
        np.isfinite(lowest) & np.isfinite(highest) & np.isclose(lowest, highest)
    )
    return np.where(is_defined, lowest, np.nan)


def _middles(ends: Ends) -> Ends:
    """Returns each bracket's middle as both ends, or its own ends if one is infinite."""
    low, high = ends
    is_finite = np.isfinite(low) & np.isfinite(high)
    middle = np.where(is_finite, low, 0.0) / 2 + np.where(is_finite, high, 0.0) / 2
    return np.where(is_finite, middle, low), np.where(is_finite, middle, high)


@cache
def order_distribution(test: str, first: int, second: int) -> np.ndarray:
    """Returns the probabilities of at most 0, 1, 2, ... ratios above 1 if nothing differs.

    Args:
        test: `GROUPS` or `PAIRS`.
        first: how many runs the first group has; of pairs, how many pairs there are.
        second: how many runs the second group has.
    """
    if test == PAIRS:
        shares = np.ones(1)
        for rank in range(1, first + 1):
            shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    elif max(first, second) <= _MOST_COUNTED:
        shares = _rank_sums(first, second)
    else:
        # Imported late: reports on single runs don't need SciPy.
        from scipy.special import ndtr

        counts = np.arange(first * second + 1)
        spread = math.sqrt(first * second * (first + second + 1) / 12)
        return ndtr((counts + 0.5 - first * second / 2) / spread)

    return np.minimum(1.0, np.cumsum(shares))


def _rank_sums(first: int, second: int) -> np.ndarray:
    """Returns the distribution of Mann and Whitney's statistic for groups without ties.

    Args:
        first: how many runs the first group has.
        second: how many the second has.

    Returns:
        The probability of each number of ratios above 1, ``(first * second + 1,)``.
    """
    # ways[k, u]: ways to choose k of the runs so far for the second group, with u
    # ratios above 1.
    ways = np.zeros((second + 1, first * second + 1))
    ways[0, 0] = 1
    for run in range(first + second):
        for chosen in range(min(run + 1, second), 0, -1):
            # The run is later than those before it that went to the first group.
            earlier = run - (chosen - 1)
            if earlier <= first:
                ways[chosen, earlier:] += ways[chosen - 1, : ways.shape[1] - earlier]

    return ways[second] / ways[second].sum()


def least_p(test: str, first: int, second: int) -> float:
    """Returns the smallest p-value that so many runs can give.

    Args:
        test: `GROUPS` or `PAIRS`.
        first: the runs of the first group.
        second: those of the second.
    """
    if min(first, second) == 0:
        return 1.0

    return min(1.0, 2 * float(order_distribution(test, first, second)[0]))


@cache
def end_of_interval(test: str, first: int, second: int, confidence: float) -> int:
    """Returns which ratio, counted from the least, is the interval's end.

    It is 0 with too few runs.
    """
    shares = order_distribution(test, first, second)
    return int(np.searchsorted(shares, (1 - confidence) / 2, side="left"))
