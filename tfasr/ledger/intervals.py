"""Where the time went: every microsecond of a run in exactly one named interval.

This module turns a ledger's events into times: first a clock that all sessions of the
run share (`clock_us`), then pieces of it, each of one interval (`interval_pieces`).
`tfasr.ledger.timeline.Timeline` calls these functions and caches what they return;
other code should ask it.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

Event = dict[str, Any]
"""A line of a ledger, see `tfasr.ledger.events`."""

Piece = tuple[str, int, int]
"""An interval's name, and when it began and ended, in microseconds of the run's clock."""

# 31 700 years. In microseconds, sums of such times still fit into 64 bits.
_LONGEST_S = 1e12

# The largest integer that can become a float.
_LARGEST = int(np.finfo(float).max)

_LARGEST_EPOCH = 2**53  # whole numbers up to here are exact as floats
_LARGEST_AMOUNT = 1e15  # of anything that a step counts

INTERVALS = (
    "init", "compile", "input_wait", "train", "exchange", "wait", "averaging", "swap",
    "eval_forward", "decode", "eval_wait", "checkpoint", "sentences", "logging",
    "overhead", "lost_work",
)  # fmt: skip
"""The names of all intervals, in the order in which tables and figures show them.

- ``train``, ``compile``, ``input_wait``: the seconds of these names in each ``train_step``.
- ``exchange``, ``wait``: of the chief, if workers train in rounds; see `WORKERS`.
- ``lost_work``: everything after the checkpoint from which a later session resumed; see
  `lost_ranges`.
- ``overhead``: the rest of the run's time.
- all others: between their start and stop events; if two are open, the one opened last counts.
  ``init`` includes the process's time before its first event, if the ledger records it.
"""
CODES = {name: code for code, name in enumerate(INTERVALS)}
"""The number by which arrays refer to an interval: its place in `INTERVALS`."""

EVALUATION = ("swap", "eval_forward", "decode", "eval_wait")
"""The intervals in which training waits for an evaluation."""
WORKERS = ("exchange", "wait")
"""The intervals of training in rounds: weights are exchanged; the chief waits for workers."""

# The intervals that have events for their start and their stop.
_BRACKETED = {
    "init",
    *WORKERS,
    "averaging",
    *EVALUATION,
    "checkpoint",
    "sentences",
    "logging",
}

# What each of these events is: ``decode_stop`` is ("decode", "stop").
_EDGES = {
    f"{name}_{edge}": (name, edge) for name in _BRACKETED for edge in ("start", "stop")
}

# Lost work may start at these (see `lost_ranges`), so a step's time must not extend
# before them.
_STEP_BOUNDS = ("init_stop", "checkpoint_start", "checkpoint_stop")

# A step's intervals and the fields with their seconds. From last to first: the step
# itself ends at its event; the wait for its batch comes before.
_STEP_PARTS = (
    ("train", "train_s"),
    ("compile", "compile_s"),
    ("input_wait", "input_wait_s"),
)


def metadata(event: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an event's metadata; {} if it is missing or no object.

    Events of other programs may have anything there.
    """
    about = event.get("metadata")
    if isinstance(about, dict):
        return about

    return {}


def evaluated_epoch(about: Mapping[str, Any]) -> Any:
    """Returns an evaluation's epoch from its metadata.

    It is 2.5 in the middle of the third, and an integer at the end of an epoch.
    """
    at = about.get("at_epoch")
    if type(at) not in (int, float) or not abs(at) < _LARGEST_EPOCH:
        return about.get("epoch_num")

    if at % 1:
        return at

    return int(at)


def evaluation_place(epoch: float) -> dict[str, Any]:
    """Returns the metadata of an evaluation's events, which `evaluated_epoch` reads.

    Example:
        >>> evaluation_place(2.5)
        {'epoch_num': 3, 'at_epoch': 2.5}

    Args:
        epoch: an int if a run evaluates only at the ends of its epochs, otherwise a
            float.
    """
    if isinstance(epoch, int):
        return {"epoch_num": epoch}

    return {"epoch_num": math.ceil(epoch), "at_epoch": epoch}


def session_ranges(keys: Sequence[str], about: Sequence[dict[str, Any]]) -> list[range]:
    """Returns the index range of each session, the events written by one process.

    A session starts at ``session_start`` or where the metadata's ``session`` changes.

    Args:
        keys: the key of each event.
        about: the metadata of each.
    """
    starts = [index for index, key in enumerate(keys) if key == "session_start"]
    numbers = [facts.get("session", 0) for facts in about]
    if numbers and numbers.count(numbers[0]) != len(numbers):
        starts += [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1]]

    bounds = sorted({0, *starts, len(numbers)})
    return [range(first, end) for first, end in zip(bounds, bounds[1:], strict=False)]


