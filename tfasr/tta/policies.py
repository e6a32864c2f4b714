"""Clock policies: which time a benchmark counts. Any of them can be applied to any ledger.

A policy reads a run's evaluations from its `Timeline` (`readings`), puts them on its
clock (`Policy.curve`) and says when they met a target (`first_sustained`) and between
which of them the curve crossed it (`bracket`). Groups of runs are compared by these
brackets, see `tfasr.tta.comparison`.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tfasr.display.table import html_table
from tfasr.kit.registry import Registry
from tfasr.ledger.intervals import EVALUATION, INTERVALS
from tfasr.ledger.timeline import Timeline
from tfasr.tta.metrics import METRICS, Metric, metric_named

WINDOW = 3
"""The paper's rule: the median of so many epochs' evaluations must meet the target.

Every default of a window is this constant.
"""

PROCESS = "process"
"""`Policy.start` of a clock that starts with the process, not with an event."""

_EVALUATION = frozenset(EVALUATION)

# A larger integer may not fit into a float.
_LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class AccuracyPoint:
    """An evaluation on a policy's clock."""

    epoch: float  # 1 at the end of the first epoch, 2.5 in the middle of the third
    elapsed_s: float  # the policy's clock when the result is read
    value: float  # the metric; error rates are fractions
    per_epoch: int = 1  # the run's evaluations per epoch


@dataclass(frozen=True)
class TimeToAccuracy:
    """When a run met a target.

    If it never did, ``seconds``, ``epoch`` and ``value`` are None.
    """

    metric: str  # "cer", "wer" or another key of ``tracked_stats``
    target: float
    window: int
    seconds: float | None = None  # on the policy's clock
    epoch: float | None = None
    value: float | None = None  # the median that met the target

    @property
    def minutes(self) -> float | None:
        """The time in minutes; None if the run never met the target."""
        if self.seconds is None:
            return None

        return self.seconds / 60

    @property
    def reached(self) -> bool:
        """Whether the run met the target."""
        return self.seconds is not None

    @property
    def summary(self) -> str:
        """The result as text, such as "26.4 s, at epoch 7"."""
        if self.reached:
            return f"{self.seconds:.4g} s, at epoch {self.epoch}"

        return "never"

    def _repr_html_(self) -> str:
        rule = "first crossing"
        if self.window > 1:
            rule = f"median of {self.window}"

        rows = [["time", self.summary]]
        if self.reached:
            rows.append([rule, f"{self.value:.4g}"])

        title = f"{self.metric} to {self.target:g}, by the {rule}"
        return html_table(["", ""], rows, title)


@dataclass(frozen=True)
class EvaluationReading:
    """An evaluation that counts, and the event at which its time is read."""

    epoch: float
    index: int  # the event at which the time is read
    value: float
    scored: int | None = None  # the event with the value


def readings(
    timeline: Timeline, metric: str, *, at_epoch_end: bool, counts_evaluation: bool
) -> list[EvaluationReading]:
    """Returns a metric's value and time for each evaluation that counts, in order of arrival.

    Evaluations in lost work don't count. The time of an evaluation is read when it
    ends. With ``at_epoch_end``, it is read when the epoch ends, except for evaluations
    within an epoch, and in logs whose epochs end before their evaluation, such as
    MLPerf's. An overlapped evaluation's result arrives after further training. Its time
    is read at the arrival if the clock counts evaluation, otherwise where training
    handed over the weights. Values that aren't numbers become NaN.

    Args:
        timeline: the run, which caches the result.
        metric: the metric's name in ``tracked_stats``.
        at_epoch_end: see above.
        counts_evaluation: whether the clock runs during evaluations.
    """
    choice = (metric, at_epoch_end, counts_evaluation)
    if choice not in timeline.readings:
        timeline.readings[choice] = list(_readings(timeline, *choice))

    return timeline.readings[choice]


