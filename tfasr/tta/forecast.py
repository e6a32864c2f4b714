"""Forecasts when a run will meet a target: an interval from its curve so far and its pace.

`course` describes the curve in a few numbers, or says why it is too early;
`evaluations_left` turns these into evaluations, and `forecast` into times. Training
shows them while it runs, and may stop if the target will be missed for sure.

The intervals come from quantile regressions on the course of published and simulated
runs, fitted to half of the systems and tested on the other half: see
``benchmarks/forecast.py`` and ``docs/seeds_and_forecasts.md``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfasr.tta.metrics import LOWER, METRICS, Metric, metric_named
from tfasr.tta.policies import (
    WINDOW,
    AccuracyPoint,
    at_epoch_ends,
    first_sustained,
    medians,
)

# Quantile regressions, from `benchmarks/forecast.py --coefficients FILE`. "latest" (95
# %) decides whether there is an interval; "middle" estimates how many evaluations are
# left. Of runs with a given number left, 80 % have estimates between "low" and "high";
# with one left, below "next".
COEFFICIENTS = {
    "single": {
        "latest": (1.7005, -0.708, 1.5349, -1.5771, -1.9891),
        "middle": (0.9052, 0.105, 0.9425, -1.6825, -0.8262),
        "low": (-1.8609, 0.6471, -0.0729, 0.2923, 0.0287, -0.0619),
        "high": (-0.8735, 0.1611, -0.0902, 0.1259, 0.1029, -0.45),
        "next": (-4.8624, -0.7332, -0.2868, 0.7332, -0.18, -0.8501),
    },
    "median": {
        "latest": (1.354, -0.3281, 1.1162, -1.1657, -1.2115),
        "middle": (0.7255, -0.1221, 1.1702, -1.9105, -0.7985),
        "low": (-1.3004, 0.5401, -0.1074, 0.1841, 0.0436, 0.1297),
        "high": (-0.4502, -0.0119, -0.1622, 0.1041, 0.1547, -0.1621),
        "next": (-0.9465, 0.2729, -0.0381, -0.2729, -0.1066, -0.7441),
    },
}

FEWEST_EVALUATIONS = 4  # no forecast from fewer medians

# How far above the target, as a logarithm, a curve may be for a forecast.
MOST_ABOVE = 1.2

# The least that a curve must fall, as a logarithm, if it continues for as long as it
# has run.
LEAST_FALL = 0.05

# The least that it must have fallen: transducers' error rates stay near 100 % for long,
# then collapse, and others pause at the rate that guessing frequent words gives.
LEAST_BEND = 0.7

# The logarithm of the recent slope over that of the last third may be at most this.
MOST_SPEEDUP = 0.1

# Rougher curves get no interval: noise decides which of their evaluations meets the
# target.
ROUGHEST = 0.04

# Nor do curves that have risen, or fallen in jumps: nobody knows what comes next. These
# are logarithms of medians of three evaluations:
MOST_RISE = 0.05  # the most that a curve may have risen above its lowest value

# The most by which three evaluations may have fallen further than those before.
MOST_JUMP = 0.1

# They count once the error has fallen so far from its second highest value: before,
# training may be unstable, and transducers' error rates collapse from 100 %.
RISES_AFTER = 0.35
JUMPS_AFTER = 1.0
_JUMP_EVALUATIONS = 3

# Learning-rate schedules of Keras that change the slope at once.
_IN_STEPS = ("PiecewiseConstantDecay", "CosineDecayRestarts")

# The rest must, 95 % sure, take at most this many times the evaluations so far.
LONGEST = 1.25

# Shares of the curve after which weights fall to 1/e: for the late and the long slope.
_LATE_MEMORY = 0.12
_LONG_MEMORY = 0.35

# Slopes below this count as this: a curve that has become flat has no logarithm.
_LEAST_SLOPE = 0.05

# The last gaps between evaluations whose median is the pace.
_PACE_EVALUATIONS = 5

# No interval ends after more than this many times the evaluations so far.
_MOST_LEFT = 2.5

# A run takes at least this share of the time that its steepest slope predicts:
# annealing can make it five times as fast.
_SURELY = 0.2

Coefficients = Mapping[str, Sequence[float]]
"""By name: "latest", "middle", "low", "high" and "next"."""


@dataclass(frozen=True)
class Forecast:
    """A forecast for a run and a target; times since the clock's start, None if unknown."""

    metric: str
    target: float
    met_s: float | None = None  # when the target was met; then the other times are None

    # The 80 % interval's lower end, if evaluations follow each other at the shortest
    # recent gap.
    low_s: float | None = None
    middle_s: float | None = None  # the median
    high_s: float | None = None  # the 80 % interval's upper end

    # With 95 % certainty, over all forecasts for a run, it meets the target later than
    # this; may be known without an interval.
    not_before_s: float | None = None

    reason: str = ""  # why there is no interval, or ""

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return self.low_s is not None


