"""Checks a run's splits and settings, and builds its strategy and model."""

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

_KERAS_DEFAULT = inspect.signature(keras.layers.BatchNormalization).parameters[
    "momentum"
]


def moving_momentum(experiment: Experiment, train_utterances: int) -> float | None:
    """Returns the momentum of moving statistics: exp(-utterances of an update / window).

    None keeps the layers' own momentum. The window is at most half the training split,
    so that the statistics follow the weights within an epoch.
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
    """Sets the momentum of a model's batch normalisations; None leaves all as they are.

    The config may decide by `tfasr.models.model.keeps_momentum` whether layers keep
    their own momentum. If it doesn't, those keep it whose momentum isn't their class's
    default. Call this before the training step is traced, which fixes the momentum.
    Returns how many layers keep it.
    """
    if momentum is None:
        return 0
    keeps = None if config is None else keeps_momentum(config)
    others = 0
    for layer in batch_normalisations(model):
        if chosen_by_its_maker(layer) if keeps is None else keeps:
            others += 1
        else:
            layer.momentum = momentum

    return others


def synchronise(model: keras.Model) -> None:
    """Makes a model's batch normalisations take their statistics over all replicas.

    Call it before the training step is traced. Raises UsageError for Keras's own layer:
    given a mask, it would silently use only its own replica's statistics.
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
    """A model's batch normalisations, including those inside layers and lists of layers."""
    normalisations = []
    seen = set()
    waiting: list[Any] = [model]
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        if isinstance(layer, keras.layers.BatchNormalization):
            normalisations.append(layer)
        # A model lists its layers; other layers hold theirs as attributes, without a
        # public list.
        waiting += (
            getattr(layer, "layers", []) if isinstance(layer, keras.Model) else []
        )
        waiting += [
            inner for value in vars(layer).values() for inner in _layers_in(value)
        ]

    return normalisations


def _layers_in(value: Any) -> Iterator[keras.layers.Layer]:
    if isinstance(value, keras.layers.Layer):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _layers_in(item)


def chosen_by_its_maker(layer: keras.layers.BatchNormalization) -> bool:
    default = (
        inspect.signature(type(layer))
        .parameters.get("momentum", _KERAS_DEFAULT)
        .default
    )
    return layer.momentum != default


def statistics_rule(training: TrainingConfig, own_momentum: int = 0) -> str:
    """Describes how moving statistics are updated; runs that differ in it aren't
    comparable.
    """
    over = "; synchronised over replicas" if training.batch_norm_synchronised else ""
    if not training.batch_norm_window_utterances:
        return "the layers' own momentum a step" + over
    rule = f"over {training.batch_norm_window_utterances} utterances, half the split at most"
    others = f"; {own_momentum} layers by their own momentum" if own_momentum else ""
    return rule + others + over


def check_splits(splits: dict[str, ShardedSplit], experiment: Experiment) -> Alphabet:
    """Returns the splits' common alphabet.

    Raises UsageError if alphabets differ, or an utterance gets fewer output frames than
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
        raise UsageError(
            "TrainingConfig.intermediate_labels = 'characters' needs shards with units. Prepare "
            "them with the preset's --gin_file or --units, or bind it to 'same'. Received: "
            f"characters in {splits['train'].folder if 'train' in splits else list(splits)}."
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
    """Raises UsageError if the weights won't fit into memory: the kernel might kill the
    process.
    """
    features = experiment.features.num_features
    parameters = least_parameters(experiment.model, features, alphabet.num_classes)
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
    frames = split.frames
    outputs = np.zeros(frames.max(initial=0) + 1, np.int64)
    # Once per length, as utterances are many.
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

    That is the number passed, or else one replica per GPU, or one for all processors
    together.
    """
    if experiment.training.num_replicas:
        return experiment
    num_replicas = num_replicas or len(tf.config.list_logical_devices("GPU")) or 1
    training = dataclasses.replace(experiment.training, num_replicas=num_replicas)
    return dataclasses.replace(experiment, training=training)


def make_strategy(num_replicas: int) -> tf.distribute.MirroredStrategy:
    """Returns a strategy that mirrors weights on GPUs or, on a machine without, on processors.

    One device has it too, so that training takes the same path everywhere; its cost per
    step is in docs/training_step.md. Raises UsageError if there are too few devices.
    """
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices(
        "CPU"
    )
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
    """Builds a model, if ``compiled`` with a built optimizer, in the current strategy's scope.

    ``begin`` may change the recogniser's initial weights. Raises UsageError if the
    model breaks the rules of `tfasr.models.build`, lacks ``output_layer()`` for
    ``zero_output_layer`` or, compiled, has no middle layer for
    ``intermediate_loss_weight``.
    """
    training = experiment.training
    check_weights(experiment, alphabet)
    sizes = experiment.features.num_features, alphabet.num_classes
    options = {"seed": training.seed, "dtype": training.precision}

    def change_last(model: keras.Model) -> None:
        if training.zero_output_layer:
            zero_output_layer(model)

    # Rejects a model without output_layer() before its weights are made, which takes
    # longer.
    options["check"] = lambda model: (
        hasattr(model, "output_layer") or change_last(model)
    )
    recogniser = build_recogniser(experiment.model, *sizes, **options)
    # Before the optimizer is built: Schedule-Free's averages begin at the initial
    # weights.
    change_last(recogniser)
    if begin is not None:
        begin(recogniser)
    model = CtcModel(
        recogniser,
        experiment.model.output_lengths,
        training.gradient_accumulation_steps,
        training.intermediate_loss_weight,
        training.consistency_weight,
        alphabet.spelled_classes
        if training.intermediate_labels == "characters"
        else (),
        training.loss,
    )
    if compiled:
        if training.intermediate_loss_weight:
            check_intermediate(
                experiment.model, recogniser, experiment.features.num_features
            )

        optimizer = make_optimizer(training)
        optimizer.build(model.trainable_variables)
        model.compile(
            optimizer=optimizer, loss=None, auto_scale_loss=False, jit_compile=False
        )

    return model


def check_model(experiment: Experiment, alphabet: Alphabet) -> None:
    """Tries to build a user's own model before a run begins; tfasr's own have been tested."""
    if MODELS.entry(model_name(experiment.model)).attribute is None:  # not built in
        build_model(experiment, alphabet, compiled=False)


def evaluated_part(
    experiment: Experiment, splits: Mapping[str, ShardedSplit]
) -> ShardedSplit:
    """Returns the split that a run's evaluations score: validation, or a fixed part of it.

    Raises UsageError if the training split is too small for ``evaluations_per_epoch``.
    """
    training = experiment.training
    sizes = experiment.pipeline.batch_sizes
    most = len(splits["train"].utterances) // max(sizes)
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
    """Raises UsageError for an unknown loss, or a target whose metric no evaluation
    will report.

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
        if size % replicas:
            where = "PipelineConfig.global_batch_size"
            where += (
                " and each size of batch_size_schedule"
                if pipeline.batch_size_schedule
                else ""
            )
            raise UsageError(
                f"{where} must be a multiple of TrainingConfig.num_replicas. "
                f"Received: {size} and {replicas}."
            )
