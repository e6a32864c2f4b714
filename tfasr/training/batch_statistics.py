"""How far back batch normalisation's moving statistics reach, in utterances instead of steps.

Keras's momentum of 0.99 is one of steps: with large batches on a small corpus an epoch has few of
them, and an evaluation uses statistics of weights that are epochs old. That would count against
large batches what is no property of theirs. In utterances the reach is the same for all batches.
"""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import keras

from tfasr.errors import UsageError
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.models.recogniser import RecogniserConfig, keeps_momentum
from tfasr.training.experiment import Experiment, TrainingConfig

_KERAS_DEFAULT = inspect.signature(keras.layers.BatchNormalization).parameters["momentum"]


def moving_momentum(experiment: Experiment, train_utterances: int) -> float | None:
    """Returns the momentum of one step at which the moving statistics forget.

    Args:
        experiment: names the window, the batch and the parts into which it is accumulated.
        train_utterances: of the training split; the window is half of it at most, so that the
            statistics follow within an epoch.

    Returns:
        exp(-utterances of an update / window); None where the layers keep their own momentum.
    """
    training = experiment.training
    window = min(training.batch_norm_window_utterances, train_utterances / 2)
    if window <= 0:
        return None
    # A device's share of a batch is its update, and replicas' statistics are averaged: together
    # they see the batch. Accumulation makes an update of each part.
    parts = training.gradient_accumulation_steps
    return math.exp(-experiment.pipeline.global_batch_size / parts / window)


def set_moving_momentum(
    model: keras.Model, momentum: float | None, config: RecogniserConfig | None = None
) -> int:
    """Gives the batch normalisations of a model their momentum.

    Which ones says `tfasr.models.recogniser.keeps_momentum`; where the config does not tell, those
    whose momentum is their class's default. One that its maker set to the very default cannot be
    told from one that nobody set.

    Call it before the model's training step is traced, which makes a constant of it.

    Args:
        model: built.
        momentum: of a step; None leaves all layers as they are.
        config: of the model.

    Returns:
        How many batch normalisations keep another momentum than the window's.
    """
    if momentum is None:
        return 0
    keeps = None if config is None else keeps_momentum(config)
    kept = 0
    for layer in batch_normalisations(model):
        if chosen_by_its_maker(layer) if keeps is None else keeps:
            kept += 1
        else:
            layer.momentum = momentum
    return kept


def synchronise(model: keras.Model) -> None:
    """Makes the batch normalisations of a model take their statistics over all replicas.

    Call it before the model's training step is traced.

    Raises:
        UsageError: if one of them is not `tfasr.layers.batch_normalization.BatchNormalization`:
            Keras's own, given a mask, would silently take its replica's statistics.
    """
    for layer in batch_normalisations(model):
        if not isinstance(layer, BatchNormalization):
            raise UsageError(
                "TrainingConfig.batch_norm_synchronised must be False unless all batch "
                "normalisations are tfasr.layers.batch_normalization.BatchNormalization. Received: "
                f"{layer.name!r} of {type(layer).__module__}.{type(layer).__name__}."
            )
        layer.synchronized = True


def batch_normalisations(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Returns a model's batch normalisations, those within layers and lists of layers too."""
    found, seen = [], set()
    waiting: list[Any] = [model]
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        if isinstance(layer, keras.layers.BatchNormalization):
            found.append(layer)
        # A model lists its layers; a layer alone has its own as attributes, and no public list.
        waiting += getattr(layer, "layers", []) if isinstance(layer, keras.Model) else []
        waiting += [inner for value in vars(layer).values() for inner in _layers_in(value)]
    return found


def _layers_in(value: Any) -> Iterator[keras.layers.Layer]:
    if isinstance(value, keras.layers.Layer):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _layers_in(item)


def chosen_by_its_maker(layer: keras.layers.BatchNormalization) -> bool:
    """Says whether a layer's momentum is another than its class's default."""
    default = inspect.signature(type(layer)).parameters.get("momentum", _KERAS_DEFAULT).default
    return layer.momentum != default


def statistics_rule(training: TrainingConfig, kept: int = 0) -> str:
    """Returns in words how moving statistics are kept, for what makes results comparable.

    Args:
        training: names the window.
        kept: batch normalisations that keep a momentum of their own.
    """
    over = "; synchronised over replicas" if training.batch_norm_synchronised else ""
    if not training.batch_norm_window_utterances:
        return "the layers' own momentum a step" + over
    rule = f"over {training.batch_norm_window_utterances} utterances, half the split at most"
    return (f"{rule}; {kept} layers by their own momentum" if kept else rule) + over
