"""What runs of one configuration say together: seeds differ, and some never arrive."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.tta.brackets import Bracket

CONFIDENCE = 0.95
FEWEST_FOR_INTERVAL = 3
FEWEST_FOR_TEST = 5
_RESAMPLES = 9999


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
            the target, where there are two or more.
        restricted_mean_s: the mean time up to ``restriction_s``, from the Kaplan-Meier curve,
            which takes runs that never arrived for what they are: censored.
        restriction_s: the longest time that was observed.
        interval_s: 95 % interval of the mean by Student's t, n >= 3, if every run arrived.
    """

    n: int
    reached: int
    failure_probability: float
    median_s: float | None
    mean_without_extremes_s: float | None
    coefficient_of_variation: float | None
    restricted_mean_s: float | None
    restriction_s: float
    interval_s: tuple[float, float] | None


@dataclass(frozen=True)
class GroupComparison:
    """How much longer one group takes than another; None where the data do not allow it.

    Attributes:
        ratio: the second group's time over the first's: of geometric means if every run arrived,
            otherwise of restricted means up to the longest time that both groups observed.
        interval: 95 % interval of the ratio, by Welch's t on logarithms; n >= 3 in both groups
            and every run arrived.
        p_value: of a permutation test, n >= 5 in both groups.
        verdict: what that allows one to say.
    """

    ratio: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    verdict: str


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
    restriction = max(_seen(brackets))
    return GroupStatistics(
        n=len(times),
        reached=len(hits),
        failure_probability=1 - len(hits) / len(times),
        median_s=_finite(statistics.median(times)),
        mean_without_extremes_s=mean_without_extremes(times),
        coefficient_of_variation=_variation(hits),
        restricted_mean_s=restricted_mean_s(brackets, restriction),
        restriction_s=restriction,
        interval_s=_mean_interval(times),
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
    # Imported here, as below: a report on single runs answers without SciPy.
    from scipy.stats import CensoredData, ecdf

    curve = ecdf(CensoredData(uncensored=hits, right=last_seen)).sf
    steps = curve.quantiles[curve.quantiles < restriction_s]
    heights = np.concatenate([[1.0], curve.probabilities[: steps.size]])
    edges = np.concatenate([[0.0], steps, [restriction_s]])
    return float(np.sum(heights * np.diff(edges)))


def compare_groups(first: Sequence[Bracket], second: Sequence[Bracket]) -> GroupComparison:
    """Returns how the times of two groups stand to each other.

    Args:
        first: brackets of the group that is compared with.
        second: brackets of the other group.
    """
    times = [_times(first), _times(second)]
    fewest = min(map(len, times))
    arrived = all(math.isfinite(time) and time > 0 for group in times for time in group)
    ratio = _geometric_ratio(*times) if arrived else _restricted_ratio(first, second)
    interval = _ratio_interval(*times) if arrived and fewest >= FEWEST_FOR_INTERVAL else None
    p_value = _permutation(*times) if fewest >= FEWEST_FOR_TEST else None
    return GroupComparison(ratio, interval, p_value, _verdict(fewest, ratio, interval, p_value))


def runs_to_detect(
    coefficient_of_variation: float, gap: float = 0.10, *, power: float = 0.8
) -> int | None:
    """Returns how many runs per arm would show a gap at the 5 % level with that power.

    Two-sided two-sample t test on logarithms of times; None where more than 1000 are needed.

    Args:
        coefficient_of_variation: of the times over seeds, 0 or more.
        gap: the difference to be shown, as a share of the shorter time.
        power: the probability to show it where it is there.

    Raises:
        ValueError: if ``gap`` or ``coefficient_of_variation`` is out of range.
    """
    from scipy.stats import nct, t

    if not gap > 0 or not coefficient_of_variation >= 0:
        raise ValueError(
            "gap must be larger than 0 and the coefficient of variation not negative. "
            f"Received: gap={gap}, coefficient_of_variation={coefficient_of_variation}."
        )
    deviation = math.sqrt(math.log1p(coefficient_of_variation**2))
    if deviation == 0:
        return 2
    for n in range(2, 1001):
        freedom = 2 * n - 2
        critical = t.ppf((1 + CONFIDENCE) / 2, freedom)
        shift = math.log1p(gap) / (deviation * math.sqrt(2 / n))
        # Beyond this the distribution's tail is all there is, and its computation overflows.
        if shift > critical + 10 or nct.sf(critical, freedom, shift) >= power:
            return n
    return None


def _times(brackets: Sequence[Bracket]) -> list[float]:
    return [math.inf if b.first_hit_s is None else b.first_hit_s for b in brackets]


def _seen(brackets: Sequence[Bracket]) -> list[float]:
    return [b.last_miss_s if b.first_hit_s is None else b.first_hit_s for b in brackets]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _variation(hits: Sequence[float]) -> float | None:
    mean = statistics.fmean(hits) if len(hits) > 1 else 0
    return statistics.stdev(hits) / mean if mean > 0 else None


def _mean_interval(times: Sequence[float]) -> tuple[float, float] | None:
    if len(times) < FEWEST_FOR_INTERVAL or not all(map(math.isfinite, times)):
        return None
    mean, error = statistics.fmean(times), statistics.stdev(times) / math.sqrt(len(times))
    reach = _student(len(times) - 1) * error
    return mean - reach, mean + reach


def _student(freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


def _geometric_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    return math.exp(_log_mean(second) - _log_mean(first))


def _log_mean(times: Sequence[float]) -> float:
    return statistics.fmean(map(math.log, times))


def _restricted_ratio(first: Sequence[Bracket], second: Sequence[Bracket]) -> float | None:
    common = min(max(_seen(first)), max(_seen(second)))
    means = [restricted_mean_s(group, common) for group in (first, second)]
    return means[1] / means[0] if None not in means and means[0] > 0 else None


def _ratio_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    parts = [statistics.variance(map(math.log, g)) / len(g) for g in (first, second)]
    total = sum(parts)
    centre = _log_mean(second) - _log_mean(first)
    if total == 0:
        return math.exp(centre), math.exp(centre)
    # Welch and Satterthwaite's degrees of freedom.
    shares = zip(parts, (first, second), strict=True)
    freedom = total**2 / sum(part**2 / (len(group) - 1) for part, group in shares)
    reach = _student(freedom) * math.sqrt(total)
    return math.exp(centre - reach), math.exp(centre + reach)


def _permutation(first: Sequence[float], second: Sequence[float]) -> float:
    from scipy.stats import mannwhitneyu, permutation_test, rankdata

    times = [*first, *second]
    if len(set(times)) == len(times):
        # Without ties the distribution over all exchanges of ranks is known.
        return float(mannwhitneyu(first, second, method="exact").pvalue)
    # Ranks, in which a run that never arrived has its place: after all that did.
    ranks = rankdata(times)
    found = permutation_test(
        (ranks[: len(first)], ranks[len(first) :]),
        lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        vectorized=True,
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def _verdict(
    fewest: int,
    ratio: float | None,
    interval: tuple[float, float] | None,
    p_value: float | None,
) -> str:
    if fewest < FEWEST_FOR_INTERVAL:
        return "no significance possible: fewer than 3 runs in a group"
    if ratio is None:
        return "no ratio: a group never reached the target"
    said = f"{ratio:.2f} times as long"
    if interval is not None:
        decided = "" if interval[0] > 1 or interval[1] < 1 else ", which includes 1: undecided"
        said += f" (95 % interval {interval[0]:.2f} to {interval[1]:.2f}{decided})"
    if p_value is not None:
        said += f"; permutation test p = {p_value:.2g}"
    return said
