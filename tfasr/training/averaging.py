"""Averaged weights, which some optimizers keep for inference, and their statistics.

An optimizer with a moving average, or Schedule-Free, trains one set of weights and
recommends another one for inference. The moving statistics of batch normalisation were
gathered with the former and don't fit the latter, so they are estimated anew.
`WeightsForUse` does both whenever a checkpoint is saved; the checkpoint then holds both
sets, and evaluations read the averaged one (`tfasr.training.checkpoint`).
"""

import contextlib
import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.optimizers import Optimizer

from tfasr.data.batches import Batch, BatchSource, Reading
from tfasr.errors import UsageError
from tfasr.training.build import batch_normalisations
from tfasr.training.checkpoint import (
    TrainingState,
    model_variables,
    plain_array,
    values_kept,
)
from tfasr.training.ctc import CtcModel
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.optimizer import inner_optimizer
from tfasr.training.private_keras import states_of


def averaging_rule(training: TrainingConfig) -> str | None:
    """Describes which averaged weights a run evaluates.

    None if it evaluates the weights of the last step.
    """
    if not training.evaluate_averaged:
        return None

    kind = _kind(training.optimizer())
    if kind is None:
        return None

    utterances = training.averaged_statistics_utterances
    statistics = "of the training weights"
    if utterances:
        statistics = (
            f"estimated anew, at every checkpoint from the same {utterances} utterances"
        )

    return f"{kind}; batch statistics {statistics}"


def check_averaging(training: TrainingConfig, workers: int = 1) -> None:
    """Raises UsageError if several devices train weights that are evaluated averaged.

    Args:
        training: the run's settings.
        workers: how many processes train together.
    """
    rule = averaging_rule(training)
    if rule is None:
        return

    if workers > 1:
        place = "In a cluster"
    elif training.num_replicas > 1:
        place = "With several replicas"
    else:
        return

    raise UsageError(
        f"{place} TrainingConfig.optimizer must not average the weights that are "
        f"evaluated. Received: an optimizer with {rule}. Train on one device, bind "
        "another optimizer, or bind TrainingConfig.evaluate_averaged = False to "
        "evaluate the last step's weights."
    )


def averaged_values(optimizer: Optimizer, variables: Sequence[Any]) -> list[Any]:
    """Returns the averages of trainable weights, as tensors.

    Before the first step these are the weights themselves.

    Args:
        optimizer: built for the weights; one that averages them.
        variables: the weights.

    Source: A. Defazio et al., The Road Less Scheduled, 2024, equations 3 to 5:
    gradients are taken at y = (1 - beta_1) z + beta_1 x, where z takes the steps and x
    is the average of z.
    """
    inner = inner_optimizer(optimizer)
    if not int(inner.iterations.numpy()):
        return [keras.ops.convert_to_tensor(variable) for variable in variables]

    return [_averaged(inner, variable) for variable in variables]


def _averaged(optimizer: Optimizer, variable: Any) -> Any:
    value = keras.ops.convert_to_tensor(variable)
    if _is_schedule_free(optimizer):
        # Keras stores z as its momentum, and y in the model. Solved for x.
        beta_1 = keras.ops.cast(optimizer.beta_1, value.dtype)
        (z,) = states_of(optimizer, variable, "momentums")
        return (value - (1 - beta_1) * z) / beta_1

    (average,) = states_of(optimizer, variable, "model_variables_moving_average")
    return value if average is None else keras.ops.convert_to_tensor(average)


def _kind(optimizer: Optimizer) -> str | None:
    """Describes how an optimizer averages; None if it doesn't."""
    inner = inner_optimizer(optimizer)
    if _is_schedule_free(inner):
        if inner.use_ema:
            raise UsageError(
                "ScheduleFreeAdamW.use_ema must be False: it averages its weights by itself. "
                "Received: True."
            )

        return "average of ScheduleFreeAdamW's iterates"

    if inner.use_ema:
        return f"moving average of weights, momentum {inner.ema_momentum} a step"

    return None


def _is_schedule_free(optimizer: Optimizer) -> bool:
    # Keras has it since 3.14.
    cls = getattr(keras.optimizers, "ScheduleFreeAdamW", None)
    return cls is not None and isinstance(optimizer, cls)


class StatisticsEstimate:
    """Estimates batch normalisation's moving statistics from a few batches.

    The batches go through the model as in inference, except that batch normalisation
    uses and learns each batch's statistics. The estimate is their mean, so that all
    batches have equal weight. Dropout stays off, as in inference, since it would add
    variance (X. Li et al., Understanding the Disharmony between Dropout and Batch
    Normalization by Variance Shift, CVPR 2019).

    Source: P. Izmailov et al., Averaging Weights Leads to Wider Optima and Better
    Generalization, UAI 2018, section 3.2 (a pass over training data for the averaged
    weights' statistics).

    Attributes:
        variables: the statistics. Layers that do not learn, such as frozen ones, keep
            theirs.
    """

    def __init__(self, model: CtcModel, num_features: int):
        self._model = model
        layers = batch_normalisations(model.recogniser)
        self._layers = [
            layer for layer in layers if layer.trainable and layer.momentum < 1
        ]
        self.variables = [
            variable
            for layer in self._layers
            for variable in layer.non_trainable_variables
        ]

        # One signature with open dimensions: no shape of a batch is ever traced again.
        frames = tf.TensorSpec([None, None, num_features], tf.float32)
        lengths = tf.TensorSpec([None], tf.int32)
        self._forward = tf.function(
            self._learn, input_signature=[frames, lengths], autograph=False
        )

    def estimate(self, batches: Iterable[Batch]) -> None:
        """Replaces the statistics with those of the current weights.

        Without any batch they stay as they are.
        """
        sums = [0.0] * len(self.variables)
        count = 0

        for batch in batches:
            self._forward(batch["features"], batch["feature_lengths"])
            sums = list(map(keras.ops.add, sums, self.variables))
            count += 1

        if not count:
            return

        for variable, total in zip(self.variables, sums, strict=True):
            variable.assign(total / count)

    def _learn(self, features: tf.Tensor, feature_lengths: tf.Tensor) -> None:
        # Runs while the function is traced, so the layers change only in this graph.
        with _learning(self._layers):
            self._model.recogniser(features, feature_lengths, training=False)


