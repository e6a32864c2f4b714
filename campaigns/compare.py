"""What must hold of a run or split after faults: each violation is one sentence."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.errors import UsageError
from tfasr.kit.files import CHECKPOINTS_FOLDER
from tfasr.ledger.events import read_events
from tfasr.training.checkpoint import damage, find_checkpoint, read_state
from tfasr.tta.run import load_run

# A killed session is known to have lived until its last sign of life, a second apart,
# and Python needs a moment to end after a run has: both take longer on a machine with
# other work, see `_busy`.
_SIGN_OF_LIFE_S = 3.0
_END_S = 3.0
_ALLOWED_BEFORE_S = 0.05
# Holds times or samples, which no two runs share, or where the run lies.
_OWN = {
    "events.jsonl",
    "heartbeat",
    "cpu.csv",
    "gpu.csv",
    "energy.csv",
    "host.csv",
    "progress.json",
    "run.json",
}


@dataclass(frozen=True)
class Start:
    """What an outside observer saw of one start of a run.

    Attributes:
        seconds: from the process's start to its end.
        killed: whether it was killed.
        session: which session it added to the ledger, see `sessions_of`; None if it
            added none.
    """

    seconds: float
    killed: bool
    session: str | None


def snapshot(folder: Path) -> dict[str, str]:
    """Returns each file's hash by its path; "" for a folder."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        )
        for path in sorted(folder.rglob("*"))
    }


