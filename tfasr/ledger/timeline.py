"""A run's events, the time of each, and what follows from both; results are cached.

`Timeline` stands between the ledger's lines and whatever is computed from a run: the
clock policies, energy, reports and checks all ask it. The computations themselves are
in `tfasr.ledger.intervals`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tfasr.ledger import intervals, schema
from tfasr.ledger.intervals import CODES, INTERVALS, Event, Piece, Pieces, Steps

# The events of evaluations and of epochs' ends, from which a run's curves are made.
_CURVE_KEYS = (
    "eval_start",
    "eval_accuracy",
    "tracked_stats",
    "eval_stop",
    "epoch_stop",
)
_Value = TypeVar("_Value")


class LeftOut(NamedTuple):
    """The time of one interval during which a clock stood still."""

    seconds: float
    pieces: int  # how many times it stopped
    last: int  # the event at which the last piece ends


class Timeline:
    """All of a run's events in file order, and everything derived from them alone.

    Pass every event of the run, as an event's time depends on those before it.
    Properties are cached, so don't change the events. Those that need times raise
    ValueError, naming the event, if one has no usable time.

    Example:
        ::

            timeline = Timeline(read_events("runs/small"))
            seed = timeline.fact("seed")
            train_s = timeline.interval_seconds()["train"]
    """

    def __init__(self, events: Sequence[Event]):
        self.events = events
        self._of: dict[tuple[str, ...], list[int]] = {}
        self._counted: dict[tuple[frozenset[str], bool], np.ndarray] = {}

        # For `tfasr.tta.policies`, which caches its readings of the run here.
        self.readings: dict[tuple[str, bool, bool], list[Any]] = {}

    @cached_property
    def keys(self) -> list[str]:
        """The key of each event, such as "train_step"."""
        return [event["key"] for event in self.events]

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        """The metadata of each event; {} if it is missing."""
        return [event.get("metadata") or {} for event in self.events]

    @cached_property
    def indices(self) -> dict[str, list[int]]:
        """The indices of the events with each key, ascending."""
        indices: dict[str, list[int]] = {}
        for index, key in enumerate(self.keys):
            indices.setdefault(key, []).append(index)

        return indices

    def of(self, *keys: str) -> list[int]:
        """Returns the indices of the events with any of some keys, ascending.

        Example:
            ::

                ends = timeline.of("session_start", "run_stop")
        """
        if keys not in self._of:
            self._of[keys] = sorted(
                index for key in keys for index in self.indices.get(key, [])
            )

        return self._of[keys]

    def fact(self, key: str) -> Any:
        """Returns the value of the last event with a key.

        Facts of a run, such as ``seed``, are written once per session, so this is what
        holds now. It is None if there is no such event.
        """
        indices = self.indices.get(key)
        if not indices:
            return None

        return self.events[indices[-1]].get("value")

    def last(self, kind: type[_Value]) -> _Value | None:
        """Returns the last event of a class of `tfasr.ledger.schema`.

        It is None if there is no such event or its value is unknown.

        Example:
            ::

                rule = timeline.last(TargetRule)
        """
        key = schema.KEYS[kind]
        return schema.value_of(key, self.fact(key))

    def all(self, kind: type[_Value]) -> list[_Value]:
        """Returns the events of a class of `tfasr.ledger.schema`, oldest first.

        Those whose value is unknown are left out.
        """
        key = schema.KEYS[kind]
        values = (self.events[index].get("value") for index in self.of(key))
        return [schema.value_of(key, value) for value in values if value is not None]

    @property
    def evaluations_per_epoch(self) -> int:
        """How many evaluations an epoch has; 1 if the log doesn't say it."""
        rule = self.last(schema.TargetRule)
        if rule is None or rule.evaluations_per_epoch is None:
            return 1

        return max(1, rule.evaluations_per_epoch)

    @cached_property
    def sessions(self) -> list[range]:
        """The index range of each session, see `intervals.session_ranges`."""
        return intervals.session_ranges(self.keys, self.metadata)

    @cached_property
    def _clock(self) -> tuple[list[int], list[int]]:
        """`clock_us` and `session_begins_us`, which are computed together."""
        return intervals.clock_us(self.events, self.metadata, self.sessions)

    @property
    def clock_us(self) -> list[int]:
        """The run's clock at each event, in microseconds, see `intervals.clock_us`."""
        return self._clock[0]

    @property
    def session_begins_us(self) -> list[int]:
        """The run's clock at the start of each session.

        That is the creation of its process, if known.
        """
        return self._clock[1]

    @cached_property
    def zero_us(self) -> int:
        """Start of the paper's clock: the first ``model_creation``, or else the first event.

        Source: the paper (arXiv 2003.12366), section 4.1.2.
        """
        if not self.events:
            return 0

        created = self.indices.get("model_creation", [0])[0]
        return self.clock_us[created]

    @cached_property
    def elapsed_s(self) -> list[float]:
        """Seconds from the model's creation to each event, without downtime.

        They are negative before it.
        """
        return [(now - self.zero_us) / 1e6 for now in self.clock_us]

    @property
    def wall_s(self) -> float:
        """Seconds of all sessions together, without downtime."""
        if not self.events:
            return 0.0

        return self.clock_us[-1] / 1e6

    @cached_property
    def lost(self) -> list[range]:
        """The ranges of lost work, see `intervals.lost_ranges`.

        The list is empty for a run that was never killed.
        """
        return intervals.lost_ranges(self.events, self.indices, self.sessions)

    @cached_property
    def useful(self) -> list[bool]:
        """For each event, False if it is lost work, which a later session repeated."""
        mask = [True] * len(self.events)
        for lost in self.lost:
            # The first event of a range is what was saved.
            mask[lost.start + 1 : lost.stop] = [False] * (len(lost) - 1)

        return mask

    @cached_property
    def evaluated(self) -> list[tuple[float, int]]:
        """The epoch and the index of each event of an evaluation or an epoch's end."""
        epochs = (
            (intervals.evaluated_epoch(self.metadata[index]), index)
            for index in self.of(*_CURVE_KEYS)
        )
        return [
            (epoch, index)
            for epoch, index in epochs
            if epoch is not None and self.useful[index]
        ]

    @cached_property
    def pieces(self) -> list[Piece]:
        """The run cut into intervals, without gaps or overlaps, in order.

        Each piece has a name from `INTERVALS`, and ends at an event or within a step.
        """
        pieces = self._pieces
        names = (INTERVALS[code] for code in pieces.codes.tolist())
        return list(
            zip(names, pieces.starts_us.tolist(), pieces.stops_us.tolist(), strict=True)
        )

    @cached_property
    def _pieces(self) -> Pieces:
        """The same as `pieces`, as arrays."""
        if not self.events:
            nothing = np.zeros(0, dtype=np.int64)
            return Pieces(nothing, nothing, nothing)

        return intervals.interval_pieces(
            self.events,
            self.indices,
            self.clock_us,
            self.session_begins_us,
            self.sessions,
            self.lost,
        )

    def interval_seconds(self, until_s: float | None = None) -> dict[str, float]:
        """Returns the run's seconds per interval, exact to the microsecond.

        Args:
            until_s: seconds after the model's creation, up to which time counts; None
                for the whole run.
        """
        pieces = self._pieces
        stops = pieces.stops_us
        if until_s is not None:
            stops = np.minimum(stops, self.zero_us + round(until_s * 1e6))

        # Whole microseconds below 2 ** 53: these sums are exact.
        lengths = np.maximum(stops - pieces.starts_us, 0)
        totals = np.bincount(pieces.codes, lengths, len(INTERVALS)) / 1e6
        return dict(zip(INTERVALS, totals.tolist(), strict=True))

    def counted_us(
        self, excluded: frozenset[str], *, within_evaluation: bool
    ) -> np.ndarray:
        """Returns the reading, at each event, of a clock that sometimes stands still.

        Args:
            excluded: the intervals in which the clock stops.
            within_evaluation: whether overhead between ``eval_start`` and ``eval_stop``
                counts.

        Returns:
            Microseconds, int64 ``(events,)``, from 0 at the run's start.
        """
        choice = (excluded, within_evaluation)
        if choice not in self._counted:
            pieces = self._pieces
            stopped = self._stopped(excluded, within_evaluation)
            lengths = np.where(stopped, 0, pieces.stops_us - pieces.starts_us)
            passed = np.concatenate([[0], np.cumsum(lengths)])

            # Pieces are cut at events, so every event is at a piece's end or before the
            # first.
            clock = np.array(self.clock_us, dtype=np.int64)
            ended = np.searchsorted(pieces.stops_us, clock, side="right")
            self._counted[choice] = passed[ended]

        return self._counted[choice]

    def _stopped(self, excluded: frozenset[str], within_evaluation: bool) -> np.ndarray:
        """Returns whether the clock of `counted_us` stands still in each piece."""
        pieces = self._pieces
        stopped = np.isin(pieces.codes, [CODES[name] for name in excluded])
        if not within_evaluation:
            overhead = pieces.codes == CODES["overhead"]
            stopped |= overhead & self._evaluating(pieces.starts_us)

        return stopped

    def stood_still(
        self,
        excluded: frozenset[str],
        *,
        within_evaluation: bool,
        start_us: int,
        stop_us: int,
    ) -> dict[str, LeftOut]:
        """Returns the time that `counted_us` leaves out between two times, by interval.

        Args:
            excluded: as in `counted_us`.
            within_evaluation: the same.
            start_us: a time on the run's clock.
            stop_us: a later one.
        """
        pieces = self._pieces
        # Both times are those of events, and no piece spans an event.
        within = (pieces.starts_us >= start_us) & (pieces.stops_us <= stop_us)
        chosen = self._stopped(excluded, within_evaluation) & within
        left_out = {}
        for name, code in CODES.items():
            places = np.flatnonzero(chosen & (pieces.codes == code))
            if not places.size:
                continue

            stops_us = pieces.stops_us[places]
            total_us = (stops_us - pieces.starts_us[places]).sum()
            # The end of a killed session is later than its last event.
            last = int(np.searchsorted(self.clock_us, stops_us[-1]))
            left_out[name] = LeftOut(
                seconds=float(total_us) / 1e6,
                pieces=int(places.size),
                last=min(last, len(self.events) - 1),
            )

        return left_out

    def _evaluating(self, times_us: np.ndarray) -> np.ndarray:
        """Returns whether each time lies between an ``eval_start`` and its end.

        A session's start ends an evaluation too: the process before it was killed.
        """
        edges = self.of("eval_start", "eval_stop", "session_start")
        if not edges:
            return np.zeros(times_us.size, dtype=bool)

        at = np.array([self.clock_us[index] for index in edges])
        opens = [self.keys[index] == "eval_start" for index in edges]
        # With an entry in front for the times before the first edge.
        return np.array([False, *opens])[np.searchsorted(at, times_us, side="right")]

    @cached_property
    def steps(self) -> Steps:
        """All steps of the run, without lost work."""
        indices = np.array(self.indices.get("train_step", []), dtype=int)
        indices = indices[np.array(self.useful, dtype=bool)[indices]]

        # A step's place is its distance to the first step of the same session.
        firsts = [session.start for session in self.sessions]
        sessions = np.searchsorted(firsts, indices, side="right")
        first_of_session = np.searchsorted(sessions, sessions)

        chosen = indices.tolist()
        return Steps(
            indices=chosen,
            places=np.arange(indices.size) - first_of_session,
            at_us=np.array(self.clock_us, dtype=np.int64)[indices],
            values=[self.events[index].get("value") or {} for index in chosen],
        )


