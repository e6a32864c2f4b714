"""Statistics of runs of one configuration, which may miss a target."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.tta.policies import Bracket

CONFIDENCE = 0.95
FEWEST_FOR_INTERVAL = 3
FEWEST_FOR_TEST = 5
_MOST_RUNS = 1000
_Ends = tuple[float, float]
_QUARTILES_APART = 1.349  # of a normal distribution, in standard deviations
_UNEVEN = 0.6  # the bound is 1: Hotelling and Solomons 1932 (doi 10.1214/aoms/1177732911)


@dataclass(frozen=True)
class BracketedMean:
    """The mean of a group's true times, as far as their brackets determine it.

    Source: the characteristic function of a normal distribution at the harmonics of the grid;
    Widrow and Kollar 2008, Quantization Noise, chapter 4.
    """

    mean: np.ndarray  # of the brackets' middles
    error: np.ndarray  # standard error of the mean, from a spread of at least width / sqrt(48)
    bound: np.ndarray  # largest bias if all runs evaluate at the same times: `bracketed_mean`
    width: np.ndarray  # the brackets' mean width
    n: int  # runs
    spread: np.ndarray  # standard deviation of the middles
    uneven: np.ndarray  # whether mean and median are far apart: some runs are much slower

    @property
    def coarse(self) -> np.ndarray:
        """Whether runs differ by less than the time between evaluations."""
        return self.spread < self.width

    def reach(self) -> np.ndarray:
        from scipy.special import stdtrit  # imported late: reports on single runs don't need it

        quantile = float(stdtrit(self.n - 1, (1 + CONFIDENCE) / 2))
        return np.hypot(quantile * self.error, self.bound)


@dataclass(frozen=True)
class MeanDifference:
    shift: np.ndarray
    reach: np.ndarray  # half the width of the shift's interval
    p_value: np.ndarray  # two-sided; below 5 % exactly if the 95 % interval excludes 0

    @classmethod
    def of(cls, shift, error, bound, freedom, confidence: float) -> "MeanDifference":
        """Returns the t test of a shift with a standard error and a largest bias, ``bound``."""
        from scipy.special import stdtr, stdtrit

        reach = np.hypot(stdtrit(freedom, (1 + confidence) / 2) * error, bound)
        beyond = np.sqrt(np.maximum(shift**2 - bound**2, 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            p_value = np.where(beyond > 0, 2 * stdtr(freedom, -beyond / error), 1.0)
        return cls(shift, reach, p_value)


def bracketed_mean(low: np.ndarray, high: np.ndarray) -> BracketedMean:
    """Returns the mean of 2 or more times known only to lie in brackets, ``(..., runs)``.

    Times with a spread ``s``, evaluated on a grid of width ``w``, have middles whose mean is within
    ``(w / 2) exp(-2 pi^2 s^2 / w^2)`` of the true mean. From 5 runs on, quartiles limit ``s``, so
    an outlier doesn't make the others look well spread. The least spread, ``w / sqrt(48)``, is half
    the standard deviation of a time distributed uniformly in its bracket.
    """
    low, high = np.asarray(low, float), np.asarray(high, float)
    middles, n = (low + high) / 2, low.shape[-1]
    width, mean = np.mean(high - low, axis=-1), np.mean(middles, axis=-1)
    spread = smooth = np.std(middles, axis=-1, ddof=1)
    uneven = np.zeros(spread.shape, bool)
    if n >= FEWEST_FOR_TEST:
        lower, median, upper = np.percentile(middles, [25, 50, 75], axis=-1)
        smooth = np.minimum(spread, (upper - lower) / _QUARTILES_APART)
        uneven = np.abs(mean - median) > np.maximum(_UNEVEN * spread, width)
    with np.errstate(over="ignore"):  # the spread may be any multiple of a width near 0
        share = np.divide(smooth, width, out=np.zeros_like(width), where=width > 0)
        bound = width / 2 * np.exp(-2 * (np.pi * share) ** 2)
    error = np.sqrt(np.maximum(spread**2, width**2 / 48) / n)
    return BracketedMean(mean, error, bound, width, n, spread, uneven)


def mean_difference(
    first: BracketedMean, second: BracketedMean, *, confidence: float = CONFIDENCE
) -> MeanDifference:
    """Returns Welch's t test and interval for second minus first mean, widened by possible bias.

    The interval is ``shift +- sqrt((t * error)^2 + (sum of bounds)^2)``;
    ``benchmarks/interval_coverage.py`` simulates its coverage.
    """
    error = np.hypot(first.error, second.error)
    bound = first.bound + second.bound
    shift = second.mean - first.mean
    # Welch and Satterthwaite's degrees of freedom.
    spread = first.error**4 / (first.n - 1) + second.error**4 / (second.n - 1)
    freedom = np.divide(error**4, spread, out=np.ones_like(spread), where=spread > 0)
    return MeanDifference.of(shift, error, bound, freedom, confidence)


@dataclass(frozen=True)
class GroupStatistics:
    """Times to a target of several runs of one configuration; None if it can't be computed."""

    n: int  # runs, including those that never reached the target
    reached: int  # runs that reached it
    failure_probability: float
    median_s: float | None  # "never" is longer than any time; None if the median is "never"
    mean_without_extremes_s: float | None  # see `mean_without_extremes`
    # with n - 1, over the runs that reached the target; of interpolated times if each has one
    coefficient_of_variation: float | None
    bracket_s: float | None  # mean width of the brackets
    restricted_mean_s: float | None  # up to ``restriction_s``, see `restricted_mean_s`
    restriction_s: float  # the longest observed time
    # 95 % interval of the median, over seeds, of the times at which curves cross the target
    interval_s: tuple[float, float] | None
    at_least: bool  # whether the interval covers 95 % or more, see `BracketedMean.coarse`
    no_interval: str | None  # why the interval is missing


