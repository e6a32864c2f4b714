"""What the models' layers share.

That is one call for a whole loop over time, dropout, the convolutions' dtype, and
padding. Nothing here needs TensorFlow until it is called, so models also run on JAX and
PyTorch.
"""

import functools
from pathlib import Path

import keras

LEVELS = 1 << 16  # values of 16 random bits, which are drawn for each activation


def has_gpu() -> bool:
    """Whether TensorFlow sees a GPU."""
    import tensorflow as tf  # only in functions, as other backends may lack it

    return bool(tf.config.list_logical_devices("GPU"))


def convolution_policy(policy):
    """Returns the dtype policy for a convolution in a model of this policy.

    It is float32 instead of mixed_bfloat16 where TensorFlow runs on a processor with
    AMX. There, for some numbers of frames, oneDNN reads memory that nobody has written
    when it computes a kernel's gradient in bfloat16. If that memory happens to hold
    NaN, the gradient is NaN too.
    """
    name = getattr(policy, "name", policy)
    concerned = name == "mixed_bfloat16" and keras.backend.backend() == "tensorflow"
    if concerned and _has_tiles() and not has_gpu():
        return "float32"

    return policy


@functools.cache
def _has_tiles() -> bool:
    """Whether the processor has AMX, with instructions for bfloat16."""
    # Where Linux lists the processor's instructions.
    listed = Path("/proc/cpuinfo")
    return listed.exists() and " amx_bf16 " in listed.read_text(
        encoding="utf-8",
        errors="replace",
    )


def run_fused(run, layer, gates: int, sequences, initial_state, mask, training):
    """Calls ``run`` in place of a Keras layer's loop over time, ``inner_loop``.

    Args:
        run: maps inputs, kernel, recurrent kernel, bias, float32 or float64 states and
            mask to outputs and last states.
        layer: Keras's layer.
        gates: the weights are ``gates * units`` wide.
        sequences: as the other arguments, those of ``inner_loop``.
        initial_state: tensors ``(batch, units)``.
        mask: booleans ``(batch, time)``, or None.
        training: whether the cell's dropout applies to the inputs.

    Returns:
        The last output, all outputs and the last states, as ``inner_loop`` does.
    """
    import tensorflow as tf

    cell = layer.cell
    if training and cell.dropout:
        # One mask for all steps, as in Keras.
        sequences *= tf.expand_dims(cell.get_dropout_mask(sequences[:, 0]), axis=1)

    mask = keras.tree.flatten(mask)[0]
    if mask is not None:
        mask = tf.cast(mask, tf.bool)

    if layer.go_backwards:
        sequences = tf.reverse(sequences, axis=[1])
        if mask is not None:
            mask = tf.reverse(mask, axis=[1])

    kernel = value_of(cell.kernel)
    bias = tf.zeros((gates * cell.units,), kernel.dtype)
    if cell.use_bias:
        bias = value_of(cell.bias)

    states = []
    for state in keras.tree.flatten(initial_state):
        dtype = tf.float64 if state.dtype == tf.float64 else tf.float32
        states.append(tf.cast(state, dtype))

    recurrent_kernel = value_of(cell.recurrent_kernel)
    outputs, *states = run(sequences, kernel, recurrent_kernel, bias, states, mask)
    if mask is not None:
        # Keras repeats the last valid output in masked steps, starting with zeros.
        written = mask
        if not layer.zero_output_for_mask:
            written = tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
        outputs = tf.where(written[:, :, tf.newaxis], outputs, tf.zeros_like(outputs))

    # Lost in a compiled operation.
    outputs.set_shape((*sequences.shape[:2], cell.units))

    return outputs[:, -1], outputs, states


def value_of(variable):
    """Returns a weight in the compute dtype as a plain tensor."""
    import tensorflow as tf

    return tf.convert_to_tensor(keras.ops.convert_to_tensor(variable))


@keras.saving.register_keras_serializable(package="tfasr")
class Dropout(keras.layers.Dropout):
    """A `keras.layers.Dropout` that draws 16 random bits per activation instead of 32.

    The rate is rounded to a multiple of 1/65536. The remaining activations are scaled
    by the rounded rate, so expected values are exact. With the same seed, other
    activations are dropped than by Keras's layer. With ``noise_shape``, on GPUs, JAX
    and PyTorch, Keras's code runs.
    """

    @property
    def dropped_levels(self) -> int:
        """An activation is dropped if its 16 random bits, as a number, are below this."""
        return round(self.rate * LEVELS)

    def draws(self, training: bool) -> bool:
        """Whether a call drops activations with 16 bits each, and not with Keras's code."""
        return (
            bool(training)
            and keras.backend.backend() == "tensorflow"
            and self.noise_shape is None
            and self.dropped_levels not in (0, LEVELS)
            and not has_gpu()
        )

    def next_seed(self):
        """Returns the seed of the next draw, int32 ``(2,)``."""
        import tensorflow as tf  # only in functions, as other backends may lack it

        return tf.cast(self.seed_generator.next(), tf.int32)

    def call(self, inputs, training=False):
        if not self.draws(training):
            return super().call(inputs, training=training)

        import tensorflow as tf

        size = tf.size(inputs)
        # Drawing bits takes most of the time: 8.8 of 10.9 ms for 4720 x 800
        # activations, 2 cores.
        words = tf.random.stateless_uniform(
            [(size + 1) // 2],
            self.next_seed(),
            minval=None,
            maxval=None,
            dtype=tf.uint32,
        )
        levels = tf.reshape(
            tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size], tf.shape(inputs)
        )
        factor = kept_scale(self.dropped_levels, inputs.dtype.as_numpy_dtype)
        scale = tf.constant(factor, inputs.dtype)
        # Each word holds the random numbers of two activations.
        keep = levels >= tf.constant(self.dropped_levels, tf.uint16)

        return inputs * tf.where(keep, scale, tf.zeros_like(scale))


def kept_scale(dropped_levels: int, dtype) -> float:
    """Returns the factor of the remaining activations, rounded to ``dtype``."""
    return float(dtype(LEVELS / (LEVELS - dropped_levels)))


def valid_frames(hidden, lengths):
    """Returns booleans ``(batch, time)``, False for the padding of ``(batch, time, ...)``."""
    steps = keras.ops.arange(keras.ops.shape(hidden)[1], dtype="int32")
    return steps[None, :] < keras.ops.cast(lengths, "int32")[:, None]


def widened(hidden, valid, before: int, after: int):
    """Sets padding to zero and adds frames of zeros on both sides, for a convolution.

    ``valid`` are booleans ``(batch, time)``; None if there is no padding.
    """
    if valid is not None:
        # With further axes, so that it applies to all channels.
        of_frames = valid[(..., *(None for _ in hidden.shape[2:]))]
        hidden = keras.ops.where(of_frames, hidden, keras.ops.zeros_like(hidden))

    if not before and not after:
        return hidden

    return keras.ops.pad(
        hidden, ((0, 0), (before, after), *((0, 0) for _ in hidden.shape[2:]))
    )
