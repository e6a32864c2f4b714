"""A run's events, the time of each, and what follows from both; results are cached."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from tfasr.ledger import intervals, schema
from tfasr.ledger.intervals import INTERVALS, Event, Piece, Pieces, Steps

_CURVE_KEYS = (
    "eval_start",
    "eval_accuracy",
    "tracked_stats",
    "eval_stop",
    "epoch_stop",
)
_Value = TypeVar("_Value")


class Timeline:
    """All of a run's events in file order, and everything derived from them alone.

    Pass every event of the run, as an event's time depends on those before it.
    Properties are cached, so don't change the events. Those that need times raise
    ValueError, naming the event, if one has no usable time.
    """

    def __init__(self, events: Sequence[Event]):
        self.events = events
        self._of: dict[tuple[str, ...], list[int]] = {}
        self._counted: dict[tuple[frozenset[str], bool], np.ndarray] = {}
        # for `tfasr.tta.policies`
        self.readings: dict[tuple[str, bool, bool], list[Any]] = {}

    @cached_property
    def keys(self) -> list[str]:
        return [event["key"] for event in self.events]

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        return [event.get("metadata") or {} for event in self.events]

    @cached_property
    def indices(self) -> dict[str, list[int]]:
        indices: dict[str, list[int]] = {}
        for index, key in enumerate(self.keys):
            indices.setdefault(key, []).append(index)
        return indices

    def of(self, *keys: str) -> list[int]:
        if keys not in self._of:
            self._of[keys] = sorted(
                i for key in keys for i in self.indices.get(key, [])
            )
        return self._of[keys]

    def fact(self, key: str) -> Any:
        indices = self.indices.get(key)
        return self.events[indices[-1]].get("value") if indices else None

    def last(self, kind: type[_Value]) -> _Value | None:
        """Returns the last event of a class of `tfasr.ledger.schema`; None if it is
        unknown.
        """
        key = schema.KEYS[kind]
        return schema.value_of(key, self.fact(key))

    def all(self, kind: type[_Value]) -> list[_Value]:
        """Returns the events of a class of `tfasr.ledger.schema`, without unknown ones."""
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
        return intervals.session_ranges(self.keys, self.metadata)

    @cached_property
    def _clock(self) -> tuple[list[int], list[int]]:
        return intervals.clock_us(self.events, self.metadata, self.sessions)

    @property
    def clock_us(self) -> list[int]:
        return self._clock[0]

    @property
    def session_begins_us(self) -> list[int]:
        """The run's clock at the start of each session: at its process's creation, if
        known.
        """
        return self._clock[1]

    @cached_property
    def zero_us(self) -> int:
        """Start of the paper's clock: the first ``model_creation``, or else the first event.

        Source: the paper (arXiv 2003.12366), section 4.1.2.
        """
        created = self.indices.get("model_creation", [0])[0]
        return self.clock_us[created] if self.clock_us else 0

    @cached_property
    def elapsed_s(self) -> list[float]:
        """Seconds from the model's creation to each event; negative before it, without
        downtime.
        """
        return [(now - self.zero_us) / 1e6 for now in self.clock_us]

    @property
    def wall_s(self) -> float:
        """Seconds of all sessions together, without downtime."""
        return self.clock_us[-1] / 1e6 if self.clock_us else 0.0

    @cached_property
    def lost(self) -> list[range]:
        return intervals.lost_ranges(self.events, self.indices, self.sessions)

    @cached_property
    def useful(self) -> list[bool]:
        """For each event, False if it is lost work, which a later session repeated."""
        mask = [True] * len(self.events)
        for lost in self.lost:
            mask[lost.start + 1 : lost.stop] = [False] * (len(lost) - 1)
        return mask

    @cached_property
    def evaluated(self) -> list[tuple[float, int]]:
        """The epoch and the index of each event of an evaluation or an epoch's end."""
        epochs = (
            (intervals.evaluated_epoch(self.metadata[i]), i)
            for i in self.of(*_CURVE_KEYS)
        )
        return [
            (epoch, i) for epoch, i in epochs if epoch is not None and self.useful[i]
        ]

    @cached_property
    def pieces(self) -> list[Piece]:
        pieces = self._pieces
        names = (INTERVALS[code] for code in pieces.codes.tolist())
        return list(
            zip(names, pieces.starts_us.tolist(), pieces.stops_us.tolist(), strict=True)
        )

    @cached_property
    def _pieces(self) -> Pieces:
        if not self.events:
            nothing = np.zeros(0, dtype=np.int64)
            return Pieces(nothing, nothing, nothing)

        read = (self.events, self.indices, *self._clock, self.sessions, self.lost)
        return intervals.interval_pieces(*read)

    def interval_seconds(self, until_s: float | None = None) -> dict[str, float]:
        """Returns the run's seconds per interval, exact to the microsecond.

        Only time up to ``until_s`` seconds after the model's creation counts.
        """
        pieces = self._pieces
        stops = pieces.stops_us
        if until_s is not None:
            stops = np.minimum(stops, self.zero_us + round(until_s * 1e6))
        # Whole microseconds below 2 ** 53: these sums are exact.
        lengths = np.maximum(stops - pieces.starts_us, 0)
        totals = np.bincount(pieces.codes, lengths, len(INTERVALS))
        return {
            name: float(total) / 1e6
            for name, total in zip(INTERVALS, totals, strict=True)
        }

    def counted_us(
        self, excluded: frozenset[str], *, within_evaluation: bool
    ) -> np.ndarray:
        """Returns the reading, at each event, of a clock that stops in ``excluded`` intervals.

        Microseconds, int64 ``(events,)``, from 0 at the run's start.
        ``within_evaluation``: whether overhead between ``eval_start`` and ``eval_stop``
        counts.
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
            self._counted[choice] = passed[
                np.searchsorted(pieces.stops_us, clock, side="right")
            ]

        return self._counted[choice]

    def _stopped(self, excluded: frozenset[str], within_evaluation: bool) -> np.ndarray:
        pieces = self._pieces
        stopped = np.isin(pieces.codes, [intervals.CODES[name] for name in excluded])
        if not within_evaluation:
            overhead = pieces.codes == intervals.CODES["overhead"]
            stopped |= overhead & self._evaluating(pieces.starts_us)

        return stopped

    def stood_still(
        self,
        excluded: frozenset[str],
        *,
        within_evaluation: bool,
        start_us: int,
        stop_us: int,
    ) -> dict[str, tuple[float, int, int]]:
        """Returns the time that `counted_us` leaves out between two times of the run's clock.

        For each interval: seconds, the number of pieces, and the event at which the
        last one ends.
        """
        pieces = self._pieces
        within = (pieces.starts_us >= start_us) & (pieces.stops_us <= stop_us)
        chosen = self._stopped(excluded, within_evaluation) & within
        left_out = {}
        for name, code in intervals.CODES.items():
            of_name = np.flatnonzero(chosen & (pieces.codes == code))
            if of_name.size:
                lengths = pieces.stops_us[of_name] - pieces.starts_us[of_name]
                last = int(np.searchsorted(self.clock_us, pieces.stops_us[of_name[-1]]))
                seconds = float(lengths.sum()) / 1e6
                left_out[name] = (
                    seconds,
                    int(of_name.size),
                    min(last, len(self.events) - 1),
                )

        return left_out

    def _evaluating(self, times_us: np.ndarray) -> np.ndarray:
        edges = self.of("eval_start", "eval_stop", "session_start")
        if not edges:
            return np.zeros(times_us.size, dtype=bool)
        at = np.array([self.clock_us[index] for index in edges])
        opens = np.array(
            [False, *(self.keys[index] == "eval_start" for index in edges)]
        )
        return opens[np.searchsorted(at, times_us, side="right")]

    @cached_property
    def steps(self) -> Steps:
        indices = np.array(self.indices.get("train_step", []), dtype=int)
        indices = indices[np.array(self.useful, dtype=bool)[indices]]
        firsts = [session.start for session in self.sessions]
        sessions = np.searchsorted(firsts, indices, side="right")
        places = np.arange(indices.size) - np.searchsorted(sessions, sessions)
        chosen = indices.tolist()
        at_us = np.array(self.clock_us, dtype=np.int64)[indices]
        values = [self.events[index].get("value") or {} for index in chosen]
        return Steps(chosen, places, at_us, values)


def wrong_value(timeline: Timeline) -> tuple[int, str] | None:
    """Returns an event of a wrong type and what it must be, or None; see
    `tfasr.ledger.schema`.

    Everything that reads a run's events later relies on these types.
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
    began = set()
    for number, (key, about) in enumerate(
        zip(timeline.keys, timeline.metadata, strict=True), 1
    ):
        new = about.get("session")
        if key == "session_start":
            step = 0
            if new is not None and new in began:
                return f"event {number} starts session {new}, which had already started"
            began.add(new)

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
