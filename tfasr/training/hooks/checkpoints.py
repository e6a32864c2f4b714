"""Checkpoints at regular steps and at the end of every epoch."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tfasr.errors import RunError
from tfasr.ledger import Ledger
from tfasr.training.checkpoint import TrainingState, save_checkpoint
from tfasr.training.ctc_model import CtcModel
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.step import StepResult


class SaveCheckpoints(Hook):
    """Saves a checkpoint every ``every_steps`` steps and at the end of every epoch.

    Args:
        model: saved, with its optimizer.
        run_dir: the run's folder.
        every_steps: steps between two.
        keep: how many to keep.
        ledger: books the time.
        progress: saved with the variables.
        newest: the checkpoint that the run resumes from, which holds ``progress.state``; or None.
        for_use: returns what is saved for inference in place of the model's own weights, of
            `tfasr.training.averaging`; None where that is nothing.

    Attributes:
        newest: the last one saved.
        before_save: called before each; it may still change the state.
    """

    def __init__(
        self,
        model: CtcModel,
        run_dir: Path,
        every_steps: int,
        keep: int,
        ledger: Ledger,
        progress: RunProgress,
        newest: Path | None = None,
        for_use: Callable[[TrainingState], Mapping[str, np.ndarray]] | None = None,
    ):
        self.newest = newest
        self.before_save: Callable[[], None] = lambda: None
        self._model = model
        self._run_dir = run_dir
        self._every_steps = every_steps
        self._keep = keep
        self._ledger = ledger
        self._progress = progress
        self._saved = progress.state if newest else None
        self._for_use = for_use

    def on_step(self, step: StepResult) -> None:
        """Saves when it is time."""
        if self._progress.state.step % self._every_steps == 0:
            self.save()

    def on_epoch_trained(self, epoch: int) -> None:
        """Saves before the evaluation, so that a crash in it costs no training."""
        if not self._progress.state.epoch_trained:
            self._progress.advance(epoch_trained=True)
            self.save()

    def save(self) -> None:
        """Saves the current state, unless the newest checkpoint holds it already.

        Raises:
            RunError: if the disk does not take it.
        """
        self.before_save()
        state = self._progress.state
        if state == self._saved:
            return
        where = {"step": state.step, "epoch_num": state.epoch}
        for_use = None
        if self._for_use is not None:
            with self._ledger.interval("averaging", **where):
                for_use = self._for_use(state)
        self._ledger.start("checkpoint", **where)
        try:
            # The ledger first: after a power loss, no checkpoint may be newer than its lines.
            self._ledger.sync()
            self.newest = save_checkpoint(self._run_dir, self._model, state, self._keep, for_use)
        except OSError as error:
            raise RunError(
                f"Checkpoints must find room in {self._run_dir}. Step {state.step}'s could not be "
                f"written: {error}. The ones before are kept: free some space, then continue with "
                "--resume."
            ) from error
        self._ledger.stop("checkpoint", **where)
        self._saved = state