def _readings(
    timeline: Timeline, metric: str, at_epoch_end: bool, counts_evaluation: bool
) -> Iterable[EvaluationReading]:
    """Yields what `readings` returns, from the events of evaluations and epochs' ends."""
    pending: dict[float, tuple[float, int]] = {}  # values that have no time yet
    evaluating: set[float] = set()  # epochs whose evaluation has begun
    ended: set[float] = set()  # epochs that are over
    # Where the time of an epoch's evaluation was read first.
    stopped: dict[float, int] = {}
    by_epoch: dict[float, EvaluationReading] = {}
    for epoch, index in timeline.evaluated:
        key = timeline.keys[index]
        read_here = epoch in ended or not at_epoch_end or epoch % 1
        if key == "eval_start" and epoch not in evaluating:
            evaluating.add(epoch)
            stopped.pop(epoch, None)

        if key == "epoch_stop":
            ended.add(epoch)

        # The WER in ``tracked_stats`` takes precedence over that of ``eval_accuracy``.
        values = scores_at(timeline, index)
        if metric in values and not (key == "eval_accuracy" and epoch in pending):
            pending[epoch] = (_number(values[metric]), index)

        if key != "epoch_stop" and not (key == "eval_stop" and read_here):
            continue

        first = stopped.setdefault(epoch, index)
        if epoch in pending:
            value, scored = pending.pop(epoch)
            read = index if counts_evaluation else first
            # An epoch that was evaluated again comes last, as its result arrived last.
            by_epoch.pop(epoch, None)
            by_epoch[epoch] = EvaluationReading(epoch, read, value, scored)
            evaluating.discard(epoch)

    return by_epoch.values()


def scores_at(timeline: Timeline, index: int) -> Mapping[str, Any]:
    """Returns each metric's value that an event states.

    No reading comes from anywhere else.

    Args:
        timeline: the run.
        index: any of its events; {} if it states none.
    """
    key = timeline.keys[index]
    value = timeline.events[index].get("value")
    if key == "eval_accuracy":
        return {"wer": value}

    if key != "tracked_stats" or value is None:
        return {}

    return value


def evaluations_in(window: int, per_epoch: int) -> int:
    """Returns how many evaluations a rule's median covers, if there are several per epoch.

    A window of 1 is the first evaluation that meets the target, on any grid. A longer
    one covers the evaluations of ``window`` epochs, plus one if their number is even.
    Evaluating more often thus doesn't let noise meet a target earlier, and the rule is
    met as long after the crossing as with one evaluation per epoch
    (docs/statistics.md).
    """
    if window == 1:
        return 1

    evaluations = window * per_epoch
    if evaluations % 2 == 0 and per_epoch > 1:
        evaluations += 1

    return evaluations


def evaluations_of(points: Sequence[AccuracyPoint], window: int) -> int:
    """Returns `evaluations_in` for a run's curve.

    Args:
        points: the curve, whose points know how many evaluations an epoch has.
        window: over how many epochs to take the median.
    """
    if not points:
        return window

    return evaluations_in(window, points[0].per_epoch)


def at_epoch_ends(points: Sequence[AccuracyPoint]) -> Sequence[AccuracyPoint]:
    """Returns a curve without its evaluations within epochs."""
    if not points or points[0].per_epoch <= 1:
        return points

    return [point for point in points if point.epoch % 1 == 0]


def first_sustained(
    points: Sequence[AccuracyPoint],
    target: float,
    *,
    metric: str = "cer",
    window: int = WINDOW,
    metrics: Mapping[str, Metric] = METRICS,
) -> TimeToAccuracy:
    """Returns when the median of the last ``window`` points of a curve first meets a target.

    With several evaluations an epoch the median is over more points, see
    `evaluations_in`.

    Args:
        points: the curve.
        target: what the median must meet, a fraction for error rates.
        metric: the metric's name.
        window: over how many epochs to take the median.
        metrics: the known metrics. Pass those of the run if it declares its own.

    Source: the paper (arXiv 2003.12366), section 4.1.2.
    """
    if window < 1:
        raise ValueError(
            f"window must be at least 1 evaluation. Received: window={window}."
        )

    kind = metric_named(metric, metrics)
    count = evaluations_of(points, window)
    middles = medians([point.value for point in points], count, kind.worst)
    for point, median in zip(points[count - 1 :], middles, strict=True):
        if kind.met(median, target):
            return TimeToAccuracy(
                metric=metric,
                target=target,
                window=window,
                seconds=point.elapsed_s,
                epoch=point.epoch,
                value=median,
            )

    return TimeToAccuracy(metric, target, window)


