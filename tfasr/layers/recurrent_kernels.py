"""Recurrent layers on CPUs: compiled steps, with a hand-written gradient.

`tfasr.layers.lstm` and `tfasr.layers.clipped_rnn` call these in place of Keras's loops.
A step computes only what depends on the previous step. Large matmuls in TensorFlow
project all inputs before the first step and compute the weights' gradients after the
last. The steps run in compiled C++ (``_recurrent/``), which packs the weights once for
all steps.
"""

import functools
import math

import tensorflow as tf

from tfasr.layers.compiled import call, plain, second_derivatives_refused, team_size
from tfasr.layers.operations import Operation, core

_REFUSE = second_derivatives_refused(
    "The fused kernel", "Pass kernel='generic' to the layer."
)


def forward_steps(projected, bias, recurrent_kernel, h, c, mask=None):
    """Runs an LSTM over all steps, by TensorFlow's operations.

    Args:
        projected: inputs, multiplied by the kernel, ``(time, batch, 4 * units)``.
        bias: ``(4 * units,)``.
        recurrent_kernel: ``(units, 4 * units)``.
        h: initial state ``(batch, units)``.
        c: initial cell state ``(batch, units)``.
        mask: booleans ``(time, batch)``; states don't change where it is False.

    Returns:
        The ``saved`` of `backward_steps` ``(time, batch, 6 * units)`` (the four gates
        in Keras's order, c before and tanh(c) after each step), h after each step
        ``(time, batch, units)``, and the last h and c.
    """
    inputs = _readable(projected)
    valid = None if mask is None else _readable(mask[:, :, tf.newaxis])
    bias = tf.cast(bias, h.dtype)

    def step(t, h, c, saved_array, h_array):
        z = tf.cast(inputs.read(t), h.dtype) + _matmul(h, recurrent_kernel) + bias
        i, f, g, o = tf.split(z, 4, axis=1)
        i = tf.sigmoid(i)
        f = tf.sigmoid(f)
        g = tf.tanh(g)
        o = tf.sigmoid(o)
        new_c = f * c + i * g
        tanh_c = tf.tanh(new_c)
        new_h = o * tanh_c
        # All that the gradient needs.
        saved_array = saved_array.write(t, tf.concat([i, f, g, o, c, tanh_c], axis=1))
        if valid is not None:
            keep = valid.read(t)
            new_h = tf.where(keep, new_h, h)
            new_c = tf.where(keep, new_c, c)

        return t + 1, new_h, new_c, saved_array, h_array.write(t, new_h)

    time = tf.shape(projected)[0]
    state = (tf.constant(0), h, c, _array(time, h, 6), _array(time, h, 1))
    _, h, c, saved_array, h_array = tf.while_loop(
        lambda t, *_: t < time,
        step,
        state,
        parallel_iterations=1,
    )

    return saved_array.stack(), h_array.stack(), h, c


def backward_steps(saved, d_outputs, transposed_kernel, d_h, d_c, mask=None):
    """Returns gradients for `forward_steps`' arguments ``projected``, ``h`` and ``c``.

    ``d_outputs``, ``d_h`` and ``d_c`` are those of its results; ``transposed_kernel``
    is ``(4 * units, units)``.
    """
    saved_array = _readable(saved)
    d_outputs_array = _readable(d_outputs)
    valid = None if mask is None else _readable(mask[:, :, tf.newaxis])

    def step(t, d_h, d_c, dz_array):
        i, f, g, o, previous_c, tanh_c = tf.split(saved_array.read(t), 6, axis=1)
        d_h += d_outputs_array.read(t)
        # Through the output and through the next step.
        d_new_c = d_c + d_h * o * (1 - tanh_c * tanh_c)
        dz_i = d_new_c * g * i * (1 - i)
        dz_f = d_new_c * previous_c * f * (1 - f)
        dz_g = d_new_c * i * (1 - g * g)
        dz_o = d_h * tanh_c * o * (1 - o)
        dz = tf.concat([dz_i, dz_f, dz_g, dz_o], axis=1)
        if valid is None:
            return (
                t - 1,
                _matmul(dz, transposed_kernel),
                d_new_c * f,
                dz_array.write(t, dz),
            )

        keep = valid.read(t)
        dz = tf.where(keep, dz, tf.zeros_like(dz))
        d_h = tf.where(keep, _matmul(dz, transposed_kernel), d_h)

        return t - 1, d_h, tf.where(keep, d_new_c * f, d_c), dz_array.write(t, dz)

    time = tf.shape(saved)[0]
    state = (time - 1, d_h, d_c, _array(time, d_h, 4))
    _, d_h, d_c, dz_array = tf.while_loop(
        lambda t, *_: t >= 0,
        step,
        state,
        parallel_iterations=1,
    )

    return dz_array.stack(), d_h, d_c


def _matmul(states, weights):
    """Multiplies states in the weights' dtype; returns the states' dtype."""
    return tf.cast(tf.matmul(tf.cast(states, weights.dtype), weights), states.dtype)


