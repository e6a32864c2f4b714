"""The step loops of the LSTM in TensorFlow's own operations, forward and backward."""

import tensorflow as tf

Tensors = tuple[tf.Tensor, ...]


def forward_steps(
    projected: tf.Tensor,
    bias: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> Tensors:
    """Runs the recurrence over all steps.

    Args:
        projected: ``(time, batch, 4 * units)``: inputs times kernel; gates in Keras's order.
        bias: ``(4 * units,)``.
        recurrent_kernel: ``(units, 4 * units)``; the matmul runs in its dtype.
        h: ``(batch, units)``: the output before the first step, in the states' dtype.
        c: ``(batch, units)``: the cell state before the first step.
        mask: booleans ``(time, batch)``: False leaves both states as they are; or None.

    Returns:
        What `backward_steps` needs ``(time, batch, 6 * units)``: the four gates, c before and
        tanh(c) after each step; h of each step ``(time, batch, units)``; the last h and c.
    """
    inputs = _readable(projected)
    valid = None if mask is None else _readable(mask[:, :, tf.newaxis])
    bias = tf.cast(bias, h.dtype)

    def step(t, h, c, saved_array, h_array):
        z = tf.cast(inputs.read(t), h.dtype) + _matmul(h, recurrent_kernel) + bias
        i, f, g, o = tf.split(z, 4, axis=1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        new_c = f * c + i * g
        tanh_c = tf.tanh(new_c)
        new_h = o * tanh_c
        saved_array = saved_array.write(t, tf.concat([i, f, g, o, c, tanh_c], axis=1))
        if valid is not None:
            keep = valid.read(t)
            new_h, new_c = tf.where(keep, new_h, h), tf.where(keep, new_c, c)
        return t + 1, new_h, new_c, saved_array, h_array.write(t, new_h)

    time = tf.shape(projected)[0]
    arrays = _array(time, h, 6), _array(time, h, 1)
    state = (tf.constant(0), h, c, *arrays)
    end = tf.while_loop(lambda t, *_: t < time, step, state, parallel_iterations=1)
    _, h, c, saved_array, h_array = end
    return saved_array.stack(), h_array.stack(), h, c


def backward_steps(
    saved: tf.Tensor,
    d_outputs: tf.Tensor,
    transposed_kernel: tf.Tensor,
    d_h: tf.Tensor,
    d_c: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> Tensors:
    """Runs the gradient of `forward_steps` from its last step to its first.

    Args:
        d_outputs: ``(time, batch, units)``: the gradient of each step's h.
        transposed_kernel: ``(4 * units, units)``: a transposed copy of the recurrent kernel.
        d_h: ``(batch, units)``: the gradient of the last h.
        d_c: ``(batch, units)``: the gradient of the last c.

    Returns:
        The gradients of ``projected``, ``h`` and ``c``; those of the weights follow from the first.
    """
    saved_array, d_outputs_array = _readable(saved), _readable(d_outputs)
    valid = None if mask is None else _readable(mask[:, :, tf.newaxis])

    def step(t, d_h, d_c, dz_array):
        i, f, g, o, previous_c, tanh_c = tf.split(saved_array.read(t), 6, axis=1)
        d_h += d_outputs_array.read(t)
        d_new_c = d_c + d_h * o * (1 - tanh_c * tanh_c)
        dz_i = d_new_c * g * i * (1 - i)
        dz_f = d_new_c * previous_c * f * (1 - f)
        dz_g = d_new_c * i * (1 - g * g)
        dz_o = d_h * tanh_c * o * (1 - o)
        dz = tf.concat([dz_i, dz_f, dz_g, dz_o], axis=1)
        if valid is None:
            return t - 1, _matmul(dz, transposed_kernel), d_new_c * f, dz_array.write(t, dz)
        keep = valid.read(t)
        dz = tf.where(keep, dz, tf.zeros_like(dz))
        d_h = tf.where(keep, _matmul(dz, transposed_kernel), d_h)
        return t - 1, d_h, tf.where(keep, d_new_c * f, d_c), dz_array.write(t, dz)

    time = tf.shape(saved)[0]
    state = (time - 1, d_h, d_c, _array(time, d_h, 4))
    end = tf.while_loop(lambda t, *_: t >= 0, step, state, parallel_iterations=1)
    _, d_h, d_c, dz_array = end
    return dz_array.stack(), d_h, d_c


def _matmul(states, weights):
    return tf.cast(tf.matmul(tf.cast(states, weights.dtype), weights), states.dtype)


def _readable(sequence):
    array = tf.TensorArray(
        sequence.dtype,
        size=tf.shape(sequence)[0],
        element_shape=sequence.shape[1:],
        clear_after_read=False,
    )
    return array.unstack(sequence)


def _array(size, state, width):
    shape = (state.shape[0], width * state.shape[1])
    return tf.TensorArray(state.dtype, size=size, element_shape=shape)
