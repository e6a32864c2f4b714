"""Logs that other benchmarks publish, read as runs, and our runs written as theirs."""

from pathlib import Path

from tfasr.errors import UsageError
from tfasr.run_files import EVENTS_FILE
from tfasr.tta.load import load_run
from tfasr.tta.published import algoperf, dawnbench, mlperf
from tfasr.tta.run import Run

READERS = {"mlperf": mlperf, "algoperf": algoperf, "dawnbench": dawnbench}
"""Each knows its files (``recognises``), reads one (``read``) and writes one (``write``)."""


def find_logs(path: str | Path) -> list[Path]:
    """Returns the runs at a path: a run's folder, a published log, or a folder of either.

    Raises:
        UsageError: if there is nothing there that can be read as a run.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(
            f"A run must be a folder that tfasr train wrote, or a published log. Received: {path}, "
            "which does not exist."
        )
    if _is_run(path):
        return [path]
    found = sorted(filter(_is_run, path.iterdir()), key=_natural) if path.is_dir() else []
    if not found:
        raise UsageError(
            f"A run must be a folder that holds {EVENTS_FILE}, or a log of one of "
            f"{sorted(READERS)}. Received: {path}, which holds neither."
        )
    return found


def load_log(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder or a published log, whichever it is.

    Raises:
        UsageError: if it is neither, or broken.
    """
    path = Path(path)
    if path.is_file():
        for reader in READERS.values():
            if reader.recognises(path):
                return reader.read(path, name)
        raise UsageError(
            f"A log must be one of {sorted(READERS)}. Received: {path}, which is none of them."
        )
    return load_run(path, name)


def _is_run(path: Path) -> bool:
    if path.is_dir():
        return (path / EVENTS_FILE).is_file()
    return any(reader.recognises(path) for reader in READERS.values())


def _natural(path: Path) -> tuple[int, str]:
    """Sorts result_2 before result_10."""
    return (len(path.name), path.name)