def clock_us(
    events: Sequence[Event], about: Sequence[dict[str, Any]], sessions: Sequence[range]
) -> tuple[list[int], list[int]]:
    """Returns the run's clock at each event and at the start of each session, in microseconds.

    The clock is 0 at the creation of the first process if the ledger records it
    (``process_age_s``), otherwise at the first event. Within a session it follows the
    process's monotonic clock (``mono_s``), or ``time_ms`` if an event lacks ``mono_s``,
    and never runs backwards. Downtime isn't counted. A killed session lasts until its
    last event or the next ``session_start``'s ``alive_until_ms``, whichever is later;
    the next session's time follows, from the creation of its process. If the wall clock
    was set back in between, it can't show whether the two processes overlapped, and the
    whole age of the next one counts.

    Args:
        events: all events of the run.
        about: the metadata of each.
        sessions: their indices by session, see `session_ranges`.

    Raises:
        ValueError: naming the event, if one has no usable time.
    """
    clock: list[int] = []
    begins: list[int] = []
    for session in sessions:
        first = events[session.start]
        age = _age_us(first)
        begin = 0
        if clock:
            last = events[session.start - 1]
            silence = _alive_after_us(last, first)
            begin = clock[-1] + silence
            apart = round(_wall_us(first) - _wall_us(last))
            if apart >= 0:
                # A process created before the previous session's end counts from that
                # end.
                age = min(age, max(0, apart - silence))

        times = begin + age + _session_us(events, about, session)
        begins.append(begin)
        clock.extend(times.tolist())

    return clock, begins


def _session_us(
    events: Sequence[Event], about: Sequence[dict[str, Any]], session: range
) -> np.ndarray:
    """Returns the microseconds from a session's first event to each of its events.

    Args:
        events: all events of the run.
        about: the metadata of each.
        session: the indices of the session's events.
    """
    facts = about[session.start : session.stop]
    if all("mono_s" in each for each in facts):
        readings_s = [
            _number(events[index], "mono_s", each["mono_s"], _LONGEST_S)
            for index, each in zip(session, facts, strict=True)
        ]
        times = np.rint(np.array(readings_s, dtype=float) * 1e6).astype(np.int64)
    else:
        times_us = [round(_wall_us(events[index])) for index in session]
        times = np.array(times_us, dtype=np.int64)

    # Threads may write events in another order than they read the clock.
    return np.maximum.accumulate(times) - times[0]


def _age_us(start: Event) -> int:
    """Returns how long a process had existed at its ``session_start``; 0 if unknown."""
    age_s = metadata(start).get("process_age_s")
    if age_s is None:
        return 0

    return max(0, round(_number(start, "process_age_s", age_s, _LONGEST_S) * 1e6))


def _alive_after_us(last: Event, start: Event) -> int:
    """Returns how long a session went on after its last event, by its heartbeat.

    Args:
        last: the last event of the session.
        start: the first event of the next one, which knows the last heartbeat.
    """
    value = start.get("value")
    if start["key"] != "session_start" or value is None:
        return 0

    alive_until_ms = value.get("alive_until_ms")
    if alive_until_ms is None:
        return 0

    alive_us = _number(start, "alive_until_ms", alive_until_ms, 1e3 * _LONGEST_S) * 1000
    if _wall_us(last) <= _wall_us(start):
        # A time after the next session's start is impossible: the wall clock was
        # changed.
        alive_us = min(alive_us, _wall_us(start))

    return max(0, round(alive_us - _wall_us(last)))


def _wall_us(event: Event) -> float:
    return _number(event, "time_ms", event["time_ms"], 1e3 * _LONGEST_S) * 1000


def _number(event: Event, name: str, value: Any, most: float) -> float:
    """Returns a time if it is usable.

    Args:
        event: the event that states it, for the message.
        name: the name of its field, the same.
        value: the time, in any unit.
        most: the largest usable one, in the same unit.

    Raises:
        ValueError: naming the field and the event.
    """
    usual = type(value) in (float, int)
    if not usual or abs(value) > most or not math.isfinite(value):
        raise ValueError(
            f"{name} must be a finite number of plausible size. Received: {value!r} in "
            f"{event}."
        )

    return value


@dataclass(eq=False)
class Steps:
    """The steps of a run in file order, without lost work."""

    indices: list[int]  # of their events in the ledger
    places: np.ndarray  # each step's number within its session, from 0
    at_us: np.ndarray  # their ends, on the run's clock
    values: list[dict[str, Any]]  # their events' values, see `schema.TrainStep`
    _columns: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    def column(self, name: str) -> np.ndarray:
        """Returns a field's values in all steps, ``(steps,)``; NaN where it is missing.

        Args:
            name: a field of `schema.TrainStep`, such as "train_s".
        """
        if name not in self._columns:
            self._columns[name] = numbers([value.get(name) for value in self.values])

        return self._columns[name]

    def amounts(self, name: str) -> np.ndarray:
        """Like `column`, with 0 for missing, negative and huge values."""
        values = self.column(name)
        return np.where((values >= 0) & (values < _LARGEST_AMOUNT), values, 0.0)

    def states(self, name: str) -> bool:
        """Whether any step has the field. Logs of other programs lack some."""
        return any(name in value for value in self.values)

    @cached_property
    def compiled(self) -> np.ndarray:
        """Whether each step compiled anything; its time is then no measure of training."""
        return self.amounts("compile_s") > 0


