"""What a study declared before its first run, and whether its runs are those that it started.

A study's folder holds ``sealed_plan.json``, canonical JSON that is never changed: a
study that is extended adds ``sealed_plan_2.json`` and so on. To ``starts.jsonl``, whose
lines are chained like those of a ledger (`tfasr.ledger.events`), the study appends, and
syncs each to disk:

- ``plan``: ``{"file", "sha256", "changes"}``, the first line; again when the plan is
  amended.
- ``start``, before each training process: ``{"experiment", "seed", "plan", "ledger"}``,
  where
  ``ledger`` is `ledger_mark` of the run's ledger, or None before its first trained
    step.
- ``begun``, within a second of the first trained step, and ``end``, after the process:
  the
  same without ``plan``; ``end`` also has ``exit_code``.
- ``again``, after an ``end``: ``{"experiment", "seed", "taken", "samples", "ledger"}``,
  if the
  machine took so much of the run that the plan demands a second try. ``taken`` is the
  part that it took, ``samples`` the SHA-256 of ``host.csv``. The first try moves to
  `first_try`.

If hosts of a cluster train the runs (`tfasr.studies.hosts`), these three also have
``host``, the name of the run's host, and ``clock``, ``{"time_ms", "mono_s"}`` of that
host at that moment. There are three more kinds of lines:

- ``host``: ``{"host", "description", "clock_ahead_s"}``, before the host trains
  anything.
- ``lost``: ``{"experiment", "seed", "host"}``. The host no longer answers; the training
  that runs
  there saves its work and ends by itself.
- ``abandoned``: ``{"experiment", "seed", "host", "folder", "ledger", "reason"}``. The
  run begins
  again, for one of the reasons in `AGAIN`. ``folder`` has its files from then on.

The ``session_start`` of a training that a study started has ``declared``: ``{"plan",
"start", "code", "plugins"}``: hashes, ``start`` that of the line in ``starts.jsonl``.
So each session belongs to one start of one plan, and ``starts.jsonl`` shows every run,
even if its ledger is gone.
"""

import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import (
    EVENTS_FILE,
    MOST_JSON_BYTES,
    object_or_empty,
    read_bytes,
    read_text,
    write_whole,
)
from tfasr.ledger.events import (
    Ledger,
    chain_of,
    last_value,
    ledger_covers,
    ledger_mark,
    read_events,
    values_of,
)

SEALED_FILE = "sealed_plan.json"
STARTS_FILE = "starts.jsonl"
DISTURBED_FOLDER = "disturbed"  # the first tries of runs that were trained again
DECISION_FILE = "decision.txt"  # what ``tfasr study --until decided`` has decided
# Set for the training process: the hashes of plan and start.
VARIABLE = "TFASR_DECLARED"
LOST = "lost"
# Why a run may begin again, and what the report says about it.
AGAIN = {LOST: "as {host} was lost"}
_NAMED = 4  # more runs that were never begun are counted instead of named
_PACKAGE = Path(__file__).parents[1]


def canonical(content: Any) -> bytes:
    """Returns a JSON value in canonical form: sorted keys, no spaces, ASCII, one line."""
    words = {"sort_keys": True, "separators": (",", ":"), "allow_nan": False}
    return json.dumps(content, **words).encode() + b"\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@functools.cache
def code_hash() -> str:
    """Returns a hash of the source and compiled files of this process's tfasr."""
    files = (p for p in _PACKAGE.rglob("*") if p.suffix in (".py", ".so", ".pyd"))
    hashes = {str(p.relative_to(_PACKAGE)): sha256(p.read_bytes()) for p in files}
    return sha256(canonical(hashes))


def declaration(plugins: Sequence[str]) -> dict[str, Any] | None:
    """Returns ``declared`` for ``session_start``; None unless a study started the process."""
    plan, _, start = os.environ.get(VARIABLE, "").partition(":")
    named = {
        "plan": plan,
        "start": start,
        "code": code_hash(),
        "plugins": sorted(plugins),
    }
    return named if start else None


@dataclass(frozen=True)
class Seen:
    """What was known about a run at one moment."""

    mark: dict[str, Any] | None  # `ledger_mark`
    host: str = ""  # the host that trains it; "" for the study's own machine
    time_ms: int = 0  # the wall clock of that host
    mono_s: float = 0.0  # its monotonic clock

    def to_json(self) -> dict[str, Any]:
        if not self.host:
            return {"ledger": self.mark}
        clock = {"time_ms": self.time_ms, "mono_s": self.mono_s}
        return {"ledger": self.mark, "host": self.host, "clock": clock}


