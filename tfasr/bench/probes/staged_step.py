"""A training step that reads the clock between its modules, to time each of them."""

import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.bench.probes.computed import after
from tfasr.bench.probes.model_modules import UPDATE, modules_of
from tfasr.bench.probes.replicas import Replicas
from tfasr.data.pipeline import Batch
from tfasr.training.ctc_model import CtcModel


@dataclass(frozen=True)
class StagedTimes:
    """One step.

    Attributes:
        forward_s: seconds of each module's forward pass in order, 0 for the update; means over
            the devices.
        backward_s: seconds of each module's gradients; for the update, the exchange of gradients
            and the change of the weights.
        host_s: the rest of the call's time, which is mostly tracing in the first call.
    """

    forward_s: list[float]
    backward_s: list[float]
    host_s: float


class StagedStep:
    """The step of a model on one batch, its modules one after the other.

    Within one graph the clock is read before the first module and after every forward and every
    backward pass; each pass begins from tensors that wait for the reading before it, and each
    reading waits for all tensors of the pass. So the intervals follow each other without overlap:
    none is a difference of two measurements, none can be negative, and together they are the
    step. What is lost is whatever a device computes of two modules at the same time.

    Args:
        model: built and compiled under the strategy; its weights are trained.
        placed: the batch of every device, from `Replicas.values`.
        strategy: places the work.
    """

    def __init__(self, model: CtcModel, placed: Any, strategy: tf.distribute.Strategy):
        self._replicas, self._placed, self._model = Replicas(strategy), placed, model
        self._modules = modules_of(model)
        self.names = [*(module.name for module in self._modules), UPDATE]
        self._run = tf.function(self._on_all_devices)

    def __call__(self) -> StagedTimes:
        """Takes a step and returns where its seconds went."""
        began = time.perf_counter()
        stamps = self._run(self._placed).numpy()
        wall_s = time.perf_counter() - began
        intervals = np.diff(stamps, axis=1).mean(axis=0)
        count = len(self._modules)
        return StagedTimes(
            forward_s=[*intervals[:count].tolist(), 0.0],
            backward_s=[*intervals[count : 2 * count][::-1].tolist(), float(intervals[-1])],
            host_s=max(0.0, wall_s - float(intervals.sum())),
        )

    def _on_all_devices(self, batch: Any) -> tf.Tensor:
        if self._replicas.count == 1:
            return self._on_device(batch)[None]
        strategy = self._replicas.strategy
        found = strategy.run(self._on_device, args=(batch,))
        return tf.stack(strategy.experimental_local_results(found))

    def _on_device(self, batch: Batch) -> tf.Tensor:
        stamps = [tf.timestamp()]
        passes, hidden = [], batch["features"]
        for module in self._modules:
            inputs = _since(stamps, hidden)
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                hidden = module.forward(inputs, batch)
            passes.append((module, tape, inputs, hidden))
            stamps.append(_stamp([hidden]))
        gradient, gradients = self._first_gradient(hidden), []
        for number, (module, tape, inputs, outputs) in reversed(list(enumerate(passes))):
            values = [variable.value for variable in module.variables]
            # The features' gradient is nobody's: the first module does without it.
            sources = [*values, inputs] if number else values
            begun = _since(stamps, gradient)
            found = tape.gradient(
                outputs, sources, begun, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            stamps.append(_stamp(found))
            gradients += zip(found, module.variables, strict=False)
            gradient = found[-1] if number else gradient
        begun = [(_since(stamps, gradient), variable) for gradient, variable in gradients]
        self._model.optimizer.apply_gradients(begun)
        stamps.append(_stamp([tf.convert_to_tensor(variable.value) for _, variable in begun]))
        return tf.stack(stamps)

    def _first_gradient(self, loss: tf.Tensor) -> tf.Tensor:
        one = tf.ones_like(loss)
        optimizer = self._model.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return optimizer.scale_loss(one)
        return one


def _since(stamps: list[tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that is there only after the last reading."""
    with tf.control_dependencies([stamps[-1]]):
        return tf.identity(tensor)


def _stamp(tensors: list[tf.Tensor]) -> tf.Tensor:
    """Returns the clock's reading once all tensors have been computed."""
    finished = after(tf.zeros(()), tensors)
    # A number on the host cannot be read before the device has computed it.
    with tf.device("CPU:0"):
        finished = tf.identity(finished)
        # The clock has side effects of its own, so this wait is kept.
        with tf.control_dependencies([finished]):
            return tf.timestamp()
