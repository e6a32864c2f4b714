"""The training loop: epochs of timed steps, checkpoints, evaluations, and hooks between them."""

import contextlib
from collections.abc import Sequence

from tfasr.training.phases import Checkpoints, Evaluations
from tfasr.training.run import TrainingRun
from tfasr.training.run_folder import RunInterruptedError
from tfasr.training.step import StepResult
from tfasr.training.workers.step import average_statistics


class Hook:
    """Additional work during a run, such as showing progress. By default, methods do nothing.

    Hooks are called in the order of their list. A hook may change the model, but not the run's
    `state`; it may call `TrainingRun.request_stop`, and an exception that it raises ends the run.
    If it ``needs_scores`` at `on_epoch_end`, training waits for an overlapped evaluation.
    """

    needs_scores = False

    def on_train_begin(self, run: TrainingRun) -> None:
        """Called once in each session, before its first epoch."""

    def on_epoch_begin(self, run: TrainingRun, epoch: int) -> None:
        """Called before an epoch's first step, or its first remaining step after a resume."""

    def on_step_begin(self, run: TrainingRun) -> None:
        """Called before each attempt to fetch a batch, also before the last, which finds none."""

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        """Called after each step, before its checkpoint, which saves what the hook changed too."""

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        """Called after each step's checkpoint, when finished evaluations have been recorded."""

    def on_evaluation(self, run: TrainingRun, epoch: float) -> None:
        """Called after an evaluation within an epoch; 2.5 is the middle of the third."""

    def on_epoch_trained(self, run: TrainingRun, epoch: int) -> None:
        """Called after an epoch's last step, before its checkpoint and its evaluation."""

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        """Called after the evaluation; overlapped decoding may still be running."""

    def on_train_end(self, run: TrainingRun) -> None:
        """Called once, after the last epoch, unless an error or a signal ended the run."""

    def close(self) -> None:
        """Called last, however the run ended."""


class Loop:
    """Trains a run from where it stands to its last epoch; all workers run the same loop.

    Checkpoints are saved every ``checkpoint_every_steps`` steps and at the end of every epoch, only
    by the chief.
    """

    def __init__(
        self,
        run: TrainingRun,
        hooks: Sequence[Hook],
        evaluations: Evaluations,
        checkpoints: Checkpoints | None = None,
    ):
        self._run = run
        self._hooks = hooks
        self._evaluations = evaluations
        self._checkpoints = checkpoints

    def train(self) -> None:
        """Trains; raises RunInterruptedError after saving the run if a signal ended it."""
        run = self._run
        self._evaluations.begin(run)
        for hook in self._hooks:
            hook.on_train_begin(run)
        while run.goes_on():
            epoch = run.state.epoch
            run.ledger.start("epoch", epoch_num=epoch)
            run.model.groups.enter(epoch, run.state.step_in_epoch)
            self._train_epoch(epoch)
            run.batches.prefetch(epoch + 1)  # read while the epoch is saved and evaluated
            self._save_epoch(epoch)
            self._evaluate_end(epoch)
            run.advance(epoch=epoch + 1, step_in_epoch=0, epoch_trained=False)
            for hook in self._hooks:
                hook.on_epoch_end(run, epoch)
            run.ledger.stop("epoch", epoch_num=epoch)
        self._evaluations.finish(run)
        for hook in self._hooks:
            hook.on_train_end(run)

    def close(self) -> None:
        """Closes the evaluations and the hooks, however the run ended."""
        with contextlib.ExitStack() as opened:
            for part in (self._evaluations, *self._hooks):
                opened.callback(part.close)

    def _train_epoch(self, epoch: int) -> None:
        run = self._run
        for hook in self._hooks:
            hook.on_epoch_begin(run, epoch)
        run.interruption.agree_between(run.team.workers)  # on signals during the evaluation
        self._stop_if_interrupted()
        if not run.state.epoch_trained:
            self._evaluate_within()  # if the previous session was killed while evaluating
        # A resumed epoch may lack only its evaluation, during which the last session was killed.
        batches = None if run.state.epoch_trained else run.batches.iterator(run.state)
        while batches is not None and not (run.stop_requested and run.take_step.settled):
            for hook in self._hooks:
                hook.on_step_begin(run)
            step = run.take_step(batches)
            if step is None:
                break
            run.advance(step=run.state.step + 1, step_in_epoch=run.state.step_in_epoch + 1)
            self._after_step(step)

    def _after_step(self, step: StepResult) -> None:
        run = self._run
        for hook in self._hooks:
            hook.on_step(run, step)
        due = run.state.step % run.training.checkpoint_every_steps == 0
        if due or run.interruption.received is not None:
            average_statistics(run.team.workers, run.model)
        if due:
            self._save()
        self._evaluations.collect(run)
        for hook in self._hooks:
            hook.on_step_end(run, step)
        self._stop_if_interrupted()
        self._evaluate_within()

    def _evaluate_within(self) -> None:
        run = self._run
        epoch = run.evaluated_within
        if epoch is None or epoch == run.state.last_evaluated:
            return
        average_statistics(run.team.workers, run.model)
        self._save()
        self._evaluate(epoch)
        for hook in self._hooks:
            hook.on_evaluation(run, epoch)
        if run.team.workers.gather(run.stop_requested)[0]:
            run.request_stop()

    def _save_epoch(self, epoch: int) -> None:
        run = self._run
        for hook in self._hooks:
            hook.on_epoch_trained(run, epoch)
        average_statistics(run.team.workers, run.model)
        if not run.state.epoch_trained:  # before the evaluation: a crash in it costs no training
            run.advance(epoch_trained=True)
            self._save()

    def _save(self) -> None:
        if self._checkpoints is not None:
            self._evaluations.settle(self._run)
            self._checkpoints.save(self._run)

    def _evaluate_end(self, epoch: int) -> None:
        finer = self._run.training.evaluations_per_epoch > 1
        within = self._run.evaluated_within
        if within is None or within != self._run.state.last_evaluated:  # not evaluated yet
            self._evaluate(float(epoch) if finer else epoch)

    def _evaluate(self, epoch: float) -> None:
        newest = self._checkpoints.newest if self._checkpoints is not None else None
        wait = any(hook.needs_scores for hook in self._hooks)
        self._evaluations.evaluate(self._run, epoch, newest, wait=wait)

    def _stop_if_interrupted(self) -> None:
        run, received = self._run, self._run.interruption.received
        if received is None or not run.take_step.settled:
            return
        step = run.state.step
        if step:
            self._save()
        run.team.workers.gather("saved")  # nobody leaves before the chief has saved
        where = f"after step {step}, whose checkpoint is saved" if step else "before its first step"
        raise RunInterruptedError(
            f"{received.name} ended the run {where}. Continue it with --resume.", received
        )
