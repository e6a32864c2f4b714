"""Statistics of runs of one configuration, which differ in seeds and may never meet a target."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.tta.bracketed_means import bracketed_mean
from tfasr.tta.brackets import Bracket

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
