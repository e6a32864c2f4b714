"""Files that survive a crash, files from strangers, and locks that a crash releases.

A file is written next to its destination, synced and renamed, and the folder is synced.
So the file always has either all of its old or all of its new content, even after a
power loss. A file that anyone may have made is read with `opened`, which never waits
and never reads endlessly. At the end are the names of the files in a run's folder.

Source: Pillai et al., "All file systems are not created equal", OSDI 2014, section 2
(why a rename needs these syncs).
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from tfasr.errors import UsageError

# Limit for a file that is read in one piece: 1 GiB.
MOST_BYTES = 1 << 30

# Limit for a JSON file, 32 MiB: parsed, it takes up to 30 times its size.
MOST_JSON_BYTES = 32 << 20


@contextlib.contextmanager
def opened(
    path: str | Path, most_bytes: int | None = MOST_BYTES
) -> Iterator[IO[bytes]]:
    """Opens a file that anyone may have made, for reading, without waiting for a pipe.

    Args:
        path: the file.
        most_bytes: the largest size; None for any, as for a reader that needs little
            memory.

    Raises:
        UsageError: for a pipe, a device or a larger file.
        OSError: like `open`.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(about.st_mode):
            raise UsageError(f"{path} is a device or a pipe, not a file.")

        if most_bytes is not None and about.st_size > most_bytes:
            raise UsageError(
                f"{path} has {about.st_size} bytes. At most {most_bytes} can be read "
                "here."
            )

        file = os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise

    with file, named_in_errors(Path(path)):
        yield file


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Reads a whole file with `opened`, and raises the same errors."""
    with opened(path, most_bytes) as file:
        content = file.read(most_bytes + 1)

    # It grew since then, or is a file of the kernel, which has no size.
    if len(content) > most_bytes:
        raise UsageError(
            f"{path} has more than {most_bytes} bytes, too many to be read here."
        )

    return content


def read_text(path: str | Path, remedy: str, most_bytes: int = MOST_BYTES) -> str:
    r"""Reads a UTF-8 file; line ends are ``\n``, whatever the file has.

    Args:
        path: the file.
        remedy: what to do about a file that can't be read, as a sentence.
        most_bytes: its largest size.

    Raises:
        UsageError: with the path, the cause and the ``remedy``.
    """
    try:
        return read_bytes(path, most_bytes).decode("utf-8").replace("\r\n", "\n")
    except UsageError as error:
        raise UsageError(f"A readable text file is needed. {error} {remedy}") from None
    except UnicodeDecodeError as error:
        cause = f"which is not UTF-8 text ({error.reason} at byte {error.start})"
    except OSError as error:
        cause = f"which cannot be read ({error.strerror or error})"

    raise UsageError(
        f"A readable text file is needed. Received: {path}, {cause}. {remedy}"
    )


def read_object(
    path: str | Path,
    remedy: str,
    required: tuple[str, ...] = (),
    most_bytes: int = MOST_JSON_BYTES,
) -> dict[str, Any]:
    """Reads a JSON object.

    A key may not occur twice in an object: readers would differ in which of its values
    they use.

    Args:
        path: the file.
        remedy: what to do about a file that can't be read.
        required: keys that it must have.
        most_bytes: its largest size.

    Raises:
        UsageError: if the file can't be read or is no such object.
    """
    text = read_text(path, remedy, most_bytes)
    try:
        content = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} must be a JSON object, but is incomplete or damaged: {error}. "
            f"{remedy}"
        ) from None

    if not isinstance(content, dict):
        raise UsageError(
            f"{path} must be a JSON object. Received: a JSON {type(content).__name__}. "
            f"{remedy}"
        )

    missing = [name for name in required if name not in content]
    if missing:
        raise UsageError(f"{path} lacks {', '.join(missing)}. {remedy}")

    return content


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object of pairs; raises ValueError if a key occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.60} occurs twice")

    return content


# The most files and folders of what a stranger hands in; a large study has some 10,000.
_MOST_ENTRIES = 100_000

# How many times longer a large file may be than what it occupies on the disk. A file of
# holes, which the disk needn't store, can be read for days.
_MOST_HOLES = 16


def check_plain(folder: Path) -> int:
    """Checks that a stranger's folder holds only folders and files of limited size.

    Links could lead out of the folder, pipes and devices never end.

    Returns:
        The number of files and folders.

    Raises:
        UsageError: names the path.
    """
    count = 0

    # `os.scandir` does not follow links, and reads no content.
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if count > _MOST_ENTRIES:
                    raise UsageError(f"{folder} has more than {_MOST_ENTRIES} files.")

                about = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(about.st_mode):
                    waiting.append(Path(entry.path))
                    continue

                _check_plain_file(Path(entry.path), about)

    return count


def _check_plain_file(path: Path, about: os.stat_result) -> None:
    """Raises UsageError unless it is a regular file that the disk really holds."""
    if stat.S_ISLNK(about.st_mode):
        raise UsageError(f"{path} is a link. Copy the file itself (cp -RL).")
    if not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path} is a pipe, a socket or a device, not a file.")

    # POSIX counts blocks of 512 bytes, whatever the file system uses.
    occupied = 512 * about.st_blocks
    if about.st_size > MOST_BYTES and about.st_size > _MOST_HOLES * occupied:
        raise UsageError(
            f"{path} has {about.st_size} bytes, of which the disk holds only "
            f"{occupied}: reading its holes would take very long. Replace it by a real "
            "file."
        )


def file_sha256(path: Path, most_bytes: int | None = None) -> str:
    """Returns a file's SHA-256 as hexadecimal digits, reading a MiB at a time."""
    digest = hashlib.sha256()
    with opened(path, most_bytes) as file:
        while block := file.read(1 << 20):
            digest.update(block)

    return digest.hexdigest()


