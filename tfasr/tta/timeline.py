"""The run's own clock: how far into the run each event happened."""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

Event = dict[str, Any]

_ABSENT = object()


def metadata(event: Event) -> dict[str, Any]:
    """Returns an event's metadata; {} where it has none."""
    return event.get("metadata") or {}


def session_ranges(events: Sequence[Event]) -> Iterator[range]:
    """Yields the index range of each session: the events that one process wrote.

    A session begins at ``session_start``, or where the metadata's ``session`` changes; a log
    that knows neither is one session.
    """
    # Asked for again and again, and of long runs: as little as possible is done per event.
    sessions = [(event.get("metadata") or {}).get("session", 0) for event in events]
    starts = [index for index, event in enumerate(events) if event["key"] == "session_start"]
    if any(session != sessions[0] for session in sessions):
        starts += [i for i in range(1, len(events)) if sessions[i] != sessions[i - 1]]
    ends = sorted({0, *starts, len(events)})
    for first, end in zip(ends, ends[1:], strict=False):
        yield range(first, end)


def clock_us(events: Sequence[Event]) -> list[int]:
    """Returns the run's clock at each event in whole microseconds, 0 at the first event.

    Within a session the clock is the process's monotonic one (``mono_s``), or ``time_ms`` where
    an event has no ``mono_s``; it never runs backwards. Sessions are strung together: a killed
    session lasts until the later of its last event and the ``alive_until_ms`` that the next
    ``session_start`` gives, and the next one begins there, so that downtime is not counted.
    Whole microseconds make sums over intervals exact.

    Args:
        events: all of a run's events in file order.

    Raises:
        ValueError: if an event has no usable time; it says which.
    """
    clock: list[int] = []
    for session in session_ranges(events):
        offset = 0
        if clock:
            silence = _alive_after_us(events[session.start - 1], events[session.start])
            offset = clock[-1] + silence
        clock.extend(offset + passed for passed in _session_us(events, session))
    return clock


def zero_us(events: Sequence[Event], clock: Sequence[int]) -> int:
    """Returns where the paper's clock starts: `clock_us` at the first ``model_creation``.

    A log without ``model_creation`` starts at its first event.

    Source: the paper (arXiv 2003.12366), section 4.1.2.
    """
    for event, now in zip(events, clock, strict=True):
        if event["key"] == "model_creation":
            return now
    return clock[0] if clock else 0


def elapsed_s(events: Sequence[Event]) -> list[float]:
    """Returns the run's clock at each event in seconds since the first ``model_creation``.

    What happened before the model was created has a negative time. Downtime between sessions is
    not counted, see `clock_us`.

    Args:
        events: all of a run's events in file order; the clock of a selection would miss what is
            left out.

    Raises:
        ValueError: if an event has no usable time; it says which.
    """
    clock = clock_us(events)
    zero = zero_us(events, clock)
    return [(now - zero) / 1e6 for now in clock]


def _session_us(events: Sequence[Event], session: range) -> Iterator[int]:
    """Yields microseconds since the session's first event, never backwards."""
    own = events[session.start : session.stop]
    known = [metadata(event).get("mono_s", _ABSENT) for event in own]
    if _ABSENT in known:
        times = [round(_wall_us(event)) for event in own]
    else:
        times = [
            round(_number(event, "mono_s", seconds) * 1e6)
            for event, seconds in zip(own, known, strict=True)
        ]
    # Threads may write in another order than they looked at the clock.
    for latest in accumulate(times, max):
        yield latest - times[0]


def _alive_after_us(last: Event, start: Event) -> int:
    """Returns how long a session is known to have lived after its last event."""
    value = start.get("value")
    alive_until_ms = value.get("alive_until_ms") if isinstance(value, dict) else None
    if alive_until_ms is None:
        return 0
    # Alive after the successor's start it cannot have been: the wall clock was moved.
    until_us = min(_number(start, "alive_until_ms", alive_until_ms) * 1000, _wall_us(start))
    return max(0, round(until_us - _wall_us(last)))


def _wall_us(event: Event) -> float:
    return _number(event, "time_ms", event["time_ms"]) * 1000


def _number(event: Event, name: str, value: Any) -> float:
    if type(value) is float and -math.inf < value < math.inf:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number. Received: {value!r} in event {event}.")
    return value
