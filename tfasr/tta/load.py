"""Reads a run's folder."""

from pathlib import Path
from typing import Any

from tfasr.errors import UsageError, explained
from tfasr.ledger import ends_cut, last_value, read_events
from tfasr.run_files import EVENTS_FILE
from tfasr.tta.explain import line_numbers
from tfasr.tta.ledger_types import wrong_value
from tfasr.tta.metrics import declare
from tfasr.tta.run import Run
from tfasr.tta.writers import second_writer


def read_targets(path: str | Path) -> list[tuple[str, float]]:
    """Returns the targets that a run's ledger states last, without reading the rest of it."""
    try:
        return [(str(metric), float(value)) for metric, value in last_value(path, "targets") or []]
    except (OSError, TypeError, ValueError, OverflowError, RecursionError):
        return []  # reading the rest will say what is wrong


def read_metrics(path: str | Path) -> dict[str, dict[str, Any]]:
    """Returns the metrics that a run's ledger declares, without reading the rest of it."""
    try:
        found = last_value(path, "metrics")
    except (OSError, ValueError, RecursionError):
        return {}  # reading the rest will say what is wrong
    usable = isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())
    return found if usable else {}


def load_run(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder; only its ``events.jsonl`` is required.

    Args:
        path: the folder that was given to ``tfasr train`` as ``--run_dir``.
        name: how reports call the run; by default the folder's name.

    Raises:
        UsageError: if there is no such folder, or it holds no ledger, an empty or a broken one.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            raise UsageError(
                f"A run must be a folder that tfasr train wrote. Received: {path}, which "
                f"{'is a file' if path.exists() else 'does not exist'}."
            )
        events = read_events(path)
        if not events:
            raise ValueError(
                f"A ledger must hold events. {path / EVENTS_FILE} holds none: the run has not "
                "begun."
            )
        run = Run(path, name or path.resolve().name, events, cut=ends_cut(path))
        wrong = wrong_value(run.timeline)
        if wrong is not None:
            index, kind = wrong
            lines = line_numbers(path) or []
            raise ValueError(
                f"The values of a ledger must be of their kind. In line {lines[index]} of "
                f"{path / EVENTS_FILE} {kind}. Leave the run out, or restore the line."
            )
        declare(run.declared_metrics, path)
        # An event without a usable time makes itself known here, not in the midst of a report.
        _ = run.timeline.clock_us
        twice = second_writer(run.timeline)
        if twice is not None:
            raise ValueError(
                f"A ledger must be written by one process at a time. In {path / EVENTS_FILE} "
                f"{twice}: its times say nothing of either. Train again into an empty folder."
            )
    except RecursionError as error:
        raise UsageError(
            f"Every line of {path / EVENTS_FILE} must be an event. One is nested too deeply."
        ) from error
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(explained(error)[0]) from error
    except ValueError as error:
        said = str(error)
        where = "" if str(path) in said else f"{path / EVENTS_FILE}: "
        raise UsageError(f"{where}{said}") from error
    return run
