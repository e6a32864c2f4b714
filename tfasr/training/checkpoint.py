"""Checkpoints: all of a run's variables and its position, in one file.

The training loop saves a checkpoint (`save_checkpoint`), a resumed run continues from
one (`newest_checkpoint`, `restore`), and evaluations and trained models read their
weights from one (`restore_for_use`). A file is written whole or not at all, so a
process that is killed at any moment leaves one to continue from.

A file is an uncompressed ``.npz`` archive: an array per variable, averaged weights if
the optimizer keeps them, the `TrainingState` and the ledger's mark, both as JSON.
"""

import contextlib
import dataclasses
import json
import logging
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import (
    BEST_CHECKPOINT,
    CHECKPOINTS_FOLDER,
    PARTIAL_SUFFIX,
    make_folder,
    opened,
    sync_folder,
    whole_file,
    write_whole,
)
from tfasr.ledger.events import ledger_covers

log = logging.getLogger("tfasr")

# Added to the name of a checkpoint that can't be resumed from.
DAMAGED_SUFFIX = ".damaged"
# Names in the archive: the training state, and `tfasr.ledger.events.Ledger.mark` of
# when the checkpoint was saved.
_STATE = "state"
_LEDGER = "ledger"
# The prefix of the names of values that inference uses in place of the training
# weights.
_AVERAGED = "averaged/"
# What reading a damaged archive raises.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError)
# What NumPy and the archive raise for a file that isn't a checkpoint; the TypeError is
# that of "with" and a single array, a .npy file.
_NO_CHECKPOINT = (
    *_UNREADABLE,
    ValueError,
    KeyError,
    TypeError,
    MemoryError,
    AttributeError,
)


# The metrics of each evaluation of a run so far, by name.
History = list[dict[str, float]]


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands; with the variables, all that a resumed run needs."""

    step: int = 0  # optimizer updates so far
    epoch: int = 1  # being trained
    step_in_epoch: int = 0  # batches of that epoch that are done
    epoch_trained: bool = False  # whether that epoch lacks only its evaluation
    # Metrics by evaluated epoch.
    history: History = field(default_factory=list)
    # Epochs of evaluations that have begun but aren't scored; only if an epoch has
    # several.
    evaluating: list[float] = field(default_factory=list)

    @property
    def last_evaluated(self) -> float | None:
        """The epoch of the last evaluation begun, such as 2.5.

        None unless epochs have several evaluations.
        """
        if self.evaluating:
            return self.evaluating[-1]

        if self.history:
            return self.history[-1].get("epoch")

        return None


def state_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns all state of a model and its optimizer, by unique name.

    That includes the states of random generators. A name is the variable's number and
    the last part of Keras's path. The rest of the path is left out, as it depends on
    how many layers the process has made.
    """
    variables = list(model.variables)
    optimizer = getattr(model, "optimizer", None)
    if optimizer:
        variables += optimizer.variables

    return _named(variables)


def model_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns a model's variables without its optimizer's, by unique name."""
    return _named(model.variables)


def _named(variables: Iterable[keras.Variable]) -> dict[str, keras.Variable]:
    unique = {id(variable): variable for variable in variables}.values()
    return {
        f"{number:04d} {variable.path.rsplit('/', 1)[-1]}": variable
        for number, variable in enumerate(unique)
    }


@contextlib.contextmanager
def values_kept(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """Restores variables, bit for bit, after a block."""
    saved = [(variable, plain_array(variable)) for variable in variables]
    try:
        yield
    finally:
        for variable, value in saved:
            variable.assign(value)


def plain_array(value: Any) -> np.ndarray:
    """Returns the value of a tensor or of a Keras variable, mirrored or not."""
    # np.asarray(variable) would warn of a keyword argument that Keras doesn't accept.
    return np.asarray(getattr(value, "value", value).numpy())


def save_checkpoint(
    run_dir: Path,
    model: keras.Model,
    state: TrainingState,
    keep: int,
    for_use: Mapping[str, np.ndarray] | None = None,
    ledger: Mapping[str, Any] | None = None,
) -> Path:
    """Writes ``checkpoints/step-<step>.npz``, then removes all but the newest ``keep``.

    Args:
        run_dir: the run's folder.
        model: compiled; its variables and its optimizer's are saved.
        state: where the run stands.
        keep: how many checkpoints to keep, at least 1.
        for_use: the values that inference takes in place of the model's own, by the
            names of `model_variables`; see `restore_for_use`.
        ledger: the ledger's mark after this step, see `_LEDGER`.

    Raises:
        OSError: if the file cannot be written.
        RunError: if a weight is not finite, as a run could never recover from it. Older
            checkpoints are then kept.
    """
    folder = run_dir / CHECKPOINTS_FOLDER
    make_folder(folder)
    path = folder / f"step-{state.step:08d}.npz"
    arrays = {
        name: plain_array(value) for name, value in state_variables(model).items()
    }
    for_use = for_use or {}
    bad = non_finite(arrays, len(model.variables)) or non_finite(for_use, len(for_use))
    if bad:
        verb = f"and {len(bad) - 1} more are" if len(bad) > 1 else "is"

        raise RunError(
            f"All weights must be finite. After step {state.step} (epoch {state.epoch}) "
            f"{bad[0]!r} {verb} not. The earlier checkpoints are kept. Lower the learning "
            "rate or clip gradients (clipnorm)."
        )

    arrays |= {f"{_AVERAGED}{name}": value for name, value in for_use.items()}
    arrays[_STATE] = np.asarray(json.dumps(dataclasses.asdict(state)))
    if ledger is not None:
        arrays[_LEDGER] = np.asarray(json.dumps(ledger))

    with whole_file(path) as file:
        np.savez(file, **arrays)

    # The new one is one of those to keep.
    others = [old for old in sorted(folder.glob("step-*.npz")) if old != path]
    superfluous = max(0, len(others) - (keep - 1))
    for old in others[:superfluous]:
        old.unlink()

    return path


def non_finite(arrays: Mapping[str, np.ndarray], count: int) -> list[str]:
    """Returns which of the first ``count`` arrays, by name, contain NaN or infinity.

    In the order of their names a model's variables come before its optimizer's.
    """
    names = sorted(name for name in arrays if name not in (_STATE, _LEDGER))[:count]
    floats = [name for name in names if arrays[name].dtype.kind == "f"]
    return [name for name in floats if not np.isfinite(arrays[name]).all()]


def keep_as_best(path: Path) -> None:
    """Makes a checkpoint the run's best one, which stays when others are removed."""
    give_second_name(path, path.with_name(BEST_CHECKPOINT))