@contextlib.contextmanager
def _learning(layers: Iterable[keras.layers.BatchNormalization]) -> Iterator[None]:
    """Makes layers use and learn a batch's own statistics while the block runs.

    A momentum of 0 replaces the moving statistics with those of the batch.
    """
    layers = list(layers)
    momenta = [layer.momentum for layer in layers]

    for layer in layers:
        layer.call = _in_training(layer.call)
        layer.momentum = 0.0

    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            del layer.call  # so that the class's method is used again
            layer.momentum = momentum


def _in_training(call: Any) -> Any:
    """Wraps a layer's ``call`` so that it always runs as in training."""
    signature = inspect.signature(call)

    def called(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.arguments["training"] = True
        # tfasr's layer also applies the dropout that follows it, if it is given one.
        if "dropout" in bound.arguments:
            bound.arguments["dropout"] = None

        return call(*bound.args, **bound.kwargs)

    return called


# An estimate's batches stay in memory up to this total size. Larger ones are read again
# at each checkpoint, so that averages need little more memory than training.
MOST_KEPT_BYTES = 2**28


class WeightsForUse:
    """Computes the weights that inference should use while a model is being trained.

    They depend only on the model, its optimizer (which averages) and the epoch, so that
    a resumed run computes the same ones. The training weights stay in the model.

    Args:
        experiment: the run's configs.
        model: in training, with its optimizer.
        source: the training split's batches, for the statistics.
    """

    def __init__(self, experiment: Experiment, model: CtcModel, source: BatchSource):
        self._model = model
        self._source = source
        self._experiment = experiment
        # Made at the first checkpoint, and again when other layers learn than before.
        self._statistics: StatisticsEstimate | None = None
        self._learning: list[bool] = []
        # The batches of the estimate, by the epoch that they belong to.
        self._in_memory: dict[int, list[Batch]] = {}

    def __call__(self, state: TrainingState) -> dict[str, np.ndarray]:
        """Returns the values of all variables that differ from those in training, by name."""
        model = self._model
        variables = model_variables(model)
        trained = model.trainable_variables
        learning = [layer.trainable for layer in batch_normalisations(model.recogniser)]
        if self._statistics is None or learning != self._learning:
            features = self._experiment.features.num_features
            self._learning = learning
            self._statistics = StatisticsEstimate(model, features)

        changed = [*trained, *self._statistics.variables]
        differing = {id(variable) for variable in changed}

        with values_kept(variables.values()):
            averages = averaged_values(model.optimizer, trained)
            for variable, value in zip(trained, averages, strict=True):
                variable.assign(value)

            if self._statistics.variables:
                # Of the next epoch, so never of the first one, which may be sorted from
                # short to long.
                self._statistics.estimate(self._batches(state.epoch + 1))

            return {
                name: plain_array(variable)
                for name, variable in variables.items()
                if id(variable) in differing
            }

    def _batches(self, epoch: int) -> Iterable[Batch]:
        """Returns batches like those of an epoch.

        They are kept in memory if they are small, since reading takes as long as
        estimating. Epochs are alike unless the batch size or augmentation changes
        between them, so that most checkpoints use the same batches.
        """
        config = self._experiment
        changes = [2, config.augmentation.from_epoch]
        changes += [first for first, _ in config.pipeline.batch_size_schedule]
        alike = max(first for first in changes if 2 <= first <= epoch)
        if alike in self._in_memory:
            return self._in_memory[alike]

        # Frees the old ones before others are read.
        self._in_memory = {}
        batch_size = config.pipeline.batch_size(alike)
        count = math.ceil(config.training.averaged_statistics_utterances / batch_size)
        batches = self._source.training(config.training.seed, alike).take(count)

        utterances = min(count * batch_size, len(self._source.split.frames))
        most_frames = utterances * self._source.boundaries[-1]
        # Features are float32, of four bytes.
        if most_frames * config.features.num_features * 4 > MOST_KEPT_BYTES:
            return Reading(batches, self._source.split)

        self._in_memory = {alike: list(Reading(batches, self._source.split))}
        return self._in_memory[alike]


def weights_for_use(
    experiment: Experiment, model: CtcModel, source: BatchSource
) -> WeightsForUse | None:
    """Returns a run's `WeightsForUse`, or None if it uses the training weights."""
    if averaging_rule(experiment.training) is None:
        return None

    return WeightsForUse(experiment, model, source)
