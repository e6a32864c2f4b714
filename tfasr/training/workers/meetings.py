"""The hooks that all workers of a run have, the chief too: they meet in them."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tfasr.ledger import Ledger
from tfasr.run_files import worker_events_file
from tfasr.telemetry.machine_notes import MachineNotes
from tfasr.training.experiment import TrainingConfig
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.parts import Parts
from tfasr.training.step import StepResult
from tfasr.training.workers.interruption import Agree
from tfasr.training.workers.state import AverageStatistics
from tfasr.training.workers.step import SharedStep
from tfasr.training.workers.team import Team


class WorkerSteps(Hook):
    """Writes a worker's own part of every step into its file.

    Args:
        notes: the worker's; closed at the end.
        step: knows its times.
        progress: says which step it was.
    """

    def __init__(self, notes: "WorkerNotes", step: SharedStep, progress: RunProgress):
        self._notes = notes
        self._step = step
        self._progress = progress

    def on_step(self, step: StepResult) -> None:
        """Writes the step."""
        state, times = self._progress.state, dataclasses.asdict(self._step.times)
        values = {n: round(v, 6) if isinstance(v, float) else v for n, v in times.items()}
        ledger = self._notes.ledger
        ledger.event("worker_step", values, epoch_num=state.epoch, step=state.step)

    def close(self) -> None:
        """Closes the file."""
        self._notes.close()


@dataclass(frozen=True)
class Meetings:
    """Hooks in which workers note their steps or meet; all must have them in this order.

    Attributes:
        steps: behind the hook that counts the steps.
        statistics: before the one that saves.
        agreement: last, but for the one that ends the run.
    """

    steps: WorkerSteps
    statistics: AverageStatistics
    agreement: Agree


@dataclass(frozen=True)
class WorkerNotes:
    """What a worker writes by itself.

    Attributes:
        ledger: its own events.
        machine: notes there what its machine does.
    """

    ledger: Ledger
    machine: MachineNotes

    def close(self) -> None:
        """Notes the machine a last time and closes the file; a second call does nothing."""
        self.machine.stop()
        self.ledger.close()


def open_worker_notes(run_dir: Path, session: int, team: Team) -> WorkerNotes:
    """Opens the file of a worker's own events, empty where the run begins."""
    file = worker_events_file(team.workers.rank)
    if not session:
        (run_dir / file).unlink(missing_ok=True)
    ledger = Ledger(run_dir, session, file=file)
    ledger.event("worker_start", {"rank": team.workers.rank, "workers": team.workers.count})
    return WorkerNotes(ledger, MachineNotes(ledger.event))


def meetings_of(team: Team, parts: Parts, training: TrainingConfig, notes: WorkerNotes) -> Meetings:
    """Returns the hooks of a worker.

    Args:
        team: all workers.
        parts: of this one.
        training: tells when checkpoints are due.
        notes: the worker's own.
    """
    workers, progress, interruption = team.workers, parts.progress, parts.interruption
    every = training.checkpoint_every_steps
    return Meetings(
        WorkerSteps(notes, parts.step, progress),
        AverageStatistics(workers, parts.model.recogniser, every, progress, interruption),
        Agree(workers, interruption, progress),
    )
