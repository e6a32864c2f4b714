"""What a model in training would be used with: averaged weights and the statistics they need."""

import numpy as np

from tfasr.data.pipeline import BatchSource
from tfasr.training.averaging.averages import averaged_values, averaging_rule
from tfasr.training.averaging.statistics import StatisticsEstimate
from tfasr.training.checkpoint import TrainingState, model_variables, plain_array, values_kept
from tfasr.training.ctc_model import CtcModel
from tfasr.training.experiment import Experiment


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
        self._seed = experiment.training.seed
        self._utterances = experiment.training.averaged_statistics_utterances
        self._batch_size = experiment.pipeline.batch_size
        self._statistics = StatisticsEstimate(model, experiment.features.num_features)

    def __call__(self, state: TrainingState) -> dict[str, np.ndarray]:
        """Returns the values of all variables that differ from training's, by their names.

        Args:
            state: where the run stands.
        """
        model = self._model
        variables = model_variables(model)
        trained = model.trainable_variables
        differing = {id(variable) for variable in (*trained, *self._statistics.variables)}
        with values_kept(variables.values()):
            averages = averaged_values(model.optimizer, trained)
            for variable, value in zip(trained, averages, strict=True):
                variable.assign(value)
            if self._utterances and self._statistics.variables:
                # The next epoch's batches: the first epoch's may go from short to long.
                epoch = state.epoch + 1
                batches = self._source.training(self._seed, epoch)
                count = -(-self._utterances // self._batch_size(epoch))
                self._statistics.estimate(batches.take(count))
            return {
                name: plain_array(variable)
                for name, variable in variables.items()
                if id(variable) in differing
            }


def weights_for_use(
    experiment: Experiment, model: CtcModel, source: BatchSource
) -> WeightsForUse | None:
    """Returns what computes a run's weights for use; None where those in training are used.

    Args: see `WeightsForUse`.
    """
    if averaging_rule(experiment.training) is None:
        return None
    return WeightsForUse(experiment, model, source)
