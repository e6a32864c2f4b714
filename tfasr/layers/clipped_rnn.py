"""Recurrent layers of clipped ReLUs.

`BidirectionalClippedRNN` is the layer of `tfasr.models.deep_speech_2`,
batch-normalised. `SimpleRNN` and `ClippedReLU` are public, for models of your own.
"""

import math

import keras

from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.fused_call import run_fused, value_of

# An input that fits into float16, and is so low that the ReLU outputs 0 whatever the
# recurrent part adds.
_FAR_BELOW_ZERO = -3e4


@keras.saving.register_keras_serializable(package="tfasr")
class ClippedReLUCell(keras.layers.Layer):
    """One step of ``h[t] = min(max(x[t] + h[t - 1] R + b, 0), clip)``.

    It has no input matrix: all inputs are projected before the first step
    (CUDNN_SKIP_INPUT).
    """

    def __init__(self, units: int, clip: float = 20.0, seed: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.clip = clip
        self.seed = seed
        self.state_size = self.output_size = units

    def build(self, input_shape):
        self.recurrent_kernel = self.add_weight(
            shape=(self.units, self.units),
            initializer=keras.initializers.Orthogonal(seed=self.seed),
            name="recurrent_kernel",
        )
        self.bias = self.add_weight(
            shape=(self.units,),
            initializer="zeros",
            name="bias",
        )
        self.built = True

    def call(self, inputs, states, training=False):
        recurrent = keras.ops.matmul(states[0], self.recurrent_kernel)
        output = keras.ops.clip(inputs + recurrent + self.bias, 0.0, self.clip)
        return output, [output]

    def get_initial_state(self, batch_size=None):
        return [keras.ops.zeros((batch_size, self.units), dtype=self.compute_dtype)]

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "clip": self.clip,
            "seed": self.seed,
        }


@keras.saving.register_keras_serializable(package="tfasr")
class ClippedRNN(keras.layers.RNN):
    """A `keras.layers.RNN` of a `ClippedReLUCell`.

    On CPUs with TensorFlow, C++ runs its steps. ``last_kernel`` says which
    implementation the latest call used: "fused CPU" or "generic loop"; None before the
    first call.
    """

    last_kernel: str | None = None
    requested_kernel: str = "auto"  # or "generic": Keras's loop, for exporters

    def inner_loop(self, sequences, initial_state, mask, training=False):
        """Runs the steps, in place of Keras's loop where that is possible."""
        if not self._fused() or keras.tree.flatten(mask)[0] is not None:
            self.last_kernel = "generic loop"
            return super().inner_loop(sequences, initial_state, mask, training)

        from tfasr.layers.recurrent_kernels import recurrent_steps

        self.last_kernel = "fused CPU"
        cell = self.cell
        if self.go_backwards:
            sequences = keras.ops.flip(sequences, axis=1)

        # States stay in float32 under mixed precision.
        state = keras.ops.cast(keras.tree.flatten(initial_state)[0], "float32")
        outputs, last = recurrent_steps(
            sequences,
            value_of(cell.recurrent_kernel),
            value_of(cell.bias),
            state,
            ceiling=cell.clip,
        )

        return last, outputs, [last]

    def _fused(self) -> bool:
        """Whether compiled steps can run in the current graph."""
        if (
            keras.backend.backend() != "tensorflow"
            or self.requested_kernel == "generic"
        ):
            return False

        from tfasr.layers.compiled import runs_here

        return runs_here(self.compute_dtype)


