"""What a model in training would be used with: averaged weights and the statistics they need."""

from collections.abc import Iterable

import numpy as np

from tfasr.data.pipeline import Batch, BatchSource
from tfasr.training.averaging.averages import averaged_values, averaging_rule
from tfasr.training.averaging.statistics import StatisticsEstimate
from tfasr.training.checkpoint import TrainingState, model_variables, plain_array, values_kept
from tfasr.training.ctc_model import CtcModel
from tfasr.training.experiment import Experiment

# Of batches that stay in memory. Larger ones are read again at each checkpoint, so that averages
# need little more memory than training.
MOST_KEPT_BYTES = 2**28


class WeightsForUse:
    """Computes the weights for use that belong to a model in training, and changes nothing in it.

    They depend on the model, its optimizer and the epoch alone: a resumed run finds the same.

    Args:
        experiment: names seed, batch size, and the utterances that the statistics are taken of.
        model: compiled, with an optimizer that averages.
        source: of the training split.
    """

    def __init__(self, experiment: Experiment, model: CtcModel, source: BatchSource):
        self._model = model
        self._source = source
        self._experiment = experiment
        self._statistics = StatisticsEstimate(model, experiment.features.num_features)
        self._kept: dict[int, list[Batch]] = {}

    def __call__(self, state: TrainingState) -> dict[str, np.ndarray]:
        """Returns the values of all variables that differ from training's, by their names."""
        model = self._model
        variables = model_variables(model)
        trained = model.trainable_variables
        differing = {id(variable) for variable in (*trained, *self._statistics.variables)}
        with values_kept(variables.values()):
            averages = averaged_values(model.optimizer, trained)
            for variable, value in zip(trained, averages, strict=True):
                variable.assign(value)
            if self._statistics.variables:
                # As the next epoch's are made: the first epoch's may go from short to long.
                self._statistics.estimate(self._batches(state.epoch + 1))
            return {
                name: plain_array(variable)
                for name, variable in variables.items()
                if id(variable) in differing
            }

    def _batches(self, epoch: int) -> Iterable[Batch]:
        """Returns batches as an epoch's are made, the same for all epochs that make them alike.

        Reading the first of them costs as much as the statistics of all, so they are kept.
        """
        config = self._experiment
        schedule = config.pipeline.batch_size_schedule
        changes = (2, config.augmentation.from_epoch, *(begin for begin, _ in schedule))
        alike = max(begin for begin in changes if 2 <= begin <= epoch)
        if alike in self._kept:
            return self._kept[alike]
        self._kept = {}  # before others take their place in memory
        batch_size = config.pipeline.batch_size(alike)
        count = -(-config.training.averaged_statistics_utterances // batch_size)
        batches = self._source.training(config.training.seed, alike).take(count)
        utterances = min(count * batch_size, len(self._source.split.frames))
        frames = utterances * self._source.boundaries[-1]  # at most
        if frames * config.features.num_features * 4 > MOST_KEPT_BYTES:
            return batches
        self._kept = {alike: list(batches)}
        return self._kept[alike]


def weights_for_use(
    experiment: Experiment, model: CtcModel, source: BatchSource
) -> WeightsForUse | None:
    """Returns what computes a run's weights for use; None where those in training are used."""
    if averaging_rule(experiment.training) is None:
        return None
    return WeightsForUse(experiment, model, source)
