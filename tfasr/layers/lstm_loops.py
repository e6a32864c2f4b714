"""The step loops of the LSTM, forward and backward, as they are or compiled by XLA.

XLA compiles once per shape. Compiled whole, a loop would be compiled again for every length of a
batch; here it is compiled for a chunk of steps, of which any number can be run, so that only the
batch size, the units and the dtype count: about 0.3 s each.
"""

import functools

import tensorflow as tf

# More steps per chunk spare starts of the compiled program (about 50 us each), fewer spare memory
# traffic for padding. Between 32 and 64 no difference was found; 16 was 10 % slower at 128 units.
CHUNK = 64

Tensors = tuple[tf.Tensor, ...]


def forward_steps(
    steps: tf.Tensor,
    projected: tf.Tensor,
    bias: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> Tensors:
    """Runs the recurrence over the first ``steps`` steps.

    Args:
        steps: a scalar, at most time.
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
    end = tf.while_loop(lambda t, *_: t < steps, step, state, parallel_iterations=1)
    _, h, c, saved_array, h_array = end
    return saved_array.stack(), h_array.stack(), h, c


def backward_steps(
    steps: tf.Tensor,
    saved: tf.Tensor,
    d_outputs: tf.Tensor,
    transposed_kernel: tf.Tensor,
    d_h: tf.Tensor,
    d_c: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> Tensors:
    """Runs the gradient of `forward_steps` from its last step to its first.

    Args:
        steps: as given to `forward_steps`.
        saved: its first result.
        d_outputs: ``(time, batch, units)``: the gradient of each step's h.
        transposed_kernel: ``(4 * units, units)``: a transposed copy of the recurrent kernel.
        d_h: ``(batch, units)``: the gradient of the last h.
        d_c: ``(batch, units)``: the gradient of the last c.
        mask: as given to `forward_steps`.

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

    state = (steps - 1, d_h, d_c, _array(tf.shape(saved)[0], d_h, 4))
    end = tf.while_loop(lambda t, *_: t >= 0, step, state, parallel_iterations=1)
    _, d_h, d_c, dz_array = end
    return dz_array.stack(), d_h, d_c


@functools.cache
def _compiled_forward_chunk(units: int, dtype: tf.DType, state_dtype: tf.DType, masked: bool):
    """Returns `forward_steps` for CHUNK steps and any batch; one function, so one compilation."""
    signature = [
        tf.TensorSpec((), tf.int32),
        tf.TensorSpec((CHUNK, None, 4 * units), dtype),
        tf.TensorSpec((4 * units,), dtype),
        tf.TensorSpec((units, 4 * units), dtype),
        *[tf.TensorSpec((None, units), state_dtype)] * 2,
        *[tf.TensorSpec((CHUNK, None), tf.bool)] * masked,
    ]
    return tf.function(forward_steps, signature, jit_compile=True, autograph=False)


@functools.cache
def _compiled_backward_chunk(units: int, dtype: tf.DType, state_dtype: tf.DType, masked: bool):
    """Returns `backward_steps` for CHUNK steps and any batch."""
    signature = [
        tf.TensorSpec((), tf.int32),
        tf.TensorSpec((CHUNK, None, 6 * units), state_dtype),
        tf.TensorSpec((CHUNK, None, units), state_dtype),
        tf.TensorSpec((4 * units, units), dtype),
        *[tf.TensorSpec((None, units), state_dtype)] * 2,
        *[tf.TensorSpec((CHUNK, None), tf.bool)] * masked,
    ]
    return tf.function(backward_steps, signature, jit_compile=True, autograph=False)


def compiled_forward_steps(steps, projected, bias, recurrent_kernel, h, c, mask) -> Tensors:
    """Does what `forward_steps` does, compiled; ``saved`` comes back in chunks."""
    inputs, masks = _in_chunks(projected), [] if mask is None else [_in_chunks(mask)]
    chunks = tf.shape(inputs)[0]
    run = _compiled_forward_chunk(h.shape[1], projected.dtype, h.dtype, masked=bool(masks))

    def chunk(k, h, c, saved_array, h_array):
        count, mask = tf.minimum(steps - k * CHUNK, CHUNK), [m[k] for m in masks]
        saved, outputs, *state = run(count, inputs[k], bias, recurrent_kernel, h, c, *mask)
        h, c = (tf.ensure_shape(s, h.shape) for s in state)
        return k + 1, h, c, saved_array.write(k, saved), h_array.write(k, outputs)

    arrays = _array(chunks, h, 6, CHUNK), _array(chunks, h, 1, CHUNK)
    state = (tf.constant(0), h, c, *arrays)
    end = tf.while_loop(lambda k, *_: k < chunks, chunk, state, parallel_iterations=1)
    _, h, c, saved_array, h_array = end
    return saved_array.stack(), h_array.concat()[:steps], h, c


def compiled_backward_steps(steps, saved, d_outputs, transposed_kernel, d_h, d_c, mask) -> Tensors:
    """Does what `backward_steps` does, for what `compiled_forward_steps` returned."""
    d_chunks, masks = _in_chunks(d_outputs), [] if mask is None else [_in_chunks(mask)]
    chunks = tf.shape(saved)[0]
    dtype = transposed_kernel.dtype
    run = _compiled_backward_chunk(d_h.shape[1], dtype, d_h.dtype, masked=bool(masks))

    def chunk(k, d_h, d_c, dz_array):
        count, mask = tf.minimum(steps - k * CHUNK, CHUNK), [m[k] for m in masks]
        dz, *state = run(count, saved[k], d_chunks[k], transposed_kernel, d_h, d_c, *mask)
        d_h, d_c = (tf.ensure_shape(s, d_h.shape) for s in state)
        return k - 1, d_h, d_c, dz_array.write(k, dz)

    state = (chunks - 1, d_h, d_c, _array(chunks, d_h, 4, CHUNK))
    end = tf.while_loop(lambda k, *_: k >= 0, chunk, state, parallel_iterations=1)
    _, d_h, d_c, dz_array = end
    return dz_array.concat()[:steps], d_h, d_c


def _matmul(states, weights):
    """Multiplies in the weights' dtype; the result has the states' dtype."""
    return tf.cast(tf.matmul(tf.cast(states, weights.dtype), weights), states.dtype)


def _readable(sequence):
    array = tf.TensorArray(
        sequence.dtype,
        size=tf.shape(sequence)[0],
        element_shape=sequence.shape[1:],
        clear_after_read=False,
    )
    return array.unstack(sequence)


def _array(size, state, width, *leading):
    """Returns an array to write ``width`` times as many columns as ``state`` has."""
    shape = (*leading, state.shape[0], width * state.shape[1])
    return tf.TensorArray(state.dtype, size=size, element_shape=shape)


def _in_chunks(sequence):
    """Pads time to whole chunks: ``(chunks, CHUNK, ...)``."""
    shape = tf.shape(sequence)
    chunks = -(-shape[0] // CHUNK)
    paddings = [(0, chunks * CHUNK - shape[0])] + [(0, 0)] * (len(sequence.shape) - 1)
    padded = tf.pad(sequence, paddings)
    chunked = tf.reshape(padded, tf.concat([[chunks, CHUNK], shape[1:]], axis=0))
    return tf.ensure_shape(chunked, (None, CHUNK, *sequence.shape[1:]))