def rule_met(
    history: Sequence[Mapping[str, float]],
    targets: Sequence[tuple[str, float]],
    window: int = WINDOW,
    per_epoch: int = 1,
    metrics: Mapping[str, Metric] = METRICS,
) -> bool:
    """Whether the last ``window`` evaluations meet every target, as in `first_sustained`.

    False if there are no targets.

    Args:
        history: the metrics of each evaluation so far.
        targets: metrics and values.
        window: over how many epochs to take the median.
        per_epoch: evaluations per epoch.
        metrics: the known metrics.
    """
    window = evaluations_in(window, per_epoch)
    recent = history[-window:]
    if len(recent) < window or not targets:
        return False

    for metric, value in targets:
        kind = metric_named(metric, metrics)
        values = [scores.get(metric, math.nan) for scores in recent]
        median = next(medians(values, window, kind.worst))
        if not kind.met(median, value):
            return False

    return True


def medians(
    values: Sequence[float], window: int, worst: float = math.inf
) -> Iterator[float]:
    """Yields the median of each ``window`` consecutive values.

    Args:
        values: a metric in the order of evaluations.
        window: how many values a median is over.
        worst: what NaN, the value of a diverged evaluation, counts as.
    """
    values = [worst if math.isnan(value) else value for value in values]
    for last in range(window, len(values) + 1):
        yield statistics.median(values[last - window : last])


def _number(value: object) -> float:
    """Returns a metric's value as a float; NaN if it isn't a number that fits."""
    if isinstance(value, int) and abs(value) >= _LARGEST:
        return math.nan

    if isinstance(value, int | float):
        return float(value)

    return math.nan


@dataclass(frozen=True)
class Bracket:
    """The two times between which a run's error curve crossed a target.

    The median of several evaluations describes the middle one, so both ends are middles
    of windows. If the first window already meets the target, smaller windows before it
    are used.
    """

    # Middle of the last window before the first hit, or 0 without one; if no window
    # meets the target, middle of the last window of all.
    last_miss_s: float

    # Middle of the first window whose median meets the target.
    first_hit_s: float | None

    # Where the straight line between the two crosses the target; None without an
    # earlier median.
    interpolated_s: float | None

    # When the rule was met, or the last evaluation if it never was; None means
    # first_hit_s.
    rule_s: float | None = None

    # About which part of its time the run would have taken if the machine had taken
    # nothing from it.
    undisturbed: float = 1.0

    @property
    def censored(self) -> bool:
        """Whether the run never met the target, so its time is only known to be longer."""
        return self.first_hit_s is None

    @property
    def read_s(self) -> float:
        """When the rule was met; of a censored run, its last evaluation."""
        times = (self.rule_s, self.first_hit_s, self.last_miss_s)
        return next(time for time in times if time is not None)

    def without_disturbance(self) -> "Bracket":
        """Returns the bracket that the run would have had about on an undisturbed machine."""
        hit_s = None
        if self.first_hit_s is not None:
            hit_s = self.first_hit_s * self.undisturbed

        return Bracket(self.last_miss_s * self.undisturbed, hit_s, None)


