"""Ends a run after a signal has asked for it."""

from tfasr.training.hooks.checkpoints import SaveCheckpoints
from tfasr.training.interruption import Interruption, RunInterruptedError
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.step import StepResult
from tfasr.training.workers.exchange import Alone, Workers
from tfasr.training.workers.interruption import AgreedInterruption


class StopOnSignal(Hook):
    """Saves a checkpoint and ends the run after the step, or the epoch, in which a signal came.

    Args:
        interruption: tells of the signal.
        checkpoints: saves; None of a worker that is not the chief.
        progress: says where the run stands.
        workers: all that train together; none leaves before the chief has saved.
    """

    def __init__(
        self,
        interruption: Interruption | AgreedInterruption,
        checkpoints: SaveCheckpoints | None,
        progress: RunProgress,
        workers: Workers | None = None,
    ):
        self._workers = workers or Alone()
        self._interruption = interruption
        self._checkpoints = checkpoints
        self._progress = progress

    def on_step(self, step: StepResult) -> None:
        """Ends the run; raises RunInterruptedError."""
        if self._interruption.received is not None:
            self._end()

    def on_epoch_begin(self, epoch: int) -> None:
        """Ends the run, the evaluation before kept; raises RunInterruptedError."""
        if self._interruption.received is not None:
            self._end()

    def _end(self) -> None:
        step = self._progress.state.step
        if step and self._checkpoints is not None:
            self._checkpoints.save()
        self._workers.gather("saved")
        received = self._interruption.received
        where = f"after step {step}, whose checkpoint is saved" if step else "before its first step"
        raise RunInterruptedError(
            f"{received.name} ended the run {where}. Continue it with --resume.", received
        )
