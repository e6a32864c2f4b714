"""Steps on Keras's PyTorch backend, eager, as Keras runs it."""

import time
from collections.abc import Callable

import keras
import numpy as np
import torch

from tfasr.bench.probes.step import Batch, OfModel


class TorchStepper(OfModel):
    """See `tfasr.bench.probes.step.Stepper`."""

    def place(self, batch: Batch) -> Batch:
        """See `Stepper.place`."""
        inputs, targets = (
            tuple(map(keras.ops.convert_to_tensor, part)) for part in (batch.inputs, batch.targets)
        )
        _wait()
        return Batch(inputs, targets)

    def forward(self, batch: Batch) -> float:
        """See `Stepper.forward`; what the gradients would need is kept, as in training."""
        return waited(self._mean_loss(batch))

    def gradients(self, batch: Batch) -> float:
        """See `Stepper.gradients`."""
        self._model.zero_grad()
        loss = self._mean_loss(batch)
        loss.backward()
        return waited(loss)

    def apart(self, batch: Batch) -> tuple[float, float]:
        """See `Stepper.apart`."""
        self._model.zero_grad()
        return timed_apart(lambda: self._mean_loss(batch))

    def update(self, batch: Batch) -> float:
        """See `Stepper.update`."""
        self._model.zero_grad()
        loss = self._mean_loss(batch)
        loss.backward()
        variables = self._model.trainable_variables
        with torch.no_grad():
            self._optimizer.apply([variable.value.grad for variable in variables], variables)
        return waited(loss)

    def predict(self, batch: Batch) -> np.ndarray:
        """See `Stepper.predict`."""
        with torch.no_grad():
            outputs = self._model(*batch.inputs, training=False)
        return keras.ops.convert_to_numpy(outputs)

    def _mean_loss(self, batch: Batch) -> torch.Tensor:
        outputs = self._model(*batch.inputs, training=True)
        return self._loss(outputs, *batch.targets).mean()


def waited(loss: torch.Tensor) -> float:
    """Returns a loss as a number, once all that was asked of the device is done."""
    _wait()
    return float(loss.detach())


def timed_apart(forward: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Returns the seconds of a forward pass and of the backward pass after it."""
    began = time.perf_counter()
    loss = forward()
    waited(loss)
    between = time.perf_counter()
    loss.backward()
    _wait()
    return between - began, time.perf_counter() - between


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
