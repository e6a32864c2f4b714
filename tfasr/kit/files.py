"""Files that appear whole or not at all, also after a power loss, and locks that a crash releases.

A file is written beside its place, synced, renamed over it, and the folder that holds the new name
is synced: at every moment the name leads to the old content or to the new one.

Source: Pillai et al., "All file systems are not created equal", OSDI 2014, section 2 (what a
rename promises without these syncs).
"""

import contextlib
import dataclasses
import errno
import fcntl
import importlib
import inspect
import json
import logging
import numbers
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tfasr.errors import UsageError

# Reads files that may be damaged or forged: every error is one line that names the file.


def read_text(path: str | Path, remedy: str) -> str:
    """Returns a UTF-8 file's text.

    Args:
        remedy: a sentence that says what to do if it cannot be read.

    Raises:
        UsageError: if it is missing, unreadable or no UTF-8; it names the file.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        cause = f"which is no UTF-8 text ({error.reason} at byte {error.start})"
    except OSError as error:
        cause = f"which cannot be read ({error.strerror or error})"
    raise UsageError(f"A readable text file is needed. Received: {path}, {cause}. {remedy}")


def read_object(path: str | Path, remedy: str, required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns a JSON file's object.

    Args:
        remedy: a sentence that says what to do if it is damaged.
        required: names that the object must have.

    Raises:
        UsageError: if it is missing, unreadable, cut, no object, or lacks a name; it names the
            file.
    """
    text = read_text(path, remedy)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} must be a JSON object. It is cut or damaged: {error}. {remedy}"
        ) from None
    if not isinstance(content, dict):
        raise UsageError(
            f"{path} must be a JSON object. Received: a JSON {type(content).__name__}. {remedy}"
        )
    missing = [name for name in required if name not in content]
    if missing:
        raise UsageError(f"{path} must hold {', '.join(missing)}, which it lacks. {remedy}")
    return content


def object_or_empty(path: str | Path) -> dict[str, Any]:
    """Returns a JSON file's object; {} if the file is missing, damaged or no object."""
    try:
        return read_object(path, "")
    except UsageError:
        return {}


PARTIAL_SUFFIX = ".partial"

_log = logging.getLogger("tfasr")
_FAILED = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def write_whole(path: str | Path, content: str | bytes, partial: str | Path | None = None) -> None:
    """Replaces a file's content, text as UTF-8.

    What has no place in UTF-8, such as the bytes of a file's name that is none, is written as
    Python's escape.

    Raises:
        OSError: if it cannot be written; the file is then as it was before.
    """
    with whole_file(path, partial) as file:
        if isinstance(content, str):
            content = content.encode(errors="backslashreplace")
        file.write(content)


@contextlib.contextmanager
def whole_file(path: str | Path, partial: str | Path | None = None) -> Iterator[IO[bytes]]:
    """Opens a file to be written; it takes its place when the block ends without an exception.

    Args:
        partial: what it is called until then, beside its place; by default its name with
            `PARTIAL_SUFFIX`. Two who may write one file at once must give two names.

    Raises:
        OSError: as `write_whole`.
    """
    path = Path(path)
    partial = path.with_name(path.name + PARTIAL_SUFFIX) if partial is None else Path(partial)
    try:
        with named_in_errors(partial), partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)  # on a full disk it would keep the room it took
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Gives an OSError of a write or sync, which knows no name, the file's name."""
    try:
        yield
    except OSError as error:
        name_in_error(error, path)
        raise


def name_in_error(error: OSError, path: Path) -> None:
    """Gives an error of a write or sync the file's name, where it has none."""
    if error.filename is None and error.errno is not None:
        error.filename = str(path)