def group_statistics(brackets: Sequence[Bracket]) -> GroupStatistics:
    """Summarises the times to a target of one configuration's runs.

    Source: MLPerf Training rules, Benchmark Results; Kaplan and Meier 1958; Royston and Parmar
    2013 for the restricted mean.
    """
    if not brackets:
        raise ValueError("A group must have at least one run. Received: none.")
    times = [math.inf if b.censored else b.read_s for b in brackets]
    arrived = [b for b in brackets if not b.censored]
    widths = [b.first_hit_s - b.last_miss_s for b in arrived]
    interpolated = all(b.interpolated_s is not None for b in arrived)
    hits = [b.interpolated_s if interpolated else b.read_s for b in arrived]
    mean_hit = statistics.fmean(hits) if len(hits) > 1 else 0
    restriction = longest_seen_s(brackets)
    interval, at_least, reason = _interval(brackets)
    return GroupStatistics(
        n=len(times),
        reached=len(arrived),
        failure_probability=1 - len(arrived) / len(times),
        median_s=_finite(statistics.median(times)),
        mean_without_extremes_s=mean_without_extremes(times),
        coefficient_of_variation=statistics.stdev(hits) / mean_hit if mean_hit > 0 else None,
        bracket_s=statistics.fmean(widths) if widths else None,
        restricted_mean_s=restricted_mean_s(brackets, restriction),
        restriction_s=restriction,
        interval_s=interval,
        at_least=at_least,
        no_interval=reason,
    )


def _interval(brackets: Sequence[Bracket]) -> tuple[_Ends | None, bool, str | None]:
    if len(brackets) < FEWEST_FOR_INTERVAL:
        return None, False, f"fewer than {FEWEST_FOR_INTERVAL} runs"
    if any(b.censored for b in brackets):
        return None, False, "a run never arrived"
    if min(b.last_miss_s for b in brackets) <= 0:
        return None, False, "a run met the target at its first evaluation"
    ends = np.log([[b.last_miss_s, b.first_hit_s] for b in brackets])
    mean = bracketed_mean(*ends.T)
    if mean.uneven:
        return None, False, "some runs are far slower than the others"
    low, high = (math.exp(mean.mean + sign * mean.reach()) for sign in (-1, 1))
    return (low, high), bool(mean.coarse), None


def mean_without_extremes(times_s: Sequence[float]) -> float | None:
    """Returns the mean without the fastest and the slowest run; infinity stands for never.

    None for fewer than 5 runs, or if two or more never reached the target.

    Source: MLPerf Training rules, Benchmark Results.
    """
    if len(times_s) < FEWEST_FOR_TEST:
        return None
    return _finite(statistics.fmean(sorted(times_s)[1:-1]))


def restricted_mean_s(brackets: Sequence[Bracket], restriction_s: float) -> float | None:
    """Returns the mean time up to ``restriction_s``, the area under the Kaplan-Meier curve.

    Runs that never reached the target are censored. None if no run reached it.
    """
    hits = [b.read_s for b in brackets if not b.censored]
    if not hits:
        return None
    last_seen = [b.read_s for b in brackets if b.censored]
    if not last_seen:
        return statistics.fmean(min(hit, restriction_s) for hit in hits)
    # Imported late: reports on single runs don't need SciPy.
    from scipy.stats import CensoredData, ecdf

    curve = ecdf(CensoredData(uncensored=hits, right=last_seen)).sf
    steps = curve.quantiles[curve.quantiles < restriction_s]
    heights = np.concatenate([[1.0], curve.probabilities[: steps.size]])
    edges = np.concatenate([[0.0], steps, [restriction_s]])
    return float(np.sum(heights * np.diff(edges)))


def longest_seen_s(brackets: Sequence[Bracket]) -> float:
    return max(b.read_s for b in brackets)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def runs_to_detect(
    coefficient_of_variation: float, gap: float = 0.10, *, power: float = 0.8, bracket: float = 0.0
) -> int | None:
    """Returns how many runs per group show a gap at the 5 % level with the given power.

    This is for the test of `tfasr.tta.comparison`: two-sided, on logarithms of the brackets'
    middles, with 3 runs or more. ``gap`` is a share of the shorter time, ``bracket`` the time
    between two evaluations as a share of the time to the target. None if more than 1000 runs are
    needed, or if the gap is within the bracket, where no number of runs helps.
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
    # A bracket's middle differs from the true time with standard deviation width / sqrt(12).
    variance = math.log1p(coefficient_of_variation**2) + width**2 / 12
    if variance == 0:
        return FEWEST_FOR_INTERVAL
    from scipy.stats import nct, norm, t

    bound = width * math.exp(-2 * math.pi**2 * variance / width**2) if width else 0.0
    beyond = math.sqrt(shift**2 - bound**2)
    for n in range(FEWEST_FOR_INTERVAL, _MOST_RUNS + 1):
        error, freedom = math.sqrt(2 * variance / n), 2 * n - 2
        critical = t.ppf((1 + CONFIDENCE) / 2, freedom)
        # Beyond this the power is practically 1, and computing it overflows.
        shown = beyond / error > critical + 10
        shown = shown or nct.sf(critical, freedom, beyond / error) >= power
        if shown and norm.cdf((shift - width) / error) >= power:
            return n
    return None
