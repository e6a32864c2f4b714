"""Run folders within folders, as a study or a history keeps them."""

from collections.abc import Iterator
from pathlib import Path

from tfasr.run_files import EVENTS_FILE

DEEPEST = 3
"""How many folders deep runs are looked for."""


def run_folders(folder: Path, deepest: int = DEEPEST) -> Iterator[Path]:
    """Yields the run folders in a folder, sorted by name; links to folders are not followed."""
    if (folder / EVENTS_FILE).is_file():
        yield folder
    elif deepest:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield from run_folders(path, deepest - 1)
