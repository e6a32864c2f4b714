"""What a study declared before its first run, and whether its runs are those it started.

`tfasr.studies` writes both files described here while it trains; ``tfasr verify`` and
the reports compare them with the ledgers of the runs (`check_study`).

A study's folder holds ``sealed_plan.json``, canonical JSON that is never changed: a
study that is extended adds ``sealed_plan_2.json`` and so on. To ``starts.jsonl``, whose
lines are chained like those of a ledger (`tfasr.ledger.events`), the study appends, and
syncs each to disk:

- ``plan``: ``{"file", "sha256", "changes"}``, the first line; again when the plan is
  amended.
- ``start``, before each training process: ``{"experiment", "seed", "plan", "ledger"}``,
  where ``ledger`` is `ledger_mark` of the run's ledger, or None before its first
  trained step.
- ``begun``, within a second of the first trained step, and ``end``, after the process:
  the same without ``plan``; ``end`` also has ``exit_code``.
- ``again``, after an ``end``: ``{"experiment", "seed", "taken", "samples", "ledger"}``,
  if the machine took so much of the run that the plan demands a second try. ``taken``
  is the part that it took, ``samples`` the SHA-256 of ``host.csv``. The first try moves
  to `first_try`.

If hosts of a cluster train the runs (`tfasr.studies.hosts`), ``start``, ``begun`` and
``end`` also have ``host``, the name of the run's host, and ``clock``,
``{"time_ms", "mono_s"}`` of that host at that moment. There are three more kinds of
lines:

- ``host``: ``{"host", "description", "clock_ahead_s"}``, before the host trains
  anything.
- ``lost``: ``{"experiment", "seed", "host"}``. The host no longer answers; the training
  that runs there saves its work and ends by itself.
- ``abandoned``: ``{"experiment", "seed", "host", "folder", "ledger", "reason"}``. The
  run begins again, for one of the reasons in `AGAIN`. ``folder`` has its files from
  then on.

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

# An environment variable of each training process of a study: the hash of the plan,
# a colon, and the hash of the process's line in ``starts.jsonl``.
DECLARED_VARIABLE = "TFASR_DECLARED"

LOST = "lost"
# Why a run may begin again, and the clause about it in reports.
AGAIN = {LOST: "as {host} was lost"}

# The sentence about a study names up to so many runs that were never begun; more are
# only counted, as a large study's first report would consist of names otherwise.
_MOST_NAMED = 4

# What `check_study` raises if somebody wrote JSON of another form into its files.
_DAMAGE = (UsageError, KeyError, TypeError, OSError, ValueError)

_PACKAGE = Path(__file__).parents[1]

_Run = tuple[str, int]  # the experiment's name and the seed


def canonical(content: Any) -> bytes:
    r"""Returns a JSON value in canonical form: sorted keys, no spaces, ASCII, one line.

    Equal values have equal bytes, so their hashes can be compared.

    Example:
        >>> canonical({"b": 1, "a": [2]})
        b'{"a":[2],"b":1}\n'

    Raises:
        ValueError: for NaN and infinity, which standard JSON doesn't allow.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def sha256(content: bytes) -> str:
    """Returns the SHA-256 of some bytes as 64 hexadecimal digits.

    Example:
        >>> sha256(b"")[:8]
        'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


@functools.cache
def code_hash() -> str:
    """Returns a hash of the source and compiled files of this process's tfasr.

    It does not depend on where tfasr is installed.
    """
    files = (p for p in _PACKAGE.rglob("*") if p.suffix in (".py", ".so", ".pyd"))
    hashes = {str(p.relative_to(_PACKAGE)): sha256(p.read_bytes()) for p in files}
    return sha256(canonical(hashes))


def declaration(plugins: Sequence[str]) -> dict[str, Any] | None:
    """Returns ``declared`` for ``session_start``; None unless a study started the process.

    Args:
        plugins: the hashes of the modules that ``--import`` loaded.
    """
    plan, _, start = os.environ.get(DECLARED_VARIABLE, "").partition(":")
    if not start:
        return None

    return {
        "plan": plan,
        "start": start,
        "code": code_hash(),
        "plugins": sorted(plugins),
    }


@dataclass(frozen=True)
class Seen:
    """What was known about a run at one moment."""

    mark: dict[str, Any] | None  # `ledger_mark`
    host: str = ""  # the host that trains it; "" for the study's own machine
    time_ms: int = 0  # the wall clock of that host
    mono_s: float = 0.0  # its monotonic clock

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that a line of ``starts.jsonl`` has for it."""
        if not self.host:
            return {"ledger": self.mark}

        return {
            "ledger": self.mark,
            "host": self.host,
            "clock": {"time_ms": self.time_ms, "mono_s": self.mono_s},
        }