def bracket(
    points: Sequence[AccuracyPoint],
    target: float,
    *,
    window: int,
    metric: str = "cer",
    metrics: Mapping[str, Metric] = METRICS,
) -> Bracket:
    """Returns the times between which a run's evaluations, in order, crossed a target.

    Args:
        points: the curve.
        target: what the median must meet.
        window: over how many epochs to take the median.
        metric: the metric's name.
        metrics: the known metrics.
    """
    kind = metric_named(metric, metrics)
    window = evaluations_of(points, window)
    values = [point.value for point in points]
    times = [point.elapsed_s for point in points]

    # Before the first full window, smaller ones down to a single evaluation.
    smaller: list[int] = []
    if len(points) >= window:
        smaller = sorted({1, *range(window - 2, 0, -2)} - {window})

    middles = [next(medians(values[:size], size, kind.worst)) for size in smaller]
    middles += medians(values, window, kind.worst)
    at = [statistics.median(times[:size]) for size in smaller]
    at += medians(times, window)

    first = len(smaller)  # full window
    full = range(first, len(middles))
    index = next((place for place in full if kind.met(middles[place], target)), None)
    if index is None:
        return Bracket(
            last_miss_s=at[-1] if full else 0.0,
            first_hit_s=None,
            interpolated_s=None,
            rule_s=times[-1] if times else None,
        )

    rule_s = times[index - first + window - 1]
    # If the first full window meets the target, the curve may have crossed it earlier.
    while 0 < index <= first and kind.met(middles[index - 1], target):
        index -= 1

    hit = at[index]
    miss = 0.0
    crossed = None
    if index:
        miss = at[index - 1]
        before = middles[index - 1]
        if not math.isinf(before):
            after = middles[index]
            crossed = miss + (hit - miss) * (before - target) / (before - after)
            crossed = min(max(crossed, miss), hit)  # it may be outside by rounding

    return Bracket(miss, hit, crossed, rule_s)


@dataclass(frozen=True)
class Policy:
    """Which clock and rule a benchmark uses: its start, its pauses, and how a target is met.

    For rules that these fields can't express, override `times_s` or `readings` in a
    subclass.

    Example:
        ::

            without_checkpoints = Policy(
                "without_checkpoints",
                start="run_start",
                excluded=frozenset({"checkpoint"}),
                rule="from run_start, without checkpoints",
            )
            POLICIES.register("without_checkpoints", without_checkpoints)

    Raises:
        ValueError: for an unknown interval or a window below 1.
    """

    name: str

    # The key of the event that starts the clock, or `PROCESS`; see `start_index`.
    start: str

    # Intervals during which the clock stands still.
    excluded: frozenset[str] = frozenset()

    # Whether the clock runs between eval_start and eval_stop.
    counts_evaluation: bool = True

    window: int = 1  # the median of this many evaluations must meet the target

    # Whether time is read at the epoch's end, not the evaluation's.
    at_epoch_end: bool = False
    rule: str = ""  # the policy in one sentence
    source: str = ""  # where it is published

    def __post_init__(self):
        unknown = sorted(set(self.excluded) - set(INTERVALS))
        where = f"in the policy {self.name!r}"
        if unknown:
            text = f"A policy may only stop its clock during intervals of {INTERVALS}."
            raise ValueError(f"{text} Received: {unknown} {where}.")

        if self.window < 1:
            text = "A policy's window must be at least 1 evaluation."
            raise ValueError(f"{text} Received: {self.window} {where}.")

    def times_s(self, timeline: Timeline) -> list[float]:
        """Returns the clock at each event in seconds; 0 or less before its start.

        No policy counts downtime. MLPerf's clock may not pause, so a resumed run isn't
        valid there.
        """
        counted = timeline.counted_us(
            self.excluded, within_evaluation=self.counts_evaluation
        )
        start = self.start_index(timeline)
        if start is not None:
            counted = counted - counted[start]

        return (counted / 1e6).tolist()

    def start_index(self, timeline: Timeline) -> int | None:
        """Returns the event at which the clock starts; None for the process's creation.

        A log without that event starts at ``model_creation``, or else at the first
        event. If the process's creation is not recorded, the clock starts at the first
        event.
        """
        if self.start == PROCESS or not timeline.events:
            return None

        starts = [timeline.indices.get(key) for key in (self.start, "model_creation")]
        return next((indices[0] for indices in starts if indices), 0)

    def readings(self, timeline: Timeline, metric: str) -> list[EvaluationReading]:
        """Returns the evaluations that count, see the function `readings`.

        Args:
            timeline: the run.
            metric: the metric's name.
        """
        return readings(
            timeline,
            metric,
            at_epoch_end=self.at_epoch_end,
            counts_evaluation=self.counts_evaluation,
        )

    def curve(self, timeline: Timeline, metric: str) -> list[AccuracyPoint]:
        """Returns these evaluations with the clock's time of each.

        Args:
            timeline: the run.
            metric: the metric's name.
        """
        times = self.times_s(timeline)
        per_epoch = timeline.evaluations_per_epoch
        return [
            AccuracyPoint(reading.epoch, times[reading.index], reading.value, per_epoch)
            for reading in self.readings(timeline, metric)
        ]

    def time_to_accuracy(
        self,
        timeline: Timeline,
        target: float,
        *,
        metric: str = "cer",
        window: int | None = None,
        metrics: Mapping[str, Metric] = METRICS,
    ) -> tuple[TimeToAccuracy, Bracket]:
        """Returns when a run met a target, and between which evaluations it crossed it.

        Args:
            timeline: the run.
            target: the metric's value, a fraction for error rates.
            metric: the metric's name.
            window: over how many epochs to take the median; by default the policy's.
            metrics: the known metrics.
        """
        if window is None:
            window = self.window

        points = self.curve(timeline, metric)
        result = first_sustained(
            points, target, metric=metric, window=window, metrics=metrics
        )
        limits = bracket(points, target, window=window, metric=metric, metrics=metrics)
        return result, limits


