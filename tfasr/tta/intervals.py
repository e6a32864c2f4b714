"""Where the time went: every second of a run in exactly one named interval."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfasr.tta.clock import Event, metadata

INTERVALS = (
    "init",
    "compile",
    "input_wait",
    "train",
    "eval_forward",
    "decode",
    "checkpoint",
    "sentences",
    "logging",
    "overhead",
    "lost_work",
)
"""The names of all intervals, in the order in which tables and figures show them.

- ``init``, ``eval_forward``, ``decode``, ``checkpoint``, ``sentences``, ``logging``: between their
  start and stop events; where two are open, the one opened last has the time. ``init`` also has
  what a process did before its first event, where the ledger says how long that was.
- ``train``, ``compile``, ``input_wait``: what each ``train_step`` says of itself.
- ``lost_work``: everything, of whatever kind, that was done after the checkpoint from which a
  later session resumed, see `lost_ranges`.
- ``overhead``: what is inside the run and in none of the others.
"""

_BRACKETED = {"init", "eval_forward", "decode", "checkpoint", "sentences", "logging"}
_EDGES = {f"{name}_{edge}": (name, edge) for name in _BRACKETED for edge in ("start", "stop")}
# Work is lost after one of these (see `lost_ranges`): what a lost step took lies behind it, too.
_STEP_BOUNDS = {"init_stop", "checkpoint_start", "checkpoint_stop"}
# Backwards from a step's event: first the step itself, before it the wait for its batch.
_STEP_PARTS = (("train", "train_s"), ("compile", "compile_s"), ("input_wait", "input_wait_s"))

Piece = tuple[str, int, int]


def interval_pieces(
    events: Sequence[Event],
    clock: Sequence[int],
    begins: Sequence[int],
    sessions: Sequence[range],
    lost: Sequence[range],
) -> list[Piece]:
    """Returns the run cut into pieces that have one of `INTERVALS` each.

    Args:
        events: all of a run's events in file order.
        clock: their times, of `tfasr.tta.clock.clock_us`.
        begins: where the sessions begin, likewise.
        sessions: their `tfasr.tta.clock.session_ranges`.
        lost: their `lost_ranges`.

    Returns:
        ``(interval, start_us, stop_us)`` on that clock from 0 to the last event, in order,
        without gaps or overlaps; none is empty.
    """
    pieces: list[Piece] = []
    ends = [*begins[1:], *clock[-1:]]
    for session, begin, end in zip(sessions, begins, ends, strict=True):
        if clock[session.start] > begin:
            pieces.append(("init", begin, clock[session.start]))
        _add_session(pieces, events, [*clock[session.start : session.stop], end], session)
    if not lost:
        return pieces
    begin_at = {session.start: begin for session, begin in zip(sessions, begins, strict=True)}
    losses = [(clock[one.start], begin_at[one.stop]) for one in lost]
    # Pieces never reach over an event, and lost work begins and ends at one.
    return [
        ("lost_work" if any(a <= start and stop <= b for a, b in losses) else name, start, stop)
        for name, start, stop in pieces
    ]


def lost_ranges(
    events: Sequence[Event], indices: Mapping[str, Sequence[int]], sessions: Sequence[range]
) -> list[range]:
    """Returns where work was lost, as ranges of event indices.

    A range starts at the last event whose work was kept and stops at the ``session_start`` that
    resumed: the time between the two and all events strictly between them are lost. The last kept
    event is the ``checkpoint_stop`` of the step that was resumed from. A process that was killed
    after the checkpoint and before that event has left ``checkpoint_start`` or the step's
    ``train_step`` instead. A session that resumed from no step leaves only the first session's
    initialisation.

    Args:
        events: all of a run's events in file order.
        indices: where events of each key are.
        sessions: their `tfasr.tta.clock.session_ranges`.
    """
    ranges = []
    for session in sessions[1:]:
        start = events[session.start]
        value = start.get("value")
        if start["key"] != "session_start" or not isinstance(value, dict):
            continue
        step = value.get("resumed_from_step")
        kept = kept_index(events, indices, session.start, step) if step else None
        if kept is None:
            stops = indices.get("init_stop", [])
            kept = stops[0] if stops and stops[0] < sessions[0].stop else 0
        if kept < session.start:
            ranges.append(range(kept, session.start))
    return ranges


def kept_index(
    events: Sequence[Event], indices: Mapping[str, Sequence[int]], before: int, step: int
) -> int | None:
    """Returns which event before another was the last whose work a checkpoint kept.

    Args:
        events: all of a run's events in file order.
        indices: where events of each key are.
        before: the index of the ``session_start`` that resumed.
        step: from which.
    """
    for key in ("checkpoint_stop", "checkpoint_start", "train_step"):
        for index in reversed(indices.get(key, [])):
            if index < before and metadata(events[index]).get("step") == step:
                return index
    return None


def _add_session(
    pieces: list[Piece], events: Sequence[Event], times: Sequence[int], session: range
) -> None:
    """Adds a session's pieces; ``times`` are those of its events, and of its end."""
    opened: list[str] = []
    since_step = len(pieces)
    for place, index in enumerate(session):
        key = events[index]["key"]
        if key == "train_step":
            _claim(pieces, since_step, events[index].get("value"))
            since_step = len(pieces)
        elif key in _EDGES:
            name, edge = _EDGES[key]
            # In logs of several processes each may say that an interval began, and one that
            # it ended.
            if edge == "start" and name not in opened:
                opened.append(name)
            elif edge == "stop" and name in opened:
                opened.remove(name)
        if key in _STEP_BOUNDS:
            since_step = len(pieces)
        start, stop = times[place], times[place + 1]
        if stop > start:
            pieces.append((opened[-1] if opened else "overhead", start, stop))


def _claim(pieces: list[Piece], since_step: int, value: Any) -> None:
    """Gives a step its parts, backwards from its event, out of the overhead since the last one."""
    stats = value if isinstance(value, dict) else {}
    claims = [
        (part, wanted) for part, field in _STEP_PARTS if (wanted := _whole_us(stats.get(field)))
    ]
    claimed: list[Piece] = []
    while len(pieces) > since_step and claims:
        name, start, stop = pieces.pop()
        while name == "overhead" and claims and stop > start:
            part, wanted = claims[0]
            taken = min(wanted, stop - start)
            claimed.append((part, stop - taken, stop))
            stop -= taken
            claims[:1] = [(part, wanted - taken)] if wanted > taken else []
        if stop > start:
            claimed.append((name, start, stop))
    pieces.extend(reversed(claimed))


def _whole_us(seconds: Any) -> int:
    if type(seconds) in (float, int) and 0 < seconds < math.inf:
        return round(seconds * 1e6)
    return 0
