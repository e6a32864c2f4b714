"""Checks a run's splits and settings, and builds its strategy and model.

Each check raises a UsageError that names the setting and a remedy. They run before a
run's folder is claimed, so that a mistake costs no training and leaves nothing behind.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.data.shards import ShardedSplit
from tfasr.decoding.choice import check_beam
from tfasr.errors import UsageError
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.models.build import build_recogniser, check_intermediate
from tfasr.models.model import (
    MODELS,
    RecogniserConfig,
    keeps_momentum,
    least_parameters,
    model_name,
    output_frames,
)
from tfasr.models.recurrent import zero_output_layer
from tfasr.telemetry.machine import available_bytes
from tfasr.training.ctc import LOSSES, CtcModel
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.optimizer import make_optimizer
from tfasr.tta.metrics import evaluated_metrics

# Keras's default momentum, for classes whose constructors don't name the parameter.
_KERAS_DEFAULT = inspect.signature(keras.layers.BatchNormalization).parameters[
    "momentum"
]


def moving_momentum(experiment: Experiment, train_utterances: int) -> float | None:
    """Returns the momentum of batch normalisation's moving statistics.

    It is exp(-utterances of an update / window), so that the statistics forget equally
    fast with every batch size. The window is at most half the training split, so that
    they follow the weights within an epoch.

    Args:
        experiment: has the window, `TrainingConfig.batch_norm_window_utterances`.
        train_utterances: of the training split.

    Returns:
        The momentum per update, or None to keep the layers' own.
    """
    training = experiment.training
    window = min(training.batch_norm_window_utterances, train_utterances / 2)
    if window <= 0:
        return None

    # Each device updates its statistics with its share of a batch, and those of all
    # replicas are averaged, so that an update covers the batch. With accumulation, it
    # covers one part.
    parts = training.gradient_accumulation_steps
    return math.exp(-experiment.pipeline.global_batch_size / parts / window)


def set_moving_momentum(
    model: keras.Model, momentum: float | None, config: RecogniserConfig | None = None
) -> int:
    """Sets the momentum of a model's batch normalisations.

    Call this before the training step is traced, which fixes the momentum.

    Args:
        model: whose layers are changed.
        momentum: None leaves all as they are.
        config: may decide by `tfasr.models.model.keeps_momentum` whether the layers
            keep their own momentum. If it doesn't, those keep it whose momentum isn't
            their class's default.

    Returns:
        How many layers keep their own momentum.
    """
    if momentum is None:
        return 0

    keeps = None if config is None else keeps_momentum(config)

    own_momentum = 0
    for layer in batch_normalisations(model):
        keeps_its_own = chosen_by_its_maker(layer) if keeps is None else keeps

        if keeps_its_own:
            own_momentum += 1
        else:
            layer.momentum = momentum

    return own_momentum


def synchronise(model: keras.Model) -> None:
    """Makes a model's batch normalisations take their statistics over all replicas.

    Call it before the training step is traced. Raises UsageError for Keras's own layer:
    given a mask, that would silently use only its own replica's statistics.
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
    """Returns a model's batch normalisations, including those inside other layers.

    Those in lists, tuples and dicts of layers are found too.
    """
    normalisations = []
    seen = set()
    waiting = [model]
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue

        seen.add(id(layer))
        if isinstance(layer, keras.layers.BatchNormalization):
            normalisations.append(layer)

        # A model lists its layers. Other layers hold theirs as attributes, without a
        # public list.
        if isinstance(layer, keras.Model):
            waiting += layer.layers

        for value in vars(layer).values():
            waiting += _layers_in(value)

    return normalisations


def _layers_in(value: Any) -> Iterator[keras.layers.Layer]:
    """Yields a layer, or the layers in a container of layers."""
    if isinstance(value, dict):
        value = list(value.values())

    if isinstance(value, keras.layers.Layer):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _layers_in(item)


def chosen_by_its_maker(layer: keras.layers.BatchNormalization) -> bool:
    """Whether a layer's momentum isn't the default of its class."""
    parameters = inspect.signature(type(layer)).parameters
    return layer.momentum != parameters.get("momentum", _KERAS_DEFAULT).default


def statistics_rule(training: TrainingConfig, own_momentum: int = 0) -> str:
    """Describes how moving statistics are updated.

    Runs that differ in it aren't comparable.

    Args:
        training: the run's settings.
        own_momentum: how many layers keep their own momentum, see
            `set_moving_momentum`.
    """
    window = training.batch_norm_window_utterances
    if window:
        rule = f"over {window} utterances, half the split at most"
        if own_momentum:
            rule += f"; {own_momentum} layers by their own momentum"
    else:
        rule = "the layers' own momentum a step"

    if training.batch_norm_synchronised:
        rule += "; synchronised over replicas"

    return rule


