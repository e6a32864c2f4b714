"""Where the time went: every second of a run in exactly one named interval."""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Event = dict[str, Any]
_ABSENT = object()
# Microseconds have to fit into 64 bits, with room for sums.
_LONGEST_S = 1e12
_LARGEST = int(np.finfo(float).max)
INTERVALS = (
    "init", "compile", "input_wait", "train", "averaging", "swap", "eval_forward", "decode",
    "eval_wait", "checkpoint", "sentences", "logging", "overhead", "lost_work",
)  # fmt: skip
"""The names of all intervals, in the order in which tables and figures show them.

- ``train``, ``compile``, ``input_wait``: from the fields of each ``train_step``.
- ``lost_work``: everything after the checkpoint from which a later session resumed, see
  `lost_ranges`.
- ``overhead``: what is inside the run and in none of the others.
- all others: between their start and stop events; where two are open, the one opened last has the
  time. ``init`` also has a process's time before its first event, if the ledger says it.
"""
EVALUATION = ("swap", "eval_forward", "decode", "eval_wait")
"""The intervals of training time that an evaluation takes."""
Piece = tuple[str, int, int]
_CODES = {name: code for code, name in enumerate(INTERVALS)}
_BRACKETED = {"init", "averaging", *EVALUATION, "checkpoint", "sentences", "logging"}
_EDGES = {f"{name}_{edge}": (name, edge) for name in _BRACKETED for edge in ("start", "stop")}
# Work is lost after one of these (see `lost_ranges`): what a lost step took lies behind it, too.
_STEP_BOUNDS = ("init_stop", "checkpoint_start", "checkpoint_stop")
# Backwards from a step's event: first the step itself, before it the wait for its batch.
_STEP_PARTS = (("train", "train_s"), ("compile", "compile_s"), ("input_wait", "input_wait_s"))


def metadata(event: Mapping[str, Any]) -> dict[str, Any]:
    about = event.get("metadata")
    return about if isinstance(about, dict) else {}


def session_ranges(keys: Sequence[str], about: Sequence[dict[str, Any]]) -> list[range]:
    """Returns the index range of each session, the events that one process wrote.

    A session begins at ``session_start`` or where the metadata's ``session`` changes.
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
    """Returns the run's clock at each event, and where each session begins, in whole microseconds.

    It is 0 where the first process was created, if the ledger says when (``process_age_s``),
    otherwise at the first event. Within a session it is the process's monotonic clock (``mono_s``),
    or ``time_ms`` if an event has no ``mono_s``; it never runs backwards. Downtime isn't counted: a
    killed session lasts until its last event or the next ``session_start``'s ``alive_until_ms``,
    whichever is later, where the next one begins with the creation of its process. ValueError names
    an event without a usable time.
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
            # Created before its predecessor's end, it counts from there.
            apart = max(0, round(_wall_us(first) - _wall_us(last)) - silence)
            age = min(age, apart)
            begins[-1] = clock[-1] + silence
        offset = begins[-1] + age
        clock.extend((offset + _session_us(events, about, session)).tolist())
    return clock, begins


def _session_us(
    events: Sequence[Event], about: Sequence[dict[str, Any]], session: range
) -> np.ndarray:
    known = [facts.get("mono_s", _ABSENT) for facts in about[session.start : session.stop]]
    if _ABSENT in known:
        times = [round(_wall_us(events[index])) for index in session]
    else:
        # Nearly always all are floats; only where not, each is looked at.
        usual = np.array(known) if set(map(type, known)) == {float} else np.array([np.nan])
        if (np.abs(usual) < _LONGEST_S).all():
            times = np.rint(usual * 1e6).astype(np.int64)
        else:
            times = [
                round(_number(events[index], "mono_s", seconds, _LONGEST_S) * 1e6)
                for index, seconds in zip(session, known, strict=True)
            ]
    # Threads may write in another order than they looked at the clock.
    return np.maximum.accumulate(np.array(times, dtype=np.int64)) - times[0]


def _age_us(start: Event) -> int:
    age_s = metadata(start).get("process_age_s")
    if age_s is None:
        return 0
    return max(0, round(_number(start, "process_age_s", age_s, _LONGEST_S) * 1e6))


