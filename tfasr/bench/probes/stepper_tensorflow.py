"""Steps on Keras's TensorFlow backend, on one device or on several."""

import contextlib
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfasr.bench.probes.computed import after
from tfasr.bench.probes.step import Batch, Loss
from tfasr.errors import UsageError


class TensorflowStepper:
    """See `tfasr.bench.probes.step.Stepper`; graphs, without XLA as Keras trains recurrent
    models unless it is asked for.

    Reading a result waits for the device. Under a strategy each batch is cut into a part for each
    device, and gradients are summed over devices.
    """

    def __init__(
        self,
        model: keras.Model,
        loss: Loss,
        optimizer: keras.optimizers.Optimizer | None = None,
        strategy: tf.distribute.Strategy | None = None,
        xla: bool = False,
    ):
        self._model = model
        self._loss = loss
        self._optimizer = optimizer
        self._strategy = strategy
        if optimizer is not None:
            with strategy.scope() if strategy else tf.init_scope():
                optimizer.build(model.trainable_variables)
        self._forward, self._gradients, self._update, self._predict = (
            # XLA wants to know every shape, so that each gets a trace of its own.
            tf.function(step, reduce_retracing=not xla, jit_compile=xla or None)
            for step in (
                self._forward_step,
                self._gradient_step,
                self._update_step,
                self._predict_step,
            )
        )

    def place(self, batch: Batch) -> Batch:
        """Moves a batch to its devices; see `Stepper.place`."""
        replicas = self._strategy.num_replicas_in_sync if self._strategy else 1
        if replicas == 1:
            return Batch(*(tuple(map(tf.constant, part)) for part in (batch.inputs, batch.targets)))
        return Batch(
            *(
                tuple(self._split(array, replicas) for array in part)
                for part in (batch.inputs, batch.targets)
            )
        )

    def _split(self, array: np.ndarray, replicas: int) -> Any:
        # A last batch of fewer utterances than devices: some are computed twice, never counted.
        rows = np.arange(max(len(array), replicas)) % len(array)
        parts = np.array_split(array[rows], replicas)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    def forward(self, batch: Batch) -> float:
        """See `Stepper.forward`."""
        return self._run(self._forward, batch)

    def gradients(self, batch: Batch) -> float:
        """See `Stepper.gradients`."""
        return self._run(self._gradients, batch)

    def apart(self, batch: Batch) -> tuple[float, float] | None:
        """See `Stepper.apart`; both passes are graphs, the tape keeps what lies between."""
        if self._strategy is not None:
            return None
        variables = [variable.value for variable in self._model.trainable_variables]
        began = time.perf_counter()
        with tf.GradientTape() as tape:
            loss = self._forward(batch.inputs, batch.targets)
        loss.numpy()
        between = time.perf_counter()
        tape.gradient(loss, variables)
        tf.test.experimental.sync_devices()
        return between - began, time.perf_counter() - between

    def update(self, batch: Batch) -> float:
        """See `Stepper.update`."""
        return self._run(self._update, batch)

    def predict(self, batch: Batch) -> np.ndarray:
        """See `Stepper.predict`; the whole batch on the first device."""
        return self._predict(tuple(map(tf.convert_to_tensor, batch.inputs))).numpy()

    def _run(self, function: Any, batch: Batch) -> float:
        return float(np.mean(function(batch.inputs, batch.targets).numpy()))

    def _mean_loss(self, inputs, targets) -> tf.Tensor:
        outputs = self._model(*inputs, training=True)
        return tf.reduce_mean(self._loss(outputs, *targets))

    def _forward_step(self, inputs, targets) -> tf.Tensor:
        return self._everywhere(self._mean_loss, inputs, targets)

    def _gradient_step(self, inputs, targets) -> tf.Tensor:
        def step(inputs, targets):
            loss, gradients = self._loss_and_gradients(inputs, targets)
            if self._strategy is not None:
                context = tf.distribute.get_replica_context()
                gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            return after(loss, gradients)

        return self._everywhere(step, inputs, targets)

    def _update_step(self, inputs, targets) -> tf.Tensor:
        def step(inputs, targets):
            loss, gradients = self._loss_and_gradients(inputs, targets)
            # Under a strategy the optimizer sums the gradients itself.
            self._optimizer.apply(gradients, self._model.trainable_variables)
            return loss

        return self._everywhere(step, inputs, targets)

    def _predict_step(self, inputs) -> tf.Tensor:
        return self._model(*inputs, training=False)

    def _loss_and_gradients(self, inputs, targets):
        with tf.GradientTape() as tape:
            loss = self._mean_loss(inputs, targets)
            share = loss / (self._strategy.num_replicas_in_sync if self._strategy else 1)
        variables = [variable.value for variable in self._model.trainable_variables]
        return loss, tape.gradient(share, variables)

    def _everywhere(self, step, inputs, targets) -> tf.Tensor:
        if self._strategy is None:
            return step(inputs, targets)
        losses = self._strategy.run(step, args=(inputs, targets))
        return self._strategy.reduce("MEAN", losses, axis=None)


def cut_processor(num_devices: int) -> None:
    """Makes the processor so many logical devices where there is no GPU; before any other use."""
    if not tf.config.list_physical_devices("GPU"):
        (processor,) = tf.config.list_physical_devices("CPU")
        logical = [tf.config.LogicalDeviceConfiguration()] * num_devices
        with contextlib.suppress(RuntimeError):  # TensorFlow works already: what it has must do
            tf.config.set_logical_device_configuration(processor, logical)


def mirrored_strategy(num_devices: int) -> tf.distribute.Strategy:
    """See `tfasr.bench.probes.make_stepper.make_strategy`."""
    cut_processor(num_devices)
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) < num_devices:
        raise UsageError(
            f"There must be as many devices as are to share a batch. Received: {num_devices}, and "
            f"{len(devices)} devices: {', '.join(device.name for device in devices)}."
        )
    return tf.distribute.MirroredStrategy([device.name for device in devices[:num_devices]])
