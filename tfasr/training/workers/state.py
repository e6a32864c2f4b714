"""The state that workers share: all start from the chief's, and average what differs."""

import dataclasses

import keras
import numpy as np

from tfasr.training.batch_statistics import batch_normalisations
from tfasr.training.checkpoint import TrainingState, plain_array, state_variables
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.step import StepResult
from tfasr.training.workers.exchange import Workers
from tfasr.training.workers.interruption import AgreedInterruption


def from_chief(workers: Workers, model: keras.Model, state: TrainingState) -> TrainingState:
    """Gives all workers the chief's variables, and returns the chief's state.

    Args:
        workers: all call it.
        model: built and compiled; those of the other workers get new values.
        state: of this worker; only the chief's counts.
    """
    if workers.count == 1:
        return state
    variables = list(state_variables(model).values())
    own = [plain_array(variable) for variable in variables]
    given = own if workers.rank == 0 else [np.zeros_like(value) for value in own]
    for variable, value in zip(variables, workers.sums(given), strict=True):
        if workers.rank:
            variable.assign(value)
    return TrainingState(**workers.gather(dataclasses.asdict(state))[0])


class AverageStatistics(Hook):
    """Gives all workers the mean of their moving statistics, before a checkpoint and an evaluation.

    Each worker's batch normalisations see its share of the batches alone. Averages of moving
    averages move like the averages themselves, so that it does not matter when it is done. It must
    be called before the hook that saves, on all workers.

    Args:
        workers: all of them.
        model: has batch normalisations, or none.
        every_steps: steps between checkpoints.
        progress: says which step it is.
        interruption: after which a checkpoint is saved too.
    """

    def __init__(
        self,
        workers: Workers,
        model: keras.Model,
        every_steps: int,
        progress: RunProgress,
        interruption: AgreedInterruption,
    ):
        self._workers = workers
        self._every_steps = every_steps
        self._progress = progress
        self._interruption = interruption
        self._statistics = [
            variable
            for layer in batch_normalisations(model)
            if not layer.synchronized
            for variable in layer.non_trainable_variables
        ]

    def on_step(self, step: StepResult) -> None:
        """Averages where a checkpoint follows."""
        due = self._progress.state.step % self._every_steps == 0
        if due or self._interruption.received is not None:
            self._average()

    def on_epoch_trained(self, epoch: int) -> None:
        """Averages."""
        self._average()

    def _average(self) -> None:
        if not self._statistics:
            return
        own = [plain_array(variable) for variable in self._statistics]
        totals = self._workers.sums(own)
        for variable, total in zip(self._statistics, totals, strict=True):
            variable.assign(total / self._workers.count)