def numbers(values: list[Any]) -> np.ndarray:
    """Returns values as floats.

    Anything that is not a number becomes NaN, also true and false, and integers that
    are too large for a float.

    Example:
        >>> numbers([1, 2.5, None, "3"])
        array([1. , 2.5, nan, nan])
    """
    if not set(map(type, values)) <= {int, float}:
        values = [
            value if type(value) in (int, float) else math.nan for value in values
        ]

    try:
        return np.array(values, dtype=float)
    except OverflowError:  # from an integer of 309 digits or more
        fitting = [
            v if type(v) is float or abs(v) <= _LARGEST else math.nan for v in values
        ]
        return np.array(fitting, dtype=float)


@dataclass(frozen=True)
class Pieces:
    """A run cut into non-empty pieces without gaps or overlaps, as arrays of equal length."""

    codes: np.ndarray  # each piece's index in `INTERVALS`
    starts_us: np.ndarray  # on the run's clock, from 0
    stops_us: np.ndarray  # the last one is the run's end


def interval_pieces(
    events: Sequence[Event],
    indices: Mapping[str, Sequence[int]],
    clock: Sequence[int],
    begins: Sequence[int],
    sessions: Sequence[range],
    lost: Sequence[range],
) -> Pieces:
    """Cuts a run into pieces, each of which belongs to one interval.

    A slot lasts from an event to the next one of its session, or to the session's end.
    A step gets its seconds from the end of a slot; the rest goes to the interval that
    is open.

    Args:
        events: all events of the run, at least one.
        indices: the events' indices by key.
        clock: the run's clock at each event, from `clock_us`.
        begins: the same at the start of each session.
        sessions: the events' indices by session.
        lost: which of them are lost work, from `lost_ranges`.
    """
    firsts = np.array([session.start for session in sessions], dtype=int)
    times = np.array(clock, dtype=np.int64)
    slot_ends = np.append(times[1:], times[-1:])
    slot_ends[firsts[1:] - 1] = begins[1:]
    slots_us = slot_ends - times

    # Before a session's first event: the time since its process was created.
    before = np.zeros_like(slots_us)
    before[firsts] = times[firsts] - np.array(begins, dtype=np.int64)

    opened = _open_intervals(indices, firsts, len(events))
    free_us = np.where(opened == CODES["overhead"], slots_us, 0)
    claimed = _claimed_us(events, indices, firsts, free_us)

    # A row for each slot: the time before it, the open interval's, then a step's parts
    # from first to last. Read row by row, these are the pieces in order.
    rest = slots_us - claimed.sum(axis=1)
    lengths = np.column_stack([before, rest, claimed[:, ::-1]])
    codes = np.empty(lengths.shape, dtype=int)
    codes[:, 0] = CODES["init"]
    codes[:, 1] = opened
    codes[:, 2:] = [CODES[name] for name, _ in reversed(_STEP_PARTS)]

    lengths = lengths.ravel()
    stops = np.cumsum(lengths)
    used = lengths > 0
    pieces = Pieces(codes.ravel()[used], (stops - lengths)[used], stops[used])

    begin_at = dict(zip(firsts.tolist(), begins, strict=True))
    for events_lost in lost:
        # No piece spans an event, and lost work starts and stops at events.
        start = clock[events_lost.start]
        stop = begin_at[events_lost.stop]
        within = (pieces.starts_us >= start) & (pieces.stops_us <= stop)
        pieces.codes[within] = CODES["lost_work"]

    return pieces


def _open_intervals(
    indices: Mapping[str, Sequence[int]], firsts: np.ndarray, count: int
) -> np.ndarray:
    """Returns the code of the interval that is open after each event, ``(events,)``.

    It is ``overhead`` if no interval with a start and a stop is open.
    """
    edges = {index: _EDGES[key] for key in _EDGES for index in indices.get(key, ())}
    session_starts = set(firsts.tolist())

    # The code changes only at these events; it is repeated for those in between.
    changes = sorted(session_starts | edges.keys())
    codes = []
    opened: list[str] = []
    for index in changes:
        if index in session_starts:
            opened = []

        name, edge = edges.get(index, ("", ""))
        # In merged logs of several processes, an interval may be started and stopped
        # repeatedly.
        if edge == "start" and name not in opened:
            opened.append(name)
        elif edge == "stop" and name in opened:
            opened.remove(name)

        current = opened[-1] if opened else "overhead"
        codes.append(CODES[current])

    return np.repeat(np.array(codes, dtype=int), np.diff([*changes, count]))


