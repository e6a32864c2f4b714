"""Statistics of runs of one configuration, which may miss a target.

They describe one group, as the reports' tables show it. Whether two groups differ is
decided in `tfasr.tta.comparison`; `runs_to_detect` says how many runs that takes.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfasr.tta.policies import Bracket

_LEVEL = 0.05  # of intervals and tests, two-sided
_MOST_RUNS = 1000  # per group, that `runs_to_detect` tries
_FEWEST_FOR_GROUPS = 4  # with 3 a group, the smallest possible p is 0.1
_FEWEST_FOR_MEAN = 5  # runs of which the fastest and the slowest may be left out

# Mean and median of two kinds of runs are so many standard deviations apart. The bound
# is 1: Hotelling and Solomons 1932 (doi 10.1214/aoms/1177732911).
_UNEVEN = 0.6


@dataclass(frozen=True)
class GroupStatistics:
    """Times to a target of several runs of one configuration; None if it can't be computed."""

    n: int  # runs, including those that never reached the target
    reached: int  # runs that reached it
    failure_probability: float

    # "Never" is longer than any time; None if the median is "never".
    median_s: float | None

    mean_without_extremes_s: float | None  # see `mean_without_extremes`

    # With n - 1, over the runs that reached the target; of interpolated times if each
    # has one.
    coefficient_of_variation: float | None
    bracket_s: float | None  # mean width of the brackets
    interval_s: tuple[float, float] | None  # 95 % interval of the median over seeds
    no_interval: str | None  # why the interval is missing
    two_kinds: bool  # whether some runs are far slower than the others


def group_statistics(brackets: Sequence[Bracket]) -> GroupStatistics:
    """Summarises the times to a target of one configuration's runs.

    Args:
        brackets: of each run, at least one.

    Raises:
        ValueError: without a run.

    Source: MLPerf Training rules, Benchmark Results.
    """
    if not brackets:
        raise ValueError("A group must have at least one run. Received: none.")

    arrived = [bracket for bracket in brackets if not bracket.censored]
    missing = len(brackets) - len(arrived)
    times = [bracket.read_s for bracket in arrived] + [math.inf] * missing

    widths = [bracket.first_hit_s - bracket.last_miss_s for bracket in arrived]
    bracket_s = None
    if widths:
        bracket_s = statistics.fmean(widths)

    # Interpolated times are closer to the crossing, but only like can be compared with
    # like.
    hits = [bracket.interpolated_s for bracket in arrived]
    if None in hits:
        hits = [bracket.read_s for bracket in arrived]

    variation = None
    if len(hits) > 1 and statistics.fmean(hits) > 0:
        variation = statistics.stdev(hits) / statistics.fmean(hits)

    interval = median_interval(times)
    reason = None
    if interval is None:
        reason = "too many runs never arrived"
        if median_interval(range(len(times))) is None:
            reason = "fewer than 6 runs"

    return GroupStatistics(
        n=len(times),
        reached=len(arrived),
        failure_probability=1 - len(arrived) / len(times),
        median_s=_finite(statistics.median(times)),
        mean_without_extremes_s=mean_without_extremes(times),
        coefficient_of_variation=variation,
        bracket_s=bracket_s,
        interval_s=interval,
        no_interval=reason,
        two_kinds=_of_two_kinds(hits, max(widths, default=0)),
    )


def median_interval(times_s: Sequence[float]) -> tuple[float, float] | None:
    """Returns the 95 % interval of the median over seeds.

    Its ends are two of the times, counted from both sides. It is right for any
    distribution of times, since each run is below the true median with a probability of
    1 / 2. None for fewer than 6 runs, or if an end is "never" (infinity).

    Source: Conover 1999, Practical Nonparametric Statistics, section 3.2.
    """
    # The interval excludes so many times at each end that both tails are small enough.
    n = len(times_s)
    below = 0.5**n  # probability that at most ``end`` runs are below the median
    end = 0
    while below <= _LEVEL / 2:
        end += 1
        below += math.comb(n, end) * 0.5**n

    if end == 0:
        return None

    ordered = sorted(times_s)
    low = ordered[end - 1]
    high = ordered[-end]
    if not math.isfinite(high):
        return None

    return low, high