def object_or_empty(path: str | Path) -> dict[str, Any]:
    """Reads a JSON object; returns {} if the file is missing or isn't one.

    It is for files that only help, such as a run's progress, and for the question
    whether a file is one of tfasr's.
    """
    try:
        return read_object(path, "")
    except UsageError:
        return {}


# Ends the names of files being written. No user has such files, so that what a killed
# process left can be removed.
PARTIAL_SUFFIX = ".tfasr-partial"

_log = logging.getLogger("tfasr")

# Errors of a sync after which the content may be lost.
_FAILED = (errno.EIO, errno.ENOSPC, errno.EDQUOT)

# The errors of flock if another process holds the lock.
HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def write_whole(
    path: str | Path, content: str | bytes, partial: str | Path | None = None
) -> None:
    """Replaces a file's content, all at once.

    Args:
        path: the file; its folder must exist.
        content: text becomes UTF-8, with invalid bytes backslash-escaped: they occur in
            names of files.
        partial: the temporary file, see `whole_file`.

    Raises:
        UsageError: if ``path`` is a device, a pipe or a folder.
    """
    with whole_file(path, partial) as file:
        if isinstance(content, str):
            content = content.encode(errors="backslashreplace")

        file.write(content)


@contextlib.contextmanager
def whole_file(
    path: str | Path, partial: str | Path | None = None
) -> Iterator[IO[bytes]]:
    """Opens a temporary file and renames it to ``path`` when it is closed.

    Args:
        path: gets the new content once the block has ended without an error.
        partial: the temporary file; by default next to ``path``. Concurrent writers
            need different ones.

    Raises:
        UsageError: if ``path`` is a device, a pipe or a folder.
    """
    path = Path(path)
    check_replaceable(path)
    if partial is None:
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
    else:
        partial = Path(partial)

    with named_in_errors(partial):
        file = new_file(partial)

    try:
        with named_in_errors(partial), file:
            yield file
            file.flush()
            os.fsync(file.fileno())

        partial.replace(path)
    except BaseException:
        # It would take up space on a full disk.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)

        raise

    sync_folder(path.parent)


def new_file(partial: Path) -> IO[bytes]:
    """Creates a temporary file, in place of one that a killed process left.

    Its name must end like `PARTIAL_SUFFIX`, which nobody else uses. A link of that name
    is removed, never followed.
    """
    if os.path.lexists(partial):
        partial.unlink()

    # "x" fails if there is a file or a link by then.
    return partial.open("xb")


def check_replaceable(path: Path) -> None:
    """Raises UsageError if a path is a device, a pipe or a folder.

    No file may replace those: writing a result to ``/dev/null`` must not remove it.
    """
    if path.exists() and not path.is_file():
        kind = "a device or a pipe"
        if path.is_dir():
            kind = "a folder"

        raise UsageError(
            f"{path} is {kind} and can't be replaced by a file: choose another."
        )