class Starts:
    """Appends to a study's ``starts.jsonl``; its first line seals or amends the plan.

    Each method writes the line of its name (see above) and returns when it is on disk.
    Threads may share the object. `close` releases the file's lock.

    Example:
        ::

            starts = Starts(folder, plan)
            variables = starts.start("small", 1, Seen(ledger_mark(run_dir)))
            process = subprocess.Popen(command, env={**os.environ, **variables})
            ...
            starts.begun("small", 1, Seen(ledger_mark(run_dir)))
            exit_code = process.wait()
            starts.end("small", 1, Seen(ledger_mark(run_dir)), exit_code)

    Args:
        folder: the study's folder, which must exist.
        plan: returns the plan's content, a JSON value. It is called once, before the
            first line.
    """

    def __init__(self, folder: Path, plan: Callable[[], dict[str, Any]]):
        self._folder = folder
        self._plan = plan
        self._ledger: Ledger | None = None
        self._sha256 = ""  # of the latest plan

        # Experiments and seeds that were trained again.
        self.repeated = repeated_runs(folder)

        self._mutex = threading.Lock()

    def start(self, experiment: str, seed: int, seen: Seen) -> dict[str, str]:
        """Records that a training will start.

        Args:
            experiment: the experiment's name.
            seed: the run's seed.
            seen: the run before the start; its mark is None if it starts from nothing.

        Returns:
            Environment variables for its process.
        """
        with self._mutex:
            self._open()

        line_hash = self._record(
            "start", experiment, seed, plan=self._sha256, **seen.to_json()
        )
        return {DECLARED_VARIABLE: f"{self._sha256}:{line_hash}"}

    def begun(self, experiment: str, seed: int, seen: Seen) -> None:
        """Records a training's first step; must be called within a second of it.

        Args:
            experiment: the experiment's name.
            seed: the run's seed.
            seen: the run now, whose mark is not None any more.
        """
        self._record("begun", experiment, seed, **seen.to_json())

    def end(
        self, experiment: str, seed: int, seen: Seen, exit_code: int | None
    ) -> None:
        """Records that a training's process has ended.

        Args:
            experiment: the experiment's name.
            seed: the run's seed.
            seen: the run after its process's end.
            exit_code: the process's; None if it is unknown.
        """
        self._record("end", experiment, seed, exit_code=exit_code, **seen.to_json())

    def lost(self, experiment: str, seed: int, host: str) -> None:
        """Records that a training's host no longer answers."""
        self._record("lost", experiment, seed, host=host)

    def host(
        self, name: str, description: dict[str, Any], clock_ahead_s: float
    ) -> None:
        """Records a host that will train runs.

        Args:
            name: the host's name in the study.
            description: what is known of its machine, a JSON value.
            clock_ahead_s: by how much its wall clock is ahead of this machine's.
        """
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
        """Records that a run will begin again.

        Args:
            experiment: the experiment's name.
            seed: the run's seed.
            host: the host that trained it.
            folder: where its files will be moved to, below the study's folder.
            mark: `ledger_mark` of its ledger.
            reason: a key of `AGAIN`.
        """
        self._record(
            "abandoned",
            experiment,
            seed,
            host=host,
            folder=folder,
            ledger=mark,
            reason=reason,
        )

    def again(
        self, experiment: str, seed: int, mark: Any, taken: float, samples: str
    ) -> None:
        """Records that a run was disturbed and will be trained again.

        Args:
            experiment: the experiment's name.
            seed: the run's seed.
            mark: `ledger_mark` of the first try's ledger.
            taken: the part of the run's time that the machine took, 0 to 1.
            samples: the SHA-256 of the first try's ``host.csv``.
        """
        self._record(
            "again",
            experiment,
            seed,
            taken=taken,
            samples=samples,
            ledger=mark,
        )
        self.repeated.add((experiment, seed))

    def close(self) -> None:
        """Releases the lock of ``starts.jsonl``, so that another process may append."""
        if self._ledger is not None:
            self._ledger.close()

    def _record(self, key: str, experiment: str, seed: int, **fields: Any) -> str:
        """Appends a line about a run.

        Returns:
            The line's hash (``chain``), by which a session names its start.
        """
        with self._mutex:
            self._open()
            self._write(key, {"experiment": experiment, "seed": seed, **fields})
            return self._ledger.mark()["chain"]

    def _write(self, key: str, value: dict[str, Any]) -> None:
        """Appends a line and waits until it is on disk.

        Training may start right after, and must not get ahead of its line.
        """
        self._ledger.event(key, value)
        self._ledger.sync()

    def _open(self) -> None:
        """Opens the list before this object's first line; seals or amends the plan."""
        if self._ledger is not None:
            return

        events = _events(self._folder)
        sessions = (event["metadata"]["session"] for event in events)
        self._ledger = Ledger(
            self._folder, 1 + max(sessions, default=-1), file=STARTS_FILE
        )

        plans = [event["value"] for event in events if event["key"] == "plan"]
        content = canonical(self._plan())
        if not plans:
            self._seal(SEALED_FILE, content, changes=[])
            return

        self._sha256 = plans[-1]["sha256"]
        before = object_or_empty(self._folder / plans[-1]["file"])
        changes = _changes(before, json.loads(content))
        if changes:
            self._seal(f"sealed_plan_{len(plans) + 1}.json", content, changes)

    def _seal(self, name: str, content: bytes, changes: list[str]) -> None:
        """Writes a plan's file and names it in the list."""
        self._sha256 = sha256(content)
        write_whole(self._folder / name, content)
        self._write("plan", {"file": name, "sha256": self._sha256, "changes": changes})


