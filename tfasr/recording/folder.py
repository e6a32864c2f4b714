"""A run's folder: who may write it, and where a run that was interrupted goes on."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfasr.durable import PARTIAL_SUFFIX, locked, make_folder
from tfasr.errors import UsageError
from tfasr.ledger import read_events
from tfasr.recording.settings import Settings
from tfasr.run_files import (
    CPU_FILE,
    EVENTS_FILE,
    EXPERIMENT_FILE,
    GPU_FILE,
    HEARTBEAT_FILE,
    LOCK_FILE,
    RECORDER_FILE,
    RUN_FILE,
)
from tfasr.tta.intervals import kept_index
from tfasr.tta.timeline import Timeline

WRITTEN_AT_START = (HEARTBEAT_FILE, RUN_FILE, CPU_FILE, GPU_FILE)
"""Files that every run may have before its first step; a start that came to nothing is removed."""


@contextlib.contextmanager
def claimed(run_dir: Path, elsewhere: str) -> Iterator[None]:
    """Makes a folder, and keeps all other processes from writing a run into it.

    Args:
        run_dir: the folder.
        elsewhere: what to name instead, for the message.

    Raises:
        UsageError: if another process holds the folder.
    """
    make_folder(run_dir)
    held = (
        f"Only one process may write a run. {run_dir} is being written by another one: wait for "
        f"it, stop it, or choose another {elsewhere}."
    )
    with locked(run_dir / LOCK_FILE, held):
        yield


def events_so_far(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the events in a run's folder; [] without a ledger."""
    return read_events(run_dir) if (run_dir / EVENTS_FILE).exists() else []


def has_begun(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run got as far as training; one that did not can be removed without a loss."""
    # A ledger with another first event was written by neither tfasr train nor a recorder.
    foreign = bool(events) and events[0]["key"] != "session_start"
    return foreign or any(event["key"] == "run_start" for event in events)


def is_finished(events: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run's last session ended with success."""
    ends = (e for e in reversed(events) if e["key"] in ("run_stop", "session_start"))
    return metadata(next(ends, {})).get("status") == "success"


def next_session(events: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of the session that goes on with a run."""
    numbers = [metadata(event).get("session", 0) for event in events]
    return max((number for number in numbers if isinstance(number, int)), default=-1) + 1


def metadata(event: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an event's metadata; {} if it has none."""
    about = event.get("metadata")
    return about if isinstance(about, dict) else {}


def remove_start(run_dir: Path, *more: str) -> None:
    """Removes what is written before training, and what else is named; the last name goes last."""
    for name in (*WRITTEN_AT_START, *more):
        (run_dir / name).unlink(missing_ok=True)
        (run_dir / (name + PARTIAL_SUFFIX)).unlink(missing_ok=True)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns which values a run was begun with and which it has now; "" if they are the same."""
    return "; ".join(
        f"{name}: {then.get(name)!r} then, {now.get(name)!r} now"
        for name in dict.fromkeys(itertools.chain(then, now))
        if then.get(name) != now.get(name)
    )


@dataclass(frozen=True)
class Position:
    """Where a recorder's session begins.

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
    """Returns where a recorded run begins or goes on, and removes a start that came to nothing.

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
    names = [name for name in (*WRITTEN_AT_START, EVENTS_FILE) if (run_dir / name).exists()]
    if names and not (run_dir / RECORDER_FILE).exists():
        raise UsageError(
            f"A recorder must have a folder of its own. {run_dir} holds {', '.join(names)}, which "
            "it has not written: choose another folder."
        )
    events = events_so_far(run_dir)
    if not has_begun(events):
        remove_start(run_dir, EVENTS_FILE, RECORDER_FILE)
        _check_step(run_dir, step, 0)
        return Position()
    differing = differences(*settings.then_and_now(run_dir))
    if differing:
        raise UsageError(
            f"A continued run must keep its settings. {run_dir} was begun with others: "
            f"{differing}. Give the same, or another folder."
        )
    if is_finished(events):
        raise UsageError(
            f"A run that is finished must stay as it is. {run_dir} holds one: read it with "
            f"tfasr report {run_dir}, or choose another folder."
        )
    return _resumed(run_dir, Timeline(events), step)


def _check_step(run_dir: Path, step: int | None, most: int) -> None:
    usable = step is None or (type(step) is int and 0 <= step <= most)
    if not usable:
        raise UsageError(
            f"resumed_from_step must be a step that the run has done, 0 to {most}. Received: "
            f"{step!r} for {run_dir}."
        )


def _resumed(run_dir: Path, line: Timeline, step: int | None) -> Position:
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
    return Position(next_session(line.events), step or 0, finished, history)