def forecast(
    points: Sequence[AccuracyPoint],
    target: float,
    *,
    metric: str = "cer",
    window: int = WINDOW,
    coefficients: Mapping[str, Coefficients] = COEFFICIENTS,
    learning_rate: object = None,
    metrics: Mapping[str, Metric] = METRICS,
) -> Forecast:
    """Forecasts when a run will meet a target if it continues.

    Args:
        points: its evaluations so far, on any clock.
        target: the value of ``metric`` to meet.
        metric: its name in ``metrics``.
        window: how many epochs' median must meet the target.
        coefficients: of the regressions, by the names of `rule_of`.
        learning_rate: its value in the optimizer's ``get_config``, if known: there is
            no interval for a schedule that changes in steps.
        metrics: which direction is better; a run's own metrics aren't registered.
    """
    met = first_sustained(points, target, metric=metric, window=window, metrics=metrics)
    if met.reached:
        return Forecast(metric, target, met_s=met.seconds)

    kind = metric_named(metric, metrics)
    wanted = target
    points = at_epoch_ends(points)  # the regressions were fitted to such curves
    if kind.better != LOWER:
        if not kind.rate:
            return Forecast(
                metric, target, reason="only falling numbers and rates are forecast"
            )

        # The error rate is 1 minus the accuracy.
        points = [replace(point, value=1 - point.value) for point in points]
        target = 1 - target

    present, reason = course(points, target, window)
    if present is not None and changes_in_steps(learning_rate):
        present = None
        reason = "the learning rate changes in steps, each of which bends the curve"

    if present is None:
        return Forecast(metric, wanted, reason=reason)

    last_s = points[-1].elapsed_s
    pace = pace_s(points)
    if not pace > 0:
        reason = "the clock stood still or ran backwards between its evaluations"
        return Forecast(metric, wanted, reason=reason)

    surely = last_s + pace * present.surely
    still_needed = evaluations_left(present, len(points), coefficients[rule_of(window)])
    if still_needed is None:
        reason = (
            f"too early: the rest may take over {LONGEST:g} times as long as the run so "
            "far"
        )
        return Forecast(metric, wanted, not_before_s=surely, reason=reason)

    # With the median pace the earliest end would often be wrong by seconds.
    soonest_s = min(gap for gap in _late_gaps_s(points) if gap > 0)
    low = last_s + soonest_s * still_needed["low"]
    return Forecast(
        metric,
        wanted,
        low_s=low,
        middle_s=last_s + pace * still_needed["middle"],
        high_s=last_s + pace * still_needed["high"],
        not_before_s=min(surely, low),
    )


@dataclass(frozen=True)
class Course:
    """Where a curve stands, for the regressions."""

    features: np.ndarray  # the evaluations left are estimated from these
    traits: np.ndarray  # how far such estimates are off depends on these
    surely: float  # evaluations that it takes at least