def first_try(folder: Path, experiment: str, seed: int) -> Path:
    """Returns where a study keeps the first try of a run that it trained again.

    Args:
        folder: the study's folder.
        experiment: the experiment's name.
        seed: the run's seed.
    """
    return folder / DISTURBED_FOLDER / f"{experiment}-seed_{seed}"


def repeated_runs(folder: Path) -> set[tuple[str, int]]:
    """Returns the experiments and seeds that a study trained again.

    It is empty for a study that has not started any run.
    """
    return {
        (event["value"]["experiment"], event["value"]["seed"])
        for event in _events(folder)
        if event["key"] == "again"
    }


def _events(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of a study's ``starts.jsonl``; [] before the first one."""
    path = folder / STARTS_FILE
    if not path.exists():
        return []

    return read_events(path)


def _changes(then: Any, now: Any, name: str = "") -> list[str]:
    """Describes how one JSON value differs from an earlier one.

    Example:
        >>> _changes({"study": {"seeds": 5}}, {"study": {"seeds": 8}})
        ['study.seeds: 5 then, 8 now']

    Args:
        then: the earlier value; None if it is new.
        now: the later value; None if it was removed.
        name: where the two are within the whole value, such as ``study.seeds``.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        changes = []
        for key in sorted({*then, *now}):
            path = f"{name}.{key}".strip(".")
            changes += _changes(then.get(key), now.get(key), path)

        return changes

    if then == now:
        return []

    return [f"{name}: {json.dumps(then)} then, {json.dumps(now)} now"]


@dataclass
class StudyCheck:
    """How a study's runs compare with what it declared, see `check_study`."""

    declared: int = 0  # runs in the latest plan
    found: int = 0  # declared runs whose ledgers have a trained step
    waiting: list[str] = field(default_factory=list)  # never begun, which is no problem
    abandoned: list[str] = field(default_factory=list)  # begun again, and why

    # Runs that are missing, extra, begun twice or changed.
    problems: list[str] = field(default_factory=list)

    amended: list[str] = field(default_factory=list)  # what later plans changed

    # The contents of the plans by their hashes, oldest first.
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)

    # The folders of the runs found.
    runs: dict[tuple[str, int], Path] = field(default_factory=dict)

    # The ``again`` lines of runs whose first try the machine disturbed.
    repeated: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """All of it in a sentence, such as "Sealed plan: declared 2, found 2."."""
        parts = [f"Sealed plan: declared {self.declared}, found {self.found}"]

        if len(self.waiting) > _MOST_NAMED:
            parts.append(f"never begun: {len(self.waiting)} runs")
        elif self.waiting:
            parts.append(f"never begun: {', '.join(self.waiting)}")

        if self.abandoned:
            parts.append(f"begun again: {', '.join(self.abandoned)}")

        if self.repeated:
            count = len(self.repeated)
            parts.append(f"trained again because the machine disturbed them: {count}")

        if self.amended:
            parts.append(f"amended: {', '.join(self.amended)}")

        if self.problems:
            parts.append(f"NOT AS DECLARED: {'; '.join(self.problems)}")

        return f"{'; '.join(parts)}."