class Starts:
    """Appends to a study's ``starts.jsonl``; at the first line it seals or amends the plan.

    ``plan`` returns the plan's content; `close` releases the file's lock. Threads may
    share it.
    """

    def __init__(self, folder: Path, plan: Callable[[], dict[str, Any]]):
        self._folder = folder
        self._plan = plan
        self._ledger: Ledger | None = None
        self._sha256 = ""
        # Experiments and seeds that were trained again.
        self.repeated = repeated_runs(folder)
        self._mutex = threading.Lock()

    def start(self, experiment: str, seed: int, seen: Seen) -> dict[str, str]:
        """Records that a training will start; returns environment variables for its
        process.
        """
        with self._mutex:
            self._open()
            run = {"experiment": experiment, "seed": seed, "plan": self._sha256}
            self._write("start", {**run, **seen.to_json()})
            return {VARIABLE: f"{self._sha256}:{self._ledger.mark()['chain']}"}

    def begun(self, experiment: str, seed: int, seen: Seen) -> None:
        """Records a training's first step; must be called within a second of it."""
        with self._mutex:
            self._write(
                "begun", {"experiment": experiment, "seed": seed, **seen.to_json()}
            )

    def end(
        self, experiment: str, seed: int, seen: Seen, exit_code: int | None
    ) -> None:
        run = {"experiment": experiment, "seed": seed, "exit_code": exit_code}
        with self._mutex:
            self._write("end", {**run, **seen.to_json()})

    def lost(self, experiment: str, seed: int, host: str) -> None:
        """Records that a training's host no longer answers."""
        with self._mutex:
            self._write("lost", {"experiment": experiment, "seed": seed, "host": host})

    def host(
        self, name: str, description: dict[str, Any], clock_ahead_s: float
    ) -> None:
        """Records a host that will train runs, and by how much its wall clock is ahead."""
        value = {
            "host": name,
            "description": description,
            "clock_ahead_s": clock_ahead_s,
        }
        with self._mutex:
            self._open()
            self._write("host", value)

    def abandoned(
        self, experiment: str, seed: int, host: str, folder: str, mark: Any, reason: str
    ) -> None:
        """Records that a run will begin again, and that its files will be moved to
        ``folder``.
        """
        value = {
            "experiment": experiment,
            "seed": seed,
            "host": host,
            "folder": folder,
            "ledger": mark,
            "reason": reason,
        }
        with self._mutex:
            self._open()
            self._write("abandoned", value)

    def again(
        self, experiment: str, seed: int, mark: Any, taken: float, samples: str
    ) -> None:
        """Records that a run was disturbed and will be trained again."""
        value = {
            "experiment": experiment,
            "seed": seed,
            "taken": taken,
            "samples": samples,
        }
        with self._mutex:
            self._open()
            self._write("again", {**value, "ledger": mark})

        self.repeated.add((experiment, seed))

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()

    def _write(self, key: str, value: dict[str, Any]) -> None:
        self._ledger.event(key, value)
        self._ledger.sync()

    def _open(self) -> None:
        if self._ledger is not None:
            return
        path = self._folder / STARTS_FILE
        events = read_events(path) if path.exists() else []
        session = 1 + max(
            (event["metadata"]["session"] for event in events), default=-1
        )
        self._ledger = Ledger(self._folder, session, file=STARTS_FILE)
        plans = [event["value"] for event in events if event["key"] == "plan"]
        content = self._plan()
        before = object_or_empty(self._folder / plans[-1]["file"]) if plans else {}
        changes = _changes(before, json.loads(canonical(content)))
        self._sha256 = plans[-1]["sha256"] if plans else ""
        if not plans or changes:
            name = SEALED_FILE if not plans else f"sealed_plan_{len(plans) + 1}.json"
            self._sha256 = sha256(canonical(content))
            write_whole(self._folder / name, canonical(content))
            sealed = {
                "file": name,
                "sha256": self._sha256,
                "changes": changes if plans else [],
            }
            self._ledger.event("plan", sealed)
            self._ledger.sync()


def first_try(folder: Path, experiment: str, seed: int) -> Path:
    """Returns where a study keeps the first try of a run that it trained again."""
    return folder / DISTURBED_FOLDER / f"{experiment}-seed_{seed}"


def repeated_runs(folder: Path) -> set[tuple[str, int]]:
    """Returns the experiments and seeds that a study trained again."""
    path = folder / STARTS_FILE
    events = read_events(path) if path.exists() else []
    return {
        (event["value"]["experiment"], event["value"]["seed"])
        for event in events
        if event["key"] == "again"
    }


