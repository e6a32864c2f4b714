"""Batch normalisation's moving statistics for weights that training never had."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfasr.data.pipeline import Batch
from tfasr.training.batch_statistics import batch_normalisations
from tfasr.training.ctc_model import CtcModel


class StatisticsEstimate:
    """Estimates a model's moving statistics from a few batches alone.

    The batches go through the model as in inference, except that batch normalisation normalises
    with the statistics of each batch, and learns them. Dropout is off because it is off where the
    statistics are used: what is dropped would add its own variance to them (X. Li et al.,
    Understanding the Disharmony between Dropout and Batch Normalization by Variance Shift, CVPR
    2019). All batches weigh the same, whatever the layers' momentum in training.

    Args:
        model: whose forward pass is traced once; its weights may be changed between estimates.
        num_features: of a frame.

    Attributes:
        variables: the moving statistics that are estimated. Layers that do not learn them, such as
            frozen ones, keep theirs.

    Source: P. Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization,
    UAI 2018, section 3.2 (a pass over training data for the averaged weights' statistics).
    """

    def __init__(self, model: CtcModel, num_features: int):
        self._model = model
        self._layers = [
            layer
            for layer in batch_normalisations(model.recogniser)
            if layer.trainable and layer.momentum < 1
        ]
        self.variables = [
            variable for layer in self._layers for variable in layer.non_trainable_variables
        ]

        # One signature with open dimensions: no shape of a batch is ever traced again.
        frames = tf.TensorSpec([None, None, num_features], tf.float32)
        lengths = tf.TensorSpec([None], tf.int32)
        self._forward = tf.function(self._learn, input_signature=[frames, lengths])

    def estimate(self, batches: Iterable[Batch]) -> None:
        """Replaces the statistics by those of a model's present weights; without batches, nothing.

        Args:
            batches: of `tfasr.data.pipeline.BatchSource`.
        """
        sums, count = [0.0] * len(self.variables), 0
        for batch in batches:
            self._forward(batch["features"], batch["feature_lengths"])
            sums = [
                keras.ops.add(one, variable)
                for one, variable in zip(sums, self.variables, strict=True)
            ]
            count += 1
        for variable, one in zip(self.variables, sums, strict=True):
            if count:
                variable.assign(one / count)

    def _learn(self, features: tf.Tensor, feature_lengths: tf.Tensor) -> None:
        with _learning(self._layers):
            self._model.recogniser(features, feature_lengths, training=False)


@contextlib.contextmanager
def _learning(layers: Iterable[keras.layers.BatchNormalization]) -> Iterator[None]:
    layers = list(layers)
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.call, layer.momentum = _in_training(layer.call), 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            del layer.call  # the class's own is behind it
            layer.momentum = momentum


def _in_training(call: Any) -> Any:
    signature = inspect.signature(call)

    def called(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.arguments["training"] = True
        # tfasr's layer also drops out what comes of it, if it is given the dropout behind it.
        if "dropout" in bound.arguments:
            bound.arguments["dropout"] = None
        return call(*bound.args, **bound.kwargs)

    return called