def _readable(sequence):
    """Returns a sequence ``(time, ...)`` as an array that the loop reads step by step."""
    steps = tf.TensorArray(
        sequence.dtype,
        size=tf.shape(sequence)[0],
        element_shape=sequence.shape[1:],
        clear_after_read=False,
    )
    return steps.unstack(sequence)


def _array(size, state, width):
    """Returns an array for the loop to write ``(batch, width * units)`` in each step."""
    shape = (state.shape[0], width * state.shape[1])
    return tf.TensorArray(state.dtype, size=size, element_shape=shape)


def recurrent_sequence(inputs, kernel, *recurrence, **options) -> tuple[tf.Tensor, ...]:
    """Multiplies inputs by ``kernel``, then calls `recurrent_steps` with the rest.

    ``inputs`` are ``(batch, time, features)``.
    """
    return recurrent_steps(
        like(tf.matmul(rows_of(inputs), kernel), inputs),
        *recurrence,
        **options,
    )


def recurrent_steps(
    projected,
    recurrent_kernel,
    bias,
    initial_h,
    initial_c=None,
    mask=None,
    ceiling=math.inf,
) -> tuple[tf.Tensor, ...]:
    """Runs the steps of a recurrent layer on projected inputs.

    With ``initial_c`` the layer is an LSTM; its four gates are in Keras's order (input,
    forget, candidate, output). Without, it is a vanilla recurrent layer (one gate)
    whose ReLU is clipped at ``ceiling``.

    Args:
        projected: ``(batch, time, gates * units)``, float32 or bfloat16, the dtype of
            the matmuls.
        recurrent_kernel: ``(units, gates * units)``, of the same dtype.
        bias: ``(gates * units,)``.
        initial_h: ``(batch, units)``, float32.
        initial_c: the same for an LSTM's cell state.
        mask: booleans ``(batch, time)``; states don't change where it is False.
        ceiling: of the ReLU.

    Returns:
        In float32, all outputs h ``(batch, time, units)``, the last h and, for an LSTM,
        the last c.

    Raises:
        NotImplementedError: when a second derivative is computed.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """
    states = [initial_h] if initial_c is None else [initial_h, initial_c]

    @tf.custom_gradient
    def run(*differentiable):
        x, r, b, *h_c = (tf.stop_gradient(tensor) for tensor in differentiable)
        gates, c, outputs = _forward(x, b, r, h_c, mask, ceiling)
        results = [outputs, *(states[:, -1] for states in (outputs, c)[: len(h_c)])]

        @tf.custom_gradient
        def gradient(*upstream_and_differentiable):
            upstream = [
                tf.stop_gradient(g) for g in upstream_and_differentiable[: len(results)]
            ]
            saved = (gates, c, outputs, r, h_c, mask)
            dz, previous_h, d_bias, *d_states = _backward(saved, upstream, ceiling)
            # Of the projected inputs, the recurrent kernel and the bias.
            gradients = [dz, outer(previous_h, dz), tf.cast(d_bias, b.dtype)]

            return gradients + d_states[: len(h_c)], _REFUSE

        return results, lambda *upstream: gradient(*upstream, *differentiable)

    return run(projected, recurrent_kernel, bias, *states)


def _forward(projected, bias, recurrent_kernel, states, mask, ceiling):
    """Runs the compiled steps; returns gates, cell states and outputs of all of them."""
    name = f"forward_{projected.dtype.name}"
    threads = team_size()

    def steps(projected, bias, recurrent_kernel, h, c, *mask):
        matrices = plain(projected), bias, plain(recurrent_kernel)
        run = getattr(core, name)
        options = {"threads": threads(), "ceiling": ceiling}
        return run(*matrices, h, c, *(mask or [None]), **options)

    masks = [] if mask is None else [mask]
    arguments = [
        projected,
        tf.cast(bias, tf.float32),
        recurrent_kernel,
        *_two(states),
        *masks,
    ]
    batch, time, width = projected.shape
    units = recurrent_kernel.shape[0]
    shapes = [(batch, time, width), (batch, None, units), (batch, time, units)]
    attributes = _attributes(projected, mask, ceiling)
    operation = Operation("TfasrRecurrence", [tf.float32] * 3, attributes)

    return call(steps, operation, arguments, shapes)


def _backward(saved, upstream, ceiling):
    """Runs the compiled gradient.

    Returns the gradient of the projected inputs, the states before each step, and the
    gradients of bias and initial states.
    """
    gates, c, outputs, recurrent_kernel, states, mask = saved
    dtype = recurrent_kernel.dtype
    name = f"backward_{dtype.name}"
    threads = team_size()

    def steps(gates, c, outputs, recurrent_kernel, h, c0, d_outputs, d_h, d_c, *mask):
        """Runs the compiled gradient; the arguments are its tensors."""
        tensors = gates, c, outputs, plain(recurrent_kernel), h, c0, *(mask or [None])
        run = getattr(core, name)
        options = {"threads": threads(), "ceiling": ceiling}
        dz, previous_h, *others = run(*tensors, d_outputs, d_h, d_c, **options)

        return [
            dz.view(dtype.as_numpy_dtype),
            previous_h.view(dtype.as_numpy_dtype),
            *others,
        ]

    masks = [] if mask is None else [mask]
    arguments = [gates, c, outputs, recurrent_kernel, *_two(states), upstream[0]]
    arguments += [*_two(upstream[1:]), *masks]
    state = outputs[:, 0].shape
    shapes = [gates.shape, outputs.shape, (gates.shape[2],), state, (None, state[1])]
    dtypes = [dtype, dtype, tf.float32, tf.float32, tf.float32]
    attributes = _attributes(recurrent_kernel, mask, ceiling)
    operation = Operation("TfasrRecurrenceGradient", dtypes, attributes)

    with tf.name_scope("recurrence_gradient"):
        return call(steps, operation, arguments, shapes)


