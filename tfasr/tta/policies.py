"""Clock policies: what different benchmarks count, applied to one ledger afterwards."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tfasr.display.table import html_table
from tfasr.kit.registry import Registry
from tfasr.ledger.intervals import EVALUATION, INTERVALS
from tfasr.ledger.timeline import Timeline
from tfasr.tta.metrics import metric_named

# Time to accuracy: when a run's error rate, or any metric, has come to a target and stays.

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


# Brackets: the two evaluations between which a target was met, all that is known of the time.


@dataclass(frozen=True)
class Bracket:
    """The interval in which a rule was first met.

    Attributes:
        last_miss_s: the last evaluation before that at which the rule was not met, 0 where there
            is none. Of a run that never met it: the last evaluation of all, at which the
            observation is censored.
        first_hit_s: the evaluation at which the rule was met, or None where never.
        interpolated_s: where the straight line between the two crosses the target; None where
            never, or where the rule had nothing to decide on before.
    """

    last_miss_s: float
    first_hit_s: float | None
    interpolated_s: float | None

    @property
    def censored(self) -> bool:
        """Whether all that is known is that it took longer than ``last_miss_s``."""
        return self.first_hit_s is None


def bracket(
    points: Sequence[AccuracyPoint], target: float, *, window: int, metric: str = "cer"
) -> Bracket:
    """Returns the bracket of the first time that the median of ``window`` points met a target."""
    return brackets_at(points, [target], window=window, metric=metric)[0]


def brackets_at(
    points: Sequence[AccuracyPoint],
    targets: Iterable[float],
    *,
    window: int,
    metric: str = "cer",
) -> list[Bracket]:
    """Returns the bracket of each of many targets, from one look at the curve."""
    kind = metric_named(metric)
    found = list(medians([point.value for point in points], window, kind.worst))
    # Where the best so far first meets a target, the median of that moment does.
    best = list(accumulate(map(kind.hardness, found), max))
    brackets = []
    for target in targets:
        index = bisect_left(best, kind.hardness(target))
        if index == len(found):
            brackets.append(Bracket(points[-1].elapsed_s if points else 0.0, None, None))
            continue
        last = index + window - 1
        before = points[last - 1].elapsed_s if last else 0.0
        previous = found[index - 1] if index else None
        now = points[last].elapsed_s
        brackets.append(
            Bracket(before, now, _crossing(before, previous, now, found[index], target))
        )
    return brackets


def _crossing(
    before: float, previous: float | None, now: float, median: float, target: float
) -> float | None:
    if previous is None or math.isinf(previous):
        return None
    crossed = before + (now - before) * (previous - target) / (previous - median)
    # Rounding must not carry it out of the bracket.
    return min(max(crossed, before), now)


PROCESS = "process"
"""A clock's start that is no event: the creation of the process, see `Policy.start`."""

_EVALUATION = frozenset(EVALUATION)