@contextlib.contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Adds the file's name to an OSError that the block raises without one.

    Errors of a write or a sync have only a number, such as that of a full disk.
    """
    try:
        yield
    except OSError as error:
        name_in_error(error, path)
        raise


def name_in_error(error: OSError, path: Path) -> None:
    """Adds a file's name to an OSError without one."""
    if error.filename is None and error.errno is not None:
        error.filename = str(path)


def publish(partial: Path, path: Path) -> None:
    """Moves a finished file to its destination, after syncing its content to disk.

    Args:
        partial: the file, on the same disk as ``path``.
        path: where it goes, in place of what was there.
    """
    check_replaceable(path)
    sync(partial)
    partial.replace(path)
    sync_folder(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's content is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with named_in_errors(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Waits until a folder's list of files is on disk.

    It is ignored if the file system can't do this; a disk that fails is not.
    """
    try:
        sync(folder)
    except OSError as error:
        if error.errno in _FAILED:
            raise


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, and waits until they are on disk.

    It may exist already.
    """
    above = [folder, *folder.parents]
    missing = [path for path in above if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)

    for path in reversed(missing):
        sync_folder(path.parent)


# How many files an error lists.
_LISTED = 8


def check_owned(
    folder: Path,
    flag: str,
    claim: str,
    names: Iterable[str] | None = None,
    *,
    owned: bool,
) -> None:
    """Checks that a writer overwrites and removes no files of others in a folder.

    Args:
        folder: where it will write.
        flag: the flag or argument that names the folder.
        claim: the content that shows that this writer made the folder.
        names: the files it may write; None if the folder must be empty.
        owned: whether the folder has that content.

    Raises:
        UsageError: names the files that would be lost.
    """
    if owned or not folder.exists():
        return

    if not folder.is_dir():
        raise UsageError(
            f"{flag} must be a folder. {folder} is a file: choose another."
        )

    kind = "new folder, or one without files of others that would be overwritten"
    if names is None:
        kind = "new or empty folder"
        names = (path.name for path in folder.iterdir())

    lost = sorted(name for name in set(names) if os.path.lexists(folder / name))
    if lost:
        shown = ", ".join(lost[:_LISTED])
        if len(lost) > _LISTED:
            shown += ", ..."

        raise UsageError(
            f"{flag} must be a {kind}. Received: {folder}, which holds {shown} and no "
            f"{claim}. Nothing in it was changed: choose another folder, or move those "
            "files away."
        )


@contextlib.contextmanager
def locked(path: Path, held: str) -> Iterator[None]:
    """Holds a lock during a block; a crash releases it too.

    Args:
        path: the file to lock. It is created, and removed afterwards if it is empty.
        held: the error's text if another process has the lock.

    Raises:
        UsageError: if another process has the lock.
    """
    descriptor = acquire_lock(path, held)
    owner = os.getpid()

    try:
        yield
    finally:
        # Keep the file in a forked process, which inherits the lock, and if it had
        # content before.
        if os.getpid() == owner and not os.fstat(descriptor).st_size:
            with contextlib.suppress(OSError):
                path.unlink()

        forget_lock(descriptor)
        os.close(descriptor)


def acquire_lock(path: Path, held: str) -> int:
    """Locks a file until the returned descriptor is closed.

    The descriptor can be inherited by a process that must keep the lock. `forget_lock`
    must be called before it is closed.

    Raises:
        UsageError: with the text ``held``, if another process has the lock.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            take_lock(descriptor, path, held)
        except BaseException:
            os.close(descriptor)
            raise

        # The previous holder may have removed the file between our opening and locking
        # it: the lock must be that of the file that others will open.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor

        forget_lock(descriptor)
        os.close(descriptor)


def take_lock(descriptor: int, path: Path, held: str) -> None:
    """Locks an open file until it is closed.

    A file system without locks is only warned about: most users have one process.

    Args:
        descriptor: of the open file.
        path: its path, for the warning.
        held: the error's text if another process has the lock.

    Raises:
        UsageError: if another process has the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            raise UsageError(held) from None

        _log.warning(
            "%s: this file system has no locks (%s); make sure no other process writes "
            "here.",
            path,
            error.strerror,
        )
    else:
        about = os.fstat(descriptor)
        _locked[descriptor] = (about.st_dev, about.st_ino)


# The device and inode of each locked file, by its descriptor.
_locked: dict[int, tuple[int, int]] = {}


def forget_lock(descriptor: int) -> None:
    """Must be called before the descriptor of a locked file is closed.

    A number is given to the next file that is opened, which a fork must not close.
    """
    _locked.pop(descriptor, None)


def _let_go() -> None:
    """Gives up the parent's locks in a forked process, which would hold them too.

    The descriptors stay open, since their owners may still close them.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor, place in _locked.items():
        with contextlib.suppress(OSError):
            about = os.fstat(descriptor)
            if (about.st_dev, about.st_ino) == place:
                os.dup2(null, descriptor, inheritable=False)

    _locked.clear()
    os.close(null)


os.register_at_fork(after_in_child=_let_go)


# The files in a run's folder follow.

# The ledger: all events, append-only; see `tfasr.ledger.events`.
EVENTS_FILE = "events.jsonl"

# Each cluster worker's steps; see `worker_events_file`.
WORKER_EVENTS = "events-worker-*.jsonl"

# Touched while the run lives; shows when a killed one ended.
HEARTBEAT_FILE = "heartbeat"

# Locked while a process writes the run, then removed.
LOCK_FILE = "lock"

# What a submission to a track states, see `tfasr.studies.records`.
SUBMISSION_FILE = "submission.json"

# How the run was configured, and on what.
EXPERIMENT_FILE = "experiment.json"  # see `tfasr.training.experiment.Experiment`
RECORDER_FILE = "recorder.json"  # the settings of a run written by `tfasr.Recorder`
ALPHABET_FILE = "alphabet.json"  # the model's classes, see `tfasr.alphabet.Alphabet`
RUN_FILE = "run.json"  # facts about data, software and machine
PLUGINS_FILE = "plugins.json"  # the training's plug-ins, see `tfasr.kit.registry`
LEXICON_FILE = "lexicon.txt"  # word beam search's words, one per line
GIN_GIVEN_FILE = "config.gin"  # the configuration as written, with includes expanded
GIN_OPERATIVE_FILE = "operative_config.gin"  # all values in use

# The model, and what it recognised.
CHECKPOINTS_FOLDER = "checkpoints"  # ``step-NNNNNNNN.npz`` and `BEST_CHECKPOINT`
BEST_CHECKPOINT = "best.npz"  # the weights with the lowest validation CER
HYPOTHESES_FOLDER = "hypotheses"  # each evaluation's hypotheses, as JSON lines

# What the run used of the machine.
CPU_FILE = "cpu.csv"  # CPU utilisation over time
GPU_FILE = "gpu.csv"  # GPU utilisation over time
ENERGY_FILE = "energy.csv"  # readings of the energy counters over time
HOST_FILE = "host.csv"  # what the machine gave the run over time, see `tfasr.tta.host`

# The run's current state, for whoever watches it.
PROGRESS_FILE = "progress.json"


def worker_host_file(rank: int) -> str:
    """Returns the file with what a worker's machine gave it, the chief's for 0."""
    if rank == 0:
        return HOST_FILE

    return f"host-worker-{rank}.csv"


def worker_events_file(rank: int) -> str:
    """Returns the file with a worker's steps, such as "events-worker-1.jsonl"."""
    return WORKER_EVENTS.replace("*", str(rank))


def epoch_name(epoch: float) -> str:
    """Returns an epoch for file names that sort as the epochs do.

    The first half of the third epoch ends at 2.5: it is "0003-0.5000", the whole one
    "0003".

    >>> epoch_name(3), epoch_name(2.5)
    ('0003', '0003-0.5000')
    """
    number = f"{math.ceil(epoch):04d}"
    if epoch % 1 == 0:
        return number

    return f"{number}-{epoch % 1:.4f}"


def hypotheses_file(run_dir: Path, epoch: float) -> Path:
    """Returns the file with an evaluation's hypotheses; ``epoch`` may be 2.5, say."""
    return run_dir / HYPOTHESES_FOLDER / f"validation-epoch-{epoch_name(epoch)}.jsonl"
