"""Reads a run's folder."""

from pathlib import Path

from tfasr.errors import UsageError
from tfasr.ledger import ends_cut, last_value, read_events
from tfasr.run_files import EVENTS_FILE
from tfasr.tta.run import Run
from tfasr.tta.writers import second_writer


def read_targets(path: str | Path) -> list[tuple[str, float]]:
    """Returns the targets that a run's ledger states last, without reading the rest of it."""
    stated = last_value(path, "targets")
    return [(str(metric), float(value)) for metric, value in stated or []]


def load_run(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder; only its ``events.jsonl`` is required.

    Args:
        path: the folder that was given to ``tfasr train`` as ``--run_dir``.
        name: how reports call the run; by default the folder's name.

    Raises:
        UsageError: if there is no such folder, or it holds no ledger, an empty or a broken one.
    """
    path = Path(path)
    if not path.is_dir():
        raise UsageError(
            f"A run must be a folder that tfasr train wrote. Received: {path}, which "
            f"{'is a file' if path.exists() else 'does not exist'}."
        )
    try:
        events = read_events(path)
        if not events:
            raise ValueError(
                f"A ledger must hold events. {path / EVENTS_FILE} holds none: the run has not "
                "begun."
            )
        run = Run(path, name or path.resolve().name, events, cut=ends_cut(path))
        # An event without a usable time makes itself known here, not in the midst of a report.
        _ = run.timeline.clock_us
        twice = second_writer(run.timeline)
        if twice is not None:
            raise ValueError(
                f"A ledger must be written by one process at a time. In {path / EVENTS_FILE} "
                f"{twice}: its times say nothing of either. Train again into an empty folder."
            )
    except (FileNotFoundError, ValueError) as error:
        raise UsageError(str(error)) from error
    return run
