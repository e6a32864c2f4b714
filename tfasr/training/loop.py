"""The training loop: epochs of timed steps, their checkpoints, and hooks between them."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tfasr.errors import RunError
from tfasr.training.checkpoint import TrainingState, save_checkpoint
from tfasr.training.run import TrainingRun
from tfasr.training.run_folder import RunInterruptedError
from tfasr.training.step import StepResult


class Hook:
    """Work between a run's steps, such as evaluating or showing progress. Methods do nothing.

    Hooks are called in the order of their list. A hook may change the model, but not
    the run's `state`, except for the scores that an evaluation adds; it may call
    `TrainingRun.request_stop`, and an exception that it raises ends the run. If it
    ``needs_scores`` at `on_epoch_end`, training waits for an overlapped evaluation.
    """

    needs_scores = False

    def on_train_begin(self, run: TrainingRun) -> None:
        """Called once in each session, before its first epoch."""

    def on_epoch_begin(self, run: TrainingRun, epoch: int) -> None:
        """Called before an epoch's first step, or its first remaining step after a resume."""

    def on_step_begin(self, run: TrainingRun) -> None:
        """Called before each attempt to fetch a batch, also before the last, which
        finds none.
        """

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        """Called after each step, before its checkpoint, which saves what the hook
        changed too.
        """

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        """Called after each step's checkpoint."""

    def on_checkpoint(self, run: TrainingRun) -> None:
        """Called before a checkpoint is saved, to complete what it must contain."""

    def on_epoch_trained(self, run: TrainingRun, epoch: int) -> None:
        """Called after an epoch's last step, before its checkpoint."""

    def on_saved(self, run: TrainingRun, epoch: float, checkpoint: Path | None) -> None:
        """Called when an epoch, or the part of one that ends at 2.5, is saved: time to
        evaluate.

        ``checkpoint`` is the file; None in a process that doesn't save.
        """

    def on_part_end(self, run: TrainingRun, epoch: float) -> None:
        """Called after `on_saved` within an epoch; 2.5 is the middle of the third."""

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        """Called after `on_saved`; overlapped decoding may still be running."""

    def on_train_end(self, run: TrainingRun) -> None:
        """Called once, after the last epoch, unless an error or a signal ended the run."""

    def close(self) -> None:
        """Called last, however the run ended."""


class Checkpoints:
    """Saves a run's checkpoints.

    ``newest`` is the last one saved, at first the one that the run resumes from.
    ``for_use`` computes what is saved for inference in place of the model's weights
    (`tfasr.training.averaging`).
    """

    def __init__(
        self,
        run: TrainingRun,
        newest: Path | None = None,
        for_use: Callable[[TrainingState], Mapping[str, np.ndarray]] | None = None,
    ):
        self.newest = newest
        self._saved = run.state if newest else None
        self._for_use = for_use

    def save(self, run: TrainingRun) -> None:
        """Saves the state, unless the newest checkpoint holds it; RunError on a full disk."""
        state = run.state
        ledger = run.ledger
        if state == self._saved:
            return
        where = {"step": state.step, "epoch_num": state.epoch}
        for_use = None
        if self._for_use is not None:
            with ledger.interval("averaging", **where):
                for_use = self._for_use(state)

        with ledger.interval("checkpoint", **where):
            try:
                # The ledger first: after a power loss, no checkpoint may be newer than
                # the ledger.
                ledger.sync()
                keep = run.training.keep_checkpoints
                mark = ledger.mark()
                self.newest = save_checkpoint(
                    run.run_dir, run.model, state, keep, for_use, mark
                )
            except OSError as error:
                raise RunError(
                    f"The checkpoint of step {state.step} could not be written into {run.run_dir}: "
                    f"{error}. Earlier ones are kept: free some space, then --resume."
                ) from error

        self._saved = state


