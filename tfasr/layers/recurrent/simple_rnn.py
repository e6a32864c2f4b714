"""Keras's SimpleRNN with a clipped ReLU and a faster kernel on CPUs."""

import math

import keras

from tfasr.layers.recurrent.fused_call import run_fused


@keras.saving.register_keras_serializable(package="tfasr")
class ClippedReLU:
    """The activation ``min(max(x, 0), ceiling)``, for use as a layer's ``activation``.

    Source: Hannun et al. 2014, Deep Speech, section 2, where it is 20.
    """

    def __init__(self, ceiling: float = 20.0):
        if not ceiling > 0:
            raise ValueError(f"ceiling must be positive. Received: ceiling={ceiling!r}.")
        self.ceiling = float(ceiling)

    def __call__(self, x):
        return keras.ops.minimum(keras.ops.relu(x), keras.ops.cast(self.ceiling, x.dtype))

    def get_config(self):
        return {"ceiling": self.ceiling}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable(package="tfasr")
class SimpleRNN(keras.layers.SimpleRNN):
    """A `keras.layers.SimpleRNN` that is trained by a hand-derived gradient on CPUs.

    That holds for ReLU, clipped or not, without ``recurrent_dropout`` and ``unroll``, in float32
    and bfloat16 (states in float32) on Keras's TensorFlow backend. Everything else is Keras's layer
    unchanged. Weights, results, masking, states and saved weights are Keras's own.

    Args:
        units: see `keras.layers.SimpleRNN`, also for everything else that it takes.

    Attributes:
        last_kernel: what the latest call really used: "fused CPU", "generic loop", "Keras on jax",
            "Keras on torch", or None before the first call.
    """

    def __init__(self, units: int, *args, **kwargs):
        super().__init__(units, *args, **kwargs)
        self.last_kernel: str | None = None

    def inner_loop(self, sequences, initial_state, mask, training=False):
        arguments = (sequences, initial_state, mask, training)
        if keras.backend.backend() != "tensorflow":
            self.last_kernel = f"Keras on {keras.backend.backend()}"
            return super().inner_loop(*arguments)
        from tfasr.layers.compiled import runs_here
        from tfasr.layers.recurrent.recurrent_kernel import recurrent_sequence

        ceiling = self._ceiling()
        known = ceiling is not None and not self.cell.recurrent_dropout and not self.unroll
        if not known or not runs_here(self.compute_dtype):
            self.last_kernel = "generic loop"
            return super().inner_loop(*arguments)
        self.last_kernel = "fused CPU"

        def run(inputs, kernel, recurrent_kernel, bias, states, mask):
            return recurrent_sequence(
                inputs, kernel, recurrent_kernel, bias, *states, mask=mask, ceiling=ceiling
            )

        return run_fused(run, self, 1, *arguments)

    def _ceiling(self) -> float | None:
        activation = self.cell.activation
        if activation is keras.activations.relu:
            return math.inf
        return activation.ceiling if isinstance(activation, ClippedReLU) else None
