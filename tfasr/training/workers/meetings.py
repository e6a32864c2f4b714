"""The hooks that all workers of a run have, the chief too: they meet in them."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tfasr.ledger import Ledger
from tfasr.run_files import worker_events_file
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
        ledger: the worker's; closed at the end.
        step: knows its times.
        progress: says which step it was.
    """

    def __init__(self, ledger: Ledger, step: SharedStep, progress: RunProgress):
        self._ledger = ledger
        self._step = step
        self._progress = progress

    def on_step(self, step: StepResult) -> None:
        """Writes the step."""
        state, times = self._progress.state, dataclasses.asdict(self._step.times)
        values = {n: round(v, 6) if isinstance(v, float) else v for n, v in times.items()}
        self._ledger.event("worker_step", values, epoch_num=state.epoch, step=state.step)

    def close(self) -> None:
        """Closes the file."""
        self._ledger.close()


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


def open_worker_ledger(run_dir: Path, session: int, team: Team) -> Ledger:
    """Opens the file of a worker's own events, empty where the run begins."""
    file = worker_events_file(team.workers.rank)
    if not session:
        (run_dir / file).unlink(missing_ok=True)
    ledger = Ledger(run_dir, session, file=file)
    ledger.event("worker_start", {"rank": team.workers.rank, "workers": team.workers.count})
    return ledger


def meetings_of(team: Team, parts: Parts, training: TrainingConfig, ledger: Ledger) -> Meetings:
    """Returns the hooks of a worker.

    Args:
        team: all workers.
        parts: of this one.
        training: tells when checkpoints are due.
        ledger: the worker's own.
    """
    workers, progress, interruption = team.workers, parts.progress, parts.interruption
    every = training.checkpoint_every_steps
    return Meetings(
        WorkerSteps(ledger, parts.step, progress),
        AverageStatistics(workers, parts.model.recogniser, every, progress, interruption),
        Agree(workers, interruption, progress),
    )
