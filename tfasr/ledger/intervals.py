"""Where the time went: every second of a run in exactly one named interval."""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

Event = dict[str, Any]
_ABSENT = object()
# In microseconds, sums of such times still fit into 64 bits.
_LONGEST_S = 1e12
_LARGEST = int(np.finfo(float).max)
_LARGEST_EPOCH = 2**53
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
EVALUATION = ("swap", "eval_forward", "decode", "eval_wait")
"""The intervals in which training waits for an evaluation."""
WORKERS = ("exchange", "wait")
"""The intervals of training in rounds: weights are exchanged; the chief waits for workers."""
Piece = tuple[str, int, int]
CODES = {name: code for code, name in enumerate(INTERVALS)}
_BRACKETED = {
    "init",
    *WORKERS,
    "averaging",
    *EVALUATION,
    "checkpoint",
    "sentences",
    "logging",
}
_EDGES = {
    f"{name}_{edge}": (name, edge) for name in _BRACKETED for edge in ("start", "stop")
}
# Lost work may start at these (see `lost_ranges`), so a step's time must not extend
# before them.
_STEP_BOUNDS = ("init_stop", "checkpoint_start", "checkpoint_stop")
# From last to first: the step itself ends at its event; the wait for its batch comes
# before.
_STEP_PARTS = (
    ("train", "train_s"),
    ("compile", "compile_s"),
    ("input_wait", "input_wait_s"),
)


def metadata(event: Mapping[str, Any]) -> dict[str, Any]:
    about = event.get("metadata")
    return about if isinstance(about, dict) else {}


def evaluated_epoch(about: Mapping[str, Any]) -> Any:
    """Returns an evaluation's epoch from its metadata, such as 2.5 in the middle of the
    third.
    """
    at = about.get("at_epoch")
    if type(at) not in (int, float) or not abs(at) < _LARGEST_EPOCH:
        return about.get("epoch_num")
    return at if at % 1 else int(at)


def evaluation_place(epoch: float) -> dict[str, Any]:
    """Returns the metadata of an evaluation's events, which `evaluated_epoch` reads.

    ``epoch`` is an int if a run evaluates only at the ends of its epochs, otherwise a
    float.
    """
    if isinstance(epoch, int):
        return {"epoch_num": epoch}
    return {"epoch_num": math.ceil(epoch), "at_epoch": epoch}


