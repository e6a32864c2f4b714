"""Clock policies: what different benchmarks count, applied to one ledger afterwards."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tfasr.tta.brackets import Bracket, bracket
from tfasr.tta.intervals import Piece, interval_pieces, useful_mask
from tfasr.tta.time_to_accuracy import (
    AccuracyPoint,
    TimeToAccuracy,
    curve_on,
    first_sustained,
)
from tfasr.tta.timeline import Event, clock_us

_EVALUATION = frozenset({"eval_forward", "decode"})
_EVALUATION_EDGES = frozenset({"eval_start", "eval_stop", "session_start"})


@dataclass(frozen=True)
class Policy:
    """When a benchmark's clock starts, what stops it, and which rule reads it.

    Attributes:
        name: how it is asked for.
        start: the key of the event that starts the clock; where a log lacks it, the clock starts
            at ``model_creation``, else at the first event.
        excluded: intervals during which the clock stands still.
        counts_evaluation: whether the clock runs between ``eval_start`` and ``eval_stop``.
        window: the evaluations whose median must meet the target; 1 is the first crossing.
        at_epoch_end: the time is read at the end of the epoch, otherwise of the evaluation.
        rule: the policy in a sentence.
        source: where it is written down.
    """

    name: str
    start: str
    excluded: frozenset[str]
    counts_evaluation: bool
    window: int
    at_epoch_end: bool
    rule: str
    source: str


POLICIES = {
    policy.name: policy
    for policy in (
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
            start="session_start",
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
    )
}


def policy(name: str) -> Policy:
    """Returns the policy of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in POLICIES:
        raise ValueError(f"A policy must be one of {sorted(POLICIES)}. Received: {name!r}.")
    return POLICIES[name]


def policy_times_s(events: Sequence[Event], policy: Policy) -> list[float]:
    """Returns what a policy's clock shows at each event, in seconds; 0 or less before its start.

    Downtime between sessions is counted under no policy. MLPerf's own rules know no resumption:
    their clock may not be paused, so a resumed run is no valid result there.

    Args:
        events: all of a run's events in file order.
        policy: one of `POLICIES`.
    """
    clock = clock_us(events)
    return times_on(events, clock, interval_pieces(events, clock), policy)


def times_on(
    events: Sequence[Event], clock: Sequence[int], pieces: Iterable[Piece], policy: Policy
) -> list[float]:
    """Returns `policy_times_s` of events whose clock and pieces are known already."""
    pieces = iter(pieces)
    name, start, stop = next(pieces, ("", 0, -1))
    counted, evaluating = 0, False
    times = []
    for event, gap_end in zip(events, [*clock[1:], *clock[-1:]], strict=True):
        times.append(counted)
        key = event["key"]
        if key in _EVALUATION_EDGES:
            evaluating = key == "eval_start"
        while start < gap_end and stop > start:
            idle = name in policy.excluded or (
                evaluating and not policy.counts_evaluation and name == "overhead"
            )
            if not idle:
                counted += stop - start
            name, start, stop = next(pieces, ("", 0, -1))
    zero = _start_index(events, policy)
    return [(now - times[zero]) / 1e6 for now in times] if times else []


def policy_curve(events: Sequence[Event], metric: str, policy: Policy) -> list[AccuracyPoint]:
    """Returns a metric over a policy's clock, one point for each evaluation that counts."""
    times = policy_times_s(events, policy)
    useful = useful_mask(events)
    return curve_on(times, events, useful, metric, at_epoch_end=policy.at_epoch_end)


def policy_time_to_accuracy(
    events: Sequence[Event],
    target: float,
    *,
    metric: str = "cer",
    policy: Policy = POLICIES["paper"],
    window: int | None = None,
) -> tuple[TimeToAccuracy, Bracket]:
    """Returns the time to a target under a policy, and the bracket it lies in.

    Args:
        events: all of a run's events in file order.
        target: the value to come down to; error rates are fractions.
        metric: a key of ``tracked_stats``.
        policy: one of `POLICIES`.
        window: replaces the policy's own.
    """
    points = policy_curve(events, metric, policy)
    window = policy.window if window is None else window
    found = first_sustained(points, target, metric=metric, window=window)
    return found, bracket(points, target, window=window)


def _start_index(events: Sequence[Event], policy: Policy) -> int:
    for key in (policy.start, "model_creation"):
        for index, event in enumerate(events):
            if event["key"] == key:
                return index
    return 0