def give_second_name(path: Path, name: Path) -> None:
    """Gives a checkpoint a second name, which stays when the first is removed.

    Both names share the content on the disk, if the file system has hard links.

    Args:
        path: the checkpoint.
        name: the second name, in the same folder; an older file of it is replaced.

    Raises:
        RunError: if the checkpoint is missing.
    """
    if name.is_file() and name.samefile(path):
        # Renaming the link would do nothing and leave it behind.
        return

    link = name.with_name(name.name + PARTIAL_SUFFIX)
    link.unlink(missing_ok=True)

    try:
        os.link(path, link)
    except FileNotFoundError as error:
        raise RunError(
            f"{path} must stay until its epoch is evaluated. It was removed while the run went on: "
            "--resume continues from the checkpoints that are left."
        ) from error
    except OSError:
        # The file system has no hard links.
        write_whole(name, path.read_bytes())
        return

    link.replace(name)
    sync_folder(path.parent)


def newest_checkpoint(run_dir: Path, *, set_aside: bool = False) -> Path | None:
    """Returns the newest checkpoint that can be read, or else the best one.

    Args:
        run_dir: the run's folder.
        set_aside: for resuming a run: also skips checkpoints whose steps the ledger
            lacks, and renames all that it skips, so that they aren't tried or counted
            again.

    Returns:
        The file, or None if no checkpoint can be read.
    """
    folder = run_dir / CHECKPOINTS_FOLDER
    newest_first = sorted(folder.glob("step-*.npz"), reverse=True)
    for path in [*newest_first, folder / BEST_CHECKPOINT]:
        if not path.is_file():
            continue

        cause = damage(path)
        use = "read"
        if cause is None and set_aside and not _covered(path, run_dir):
            cause = "the ledger does not hold the steps before it"
            use = "resumed from"

        if cause is None:
            if path.name == BEST_CHECKPOINT:
                log.warning("%s is the last checkpoint that can be read.", path)

            return path

        aside = ""
        if set_aside:
            renamed = path.replace(path.with_name(path.name + DAMAGED_SUFFIX))
            aside = f"; it is set aside as {renamed.name}"

        log.warning(
            "%s cannot be %s (%s)%s; trying the one before.", path, use, cause, aside
        )

    return None


def _covered(path: Path, run_dir: Path) -> bool:
    """Whether the run's ledger has all steps before a checkpoint."""
    with _opened(path) as arrays:
        if _LEDGER not in arrays:
            return True

        return ledger_covers(run_dir, json.loads(str(arrays[_LEDGER])))


def damage(path: Path) -> str | None:
    """Returns why a checkpoint can't be read, or None if it can."""
    try:
        with opened(path, None) as file, zipfile.ZipFile(file) as archive:
            _check_uncompressed(archive, path)
            damaged = archive.testzip()

        if damaged is not None:
            return f"{damaged} is damaged"

        read_state(path)
    except (*_UNREADABLE, UsageError, NotImplementedError) as error:
        return str(error)

    return None


