"""Where the time went: every second of a run in exactly one named interval."""

import math
from collections.abc import Sequence

from tfasr.tta.timeline import Event, clock_us, metadata, session_ranges, zero_us

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
"""The names of all intervals, in the order in which tables and figures show them."""

_BRACKETED = {"init", "eval_forward", "decode", "checkpoint", "sentences", "logging"}
# Work is lost after one of these (see `lost_ranges`): what a lost step took lies behind it, too.
_STEP_BOUNDS = {"init_stop", "checkpoint_start", "checkpoint_stop"}
# Backwards from a step's event: first the step itself, before it the wait for its batch.
_STEP_PARTS = (("train", "train_s"), ("compile", "compile_s"), ("input_wait", "input_wait_s"))

Piece = tuple[str, int, int]


def interval_seconds(events: Sequence[Event], *, until_s: float | None = None) -> dict[str, float]:
    """Returns the seconds of a run by interval, from its first event to its last.

    - ``init``, ``eval_forward``, ``decode``, ``checkpoint``, ``sentences``, ``logging``: between
      their start and stop events; where two are open, the one opened last has the time.
    - ``train``, ``compile``, ``input_wait``: what each ``train_step`` says of itself.
    - ``lost_work``: everything, of whatever kind, that was done after the checkpoint from which a
      later session resumed, see `lost_ranges`.
    - ``overhead``: what is inside the run and in none of the others.

    Args:
        events: all of a run's events in file order.
        until_s: ignore what happened after this time, in seconds since the model's creation;
            None takes the whole run.

    Returns:
        All names of `INTERVALS` with seconds; together they are the run's time, to the
        microsecond.

    Raises:
        ValueError: if an event has no usable time.
    """
    clock = clock_us(events)
    pieces = interval_pieces(events, clock)
    return sum_pieces(pieces, zero_us=zero_us(events, clock), until_s=until_s)


def sum_pieces(
    pieces: Sequence[Piece], *, zero_us: int = 0, until_s: float | None = None
) -> dict[str, float]:
    """Returns the seconds of pieces by interval, up to ``until_s`` after ``zero_us``."""
    end = math.inf if until_s is None else zero_us + round(until_s * 1e6)
    totals = dict.fromkeys(INTERVALS, 0)
    for name, start, stop in pieces:
        if start >= end:
            break
        totals[name] += (stop if stop < end else end) - start
    return {name: total / 1e6 for name, total in totals.items()}


def interval_pieces(events: Sequence[Event], clock: Sequence[int]) -> list[Piece]:
    """Returns the run cut into pieces that have one interval each.

    Args:
        events: all of a run's events in file order.
        clock: their `clock_us`.

    Returns:
        ``(interval, start_us, stop_us)`` on that clock, in order, without gaps or overlaps;
        none is empty.
    """
    pieces: list[Piece] = []
    for session in session_ranges(events):
        pieces.extend(_session_pieces(events, clock, session))
    losses = [(clock[lost.start], clock[lost.stop]) for lost in lost_ranges(events)]
    if not losses:
        return pieces
    # Pieces never reach over an event, and lost work begins and ends at one.
    return [
        ("lost_work" if any(a <= start and stop <= b for a, b in losses) else name, start, stop)
        for name, start, stop in pieces
    ]


def useful_events(events: Sequence[Event]) -> list[Event]:
    """Returns the events that count: without those of lost work.

    An evaluation in lost work is superseded by the one that the resumed session makes.
    """
    return [event for event, useful in zip(events, useful_mask(events), strict=True) if useful]


def useful_mask(events: Sequence[Event]) -> list[bool]:
    """Returns for each event whether it counts, see `useful_events`."""
    mask = [True] * len(events)
    for lost in lost_ranges(events):
        for index in range(lost.start + 1, lost.stop):
            mask[index] = False
    return mask


def lost_ranges(events: Sequence[Event]) -> list[range]:
    """Returns where work was lost, as ranges of event indices.

    A range starts at the last event whose work was kept and stops at the ``session_start`` that
    resumed: the time between the two and all events strictly between them are lost. The last kept
    event is the ``checkpoint_stop`` of the step that was resumed from. A process that was killed
    after the checkpoint and before that event has left ``checkpoint_start`` or the step's
    ``train_step`` instead. A session that resumed from no step leaves only the first session's
    initialisation.
    """
    ranges = []
    for session in session_ranges(events):
        start = events[session.start]
        value = start.get("value")
        if session.start == 0 or start["key"] != "session_start" or not isinstance(value, dict):
            continue
        step = value.get("resumed_from_step")
        kept = _kept_index(events, session.start, step) if step else None
        if kept is None:
            kept = _first_init_stop(events)
        if kept < session.start:
            ranges.append(range(kept, session.start))
    return ranges


def _kept_index(events: Sequence[Event], before: int, step: int) -> int | None:
    for key in ("checkpoint_stop", "checkpoint_start", "train_step"):
        for index in range(before - 1, -1, -1):
            if events[index]["key"] == key and metadata(events[index]).get("step") == step:
                return index
    return None


def _first_init_stop(events: Sequence[Event]) -> int:
    for index in next(session_ranges(events)):
        if events[index]["key"] == "init_stop":
            return index
    return 0


def _session_pieces(events: Sequence[Event], clock: Sequence[int], session: range) -> list[Piece]:
    pieces: list[Piece] = []
    opened: list[str] = []
    since_step = 0
    last = len(clock) - 1
    for index in session:
        event = events[index]
        key = event["key"]
        name, _, edge = key.rpartition("_")
        if key == "train_step":
            _claim(pieces, since_step, event.get("value"))
            since_step = len(pieces)
        elif name in _BRACKETED and edge == "start" and name not in opened:
            # In logs of several processes each may say that an interval began, and one that
            # it ended.
            opened.append(name)
        elif name in opened and edge == "stop":
            opened.remove(name)
        if key in _STEP_BOUNDS:
            since_step = len(pieces)
        # The time up to the next session's first event is still this session's.
        start, stop = clock[index], clock[index + 1 if index < last else last]
        if stop > start:
            pieces.append((opened[-1] if opened else "overhead", start, stop))
    return pieces


def _claim(pieces: list[Piece], since_step: int, value: object) -> None:
    """Gives a step its parts, backwards from its event, out of the overhead since the last one."""
    stats = value if isinstance(value, dict) else {}
    claims = [
        (part, wanted) for part, field in _STEP_PARTS if (wanted := _whole_us(stats.get(field)))
    ]
    claimed: list[Piece] = []
    for name, start, stop in reversed(pieces[since_step:]):
        while name == "overhead" and claims and stop > start:
            part, wanted = claims[0]
            taken = min(wanted, stop - start)
            claimed.append((part, stop - taken, stop))
            stop -= taken
            claims[:1] = [(part, wanted - taken)] if wanted > taken else []
        if stop > start:
            claimed.append((name, start, stop))
    claimed.reverse()
    pieces[since_step:] = claimed


def _whole_us(seconds: object) -> int:
    if isinstance(seconds, (int, float)) and 0 < seconds < math.inf:
        return round(seconds * 1e6)
    return 0
