"""One process's part of a recorded run: settings, where it continues, order of calls.

`tfasr.Recorder` and ``tfasr train`` use it to write a run's folder. `claimed` keeps
other processes out, `position` reads where an earlier process stopped, `Session` writes
how this one begins and ends, and `Order` rejects calls of a recorder that would book
time twice or not at all.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfasr.errors import RunError, UsageError
from tfasr.kit import files
from tfasr.kit.registry import plugins
from tfasr.ledger import schema
from tfasr.ledger.declared import declaration
from tfasr.ledger.events import Ledger, is_ledger, read_events
from tfasr.ledger.intervals import kept_index, metadata
from tfasr.ledger.schema import TargetRule
from tfasr.ledger.timeline import Timeline
from tfasr.telemetry.machine import conditions, process_age_s
from tfasr.tta.metrics import (
    BUILT_IN,
    Metric,
    Metrics,
    Target,
    check_target,
    parse_target,
)

_INTERVALS = (
    "init",
    "run",
    "epoch",
    "eval",
    "eval_forward",
    "decode",
    "checkpoint",
    "sentences",
    "session",
    "logging",
    "swap",
)

# Keys of events that a user can't state as facts: a second event of this key would
# count as time or as a result.
WRITTEN = {
    "model_creation",
    "train_step",
    "eval_accuracy",
    "tracked_stats",
    "targets",
    "target_rule",
    "metrics",
    "comparability",
    "extended",
    "conditions",
}
WRITTEN.update(f"{name}_start" for name in _INTERVALS)
WRITTEN.update(f"{name}_stop" for name in _INTERVALS)

# Facts that must be whole numbers, with the least value of each: reports count with
# them.
_COUNTS = {"train_samples": 1, "global_batch_size": 1, "num_replicas": 1, "seed": 0}

# Files that every run may have before its first step; those of a failed start are
# removed.
WRITTEN_AT_START = (
    files.HEARTBEAT_FILE,
    files.RUN_FILE,
    files.CPU_FILE,
    files.GPU_FILE,
    files.HOST_FILE,
)

# How a user writes each block, for errors.
_BLOCK_ORDER = {
    "step": "with run.step(...):",
    "evaluation": "with run.evaluation() as e:",
    "decoding": "with e.decoding():",
    "swapping": "with e.swapping():",
    "saving": "with run.saving():",
}


@dataclass(frozen=True)
class Settings:
    """The settings that define a run; a resumed run must keep them."""

    targets: list[list[Any]]  # pairs of a metric and a value
    target_window: int  # how many evaluations' median must meet a target
    # The fields of each declared `tfasr.tta.metrics.Metric`.
    metrics: dict[str, dict[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)  # further facts for the ledger
    # What makes results comparable; None if unknown.
    comparability: dict[str, Any] | None = None
    # the user's own configuration, JSON
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def target_rule(self) -> TargetRule:
        return TargetRule(window=self.target_window)

    def write(self, run_dir: Path) -> None:
        """Writes the settings into a run's folder.

        Each value has a separate line, so that the files of two seeds of a
        configuration differ in one line.
        """
        text = json.dumps(asdict(self), indent=1)
        files.write_whole(run_dir / files.RECORDER_FILE, f"{text}\n")

    def differences(self, run_dir: Path) -> str:
        """Returns which settings a run was begun with that are others now, or "".

        The settings are compared as JSON: a tuple is equal to the list that was
        written.
        """
        remedy = "Without it a run cannot be continued: begin a new one."
        before = files.read_object(run_dir / files.RECORDER_FILE, remedy)
        return differences(_flat(before), _flat(json.loads(json.dumps(asdict(self)))))


def settings_of(
    targets: Iterable[str | Target],
    metrics: Mapping[str, str | Metric],
    *,
    target_window: int,
    facts: Mapping[str, Any],
    comparability: Mapping[str, Any] | None,
    config: Mapping[str, Any] | None,
) -> Settings:
    """Returns checked settings from the arguments of `tfasr.Recorder`.

    Facts that are None are left out.

    Args:
        targets: pairs of a metric and a value, or texts such as "cer=0.15".
        metrics: the direction of each further metric, or a `Metric`.
        target_window: how many evaluations' median must meet a target.
        facts: what the ledger states about the run, by name.
        comparability: what makes results comparable; None if unknown.
        config: the user's own configuration.

    Raises:
        UsageError: for a value of a wrong kind, or one that JSON can't express.
    """
    declared = {}
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            metric = Metric(metric)

        declared[name] = metric.to_json()

    known_metrics = Metrics.of(declared, "The recorder")
    pairs = []
    try:
        for target in targets:
            if isinstance(target, str):
                pairs.append(parse_target(target, known_metrics))
            else:
                pairs.append(check_target(*target, known_metrics))
    except TypeError:
        text = 'targets must be a list of pairs such as ("cer", 0.15), or texts such as "cer=0.15".'
        raise UsageError(f"{text} Received: {targets!r}.") from None

    if type(target_window) is not int or target_window < 1:
        text = "target_window must be at least 1 evaluation."
        raise UsageError(f"{text} Received: {target_window!r}.")

    stated = {name: value for name, value in facts.items() if value is not None}
    check_facts(stated)
    # A plug-in's metrics are declared too, as programs that read the run may not import
    # it.
    declared |= {
        name: known_metrics[name].to_json() for name, _ in pairs if name not in BUILT_IN
    }
    settings = Settings(
        targets=[list(pair) for pair in pairs],
        target_window=target_window,
        metrics=declared,
        facts=stated,
        comparability=None if comparability is None else dict(comparability),
        config=dict(config or {}),
    )
    _check_json(asdict(settings))

    return settings


def check_mappings(**values: Any) -> None:
    """Checks arguments that must be dicts with texts as keys, or None."""
    for name, value in values.items():
        if value is None:
            continue

        named = isinstance(value, Mapping) and all(isinstance(k, str) for k in value)
        if not named:
            raise UsageError(
                f"{name} must be a dict with names as keys. Received: {value!r}."
            )


def folder_named(run_dir: Any) -> Path:
    """Returns a run's folder as a path, which need not exist yet.

    Raises:
        UsageError: if it is no path, or the path of a file.
    """
    is_path = isinstance(run_dir, str | os.PathLike)
    # No file system allows a name with a zero byte: `Path.is_file` would fail.
    named = is_path and str(run_dir) and "\0" not in str(run_dir)
    if not named or Path(run_dir).is_file():
        raise UsageError(
            f"run_dir must be the name of a folder. Received: {run_dir!r}."
        )

    return Path(run_dir)


def check_facts(facts: Mapping[str, Any]) -> None:
    """Checks facts that a user states about a run.

    Raises:
        UsageError: if a fact that reports count with is no whole number, if its type isn't
            that of `ledger.schema`, if tfasr writes events of its name itself, or if JSON
            can't express it.
    """
    for name, value in facts.items():
        least = _COUNTS.get(name)
        if least is not None and (type(value) is not int or value < least):
            text = f"{name} must be a whole number of at least {least}."
            raise UsageError(f"{text} Received: {value!r}.")

        problem = schema.wrong(name, value)
        if problem is not None:
            raise UsageError(f"A fact of this name has a fixed type: {problem}.")

        if name in WRITTEN:
            raise UsageError(
                f"A recorder writes {name!r} itself: call the fact something else."
            )

    _check_json(dict(facts))


def _check_json(values: dict[str, Any]) -> None:
    """Checks that JSON can express values; NaN and infinity are not standard JSON."""
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"Facts, comparability and config of a recorder must be JSON values. {error}."
        ) from error


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with each fact and each value of config as a separate one.

    So `differences` can name the one that changed.
    """
    flat = {
        name: value
        for name, value in settings.items()
        if name not in ("facts", "config")
    }
    for group in ("facts", "config"):
        values = settings.get(group)
        if not isinstance(values, dict):
            values = {group: values}

        flat |= values

    return flat


