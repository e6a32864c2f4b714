"""The LSTM recurrence in TensorFlow with a gradient derived by hand.

Everything that does not depend on the previous step stays outside of the loops: the input
projection of all steps before them, the weight gradients after them. What is left inside is one
matmul with the recurrent weights per step and direction.
"""

import tensorflow as tf


def lstm_sequence(
    projected: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    initial_h: tf.Tensor,
    initial_c: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs an LSTM over inputs that are already multiplied with the input weights.

    Args:
        projected: ``(time, batch, 4 * units)``: inputs times kernel, plus bias; gates in Keras's
            order: input, forget, candidate, output.
        recurrent_kernel: ``(units, 4 * units)``; its dtype is the one of the matmuls.
        initial_h: ``(batch, units)``: the output before the first step; its dtype is the one of
            the states and the gates.
        initial_c: ``(batch, units)``: the cell state before the first step.
        mask: booleans ``(time, batch)``: False leaves both states as they are; None for no mask.

    Returns:
        The states h of all steps ``(time, batch, units)``, the last h and the last c
        ``(batch, units)``, in the dtype of the initial states.

    Source: Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000.
    """

    @tf.custom_gradient
    def run(projected, recurrent_kernel, initial_h, initial_c):
        arguments = (projected, recurrent_kernel, initial_h, initial_c, mask)
        gates, cells, outputs, last_h, last_c = _forward(*arguments)

        def gradient(*upstream):
            saved = (gates, cells, outputs)
            dz, *others = _backward(saved, upstream, recurrent_kernel, initial_h, initial_c, mask)
            return tf.cast(dz, projected.dtype), *others

        return (outputs, last_h, last_c), gradient

    return run(projected, recurrent_kernel, initial_h, initial_c)


def _array(like: tf.Tensor, steps: tf.Tensor) -> tf.TensorArray:
    return tf.TensorArray(like.dtype, size=steps, element_shape=like.shape, clear_after_read=False)


def _read_only(sequence: tf.Tensor) -> tf.TensorArray:
    return _array(sequence[0], tf.shape(sequence)[0]).unstack(sequence)


def _matmul(states: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Multiplies in the weights' dtype; the result has the states' dtype."""
    return tf.cast(tf.matmul(tf.cast(states, weights.dtype), weights), states.dtype)


@tf.function(reduce_retracing=True, autograph=False)
def _forward(projected, recurrent_kernel, initial_h, initial_c, mask):
    """Returns gates (after their activations), c and h of all steps, the last h and c."""
    steps = tf.shape(projected)[0]
    inputs = _read_only(projected)
    valid = None if mask is None else _read_only(mask[:, :, tf.newaxis])

    def step(t, h, c, gates_array, c_array, h_array):
        z = tf.cast(inputs.read(t), h.dtype) + _matmul(h, recurrent_kernel)
        i, f, g, o = tf.split(z, 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        new_c = f * c + i * g
        new_h = o * tf.tanh(new_c)
        if valid is not None:
            keep = valid.read(t)
            new_c, new_h = tf.where(keep, new_c, c), tf.where(keep, new_h, h)
        gates = tf.concat([i, f, g, o], axis=1)
        arrays = gates_array.write(t, gates), c_array.write(t, new_c), h_array.write(t, new_h)
        return t + 1, new_h, new_c, *arrays

    gates_like = tf.concat([initial_h] * 4, axis=1)
    arrays = _array(gates_like, steps), _array(initial_c, steps), _array(initial_h, steps)
    _, last_h, last_c, *arrays = tf.while_loop(
        lambda t, *_: t < steps,
        step,
        (tf.constant(0), initial_h, initial_c, *arrays),
        parallel_iterations=1,
    )
    return *(array.stack() for array in arrays), last_h, last_c


@tf.function(reduce_retracing=True, autograph=False)
def _backward(saved, upstream, recurrent_kernel, initial_h, initial_c, mask):
    """Returns the gradients of projected, recurrent_kernel, initial_h and initial_c."""
    gates, cells, outputs = saved
    d_outputs, d_last_h, d_last_c = upstream
    previous_h = tf.concat([initial_h[tf.newaxis], outputs[:-1]], axis=0)
    previous_c = tf.concat([initial_c[tf.newaxis], cells[:-1]], axis=0)
    arrays = [_read_only(x) for x in (gates, cells, previous_c, d_outputs)]
    # Multiplying with a transposed argument instead packs the weights badly, in every step: at 800
    # units and 16 utterances it takes twice as long as the product with a transposed copy.
    transposed = tf.transpose(recurrent_kernel)
    dz, d_h, d_c = _backward_loop(arrays, d_last_h, d_last_c, transposed, mask)
    units = tf.shape(initial_h)[1]
    flat_dz = tf.reshape(tf.cast(dz, recurrent_kernel.dtype), (-1, 4 * units))
    flat_h = tf.reshape(tf.cast(previous_h, recurrent_kernel.dtype), (-1, units))
    return dz, tf.matmul(flat_h, flat_dz, transpose_a=True), d_h, d_c


def _backward_loop(arrays, d_last_h, d_last_c, transposed, mask):
    """Returns the gradients of all steps' gate sums, and of the initial h and c."""
    gates, cells, previous_cells, d_outputs = arrays
    steps = gates.size()
    valid = None if mask is None else _read_only(mask[:, :, tf.newaxis])

    def step(t, d_h, d_c, dz_array):
        i, f, g, o = tf.split(gates.read(t), 4, axis=1)
        tanh_c = tf.tanh(cells.read(t))
        d_h += d_outputs.read(t)
        d_total_c = d_c + d_h * o * (1 - tanh_c * tanh_c)
        dz_i = d_total_c * g * i * (1 - i)
        dz_f = d_total_c * previous_cells.read(t) * f * (1 - f)
        dz_g = d_total_c * i * (1 - g * g)
        dz_o = d_h * tanh_c * o * (1 - o)
        dz = tf.concat([dz_i, dz_f, dz_g, dz_o], axis=1)
        new_d_c = d_total_c * f
        if valid is None:
            return t - 1, _matmul(dz, transposed), new_d_c, dz_array.write(t, dz)
        keep = valid.read(t)
        dz = tf.where(keep, dz, tf.zeros_like(dz))
        new_d_h = tf.where(keep, _matmul(dz, transposed), d_h)
        return t - 1, new_d_h, tf.where(keep, new_d_c, d_c), dz_array.write(t, dz)

    dz_array = _array(tf.concat([d_last_h] * 4, axis=1), steps)
    _, d_h, d_c, dz_array = tf.while_loop(
        lambda t, *_: t >= 0, step, (steps - 1, d_last_h, d_last_c, dz_array), parallel_iterations=1
    )
    return dz_array.stack(), d_h, d_c
