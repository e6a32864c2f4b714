"""Whether one process at a time wrote a ledger."""

from collections.abc import Sequence

from tfasr.tta.timeline import Event, metadata


def second_writer(events: Sequence[Event]) -> str | None:
    """Returns what shows that two processes wrote a ledger at once, or None where nothing does.

    A process numbers its steps upwards and has a session of its own, whose number is larger than
    those before. A lock keeps a second process out; a file system that has no locks does not, nor
    does who copies two ledgers into one.

    Args:
        events: all of a run's events in file order.
    """
    session, step, began = None, 0, set()
    for number, event in enumerate(events, start=1):
        about = metadata(event)
        own = about.get("session")
        if event["key"] == "session_start":
            step = 0
            if own is not None and own in began:
                return f"event {number} begins session {own}, which had begun before"
            began.add(own)
        if own != session:
            if None not in (session, own) and own < session:
                return f"event {number} is of session {own} and follows one of session {session}"
            session, step = own, 0
        if event["key"] == "train_step" and isinstance(about.get("step"), int):
            if about["step"] <= step:
                return f"event {number} is step {about['step']} and follows step {step}"
            step = about["step"]
    return None