def sealed_folder(path: Path) -> Path | None:
    """Returns the folder with ``starts.jsonl`` that is or contains a path, or None.

    A run lies at most three folders below its study: ``runs/<experiment>/seed_<seed>``.
    """
    for folder in (path, *path.resolve().parents[:3]):
        if (folder / STARTS_FILE).is_file():
            return folder

    return None


def experiment_folders(folder: Path) -> list[Path]:
    """Returns the folders of a study's experiments that have begun.

    They are in the order of the sealed plan.
    """
    study = object_or_empty(folder / SEALED_FILE).get("study", {})
    folders = [folder / "runs" / name for name in study.get("experiments", ())]
    return [path for path in folders if path.is_dir()]


def study_sentence(folder: Path) -> str:
    """Says how many runs a study declared and has, and what isn't as declared.

    A plan or list that can't be read becomes a part of the sentence, not an error.
    """
    try:
        return check_study(folder).sentence
    except _DAMAGE as error:
        return f"Sealed plan: NOT AS DECLARED: {error}"


def study_sentences(folder: Path) -> list[str]:
    """Returns a study's plan and its decision, in sentences for its report.

    Only a study with ``--until decided`` has a decision, and only once it was made.
    """
    sentences = [study_sentence(folder)]
    path = folder / DECISION_FILE
    if path.is_file():
        decision = read_text(path, "Leave it out.").strip()
        sentences.append(f"Decision: {decision}")

    return sentences


def declared_plan(folder: Path) -> dict[str, Any]:
    """Returns the latest plan that a study sealed.

    It returns {} if the plan or the list of starts can't be read or was changed.
    """
    try:
        return list(check_study(folder).plans.values())[-1]
    except _DAMAGE:
        return {}