def check_splits(splits: dict[str, ShardedSplit], experiment: Experiment) -> Alphabet:
    """Returns the splits' common alphabet.

    Args:
        splits: by name, such as "train".
        experiment: the configs of the model, its features and its training.

    Raises:
        UsageError: if alphabets differ, or an utterance gets fewer output frames than
            CTC needs.
    """
    alphabets = {name: split.index["alphabet"] for name, split in splits.items()}
    if len({json.dumps(a, sort_keys=True) for a in alphabets.values()}) > 1:
        raise UsageError(
            f"All splits must be prepared with one alphabet. Received: {alphabets}."
        )

    for name, split in splits.items():
        _check_paths(name, split, experiment.model)

    alphabet = Alphabet.from_json(next(iter(alphabets.values())))
    if experiment.training.intermediate_labels == "characters" and not alphabet.units:
        place = splits["train"].folder if "train" in splits else list(splits)

        raise UsageError(
            "TrainingConfig.intermediate_labels = 'characters' needs shards with units. Prepare "
            "them with the preset's --gin_file or --units, or bind it to 'same'. Received: "
            f"characters in {place}."
        )

    return alphabet


def check_decoder(
    experiment: Experiment, split: ShardedSplit, alphabet: Alphabet
) -> None:
    """Raises UsageError if decoding the split's longest utterance needs too much memory."""
    frames = output_frames(experiment.model, int(split.frames.max(initial=0)))
    for decoder in filter(None, (experiment.decoder, experiment.second_decoder)):
        check_beam(decoder, alphabet.num_classes, frames, available_bytes())


def check_weights(experiment: Experiment, alphabet: Alphabet) -> None:
    """Raises UsageError if the weights won't fit into memory.

    Without this check the kernel might kill the process, without a message.
    """
    parameters = least_parameters(
        experiment.model, experiment.features.num_features, alphabet.num_classes
    )
    if parameters is None:
        return

    # Four bytes each for a weight, its gradient and one state of the optimizer.
    needed = 12 * parameters
    available = available_bytes()
    if needed > available:
        raise UsageError(
            f"The model's weights must fit into {available / 2**30:.1f} GiB of memory. "
            f"{type(experiment.model).__name__} has at least {parameters:.3g} parameters, which "
            f"need {needed / 2**30:.3g} GiB in training: make the model smaller."
        )


def _check_paths(name: str, split: ShardedSplit, model: RecogniserConfig) -> None:
    """Raises UsageError if an utterance has fewer output frames than CTC needs."""
    frames = split.frames
    outputs = np.zeros(frames.max(initial=0) + 1, np.int64)

    # Computed once per length, as there are fewer lengths than utterances.
    for length in np.flatnonzero(np.bincount(frames)):
        outputs[length] = output_frames(model, int(length))

    without = np.flatnonzero(outputs[frames] < split.frames_needed)
    if len(without):
        first = split.utterances[int(without[0])]
        raise UsageError(
            "Every utterance must have a CTC path: as many output frames as its labels need. "
            f"{len(without)} of {len(split.utterances)} in {split.folder} have none with the model "
            f"{model_name(model)!r}, such as {first.id}: {first.frames} feature frames become "
            f"{output_frames(model, first.frames)}, and its labels need {first.frames_needed}. "
            f"Prepare {name!r} again with this model's --gin_file, which leaves them out."
        )


def on_devices(experiment: Experiment, num_replicas: int = 0) -> Experiment:
    """Returns the experiment with a number of replicas in place of ``num_replicas = 0``.

    That is the number passed here, or else one replica per GPU, or without a GPU one
    for all processors together.
    """
    if experiment.training.num_replicas:
        return experiment

    num_replicas = num_replicas or len(tf.config.list_logical_devices("GPU")) or 1

    training = dataclasses.replace(experiment.training, num_replicas=num_replicas)
    return dataclasses.replace(experiment, training=training)


def make_strategy(num_replicas: int) -> tf.distribute.MirroredStrategy:
    """Returns a strategy that mirrors weights on GPUs or, without any, on processors.

    A single device has it too, so that training takes the same path everywhere; its
    cost per step is in docs/training_step.md. Raises UsageError if there are too few
    devices.
    """
    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        devices = tf.config.list_logical_devices("CPU")

    if len(devices) < num_replicas:
        raise UsageError(
            f"TrainingConfig.num_replicas must not exceed the devices. Received: {num_replicas} "
            f"replicas, {len(devices)} devices ({[device.name for device in devices]}). Bind "
            "fewer, as with --gin_binding 'TrainingConfig.num_replicas = 1'."
        )

    return tf.distribute.MirroredStrategy(
        [device.name for device in devices[:num_replicas]]
    )