def course(
    points: Sequence[AccuracyPoint], target: float, window: int
) -> tuple[Course | None, str]:
    """Returns where the curve stands, or None and the reason why it can't be forecast yet.

    The features are 1 and four logarithms: of the evaluations it would take at the
    present slope over those so far; of the distance to the target; of the slope of late
    over that of the last third; and of the fall since the curve's second highest value.
    Distances and falls are of the error's logarithm. The traits are three logarithms:
    of the evaluations so far; of the noise in the last third; and of the share of them
    that half of the fall took: large for cliffs.
    """
    if not points:
        return None, "there is no evaluation yet"

    all_values = [point.value for point in points]
    if not math.isfinite(all_values[-1]):
        return None, "the last evaluation is no number"

    # Medians of diverged evaluations have no logarithm.
    numbered = enumerate(medians(all_values, window), start=window)
    usable = [(number, value) for number, value in numbered if 0 < value < math.inf]
    if len(usable) < FEWEST_EVALUATIONS:
        needed = FEWEST_EVALUATIONS + window - 1
        return None, f"{len(points)} of the {needed} evaluations that a forecast needs"

    if target <= 0:
        return None, "no curve of error rates is sure to come down to 0"

    number = np.array([number for number, _ in usable], float)
    values = np.array([value for _, value in usable], float)
    logs = np.log(values)
    count = len(points)
    above = logs[-1] - math.log(target)
    if above > MOST_ABOVE:
        times = float(values[-1]) / target
        return None, f"the target is {times:.1f} times below the last value"

    late, _ = _line(number, logs, count, _LATE_MEMORY)
    long, noise = _line(number, logs, count, _LONG_MEMORY)

    if long < LEAST_FALL:
        return None, "the curve does not fall"

    # The first evaluation may be far above all others.
    fallen = float(np.sort(logs)[-2] - logs[-1])
    if fallen < LEAST_BEND:
        reason = "the error has not halved yet: the curve may not have begun to bend"
        return None, reason

    late = max(late, _LEAST_SLOPE)
    long = max(long, _LEAST_SLOPE)
    speedup = math.log(late / long)
    if speedup > MOST_SPEEDUP:
        return None, "the curve falls faster and faster"

    rough = _roughness(all_values)
    if rough > ROUGHEST:
        reason = (
            f"its evaluations vary by {rough:.0%} of their value from one to the next, "
            "so chance would decide which of them meets the target"
        )
        return None, reason

    rise, jump = _unevenness(all_values)
    if rise > MOST_RISE:
        return None, f"the error rose by {math.expm1(rise):.0%} after it had fallen"

    if jump > MOST_JUMP:
        reason = (
            "the error fell in a jump, and nobody knows whether there will be another"
        )
        return None, reason

    distance = max(above, 0.01)
    ratio = distance / math.sqrt(late * long)
    half = number[np.argmax(logs < logs[-1] + fallen / 2)]
    present = Course(
        features=np.array(
            [1.0, math.log(ratio), math.log(distance), speedup, math.log(fallen)]
        ),
        traits=np.log([count, max(noise, 1e-3), half / count]),
        surely=_SURELY * count * max(above - noise, 0.01) / max(late, long),
    )
    return present, ""


def rule_of(window: int) -> str:
    """Returns the key of `COEFFICIENTS` for a rule."""
    return "single" if window == 1 else "median"


def evaluations_left(
    present: Course, count: int, coefficients: Coefficients
) -> dict[str, float] | None:
    """Returns how many more evaluations it takes: "low", "middle" and "high".

    It is None if that may be very many.

    The interval contains each number for which the present estimate would be among the
    middle 80 %. So 80 % of intervals contain the true number, early and late in a run
    alike (Neyman 1937, Outline of a Theory of Statistical Estimation).
    """
    if math.exp(present.features @ np.asarray(coefficients["latest"])) > LONGEST:
        return None

    estimate = float(present.features @ np.asarray(coefficients["middle"]))
    # Rules are met at evaluations.
    candidates = np.arange(1, math.floor(_MOST_LEFT * count) + 1)
    grid = ends_grid(present.traits, np.log(candidates / count))
    low = grid @ np.asarray(coefficients["low"])
    high = grid @ np.asarray(coefficients["high"])
    # With one evaluation left, another regression gives the upper end.
    low[0] = -math.inf
    high[0] = grid[0] @ np.asarray(coefficients["next"])

    off = np.maximum(estimate - high, low - estimate)
    fitting = candidates[off <= max(0.0, off.min())]
    fewest = int(fitting[0])
    most = int(fitting[-1])
    middle = round(count * math.exp(min(estimate, 1.0)))
    return {"low": fewest, "middle": min(max(middle, fewest), most), "high": most}


