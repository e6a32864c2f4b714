"""The run's own clock: which process wrote an event, and how far into the run it happened."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Event = dict[str, Any]

_ABSENT = object()
# Microseconds have to fit into 64 bits, with room for sums.
_LONGEST_S = 1e12


def metadata(event: Event) -> dict[str, Any]:
    """Returns an event's metadata; {} where it has none."""
    return event.get("metadata") or {}


def session_ranges(keys: Sequence[str], about: Sequence[dict[str, Any]]) -> list[range]:
    """Returns the index range of each session: the events that one process wrote.

    A session begins at ``session_start``, or where the metadata's ``session`` changes; a log
    that knows neither is one session.
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
    """Returns the run's clock at each event, and where each session begins, in microseconds.

    It is 0 where the first process was created, if the ledger says when (``process_age_s``),
    otherwise at the first event. Within a session the clock is the process's monotonic one
    (``mono_s``), or ``time_ms`` where an event has no ``mono_s``; it never runs backwards.
    Sessions are strung together: a killed session lasts until the later of its last event and the
    ``alive_until_ms`` that the next ``session_start`` gives; there the next one begins with the
    creation of its process, so that downtime is not counted. Whole microseconds make sums over
    intervals exact.

    Raises:
        ValueError: if an event has no usable time; it says which.
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
    # Alive after the successor's start it cannot have been: the wall clock was moved.
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
