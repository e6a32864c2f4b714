"""Checks the form of a run's ledger, before any number in it is used.

`tfasr.verifying.run` calls these functions first. They reject a ledger whose events lack
fields or whose intervals have only one end. Whoever submits a run may have written its
files by hand, so nothing here trusts the type of a value.

Every check raises `UsageError`, which names the file and the event, and shows the value
that was received, cut to 60 characters.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfasr.errors import UsageError
from tfasr.tta.run import Run

# A process's wall clock and its monotonic clock may differ by 2 s plus 1 % of the time:
# a wall clock is corrected now and then, while the monotonic clock never jumps.
CLOCKS_APART = (2.0, 0.01)

# The fields of a line of a ledger, all of them needed.
_FIELDS = {"namespace", "time_ms", "event_type", "key", "value", "metadata"}

# Metadata that says where in training an event belongs.
_PLACE = ("epoch_num", "at_epoch", "step")

# The intervals in which training waits for an evaluation's scores: it decodes itself, or
# another process does.
_WAITING = ("decode", "eval_wait")


def must(holds: bool, problem: str) -> None:
    """Raises `UsageError` with ``problem`` unless a condition holds.

    It is this package's assertion about files: unlike ``assert`` it also works under
    ``python -O``, and `verify` turns it into a line of its list.
    """
    if not holds:
        raise UsageError(problem)


def finite(value: Any) -> float:
    """Returns a number from a file; a `UsageError` for NaN, infinity, text or bool."""
    must(
        type(value) in (int, float) and math.isfinite(value),
        f"{value!r:.60} is not a number",
    )
    return value


def part(content: Any, *names: str, of: str) -> Any:
    """Returns a value from nested objects, as by ``part(saved, "training", "seed")``.

    Args:
        content: what a JSON file contains.
        names: the keys on the way to the value, from the outside in.
        of: the file, for the error.

    Raises:
        UsageError: if a key is missing, or if something on the way is no object.
    """
    for name in names:
        if not isinstance(content, dict) or name not in content:
            raise UsageError(f"{of} lacks {'.'.join(names)}, or an object around it")

        content = content[name]

    return content


def check_fields(events: Sequence[Mapping[str, Any]], file: str) -> None:
    """Checks that each event has all fields of a ledger, with times and a session.

    ``time_ms`` and ``mono_s`` must be numbers greater than 0, since every interval is
    computed from them.
    """
    for number, event in enumerate(events, 1):
        odd = sorted(map(str, _FIELDS ^ event.keys()))
        place = f"event {number} of {file} ({event.get('key')!r:.40})"
        must(not odd, f"{place} has missing or extra fields: {', '.join(odd)}")

        about = event["metadata"]
        must(isinstance(about, dict), f"{place} has no metadata")
        has_session = type(about.get("session")) is int and about["session"] >= 0
        must(has_session, f"{place} has the session {about.get('session')!r:.60}")

        times = {"time_ms": event["time_ms"], "mono_s": about.get("mono_s")}
        for name, value in times.items():
            number = type(value) in (int, float)
            positive = number and math.isfinite(value) and value > 0
            must(positive, f"{place} has {name} = {value!r:.60}, which is no time")

        usual = _event_type(event["key"])
        must(event["event_type"] == usual, f"{place} is no {usual}")
        must(event["namespace"] == "", f"{place} has a namespace")


def _event_type(key: str) -> str:
    """Returns the ``event_type`` that tfasr writes for a key.

    The start of a session or of a worker is a moment, although its key ends like the
    start of an interval.
    """
    if key in ("session_start", "worker_start"):
        return "POINT_IN_TIME"
    if key.endswith("_start"):
        return "INTERVAL_START"
    if key.endswith("_stop"):
        return "INTERVAL_END"

    return "POINT_IN_TIME"


# The values and metadata without which sessions can't be put in order, nor steps
# counted and their time divided. Other keys may have any values here.
_OF_VALUES = {
    "session_start": {
        "session",
        "resumed_from_step",
        "alive_until_ms",
        "ledger_format",
    },
    "train_step": {"utterances", "input_wait_s", "compile_s", "train_s"},
}
_OF_METADATA = {"train_step": {"epoch_num", "step"}}


def check_values(events: Sequence[Mapping[str, Any]], file: str) -> None:
    """Checks that sessions and steps state everything that clocks and counts need.

    A session of a study also declares the plan, the start and the code that it belongs
    to; those are hashes, so they must be text.
    """
    for number, event in enumerate(events, 1):
        place = f"event {number} of {file} ({event['key']!r:.40})"
        for needed, content in (
            (_OF_VALUES, event["value"]),
            (_OF_METADATA, event["metadata"]),
        ):
            names = needed.get(event["key"], set())
            must(
                not names or isinstance(content, dict),
                f"{place} has no object of values",
            )
            missing = sorted(names - content.keys()) if names else []
            must(not missing, f"{place} lacks {', '.join(missing)}")

        if event["key"] == "session_start":
            declared = event["value"].get("declared")
        else:
            declared = None

        if declared is not None:
            check_names(
                declared, {"plan", "start", "code", "plugins"}, f"{place}, declared"
            )
            hashes = [declared[name] for name in ("plan", "start", "code")]
            texts = all(isinstance(value, str) for value in hashes)
            must(texts, f"{place} has a declaration whose hashes are no text")


def check_edges(run: Run) -> None:
    """Checks that each interval of ``tfasr train`` begins and ends at the same place.

    The place is the epoch, evaluation and step in an event's metadata. Without an edge,
    a clock that leaves evaluations out would count other seconds. A session that was
    killed leaves intervals open; one that ended with success doesn't.

    It also checks that each evaluation's result lies within its evaluation, each step
    within its epoch, and that each session created its model at most once.
    """
    line = run.timeline
    for number, session in enumerate(line.sessions):
        open_intervals: dict[str, dict[str, Any]] = {}
        closed: list[tuple[str, dict[str, Any]]] = []
        created = 0
        for index in session:
            key = line.keys[index]
            about = line.metadata[index]
            place = {name: about[name] for name in _PLACE if name in about}
            at = f"event {index + 1} ({key} of session {number})"
            name, _, edge = key.rpartition("_")

            if edge in ("start", "stop") and key != "session_start":
                must(run.events[index]["value"] is None, f"{at} has a value")

            if edge == "start" and key != "session_start":
                must(name not in open_intervals, f"{at}: the one before has no end")
                open_intervals[name] = place
            elif edge == "stop":
                begun = open_intervals.pop(name, None)
                must(begun is not None, f"{at} ends what never began")
                must(begun == place, f"{at} belongs to {place}, its start to {begun}")
                closed.append((name, place))
            elif key in ("tracked_stats", "eval_accuracy"):
                _check_evaluation(at, place, open_intervals, closed)
            elif key == "model_creation":
                created += 1
                must(created == 1, f"{at}: the session's model was created before")
            elif key == "train_step":
                epoch = {"epoch_num": about.get("epoch_num")}
                must(
                    open_intervals.get("epoch") == epoch,
                    f"{at} is not within its epoch",
                )

        if line.keys[session.stop - 1] == "run_stop" and _succeeded(run, session):
            open_names = ", ".join(open_intervals)
            must(
                not open_intervals,
                f"session {number} ended with success, but not its {open_names}",
            )

    models = line.of("model_creation")
    must(len(models) >= 1, "the ledger lacks the model's creation")
    valued = any(run.events[index]["value"] is not None for index in models)
    must(not valued, "the model's creation has a value")
    scored = {
        key: sorted(_epochs(run, key)) for key in ("tracked_stats", "eval_accuracy")
    }
    same = scored["tracked_stats"] == scored["eval_accuracy"]
    must(same, "each evaluation must have its tracked_stats and its eval_accuracy")


def _epochs(run: Run, key: str) -> list[float]:
    """Returns the epochs after which events of a key state an evaluation's result."""
    line = run.timeline
    of_key = set(line.of(key))
    return [epoch for epoch, index in line.evaluated if index in of_key]


