"""The state that workers share: all start from the chief's, and average what differs."""

import dataclasses

import keras
import numpy as np

from tfasr.training.batch_statistics import batch_normalisations
from tfasr.training.checkpoint import TrainingState, plain_array, state_variables
from tfasr.training.ctc_model import CtcModel
from tfasr.training.workers.exchange import Workers


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


def average_statistics(workers: Workers, model: CtcModel) -> None:
    """Gives all workers the mean of their moving statistics, before a checkpoint or an evaluation.

    Each worker's batch normalisations see its share of the batches alone. Averages of moving
    averages move like the averages themselves, so that it does not matter when it is done.
    """
    if workers.count == 1:
        return
    statistics = [
        variable
        for layer in batch_normalisations(model.recogniser)
        if not layer.synchronized
        for variable in layer.non_trainable_variables
    ]
    if not statistics:
        return
    totals = workers.sums([plain_array(variable) for variable in statistics])
    for variable, total in zip(statistics, totals, strict=True):
        variable.assign(total / workers.count)