def session_ranges(keys: Sequence[str], about: Sequence[dict[str, Any]]) -> list[range]:
    """Returns the index range of each session, the events written by one process.

    A session starts at ``session_start`` or where the metadata's ``session`` changes.
    """
    numbers = [facts.get("session", 0) for facts in about]
    starts = [index for index, key in enumerate(keys) if key == "session_start"]
    if numbers and numbers.count(numbers[0]) != len(numbers):
        starts += [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1]]
    ends = sorted({0, *starts, len(numbers)})
    return [range(first, end) for first, end in zip(ends, ends[1:], strict=False)]


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

    Raises:
        ValueError: naming the event, if one has no usable time.
    """
    clock: list[int] = []
    begins: list[int] = []
    for session in sessions:
        first = events[session.start]
        begins.append(0)
        age = _age_us(first)
        if clock:
            last = events[session.start - 1]
            silence = _alive_after_us(last, first)
            apart = round(_wall_us(first) - _wall_us(last))
            if apart >= 0:
                # A process created before the previous session's end counts from that
                # end.
                age = min(age, max(0, apart - silence))

            begins[-1] = clock[-1] + silence

        clock.extend((begins[-1] + age + _session_us(events, about, session)).tolist())

    return clock, begins


def _session_us(
    events: Sequence[Event], about: Sequence[dict[str, Any]], session: range
) -> np.ndarray:
    monotonic_s = [
        facts.get("mono_s", _ABSENT) for facts in about[session.start : session.stop]
    ]
    if _ABSENT in monotonic_s:
        times = [round(_wall_us(events[index])) for index in session]
    else:
        for index, reading in zip(session, monotonic_s, strict=True):
            _number(events[index], "mono_s", reading, _LONGEST_S)
        times = np.rint(np.array(monotonic_s, dtype=float) * 1e6).astype(np.int64)

    # Threads may write events in another order than they read the clock.
    return np.maximum.accumulate(np.array(times, dtype=np.int64)) - times[0]


def _age_us(start: Event) -> int:
    age_s = metadata(start).get("process_age_s")
    if age_s is None:
        return 0
    return max(0, round(_number(start, "process_age_s", age_s, _LONGEST_S) * 1e6))


def _alive_after_us(last: Event, start: Event) -> int:
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
    usual = type(value) in (float, int)
    if not usual or abs(value) > most or not math.isfinite(value):
        raise ValueError(
            f"{name} must be a finite number of plausible size. Received: {value!r} in {event}."
        )

    return value


_LARGEST_AMOUNT = 1e15  # of anything that a step counts


@dataclass(eq=False)
class Steps:
    """The steps of a run in file order, without lost work."""

    indices: list[int]  # of their events in the ledger
    places: np.ndarray  # each step's number within its session, from 0
    at_us: np.ndarray  # their ends, on the run's clock
    values: list[dict[str, Any]]
    _columns: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    def column(self, name: str) -> np.ndarray:
        """Returns a field's values in all steps; NaN where the ledger lacks it."""
        if name not in self._columns:
            self._columns[name] = numbers([value.get(name) for value in self.values])
        return self._columns[name]

    def amounts(self, name: str) -> np.ndarray:
        """Like `column`, with 0 for missing, negative and huge values."""
        values = self.column(name)
        usable = (values >= 0) & (values < _LARGEST_AMOUNT)
        return values if usable.all() else np.where(usable, values, 0.0)

    def states(self, name: str) -> bool:
        """Whether any step has the field. Logs of other programs lack some."""
        return any(name in value for value in self.values)

    @cached_property
    def compiled(self) -> np.ndarray:
        return self.amounts("compile_s") > 0


def numbers(values: list[Any]) -> np.ndarray:
    """Returns values as floats, with NaN for anything that is not a number or doesn't fit."""
    if not set(map(type, values)) <= {int, float}:
        values = [
            value if type(value) in (int, float) else math.nan for value in values
        ]
    try:
        return np.array(values, dtype=float)
    except OverflowError:
        fitting = (
            v if type(v) is float or abs(v) <= _LARGEST else math.nan for v in values
        )
        return np.array(list(fitting), dtype=float)


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
    # A slot lasts from an event to the next one of its session, or to the session's
    # end. A step gets its seconds from the end of a slot; the rest goes to the interval
    # that is open.
    firsts = np.array([session.start for session in sessions], dtype=int)
    times = np.array(clock, dtype=np.int64)
    ends = np.append(times[1:], times[-1:])
    ends[firsts[1:] - 1] = begins[1:]
    free_us = ends - times
    states = _states(indices, firsts, len(events))
    claimed = _claimed(
        events, indices, firsts, np.where(states == CODES["overhead"], free_us, 0)
    )
    # Before a session's first event: the time since its process was created.
    before = np.zeros_like(free_us)
    before[firsts] = times[firsts] - np.array(begins, dtype=np.int64)
    lengths = np.column_stack([before, free_us - claimed.sum(axis=1), claimed[:, ::-1]])
    codes = np.empty(lengths.shape, dtype=int)
    codes[:] = [CODES["init"], 0, *(CODES[name] for name, _ in reversed(_STEP_PARTS))]
    codes[:, 1] = states
    stops = np.cumsum(lengths.ravel())
    used = lengths.ravel() > 0
    pieces = Pieces(codes.ravel()[used], (stops - lengths.ravel())[used], stops[used])
    begin_at = dict(zip(firsts.tolist(), begins, strict=True))
    for events_lost in lost:
        # No piece spans an event, and lost work starts and stops at events.
        start = clock[events_lost.start]
        stop = begin_at[events_lost.stop]
        within = (pieces.starts_us >= start) & (pieces.stops_us <= stop)
        pieces.codes[within] = CODES["lost_work"]

    return pieces