@contextlib.contextmanager
def claimed(folder: Path, elsewhere: str, work: str = "write a run") -> Iterator[None]:
    """Makes a folder for a block and keeps all other processes from working in it.

    A folder that was missing and is still empty at the end is removed.

    Args:
        folder: of the run or study.
        elsewhere: the flag or argument with which the user can choose another one.
        work: what only one process may do there, for the error.

    Raises:
        UsageError: if another process holds the folder.
    """
    missing = not folder.exists()
    files.make_folder(folder)
    refusal = (
        f"Only one process may {work}. {folder} is being written by another one: wait for it, "
        f"stop it, or choose another {elsewhere}."
    )

    try:
        with files.locked(folder / files.LOCK_FILE, refusal):
            yield
    finally:
        if missing:
            # If there is a run in it, the folder can't be removed.
            with contextlib.suppress(OSError):
                folder.rmdir()


def events_so_far(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the events of a run's ledger; [] if the file is missing."""
    if not (run_dir / files.EVENTS_FILE).exists():
        return []

    return read_events(run_dir)


def has_begun(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run has begun to train. If it hasn't, its files may be removed.

    A ledger with another first event isn't tfasr's: it must not pass for a failed
    start.
    """
    foreign = bool(events) and events[0]["key"] != "session_start"
    return foreign or any(event["key"] == "run_start" for event in events)


def is_finished(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the newest session of a run ended with success."""
    ends = (e for e in reversed(events) if e["key"] in ("run_stop", "session_start"))
    return metadata(next(ends, {})).get("status") == "success"


def next_session(events: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of the session that continues a run; 0 for a new one."""
    numbers = [metadata(event).get("session", 0) for event in events]
    integers = [number for number in numbers if isinstance(number, int)]
    return max(integers, default=-1) + 1


def remove_start(run_dir: Path, *more: str) -> None:
    """Removes the files of a failed start, then ``more`` files, in this order.

    If the process is killed meanwhile, what shows that the folder is a run is still
    there.
    """
    for name in (*WRITTEN_AT_START, *more):
        (run_dir / name).unlink(missing_ok=True)
        (run_dir / (name + files.PARTIAL_SUFFIX)).unlink(missing_ok=True)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns which values changed between a run's start and now, or ""."""
    return "; ".join(
        f"{name}: {then.get(name)!r} then, {now.get(name)!r} now"
        for name in dict.fromkeys(itertools.chain(then, now))
        if then.get(name) != now.get(name)
    )


@dataclass(frozen=True)
class Position:
    """Where a process begins or continues a run.

    Attributes:
        session: 0 for the process that begins the run, one more for each that continues it.
        step: updates of the weights until here. Later ones of an earlier session are lost.
        epoch: the last finished epoch.
        history: the scores of the evaluations until then, by epoch.
        extended: how the run was extended after it had finished, oldest first.
        extends: whether the last extension begins now.
        comparability: as the run stated it before; None if unknown.
    """

    session: int = 0
    step: int = 0
    epoch: int = 0
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    extended: list[dict[str, Any]] = field(default_factory=list)
    extends: bool = False
    comparability: dict[str, Any] | None = None


def extensions(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns how a run was trained longer after it had finished, oldest first."""
    return [event["value"] for event in events if event["key"] == "extended"]


def position(
    run_dir: Path, settings: Settings, step: int | None, longer: str = ""
) -> Position:
    """Returns where a recorded run begins or continues; removes a failed start's files.

    Args:
        run_dir: the run's folder, which this process holds (`claimed`).
        settings: those of this process; a continued run must have the same.
        step: that of the checkpoint that the caller continues from; None for the last one
            that the ledger states.
        longer: how a finished run is trained longer, such as "to 40 epochs"; "" if not.

    Raises:
        UsageError: if the folder holds a different run, one that is finished and isn't
            extended, or no such step.
    """
    if (run_dir / files.EXPERIMENT_FILE).exists():
        raise UsageError(
            f"A recorder needs a separate folder. {run_dir} contains a run of tfasr train: "
            "choose another."
        )

    settings_file = run_dir / files.RECORDER_FILE
    ledger = run_dir / files.EVENTS_FILE
    owned = "target_window" in files.object_or_empty(settings_file)
    owned = owned and (is_ledger(ledger) or not ledger.exists())
    names = (*WRITTEN_AT_START, files.EVENTS_FILE, files.RECORDER_FILE)
    files.check_owned(
        run_dir, "A recorder's folder", "run of a recorder", names, owned=owned
    )
    events = events_so_far(run_dir)
    if not has_begun(events):
        remove_start(run_dir, files.EVENTS_FILE, files.RECORDER_FILE)
        _check_step(run_dir, step, 0)
        return Position()

    changes = settings.differences(run_dir)
    if changes:
        raise UsageError(
            f"A continued run must keep its settings. {run_dir} was begun with others: "
            f"{changes}. Use the same settings, or another folder."
        )

    line = Timeline(events)
    extended = extensions(events)
    resumed = _resumed(run_dir, line, step)
    extends = is_finished(events)
    schedules = [each.get("schedule") for each in extended]
    if extends and (not longer or longer in schedules):
        raise UsageError(
            f"{run_dir} holds a run that is finished after epoch {resumed.epoch}. Read it with "
            f"tfasr report {run_dir}, choose another folder for a new run, or extend this run: "
            "tfasr.Recorder(..., longer='to 40 epochs')."
        )

    if extends and not resumed.step:
        raise UsageError(
            f"A run that is trained longer must continue from a checkpoint. {run_dir} has recorded "
            "none: call run.checkpoint() where your loop saves, and begin a new run."
        )

    if extends:
        extended.append({"after_epoch": resumed.epoch, "schedule": longer})

    return replace(
        resumed,
        extended=extended,
        extends=extends,
        comparability=line.fact("comparability"),
    )


def _check_step(run_dir: Path, step: int | None, most: int) -> None:
    """Checks the step that a user continues from; ``most`` is the last one done."""
    if step is not None and (type(step) is not int or not 0 <= step <= most):
        raise UsageError(
            f"resumed_from_step must be a step that the run has done, 0 to {most}. Received: "
            f"{step!r} for {run_dir}."
        )


def _resumed(run_dir: Path, line: Timeline, step: int | None) -> Position:
    """Returns the position after a step, or after the last checkpoint for None.

    What comes after it in the ledger is lost work: its epochs and scores don't count.
    """
    trained = [index for index in line.of("train_step") if line.useful[index]]
    steps = [line.metadata[index].get("step") or 0 for index in trained]
    _check_step(run_dir, step, max(steps, default=0))
    if step is None:
        marks = [index for index in line.of("checkpoint_stop") if line.useful[index]]
        step = 0
        if marks:
            step = line.metadata[marks[-1]].get("step", 0)

    end = None
    if step:
        end = kept_index(line.events, line.indices, len(line.events), step)

    history: dict[int, dict[str, Any]] = {}
    finished = 0
    for index in line.of("tracked_stats", "epoch_stop"):
        if end is None or index > end or not line.useful[index]:
            continue

        epoch = line.metadata[index].get("epoch_num") or 0
        if line.keys[index] == "epoch_stop":
            finished = max(finished, epoch)
        else:
            history[epoch] = line.events[index]["value"]

    return Position(next_session(line.events), step or 0, finished, history)


@dataclass
class Order:
    """The state of a recorder, in which only some of its calls make sense.

    A block must be entered directly after it was made (`promise`, `enter`, `leave`):
    ``run.step()`` without ``with`` would book no time.

    Attributes:
        open: whether the recorder's own block is open.
        epoch: the newest epoch; 0 before the first.
        in_epoch: whether it is still in progress.
        evaluated: whether it has had its evaluation.
    """

    open: bool = False
    epoch: int = 0
    in_epoch: bool = False
    evaluated: bool = False
    _open_blocks: list[str] = field(default_factory=list)
    _promised: str | None = None
    _process: int = field(default_factory=os.getpid)

    @property
    def inherited(self) -> bool:
        """Whether this copy is in a forked process, which must not record anything."""
        return os.getpid() != self._process

    def check(self, what: str, within: str | None = None) -> None:
        """Raises UsageError unless a call may come now.

        Args:
            what: the call, as the user writes it.
            within: the block that it needs; None for a call outside all blocks.
        """
        if self.inherited:
            raise UsageError(
                f"{what} must be called by the process that opened the recorder. Received: a call "
                f"in process {os.getpid()}, a fork of it. Open another recorder in the fork."
            )

        if not self.open:
            raise UsageError(
                f"{what} must be called within the recorder's block: with tfasr.Recorder(...) as "
                "run: ... Received: a recorder that is not open."
            )

        if self._promised is not None:
            raise UsageError(
                f"A block must be entered: write {_BLOCK_ORDER[self._promised]} with its work "
                f"indented below. Received: {what} after a {self._promised} that was not entered."
            )

        block = self._open_blocks[-1] if self._open_blocks else None
        if block != within and block is None:
            raise UsageError(f"{what} must be called within {_BLOCK_ORDER[within]}.")

        if block != within:
            where = _BLOCK_ORDER[block]
            raise UsageError(
                f"{what} must not be called within {where} End that block first."
            )

    def check_epoch(self, what: str) -> None:
        """Raises UsageError unless an epoch is open; ``what`` is the call."""
        if self.in_epoch:
            return

        remedy = ": call run.epoch() first."
        if self.evaluated:
            remedy = f". Epoch {self.epoch} ended with its evaluation: call run.epoch() to begin "
            remedy += "the next."

        raise UsageError(f"{what} must be called within an epoch{remedy}")

    def promise(self, block: str) -> None:
        """Requires that the block just created is entered before any other call."""
        self._promised = block

    def enter(self, block: str, within: str | None = None) -> None:
        """Opens a block, which must be the one that was promised."""
        if self._promised != block:
            raise UsageError(
                f"{_BLOCK_ORDER[block]} must be written again for each use."
            )

        self._promised = None
        self.check(_BLOCK_ORDER[block], within)
        self._open_blocks.append(block)

    def leave(self, block: str) -> None:
        """Closes a block, which must be the innermost open one."""
        self._promised = None
        if self._open_blocks[-1:] != [block]:
            raise UsageError(
                f"{_BLOCK_ORDER[block]} must end once, after the blocks inside it."
            )

        self._open_blocks.pop()


class Session:
    """Records the start and the end of one process's part of a run.

    As a block, it records how the run ended: "interrupted" if one of ``interruptions``
    was raised, "aborted" after any other exception, else "success".

    Args:
        ledger: the run's, opened by this process.
        interruptions: exceptions with which a user or a scheduler ends a run on purpose.
    """

    def __init__(self, ledger: Ledger, interruptions=(KeyboardInterrupt,)):
        self.ledger = ledger
        self._interruptions = interruptions

    def start(self, resumed_from_step: int | None, *, own_process: bool) -> None:
        """Writes ``session_start``, from which a continued run's times are computed.

        Args:
            resumed_from_step: the checkpoint's; None for a run that begins.
            own_process: whether the time since the process was created belongs to the run.
        """
        age: dict[str, float] = {}
        if own_process:
            age["process_age_s"] = round(process_age_s(), 6)

        declared = declaration([plugin.sha256 for plugin in plugins()])
        self.ledger.begin_session(resumed_from_step, declared, **age)

    def begin_training(self, facts: Mapping[str, Any]) -> None:
        """Writes ``run_start``, before which no data may be read, and the known facts."""
        self.ledger.event("run_start", event_type="INTERVAL_START")
        self.ledger.event("conditions", conditions())
        self.write_facts(facts)

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Writes an event for each fact."""
        for key, value in facts.items():
            self.ledger.event(key, value)

    def finish(self, error: BaseException | None = None) -> None:
        """Writes how the run ended.

        If the disk is full then, an ``error`` isn't hidden by that.
        """
        if error is None:
            self.ledger.event("run_stop", event_type="INTERVAL_END", status="success")
            self.ledger.sync()
            return

        status = "interrupted" if isinstance(error, self._interruptions) else "aborted"
        about = {"status": status, "reason": f"{type(error).__name__}: {error}"[:500]}

        with contextlib.suppress(OSError, RunError):
            self.ledger.event("run_stop", event_type="INTERVAL_END", **about)
            self.ledger.sync()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.finish(error)
