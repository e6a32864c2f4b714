"""Looking into a corpus's folders, and saying what was found in the wrong ones."""

import os
from collections.abc import Iterator
from pathlib import Path

from tfasr.errors import UsageError

_NAMES_SHOWN = 12


def require_folder(path: str | Path, expected: str) -> Path:
    """Returns the absolute path of a corpus folder.

    Args:
        path: what was given as ``--corpus_dir``.
        expected: what the folder must be, for the message.

    Raises:
        UsageError: if it is no folder.
    """
    folder = Path(path).absolute()
    try:
        is_folder = folder.is_dir()
        if is_folder:
            os.scandir(folder).close()
    except OSError as error:
        raise UsageError(
            f"--corpus_dir must be readable. Received: {folder}: {error.strerror}."
        ) from None
    if not is_folder:
        what = "is a file" if folder.is_file() else "does not exist"
        raise UsageError(f"--corpus_dir must be {expected}. Received: {folder}, which {what}.")
    return folder


def found_in(folder: Path) -> str:
    """Returns the names in a folder, for a message; folders end in a slash."""
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (", ".join(names[:_NAMES_SHOWN]) + more) or "nothing"


def subfolders(folder: Path) -> list[str]:
    """Returns the names of the folders in a folder, sorted."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def walk(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yields every folder at and below ``folder`` with its files, both sorted.

    Links to folders are followed, each folder being entered once however many names lead to it.

    Raises:
        UsageError: if a folder cannot be read, which would lose its utterances silently.
    """

    def fail(error: OSError) -> None:
        raise UsageError(f"Every folder of a corpus must be readable. Received: {error}.")

    entered: set[tuple[int, int]] = set()
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        status = Path(root).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in entered:  # a link to a folder above it, or to one seen before
            folders.clear()
            continue
        entered.add(identity)
        folders.sort()
        yield Path(root), [Path(root, name) for name in sorted(names)]
