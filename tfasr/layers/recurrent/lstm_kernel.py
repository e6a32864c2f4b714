"""An LSTM in TensorFlow's own operations, with a gradient derived by hand.

It stands in wherever the compiled steps of `tfasr.layers.recurrent.recurrent_kernel` do not run: on
other devices and dtypes, and inside of programs that XLA compiles as a whole.
"""

import functools

import tensorflow as tf

from tfasr.layers.recurrent.lstm_loops import backward_steps, forward_steps
from tfasr.layers.recurrent.recurrent_kernel import REFUSE_SECOND_DERIVATIVES, like, outer, rows_of


def lstm_sequence(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
    initial_h: tf.Tensor,
    initial_c: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs an LSTM with tanh and sigmoid over sequences.

    Arguments, results and source are those of `recurrent_steps`, but for ``inputs`` ``(batch, time,
    features)`` and ``kernel`` ``(features, 4 * units)`` in place of the projected ones, and that
    states and gates may be of any float dtype, that of the initial states.
    """
    forward, backward = _functions(*kernel.shape)

    @tf.custom_gradient
    def run(*differentiable):
        # A tape would also record what happens in here, and a compiled loop cannot be recorded.
        constants = [tf.stop_gradient(tensor) for tensor in differentiable]
        *results, saved = forward(*constants, mask)

        @tf.custom_gradient
        def gradient(*upstream_and_differentiable):
            upstream = [tf.stop_gradient(tensor) for tensor in upstream_and_differentiable[:3]]
            gradients = backward(saved, upstream, *constants[1:3], mask)
            return gradients, REFUSE_SECOND_DERIVATIVES

        return results, lambda *upstream: gradient(*upstream, *differentiable)

    return run(inputs, kernel, recurrent_kernel, bias, initial_h, initial_c)


@functools.cache
def _functions(features: int, gates: int):
    """Returns the forward and backward functions of all layers with these sizes.

    Each has its own, so that only batch and time become unknown when their shapes change.
    """
    return tuple(
        tf.function(run, autograph=False, reduce_retracing=True) for run in (_forward, _backward)
    )


def _forward(inputs, kernel, recurrent_kernel, bias, h, c, mask):
    x = tf.transpose(inputs, (1, 0, 2))
    projected = like(tf.matmul(rows_of(x), kernel), x)
    mask = None if mask is None else tf.transpose(mask)
    saved, outputs, last_h, last_c = forward_steps(projected, bias, recurrent_kernel, h, c, mask)
    return tf.transpose(outputs, (1, 0, 2)), last_h, last_c, (x, h, outputs, saved)


def _backward(saved, upstream, kernel, recurrent_kernel, mask):
    x, h, outputs, for_loop = saved
    d_outputs, d_h, d_c = upstream
    d_outputs = tf.transpose(d_outputs, (1, 0, 2))
    mask = None if mask is None else tf.transpose(mask)
    # Multiplying with a transposed argument instead packs the weights badly, in every step: at 800
    # units and 16 utterances it took twice as long as the product with a transposed copy.
    transposed = tf.transpose(recurrent_kernel)
    dz, d_h, d_c = backward_steps(for_loop, d_outputs, transposed, d_h, d_c, mask)
    d_bias = tf.reduce_sum(dz, axis=(0, 1))
    dz = tf.cast(dz, kernel.dtype)
    d_x = like(tf.matmul(rows_of(dz), kernel, transpose_b=True), dz)
    d_recurrent = outer(outputs[:-1], dz[1:]) + outer(h[tf.newaxis], dz[:1])
    return tf.transpose(d_x, (1, 0, 2)), outer(x, dz), d_recurrent, d_bias, d_h, d_c
