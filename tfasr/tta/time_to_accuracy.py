"""Time to accuracy: when a run's error rate, or any metric, has come to a target and stays."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfasr.display.notebook import html_table
from tfasr.tta.metrics import metric_named
from tfasr.tta.timeline import Timeline

_CURVE_KEYS = ("eval_start", "eval_accuracy", "tracked_stats", "eval_stop", "epoch_stop")

WINDOW = 3
"""Evaluations whose median must meet the target; the paper's rule."""


@dataclass(frozen=True, slots=True)
class AccuracyPoint:
    """One epoch's evaluation.

    Attributes:
        epoch: counted from 1.
        elapsed_s: what the policy's clock shows when the evaluation is read.
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
        seconds: on the policy's clock, or None where never.
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


@dataclass(frozen=True)
class Reading:
    """An evaluation that counts, and the event at which a clock is read for it."""

    epoch: int
    index: int
    value: float
    scored: int | None = None
    """The event that holds the value."""


def readings(
    timeline: Timeline, metric: str, *, at_epoch_end: bool, counts_evaluation: bool
) -> list[Reading]:
    """Returns a metric over the run: one reading for each evaluation that counts.

    An evaluation in lost work does not count: the resumed session repeats it. In logs that end
    the epoch before they evaluate it, as MLPerf's do, it is read at the evaluation's end.

    The result of an overlapped evaluation is known only after further training. A clock that
    counts evaluation is read when the result is known. One that stands still for evaluation is
    read where training stopped for it: at the time of the weights that were evaluated.

    Args:
        metric: a key of ``tracked_stats``; "wer" also reads ``eval_accuracy``.
        at_epoch_end: read at the end of the epoch; otherwise at the end of the evaluation, whether
            or not its epoch ended.
        counts_evaluation: whether the clock runs during evaluation.

    Returns:
        In the order in which the results were known; a value that is no number is NaN.
    """
    pending: dict[int, tuple[float, int]] = {}
    evaluating: set[int] = set()
    ended: set[int] = set()
    stopped: dict[int, int] = {}
    found: dict[int, Reading] = {}
    for index in timeline.of(*_CURVE_KEYS):
        epoch = timeline.metadata[index].get("epoch_num")
        if epoch is None or not timeline.useful[index]:
            continue
        key, value = timeline.keys[index], timeline.events[index].get("value")
        if key == "eval_start" and epoch not in evaluating:
            evaluating.add(epoch)
            stopped.pop(epoch, None)
        if key == "epoch_stop":
            ended.add(epoch)
        if key == "eval_accuracy" and metric == "wer":
            pending.setdefault(epoch, (_number(value), index))
        elif key == "tracked_stats" and isinstance(value, dict) and metric in value:
            pending[epoch] = (_number(value[metric]), index)
        if key == "epoch_stop" or (key == "eval_stop" and (epoch in ended or not at_epoch_end)):
            first = stopped.setdefault(epoch, index)
            if epoch in pending:
                found.pop(epoch, None)
                read = index if counts_evaluation else first
                found[epoch] = Reading(epoch, read, *pending.pop(epoch))
                evaluating.discard(epoch)
    return list(found.values())


def first_sustained(
    points: Sequence[AccuracyPoint], target: float, *, metric: str = "cer", window: int = WINDOW
) -> TimeToAccuracy:
    """Returns when the median of the last ``window`` points of a curve first meets a target.

    Before there are ``window`` points nothing is decided.

    Source: the paper (arXiv 2003.12366), section 4.1.2.

    Raises:
        ValueError: if ``window`` is not positive.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1 evaluation. Received: window={window}.")
    kind = metric_named(metric)
    found = medians([point.value for point in points], window, kind.worst)
    for point, median in zip(points[window - 1 :], found, strict=True):
        if kind.met(median, target):
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
        targets: metrics and the values to come to; without any, nothing is met.
        window: the number of evaluations, at least 1.
    """
    recent = history[-window:]
    if len(recent) < window or not targets:
        return False
    kinds = {metric: metric_named(metric) for metric, _ in targets}
    return all(
        kinds[metric].met(
            next(medians([scores[metric] for scores in recent], window, kinds[metric].worst)), value
        )
        for metric, value in targets
    )


def medians(values: Sequence[float], window: int, worst: float = math.inf) -> Iterator[float]:
    """Yields the median of each ``window`` consecutive values; no number counts as ``worst``."""
    # A diverged evaluation is as far from any target as can be.
    values = [worst if math.isnan(value) else value for value in values]
    for last in range(window, len(values) + 1):
        yield statistics.median(values[last - window : last])


def _number(value: object) -> float:
    # A whole number beyond all floats is no error rate either.
    usable = isinstance(value, float) or (isinstance(value, int) and abs(value) < 1e300)
    return float(value) if usable else math.nan
