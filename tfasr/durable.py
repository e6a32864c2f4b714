"""Files that appear whole or not at all, also after a power loss, and locks that a crash releases.

A file is written beside its place, synced, renamed over it, and the folder that holds the new name
is synced: at every moment the name leads to the old content or to the new one.

Source: Pillai et al., "All file systems are not created equal", OSDI 2014, section 2 (what a
rename promises without these syncs).
"""

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tfasr.errors import UsageError

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