def build_model(
    experiment: Experiment,
    alphabet: Alphabet,
    *,
    compiled: bool,
    begin: Callable[[keras.Model], None] | None = None,
) -> CtcModel:
    """Builds a model in the current strategy's scope.

    Args:
        experiment: the configs of the model, its features and its training.
        alphabet: the classes of the model's output.
        compiled: whether the model gets an optimizer, built and ready for training.
        begin: may change the recogniser's initial weights.

    Raises:
        UsageError: if the model breaks the rules of `tfasr.models.build`, lacks
            ``output_layer()`` for ``zero_output_layer`` or, compiled, has no middle
            layer for ``intermediate_loss_weight``.
    """
    training = experiment.training
    check_weights(experiment, alphabet)
    num_features = experiment.features.num_features

    def require_output_layer(model: keras.Model) -> None:
        # Making the weights takes longer than finding out that none can be zeroed.
        if training.zero_output_layer and not hasattr(model, "output_layer"):
            zero_output_layer(model)

    recogniser = build_recogniser(
        experiment.model,
        num_features,
        alphabet.num_classes,
        seed=training.seed,
        dtype=training.precision,
        check=require_output_layer,
    )
    # The optimizer is built after these changes, because Schedule-Free's averages begin
    # at the initial weights.
    if training.zero_output_layer:
        zero_output_layer(recogniser)

    if begin is not None:
        begin(recogniser)

    middle_labels = ()
    if training.intermediate_labels == "characters":
        middle_labels = alphabet.spelled_classes

    model = CtcModel(
        recogniser,
        experiment.model.output_lengths,
        training.gradient_accumulation_steps,
        training.intermediate_loss_weight,
        training.consistency_weight,
        middle_labels,
        training.loss,
    )
    if not compiled:
        return model

    if training.intermediate_loss_weight:
        check_intermediate(experiment.model, recogniser, num_features)

    optimizer = make_optimizer(training)
    optimizer.build(model.trainable_variables)
    model.compile(
        optimizer=optimizer, loss=None, auto_scale_loss=False, jit_compile=False
    )

    return model


def check_model(experiment: Experiment, alphabet: Alphabet) -> None:
    """Tries to build a user's own model before a run begins.

    tfasr's models are skipped: they have been tested, and building takes time.
    """
    built_in = MODELS.entry(model_name(experiment.model)).attribute is not None
    if not built_in:
        build_model(experiment, alphabet, compiled=False)


def evaluated_part(
    experiment: Experiment, splits: Mapping[str, ShardedSplit]
) -> ShardedSplit:
    """Returns the split that a run's evaluations score.

    Args:
        experiment: how many utterances are scored, and how often.
        splits: "train" and "validation".

    Returns:
        The validation split, or a fixed part of it.

    Raises:
        UsageError: if the training split is too small for ``evaluations_per_epoch``.
    """
    training = experiment.training

    most = len(splits["train"].utterances) // max(experiment.pipeline.batch_sizes)
    if training.evaluations_per_epoch > max(most, 1):
        raise UsageError(
            "TrainingConfig.evaluations_per_epoch must not exceed the whole batches of an epoch. "
            f"Received: {training.evaluations_per_epoch} evaluations, {most} batches."
        )

    validation = splits["validation"]
    if training.evaluation_utterances:
        return validation.part(training.evaluation_utterances)

    return validation


def check_loss_and_targets(training: TrainingConfig) -> None:
    """Raises UsageError for an unknown loss, or a target that no evaluation reports.

    Only training needs them: a trained run can be used without the plug-ins that
    register them.
    """
    LOSSES.entry(training.loss)
    reported_metrics = evaluated_metrics()

    for metric, _ in training.targets:
        if metric not in reported_metrics:
            raise UsageError(
                f"A metric in TrainingConfig.targets must be one of {', '.join(reported_metrics)}. "
                f"Received: {metric!r}. A metric of your own needs a function compute and the "
                "--import of its file (docs/extending.md)."
            )


def check_batch_size(experiment: Experiment) -> None:
    """Raises UsageError unless the replicas can share every epoch's batches equally."""
    pipeline = experiment.pipeline
    replicas = experiment.training.replicas

    for size in pipeline.batch_sizes:
        if size % replicas == 0:
            continue

        where = "PipelineConfig.global_batch_size"
        if pipeline.batch_size_schedule:
            where += " and each size of batch_size_schedule"

        raise UsageError(
            f"{where} must be a multiple of TrainingConfig.num_replicas. "
            f"Received: {size} and {replicas}."
        )