def _claimed_us(
    events: Sequence[Event],
    indices: Mapping[str, Sequence[int]],
    firsts: np.ndarray,
    free: np.ndarray,
) -> np.ndarray:
    """Returns the microseconds of `_STEP_PARTS` in each slot, ``(events, len(_STEP_PARTS))``.

    Back from its event, a step's parts use up the overhead since the previous step.

    Args:
        events: all events of the run.
        indices: the events' indices by key.
        firsts: the index of each session's first event.
        free: the overhead in each slot, in microseconds.
    """
    claimed = np.zeros((len(events), len(_STEP_PARTS)), dtype=np.int64)
    steps = np.array(indices.get("train_step", []), dtype=int)
    wanted = _wanted_us([events[index].get("value") for index in steps.tolist()])

    # A step may claim the slots from ``since``, the last bound before it. At a session's
    # first event there are none.
    bounds = np.unique(
        np.concatenate([steps, firsts, *(indices.get(key, []) for key in _STEP_BOUNDS)])
    ).astype(int)
    since = bounds[np.maximum(np.searchsorted(bounds, steps) - 1, 0)]
    since = np.where(np.isin(steps, firsts), steps, since)

    # Nearly all steps are one slot after the previous one; these are handled together.
    alone = steps - since == 1
    left_us = free[since]
    for part in range(len(_STEP_PARTS)):
        taken = np.minimum(wanted[:, part], left_us)
        claimed[since[alone], part] = taken[alone]
        left_us = left_us - taken

    others = zip(
        steps[~alone].tolist(), since[~alone].tolist(), wanted[~alone], strict=True
    )
    for step, first, wants in others:
        for slot in range(step - 1, first - 1, -1):
            remaining = free[slot]
            for part in range(len(_STEP_PARTS)):
                taken = min(wants[part], remaining)
                claimed[slot, part] = taken
                wants[part] -= taken
                remaining -= taken

    return claimed


def _wanted_us(values: Sequence[Mapping[str, Any] | None]) -> np.ndarray:
    """Returns the recorded times of the steps in microseconds, ``(steps, len(_STEP_PARTS))``.

    Missing, negative and infinite values count as 0.
    """
    stats = [value or {} for value in values]
    seconds = np.column_stack(
        [numbers([value.get(name) for value in stats]) for _, name in _STEP_PARTS]
    )
    usable = (seconds > 0) & (seconds < np.inf)
    seconds = np.where(usable, np.minimum(seconds, _LONGEST_S), 0)
    return np.rint(seconds * 1e6).astype(np.int64)


def lost_ranges(
    events: Sequence[Event],
    indices: Mapping[str, Sequence[int]],
    sessions: Sequence[range],
) -> list[range]:
    """Returns the ranges of event indices in which work was lost.

    A range starts at the last event whose work a checkpoint saved and stops at the
    ``session_start`` that resumed from it. The start is the ``checkpoint_stop`` of the
    step resumed from or, if the process was killed earlier, its ``checkpoint_start`` or
    ``train_step``. If a session resumed from no step, only the first session's
    initialisation was not lost.
    """
    init_end = 0
    stops = indices.get("init_stop", [])
    if stops and stops[0] < sessions[0].stop:
        init_end = stops[0]

    ranges = []
    for session in sessions[1:]:
        start = events[session.start]
        value = start.get("value")
        if start["key"] != "session_start" or value is None:
            continue

        saved = None
        step = value.get("resumed_from_step")
        if step:
            saved = kept_index(events, indices, session.start, step)
        if saved is None:
            saved = init_end

        if saved < session.start:
            ranges.append(range(saved, session.start))

    return ranges


def kept_index(
    events: Sequence[Event],
    indices: Mapping[str, Sequence[int]],
    before: int,
    step: int,
) -> int | None:
    """Returns the last event before index ``before`` that a step's checkpoint covers.

    If a finished run is trained longer, everything up to its ``run_stop`` is kept. The
    result is None if no event of the step is there.
    """
    stops = [index for index in indices.get("run_stop", ()) if index < before]
    if stops and metadata(events[stops[-1]]).get("status") == "success":
        steps = indices.get("train_step", [])
        last = bisect.bisect_left(steps, stops[-1]) - 1
        if last >= 0 and metadata(events[steps[last]]).get("step") == step:
            return stops[-1]

    for key in ("checkpoint_stop", "checkpoint_start", "train_step"):
        for index in reversed(indices.get(key, [])):
            if index < before and metadata(events[index]).get("step") == step:
                return index

    return None