def _attributes(multiplied, mask, ceiling):
    """Returns the constants of both operations."""
    return {
        "T": multiplied.dtype,
        "masks": 0 if mask is None else 1,
        "ceiling": float(ceiling),
    }


def _two(states):
    """Returns two states; the core takes an empty c if the layer isn't an LSTM."""
    return states if len(states) == 2 else [*states, tf.zeros((0, 0))]


def rows_of(sequence):
    """Returns ``(batch, time, width)`` as ``(batch * time, width)``."""
    return tf.reshape(sequence, (-1, sequence.shape[-1]))


def like(rows, sequence):
    """Returns rows as a sequence with the first two axes of another one."""
    return tf.reshape(
        rows, tf.concat([tf.shape(sequence)[:2], tf.shape(rows)[1:]], axis=0)
    )


def outer(left, right):
    """Returns the sum over all frames of outer products, ``(left width, right width)``."""
    return tf.matmul(
        rows_of(tf.cast(left, right.dtype)),
        rows_of(right),
        transpose_a=True,
    )


def lstm_sequence(
    inputs,
    kernel,
    recurrent_kernel,
    bias,
    initial_h,
    initial_c,
    mask=None,
):
    """Does what `recurrent_sequence` does, for an LSTM of any float dtype.

    It uses TensorFlow's operations alone, so it runs on GPUs and in XLA programs. The
    arguments are those of `recurrent_sequence`.
    """
    forward, backward = _functions(*kernel.shape)

    @tf.custom_gradient
    def run(*differentiable):
        # stop_gradient, because an outer tape can't record the compiled loop in
        # `forward`.
        constants = [tf.stop_gradient(tensor) for tensor in differentiable]
        *results, saved = forward(*constants, mask)

        @tf.custom_gradient
        def gradient(*upstream_and_differentiable):
            upstream = [
                tf.stop_gradient(tensor) for tensor in upstream_and_differentiable[:3]
            ]
            return backward(saved, upstream, *constants[1:3], mask), _REFUSE

        return results, lambda *upstream: gradient(*upstream, *differentiable)

    return run(inputs, kernel, recurrent_kernel, bias, initial_h, initial_c)


@functools.cache
def _functions(features: int, gates: int):
    """Returns the forward and backward functions of one size, for any batch and time.

    Traced once per size, as the models' layers have equal sizes.
    """
    return tuple(
        tf.function(run, autograph=False, reduce_retracing=True)
        for run in (_lstm_forward, _lstm_backward)
    )


def _lstm_forward(inputs, kernel, recurrent_kernel, bias, h, c, mask):
    """Runs the steps; the arguments are those of `lstm_sequence`."""
    x = tf.transpose(inputs, (1, 0, 2))
    projected = like(tf.matmul(rows_of(x), kernel), x)
    mask = None if mask is None else tf.transpose(mask)
    saved, outputs, last_h, last_c = forward_steps(
        projected,
        bias,
        recurrent_kernel,
        h,
        c,
        mask,
    )

    return tf.transpose(outputs, (1, 0, 2)), last_h, last_c, (x, h, outputs, saved)


def _lstm_backward(saved, upstream, kernel, recurrent_kernel, mask):
    """Returns the gradients of all inputs of `_lstm_forward` but the mask."""
    x, h, outputs, for_loop = saved
    d_outputs, d_h, d_c = upstream
    d_outputs = tf.transpose(d_outputs, (1, 0, 2))
    mask = None if mask is None else tf.transpose(mask)
    # Transposing the weights once is faster than matmul's transpose_b in every step,
    # which took twice as long at 800 units and 16 utterances.
    transposed = tf.transpose(recurrent_kernel)
    dz, d_h, d_c = backward_steps(for_loop, d_outputs, transposed, d_h, d_c, mask)
    d_bias = tf.reduce_sum(dz, axis=(0, 1))
    dz = tf.cast(dz, kernel.dtype)
    d_x = like(tf.matmul(rows_of(dz), kernel, transpose_b=True), dz)
    d_recurrent = outer(outputs[:-1], dz[1:]) + outer(h[tf.newaxis], dz[:1])

    return tf.transpose(d_x, (1, 0, 2)), outer(x, dz), d_recurrent, d_bias, d_h, d_c
