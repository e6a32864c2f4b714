"""What Keras's recurrent layers do around their steps, for those that run the steps themselves."""

import keras


def has_gpu() -> bool:
    """Returns whether TensorFlow sees a GPU."""
    import tensorflow as tf  # only in functions: on other backends it need not exist

    return bool(tf.config.list_logical_devices("GPU"))


def run_fused(run, layer, gates: int, sequences, initial_state, mask, training):
    """Calls ``run`` as Keras would call its own loop, and returns what Keras expects of that.

    Args:
        run: takes ``inputs, kernel, recurrent_kernel, bias``, the list of states in float32 (or
            float64) and the mask; returns outputs and last states.
        layer: the recurrent layer, whose cell has the weights and dropout.
        gates: how many times as wide as the units the weights are.
        sequences: ``(batch, time, features)``.
        initial_state: tensors ``(batch, units)``.
        mask: booleans ``(batch, time)``, None, or a structure with either in the first place.

    Returns:
        The last output, all outputs, and the last states.
    """
    import tensorflow as tf

    cell = layer.cell
    if training and cell.dropout:
        sequences *= tf.expand_dims(cell.get_dropout_mask(sequences[:, 0]), axis=1)
    mask = keras.tree.flatten(mask)[0]
    mask = None if mask is None else tf.cast(mask, tf.bool)
    if layer.go_backwards:
        sequences = tf.reverse(sequences, axis=[1])
        mask = None if mask is None else tf.reverse(mask, axis=[1])
    weights = [value_of(cell.kernel), value_of(cell.recurrent_kernel)]
    no_bias = tf.zeros((gates * cell.units,), weights[0].dtype)
    bias = value_of(cell.bias) if cell.use_bias else no_bias
    initial = keras.tree.flatten(initial_state)
    states = [tf.cast(state, _state_dtype(state.dtype)) for state in initial]
    outputs, *states = run(sequences, *weights, bias, states, mask)
    if mask is not None:
        # Keras repeats the last valid output in masked steps, and begins with zeros.
        written = mask if layer.zero_output_for_mask else _seen(mask)
        outputs = tf.where(written[:, :, tf.newaxis], outputs, tf.zeros_like(outputs))
    outputs.set_shape((*sequences.shape[:2], cell.units))
    return outputs[:, -1], outputs, states


def value_of(variable):
    """Returns a weight in the compute dtype as a plain tensor, not as a variable."""
    import tensorflow as tf

    return tf.convert_to_tensor(keras.ops.convert_to_tensor(variable))


def _state_dtype(dtype):
    import tensorflow as tf

    return tf.float64 if dtype == tf.float64 else tf.float32


def _seen(mask):
    """Returns whether a step or one before it is valid; mask is ``(batch, time)``."""
    import tensorflow as tf

    return tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
