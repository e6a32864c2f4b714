"""Steps of a Keras model, each waited for, on whichever backend Keras runs."""

from typing import Any

import keras

from tfasr.bench.probes.step import Loss, Stepper
from tfasr.errors import UsageError


def make_stepper(
    model: keras.Model,
    loss: Loss,
    optimizer: keras.optimizers.Optimizer | None = None,
    strategy: Any = None,
    xla: bool = False,
) -> Stepper:
    """Returns the stepper of Keras's backend.

    Args:
        model: built; called as ``model(*inputs, training=...)``.
        loss: called as ``loss(outputs, *targets)``; returns a loss for each utterance.
        optimizer: for `Stepper.update`.
        strategy: a ``tf.distribute.Strategy`` in whose scope the model was made; TensorFlow only.
        xla: whether XLA compiles TensorFlow's graphs; JAX compiles by it anyway.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from tfasr.bench.probes.stepper_tensorflow import TensorflowStepper

        return TensorflowStepper(model, loss, optimizer, strategy, xla)
    if backend == "jax":
        from tfasr.bench.probes.stepper_jax import JaxStepper

        return JaxStepper(model, loss, optimizer)
    from tfasr.bench.probes.stepper_torch import TorchStepper

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
    from tfasr.bench.probes.stepper_tensorflow import mirrored_strategy

    return mirrored_strategy(num_devices)
