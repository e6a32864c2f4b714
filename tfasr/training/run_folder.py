"""A run's folder: which process may write it, and what a resumed run must keep.

`own_run_folder` claims a folder for one process before anything is written into it, and
checks that a run which is to be resumed has the same configuration and data. The other
functions write and read the files of a run's settings; the ledger and the checkpoints
are in other modules. `Interruption` notes the signals that end a run.
"""

import contextlib
import json
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from tfasr.data.features import check_statistics
from tfasr.data.manifest import file_sha256
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import (
    ALPHABET_FILE,
    BEST_CHECKPOINT,
    CHECKPOINTS_FOLDER,
    ENERGY_FILE,
    EVENTS_FILE,
    EXPERIMENT_FILE,
    GIN_GIVEN_FILE,
    GIN_OPERATIVE_FILE,
    HYPOTHESES_FOLDER,
    LEXICON_FILE,
    PARTIAL_SUFFIX,
    PLUGINS_FILE,
    PROGRESS_FILE,
    RUN_FILE,
    check_owned,
    object_or_empty,
    read_object,
    write_whole,
)
from tfasr.ledger.events import is_ledger, last_value, read_events
from tfasr.ledger.intervals import Event, evaluated_epoch
from tfasr.recording.session import (
    WRITTEN_AT_START,
    claimed,
    differences,
    events_so_far,
    has_begun,
    is_finished,
    metadata,
    next_session,
    remove_start,
)
from tfasr.telemetry.machine import revision
from tfasr.telemetry.system import describe_system
from tfasr.training.checkpoint import History
from tfasr.training.experiment import Experiment
from tfasr.tta.metrics import evaluated_metrics

log = logging.getLogger("tfasr")

# The signals that ask a process to end: a scheduler's and Ctrl-C's.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunInterruptedError(RunError):
    """A signal ended the process; the run was saved and can be resumed.

    ``exit_code`` is 128 plus the signal's number, as in shells: 143 for SIGTERM, 130
    for SIGINT.
    """

    def __init__(self, message: str, received: signal.Signals):
        super().__init__(message)
        self.exit_code = 128 + received


class Interruption:
    """Notes a first SIGTERM or SIGINT while its block runs.

    A second one has its usual effect. Outside the main thread, where Python can't set
    handlers, it does nothing.

    Attributes:
        received: the signal, or None.
        received_s: when it came, by the monotonic clock.
    """

    def __init__(self):
        self.received: signal.Signals | None = None
        self.received_s = 0.0
        # The handlers that this one replaces.
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is not threading.main_thread():
            return self

        for number in _SIGNALS:
            # A signal that nohup or a shell's background job ignores on purpose stays
            # ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)

        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self.received_s = time.monotonic()
        self._restore()
        log.warning(
            "%s: saving a checkpoint at the next step, then ending. A second signal ends "
            "at once.",
            self.received.name,
        )

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

        self._before = {}


# What tfasr train writes before the first step, in addition to every run's files. The
# files that mark the folder as its own are removed last: the experiment, then the
# ledger.
_START = (
    ALPHABET_FILE,
    LEXICON_FILE,
    PROGRESS_FILE,
    PLUGINS_FILE,
    GIN_GIVEN_FILE,
    GIN_OPERATIVE_FILE,
    ENERGY_FILE,
    EXPERIMENT_FILE,
)
_WRITTEN_AT_START = (*WRITTEN_AT_START, *_START)
# Files that a killed process may not have finished writing, below the run's folder.
_UNFINISHED = (
    *_WRITTEN_AT_START,
    f"{CHECKPOINTS_FOLDER}/step-*",
    f"{CHECKPOINTS_FOLDER}/evaluating-*",
    f"{CHECKPOINTS_FOLDER}/{BEST_CHECKPOINT}",
    f"{HYPOTHESES_FOLDER}/validation-epoch-*",
)


@dataclass(frozen=True)
class Claim:
    """A run folder that this process alone may write.

    Attributes:
        session: 0 where the run begins, 1 where it is first resumed.
        history: the metrics of a finished run that isn't trained longer; else None.
        extended: how a finished run is trained longer: ``after_epoch`` and what changed
            in ``schedule``; None if it isn't.
    """

    session: int
    history: History | None = None
    extended: dict[str, Any] | None = None


@contextlib.contextmanager
def own_run_folder(
    run_dir: Path, experiment: Experiment, shards: dict[str, str], *, resume: bool
) -> Iterator[Claim]:
    """Claims a folder for this process while the block runs.

    Nothing is written into it before. If the block fails before training began, the
    folder is left as it was.

    Args:
        run_dir: the folder.
        experiment: the run's configs.
        shards: each split's content hash.
        resume: whether to continue the run in the folder.

    Raises:
        UsageError: if another process holds the folder, if it contains another run or
            parts of one, or if the run to resume had another configuration or other
            shards.
    """
    with claimed(run_dir, "--run_dir"):
        events = events_so_far(run_dir)
        if (run_dir / EVENTS_FILE).exists() and not has_begun(events):
            _check_own_start(run_dir)
            log.info(
                "%s holds a run that ended before training; it starts over.", run_dir
            )
            remove_start(run_dir, *_START, EVENTS_FILE)
            events = []

        claim = claim_run_folder(run_dir, experiment, resume, finished_history(events))
        if claim.session:
            _check_shards(run_dir, shards)

        if claim.history is None:
            for name in _UNFINISHED:
                for partial in run_dir.glob(name + PARTIAL_SUFFIX):
                    partial.unlink()

        try:
            yield claim
        except BaseException:
            if not claim.session and not has_begun(events_so_far(run_dir)):
                remove_start(run_dir, *_START, EVENTS_FILE)

            raise