def _check(policy: object) -> None:
    if not isinstance(policy, Policy):
        raise TypeError(
            f"it must be a tfasr.tta.policies.Policy. Received: {policy!r}."
        )


POLICIES: Registry[Policy] = Registry("policy", check=_check, plural="policies")

for _policy in (
    Policy(
        "paper",
        start="model_creation",
        window=WINDOW,
        at_epoch_end=True,
        rule=(
            "from the creation of the model to the end of the epoch at which the median "
            f"of the last {WINDOW} evaluations meets the target; everything counts"
        ),
        source="arXiv 2003.12366, section 4.1.2",
    ),
    Policy(
        "mlperf",
        start="run_start",
        rule=(
            "from run_start (after initialisation, before reading data) to the end of "
            "the first evaluation that meets the target; everything counts"
        ),
        source="MLPerf Training rules, Run Results (github.com/mlcommons/training_policies)",
    ),
    Policy(
        "algoperf",
        start="run_start",
        excluded=_EVALUATION
        | {"init", "checkpoint", "sentences", "logging", "lost_work"},
        counts_evaluation=False,
        rule=(
            "from run_start until the first evaluation that meets the target, without "
            "evaluation, checkpoints, printed sentences, logging, the initialisation of "
            "later sessions and work that was lost at a restart"
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
        at_epoch_end=True,
        rule=(
            "from the start of the program, with initialisation but without validation "
            "and checkpoints, to the end of the first epoch that meets the target"
        ),
        source=(
            "README's FAQ and issues 9, 12 and 21 "
            "(github.com/stanford-futuredata/dawn-bench-entries)"
        ),
    ),
):
    POLICIES.register(_policy.name, _policy)

PAPER = POLICIES["paper"]


class _UtterancesClock(Policy):
    """A clock that counts utterances instead of seconds."""

    def times_s(self, timeline: Timeline) -> list[float]:
        """Returns how many utterances were trained on up to each event, without lost work."""
        seen = [0.0] * len(timeline.events)
        for index in timeline.of("train_step"):
            if timeline.useful[index]:
                value = timeline.events[index].get("value") or {}
                seen[index] = _number(value.get("utterances"))

        return list(accumulate(seen))


# Not registered: reports show seconds, but this clock counts utterances, whatever the
# machine.
UTTERANCES = _UtterancesClock(
    "utterances",
    start=PROCESS,
    window=WINDOW,
    at_epoch_end=True,
    rule="utterances until the target",
)


def policy_named(policy: str | Policy) -> Policy:
    """Returns a policy by name, or the policy itself.

    Raises:
        UsageError: for an unknown name.
    """
    if isinstance(policy, Policy):
        return policy

    if policy == UTTERANCES.name:
        return UTTERANCES

    return POLICIES[policy]
