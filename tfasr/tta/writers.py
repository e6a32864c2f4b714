"""Whether one process at a time wrote a ledger."""

from itertools import pairwise

from tfasr.tta.timeline import Timeline


def second_writer(timeline: Timeline) -> str | None:
    """Returns what shows that two processes wrote a ledger at once, or None where nothing does.

    A process numbers its steps upwards and has a session of its own, whose number is larger than
    those before. A lock keeps a second process out; a file system that has no locks does not, nor
    does who copies two ledgers into one.
    """
    if _as_usual(timeline):
        return None
    session, step, began = None, 0, set()
    for number, (key, about) in enumerate(zip(timeline.keys, timeline.metadata, strict=True), 1):
        own = about.get("session")
        if key == "session_start":
            step = 0
            if own is not None and own in began:
                return f"event {number} begins session {own}, which had begun before"
            began.add(own)
        if own != session:
            if None not in (session, own) and own < session:
                return f"event {number} is of session {own} and follows one of session {session}"
            session, step = own, 0
        if key == "train_step" and isinstance(about.get("step"), int):
            if about["step"] <= step:
                return f"event {number} is step {about['step']} and follows step {step}"
            step = about["step"]
    return None


def _as_usual(timeline: Timeline) -> bool:
    sessions = [about.get("session") for about in timeline.metadata]
    if not sessions:
        return True
    if len(timeline.of("session_start")) > 1 or sessions.count(sessions[0]) != len(sessions):
        return False
    steps = [timeline.metadata[index].get("step") for index in timeline.of("train_step")]
    return set(map(type, steps)) <= {int} and all(a < b for a, b in pairwise([0, *steps]))