def _states(
    indices: Mapping[str, Sequence[int]], firsts: np.ndarray, count: int
) -> np.ndarray:
    edges = {index: _EDGES[key] for key in _EDGES for index in indices.get(key, ())}
    opened: list[str] = []
    begins = set(firsts.tolist())
    at = []
    codes = []
    for index in sorted(begins | edges.keys()):
        if index in begins:
            opened = []
        name, edge = edges.get(index, ("", ""))
        # In merged logs of several processes, an interval may be started and stopped
        # repeatedly.
        if edge == "start" and name not in opened:
            opened.append(name)
        elif edge == "stop" and name in opened:
            opened.remove(name)

        at.append(index)
        codes.append(CODES[opened[-1] if opened else "overhead"])

    return np.repeat(np.array(codes, dtype=int), np.diff([*at, count]))


def _claimed(
    events: Sequence[Event],
    indices: Mapping[str, Sequence[int]],
    firsts: np.ndarray,
    free: np.ndarray,
) -> np.ndarray:
    """Returns the microseconds of `_STEP_PARTS` in each slot, ``(events, len(_STEP_PARTS))``.

    Back from its event, a step's parts use up the overhead (``free``) since the
    previous step.
    """
    claimed = np.zeros((len(events), len(_STEP_PARTS)), dtype=np.int64)
    steps = np.array(indices.get("train_step", []), dtype=int)
    wanted = _wanted_us([events[index].get("value") for index in steps.tolist()])
    bounds = np.unique(
        np.concatenate([steps, firsts, *(indices.get(key, []) for key in _STEP_BOUNDS)])
    ).astype(int)
    since = bounds[np.maximum(np.searchsorted(bounds, steps) - 1, 0)]
    since = np.where(np.isin(steps, firsts), steps, since)
    # Nearly all steps are one slot after the previous one; these are handled together.
    alone = steps - since == 1
    free_us = free[since]
    for part in range(len(_STEP_PARTS)):
        taken = np.minimum(wanted[:, part], free_us)
        claimed[since[alone], part] = taken[alone]
        free_us = free_us - taken

    for step, first, wants in zip(
        steps[~alone].tolist(), since[~alone].tolist(), wanted[~alone], strict=True
    ):
        for slot in range(step - 1, first - 1, -1):
            free_us = free[slot]
            for part in range(len(_STEP_PARTS)):
                taken = min(wants[part], free_us)
                claimed[slot, part] = taken
                wants[part] -= taken
                free_us -= taken

    return claimed


def _wanted_us(values: Sequence[Mapping[str, Any] | None]) -> np.ndarray:
    stats = [value or {} for value in values]
    columns = [
        numbers([value.get(field) for value in stats]) for _, field in _STEP_PARTS
    ]
    seconds = np.column_stack(columns)
    usable = (seconds > 0) & (seconds < np.inf)
    return np.rint(np.where(usable, np.minimum(seconds, _LONGEST_S), 0) * 1e6).astype(
        np.int64
    )


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
    ranges = []
    for session in sessions[1:]:
        start = events[session.start]
        value = start.get("value")
        if start["key"] != "session_start" or value is None:
            continue
        step = value.get("resumed_from_step")
        saved = kept_index(events, indices, session.start, step) if step else None
        if saved is None:
            stops = indices.get("init_stop", [])
            saved = stops[0] if stops and stops[0] < sessions[0].stop else 0

        if saved < session.start:
            ranges.append(range(saved, session.start))

    return ranges


def kept_index(
    events: Sequence[Event],
    indices: Mapping[str, Sequence[int]],
    before: int,
    step: int,
) -> int | None:
    """Returns the last event before index ``before`` that a step's checkpoint covers, or None.

    If a finished run is trained longer, everything up to its ``run_stop`` is kept.
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