def _changes(then: Any, now: Any, name: str = "") -> list[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        parts = ((f"{name}.{key}".strip("."), key) for key in sorted({*then, *now}))
        return [
            c
            for path, key in parts
            for c in _changes(then.get(key), now.get(key), path)
        ]

    if then == now:
        return []

    return [f"{name}: {json.dumps(then)} then, {json.dumps(now)} now"]


@dataclass
class StudyCheck:
    declared: int = 0  # runs in the latest plan
    found: int = 0  # declared runs whose ledgers have a trained step
    waiting: list[str] = field(default_factory=list)  # never begun, which is no problem
    abandoned: list[str] = field(default_factory=list)  # begun again, and why
    # missing, extra, begun twice, changed
    problems: list[str] = field(default_factory=list)
    amended: list[str] = field(default_factory=list)  # what later plans changed
    # Contents by hash, oldest first.
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Folders of the runs found.
    runs: dict[tuple[str, int], Path] = field(default_factory=dict)
    # The notes on runs that were trained again, because the machine disturbed their
    # first try
    repeated: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        text = f"Sealed plan: declared {self.declared}, found {self.found}"
        if self.waiting:
            many = len(self.waiting) > _NAMED
            named = f"{len(self.waiting)} runs" if many else ", ".join(self.waiting)
            text += f"; never begun: {named}"

        if self.abandoned:
            text += f"; begun again: {', '.join(self.abandoned)}"
        if self.repeated:
            text += f"; trained again because the machine disturbed them: {len(self.repeated)}"
        text += f"; amended: {', '.join(self.amended)}" if self.amended else ""
        text += (
            f"; NOT AS DECLARED: {'; '.join(self.problems)}" if self.problems else ""
        )
        return f"{text}."


def sealed_folder(path: Path) -> Path | None:
    """Returns the folder with ``starts.jsonl`` that is or contains a path, or None."""
    around = (path, *path.resolve().parents[:3])
    return next((folder for folder in around if (folder / STARTS_FILE).is_file()), None)


def experiment_folders(folder: Path) -> list[Path]:
    """Returns the folders of a study's experiments that have begun, in the sealed
    plan's order.
    """
    names = (
        object_or_empty(folder / SEALED_FILE).get("study", {}).get("experiments", ())
    )
    return [path for name in names if (path := folder / "runs" / name).is_dir()]


def study_sentence(folder: Path) -> str:
    """Returns a sentence: how many runs a study declared and has, and what isn't as
    declared.
    """
    try:
        return check_study(folder).sentence
    except (UsageError, KeyError, TypeError, OSError, ValueError) as error:
        return f"Sealed plan: NOT AS DECLARED: {error}"


def study_sentences(folder: Path) -> list[str]:
    """Returns a study's plan and its decision, in sentences for its report."""
    sentences = [study_sentence(folder)]
    if (folder / DECISION_FILE).is_file():
        sentences.append(
            f"Decision: {read_text(folder / DECISION_FILE, 'Leave it out.').strip()}"
        )

    return sentences


def declared_plan(folder: Path) -> dict[str, Any]:
    """Returns the latest plan that a study sealed; {} if it can't be read."""
    try:
        return list(check_study(folder).plans.values())[-1]
    except (UsageError, KeyError, TypeError, OSError, ValueError, IndexError):
        return {}


def check_study(folder: Path) -> StudyCheck:
    """Compares a study's runs with its plans and starts; UsageError if these are damaged."""
    check = StudyCheck()
    events = read_events(folder / STARTS_FILE)
    hashes = chain_of(folder / STARTS_FILE)
    if not events or "" in hashes or events[0]["key"] != "plan":
        raise UsageError(
            f"{folder / STARTS_FILE} must begin with a sealed plan, and each line must have a hash."
            " It was written by something else, or its beginning was removed."
        )

    starts: dict[tuple[str, int], list[tuple[str, dict[str, Any]]]] = {}
    marks: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event, chain in zip(events, hashes, strict=False):
        value = event["value"]
        if event["key"] == "plan":
            _read_plan(folder, value, check)
            continue

        if event["key"] == "host":
            continue
        run = (value["experiment"], value["seed"])
        if event["key"] == "start":
            starts.setdefault(run, []).append((chain, value))
        if value.get("ledger") is not None:
            marks.setdefault(run, []).append(value["ledger"])
        if event["key"] == "abandoned":
            _read_abandoned(
                folder, value, starts.pop(run, []), marks.pop(run, []), check
            )

        if event["key"] == "again":
            check.repeated[run] = value
            check.problems += _first_try_problems(
                folder, run, starts.pop(run, []), marks.pop(run, [])
            )

    latest = list(check.plans.values())[-1]
    folders = {
        (run["experiment"], run["seed"]): Path(run["folder"]) for run in latest["runs"]
    }
    outside = [
        place
        for place in folders.values()
        if place.is_absolute() or ".." in place.parts
    ]
    if outside:
        raise UsageError(
            f"The sealed plan of {folder} names a folder outside it: {outside[0]}."
        )

    check.declared = len(folders)
    for run, place in folders.items():
        name = f"{run[0]} seed {run[1]}"
        run_dir = folder / place
        try:
            mark = ledger_mark(run_dir)
        except UsageError as error:
            check.problems.append(f"{name} is damaged: {error}")
            continue

        if mark is None:
            if run in marks:
                check.problems.append(
                    f"{name} is missing: it was begun, and its ledger is gone"
                )
            else:
                check.waiting.append(name)

            continue

        check.found += 1
        check.runs[run] = run_dir
        problems = _session_problems(
            run_dir, run, starts.get(run, []), marks.get(run, [])
        )
        check.problems += [f"{name} {problem}" for problem in problems]

    for run in starts.keys() - folders.keys():
        check.problems.append(
            f"{run[0]} seed {run[1]} was begun and is not in the latest plan"
        )

    declared_folders = {folder / place for place in folders.values()}
    declared_folders |= {first_try(folder, *run) for run in check.repeated}
    paths = [
        *(folder / "runs").rglob(EVENTS_FILE),
        *(folder / DISTURBED_FOLDER).rglob(EVENTS_FILE),
    ]
    for path in sorted(paths):
        if path.parent not in declared_folders:
            extra = path.parent.relative_to(folder)
            check.problems.append(f"{extra} is extra: no plan declares it")

    return check


def _first_try_problems(
    folder: Path,
    run: tuple[str, int],
    starts: Sequence[tuple[str, dict[str, Any]]],
    marks: Sequence[dict[str, Any]],
) -> list[str]:
    name = f"the first try of {run[0]} seed {run[1]}"
    run_dir = first_try(folder, *run)
    if ledger_mark(run_dir) is None:
        return [f"{name} is missing from {DISTURBED_FOLDER}/"]
    return [
        f"{name} {problem}"
        for problem in _session_problems(run_dir, run, starts, marks)
    ]


def _read_plan(folder: Path, value: Mapping[str, Any], check: StudyCheck) -> None:
    path = folder / Path(str(value["file"])).name
    content = read_bytes(path, MOST_JSON_BYTES) if path.is_file() else b""
    if sha256(content) != value["sha256"]:
        raise UsageError(
            f"{path} must be the plan that was sealed, with the hash {value['sha256'][:16]}..., "
            "but it was changed or is missing. Restore it from a copy."
        )

    check.plans[value["sha256"]] = json.loads(content)
    check.amended += value["changes"]


def _read_abandoned(
    folder: Path,
    value: Mapping[str, Any],
    starts: Sequence[tuple[str, dict[str, Any]]],
    marks: Sequence[dict[str, Any]],
    check: StudyCheck,
) -> None:
    """Checks that the files of an abandoned run are still what they were."""
    run = (value["experiment"], value["seed"])
    name = f"{run[0]} seed {run[1]}"
    check.abandoned.append(
        f"{name}, {AGAIN[value['reason']].format(host=value['host'])}"
    )
    place = Path(value["folder"])
    if place.is_absolute() or ".." in place.parts:
        raise UsageError(f"The list of {folder} names a folder outside it: {place}.")
    if not marks:  # it had not trained a step
        return
    if not (folder / place / EVENTS_FILE).is_file():
        check.problems.append(f"{name} was abandoned, and {place} is gone")
        return

    for problem in _session_problems(folder / place, run, starts, marks):
        check.problems.append(f"{name}, abandoned in {place}, {problem}")


def declarations(run_dir: Path) -> list[dict[str, Any]]:
    """Returns ``declared`` of each session of a run; {} for sessions that no study started."""
    sessions = reversed(list(values_of(run_dir, "session_start")))
    return [value.get("declared") or {} for value in sessions if value is not None]


def _session_problems(
    run_dir: Path,
    run: tuple[str, int],
    starts: Sequence[tuple[str, dict[str, Any]]],
    marks: Sequence[dict[str, Any]],
) -> Iterator[str]:
    if not all(ledger_covers(run_dir, mark) for mark in marks):
        yield "was begun twice, or its ledger was changed: it lacks lines of an earlier start"
    plans = {chain: value["plan"] for chain, value in starts}
    declared = declarations(run_dir)
    if not all(isinstance(value, dict) for value in declared):
        yield "declares something else than a plan and a start"
        return

    used = [value.get("start") for value in declared]
    if not all(start is None or isinstance(start, str) for start in used):
        yield "declares a start that is no hash"
        return

    if None in used or not used:
        yield "has sessions that this study did not start: they may be older than the plan"
        return

    if not set(used) <= plans.keys():
        yield "was started by another study, or by a start that was removed from the list"
    elif len(set(used)) < len(used) or used != sorted(used, key=list(plans).index):
        yield "uses a start twice or out of order"
    elif any(plans[value["start"]] != value.get("plan") for value in declared):
        yield "names another plan than the list does"

    if last_value(run_dir, "seed") not in (None, run[1]):
        yield f"was trained with seed {last_value(run_dir, 'seed')}"
