"""A recorded run's folder: who may write it, and where a run that was interrupted goes on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfasr.durable import PARTIAL_SUFFIX
from tfasr.errors import UsageError
from tfasr.ledger import read_events
from tfasr.recording.settings import Settings
from tfasr.run_files import (
    CPU_FILE,
    EVENTS_FILE,
    EXPERIMENT_FILE,
    GPU_FILE,
    HEARTBEAT_FILE,
    RECORDER_FILE,
    RUN_FILE,
)
from tfasr.tta.intervals import kept_index
from tfasr.tta.timeline import Timeline

# What may be there before the first step; a start that comes to none is begun anew.
_WRITTEN_AT_START = (HEARTBEAT_FILE, RUN_FILE, CPU_FILE, GPU_FILE, EVENTS_FILE)


@dataclass(frozen=True)
class Position:
    """Where a session begins.

    Attributes:
        session: the number of the process that goes on: 0 where the run begins.
        step: updates done; those after it are lost.
        epoch: the last epoch that was finished by then.
        history: what the evaluations by then found, by epoch.
    """

    session: int = 0
    step: int = 0
    epoch: int = 0
    history: dict[int, dict[str, Any]] = field(default_factory=dict)


def position(run_dir: Path, settings: Settings, step: int | None) -> Position:
    """Returns where a run begins or goes on, and clears away a start that came to nothing.

    Args:
        run_dir: the run's folder, which no other process writes.
        settings: of the run.
        step: of the checkpoint that the caller goes on from; None for the last that was booked.

    Raises:
        UsageError: if the folder holds another run, a finished one, or no such step.
    """
    if (run_dir / EXPERIMENT_FILE).exists():
        raise UsageError(
            f"A recorder must have a folder of its own. {run_dir} holds a run of tfasr train: "
            "choose another."
        )
    there = [name for name in _WRITTEN_AT_START if (run_dir / name).exists()]
    if there and not (run_dir / RECORDER_FILE).exists():
        raise UsageError(
            f"A recorder must have a folder of its own. {run_dir} holds {', '.join(there)}, which "
            "it has not written: choose another folder."
        )
    events = read_events(run_dir) if EVENTS_FILE in there else []
    if not any(event["key"] == "run_start" for event in events):
        _remove_start(run_dir)
        _check_step(run_dir, step, 0)
        return Position()
    settings.check_same(run_dir)
    last = [event for event in events if event["key"] in ("run_stop", "session_start")][-1:]
    if any((event.get("metadata") or {}).get("status") == "success" for event in last):
        raise UsageError(
            f"A run that is finished must stay as it is. {run_dir} holds one: read it with "
            f"tfasr report {run_dir}, or choose another folder."
        )
    return _resumed(run_dir, Timeline(events), step)


def _remove_start(run_dir: Path) -> None:
    # What says whose folder it is goes last.
    for name in (*_WRITTEN_AT_START, RECORDER_FILE):
        (run_dir / name).unlink(missing_ok=True)
        (run_dir / (name + PARTIAL_SUFFIX)).unlink(missing_ok=True)


def _check_step(run_dir: Path, step: int | None, most: int) -> None:
    usable = step is None or (type(step) is int and 0 <= step <= most)
    if not usable:
        raise UsageError(
            f"resumed_from_step must be a step that the run has done, 0 to {most}. Received: "
            f"{step!r} for {run_dir}."
        )


def _resumed(run_dir: Path, line: Timeline, step: int | None) -> Position:
    numbers = [line.metadata[index].get("session", 0) for index in line.of("session_start")]
    done = [line.metadata[i].get("step") or 0 for i in line.of("train_step") if line.useful[i]]
    _check_step(run_dir, step, max(done, default=0))
    if step is None:
        marks = [index for index in line.of("checkpoint_stop") if line.useful[index]]
        step = line.metadata[marks[-1]].get("step", 0) if marks else 0
    end = kept_index(line.events, line.indices, len(line.events), step) if step else None
    history: dict[int, dict[str, Any]] = {}
    finished = 0
    for index in line.of("tracked_stats", "epoch_stop"):
        if end is None or index > end or not line.useful[index]:
            continue
        epoch = line.metadata[index].get("epoch_num") or 0
        if line.keys[index] == "epoch_stop":
            finished = max(finished, epoch)
        else:
            history[epoch] = line.events[index]["value"]
    return Position(max(numbers, default=-1) + 1, step or 0, finished, history)