def wrong_value(timeline: Timeline) -> tuple[int, str] | None:
    """Returns the index of an event of a wrong type and what it must be, or None.

    Everything that reads a run's events later relies on the types of
    `tfasr.ledger.schema`.
    """
    for index, event in enumerate(timeline.events):
        problem = schema.wrong_event(event)
        if problem is not None:
            return index, problem

    return None


def second_writer(timeline: Timeline) -> str | None:
    """Returns the evidence that two processes wrote a ledger at once, or None.

    A process's step numbers rise, and its session number is larger than those before.
    The lock can't prevent two writers on file systems without locks, nor joined
    ledgers.
    """
    session = None
    step = 0
    started = set()
    lines = zip(timeline.keys, timeline.metadata, strict=True)
    for number, (key, about) in enumerate(lines, 1):
        new = about.get("session")
        if key == "session_start":
            step = 0
            if new is not None and new in started:
                return f"event {number} starts session {new}, which had already started"

            started.add(new)

        # A process without a number, of another program, may stand between others.
        if new != session:
            if None not in (session, new) and new < session:
                return (
                    f"event {number} of session {new} follows one of session {session}"
                )

            session = new
            step = 0

        if key == "train_step" and isinstance(about.get("step"), int):
            if about["step"] <= step:
                return f"event {number} is step {about['step']} and follows step {step}"

            step = about["step"]

    return None
