"""Statistics of runs of one configuration, which differ in seeds and may never meet a target."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.tta.policies import Bracket

# Means of times that are known only up to two evaluations, and what may be said of them.

CONFIDENCE = 0.95


@dataclass(frozen=True)
class BracketedMean:
    """What the brackets of a group say of the mean of its true times.

    Attributes:
        mean: of the brackets' middles.
        error: the standard error of that by the runs' spread; a spread below half that of times
            anywhere in their brackets, width / sqrt(48), counts as that, so that runs which all
            fall into one bracket are not taken for runs without any spread.
        bound: how far the mean of the middles may be off in the same direction for all runs,
            because they were evaluated at the same moments. Runs whose times spread by ``s`` over
            a grid of width ``w`` have middles with a mean within ``(w / 2) exp(-2 pi^2 s^2 / w^2)``
            of the true one: half a bracket where all runs fall into one, nothing where they spread
            over several.
        width: the mean width of the brackets.
        n: the number of runs.

    Source: the characteristic function of a normal distribution at the harmonics of the grid;
    Widrow and Kollar 2008, Quantization Noise, chapter 4.
    """

    mean: np.ndarray
    error: np.ndarray
    bound: np.ndarray
    width: np.ndarray
    n: int

    def reach(self) -> np.ndarray:
        """Returns half the width of the 95 % interval of the mean, by Student's t."""
        return np.hypot(_student(self.n - 1) * self.error, self.bound)


@dataclass(frozen=True)
class MeanDifference:
    """How two groups' means differ, second minus first.

    Attributes:
        shift: the difference of the means.
        reach: half the width of its interval, of 95 % unless another confidence was asked for.
        p_value: two-sided; below 5 % exactly where the interval does not hold 0.
    """

    shift: np.ndarray
    reach: np.ndarray
    p_value: np.ndarray


def bracketed_mean(low: np.ndarray, high: np.ndarray) -> BracketedMean:
    """Returns the mean of times of which each lies between two ends.

    Args:
        low: of each run, ``(..., runs)``: what its time exceeds.
        high: of each run: what its time does not exceed; two runs or more.
    """
    low, high = np.asarray(low, float), np.asarray(high, float)
    middles, n = (low + high) / 2, low.shape[-1]
    width = np.mean(high - low, axis=-1)
    variance = np.var(middles, axis=-1, ddof=1)
    with np.errstate(over="ignore"):  # the spread may be any multiple of a width near 0
        spread = np.divide(np.sqrt(variance), width, out=np.zeros_like(width), where=width > 0)
        bound = width / 2 * np.exp(-2 * (np.pi * spread) ** 2)
    error = np.sqrt(np.maximum(variance, width**2 / 48) / n)
    return BracketedMean(np.mean(middles, axis=-1), error, bound, width, n)