def _succeeded(run: Run, session: range) -> bool:
    """Returns whether a session's last event says that the run ended with success."""
    return run.timeline.metadata[session.stop - 1].get("status") == "success"


def _check_evaluation(
    at: str,
    place: dict[str, Any],
    open_intervals: dict[str, dict[str, Any]],
    closed: Sequence[tuple[str, dict[str, Any]]],
) -> None:
    """Checks that an evaluation's result lies in it, after forward pass and decoding.

    A result that was booked earlier would shorten the time to accuracy of every policy.

    Args:
        at: names the event in errors.
        place: the epoch and step to which the event belongs.
        open_intervals: the intervals that have begun by then, with their places.
        closed: name and place of each interval that has ended by then.
    """
    must(open_intervals.get("eval") == place, f"{at} is not within its evaluation")
    waited = [name for name in _WAITING if (name, place) in closed]
    must(bool(waited), f"{at} comes before its decoding ended")

    # An evaluation that another process does has no forward pass in this ledger.
    forward = ("eval_forward", place) in closed or "decode" not in waited
    must(forward, f"{at} comes before its forward pass ended")


def check_ending(name: str, run: Run, session: range, exit_code: Any) -> None:
    """Checks that a session ended with success if, and only if, its process did.

    A process may also be killed by a signal between the end of its session and its own.

    Args:
        name: of the run, for errors.
        run: contains the session.
        session: the indices of its events.
        exit_code: what the study noted: negative for a signal, None if unknown.
    """
    must(
        exit_code is None or type(exit_code) is int,
        f"{name} has the exit code {exit_code!r:.60}",
    )

    stopped = run.timeline.keys[session.stop - 1] == "run_stop"
    finished = stopped and _succeeded(run, session)
    ending = "ends with success" if finished else "does not end with success"
    problem = f"{name} has the exit code {exit_code}, but its ledger {ending}"
    killed = exit_code is not None and exit_code < 0
    must(finished == (exit_code == 0) or (finished and killed), problem)


def check_names(content: Any, names: set[str], place: str) -> None:
    """Checks that a value is an object that has just the given keys."""
    must(isinstance(content, dict), f"{place}: {content!r:.60} is no object")
    odd = sorted(names ^ content.keys())
    must(not odd, f"{place} has missing or extra fields: {', '.join(odd)}")


def must_agree(wall_s: float, mono_s: float, place: str = "") -> None:
    """Checks that a time is about the same by the wall clock and by the monotonic one.

    Args:
        wall_s: seconds by the wall clock.
        mono_s: seconds by the monotonic clock.
        place: begins the error.
    """
    problem = (
        f"{wall_s:.1f} s by the wall clock are {mono_s:.1f} s by the monotonic one"
    )
    allowed_s = CLOCKS_APART[0] + CLOCKS_APART[1] * mono_s
    must(abs(wall_s - mono_s) <= allowed_s, f"{place}{problem}")
