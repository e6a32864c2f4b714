"""The training loop: epochs of timed steps, their checkpoints, and hooks between them.

`tfasr.training.train` builds a `TrainingRun` and hands it to `Loop`, which alone takes
steps and saves checkpoints. Everything else that happens during a run, from evaluations
to progress bars, is a `Hook` (`tfasr.training.hooks`). The order matters for honest
times and exact resuming: what a hook changes in `Hook.on_step` is part of the step's
checkpoint, and an epoch is saved before it is evaluated.
"""

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
    """Work between a run's steps, such as evaluating or showing progress.

    Override the methods you need; here they do nothing. Hooks are called in the order
    of their list. A hook may change the model, but not the run's `state`, except for
    the scores that an evaluation adds; it may call `TrainingRun.request_stop`, and an
    exception that it raises ends the run. If it ``needs_scores`` at `on_epoch_end`,
    training waits for an overlapped evaluation.

    Example:
        A hook that ends the run as soon as the loss of a step is small::

            class StopAtSmallLoss(Hook):
                def on_step(self, run, step):
                    if step.loss < 0.5:
                        run.request_stop()
    """

    needs_scores = False

    def on_train_begin(self, run: TrainingRun) -> None:
        """Called once in each session, before its first epoch."""

    def on_epoch_begin(self, run: TrainingRun, epoch: int) -> None:
        """Called before an epoch's first step.

        After a resume this is its first remaining step.
        """

    def on_step_begin(self, run: TrainingRun) -> None:
        """Called before each attempt to fetch a batch.

        That includes the attempt at an epoch's end, which finds no batch.
        """

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        """Called after each step, before its checkpoint.

        The checkpoint therefore contains what the hook changes in the model.
        """

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        """Called after each step's checkpoint."""

    def on_checkpoint(self, run: TrainingRun) -> None:
        """Called before a checkpoint is saved, to complete what it must contain."""

    def on_epoch_trained(self, run: TrainingRun, epoch: int) -> None:
        """Called after an epoch's last step, before its checkpoint."""

    def on_saved(self, run: TrainingRun, epoch: float, checkpoint: Path | None) -> None:
        """Called when an epoch, or a part of one, is saved: the time to evaluate it.

        Args:
            run: the run; its model has the weights that were saved.
            epoch: the epoch, or the point at which the part ends: 2.5 is the middle of
                the third epoch.
            checkpoint: the file; None in a process that doesn't save.
        """

    def on_part_end(self, run: TrainingRun, epoch: float) -> None:
        """Called after `on_saved` within an epoch.

        ``epoch`` is the point at which the part ends, as in `on_saved`.
        """

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        """Called after `on_saved`; overlapped decoding may still be running."""

    def on_train_end(self, run: TrainingRun) -> None:
        """Called once, after the last epoch.

        An error or a signal that ends the run prevents this call.
        """

    def close(self) -> None:
        """Called last, however the run ended, to release what the hook holds."""


