"""Steps of a Keras model, each waited for, on whichever backend Keras runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np

from tfasr.errors import UsageError

Loss = Callable[..., Any]


@dataclass(frozen=True)
class Batch:
    """One batch; arrays, or tensors on the device once `Stepper.place` has moved them.

    Attributes:
        inputs: what the model is called with, each ``(batch, ...)``.
        targets: what the loss is given after the model's outputs, each ``(batch, ...)``.
    """

    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]


class Stepper(Protocol):
    """Runs parts of a training step; every method returns when its work is done.

    Made by `make_stepper`.
    """

    def place(self, batch: Batch) -> Batch:
        """Returns a batch whose arrays are on the device, or split over the devices."""

    def forward(self, batch: Batch) -> float:
        """Computes the mean loss in training mode, without gradients."""

    def gradients(self, batch: Batch) -> float:
        """Computes the mean loss and all gradients."""

    def update(self, batch: Batch) -> float:
        """Computes the mean loss and the gradients, and updates the weights."""

    def predict(self, batch: Batch) -> np.ndarray:
        """Returns the model's outputs in inference mode."""


def make_stepper(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | None = None,
    strategy: Any = None,
) -> Stepper:
    """Returns the stepper of Keras's backend.

    Args:
        model: built; called as ``model(*inputs, training=...)``.
        loss: called as ``loss(outputs, *targets)``; returns a loss for each utterance.
        optimizer: for `Stepper.update`.
        strategy: a ``tf.distribute.Strategy`` in whose scope the model was made; TensorFlow only.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from tfasr.bench.stepper_tensorflow import TensorflowStepper

        return TensorflowStepper(model, loss, optimizer, strategy)
    if backend == "jax":
        from tfasr.bench.stepper_jax import JaxStepper

        return JaxStepper(model, loss, optimizer)
    from tfasr.bench.stepper_torch import TorchStepper

    return TorchStepper(model, loss, optimizer)


def make_strategy(num_devices: int) -> Any:
    """Returns the ``tf.distribute.Strategy`` that mirrors a model on devices, or None for one.

    Where there is no GPU and TensorFlow has not begun to work, the processor is cut into as many
    logical devices.

    Raises:
        UsageError: if there are fewer devices, or several on another backend than TensorFlow.
    """
    if num_devices == 1:
        return None
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise UsageError(
            "Several devices are used through tf.distribute, so the backend must be tensorflow. "
            f"Received: {num_devices} devices and backend={backend!r}."
        )
    from tfasr.bench.stepper_tensorflow import mirrored_strategy

    return mirrored_strategy(num_devices)
