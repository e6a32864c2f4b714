"""How far back batch normalisation's moving statistics reach, in utterances instead of steps.

Keras's momentum of 0.99 is one of steps: with large batches on a small corpus an epoch has few of
them, and an evaluation uses statistics of weights that are epochs old. That would count against
large batches what is no property of theirs. In utterances the reach is the same for all batches.
"""

import math

import keras

from tfasr.training.experiment import Experiment, TrainingConfig


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


def set_moving_momentum(model: keras.Model, momentum: float | None) -> None:
    """Gives every batch normalisation of a model its momentum; None leaves them as they are.

    Call it before the model's training step is traced, which makes a constant of it.
    """
    if momentum is None:
        return
    # Keras has no public way to the layers within layers.
    for layer in model._flatten_layers():  # noqa: SLF001
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = momentum


def statistics_rule(training: TrainingConfig) -> str:
    """Returns in words how moving statistics are kept, for what makes results comparable."""
    if not training.batch_norm_window_utterances:
        return "the layers' own momentum a step"
    return f"over {training.batch_norm_window_utterances} utterances, half the split at most"
