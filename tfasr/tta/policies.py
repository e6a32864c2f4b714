"""Clock policies: what different benchmarks count, applied to one ledger afterwards."""

from dataclasses import dataclass

from tfasr.registry import Registry
from tfasr.tta.brackets import Bracket, bracket
from tfasr.tta.intervals import EVALUATION, INTERVALS
from tfasr.tta.time_to_accuracy import (
    AccuracyPoint,
    Reading,
    TimeToAccuracy,
    first_sustained,
    readings,
)
from tfasr.tta.timeline import Timeline

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
            `tfasr.tta.time_to_accuracy.readings` for evaluations that overlap with training.
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
