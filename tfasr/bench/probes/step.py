"""What a stepper offers: parts of a training step, each waited for."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

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

    def apart(self, batch: Batch) -> tuple[float, float] | None:
        """Computes the loss and then all gradients, each waited for.

        Returns:
            Seconds of the forward pass, which keeps what the gradients need, and of the backward
            pass; None on several devices, which cannot wait between the two.
        """

    def update(self, batch: Batch) -> float:
        """Computes the mean loss and the gradients, and updates the weights."""

    def predict(self, batch: Batch) -> np.ndarray:
        """Returns the model's outputs in inference mode."""


class OfModel:
    """What steppers of a Keras model keep, whichever backend computes.

    Args:
        model: built.
        loss: of the model's outputs and a batch's targets.
        optimizer: whose variables are made here; None where no weights are updated.
    """

    def __init__(self, model: Any, loss: Loss, optimizer: Any = None):
        self._model = model
        self._loss = loss
        self._optimizer = optimizer
        if optimizer is not None:
            optimizer.build(model.trainable_variables)


def seconds_of(part: Callable[[Batch], float], batch: Batch) -> float:
    """Returns the wall-clock seconds of one call of a stepper's method."""
    began = time.perf_counter()
    part(batch)
    return time.perf_counter() - began