@dataclass(frozen=True)
class Policy:
    """When a benchmark's clock starts, what stops it, and which rule reads it.

    One more is added by registering it: ``POLICIES.register("mine", Policy("mine", ...))``. A rule
    that these fields cannot say is a subclass with its own `times_s` or `readings`.

    Attributes:
        name: how it is asked for.
        start: the key of the event that starts the clock; where a log lacks it, the clock starts
            at ``model_creation``, else at the first event. `PROCESS` starts it when the process
            was created, or at the first event where the ledger does not say when that was.
        excluded: intervals during which the clock stands still.
        counts_evaluation: whether the clock runs between ``eval_start`` and ``eval_stop``.
        window: the evaluations whose median must meet the target; 1 is the first crossing.
        at_epoch_end: the time is read at the end of the epoch, otherwise of the evaluation; see
            `tfasr.tta.policies.readings` for evaluations that overlap with training.
        rule: the policy in a sentence.
        source: where it is written down.

    Raises:
        ValueError: if there is no such interval, or the window is less than 1.
    """

    name: str
    start: str
    excluded: frozenset[str]
    counts_evaluation: bool
    window: int
    at_epoch_end: bool
    rule: str
    source: str

    def __post_init__(self):
        unknown = sorted(set(self.excluded) - set(INTERVALS))
        if unknown:
            raise ValueError(
                f"A policy's clock must stand still during some of {INTERVALS}. Received: "
                f"{unknown} in the policy {self.name!r}."
            )
        if self.window < 1:
            raise ValueError(
                f"A policy's window must be at least 1 evaluation. Received: {self.window} in the "
                f"policy {self.name!r}."
            )

    def times_s(self, timeline: Timeline) -> list[float]:
        """Returns what the clock shows at each event, in seconds; 0 or less before its start.

        Downtime between sessions is counted under no policy. MLPerf's own rules know no
        resumption: their clock may not be paused, so a resumed run is no valid result there.
        """
        counted = timeline.counted_us(self.excluded, within_evaluation=self.counts_evaluation)
        start = self.start_index(timeline)
        return ((counted - (0 if start is None else counted[start])) / 1e6).tolist()

    def start_index(self, timeline: Timeline) -> int | None:
        """Returns the event at which the clock starts; None if at the process's creation."""
        if self.start == PROCESS or not timeline.events:
            return None
        starts = [timeline.indices.get(key) for key in (self.start, "model_creation")]
        return next((indices[0] for indices in starts if indices), 0)

    def readings(self, timeline: Timeline, metric: str) -> list[Reading]:
        """Returns the evaluations that count, and at which events the clock is read for them."""
        return readings(
            timeline,
            metric,
            at_epoch_end=self.at_epoch_end,
            counts_evaluation=self.counts_evaluation,
        )

    def curve(self, timeline: Timeline, metric: str) -> list[AccuracyPoint]:
        """Returns a metric over the clock, a point for each evaluation that counts."""
        times = self.times_s(timeline)
        found = self.readings(timeline, metric)
        return [AccuracyPoint(one.epoch, times[one.index], one.value) for one in found]

    def time_to_accuracy(
        self, timeline: Timeline, target: float, *, metric: str = "cer", window: int | None = None
    ) -> tuple[TimeToAccuracy, Bracket]:
        """Returns the time to a target, and the bracket it lies in."""
        window = self.window if window is None else window
        points = self.curve(timeline, metric)
        found = first_sustained(points, target, metric=metric, window=window)
        return found, bracket(points, target, window=window, metric=metric)


def _check(policy: object) -> None:
    if not isinstance(policy, Policy):
        raise TypeError(f"it must be a tfasr.tta.policies.Policy. Received: {policy!r}.")


POLICIES: Registry[Policy] = Registry("policy", check=_check, plural="policies")
"""All clock policies by name."""


for _policy in (
    Policy(
        "paper",
        start="model_creation",
        excluded=frozenset(),
        counts_evaluation=True,
        window=3,
        at_epoch_end=True,
        rule=(
            "from the creation of the model, everything counted, to the end of the epoch at "
            "which the median of the last 3 evaluations meets the target"
        ),
        source="arXiv 2003.12366, section 4.1.2",
    ),
    Policy(
        "mlperf",
        start="run_start",
        excluded=frozenset(),
        counts_evaluation=True,
        window=1,
        at_epoch_end=False,
        rule=(
            "from run_start, after initialisation and before data is touched, everything "
            "counted, to the end of the first evaluation that meets the target"
        ),
        source="MLPerf Training rules, Run Results (github.com/mlcommons/training_policies)",
    ),
    Policy(
        "algoperf",
        start="run_start",
        excluded=_EVALUATION | {"init", "checkpoint", "sentences", "logging", "lost_work"},
        counts_evaluation=False,
        window=1,
        at_epoch_end=False,
        rule=(
            "the submission's own time from run_start, without evaluation, logging, "
            "checkpoints, and what a restored checkpoint undid, until the first evaluation "
            "that meets the target"
        ),
        source=(
            "AlgoPerf's accumulated_submission_time, submission_runner.py "
            "(github.com/mlcommons/algorithmic-efficiency)"
        ),
    ),
    Policy(
        "dawnbench",
        start=PROCESS,
        excluded=_EVALUATION | {"checkpoint"},
        counts_evaluation=False,
        window=1,
        at_epoch_end=True,
        rule=(
            "from the start of the program, initialisation counted, validation and "
            "checkpoints not, to the end of the first epoch that meets the target"
        ),
        source=(
            "README's FAQ and issues 9, 12 and 21 "
            "(github.com/stanford-futuredata/dawn-bench-entries)"
        ),
    ),
):
    POLICIES.register(_policy.name, _policy)

PAPER = POLICIES["paper"]


def policy_named(policy: str | Policy) -> Policy:
    """Returns a policy that a caller may have given by its name.

    Raises:
        UsageError: if there is none of that name.
    """
    return policy if isinstance(policy, Policy) else POLICIES[policy]
