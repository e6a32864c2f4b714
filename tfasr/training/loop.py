"""The training loop: epochs of timed steps, and hooks that are called between them."""

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
        stop_requested: set by a hook, it ends the epoch after the current step, and training after
            the epoch.
    """

    def __init__(self, state: TrainingState):
        self.state = state
        self.stop_requested = False

    def advance(self, **changes: Any) -> None:
        """Replaces fields of the state."""
        self.state = dataclasses.replace(self.state, **changes)


class Hook:
    """What is done beside the steps of a training; by default nothing.

    The hooks of a run are called in their order: all of them for one occasion, then all for the
    next. What raises in one of them ends the run.
    """

    def on_train_begin(self) -> None:
        """Is called once, before the first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Is called before an epoch's first step, and before what is left of a resumed one."""

    def on_step_begin(self) -> None:
        """Is called before a batch is fetched; once more at the end of the data."""

    def on_step(self, step: StepResult) -> None:
        """Is called after each step."""

    def on_epoch_trained(self, epoch: int) -> None:
        """Is called after an epoch's last step: to save and to evaluate it."""

    def on_epoch_end(self, epoch: int) -> None:
        """Is called after the evaluation, or while its hypotheses are being decoded."""

    def on_train_end(self) -> None:
        """Is called once, after the last epoch of a run that came to its end."""

    def close(self) -> None:
        """Is called last, however the run ended."""


def train_epochs(
    take_step: Callable[[Iterator[Batch]], StepResult | None],
    batches_of: Callable[[TrainingState], Iterator[Batch]],
    progress: RunProgress,
    hooks: Sequence[Hook],
    ledger: Ledger,
    epochs: int,
) -> None:
    """Trains from where a run stands to its end.

    Closing the hooks is left to the caller.

    Args:
        take_step: trains on an iterator's next batch; returns None where there is none.
        batches_of: returns the batches that remain of a state's epoch.
        progress: the run's; hooks move it on.
        hooks: called in this order.
        ledger: gets the beginning and end of each epoch.
        epochs: the last one's number.
    """
    for hook in hooks:
        hook.on_train_begin()
    while progress.state.epoch <= epochs and not progress.stop_requested:
        epoch = progress.state.epoch
        ledger.start("epoch", epoch_num=epoch)
        for hook in hooks:
            hook.on_epoch_begin(epoch)
        if not progress.state.epoch_trained:  # else a crash came between training and evaluation
            batches = batches_of(progress.state)
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