def ends_grid(traits: np.ndarray, log_left: np.ndarray) -> np.ndarray:
    """Returns the inputs of the regressions of an interval's ends.

    Args:
        traits: of the course, ``(3,)``, or of several, ``(n, 3)``.
        log_left: for each row the logarithm of the evaluations left over those so far,
            ``(n,)``.

    Returns:
        ``(n, 6)``: 1, ``log_left`` and its square, and the traits.
    """
    even = np.zeros_like(log_left)
    return np.column_stack(
        [even + 1, log_left, log_left**2, *(one + even for one in traits.T)]
    )


def pace_s(points: Sequence[AccuracyPoint]) -> float:
    """Returns the seconds between late evaluations: the median of the last five gaps.

    It is NaN if there is only one evaluation.
    """
    gaps_s = _late_gaps_s(points)
    if not gaps_s.size:
        return math.nan

    return float(np.median(gaps_s))


def _late_gaps_s(points: Sequence[AccuracyPoint]) -> np.ndarray:
    return np.diff([point.elapsed_s for point in points[-_PACE_EVALUATIONS - 1 :]])


def _roughness(values: Sequence[float]) -> float:
    """Returns how far late values lie from the mean of their neighbours, as a mean logarithm.

    For independent normal noise that is close to its standard deviation, whatever the
    slope.
    """
    logs = np.log([value for value in values if 0 < value < math.inf])
    late = logs[-max(6, round(_LONG_MEMORY * logs.size)) :]
    if late.size <= 2:
        return 0.0

    return float(abs(late[1:-1] - (late[:-2] + late[2:]) / 2).mean())


def _unevenness(values: Sequence[float]) -> tuple[float, float]:
    """Returns how far a curve rose once it had fallen, and how much faster it once became.

    Both as logarithms, of medians of three evaluations, which a single odd one doesn't
    change.
    """
    logs = np.log([value for value in values if 0 < value < math.inf])
    if logs.size < 2 * _JUMP_EVALUATIONS:
        return 0.0, 0.0

    middles = np.median(np.stack([logs[:-2], logs[1:-1], logs[2:]]), axis=0)
    fallen = np.sort(logs)[-2] - middles
    if fallen.max() < RISES_AFTER:
        return 0.0, 0.0

    late = middles[np.argmax(fallen >= RISES_AFTER) :]
    rise = float(np.max(late - np.minimum.accumulate(late)))
    if fallen.max() < JUMPS_AFTER:
        return rise, 0.0

    # How far each three evaluations fell, and the most that three of the six before did.
    step = _JUMP_EVALUATIONS
    falls = middles[:-step] - middles[step:]
    begin = max(step, int(np.argmax(fallen >= JUMPS_AFTER)))
    jump = 0.0
    for number in range(begin, falls.size):
        before = falls[max(0, number - 2 * step) : number - step + 1].max()
        jump = max(jump, float(falls[number] - max(before, 0.0)))

    return rise, jump


def changes_in_steps(learning_rate: object) -> bool:
    """Whether a learning rate falls or restarts at once.

    Each such step bends the curve, which no forecast foresees.

    Args:
        learning_rate: as in an optimizer's ``get_config``.
    """
    if not isinstance(learning_rate, dict):
        return False

    settings = learning_rate.get("config")
    staircase = isinstance(settings, dict) and bool(settings.get("staircase"))
    return staircase or learning_rate.get("class_name") in _IN_STEPS


def _line(
    number: np.ndarray, logs: np.ndarray, count: int, share: float
) -> tuple[float, float]:
    """Fits a line to a curve, in which late evaluations weigh more.

    Args:
        number: the evaluations, from 1.
        logs: the logarithm of each.
        count: how many evaluations the run has.
        share: after this share of them, weights fall to 1/e.

    Returns:
        The line's fall in ``count`` evaluations, and how far values lie from it (the
        root of the mean square).
    """
    weight = np.exp((number - number[-1]) / max(share * count, 1.2))
    weight /= weight.sum()
    offset = number - weight @ number
    height = logs - weight @ logs
    slope = weight @ (height * offset) / (weight @ offset**2)
    rest = height - slope * offset
    return -slope * count, math.sqrt(weight @ rest**2)
