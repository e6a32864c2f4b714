"""The training loop: epochs of timed steps, with hooks called at fixed points between them."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfasr.data.pipeline import Batch
from tfasr.ledger import Ledger
from tfasr.training.checkpoint import TrainingState
from tfasr.training.step import StepResult


class RunProgress:
    """The state of a run, shared by its hooks and saved with every checkpoint.

    Attributes:
        state: where the run stands.
        stop_requested: a hook sets it to end training: no further step is taken, the epoch is
            still evaluated, and no further epoch begins.
    """

    def __init__(self, state: TrainingState):
        self.state = state
        self.stop_requested = False

    def advance(self, **changes: Any) -> None:
        """Replaces fields of the state."""
        self.state = dataclasses.replace(self.state, **changes)


class Hook:
    """What a run does between its training steps. Every method does nothing by default.

    At each point all hooks of the run are called in the order of their list. An exception that a
    hook raises ends the run.
    """

    def on_train_begin(self) -> None:
        """Called once in each session, before its first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Called before an epoch's first step, or its remaining steps where a run is resumed."""

    def on_step_begin(self) -> None:
        """Called before each attempt to fetch a batch, also the last one, which finds none."""

    def on_step(self, step: StepResult) -> None:
        """Called after each step."""

    def on_epoch_trained(self, epoch: int) -> None:
        """Called after an epoch's last step; checkpoint and evaluation happen here."""

    def on_epoch_end(self, epoch: int) -> None:
        """Called when the evaluation is done, or has yet to decode where decoding overlaps."""

    def on_train_end(self) -> None:
        """Called once, after the last epoch; not where an error or a signal ended the run."""

    def close(self) -> None:
        """Called last, however the run ended."""


def train_epochs(
    take_step: Callable[[Iterator[Batch]], StepResult | None],
    remaining_batches: Callable[[TrainingState], Iterator[Batch]],
    progress: RunProgress,
    hooks: Sequence[Hook],
    ledger: Ledger,
    epochs: int,
) -> None:
    """Trains from where a run stands to its last epoch.

    The loop itself changes no state: the hook `BookSteps` counts the steps, and `EvaluateEpoch`
    moves on to the next epoch. Closing the hooks is left to the caller.

    Args:
        take_step: trains on an iterator's next batch; returns None where there is none.
        remaining_batches: returns the batches of the state's epoch that are still to be trained on.
        progress: the run's state, which the hooks keep current.
        hooks: called in this order.
        ledger: gets the beginning and end of each epoch.
        epochs: the number of the last epoch.
    """
    for hook in hooks:
        hook.on_train_begin()
    while progress.state.epoch <= epochs and not progress.stop_requested:
        epoch = progress.state.epoch
        ledger.start("epoch", epoch_num=epoch)
        for hook in hooks:
            hook.on_epoch_begin(epoch)
        # A resumed epoch may lack its evaluation alone: the session before was killed during it.
        if not progress.state.epoch_trained:
            batches = remaining_batches(progress.state)
            while not progress.stop_requested:
                for hook in hooks:
                    hook.on_step_begin()
                step = take_step(batches)
                if step is None:
                    break
                for hook in hooks:
                    hook.on_step(step)
        for hook in hooks:
            hook.on_epoch_trained(epoch)
        for hook in hooks:
            hook.on_epoch_end(epoch)
        ledger.stop("epoch", epoch_num=epoch)
    for hook in hooks:
        hook.on_train_end()