def _of_two_kinds(times_s: Sequence[float], width_s: float) -> bool:
    """Whether some times are far longer than the others.

    Args:
        times_s: of the runs that reached the target.
        width_s: the widest bracket; a difference that is smaller says nothing.
    """
    if len(times_s) < _FEWEST_FOR_MEAN:
        return False

    apart = abs(statistics.fmean(times_s) - statistics.median(times_s))
    return apart > max(_UNEVEN * statistics.stdev(times_s), width_s)


def mean_without_extremes(times_s: Sequence[float]) -> float | None:
    """Returns the mean without the fastest and the slowest run; infinity stands for never.

    None for fewer than 5 runs, or if two or more never reached the target.

    Source: MLPerf Training rules, Benchmark Results.
    """
    if len(times_s) < _FEWEST_FOR_MEAN:
        return None

    return _finite(statistics.fmean(sorted(times_s)[1:-1]))


def _finite(value: float) -> float | None:
    if math.isfinite(value):
        return value

    return None


def runs_to_detect(
    coefficient_of_variation: float,
    gap: float = 0.10,
    *,
    power: float = 0.8,
    bracket: float = 0.0,
) -> int | None:
    """Returns how many runs per group show a gap at the 5 % level with the given power.

    This is for "groups" of `tfasr.tta.comparison`, with log-normal times.

    Args:
        coefficient_of_variation: of the times of each group.
        gap: how much longer the other group takes, as a share of the shorter time.
        power: how probably the test shows it.
        bracket: the time between two evaluations, as a share of the time to the target.

    Returns:
        None if more than 1000 runs are needed, or if no number of runs helps, as too
        few are surely later.

    Source: Lehmann 1975, Nonparametrics, section 2.3: the variance of Mann and
    Whitney's statistic if groups differ.
    """
    if not gap > 0 or not coefficient_of_variation >= 0 or not bracket >= 0:
        raise ValueError(
            "gap must be larger than 0, the coefficient of variation and the bracket not "
            f"negative. Received: gap={gap}, "
            f"coefficient_of_variation={coefficient_of_variation}, bracket={bracket}."
        )

    from scipy.special import ndtri, owens_t

    later = _surely_later(
        math.log1p(gap),
        math.sqrt(2 * math.log1p(coefficient_of_variation**2)),
        math.log1p(bracket),
    )
    if later <= 0.5:
        return None

    # The probability that two runs are both later than a third, or it earlier than both.
    both_later = later - 2 * float(owens_t(ndtri(later), 1 / math.sqrt(3)))
    for n in range(_FEWEST_FOR_GROUPS, _MOST_RUNS + 1):
        # Standard deviations of the statistic's share of pairs: if the groups are
        # equal, and if they differ as assumed.
        usual = math.sqrt((2 * n + 1) / 12) / n
        variance = later * (1 - later) + 2 * (n - 1) * (both_later - later**2)
        spread = math.sqrt(variance) / n
        if later - 0.5 - ndtri(1 - _LEVEL / 2) * usual >= ndtri(power) * spread:
            return n

    return None


def _surely_later(shift: float, spread: float, width: float) -> float:
    """Returns how probably a run is surely later than another.

    It is if an evaluation lies between them. The difference of their log times is
    normal, with the mean ``shift`` and the standard deviation ``spread``. Evaluations
    are ``width`` apart, so one lies within a difference ``x`` with probability
    ``x / width``, at most 1. Two brackets that touch have an order in half of all
    cases, as no two runs evaluate at exactly the same times.
    """
    from scipy.special import ndtr

    if width == 0 and spread == 0:
        return 1.0

    if width == 0:
        return float(ndtr(shift / spread))

    if spread == 0:
        return min(1.0, shift / (2 * width))

    def beyond(limit: float) -> float:
        """Returns by how much the difference exceeds a limit, on average; 0 if it doesn't."""
        z = (shift - limit) / spread
        return spread * (z * ndtr(z) + math.exp(-z * z / 2) / math.sqrt(2 * math.pi))

    return float((beyond(0.0) - beyond(2 * width)) / (2 * width))