def mean_difference(
    first: BracketedMean, second: BracketedMean, *, confidence: float = CONFIDENCE
) -> MeanDifference:
    """Returns Welch's t test and interval of two means, widened by what both may be off.

    The interval is ``shift +- sqrt((t * error)^2 + (sum of bounds)^2)``. Simulated in
    ``benchmarks/interval_coverage.py``.
    """
    from scipy.stats import t  # here: a report on single runs answers without SciPy

    error = np.hypot(first.error, second.error)
    bound = first.bound + second.bound
    shift = second.mean - first.mean
    # Welch and Satterthwaite's degrees of freedom.
    spread = first.error**4 / (first.n - 1) + second.error**4 / (second.n - 1)
    freedom = np.divide(error**4, spread, out=np.ones_like(spread), where=spread > 0)
    reach = np.hypot(t.ppf((1 + confidence) / 2, freedom) * error, bound)
    beyond = np.sqrt(np.maximum(shift**2 - bound**2, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = np.where(beyond > 0, 2 * t.sf(beyond / error, freedom), 1.0)
    return MeanDifference(shift, reach, p_value)


def _student(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


FEWEST_FOR_INTERVAL = 3
FEWEST_FOR_TEST = 5


@dataclass(frozen=True)
class GroupStatistics:
    """Times to a target of several runs of one configuration; None where n does not allow it.

    Attributes:
        n: runs, those that never reached the target included.
        reached: runs that reached it.
        failure_probability: the share of those that did not.
        median_s: with "never" as longer than any time; None where the middle is never.
        mean_without_extremes_s: the mean without the fastest and the slowest, n >= 5; one run
            that never arrived counts as the slowest, with more there is none. MLPerf's rule.
        coefficient_of_variation: standard deviation (n - 1) over mean, of the runs that reached
            the target, where there are two or more; of interpolated times, or of first hits where
            a run has no interpolated time.
        bracket_s: the mean time between the last miss and the first hit of the runs that reached
            the target: what their times are known up to.
        restricted_mean_s: the mean time up to ``restriction_s``, from the Kaplan-Meier curve,
            which takes runs that never arrived for what they are: censored.
        restriction_s: the longest time that was observed.
        interval_s: 95 % interval of the mean of the true times, which lie before the first hits,
            from the brackets by Student's t; n >= 3, if every run arrived.
    """

    n: int
    reached: int
    failure_probability: float
    median_s: float | None
    mean_without_extremes_s: float | None
    coefficient_of_variation: float | None
    bracket_s: float | None
    restricted_mean_s: float | None
    restriction_s: float
    interval_s: tuple[float, float] | None


def group_statistics(brackets: Sequence[Bracket]) -> GroupStatistics:
    """Returns what the runs of one configuration say of a target.

    Args:
        brackets: one a run; of each the first hit, or where it was last seen without one.

    Raises:
        ValueError: if there is no run.

    Source: MLPerf Training rules, Benchmark Results; Kaplan and Meier 1958; Royston and Parmar
    2013 for the restricted mean.
    """
    if not brackets:
        raise ValueError("A group must have at least one run. Received: none.")
    times = _times(brackets)
    hits = [time for time in times if math.isfinite(time)]
    restriction = longest_seen_s(brackets)
    return GroupStatistics(
        n=len(times),
        reached=len(hits),
        failure_probability=1 - len(hits) / len(times),
        median_s=_finite(statistics.median(times)),
        mean_without_extremes_s=mean_without_extremes(times),
        coefficient_of_variation=_variation(brackets),
        bracket_s=_mean_bracket_s(brackets),
        restricted_mean_s=restricted_mean_s(brackets, restriction),
        restriction_s=restriction,
        interval_s=_mean_interval(brackets),
    )


def mean_without_extremes(times_s: Sequence[float]) -> float | None:
    """Returns the mean without the fastest and the slowest; infinity stands for never.

    None for fewer than 5 runs, or more than one that never arrived.

    Source: MLPerf Training rules, Benchmark Results.
    """
    if len(times_s) < FEWEST_FOR_TEST:
        return None
    return _finite(statistics.fmean(sorted(times_s)[1:-1]))


def restricted_mean_s(brackets: Sequence[Bracket], restriction_s: float) -> float | None:
    """Returns the area under the Kaplan-Meier curve up to a time: the mean time spent until then.

    None where no run reached the target: nothing is known of its time but that it is longer.
    """
    hits = [b.first_hit_s for b in brackets if b.first_hit_s is not None]
    if not hits:
        return None
    last_seen = [b.last_miss_s for b in brackets if b.censored]
    if not last_seen:
        return statistics.fmean(min(hit, restriction_s) for hit in hits)
    # Imported here: a report on single runs answers without SciPy.
    from scipy.stats import CensoredData, ecdf

    curve = ecdf(CensoredData(uncensored=hits, right=last_seen)).sf
    steps = curve.quantiles[curve.quantiles < restriction_s]
    heights = np.concatenate([[1.0], curve.probabilities[: steps.size]])
    edges = np.concatenate([[0.0], steps, [restriction_s]])
    return float(np.sum(heights * np.diff(edges)))


def longest_seen_s(brackets: Sequence[Bracket]) -> float:
    """Returns the longest time that was observed, of runs that never arrived their last."""
    return max(b.last_miss_s if b.first_hit_s is None else b.first_hit_s for b in brackets)


def _times(brackets: Sequence[Bracket]) -> list[float]:
    return [math.inf if b.first_hit_s is None else b.first_hit_s for b in brackets]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _variation(brackets: Sequence[Bracket]) -> float | None:
    arrived = [b for b in brackets if b.first_hit_s is not None]
    finer = all(b.interpolated_s is not None for b in arrived)
    times = [b.interpolated_s if finer else b.first_hit_s for b in arrived]
    mean = statistics.fmean(times) if len(times) > 1 else 0
    return statistics.stdev(times) / mean if mean > 0 else None


def _mean_bracket_s(brackets: Sequence[Bracket]) -> float | None:
    widths = [b.first_hit_s - b.last_miss_s for b in brackets if b.first_hit_s is not None]
    return statistics.fmean(widths) if widths else None


def _mean_interval(brackets: Sequence[Bracket]) -> tuple[float, float] | None:
    if len(brackets) < FEWEST_FOR_INTERVAL or any(b.first_hit_s is None for b in brackets):
        return None
    found = bracketed_mean([b.last_miss_s for b in brackets], [b.first_hit_s for b in brackets])
    reach = float(found.reach())
    return float(found.mean) - reach, float(found.mean) + reach


# How many runs it takes to show that one group is faster than another.

_MOST_RUNS = 1000


def runs_to_detect(
    coefficient_of_variation: float,
    gap: float = 0.10,
    *,
    power: float = 0.8,
    bracket: float = 0.0,
) -> int | None:
    """Returns how many runs per arm would show a gap at the 5 % level with that power.

    Of the test that `tfasr.tta.comparison` decides by: two-sided, on logarithms of the
    middles of brackets, 3 runs or more. None where more than 1000 are needed, and where the gap is
    not larger than the bracket: then no number of runs is enough.

    Args:
        coefficient_of_variation: of the times over seeds, 0 or more.
        gap: the difference to be shown, as a share of the shorter time.
        power: the probability to show it where it is there.
        bracket: the time between two evaluations, as a share of the time to the target.

    Raises:
        ValueError: if ``gap``, ``bracket`` or ``coefficient_of_variation`` is out of range.
    """
    if not gap > 0 or not coefficient_of_variation >= 0 or not bracket >= 0:
        raise ValueError(
            "gap must be larger than 0, the coefficient of variation and the bracket not negative. "
            f"Received: gap={gap}, coefficient_of_variation={coefficient_of_variation}, "
            f"bracket={bracket}."
        )
    shift, width = math.log1p(gap), math.log1p(bracket)
    if shift <= width:
        return None
    # A time read at the middle of its bracket is off by width / sqrt(12).
    variance = math.log1p(coefficient_of_variation**2) + width**2 / 12
    if variance == 0:
        return FEWEST_FOR_INTERVAL
    bound = width * math.exp(-2 * math.pi**2 * variance / width**2) if width else 0.0
    beyond = math.sqrt(shift**2 - bound**2)
    for n in range(FEWEST_FOR_INTERVAL, _MOST_RUNS + 1):
        error = math.sqrt(2 * variance / n)
        if _shown(beyond / error, 2 * n - 2, power) and _longer(shift - width, error, power):
            return n
    return None


def _shown(noncentrality: float, freedom: int, power: float) -> bool:
    from scipy.stats import nct, t

    critical = t.ppf((1 + CONFIDENCE) / 2, freedom)
    # Beyond this the distribution's tail is all there is, and its computation overflows.
    return noncentrality > critical + 10 or nct.sf(critical, freedom, noncentrality) >= power


def _longer(margin: float, error: float, power: float) -> bool:
    from scipy.stats import norm

    return norm.cdf(margin / error) >= power