def check_study(folder: Path) -> StudyCheck:
    """Compares a study's runs with its plans and its list of starts.

    Raises:
        UsageError: if a plan or the list is missing or damaged. What is wrong with
            single runs is in `StudyCheck.problems`.
    """
    check = StudyCheck()
    histories = _read_starts(folder, check)
    latest = list(check.plans.values())[-1]
    folders = {
        (run["experiment"], run["seed"]): Path(run["folder"]) for run in latest["runs"]
    }
    for place in folders.values():
        if _is_outside(place):
            raise UsageError(
                f"The sealed plan of {folder} names a folder outside it: {place}."
            )

    check.declared = len(folders)
    for run, place in folders.items():
        _check_run(folder / place, run, histories.get(run, _History()), check)

    for run, history in histories.items():
        if history.starts and run not in folders:
            check.problems.append(
                f"{_name(run)} was begun and is not in the latest plan"
            )

    # Whatever else has a ledger was trained without having been declared.
    declared_folders = {folder / place for place in folders.values()}
    declared_folders |= {first_try(folder, *run) for run in check.repeated}
    ledgers = [
        *(folder / "runs").rglob(EVENTS_FILE),
        *(folder / DISTURBED_FOLDER).rglob(EVENTS_FILE),
    ]
    for path in sorted(ledgers):
        if path.parent not in declared_folders:
            extra = path.parent.relative_to(folder)
            check.problems.append(f"{extra} is extra: no plan declares it")

    return check


@dataclass
class _History:
    """The lines about a run since it last began from nothing."""

    # The values of the ``start`` lines by the lines' hashes (``chain``), oldest first.
    starts: dict[str, dict[str, Any]] = field(default_factory=dict)

    # `ledger_mark` of the run's ledger whenever a line was written about it.
    marks: list[dict[str, Any]] = field(default_factory=list)


def _read_starts(folder: Path, check: StudyCheck) -> dict[_Run, _History]:
    """Reads ``starts.jsonl`` and all plans; checks what is no longer a run's folder.

    Returns the history of each run that the study started and neither abandoned nor
    trained again later.
    """
    path = folder / STARTS_FILE
    events = read_events(path)
    hashes = chain_of(path)
    if not events or "" in hashes or events[0]["key"] != "plan":
        raise UsageError(
            f"{path} must begin with a sealed plan, and each line must have a hash."
            " It was written by something else, or its beginning was removed."
        )

    histories: dict[_Run, _History] = {}
    # A line that a crash left incomplete has a hash, but no event.
    for event, chain in zip(events, hashes, strict=False):
        key = event["key"]
        value = event["value"]
        if key == "plan":
            _read_plan(folder, value, check)
            continue

        if key == "host":
            continue

        run = (value["experiment"], value["seed"])
        history = histories.setdefault(run, _History())
        if key == "start":
            history.starts[chain] = value

        if value.get("ledger") is not None:
            history.marks.append(value["ledger"])

        if key == "abandoned":
            _check_abandoned(folder, value, histories.pop(run), check)

        if key == "again":
            check.repeated[run] = value
            _check_first_try(folder, run, histories.pop(run), check)

    return histories


def _read_plan(folder: Path, value: Mapping[str, Any], check: StudyCheck) -> None:
    """Adds the plan that a ``plan`` line names to a check.

    Raises:
        UsageError: if the plan's file is missing or isn't what was sealed.
    """
    path = folder / Path(str(value["file"])).name
    content = b""
    if path.is_file():
        content = read_bytes(path, MOST_JSON_BYTES)

    if sha256(content) != value["sha256"]:
        raise UsageError(
            f"{path} must be the plan that was sealed, with the hash "
            f"{value['sha256'][:16]}..., but it was changed or is missing. Restore it "
            "from a copy."
        )

    check.plans[value["sha256"]] = json.loads(content)
    check.amended += value["changes"]