class Loop:
    """Trains a run from where it stands to its last epoch.

    The loop takes steps and saves checkpoints: every ``checkpoint_every_steps`` steps,
    at the end of every epoch and, with several evaluations an epoch, at the end of each
    part, if it has ``checkpoints``. All else, evaluations included, is done by its
    hooks.
    """

    def __init__(
        self,
        run: TrainingRun,
        hooks: Sequence[Hook],
        checkpoints: Checkpoints | None = None,
    ):
        self._run = run
        self._hooks = hooks
        self._checkpoints = checkpoints

    def train(self) -> None:
        """Trains; raises RunInterruptedError after saving the run if a signal ended it."""
        run = self._run
        for hook in self._hooks:
            hook.on_train_begin(run)
        while run.goes_on():
            epoch = run.state.epoch
            run.ledger.start("epoch", epoch_num=epoch)
            self._train_epoch(epoch)
            # Read while the epoch is saved and evaluated.
            run.batches.prefetch(epoch + 1)
            self._save_epoch(epoch)
            run.advance(epoch=epoch + 1, step_in_epoch=0, epoch_trained=False)
            for hook in self._hooks:
                hook.on_epoch_end(run, epoch)
            run.ledger.stop("epoch", epoch_num=epoch)

        for hook in self._hooks:
            hook.on_train_end(run)

    def close(self) -> None:
        """Closes the hooks, the last one first, however the run ended."""
        with contextlib.ExitStack() as opened:
            for hook in self._hooks:
                opened.callback(hook.close)

    def _train_epoch(self, epoch: int) -> None:
        run = self._run
        for hook in self._hooks:
            hook.on_epoch_begin(run, epoch)
        # On signals during the evaluation.
        run.team.share_signals(run.interruption)
        self._stop_if_interrupted()
        if not run.state.epoch_trained:
            self._save_part()  # if the previous session was killed while evaluating
        # A resumed epoch may lack only its evaluation, during which the last session
        # was killed.
        batches = None if run.state.epoch_trained else run.batches.iterator(run.state)
        while batches is not None and not (
            run.stop_requested and run.take_step.settled
        ):
            for hook in self._hooks:
                hook.on_step_begin(run)
            step = run.take_step(batches)
            if step is None:
                break
            run.advance(
                step=run.state.step + 1, step_in_epoch=run.state.step_in_epoch + 1
            )
            self._after_step(step)

    def _after_step(self, step: StepResult) -> None:
        run = self._run
        for hook in self._hooks:
            hook.on_step(run, step)
        due = run.state.step % run.training.checkpoint_every_steps == 0
        if due or run.interruption.received is not None:
            run.team.average_statistics(run.model)
        if due:
            self._save()
        for hook in self._hooks:
            hook.on_step_end(run, step)
        self._stop_if_interrupted()
        self._save_part()

    def _save_part(self) -> None:
        """Saves the part of an epoch that ends here, unless none does or it is saved
        already.
        """
        run = self._run
        part = run.part_ended
        if part is None or part == run.state.last_evaluated:
            return
        run.team.average_statistics(run.model)
        self._save()
        self._tell_saved(part)
        for hook in self._hooks:
            hook.on_part_end(run, part)
        if run.team.agreed(run.stop_requested):
            run.request_stop()

    def _save_epoch(self, epoch: int) -> None:
        run = self._run
        for hook in self._hooks:
            hook.on_epoch_trained(run, epoch)
        run.team.average_statistics(run.model)
        # Before the evaluation: a crash in it costs no training.
        if not run.state.epoch_trained:
            run.advance(epoch_trained=True)
            self._save()

        part = run.part_ended
        if part is not None and part == run.state.last_evaluated:
            return  # the last part ended with the epoch's last step
        has_parts = run.training.evaluations_per_epoch > 1
        self._tell_saved(float(epoch) if has_parts else epoch)

    def _save(self) -> None:
        if self._checkpoints is not None:
            for hook in self._hooks:
                hook.on_checkpoint(self._run)
            self._checkpoints.save(self._run)

    def _tell_saved(self, epoch: float) -> None:
        checkpoint = self._checkpoints.newest if self._checkpoints is not None else None
        for hook in self._hooks:
            hook.on_saved(self._run, epoch, checkpoint)

    def _stop_if_interrupted(self) -> None:
        run = self._run
        received = self._run.interruption.received
        if received is None or not run.take_step.settled:
            return
        step = run.state.step
        if step:
            self._save()
        run.team.agreed("saved")  # nobody leaves before it is saved
        if step:
            where = f"after step {step}, whose checkpoint is saved"
        else:
            where = "before its first step"

        raise RunInterruptedError(
            f"{received.name} ended the run {where}. Continue it with --resume.",
            received,
        )