def differing(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Returns how two snapshots differ."""
    faults = [f"stray file {name}" for name in sorted(found.keys() - wanted.keys())]
    faults += [f"missing file {name}" for name in sorted(wanted.keys() - found.keys())]
    common = sorted(found.keys() & wanted.keys())
    return faults + [
        f"{name} has other bytes" for name in common if found[name] != wanted[name]
    ]


def sessions_of(run_dir: Path) -> list[str]:
    """Returns what tells the sessions in a run's ledger apart."""
    if not (run_dir / "events.jsonl").exists():
        return []
    return [
        f"{event['metadata']['pid']} at {event['time_ms']}"
        for event in read_events(run_dir)
        if event["key"] == "session_start"
    ]


def faults_after_a_kill(run_dir: Path) -> list[str]:
    """Returns what is wrong with a run that was killed and not yet resumed."""
    faults = []
    try:
        sessions_of(run_dir)
    except ValueError as error:
        faults.append(f"the ledger does not parse: {error}")

    for path in sorted((run_dir / CHECKPOINTS_FOLDER).glob("*.npz")):
        cause = damage(path)
        if cause is not None:
            faults.append(
                f"the published checkpoint {path.name} does not load: {cause}"
            )

    return faults


def faults_of_run(
    run_dir: Path,
    uninterrupted: Path,
    starts: list[Start] | None,
    checkpoint_every_steps: int,
) -> list[str]:
    """Returns how a finished run that was killed differs from one that was not.

    Args:
        run_dir: the run that was killed and resumed.
        uninterrupted: one of the same configuration on the same shards.
        starts: what was seen of its processes, in order; None where nobody looked.
        checkpoint_every_steps: the most steps that one kill may lose.
    """
    faults = _differing_weights(run_dir, uninterrupted)
    found, wanted = (_comparable_files(folder) for folder in (run_dir, uninterrupted))
    faults += differing(found, wanted)
    try:
        faults += _wrong_booking(run_dir, uninterrupted, checkpoint_every_steps)
        return faults + _wrong_times(run_dir, starts)
    except (
        UsageError
    ) as error:  # what a report refuses, such as a step that is booked twice
        return [*faults, f"its ledger is refused: {error}"]


def _comparable_files(run_dir: Path) -> dict[str, str]:
    files = snapshot(run_dir)
    return {name: "" if _is_own(name) else value for name, value in files.items()}


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith(CHECKPOINTS_FOLDER)


def _differing_weights(run_dir: Path, uninterrupted: Path) -> list[str]:
    faults = []
    for which in ("last", "best"):
        one, other = (
            find_checkpoint(folder, which) for folder in (run_dir, uninterrupted)
        )
        if one.name != other.name:
            faults.append(f"the {which} checkpoint is {one.name}, not {other.name}")
            continue

        weights = _arrays(one)
        wanted = _arrays(other)
        # Keras seeds by chance a random state that nothing has drawn from: its counter
        # is 0.
        unused = {
            n for n in wanted if n.endswith("seed_generator_state") and not wanted[n][1]
        }
        names = (weights.keys() | wanted.keys()) - unused
        different = [
            n
            for n in sorted(names)
            if not np.array_equal(weights.get(n), wanted.get(n))
        ]
        if different:
            faults.append(
                f"{which}: {len(different)} arrays differ, such as {different[0]}"
            )
        states = [_as_json(read_state(path)) for path in (one, other)]
        if states[0] != states[1]:
            faults.append(f"{which}: state {states[0]} instead of {states[1]}")

    return faults


def _as_json(state: Any) -> str:
    return json.dumps(vars(state), sort_keys=True)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return {
            name: arrays[name]
            for name in arrays.files
            if name not in ("state", "ledger")
        }


def _wrong_booking(
    run_dir: Path, uninterrupted: Path, checkpoint_every_steps: int
) -> list[str]:
    timeline = load_run(run_dir).timeline
    wanted = load_run(uninterrupted).timeline
    faults = []
    for key, number in (("train_step", "step"), ("tracked_stats", "epoch_num")):
        booked = [
            timeline.metadata[i][number] for i in timeline.of(key) if timeline.useful[i]
        ]
        once = [wanted.metadata[i][number] for i in wanted.of(key) if wanted.useful[i]]
        # What the uninterrupted run books twice would be found in both.
        if booked != once or len(set(booked)) < len(booked):
            faults.append(f"{key} is booked for {booked}, not once for each of {once}")

    last = None
    for index in timeline.of("session_start", "train_step"):
        event = timeline.events[index]
        if event["key"] == "train_step":
            last = event["metadata"]["step"]
            continue

        resumed = event["value"]["resumed_from_step"] or 0
        if last is not None and last - resumed > checkpoint_every_steps:
            faults.append(f"{last - resumed} steps were lost, resuming from {resumed}")
        if last is not None and resumed > last:
            faults.append(
                f"resumed from step {resumed}, of which the ledger knows nothing"
            )

    if timeline.events[-1]["key"] != "run_stop":
        faults.append(f"the ledger ends with {timeline.events[-1]['key']}")
    return faults


def _busy() -> float:
    """Returns how many processes wait for each processor, at least 1."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _wrong_times(run_dir: Path, starts: list[Start] | None) -> list[str]:
    timeline = load_run(run_dir).timeline
    faults = []
    seconds = timeline.interval_seconds()
    if abs(sum(seconds.values()) - timeline.wall_s) > 1e-5 or min(seconds.values()) < 0:
        faults.append(
            f"the intervals sum to {sum(seconds.values())} s, not {timeline.wall_s} s"
        )
    if starts is None:
        return faults
    ends_us = [*timeline.session_begins_us[1:], timeline.clock_us[-1]]
    booked_s = [
        (end - begin) / 1e6
        for begin, end in zip(timeline.session_begins_us, ends_us, strict=True)
    ]
    # A start that ended before its first event left no session: its time is nobody's.
    seen = {start.session: start for start in starts}
    for session, booked in zip(sessions_of(run_dir), booked_s, strict=True):
        start = seen[session]
        slack = _busy() * (_SIGN_OF_LIFE_S if start.killed else _END_S)
        if not -_ALLOWED_BEFORE_S <= start.seconds - booked <= slack:
            faults.append(
                f"a session lasted {start.seconds:.2f} s and is booked with {booked:.2f} s"
            )

    return faults
