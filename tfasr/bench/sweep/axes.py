"""Kinds of network, lengths of sequences, frameworks and XLA: steps of each with each."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from tfasr.bench.probes.make_stepper import make_stepper
from tfasr.bench.probes.out_of_memory import out_of_memory
from tfasr.bench.probes.step import Batch, Stepper
from tfasr.models.build import build_recogniser
from tfasr.models.recogniser import RecogniserConfig, output_frames, portable

NUM_CLASSES = 30
_LEARNING_RATE = 0.001
_REASON = 160


@dataclass(frozen=True)
class AxesTask:
    """What one process measures: all networks and lengths in one framework.

    Attributes:
        networks: configs by name.
        num_features: features of a frame.
        frames: lengths of sequences, growing.
        batch: utterances.
        steps: measured of each.
        warmup: steps before those, left out.
        xla: whether TensorFlow's graphs are compiled by XLA.
    """

    networks: dict[str, RecogniserConfig]
    num_features: int
    frames: tuple[int, ...]
    batch: int
    steps: int
    warmup: int
    xla: bool = False


@dataclass(frozen=True)
class AxesTimes:
    """One network at one length in one framework.

    Attributes:
        network: its name.
        frames: feature frames of each utterance.
        parameters: trainable ones.
        inference_s: seconds of each forward pass in inference.
        training_s: seconds of each training step.
        first_s: of the first training step, which compiles; None where it was not run.
        reason: why it was not run, or "".
    """

    network: str
    frames: int
    parameters: int = 0
    inference_s: list[float] = field(default_factory=list)
    training_s: list[float] = field(default_factory=list)
    first_s: float | None = None
    reason: str = ""


def measure_axes(task: AxesTask) -> list[AxesTimes]:
    """Measures every network at every length on the running backend.

    The loss is the cross entropy of a class for each output frame: all frameworks have it, and no
    difference between their CTC losses passes for one between networks.
    """
    found = []
    for name, config in task.networks.items():
        config = portable(config) if task.xla else config
        model = build_recogniser(config, task.num_features, NUM_CLASSES)
        parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
        optimizer = keras.optimizers.Adam(_LEARNING_RATE)
        stepper = make_stepper(model, frame_losses, optimizer, xla=task.xla)
        for frames in task.frames:
            found.append(_measured(task, name, frames, parameters, config, stepper))
            if found[-1].reason:
                break
    return found


def frame_losses(logits, classes):
    """Returns the mean cross entropy of each utterance's frames."""
    losses = keras.losses.sparse_categorical_crossentropy(classes, logits, from_logits=True)
    return keras.ops.mean(losses, axis=-1)


def _measured(
    task: AxesTask,
    name: str,
    frames: int,
    parameters: int,
    config: RecogniserConfig,
    stepper: Stepper,
) -> AxesTimes:
    random = np.random.default_rng(0)
    shape = (task.batch, frames, task.num_features)
    features = random.standard_normal(shape, np.float32)
    lengths = np.full(task.batch, frames, np.int32)
    outputs = (task.batch, output_frames(config, frames))
    batch = Batch((features, lengths), (random.integers(0, NUM_CLASSES, outputs, np.int32),))
    try:
        placed = stepper.place(batch)
        first_s, *_ = _timed(lambda: stepper.update(placed), 0, 1)
        training_s = _timed(lambda: stepper.update(placed), task.warmup - 1, task.steps)
        inference_s = _timed(lambda: stepper.predict(placed), task.warmup, task.steps)
    except Exception as error:  # each framework has classes of its own for what it cannot do
        if not (task.xla or out_of_memory(error)):
            raise
        reason = "out of memory" if out_of_memory(error) else " ".join(str(error).split())
        return AxesTimes(name, frames, parameters, reason=reason[:_REASON])
    return AxesTimes(name, frames, parameters, inference_s, training_s, first_s)


def _timed(call: Callable[[], Any], warmup: int, count: int) -> list[float]:
    seconds = []
    for _ in range(warmup + count):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds[warmup:]
