"""When a run that goes on will meet a target: an interval from its curve so far and its pace.

The intervals are quantile regressions on the course of published runs, made to cover what they
promise on half of them and tested on the other half: see ``benchmarks/forecast.py`` and
``docs/forecast.md``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfasr.tta.metrics import LOWER, metric_named
from tfasr.tta.policies import WINDOW, AccuracyPoint, first_sustained, medians

# Coefficients of the forecast's quantile regressions, fitted to published runs.
COEFFICIENTS = {
    "single": {
        "not_before": (-0.181, 0.6343), "low": (0.1829, 0.5319),
        "high": (1.4993, 0.3984), "middle": (1.0434, 0.473),
    },
    "median": {
        "not_before": (-0.4131, 0.599), "low": (-0.191, 0.4794),
        "high": (1.0094, 0.3547), "middle": (0.5246, 0.4353),
    },
}  # fmt: skip
FEWEST_EVALUATIONS = 4  # medians below which nothing is known
MOST_ABOVE = 1.2  # how far above the target, as a logarithm, a curve may be for a forecast
# What a curve must fall, as a logarithm, if it continued for as long as it has run.
LEAST_FALL = 0.05
_MEMORIES = (0.12, 0.35)  # evaluations this share of the curve ago weigh 1/e, in the two slopes
_LEAST_SLOPE = 0.02
_PACE_EVALUATIONS = 5
# The earliest end is never later than this share of the time at the present slope,
_SOONER = 0.75
# nor surely later than this share: a run that might be four times as fast isn't given up.
_SURELY = 0.25
Coefficients = Mapping[str, Sequence[float]]
"""By quantile: "not_before", "low", "middle" and "high"."""


@dataclass(frozen=True)
class Forecast:
    """A forecast for a run and a target; times since the clock's start, None if unknown."""

    metric: str
    target: float
    met_s: float | None = None  # when the target was met; all else is None then
    # the 80 % interval's lower end, if evaluations come at the shortest recent distance
    low_s: float | None = None
    middle_s: float | None = None  # the median
    high_s: float | None = None  # the 80 % interval's upper end
    # the run meets the target later than this with 95 %, calibrated over entire runs
    not_before_s: float | None = None
    reason: str = ""  # why there is no interval, or ""

    @property
    def known(self) -> bool:
        return self.low_s is not None


def forecast(
    points: Sequence[AccuracyPoint],
    target: float,
    *,
    metric: str = "cer",
    window: int = WINDOW,
    coefficients: Mapping[str, Coefficients] = COEFFICIENTS,
) -> Forecast:
    """Returns when a run will have met a target if it goes on.

    ``points`` are its evaluations so far, on any clock; ``coefficients`` by the names of `rule_of`.
    """
    met = first_sustained(points, target, metric=metric, window=window)
    if met.reached:
        return Forecast(metric, target, met_s=met.seconds)
    kind, wanted = metric_named(metric), target
    if kind.better != LOWER:
        if not kind.rate:
            return Forecast(metric, target, reason="forecasts are of numbers that fall, and rates")
        # An accuracy is what the errors leave.
        points = [replace(point, value=1 - point.value) for point in points]
        target = 1 - target
    features, reason = course(points, target, window)
    if features is None:
        return Forecast(metric, wanted, reason=reason)
    last_s, pace = points[-1].elapsed_s, pace_s(points)
    if not pace > 0:
        reason = "the clock stood still or ran backwards between its evaluations"
        return Forecast(metric, wanted, reason=reason)
    left = evaluations_left(features, len(points), coefficients[rule_of(window)])
    middle, high, surely = (last_s + pace * left[name] for name in ("middle", "high", "not_before"))
    # With the median pace the earliest end would often be wrong by seconds.
    soonest_s = min(gap for gap in _late_gaps_s(points) if gap > 0)
    low = last_s + soonest_s * left["low"]
    return Forecast(
        metric, wanted, low_s=low, middle_s=middle, high_s=high, not_before_s=min(surely, low)
    )


def course(
    points: Sequence[AccuracyPoint], target: float, window: int
) -> tuple[np.ndarray | None, str]:
    """Returns the features of the regressions, or None and the reason.

    They are 1 and the logarithm of a ratio: the evaluations that the curve would still take if its
    logarithm kept falling at the present slope, over those so far.
    """
    if not points or not math.isfinite(points[-1].value):
        missing = "the last evaluation is no number" if points else "there is no evaluation yet"
        return None, missing
    # What diverged for a while has no logarithm; an evaluation before a window says nothing.
    numbered = enumerate(medians([point.value for point in points], window), start=window)
    usable = [(number, value) for number, value in numbered if 0 < value < math.inf]
    if len(usable) < FEWEST_EVALUATIONS:
        needed = FEWEST_EVALUATIONS + window - 1
        return None, f"{len(points)} of the {needed} evaluations that a forecast needs"
    if target <= 0:
        return None, "no curve of error rates is sure to come down to 0"
    number, values = (np.array(column, float) for column in zip(*usable, strict=True))
    logs, count = np.log(values), len(points)
    slopes, ends = zip(*(_slope(number, logs, count, share) for share in _MEMORIES), strict=True)
    if logs[-1] - math.log(target) > MOST_ABOVE:
        return None, f"the target is {float(values[-1]) / target:.1f} times below the last value"
    if slopes[1] < LEAST_FALL:
        return None, "the curve does not fall"
    distance = max(min(logs[-1], *ends) - math.log(target), 0.01)
    # The geometric mean of the falls over the last eighth and over the last third.
    slope = math.sqrt(math.prod(max(value, _LEAST_SLOPE) for value in slopes))
    return np.array([1.0, math.log(distance / slope)]), ""


def rule_of(window: int) -> str:
    return "single" if window == 1 else "median"


def evaluations_left(
    features: np.ndarray, count: int, coefficients: Coefficients
) -> dict[str, float]:
    """Returns how many more evaluations it takes, by quantile; at least one, and in order."""
    raw = {name: count * math.exp(features @ np.asarray(c)) for name, c in coefficients.items()}
    # The slope may stay: it does with a constant learning rate, unlike in most published runs. And
    # noise lets an evaluation meet the target before its curve does.
    as_lately = count * math.exp(features[1])
    # Rules are met at evaluations.
    low, middle, high = (max(1, round(raw[name])) for name in ("low", "middle", "high"))
    low = min(low, middle, high, max(1, round(_SOONER * as_lately)))
    high = max(low, middle, high)
    return {
        "low": low,
        "middle": min(max(middle, low), high),
        "high": high,
        "not_before": min(raw["not_before"], _SURELY * as_lately, low),
    }


def pace_s(points: Sequence[AccuracyPoint]) -> float:
    gaps_s = _late_gaps_s(points)
    return float(np.median(gaps_s)) if len(gaps_s) else math.nan


def _late_gaps_s(points: Sequence[AccuracyPoint]) -> np.ndarray:
    return np.diff([point.elapsed_s for point in points[-_PACE_EVALUATIONS - 1 :]])


def _slope(number: np.ndarray, logs: np.ndarray, count: int, share: float) -> tuple[float, float]:
    weight = np.exp((number - number[-1]) / max(share * count, 1.2))
    weight /= weight.sum()
    centre, middle = weight @ number, weight @ logs
    slope = weight @ ((logs - middle) * (number - centre)) / (weight @ (number - centre) ** 2)
    return -slope * count, middle + slope * (number[-1] - centre)