# The settings of training that may differ when a finished run is trained longer.
_SCHEDULE = {
    "epochs",
    "optimizer.learning_rate",
    "targets",
    "stop_at_targets",
    "stop_after_hours",
    "give_up_after_hours",
}


def claim_run_folder(
    run_dir: Path,
    experiment: Experiment,
    resume: bool,
    history: History | None = None,
) -> Claim:
    """Returns a folder's claim; rejects a folder that holds another run.

    Args:
        run_dir: the folder, which may be missing.
        experiment: the run's configs.
        resume: whether to continue the run in the folder.
        history: the metrics of a finished run. If its schedule changed, it is trained
            longer.

    Raises:
        UsageError: if the folder holds a run that isn't to be resumed, or its
            configuration differs in more than the schedule.
    """
    run_dir.mkdir(parents=True, exist_ok=True)

    if not (run_dir / EVENTS_FILE).exists():
        check_owned(
            run_dir,
            "--run_dir",
            f"ledger {EVENTS_FILE}",
            (*_WRITTEN_AT_START, CHECKPOINTS_FOLDER, HYPOTHESES_FOLDER),
            owned=False,
        )
        return Claim(0)

    if not resume:
        raise UsageError(
            f"--run_dir must not hold a run yet. Received: {run_dir}, which holds one. Continue it "
            "with --resume, or choose another folder."
        )

    path = run_dir / EXPERIMENT_FILE
    saved = read_object(path, "Without it a run cannot be resumed: begin a new one.")
    now = json.loads(json.dumps(experiment.to_json()))
    if not all(isinstance(saved.get(group), dict) for group in now):
        raise UsageError(f"{path} must hold an object for each of {', '.join(now)}.")

    settings = _compared(now)
    before = _compared(saved)
    session = next_session(read_events(run_dir))
    differing = differences(before, settings)
    if not differing:
        return Claim(session, history)

    fixed = {
        name: value
        for name, value in settings.items()
        if name.removeprefix("training.") not in _SCHEDULE
    }
    others = differences({name: before.get(name) for name in fixed}, fixed)
    done = epochs_done(history or [])
    if others or history is None or experiment.training.epochs <= done:
        longer = ""
        if done:
            longer = f", or TrainingConfig.epochs above {done} to train it longer"

        raise UsageError(
            f"A resumed run must keep its configuration. {run_dir} differs in: "
            f"{others or differing}. Use the same --gin_file and bindings{longer}, or another "
            "--run_dir."
        )

    return Claim(session, extended={"after_epoch": done, "schedule": differing})