def _alive_after_us(last: Event, start: Event) -> int:
    value = start.get("value")
    alive_until_ms = value.get("alive_until_ms") if isinstance(value, dict) else None
    if alive_until_ms is None:
        return 0
    # It can't have been alive after the next session's start: the wall clock was moved.
    alive_us = _number(start, "alive_until_ms", alive_until_ms, 1e3 * _LONGEST_S) * 1000
    return max(0, round(min(alive_us, _wall_us(start)) - _wall_us(last)))


def _wall_us(event: Event) -> float:
    return _number(event, "time_ms", event["time_ms"], 1e3 * _LONGEST_S) * 1000


def _number(event: Event, name: str, value: Any, most: float) -> float:
    usual = type(value) in (float, int)
    if not usual or abs(value) > most or not math.isfinite(value):
        raise ValueError(
            f"{name} must be a finite number of usual size. Received: {value!r} in event {event}."
        )
    return value


_LARGEST_AMOUNT = 1e15  # of an amount in a step


class Steps:
    """The steps of a run without those of lost work, in the order of their events.

    ``places`` counts each session's steps from 0; ``at_us`` is the run's clock at a step's end.
    """

    def __init__(
        self,
        indices: Sequence[int],
        places: Sequence[int],
        values: Sequence[Any],
        at_us: Sequence[int],
    ):
        self.indices = list(indices)
        self.places = np.array(places, dtype=int)
        self.at_us = np.array(at_us, dtype=np.int64)
        self._values = [value if isinstance(value, dict) else {} for value in values]
        self._columns: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.indices)

    def column(self, name: str) -> np.ndarray:
        """Returns a number for each step, NaN if the ledger has none."""
        if name not in self._columns:
            self._columns[name] = numbers([value.get(name) for value in self._values])
        return self._columns[name]

    def amounts(self, name: str) -> np.ndarray:
        """Returns an amount for each step, 0 unless the ledger has one of usual size."""
        values = self.column(name)
        usable = (values >= 0) & (values < _LARGEST_AMOUNT)
        return values if usable.all() else np.where(usable, values, 0.0)

    def states(self, name: str) -> bool:
        """Whether any step has a value of that name: other programs' logs have fewer."""
        return any(name in value for value in self._values)

    @cached_property
    def compiled(self) -> np.ndarray:
        return self.amounts("compile_s") > 0


def numbers(values: list[Any]) -> np.ndarray:
    """Returns values as floats; NaN for what is not a number or too large for a float."""
    if not set(map(type, values)) <= {int, float}:
        values = [value if type(value) in (int, float) else math.nan for value in values]
    try:
        return np.array(values, dtype=float)
    except OverflowError:
        return np.array(
            [
                math.nan if type(value) is int and abs(value) > _LARGEST else value
                for value in values
            ],
            float,
        )


@dataclass(frozen=True)
class Pieces:
    """A run cut into pieces, none empty: arrays of one length, without gaps or overlaps."""

    codes: np.ndarray  # each piece's place in `INTERVALS`
    starts_us: np.ndarray  # on the run's clock, the first at 0
    stops_us: np.ndarray  # the last is the run's end


def interval_pieces(
    events: Sequence[Event],
    indices: Mapping[str, Sequence[int]],
    clock: Sequence[int],
    begins: Sequence[int],
    sessions: Sequence[range],
    lost: Sequence[range],
) -> Pieces:
    # What follows each event until the next one of its session, or the session's end, is a slot:
    # what its steps claim, from its end, and before that the rest.
    firsts = np.array([session.start for session in sessions], dtype=int)
    times = np.array(clock, dtype=np.int64)
    ends = np.append(times[1:], times[-1:])
    ends[firsts[1:] - 1] = begins[1:]
    left = ends - times
    states = _states(indices, firsts, len(events))
    claimed = _claimed(events, indices, firsts, np.where(states == _CODES["overhead"], left, 0))
    # Before a session's first event its process was created.
    before = np.zeros_like(left)
    before[firsts] = times[firsts] - np.array(begins, dtype=np.int64)
    lengths = np.column_stack([before, left - claimed.sum(axis=1), claimed[:, ::-1]])
    codes = np.empty(lengths.shape, dtype=int)
    codes[:] = [_CODES["init"], 0, *(_CODES[name] for name, _ in reversed(_STEP_PARTS))]
    codes[:, 1] = states
    stops = np.cumsum(lengths.ravel())
    used = lengths.ravel() > 0
    pieces = Pieces(codes.ravel()[used], (stops - lengths.ravel())[used], stops[used])
    begin_at = dict(zip(firsts.tolist(), begins, strict=True))
    for events_lost in lost:
        # Pieces never reach over an event, and lost work begins and ends at one.
        start, stop = clock[events_lost.start], begin_at[events_lost.stop]
        within = (pieces.starts_us >= start) & (pieces.stops_us <= stop)
        pieces.codes[within] = _CODES["lost_work"]
    return pieces


