"""Keras's LSTM with a faster kernel on CPUs.

The recurrent layers of `tfasr.models.recurrent`, and public as ``tfasr.layers.LSTM``.
"""

import keras

from tfasr.layers.fused_call import has_gpu, run_fused

KERNELS = ("auto", "fused", "cudnn", "generic")


def _lacks_cudnn(dtype: str) -> bool:
    """Whether Keras would choose cuDNN here and fail.

    JAX can't pass it 16 bits, and raises when compiling: too late for Keras to use its
    own loop.
    """
    return keras.backend.backend() == "jax" and dtype in ("bfloat16", "float16")


@keras.saving.register_keras_serializable(package="tfasr")
class LSTM(keras.layers.LSTM):
    """A `keras.layers.LSTM` that trains with a hand-written gradient on CPUs.

    Arguments, weights, results, masking, states and saved weights are those of
    `keras.layers.LSTM`, and so is the config if ``kernel`` is "auto". On GPUs it uses
    Keras's cuDNN kernel, on JAX not in 16 bits. Keras's code runs on JAX and PyTorch,
    and for anything that the fused kernel doesn't support (activations other than tanh
    and sigmoid, ``recurrent_dropout``, ``unroll``). Second derivatives raise
    NotImplementedError. Under mixed precision, matmuls run in the compute dtype, states
    and gates in float32.

    ``kernel`` can require an implementation: "fused", "cudnn", or "generic" for Keras's
    loop. Creating or calling the layer raises ValueError if that implementation doesn't
    support it.

    ``last_kernel`` is the implementation of the latest call or trace: "fused CPU",
    "cuDNN", "generic loop", "Keras on jax", "Keras on torch"; None before the first
    call. It is "fused TensorFlow loop", the same gradient computed by TensorFlow's
    operations, on a GPU without cuDNN, in float16 and float64, and if XLA compiles the
    whole model.
    """

    def __init__(self, units: int, *args, kernel: str = "auto", **kwargs):
        if kernel not in KERNELS:
            raise ValueError(
                f"kernel must be one of {KERNELS}. Received: kernel={kernel!r}."
            )

        super().__init__(units, *args, **kwargs)
        self.requested_kernel = kernel
        self.last_kernel: str | None = None
        if kernel in ("cudnn", "generic"):
            self.use_cudnn = kernel == "cudnn"
        if self.use_cudnn is not False and _lacks_cudnn(self.compute_dtype):
            if self.use_cudnn is True:
                raise ValueError(
                    "kernel='cudnn' must be used in float32 on JAX, whose call of cuDNN lacks 16 "
                    f"bits. Received: {self.compute_dtype}. Pass kernel='auto' or another dtype."
                )

            self.use_cudnn = False

        reasons = self._reasons_against_fused()
        if kernel == "fused" and reasons:
            raise ValueError(
                f"kernel='fused' computes an LSTM with tanh and sigmoid, without unroll and "
                f"recurrent_dropout, on Keras's TensorFlow backend. Received: {', '.join(reasons)}."
                " Change that, or pass kernel='auto' to fall back on Keras's own kernels."
            )

    def _reasons_against_fused(self) -> list[str]:
        """Returns the settings that the fused kernel doesn't support, for a message."""
        cell = self.cell
        backend = keras.backend.backend()
        conditions = {
            f"backend={backend!r}": backend == "tensorflow",
            f"activation={cell.activation}": cell.activation is keras.activations.tanh,
            f"recurrent_activation={cell.recurrent_activation}": (
                cell.recurrent_activation is keras.activations.sigmoid
            ),
            f"recurrent_dropout={cell.recurrent_dropout}": not cell.recurrent_dropout,
            f"unroll={self.unroll}": not self.unroll,
            # With implementation=1, Keras draws a separate dropout mask for each gate.
            f"dropout={cell.dropout} with implementation={cell.implementation}": (
                not cell.dropout or cell.implementation != 1
            ),
        }

        return [reason for reason, holds in conditions.items() if not holds]

    def inner_loop(self, sequences, initial_state, mask, training=False):
        """Runs the steps with the best implementation that the settings allow."""
        arguments = (sequences, initial_state, mask, training)
        if keras.backend.backend() != "tensorflow":
            self.last_kernel = f"Keras on {keras.backend.backend()}"
            return self._keras_loop(*arguments, self.use_cudnn)

        # Neither the kernel nor Keras's own argument was chosen by the user.
        is_free = self.requested_kernel == "auto" and self.use_cudnn is not False
        if self._demands_cudnn() or (is_free and has_gpu()):
            try:
                result = self._keras_loop(*arguments, use_cudnn=True)
                self.last_kernel = "cuDNN"
                return result
            except ValueError:  # how Keras reports that cuDNN doesn't support this
                if self._demands_cudnn():
                    raise

        if self.requested_kernel != "generic" and not self._reasons_against_fused():
            return self._fused_loop(*arguments)

        self.last_kernel = "generic loop"

        return self._keras_loop(*arguments, use_cudnn=False)

    def _demands_cudnn(self) -> bool:
        """Whether the layer was created to use cuDNN or nothing."""
        return self.requested_kernel in ("auto", "cudnn") and self.use_cudnn is True

    def _keras_loop(self, sequences, initial_state, mask, training, use_cudnn):
        """Runs Keras's code, with or without cuDNN."""
        # Keras's code reads the attribute; it is set for this call only.
        wanted = self.use_cudnn
        self.use_cudnn = use_cudnn

        try:
            return super().inner_loop(sequences, initial_state, mask, training=training)
        finally:
            self.use_cudnn = wanted

    def _fused_loop(self, sequences, initial_state, mask, training):
        """Runs the steps with a hand-written gradient, compiled or by TensorFlow."""
        from tfasr.layers.compiled import runs_here
        from tfasr.layers.recurrent_kernels import lstm_sequence, recurrent_sequence

        native = runs_here(self.compute_dtype)
        self.last_kernel = "fused CPU" if native else "fused TensorFlow loop"

        def run(inputs, kernel, recurrent_kernel, bias, states, mask):
            sequence = recurrent_sequence if native else lstm_sequence
            return sequence(inputs, kernel, recurrent_kernel, bias, *states, mask)

        return run_fused(run, self, 4, sequences, initial_state, mask, training)

    def get_config(self):
        config = super().get_config()
        if self.requested_kernel != "auto":
            config["kernel"] = self.requested_kernel
        return config