def _check_abandoned(
    folder: Path, value: Mapping[str, Any], history: _History, check: StudyCheck
) -> None:
    """Checks that the files of an abandoned run are unchanged.

    Args:
        folder: the study's folder.
        value: the ``abandoned`` line's value.
        history: the lines about the run before it.
        check: what is known so far, which this function adds to.

    Raises:
        UsageError: if the line names a folder outside the study's.
    """
    run = (value["experiment"], value["seed"])
    name = _name(run)
    reason = AGAIN[value["reason"]].format(host=value["host"])
    check.abandoned.append(f"{name}, {reason}")

    place = Path(value["folder"])
    if _is_outside(place):
        raise UsageError(f"The list of {folder} names a folder outside it: {place}.")

    if not history.marks:  # it had not trained a step
        return

    if not (folder / place / EVENTS_FILE).is_file():
        check.problems.append(f"{name} was abandoned, and {place} is gone")
        return

    for problem in _session_problems(folder / place, run, history):
        check.problems.append(f"{name}, abandoned in {place}, {problem}")


def _check_first_try(
    folder: Path, run: _Run, history: _History, check: StudyCheck
) -> None:
    """Checks that the first try of a run that was trained again is unchanged."""
    name = f"the first try of {_name(run)}"
    run_dir = first_try(folder, *run)
    if ledger_mark(run_dir) is None:
        check.problems.append(f"{name} is missing from {DISTURBED_FOLDER}/")
        return

    for problem in _session_problems(run_dir, run, history):
        check.problems.append(f"{name} {problem}")


def _check_run(run_dir: Path, run: _Run, history: _History, check: StudyCheck) -> None:
    """Adds a declared run to a check: as found, as waiting or as a problem.

    Args:
        run_dir: the run's folder according to the plan.
        run: its experiment and seed.
        history: the lines about it.
        check: what is known so far, which this function adds to.
    """
    name = _name(run)
    try:
        mark = ledger_mark(run_dir)
    except UsageError as error:
        check.problems.append(f"{name} is damaged: {error}")
        return

    if mark is None and history.marks:
        check.problems.append(
            f"{name} is missing: it was begun, and its ledger is gone"
        )
        return

    if mark is None:
        check.waiting.append(name)
        return

    check.found += 1
    check.runs[run] = run_dir
    for problem in _session_problems(run_dir, run, history):
        check.problems.append(f"{name} {problem}")


def _name(run: _Run) -> str:
    return f"{run[0]} seed {run[1]}"


def _is_outside(place: Path) -> bool:
    """Whether a path that should be below a study's folder may lead out of it."""
    return place.is_absolute() or ".." in place.parts


def declarations(run_dir: Path) -> list[dict[str, Any]]:
    """Returns ``declared`` of each session of a run, oldest first.

    It is {} for sessions that no study started.
    """
    sessions = reversed(list(values_of(run_dir, "session_start")))
    return [value.get("declared") or {} for value in sessions if value is not None]


def _session_problems(run_dir: Path, run: _Run, history: _History) -> Iterator[str]:
    """Yields what a run's ledger and its study's list contradict each other in.

    Each one continues a sentence that begins with the run's name.
    """
    if not all(ledger_covers(run_dir, mark) for mark in history.marks):
        yield (
            "was begun twice, or its ledger was changed: it lacks lines of an earlier "
            "start"
        )

    plans = {chain: value["plan"] for chain, value in history.starts.items()}
    declared = declarations(run_dir)
    if not all(isinstance(value, dict) for value in declared):
        yield "declares something else than a plan and a start"
        return

    used = [value.get("start") for value in declared]
    if not all(start is None or isinstance(start, str) for start in used):
        yield "declares a start that is no hash"
        return

    # A ledger without sessions can't be checked either.
    if None in used or not used:
        yield (
            "has sessions that this study did not start: they may be older than the "
            "plan"
        )
        return

    if not set(used) <= plans.keys():
        yield (
            "was started by another study, or by a start that was removed from the list"
        )
    elif len(set(used)) < len(used) or used != sorted(used, key=list(plans).index):
        yield "uses a start twice or out of order"
    elif any(plans[value["start"]] != value.get("plan") for value in declared):
        yield "names another plan than the list does"

    seed = last_value(run_dir, "seed")
    if seed not in (None, run[1]):
        yield f"was trained with seed {seed}"