def _states(indices: Mapping[str, Sequence[int]], firsts: np.ndarray, count: int) -> np.ndarray:
    edges = {index: _EDGES[key] for key in _EDGES for index in indices.get(key, ())}
    opened: list[str] = []
    begins = set(firsts.tolist())
    at, codes = [], []
    for index in sorted(begins | edges.keys()):
        if index in begins:
            opened = []
        name, edge = edges.get(index, ("", ""))
        # In logs of several processes each may say that an interval began, and one that it ended.
        if edge == "start" and name not in opened:
            opened.append(name)
        elif edge == "stop" and name in opened:
            opened.remove(name)
        at.append(index)
        codes.append(_CODES[opened[-1] if opened else "overhead"])
    return np.repeat(np.array(codes, dtype=int), np.diff([*at, count]))


def _claimed(
    events: Sequence[Event],
    indices: Mapping[str, Sequence[int]],
    firsts: np.ndarray,
    free: np.ndarray,
) -> np.ndarray:
    """Returns the microseconds that steps take of each slot, by `_STEP_PARTS`.

    A step takes its parts backwards from its event, out of the overhead (``free``) since the last
    one.
    """
    claimed = np.zeros((len(events), len(_STEP_PARTS)), dtype=np.int64)
    steps = np.array(indices.get("train_step", []), dtype=int)
    wanted = _wanted_us([events[index].get("value") for index in steps.tolist()])
    bounds = np.unique(
        np.concatenate([steps, firsts, *(indices.get(key, []) for key in _STEP_BOUNDS)])
    ).astype(int)
    since = bounds[np.maximum(np.searchsorted(bounds, steps) - 1, 0)]
    since = np.where(np.isin(steps, firsts), steps, since)
    # Nearly always there is one slot between two steps: all of these at once.
    alone = steps - since == 1
    left = free[since]
    for part in range(len(_STEP_PARTS)):
        taken = np.minimum(wanted[:, part], left)
        claimed[since[alone], part] = taken[alone]
        left = left - taken
    for step, first, wants in zip(
        steps[~alone].tolist(), since[~alone].tolist(), wanted[~alone], strict=True
    ):
        for slot in range(step - 1, first - 1, -1):
            left = free[slot]
            for part in range(len(_STEP_PARTS)):
                taken = min(wants[part], left)
                claimed[slot, part] = taken
                wants[part] -= taken
                left -= taken
    return claimed


def _wanted_us(values: Sequence[object]) -> np.ndarray:
    stats = [value if isinstance(value, dict) else {} for value in values]
    columns = [numbers([value.get(field) for value in stats]) for _, field in _STEP_PARTS]
    seconds = np.column_stack(columns)
    usable = (seconds > 0) & (seconds < np.inf)
    return np.rint(np.where(usable, np.minimum(seconds, _LONGEST_S), 0) * 1e6).astype(np.int64)


def lost_ranges(
    events: Sequence[Event], indices: Mapping[str, Sequence[int]], sessions: Sequence[range]
) -> list[range]:
    """Returns where work was lost, as ranges of event indices.

    A range starts at the last event whose work a checkpoint saved and stops at the
    ``session_start`` that resumed; all between is lost. That event is the ``checkpoint_stop`` of
    the step that was resumed from, or ``checkpoint_start`` or the step's ``train_step`` if the
    process was killed before. A session that resumed from no step leaves only the first session's
    initialisation.
    """
    ranges = []
    for session in sessions[1:]:
        start = events[session.start]
        value = start.get("value")
        if start["key"] != "session_start" or not isinstance(value, dict):
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
    events: Sequence[Event], indices: Mapping[str, Sequence[int]], before: int, step: int
) -> int | None:
    """Returns the last event before another whose work the checkpoint of a step saved, or None.

    A run that is trained longer keeps all until the ``run_stop`` with which it had finished.
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