def find_checkpoint(run_dir: Path, which: str) -> Path:
    """Returns the path of a run's "best" or "last" checkpoint, or of a file.

    Args:
        run_dir: the run's folder.
        which: "best" (by validation CER), "last", or the path of a file.

    Raises:
        UsageError: if it is missing.
    """
    folder = run_dir / CHECKPOINTS_FOLDER
    if which == "best":
        path = folder / BEST_CHECKPOINT
    elif which == "last":
        path = newest_checkpoint(run_dir)
    else:
        path = Path(which)

    if path is None or not path.is_file():
        existing = sorted(file.name for file in folder.glob("*.npz"))
        known = existing or "no checkpoint yet: the run must finish an epoch first"
        raise UsageError(
            '--checkpoint must be "best", "last" or a file. '
            f"Received: {which!r}; {run_dir} has {known}."
        )

    return path


def read_state(path: Path) -> TrainingState:
    """Returns the training state in a checkpoint; UsageError if it can't be read."""
    with _opened(path) as arrays:
        return _state_in(arrays, path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Opens a checkpoint's arrays for a block.

    Whatever turns out to be wrong with them in the block becomes a UsageError too.
    """
    try:
        # NumPy would leave the file of a damaged archive open.
        with opened(path, None) as file, np.load(file) as arrays:
            _check_uncompressed(arrays.zip, path)
            yield arrays
    except UsageError:
        raise
    except _NO_CHECKPOINT as error:
        raise UsageError(
            f"A checkpoint must be a .npz file that tfasr train wrote. {path} isn't one, or is "
            f'damaged: {error}. Name another one with --checkpoint, such as "last" or "best".'
        ) from None


def _check_uncompressed(archive: zipfile.ZipFile, path: Path) -> None:
    """Raises UsageError if arrays would take up more memory than the file has bytes."""
    claimed = sum(entry.file_size for entry in archive.infolist())
    if claimed > path.stat().st_size:
        raise UsageError(
            f"A checkpoint must hold its arrays uncompressed, as tfasr writes them. {path} has "
            f"{path.stat().st_size} bytes, and its arrays {claimed}."
        )


def _shape(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """Returns an array's shape without reading the array."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, *_ = np.lib.format.read_array_header_1_0(file)
        else:
            shape, *_ = np.lib.format.read_array_header_2_0(file)

    return shape


def _state_in(arrays: Mapping[str, np.ndarray], path: Path) -> TrainingState:
    """Returns the training state in an archive; UsageError if it isn't one."""
    if _STATE not in arrays:
        raise UsageError(
            f"A checkpoint must be written by tfasr train. {path} has no training state."
        )

    try:
        state = TrainingState(**json.loads(str(arrays[_STATE])))
    except (ValueError, TypeError) as error:
        raise UsageError(f"The training state in {path} is damaged: {error}.") from None

    counts = (state.step, state.epoch, state.step_in_epoch)
    are_counts = all(isinstance(count, int) for count in counts)
    if not are_counts or not isinstance(state.history, list):
        raise UsageError(f"The training state in {path} is damaged: {state}.")

    return state


def restore_for_use(path: Path, model: keras.Model) -> TrainingState:
    """Restores a model's weights for evaluation and use.

    They are the averaged ones if the checkpoint has them. A compiled model's optimizer
    stays as it is.
    """
    return restore(path, model, for_use=True)


def restore(path: Path, model: keras.Model, *, for_use: bool = False) -> TrainingState:
    """Restores a model's variables, and its optimizer's if it is compiled.

    Args:
        path: the checkpoint.
        model: built, of the same configuration.
        for_use: whether to restore the weights for inference, see `restore_for_use`.

    Returns:
        The saved state of the run.

    Raises:
        UsageError: if the checkpoint is damaged, belongs to another model or doesn't
            contain real numbers; the model then keeps its variables.
    """
    if for_use:
        variables = model_variables(model)
    else:
        variables = state_variables(model)

    arrays = {}
    unknown = []

    with _opened(path) as saved:
        # All arrays are tested, also those that aren't needed here.
        damaged = saved.zip.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} doesn't match its checksum")

        state = _state_in(saved, path)
        for name, variable in variables.items():
            source = f"{_AVERAGED}{name}"
            if not for_use or source not in saved:
                source = name

            wanted = tuple(variable.shape)
            if source not in saved or _shape(saved.zip, source) != wanted:
                unknown.append(f"{name} {wanted}")
                continue

            arrays[name] = saved[source]
            if arrays[name].dtype.kind not in "fiub":
                raise UsageError(
                    f"A checkpoint must hold real numbers. {path} has {arrays[name].dtype} in "
                    f"{name!r}."
                )

    if unknown:
        raise UsageError(
            f"A checkpoint must hold the model's variables. {path} lacks {unknown[:3]} and "
            f"{max(len(unknown) - 3, 0)} more: it was written by another configuration."
        )

    bad = non_finite(arrays, len(model.variables))
    if bad:
        log.warning(
            "%s holds weights that are not finite (%s): scores mean nothing.",
            path,
            bad[0],
        )

    for name, variable in variables.items():
        variable.assign(arrays[name])

    return state