def publish(partial: Path, path: Path) -> None:
    """Moves a finished file to its place, after its content has reached the disk."""
    sync(partial)
    partial.replace(path)
    sync_folder(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with named_in_errors(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Waits until a folder's names are on the disk, where the file system can be asked to.

    Raises:
        OSError: if the disk fails; some file systems refuse to sync a folder, which is no failure.
    """
    try:
        sync(folder)
    except OSError as error:
        if error.errno in _FAILED:
            raise


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it that are missing, so that their names are on the disk."""
    above = [folder, *folder.parents]
    missing = [path for path in above if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_folder(path.parent)


@contextlib.contextmanager
def locked(path: Path, held: str) -> Iterator[None]:
    """Holds a lock while the block runs; the kernel releases it when the process ends, however.

    Raises:
        UsageError: if another process holds the lock.
    """
    descriptor = _acquire(path, held)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, held: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            take_lock(descriptor, path, held)
        except BaseException:
            os.close(descriptor)
            raise
        # The one who held it before may have removed the file between our opening and locking it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def take_lock(descriptor: int, path: Path, held: str) -> None:
    """Locks an open file until it is closed.

    Raises:
        UsageError: if another process holds the lock; ``held`` is its message.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise UsageError(held) from None
        _log.warning(
            "%s: this file system has no locks (%s); take care that no other process writes here.",
            path,
            error.strerror,
        )


# What lies in a run's folder: the name of every file, written once.

EVENTS_FILE = "events.jsonl"
"""The ledger: every event, append-only; see `tfasr.ledger.events`."""
WORKER_EVENTS = "events-worker-*.jsonl"
"""What each worker of a cluster notes of its steps; see `worker_events_file`."""
HEARTBEAT_FILE = "heartbeat"
"""Touched while the run lives; tells how long a killed session lasted."""
LOCK_FILE = "lock"
"""Held by the process that writes the run, and gone afterwards."""
EXPERIMENT_FILE = "experiment.json"
"""The configs of the experiment, see `tfasr.training.experiment.Experiment`."""
RECORDER_FILE = "recorder.json"
"""The settings of a run that `tfasr.Recorder` wrote."""
ALPHABET_FILE = "alphabet.json"
"""The model's classes, see `tfasr.alphabet.Alphabet`."""
RUN_FILE = "run.json"
"""Facts about the data, the software and the machine."""
PLUGINS_FILE = "plugins.json"
"""The modules outside tfasr that the run was trained with, see `tfasr.kit.registry`."""
LEXICON_FILE = "lexicon.txt"
"""The training transcripts' words, one a line."""
GIN_GIVEN_FILE = "config.gin"
"""The configuration as given, includes in place."""
GIN_OPERATIVE_FILE = "operative_config.gin"
"""Every value in use."""
CHECKPOINTS_FOLDER = "checkpoints"
"""Holds ``step-NNNNNNNN.npz`` and `BEST_CHECKPOINT`."""
BEST_CHECKPOINT = "best.npz"
"""The weights with the lowest CER on the validation split."""
HYPOTHESES_FOLDER = "hypotheses"
"""Holds what each evaluation's decoder wrote, as JSON lines."""
CPU_FILE = "cpu.csv"
"""How busy the processor was, over time."""
GPU_FILE = "gpu.csv"
"""How busy the GPUs were, over time."""
ENERGY_FILE = "energy.csv"
"""What energy counters showed, over time."""
PROGRESS_FILE = "progress.json"
"""Where the run stands now, for whoever watches it."""


def worker_events_file(rank: int) -> str:
    """Returns the name of the file in which a worker of a cluster notes its steps."""
    return WORKER_EVENTS.replace("*", str(rank))


def hypotheses_file(run_dir: Path, epoch: int) -> Path:
    """Returns the file of the hypotheses of an epoch's evaluation."""
    return run_dir / HYPOTHESES_FOLDER / f"validation-epoch-{epoch:04d}.jsonl"


# Values as JSON and back with their types: dataclasses, tuples, paths, functions by their name.

_TYPE = "$type"


def to_typed_json(value: Any) -> Any:
    """Returns JSON values from which `from_typed_json` makes an equal value of the same types.

    Args:
        value: numbers (NumPy's become Python's), text, None, paths, dataclasses, classes and
            functions that can be imported, and lists, tuples and dicts of such.

    Raises:
        TypeError: for anything else.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return {_TYPE: "path", "text": str(value)}
    if isinstance(value, list):
        return [to_typed_json(item) for item in value]
    if isinstance(value, tuple):
        return {_TYPE: "tuple", "items": [to_typed_json(item) for item in value]}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and _TYPE not in value:
            return {key: to_typed_json(item) for key, item in value.items()}
        return {_TYPE: "dict", "items": [to_typed_json(list(item)) for item in value.items()]}
    if inspect.isclass(value) or inspect.isroutine(value):
        return {_TYPE: "name", "name": name_of(value)}
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        values = {name: to_typed_json(getattr(value, name)) for name in fields}
        return {_TYPE: "dataclass", "class": name_of(type(value)), "fields": values}
    raise TypeError(
        "What a process is told or answers must be made of numbers, text, paths, dataclasses, "
        f"lists, tuples and dicts. Received: {value!r}."
    )


def from_typed_json(content: Any) -> Any:
    """Returns the value that `to_typed_json` was given; imports the modules of its classes."""
    if isinstance(content, list):
        return [from_typed_json(item) for item in content]
    if not isinstance(content, dict):
        return content
    kind = content.get(_TYPE)
    if kind is None:
        return {key: from_typed_json(item) for key, item in content.items()}
    if kind == "path":
        return Path(content["text"])
    if kind == "tuple":
        return tuple(from_typed_json(content["items"]))
    if kind == "dict":
        return dict(from_typed_json(content["items"]))
    if kind == "name":
        return named(content["name"])
    return named(content["class"])(**from_typed_json(content["fields"]))


def name_of(thing: Any) -> str:
    """Returns the "module:name" by which `named` finds a class or function.

    Raises:
        TypeError: if it cannot be imported, such as a lambda or a script's own function.
    """
    name = f"{getattr(thing, '__module__', None)}:{getattr(thing, '__qualname__', None)}"
    try:
        found = named(name)
    except (ImportError, AttributeError):
        found = None
    if found is not thing or name.startswith("__main__:"):
        raise TypeError(
            "What another process is to use must be written at the top level of a module that can "
            f"be imported. Received: {thing!r}."
        )
    return name


def named(name: str) -> Any:
    """Imports and returns what "module:name" stands for."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
