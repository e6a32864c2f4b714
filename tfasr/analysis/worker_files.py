"""What the workers of a cluster noted, each in a file of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.ledger import read_events
from tfasr.run_files import WORKER_EVENTS

Events = Sequence[Mapping[str, Any]]


def read_worker_files(run_dir: Path) -> dict[int, Events]:
    """Returns the events of each worker by its rank; {} of a run of one process.

    A damaged file can't be trusted and counts as empty.
    """
    files: dict[int, Events] = {}
    for path in run_dir.glob(WORKER_EVENTS) if run_dir.is_dir() else []:
        rank = path.stem.rpartition("-")[2]
        if rank.isdecimal():
            try:
                files[int(rank)] = read_events(path)
            except UsageError:
                files[int(rank)] = []
    return files
