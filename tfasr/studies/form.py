"""Checks the form of what runs and studies wrote, before any number in it is used.

`verify` calls these functions first. They reject a ledger whose events lack fields or
whose intervals have only one end, a sealed plan with an unknown field, and a list of
starts in an impossible order. Whoever submits a study may have written its files by
hand, so nothing here trusts the type of a value.

Every check raises `UsageError`, which names the file and the event, and shows the value
that was received, cut to 60 characters.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from types import NoneType
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.config import to_json
from tfasr.ledger.declared import AGAIN
from tfasr.studies.plan import (
    SEALED_FORMAT,
    ExperimentConfig,
    Plan,
    StudyConfig,
    allowed_levels,
    plan_of,
)
from tfasr.tta.run import Run

# A process's wall clock and its monotonic clock may differ by 2 s plus 1 % of the time:
# a wall clock is corrected now and then, while the monotonic clock never jumps.
CLOCKS_APART = (2.0, 0.01)

# The fields of a line of a ledger, all of them needed.
_FIELDS = {"namespace", "time_ms", "event_type", "key", "value", "metadata"}

# The fields of a sealed plan (`plan.sealed_content` writes it), of each of its runs, and
# of what it declares about each experiment's training (`plan.check_runs`).
_PLAN = {
    "format",
    "study",
    "experiments",
    "runs",
    "trained",
    "until",
    "looks",
    "data",
    "code",
    "plugins",
    "longest_wait_s",
}
_RUN = {"experiment", "seed", "folder", "statements"}
_TRAINED = {"targets", "target_window", "decoder", "second_decoder", "division"}

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
        whole = type(about.get("session")) is int and about["session"] >= 0
        must(whole, f"{place} has the session {about.get('session')!r:.60}")

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
            _check_names(
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
            left = ", ".join(open_intervals)
            must(
                not open_intervals,
                f"session {number} ended with success, but not its {left}",
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


def check_plan(sealed: dict[str, Any], file: str) -> Plan:
    """Checks that a sealed plan has every field, each of its kind; returns the plan.

    Also what follows from other fields is compared: looks and their levels, seeds of
    each experiment, the order in which experiments take turns, and the last statements
    of each run. A plan that was made by hand could otherwise allow more looks than it
    declares.

    Args:
        sealed: the content of the file.
        file: its name, for errors.

    Raises:
        UsageError: names the first field that is missing, unknown or contradicts another.
    """
    _check_names(sealed, _PLAN, file)
    made = sealed["format"]
    must(
        type(made) is int and made == SEALED_FORMAT,
        f"{file} has the format {made!r:.60}",
    )
    _check_names(
        sealed["study"], {f.name for f in fields(StudyConfig)}, f"{file}, study"
    )

    for name, experiment in _objects(sealed, "experiments", file):
        _check_names(
            experiment, {f.name for f in fields(ExperimentConfig)}, f"{file}, {name}"
        )

    for name, declared in _objects(sealed, "trained", file):
        _check_names(declared, _TRAINED, f"{file}, trained {name}")

    must(isinstance(sealed["runs"], list), f"{file}: its runs are no list")

    for run in sealed["runs"]:
        _check_names(run, _RUN, f"{file}, a run")

    _check_names(sealed["code"], {"tfasr", "files"}, f"{file}, code")
    listed = sealed["study"]["experiments"]
    known = isinstance(listed, list) and all(
        map(sealed["experiments"].__contains__, listed)
    )
    must(known, f"{file} describes other experiments than its study lists")

    try:
        plan = plan_of(sealed)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error

    names = list(plan.config.experiments)

    for name in ("experiments", "trained"):
        must(
            sorted(sealed[name]) == sorted(names),
            f"{file}: its {name} are not the study's",
        )

    must(
        to_json(plan.config) == sealed["study"],
        f"{file}: a value of study has another type",
    )
    must(
        sealed["until"] in ("", "decided"),
        f"{file} has until = {sealed['until']!r:.60}",
    )
    must(
        finite(sealed["longest_wait_s"]) >= 0,
        f"{file}: longest_wait_s must be 0 or more",
    )
    must(
        sealed["looks"] == allowed_levels(plan.config),
        f"{file}: its looks have other levels",
    )

    seeds = {
        name: list(experiment.seeds or plan.config.seeds)
        for name, experiment in plan.experiments.items()
    }

    for name in names:
        planned = [run.seed for run in plan.runs if run.experiment == name]
        must(
            planned == seeds[name],
            f"{file}: the runs of {name} have other seeds than the study",
        )

    turns = list(dict.fromkeys(run.experiment for run in plan.runs))
    must(
        turns == names,
        f"{file}: its experiments take turns in another order than the study's",
    )

    for run in plan.runs:
        experiment = plan.experiments[run.experiment]
        # `load_plan` puts these last, so that no other binding can override a run's
        # seed.
        last = [
            *experiment.bindings,
            f"TrainingConfig.seed = {run.seed}",
            *experiment.environment,
        ]
        statements = plan.identity["runs"][run.folder.as_posix()]
        ends = statements[len(statements) - len(last) :] == last
        must(
            ends,
            f"{file}: the statements of {run.name} don't end with its bindings and seed",
        )

    return plan


def _objects(sealed: dict[str, Any], name: str, file: str) -> list[tuple[str, Any]]:
    """Returns the entries of a field that must be an object of objects."""
    must(isinstance(sealed[name], dict), f"{file}: its {name} are no object")
    return list(sealed[name].items())


def _check_names(content: Any, names: set[str], place: str) -> None:
    """Checks that a value is an object that has just the given keys."""
    must(isinstance(content, dict), f"{place}: {content!r:.60} is no object")
    odd = sorted(names ^ content.keys())
    must(not odd, f"{place} has missing or extra fields: {', '.join(odd)}")


# The fields of each kind of line in a study's list of starts (`ledger.declared.Starts`
# writes them).
_LISTED = {
    "plan": {"file", "sha256", "changes"},
    "start": {"experiment", "seed", "plan", "ledger"},
    "begun": {"experiment", "seed", "ledger"},
    "end": {"experiment", "seed", "exit_code", "ledger"},
    "host": {"host", "description", "clock_ahead_s"},
    "lost": {"experiment", "seed", "host"},
    "abandoned": {"experiment", "seed", "host", "folder", "ledger", "reason"},
    "again": {"experiment", "seed", "taken", "samples", "ledger"},
}

# Trainings on hosts of a cluster have these fields too, in lines of the kinds below.
_OF_HOSTS = {"host", "clock"}
_TIMED = ("start", "begun", "end")

_TYPES = {
    "file": str,
    "sha256": str,
    "changes": list,
    "experiment": str,
    "seed": int,
    "plan": str,
    "exit_code": (int, NoneType),
    "taken": float,
    "samples": str,
    "ledger": (dict, NoneType),
    "host": str,
    "clock": dict,
    "description": dict,
    "clock_ahead_s": (int, float),
    "folder": str,
    "reason": str,
}


def check_starts(events: Sequence[Mapping[str, Any]], file: str) -> None:
    """Checks a study's list of starts: its events' fields, order, hosts and clocks.

    Within one session of the list, a host trains one run after the other, and the study
    notes the end of each. Only the last one of a host may lack its end, if the study
    was killed.
    """
    check_fields(events, file)
    for number, event in enumerate(events, 1):
        _check_listed(event, f"event {number} of {file} ({event['key']!r:.40})")

    must(events[0]["metadata"]["session"] == 0, f"{file} doesn't begin with session 0")
    # Lines of the study's process follow each other, so its two clocks can be compared.
    order = _Order(file)

    for before, event in pairwise(events):
        risen = event["metadata"]["session"] - before["metadata"]["session"]
        must(
            risen in (0, 1),
            f"{file}: session {event['metadata']['session']} is out of order",
        )
        if risen:
            order.begin_session()
        else:
            _check_apart(before, event, file)

        order.check(event["key"], event["value"])


def _check_listed(event: Mapping[str, Any], place: str) -> None:
    """Checks that a line has the fields of its key, each of its type."""
    key = event["key"]
    value = event["value"]
    must(key in _LISTED, f"{place} has an unknown key")
    names = set(_LISTED[key])
    if key in _TIMED and isinstance(value, dict) and _OF_HOSTS & value.keys():
        names |= _OF_HOSTS

    _check_names(value, names, place)

    for name in names:
        right = isinstance(value[name], _TYPES[name]) and not isinstance(
            value[name], bool
        )
        must(right, f"{place} has {name} = {value[name]!r:.60}")

    if key == "plan":
        usual = re.fullmatch(r"sealed_plan(_\d+)?\.json", value["file"])
        must(usual is not None, f"{place} has file = {value['file']!r:.60}")

    if "host" in value:
        must(value["host"] != "", f"{place} has a host without a name")
    if "clock" in value:
        _check_names(value["clock"], {"time_ms", "mono_s"}, f"{place}, clock")
        finite(value["clock"]["time_ms"])
        finite(value["clock"]["mono_s"])

    if "reason" in value:
        must(
            value["reason"] in AGAIN,
            f"{place} has an unknown reason {value['reason']!r:.60}",
        )

    if "clock_ahead_s" in value:
        finite(value["clock_ahead_s"])
    if value.get("ledger") is not None:
        _check_names(value["ledger"], {"chain", "bytes"}, place)

        mark = value["ledger"]
        right = isinstance(mark["chain"], str) and type(mark["bytes"]) is int
        must(right, f"{place} has a mark {value['ledger']!r:.60} of its ledger")


class _Order:
    """Checks which trainings run at the same time, and that a seed stays on one host.

    `check` is called with each line after the first, `begin_session` before the first
    line that another process of the study wrote. What ran before then has ended, with
    or without a line.

    A test by pairs compares runs of one seed, which is fair only if one host trained
    them all. So a seed may change its host only if its runs so far were abandoned
    together.
    """

    def __init__(self, file: str):
        self._file = file
        # The run (experiment and seed) at work on each host; "" is the study's machine.
        self._running: dict[str, tuple[str, int]] = {}
        # Hosts whose description the current session of the study has noted.
        self._described: set[str] = set()
        # The host of each seed.
        self._host_of: dict[int, str] = {}
        # The experiments of each seed that have begun since it was last abandoned.
        self._begun: dict[int, set[str]] = {}
        # Disturbed runs that were trained again.
        self._repeated: set[tuple[str, int]] = set()
        # Seeds that were abandoned and have not begun again.
        self._left: set[int] = set()

    def begin_session(self) -> None:
        """Forgets running trainings and hosts: another process of the study writes."""
        self._running = {}
        self._described = set()

    def check(self, key: str, value: Mapping[str, Any]) -> None:
        """Checks one line; raises UsageError if it can't follow the lines before it."""
        if key == "plan":
            return
        if key == "host":
            self._described.add(value["host"])
            return

        host = value.get("host", "")
        run = (value["experiment"], value["seed"])
        name = f"{self._file}: {run[0]} seed {run[1]}"
        if key == "again":
            must(run not in self._running.values(), f"{name} is judged before its end")
            must(run not in self._repeated, f"{name} was trained again more than once")
            self._repeated.add(run)
            return

        if key == "start":
            free = host not in self._running
            must(free, f"{name} starts before the end of the run before it")
            must(
                not host or host in self._described,
                f"{name} starts on an undescribed {host!r}",
            )
            self._check_host(name, run, host)
            self._running[host] = run
        elif key == "abandoned":
            must(
                run not in self._running.values(), f"{name} is abandoned while it runs"
            )
            of_seed = self._host_of.get(run[1])
            must(
                of_seed == host,
                f"{name} was abandoned on {host}, but was on {of_seed!r}",
            )
            self._begun.get(run[1], set()).discard(run[0])
            self._left.add(run[1])
        else:
            must(self._running.get(host) == run, f"{name} has {key!r} without a start")
            if key != "begun":
                del self._running[host]

    def _check_host(self, name: str, run: tuple[str, int], host: str) -> None:
        """Checks that a seed's runs share a host, unless all were abandoned."""
        experiment, seed = run
        before = self._host_of.setdefault(seed, host)
        if seed in self._left:
            left = self._begun.get(seed, set())
            must(
                not left,
                f"{name} begins again, but {sorted(left)} of its seed does not",
            )
            must(
                before != host,
                f"{name} was abandoned, and begins again on the same {host}",
            )
            self._left.discard(seed)
            self._host_of[seed] = host
        else:
            where = [one or "the study's machine" for one in (before, host)]
            must(
                before == host,
                f"{name} is trained on {where[1]}, its seed on {where[0]}",
            )

        self._begun.setdefault(seed, set()).add(experiment)


def _check_apart(
    before: Mapping[str, Any], event: Mapping[str, Any], file: str
) -> None:
    """Checks that a process's two clocks agree about the time between two events.

    A line that was inserted or moved later would have to forge both of them.
    """
    wall_s = (event["time_ms"] - before["time_ms"]) / 1000
    mono_s = event["metadata"]["mono_s"] - before["metadata"]["mono_s"]
    must(mono_s >= 0, f"{file}: the monotonic clock runs backwards")
    must_agree(wall_s, mono_s, f"{file}: ")


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
