"""A run cut into intervals event by event, as `tfasr.ledger.intervals` describes it in words."""

import math

BRACKETED = {"init", "eval_forward", "decode", "checkpoint", "sentences", "logging"}
STEP_BOUNDS = {"init_stop", "checkpoint_start", "checkpoint_stop"}
STEP_PARTS = (
    ("train", "train_s"),
    ("compile", "compile_s"),
    ("input_wait", "input_wait_s"),
)


def pieces_of(timeline):
    """Returns ``(interval, start_us, stop_us)`` of each piece of a timeline."""
    clock = timeline.clock_us
    begins = timeline.session_begins_us
    pieces = []
    ends = [*begins[1:], clock[-1]]

    for session, begin, end in zip(timeline.sessions, begins, ends, strict=True):
        if clock[session.start] > begin:
            pieces.append(("init", begin, clock[session.start]))

        pieces += session_pieces(timeline, session, end)

    begin_at = {
        s.start: begin for s, begin in zip(timeline.sessions, begins, strict=True)
    }
    losses = [(clock[one.start], begin_at[one.stop]) for one in timeline.lost]
    return [
        (
            "lost_work" if any(a <= start and stop <= b for a, b in losses) else name,
            start,
            stop,
        )
        for name, start, stop in pieces
    ]


def session_pieces(timeline, session, end):
    pieces = []
    opened = []
    since_step = 0
    times = [*timeline.clock_us[session.start : session.stop], end]

    for place, index in enumerate(session):
        key = timeline.keys[index]
        name, _, edge = key.rpartition("_")
        if key == "train_step":
            claim(pieces, since_step, timeline.events[index]["value"])
        elif name in BRACKETED and edge == "start" and name not in opened:
            opened.append(name)
        elif name in BRACKETED and edge == "stop" and name in opened:
            opened.remove(name)

        if key == "train_step" or key in STEP_BOUNDS:
            since_step = len(pieces)

        if times[place + 1] > times[place]:
            name = opened[-1] if opened else "overhead"
            pieces.append((name, times[place], times[place + 1]))

    return pieces


def claim(pieces, since_step, value):
    """Gives a step its parts, backwards from its event, out of the overhead since the
    last one.
    """
    claims = [[part, whole_us(value.get(field))] for part, field in STEP_PARTS]
    claimed = []
    while len(pieces) > since_step:
        name, start, stop = pieces.pop()
        for one in claims if name == "overhead" else ():
            taken = min(one[1], stop - start)
            if taken:
                claimed.append((one[0], stop - taken, stop))
                one[1] -= taken
                stop -= taken

        if stop > start:
            claimed.append((name, start, stop))

    pieces.extend(reversed(claimed))


def whole_us(seconds):
    usable = isinstance(seconds, float | int) and 0 < seconds < math.inf
    return round(seconds * 1e6) if usable else 0
