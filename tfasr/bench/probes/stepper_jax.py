"""Steps on Keras's JAX backend, each compiled as a whole."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from tfasr.bench.probes.step import Batch, Loss, OfModel


class JaxStepper(OfModel):
    """See `tfasr.bench.probes.step.Stepper`; XLA compiles each step for every shape of a batch."""

    def __init__(
        self, model: keras.Model, loss: Loss, optimizer: keras.optimizers.Optimizer | None = None
    ):
        super().__init__(model, loss, optimizer)
        self._trainable = [variable.value for variable in model.trainable_variables]
        self._others = [variable.value for variable in model.non_trainable_variables]
        variables = optimizer.variables if optimizer is not None else []
        self._optimizer_state = [variable.value for variable in variables]
        self._forward = jax.jit(self._mean_loss)
        self._gradients = jax.jit(jax.value_and_grad(self._mean_loss, has_aux=True))
        self._update = jax.jit(self._update_step)
        # The first program returns what the second takes: a function with the values it has kept.
        self._linearised = jax.jit(self._linearise)
        self._pulled_back = jax.jit(lambda backward, one: backward(one))
        self._predict = jax.jit(self._predict_step)

    def place(self, batch: Batch) -> Batch:
        """See `Stepper.place`."""
        inputs, targets = (tuple(map(jnp.asarray, x)) for x in (batch.inputs, batch.targets))
        jax.block_until_ready((inputs, targets))
        return Batch(inputs, targets)

    def forward(self, batch: Batch) -> float:
        """See `Stepper.forward`."""
        found = self._forward(self._trainable, self._others, *_arrays(batch))
        return self._kept(jax.block_until_ready(found))

    def gradients(self, batch: Batch) -> float:
        """See `Stepper.gradients`."""
        found = self._gradients(self._trainable, self._others, *_arrays(batch))
        return self._kept(jax.block_until_ready(found)[0])

    def apart(self, batch: Batch) -> tuple[float, float]:
        """See `Stepper.apart`."""
        began = time.perf_counter()
        loss, backward, self._others = jax.block_until_ready(
            self._linearised(self._trainable, self._others, *_arrays(batch))
        )
        between = time.perf_counter()
        jax.block_until_ready(self._pulled_back(backward, jnp.ones_like(loss)))
        return between - began, time.perf_counter() - between

    def update(self, batch: Batch) -> float:
        """See `Stepper.update`."""
        loss, self._trainable, self._others, self._optimizer_state = jax.block_until_ready(
            self._update(self._trainable, self._others, self._optimizer_state, *_arrays(batch))
        )
        return float(loss)

    def predict(self, batch: Batch) -> np.ndarray:
        """See `Stepper.predict`."""
        return np.asarray(self._predict(self._trainable, self._others, _arrays(batch)[0]))

    def _kept(self, found: tuple[Any, Any]) -> float:
        """Keeps the moving statistics, as every pass in training does on other backends."""
        loss, self._others = found
        return float(loss)

    def _mean_loss(self, trainable, others, inputs, targets):
        outputs, others = self._model.stateless_call(trainable, others, *inputs, training=True)
        return jnp.mean(self._loss(outputs, *targets)), others

    def _linearise(self, trainable, others, inputs, targets):
        def mean_loss(trainable):
            return self._mean_loss(trainable, others, inputs, targets)

        return jax.vjp(mean_loss, trainable, has_aux=True)

    def _update_step(self, trainable, others, state, inputs, targets):
        gradient = jax.value_and_grad(self._mean_loss, has_aux=True)
        (loss, others), gradients = gradient(trainable, others, inputs, targets)
        trainable, state = self._optimizer.stateless_apply(state, gradients, trainable)
        return loss, trainable, others, state

    def _predict_step(self, trainable, others, inputs):
        return self._model.stateless_call(trainable, others, *inputs, training=False)[0]


def _arrays(batch: Batch) -> tuple[Any, Any]:
    return batch.inputs, batch.targets
