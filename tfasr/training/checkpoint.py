"""Checkpoints: all variables and the position in the run, in one file that appears whole."""

import dataclasses
import json
import logging
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfasr.errors import UsageError
from tfasr.run_files import BEST_CHECKPOINT, CHECKPOINTS_FOLDER

log = logging.getLogger("tfasr")

_STATE = "state"


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands.

    Attributes:
        step: optimizer updates so far.
        epoch: the epoch being trained, from 1.
        step_in_epoch: batches of it that are done.
        epoch_trained: whether it lacks only its evaluation.
        history: per evaluated epoch, its metrics.
    """

    step: int = 0
    epoch: int = 1
    step_in_epoch: int = 0
    epoch_trained: bool = False
    history: list[dict[str, float]] = field(default_factory=list)


def state_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns all state of a model and its optimizer, random states included, by unique name.

    Names hold the order and the last part of Keras's path alone: the rest counts the layers that a
    process has made.
    """
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer else [])]
    unique = list({id(variable): variable for variable in variables}.values())
    return {
        f"{number:04d} {variable.path.rsplit('/', 1)[-1]}": variable
        for number, variable in enumerate(unique)
    }


def plain_array(value: Any) -> np.ndarray:
    """Returns the value of a Keras variable, mirrored or not, or of a tensor."""
    # NumPy's own conversion of a Keras variable warns of a keyword that Keras does not take.
    return np.asarray(getattr(value, "value", value).numpy())


def save_checkpoint(run_dir: Path, model: keras.Model, state: TrainingState, keep: int) -> Path:
    """Writes ``checkpoints/step-<step>.npz`` and removes all but the newest ``keep``.

    Raises:
        OSError: if the file cannot be written; older checkpoints are then still there.
    """
    folder = run_dir / CHECKPOINTS_FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{state.step:08d}.npz"
    partial = path.with_suffix(".partial")
    variables = state_variables(model)
    arrays = {name: plain_array(value) for name, value in variables.items()}
    arrays[_STATE] = np.asarray(json.dumps(dataclasses.asdict(state)))
    with partial.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    for old in sorted(folder.glob("step-*.npz"))[:-keep]:
        old.unlink()
    return path


def keep_as_best(path: Path) -> None:
    """Makes a checkpoint the best so far; it stays when newer ones replace it."""
    link = path.with_name(f"{BEST_CHECKPOINT}.partial")
    link.unlink(missing_ok=True)
    os.link(path, link)
    link.replace(path.with_name(BEST_CHECKPOINT))


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Returns the newest checkpoint that can be read whole, or None where there is none."""
    for path in sorted((run_dir / CHECKPOINTS_FOLDER).glob("step-*.npz"), reverse=True):
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged is None:
                return path
            log.warning("%s is damaged (%s); trying the one before.", path, damaged)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            log.warning("%s cannot be read (%s); trying the one before.", path, error)
    return None


def find_checkpoint(run_dir: Path, which: str) -> Path:
    """Returns a run's checkpoint.

    Args:
        run_dir: the run's folder.
        which: "best", "last", or a file's path.

    Raises:
        UsageError: if there is none.
    """
    named = run_dir / CHECKPOINTS_FOLDER / BEST_CHECKPOINT if which == "best" else Path(which)
    path = newest_checkpoint(run_dir) if which == "last" else named
    if path is None or not path.is_file():
        there = sorted(file.name for file in (run_dir / CHECKPOINTS_FOLDER).glob("*.npz"))
        raise UsageError(
            f'--checkpoint must be "best", "last" or a file. Received: {which!r}; {run_dir} has '
            f"{there or 'no checkpoint yet: the run must come to the end of an epoch first'}."
        )
    return path


def read_state(path: Path) -> TrainingState:
    """Returns the state saved with a checkpoint."""
    with np.load(path) as arrays:
        return TrainingState(**json.loads(str(arrays[_STATE])))


def restore(path: Path, model: keras.Model) -> TrainingState:
    """Restores all variables that a model has, and returns the state saved with them.

    Args:
        path: a checkpoint.
        model: built, and compiled where its optimizer is to be restored.

    Raises:
        UsageError: if the checkpoint is of another model.
    """
    with np.load(path) as arrays:
        variables = state_variables(model)
        unknown = [
            f"{name} {tuple(variable.shape)}"
            for name, variable in variables.items()
            if name not in arrays or arrays[name].shape != tuple(variable.shape)
        ]
        if unknown:
            raise UsageError(
                f"A checkpoint must hold the model's variables. {path} lacks {unknown[:3]} and "
                f"{max(len(unknown) - 3, 0)} more: it was written by another configuration."
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])
    return read_state(path)