def _compared(content: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the settings of `Experiment.to_json` that a resumed run must keep.

    Their names are those of gin with the group in front, such as "training.seed". The
    content is changed.
    """
    optimizer = content["training"].get("optimizer") or {}
    # Keras's name for it has a number that depends on what else the process has made.
    optimizer.pop("name", None)
    content["training"]["optimizer.learning_rate"] = optimizer.pop(
        "learning_rate", None
    )
    # The model's code may have moved to another module.
    content["recogniser"].pop("module", None)

    return flattened(content)


def flattened(content: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns groups of settings as one, with names such as "training.seed"."""
    return {
        f"{group}.{name}": value
        for group, settings in content.items()
        for name, value in settings.items()
    }


def _check_own_start(run_dir: Path) -> None:
    """Raises UsageError unless the folder holds nothing but a start of tfasr train."""
    is_begun = is_ledger(run_dir / EVENTS_FILE)
    experiment = object_or_empty(run_dir / EXPERIMENT_FILE)
    is_named = isinstance(experiment.get("training"), dict)
    # A start writes the ledger, then the experiment, then all else.
    names = _WRITTEN_AT_START

    if not is_begun:
        names = (EVENTS_FILE, *names)

    check_owned(
        run_dir,
        "--run_dir",
        f"{EXPERIMENT_FILE} of tfasr train",
        names,
        owned=is_begun and is_named,
    )


def _check_shards(run_dir: Path, shards: dict[str, str]) -> None:
    """Raises UsageError if the shards' content isn't that which the run began with."""
    recorded = last_value(run_dir, "shards")
    if recorded is None:
        # The start was killed before it recorded them, so nothing was trained.
        return

    differing = differences({split: recorded.get(split) for split in shards}, shards)
    if differing:
        raise UsageError(
            f"A resumed run must keep its data. The shards' content differs from what {run_dir} "
            f"was trained on: {differing}. Name the same --shard_dir, or another --run_dir."
        )


def finished_history(events: list[Event]) -> History | None:
    """Returns the metrics of each evaluation of a finished run.

    They are those of `tfasr.training.checkpoint.TrainingState.history`. None if the run
    isn't finished.
    """
    if not is_finished(events):
        return None

    # A later session may have evaluated an epoch again, which then counts.
    scores = {}
    for event in events:
        if event["key"] == "tracked_stats" and event.get("value") is not None:
            about = metadata(event)
            epoch = evaluated_epoch(about)
            kept_epoch = float(epoch) if "at_epoch" in about else epoch
            scores[epoch] = kept_scores(kept_epoch, event["value"])

    return list(scores.values())


def kept_scores(epoch: float, values: Mapping[str, float]) -> dict[str, float]:
    """Returns what a run's state and ``history`` keep of an evaluation's scores.

    The epoch is kept only if epochs have several evaluations; it is a float then.
    """
    kept = {"epoch": epoch} if isinstance(epoch, float) else {}
    return kept | {name: values[name] for name in evaluated_metrics() if name in values}


def epochs_done(history: Sequence[Mapping[str, float]]) -> int:
    """Returns the number of epochs that a history of evaluations covers."""
    return math.ceil(history[-1].get("epoch", len(history))) if history else 0


def log_resumption(run_dir: Path, step: int | None) -> None:
    """Logs the step that a run resumes from, or what it lost without a checkpoint.

    Args:
        run_dir: the run's folder.
        step: of the checkpoint; None if no checkpoint can be read.
    """
    if step is not None:
        log.info("resuming from step %d", step)
        return

    events = (event for event in read_events(run_dir) if event["key"] == "train_step")
    steps = (metadata(event).get("step") for event in events)
    lost = max((number for number in steps if isinstance(number, int)), default=0)
    log.warning(
        "%s has no checkpoint that can be read: resuming from step 0. Counted as lost "
        "work: %d steps.",
        run_dir,
        lost,
    )


def record_sources(
    run_dir: Path,
    shard_dir: Path,
    statistics: tuple[np.ndarray, np.ndarray],
    own_words: bool = False,
) -> None:
    """Writes ``run.json``: where a run's data, code and machine are from.

    Args:
        run_dir: the run's folder.
        shard_dir: the folder of its splits.
        statistics: mean and deviation of the training split's features, both
            ``(num_features,)``.
        own_words: whether ``lexicon.txt`` has other words than the training
            transcripts.
    """
    mean, deviation = statistics
    content = {
        "shard_dir": str(shard_dir.resolve()),
        "revision": revision(),
        "system": describe_system(),
        "feature_statistics": {"mean": mean.tolist(), "deviation": deviation.tolist()},
    }
    if own_words:
        content["dictionary"] = "a file's words"

    write_whole(run_dir / RUN_FILE, json.dumps(content, indent=1) + "\n")


# The files that determine a run, in addition to its shards and the code.
_SETTINGS = (
    EXPERIMENT_FILE,
    ALPHABET_FILE,
    LEXICON_FILE,
    PLUGINS_FILE,
    GIN_GIVEN_FILE,
    GIN_OPERATIVE_FILE,
    RUN_FILE,
)


def settings_hashes(run_dir: Path) -> dict[str, str]:
    """Returns the SHA-256 of each of a run's settings files, by name."""
    return {
        name: file_sha256(run_dir / name)
        for name in _SETTINGS
        if (run_dir / name).is_file()
    }


def checkpoint_hashes(run_dir: Path) -> dict[str, str]:
    """Returns the SHA-256 of each of a run's checkpoints, by name."""
    checkpoints = sorted((run_dir / CHECKPOINTS_FOLDER).glob("*.npz"))
    return {path.name: file_sha256(path) for path in checkpoints}


def recorded_lexicon(run_dir: Path) -> Path | None:
    """Returns the run's lexicon file if its words were the user's, else None."""
    if "dictionary" not in object_or_empty(run_dir / RUN_FILE):
        return None

    return run_dir / LEXICON_FILE


def recorded_shard_dir(run_dir: Path) -> Path:
    """Returns the folder of the splits on which a run was trained."""
    content = read_object(
        run_dir / RUN_FILE, "Name the shards with --shard_dir.", ("shard_dir",)
    )
    return Path(str(content["shard_dir"]))


def load_feature_statistics(
    run_dir: Path, num_features: int
) -> tuple[np.ndarray, np.ndarray]:
    """Reads mean and deviation of the training split's features.

    Args:
        run_dir: the run's folder.
        num_features: of the run's model.

    Returns:
        Both as float32 ``(num_features,)``.

    Raises:
        UsageError: if they are missing or wrong.
    """
    remedy = (
        "The run's features cannot be normalised without it: copy it from where the run "
        "was."
    )
    path = run_dir / RUN_FILE
    content = read_object(path, remedy, ("feature_statistics",))
    statistics = content["feature_statistics"]

    try:
        mean = np.asarray(statistics["mean"], np.float32)
        deviation = np.asarray(statistics["deviation"], np.float32)
        check_statistics(mean, deviation, num_features)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise UsageError(
            f"{path} must hold the features' mean and deviation: {error!r} {remedy}"
        ) from error
    return mean, deviation