class Checkpoints:
    """Saves a run's checkpoints.

    Args:
        run: whose state is saved unless it is that of ``newest``.
        newest: the checkpoint that the run resumes from, if any.
        for_use: computes the values that inference uses in place of the model's
            weights, by variable name (`tfasr.training.averaging`). By default the
            weights themselves are used.

    Attributes:
        newest: the checkpoint that was saved last.
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
        """Saves the run's state, unless the newest checkpoint contains it already.

        Raises RunError if the file can't be written, for example on a full disk.
        """
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
                # After a power loss, no checkpoint may be newer than the ledger.
                ledger.sync()
                self.newest = save_checkpoint(
                    run.run_dir,
                    run.model,
                    state,
                    run.training.keep_checkpoints,
                    for_use,
                    ledger.mark(),
                )
            except OSError as error:
                raise RunError(
                    f"The checkpoint of step {state.step} could not be written into {run.run_dir}: "
                    f"{error}. Earlier ones are kept: free some space, then --resume."
                ) from error

        self._saved = state


class Loop:
    """Trains a run from where it stands to its last epoch.

    With ``checkpoints``, the loop saves one every ``checkpoint_every_steps`` steps, at
    the end of every epoch and, with several evaluations an epoch, at the end of each
    part. Without them it saves nothing, as in the workers that follow a chief.
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
        """Trains until the last epoch, or until a hook or a signal ends the run.

        Raises RunInterruptedError, once the run is saved, if a signal ended it.
        """
        run = self._run
        for hook in self._hooks:
            hook.on_train_begin(run)

        while run.goes_on():
            epoch = run.state.epoch

            run.ledger.start("epoch", epoch_num=epoch)
            self._train_epoch(epoch)
            # The next epoch's data is read while this one is saved and evaluated.
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
        # An exit stack closes all of them, even if one raises.
        with contextlib.ExitStack() as opened:
            for hook in self._hooks:
                opened.callback(hook.close)

    def _train_epoch(self, epoch: int) -> None:
        run = self._run
        for hook in self._hooks:
            hook.on_epoch_begin(run, epoch)

        # Workers share the signals that arrived during the last evaluation.
        run.team.share_signals(run.interruption)
        self._stop_if_interrupted()
        if not run.state.epoch_trained:
            # The previous session may have been killed while it evaluated a part.
            self._save_part()

        # A resumed epoch whose steps are all taken lacks only its evaluation.
        if run.state.epoch_trained:
            return

        batches = run.batches.iterator(run.state)
        while not (run.stop_requested and run.take_step.settled):
            for hook in self._hooks:
                hook.on_step_begin(run)

            step = run.take_step(batches)
            if step is None:
                break

            state = run.state
            run.advance(step=state.step + 1, step_in_epoch=state.step_in_epoch + 1)
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
        """Saves the part of an epoch that ends at this step, if one does.

        A part that was evaluated before a resume isn't saved again.
        """
        run = self._run
        part = run.part_ended
        if part is None or part == run.state.last_evaluated:
            return

        run.team.average_statistics(run.model)
        self._save()

        self._call_on_saved(part)

        for hook in self._hooks:
            hook.on_part_end(run, part)

        # The chief decides for all workers.
        if run.team.agreed(run.stop_requested):
            run.request_stop()

    def _save_epoch(self, epoch: int) -> None:
        run = self._run
        for hook in self._hooks:
            hook.on_epoch_trained(run, epoch)

        run.team.average_statistics(run.model)
        # Saved before the evaluation, so that a crash in it costs no training.
        if not run.state.epoch_trained:
            run.advance(epoch_trained=True)
            self._save()

        part = run.part_ended
        if part is not None and part == run.state.last_evaluated:
            # The last part ended with the epoch's last step.
            return

        # Evaluations of parts are numbered by fractions, so epochs are floats too.
        if run.training.evaluations_per_epoch > 1:
            self._call_on_saved(float(epoch))
        else:
            self._call_on_saved(epoch)

    def _save(self) -> None:
        if self._checkpoints is None:
            return

        for hook in self._hooks:
            hook.on_checkpoint(self._run)

        self._checkpoints.save(self._run)

    def _call_on_saved(self, epoch: float) -> None:
        checkpoint = None if self._checkpoints is None else self._checkpoints.newest
        for hook in self._hooks:
            hook.on_saved(self._run, epoch, checkpoint)

    def _stop_if_interrupted(self) -> None:
        """Saves the run and raises RunInterruptedError if a signal has arrived."""
        run = self._run
        received = run.interruption.received
        if received is None or not run.take_step.settled:
            return

        step = run.state.step
        if step:
            self._save()

        # No worker leaves before the checkpoint is saved.
        run.team.agreed("saved")
        if step:
            where = f"after step {step}, whose checkpoint is saved"
        else:
            where = "before its first step"

        raise RunInterruptedError(
            f"{received.name} ended the run {where}. Continue it with --resume.",
            received,
        )
