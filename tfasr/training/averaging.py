"""Averaged weights, which some optimizers keep for inference, and statistics that fit them."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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
    """Describes which averaged weights a run evaluates; None if it evaluates the last
    step's.
    """
    if not training.evaluate_averaged:
        return None
    kind = _kind(training.optimizer())
    if kind is None:
        return None
    utterances = training.averaged_statistics_utterances
    estimated = (
        f"estimated anew, at every checkpoint from the same {utterances} utterances"
    )
    return f"{kind}; batch statistics {estimated if utterances else 'of the training weights'}"


def check_averaging(training: TrainingConfig, workers: int = 1) -> None:
    rule = averaging_rule(training)
    if rule is not None and (workers > 1 or training.num_replicas > 1):
        place = "In a cluster" if workers > 1 else "With several replicas"
        raise UsageError(
            f"{place} TrainingConfig.optimizer must not average the weights that are evaluated. "
            f"Received: an optimizer with {rule}. Train on one device, bind another optimizer, or "
            "bind TrainingConfig.evaluate_averaged = False to evaluate the last step's weights."
        )


def averaged_values(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]
) -> list[Any]:
    """The averages of trainable weights, as tensors; the weights themselves before the
    first step.

    Source: A. Defazio et al., The Road Less Scheduled, 2024, equations 3 to 5:
    gradients are taken at y = (1 - beta_1) z + beta_1 x, where z takes the steps and x
    is the average of z.
    """
    inner = inner_optimizer(optimizer)
    if not int(inner.iterations.numpy()):
        return [keras.ops.convert_to_tensor(variable) for variable in variables]
    return [_averaged(inner, variable) for variable in variables]


def _averaged(optimizer: keras.optimizers.Optimizer, variable: Any) -> Any:
    value = keras.ops.convert_to_tensor(variable)
    if _is_schedule_free(optimizer):
        # Keras stores z as its momentum, and y in the model.
        beta_1 = keras.ops.cast(optimizer.beta_1, value.dtype)
        (z,) = states_of(optimizer, variable, "momentums")
        return (value - (1 - beta_1) * z) / beta_1

    (average,) = states_of(optimizer, variable, "model_variables_moving_average")
    return value if average is None else keras.ops.convert_to_tensor(average)


def _kind(optimizer: keras.optimizers.Optimizer) -> str | None:
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


def _is_schedule_free(optimizer: keras.optimizers.Optimizer) -> bool:
    cls = getattr(keras.optimizers, "ScheduleFreeAdamW", None)  # from Keras 3.14 on
    return cls is not None and isinstance(optimizer, cls)


class StatisticsEstimate:
    """Estimates batch normalisation's moving statistics from a few batches, all of
    equal weight.

    The batches go through the model as in inference, except that batch normalisation
    uses and learns each batch's statistics. Dropout stays off, as in inference, since
    it would add variance (X. Li et al., Understanding the Disharmony between
    Dropout and Batch Normalization by Variance Shift, CVPR 2019). ``variables`` are the
    statistics; layers that do not learn, such as frozen ones, keep theirs.

    Source: P. Izmailov et al., Averaging Weights Leads to Wider Optima and Better
    Generalization, UAI 2018, section 3.2 (a pass over training data for the averaged
    weights' statistics).
    """

    def __init__(self, model: CtcModel, num_features: int):
        self._model = model
        layers = batch_normalisations(model.recogniser)
        self._layers = [
            layer for layer in layers if layer.trainable and layer.momentum < 1
        ]
        self.variables = [
            v for layer in self._layers for v in layer.non_trainable_variables
        ]
        # One signature with open dimensions: no shape of a batch is ever traced again.
        frames = tf.TensorSpec([None, None, num_features], tf.float32)
        lengths = tf.TensorSpec([None], tf.int32)
        self._forward = tf.function(
            self._learn, input_signature=[frames, lengths], autograph=False
        )

    def estimate(self, batches: Iterable[Batch]) -> None:
        """Replaces the statistics with those of the current weights, if there are any
        batches.
        """
        sums = [0.0] * len(self.variables)
        count = 0
        for batch in batches:
            self._forward(batch["features"], batch["feature_lengths"])
            sums = list(map(keras.ops.add, sums, self.variables))
            count += 1

        if count:
            for variable, total in zip(self.variables, sums, strict=True):
                variable.assign(total / count)

    def _learn(self, features: tf.Tensor, feature_lengths: tf.Tensor) -> None:
        with _learning(self._layers):
            self._model.recogniser(features, feature_lengths, training=False)


@contextlib.contextmanager
def _learning(layers: Iterable[keras.layers.BatchNormalization]) -> Iterator[None]:
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
    """

    def __init__(self, experiment: Experiment, model: CtcModel, source: BatchSource):
        self._model = model
        self._source = source
        self._experiment = experiment
        self._statistics: StatisticsEstimate | None = None
        # Which layers learned when `_statistics` was made.
        self._learning: list[bool] = []
        self._in_memory: dict[int, list[Batch]] = {}

    def __call__(self, state: TrainingState) -> dict[str, np.ndarray]:
        """Returns, by name, the values of all variables that differ from those in training."""
        model = self._model
        variables = model_variables(model)
        trained = model.trainable_variables
        learning = [layer.trainable for layer in batch_normalisations(model.recogniser)]
        if self._statistics is None or learning != self._learning:
            features = self._experiment.features.num_features
            self._learning, self._statistics = (
                learning,
                StatisticsEstimate(model, features),
            )

        differing = {
            id(variable) for variable in (*trained, *self._statistics.variables)
        }
        with values_kept(variables.values()):
            averages = averaged_values(model.optimizer, trained)
            for variable, value in zip(trained, averages, strict=True):
                variable.assign(value)
            if self._statistics.variables:
                # Never the first epoch's batches, which may be sorted from short to
                # long.
                self._statistics.estimate(self._batches(state.epoch + 1))

            return {
                n: plain_array(v) for n, v in variables.items() if id(v) in differing
            }

    def _batches(self, epoch: int) -> Iterable[Batch]:
        """Returns batches like an epoch's, kept in memory: reading takes as long as
        estimating.
        """
        config = self._experiment
        schedule = config.pipeline.batch_size_schedule
        changes = (2, config.augmentation.from_epoch, *(begin for begin, _ in schedule))
        alike = max(begin for begin in changes if 2 <= begin <= epoch)
        if alike in self._in_memory:
            return self._in_memory[alike]
        self._in_memory = {}  # frees the old ones before others are read
        batch_size = config.pipeline.batch_size(alike)
        count = -(-config.training.averaged_statistics_utterances // batch_size)
        batches = self._source.training(config.training.seed, alike).take(count)
        utterances = min(count * batch_size, len(self._source.split.frames))
        frames = utterances * self._source.boundaries[-1]  # at most
        if frames * config.features.num_features * 4 > MOST_KEPT_BYTES:
            return Reading(batches, self._source.split)
        self._in_memory = {alike: list(Reading(batches, self._source.split))}
        return self._in_memory[alike]


def weights_for_use(
    experiment: Experiment, model: CtcModel, source: BatchSource
) -> WeightsForUse | None:
    """Returns a run's `WeightsForUse`, or None if it uses the training weights."""
    averages = averaging_rule(experiment.training) is not None
    return WeightsForUse(experiment, model, source) if averages else None