@keras.saving.register_keras_serializable(package="tfasr")
class BidirectionalClippedRNN(keras.layers.Layer):
    """Two clipped recurrent layers, one backwards, whose outputs are summed.

    Both directions read one projected, batch-normalised input. Each direction's outputs
    are clipped at ``clip``, so the sum can reach twice that.

    Source: D. Amodei et al., Deep Speech 2, arXiv 1512.02595, section 3.2: ``B(W h) + U
    h``; for the sum and the shared projection also DeepMark's Torch code,
    torch/audio/BatchBRNN.lua.
    """

    def __init__(
        self,
        units,
        clip: float = 20.0,
        seed: int = 0,
        kernel: str = "auto",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.units = units
        self.clip = clip
        self.seed = seed
        self.kernel = kernel
        glorot = keras.initializers.GlorotUniform(3 * seed)
        policy = self.dtype_policy
        self.projection = keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=glorot,
            dtype=policy,
            name="projection",
        )
        self.normalisation = BatchNormalization(dtype=policy, name="normalisation")
        self.forwards, self.backwards = (
            ClippedRNN(
                ClippedReLUCell(units, clip, 3 * seed + 1 + reverse, dtype=policy),
                return_sequences=True,
                go_backwards=bool(reverse),
                dtype=policy,
                name="backwards" if reverse else "forwards",
            )
            for reverse in (0, 1)
        )

        for direction in (self.forwards, self.backwards):
            direction.requested_kernel = kernel

    def build(self, input_shape):
        self.projection.build(input_shape)
        shape = (*input_shape[:-1], self.units)
        for layer in (self.normalisation, self.forwards, self.backwards):
            layer.build(shape)

        self.built = True

    def call(self, inputs, valid=None, training=False):
        """Returns ``(batch, time, units)``, zeros where ``valid`` is False.

        ``valid`` are booleans ``(batch, time)``; None means all frames.
        """
        projected = self.normalisation(
            self.projection(inputs),
            training=training,
            valid=valid,
        )
        if valid is not None:
            # So low an input keeps the state at zero, the initial state, throughout the
            # padding with which the backward direction starts. So the steps need no
            # mask.
            projected = keras.ops.where(valid[:, :, None], projected, _FAR_BELOW_ZERO)

        # Keras returns the outputs of a backward layer in the order of its
        # steps.
        backwards = keras.ops.flip(self.backwards(projected, training=training), axis=1)

        return self.forwards(projected, training=training) + backwards

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "clip": self.clip,
            "seed": self.seed,
            "kernel": self.kernel,
        }


@keras.saving.register_keras_serializable(package="tfasr")
class ClippedReLU:
    """The activation ``min(max(x, 0), ceiling)``, for a layer's ``activation``.

    Source: Hannun et al. 2014, Deep Speech, section 2, where the ceiling is 20.
    """

    def __init__(self, ceiling: float = 20.0):
        if not ceiling > 0:
            raise ValueError(
                f"ceiling must be positive. Received: ceiling={ceiling!r}."
            )

        self.ceiling = float(ceiling)

    def __call__(self, x):
        return keras.ops.minimum(
            keras.ops.relu(x), keras.ops.cast(self.ceiling, x.dtype)
        )

    def get_config(self):
        return {"ceiling": self.ceiling}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@keras.saving.register_keras_serializable(package="tfasr")
class SimpleRNN(keras.layers.SimpleRNN):
    """A `keras.layers.SimpleRNN` that trains with a hand-written gradient on CPUs.

    The gradient covers ReLU, clipped or not, without ``recurrent_dropout`` and
    ``unroll``, in float32 and bfloat16 (states in float32), with TensorFlow; anything
    else runs Keras's layer. Arguments, weights, results, masking, states and saved
    weights are Keras's. ``last_kernel`` is the implementation of the latest call:
    "fused CPU", "generic loop", "Keras on jax" or "Keras on torch"; None before the
    first call.
    """

    def __init__(self, units: int, *args, **kwargs):
        super().__init__(units, *args, **kwargs)
        self.last_kernel: str | None = None

    def inner_loop(self, sequences, initial_state, mask, training=False):
        """Runs the steps, in place of Keras's loop where that is possible."""
        arguments = (sequences, initial_state, mask, training)
        if keras.backend.backend() != "tensorflow":
            self.last_kernel = f"Keras on {keras.backend.backend()}"
            return super().inner_loop(*arguments)

        from tfasr.layers.compiled import runs_here
        from tfasr.layers.recurrent_kernels import recurrent_sequence

        ceiling = self._ceiling()
        is_computed = (
            ceiling is not None and not self.cell.recurrent_dropout and not self.unroll
        )
        if not is_computed or not runs_here(self.compute_dtype):
            self.last_kernel = "generic loop"
            return super().inner_loop(*arguments)

        self.last_kernel = "fused CPU"

        def run(inputs, kernel, recurrent_kernel, bias, states, mask):
            return recurrent_sequence(
                inputs,
                kernel,
                recurrent_kernel,
                bias,
                *states,
                mask=mask,
                ceiling=ceiling,
            )

        return run_fused(run, self, 1, *arguments)

    def _ceiling(self) -> float | None:
        """Returns where the activation is clipped; None for one without a fused kernel."""
        activation = self.cell.activation
        if activation is keras.activations.relu:
            # A ReLU without a ceiling.
            return math.inf

        return activation.ceiling if isinstance(activation, ClippedReLU) else None
