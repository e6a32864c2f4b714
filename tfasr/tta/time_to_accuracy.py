"""Time to accuracy: when a run's error rate has come down to a target, and stays there."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfasr.display.notebook import html_table
from tfasr.tta.intervals import useful_mask
from tfasr.tta.timeline import Event, elapsed_s, metadata

_CURVE_KEYS = {"eval_accuracy", "tracked_stats", "eval_stop", "epoch_stop"}

WINDOW = 3
"""Evaluations whose median must meet the target; the paper's rule."""


@dataclass(frozen=True)
class AccuracyPoint:
    """One epoch's evaluation.

    Attributes:
        epoch: counted from 1.
        elapsed_s: seconds from the model's creation to the end of the epoch.
        value: the metric; error rates are fractions.
    """

    epoch: int
    elapsed_s: float
    value: float


@dataclass(frozen=True)
class TimeToAccuracy:
    """When a run met a target, or that it never did.

    Attributes:
        metric: "cer", "wer" or another key of ``tracked_stats``.
        target: the value to come down to; error rates are fractions.
        window: the evaluations whose median must meet the target.
        seconds: from the model's creation to the end of the epoch, or None where never.
        epoch: that epoch, or None where never.
        value: the median that met the target, or None where never.
    """

    metric: str
    target: float
    window: int
    seconds: float | None = None
    epoch: int | None = None
    value: float | None = None

    @property
    def minutes(self) -> float | None:
        """The time in minutes, or None where never."""
        return None if self.seconds is None else self.seconds / 60

    @property
    def reached(self) -> bool:
        """Whether the run met the target at all."""
        return self.seconds is not None

    @property
    def summary(self) -> str:
        """The result in words, such as "26.4 s, at epoch 7"."""
        return f"{self.seconds:.4g} s, at epoch {self.epoch}" if self.reached else "never"

    def _repr_html_(self) -> str:
        rule = f"median of {self.window}" if self.window > 1 else "first crossing"
        rows = [["time", self.summary]]
        if self.reached:
            rows.append([rule, f"{self.value:.4g}"])
        return html_table(["", ""], rows, f"{self.metric} to {self.target:g}, by the {rule}")


def accuracy_curve(events: Sequence[Event], metric: str) -> list[AccuracyPoint]:
    """Returns a metric over the run, one point for each evaluated epoch that ended.

    An evaluation in lost work does not count: the resumed session repeats it. In logs that end
    the epoch before they evaluate it, as MLPerf's do, the point is at the evaluation's end.

    Args:
        events: all of a run's events in file order.
        metric: a key of ``tracked_stats``; "wer" also reads ``eval_accuracy``.

    Returns:
        Points in the order of their time; a value that is no number is NaN.

    Raises:
        ValueError: if an event has no usable time.
    """
    return curve_on(elapsed_s(events), events, useful_mask(events), metric)


def curve_on(
    times_s: Sequence[float],
    events: Sequence[Event],
    useful: Sequence[bool],
    metric: str,
    *,
    at_epoch_end: bool = True,
) -> list[AccuracyPoint]:
    """Returns `accuracy_curve` on another clock.

    Args:
        times_s: what that clock shows at each event.
        events: all of a run's events in file order.
        useful: their `tfasr.tta.intervals.useful_mask`.
        metric: a key of ``tracked_stats``; "wer" also reads ``eval_accuracy``.
        at_epoch_end: points are at the end of the epoch; otherwise at the end of the evaluation,
            whether or not its epoch ended.
    """
    pending: dict[int, float] = {}
    ended: set[int] = set()
    points: dict[int, AccuracyPoint] = {}
    for event, now, counts in zip(events, times_s, useful, strict=True):
        key = event["key"]
        if key not in _CURVE_KEYS or not counts:
            continue
        epoch, value = metadata(event).get("epoch_num"), event.get("value")
        if epoch is None:
            continue
        if key == "epoch_stop":
            ended.add(epoch)
        if key == "eval_accuracy" and metric == "wer":
            pending.setdefault(epoch, _number(value))
        elif key == "tracked_stats" and isinstance(value, dict) and metric in value:
            pending[epoch] = _number(value[metric])
        ends = key == "epoch_stop" or (key == "eval_stop" and (epoch in ended or not at_epoch_end))
        if ends and epoch in pending:
            points.pop(epoch, None)
            points[epoch] = AccuracyPoint(epoch, now, pending.pop(epoch))
    return list(points.values())


def time_to_accuracy(
    events: Sequence[Event], target: float, *, metric: str = "cer", window: int = WINDOW
) -> TimeToAccuracy:
    """Returns the time from the model's creation until a metric has met a target.

    The time ends with the first epoch at which the median of the last ``window`` evaluations is
    at most the target; everything is counted but downtime between sessions. Before there are
    ``window`` evaluations nothing is decided.

    Args:
        events: all of a run's events in file order.
        target: the value to come down to; error rates are fractions.
        metric: a key of ``tracked_stats``.
        window: the number of evaluations, at least 1.

    Raises:
        ValueError: if ``window`` is not positive, or an event has no usable time.

    Source: the paper (arXiv 2003.12366), section 4.1.2.
    """
    return first_sustained(accuracy_curve(events, metric), target, metric=metric, window=window)


def first_sustained(
    points: Sequence[AccuracyPoint], target: float, *, metric: str = "cer", window: int = WINDOW
) -> TimeToAccuracy:
    """Returns `time_to_accuracy` of a curve that `accuracy_curve` made.

    Raises:
        ValueError: if ``window`` is not positive.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1 evaluation. Received: window={window}.")
    medians = _medians([point.value for point in points], window)
    for point, median in zip(points[window - 1 :], medians, strict=True):
        if median <= target:
            return TimeToAccuracy(metric, target, window, point.elapsed_s, point.epoch, median)
    return TimeToAccuracy(metric, target, window)


def rule_met(
    history: Sequence[Mapping[str, float]],
    targets: Sequence[tuple[str, float]],
    window: int = WINDOW,
) -> bool:
    """Returns whether the last ``window`` evaluations meet every target by their medians.

    The same rule as `first_sustained`, for a training that may stop there.

    Args:
        history: the metrics of each evaluation, in order.
        targets: metrics and the values to come down to; without any, nothing is met.
        window: the number of evaluations, at least 1.
    """
    recent = history[-window:]
    if len(recent) < window or not targets:
        return False
    return all(
        next(_medians([scores[metric] for scores in recent], window)) <= value
        for metric, value in targets
    )


def _medians(values: Sequence[float], window: int) -> Iterator[float]:
    """Yields the median of each ``window`` consecutive values."""
    # A diverged evaluation is as far from any target as can be.
    values = [math.inf if math.isnan(value) else value for value in values]
    for last in range(window, len(values) + 1):
        yield statistics.median(values[last - window : last])


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
