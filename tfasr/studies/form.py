"""Checks the form of what a study wrote, before any number in it is used.

`tfasr.studies.verify` calls these functions first. They reject a sealed plan with an
unknown field, and a list of starts in an impossible order. Whoever submits a study may
have written its files by hand, so nothing here trusts the type of a value.
`tfasr.verifying.form` does the same for the ledgers of its runs.

Every check raises `UsageError`, which names the file and the event, and shows the value
that was received, cut to 60 characters.
"""

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
from tfasr.verifying.form import (
    check_fields,
    check_names,
    finite,
    must,
    must_agree,
)

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
    check_names(sealed, _PLAN, file)
    made = sealed["format"]
    must(
        type(made) is int and made == SEALED_FORMAT,
        f"{file} has the format {made!r:.60}",
    )
    check_names(
        sealed["study"], {f.name for f in fields(StudyConfig)}, f"{file}, study"
    )

    for name, experiment in _objects(sealed, "experiments", file):
        check_names(
            experiment, {f.name for f in fields(ExperimentConfig)}, f"{file}, {name}"
        )

    for name, declared in _objects(sealed, "trained", file):
        check_names(declared, _TRAINED, f"{file}, trained {name}")

    must(isinstance(sealed["runs"], list), f"{file}: its runs are no list")

    for run in sealed["runs"]:
        check_names(run, _RUN, f"{file}, a run")

    check_names(sealed["code"], {"tfasr", "files"}, f"{file}, code")
    listed = sealed["study"]["experiments"]
    all_described = isinstance(listed, list) and all(
        map(sealed["experiments"].__contains__, listed)
    )
    must(all_described, f"{file} describes other experiments than its study lists")

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
        # `load_plan` puts these last, or other bindings could override a run's
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
            (
                f"{file}: the statements of {run.name} don't end with its bindings and "
                "seed"
            ),
        )

    return plan


def _objects(sealed: dict[str, Any], name: str, file: str) -> list[tuple[str, Any]]:
    """Returns the entries of a field that must be an object.

    Args:
        sealed: the content of a sealed plan.
        name: of the field.
        file: the plan's name, for errors.
    """
    must(isinstance(sealed[name], dict), f"{file}: its {name} are no object")
    return list(sealed[name].items())


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

# The types of each field's value, in all kinds of lines. A bool is never a number.
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

    Args:
        events: the lines of the list.
        file: its name, for errors.

    Raises:
        UsageError: names the first line that can't be.
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
    """Checks that a line has the fields of its key, each of its type.

    Args:
        event: the line.
        place: its number and key, for errors.
    """
    key = event["key"]
    value = event["value"]
    must(key in _LISTED, f"{place} has an unknown key")
    names = set(_LISTED[key])
    if key in _TIMED and isinstance(value, dict) and _OF_HOSTS & value.keys():
        names |= _OF_HOSTS

    check_names(value, names, place)

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
        check_names(value["clock"], {"time_ms", "mono_s"}, f"{place}, clock")
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
        check_names(value["ledger"], {"chain", "bytes"}, place)

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
        """Checks one line; raises UsageError if it can't follow the lines before it.

        Args:
            key: the kind of line, such as "start".
            value: its fields, whose types are checked already.
        """
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
        """Checks that a seed's runs share a host, unless all were abandoned.

        Args:
            name: the run's, for errors.
            run: its experiment and seed.
            host: where it starts; "" for the study's machine.
        """
        experiment, seed = run
        before = self._host_of.setdefault(seed, host)

        if seed in self._left:
            unfinished = self._begun.get(seed, set())
            must(
                not unfinished,
                f"{name} begins again, but {sorted(unfinished)} of its seed does not",
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

    Args:
        before: a line of the study's process.
        event: the next line of the same process.
        file: the list's name, for errors.
    """
    wall_s = (event["time_ms"] - before["time_ms"]) / 1000
    mono_s = event["metadata"]["mono_s"] - before["metadata"]["mono_s"]
    must(mono_s >= 0, f"{file}: the monotonic clock runs backwards")
    must_agree(wall_s, mono_s, f"{file}: ")
