"""An LSTM in TensorFlow for CPUs, with a gradient derived by hand.

Everything that does not depend on the previous step stays outside of the loops: the input
projection of all steps before them, the weights' gradients after them. What is left inside is one
matmul with the recurrent weights per step and direction.
"""

import functools
import os

import tensorflow as tf

from tfasr.layers import lstm_loops


def lstm_sequence(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
    initial_h: tf.Tensor,
    initial_c: tf.Tensor,
    mask: tf.Tensor | None = None,
    compiled: bool = True,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs an LSTM with tanh and sigmoid over sequences.

    Args:
        inputs: ``(batch, time, features)``, in the dtype of the matmuls.
        kernel: ``(features, 4 * units)``, in the same dtype: the gates in Keras's order: input,
            forget, candidate, output.
        recurrent_kernel: ``(units, 4 * units)``, in the same dtype.
        bias: ``(4 * units,)``.
        initial_h: ``(batch, units)``: the output before the first step; its dtype is the one of
            the states and the gates.
        initial_c: ``(batch, units)``: the cell state before the first step.
        mask: booleans ``(batch, time)``: False leaves both states as they are; None for no mask.
        compiled: compile the steps with XLA, once per batch size.

    Returns:
        The outputs h of all steps ``(batch, time, units)``, the last h and the last c
        ``(batch, units)``, in the dtype of the initial states.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """
    forward, backward = _functions(*kernel.shape, compiled)

    @tf.custom_gradient
    def run(*differentiable):
        # A tape would also record what happens in here, and a compiled loop cannot be recorded.
        constants = [tf.stop_gradient(tensor) for tensor in differentiable]
        *results, saved = forward(*constants, mask)

        @tf.custom_gradient
        def gradient(*upstream_and_differentiable):
            upstream = [tf.stop_gradient(tensor) for tensor in upstream_and_differentiable[:3]]
            gradients = backward(saved, upstream, *constants[:3], mask)
            return gradients, _refuse_second_derivatives

        return results, lambda *upstream: gradient(*upstream, *differentiable)

    return run(inputs, kernel, recurrent_kernel, bias, initial_h, initial_c)


def _refuse_second_derivatives(*_):
    raise NotImplementedError(
        "The fused LSTM has first derivatives only, and the gradient of its gradient was asked "
        "for. Pass kernel='generic' to the layer."
    )


@functools.cache
def _functions(features: int, gates: int, compiled: bool):
    """Returns the forward and backward functions of all layers with these sizes.

    Each has its own, so that only batch and time become unknown when their shapes change.
    """
    return tuple(
        tf.function(
            functools.partial(run, compiled=compiled), autograph=False, reduce_retracing=True
        )
        for run in (_forward, _backward)
    )


def _forward(inputs, kernel, recurrent_kernel, bias, initial_h, initial_c, mask, *, compiled):
    """Returns the outputs, the last h, the last c, and what `_backward` needs."""
    batch, steps = tf.unstack(tf.shape(inputs)[:2])
    loop = lstm_loops.compiled_forward_steps if compiled else lstm_loops.forward_steps
    results = []
    for x, h, c, m in zip(*_parts(compiled, inputs, initial_h, initial_c, mask), strict=True):
        x = tf.transpose(x, (1, 0, 2))
        projected = _reshape_like(tf.matmul(_rows(x), kernel), x)
        m = None if m is None else tf.transpose(m)
        saved, outputs, last_h, last_c = loop(steps, projected, bias, recurrent_kernel, h, c, m)
        to_batch_major = tf.transpose(outputs, (1, 0, 2))
        results.append((to_batch_major, last_h, last_c, (x, h, outputs, saved)))
    *results, saved = zip(*results, strict=True)
    return *(tf.concat(parts, axis=0)[:batch] for parts in results), saved


def _backward(saved, upstream, inputs, kernel, recurrent_kernel, mask, *, compiled):
    """Returns the gradients of inputs, kernel, recurrent_kernel, bias, initial_h, initial_c."""
    batch, steps = tf.unstack(tf.shape(inputs)[:2])
    loop = lstm_loops.compiled_backward_steps if compiled else lstm_loops.backward_steps
    # Multiplying with a transposed argument instead packs the weights badly, in every step: at 800
    # units and 16 utterances it took twice as long as the product with a transposed copy.
    transposed = tf.transpose(recurrent_kernel)
    by_batch, by_weight = [], []
    parts = zip(saved, *_parts(compiled, *upstream, mask), strict=True)
    for (x, h, outputs, for_loop), d_outputs, d_h, d_c, m in parts:
        m = None if m is None else tf.transpose(m)
        d_outputs = tf.transpose(d_outputs, (1, 0, 2))
        dz, d_h, d_c = loop(steps, for_loop, d_outputs, transposed, d_h, d_c, m)
        d_bias = tf.reduce_sum(dz, axis=(0, 1))
        dz = tf.cast(dz, kernel.dtype)
        d_x = _reshape_like(tf.matmul(_rows(dz), kernel, transpose_b=True), dz)
        by_batch.append((tf.transpose(d_x, (1, 0, 2)), d_h, d_c))
        d_recurrent = _outer(outputs[:-1], dz[1:]) + _outer(h[tf.newaxis], dz[:1])
        by_weight.append((_outer(x, dz), d_recurrent, d_bias))
    d_x, d_h, d_c = (tf.concat(g, axis=0)[:batch] for g in zip(*by_batch, strict=True))
    d_kernel, d_recurrent, d_bias = (tf.add_n(g) for g in zip(*by_weight, strict=True))
    return d_x, d_kernel, d_recurrent, d_bias, d_h, d_c


def _parts(compiled, *tensors):
    """Splits along the batch into parts that run at the same time, padded to equal sizes.

    The matmul of one step is too small for more than one thread to be of much use up to about 256
    units; two halves of the batch that wait for nobody keep two cores busy. That took 0.65 of the
    time at 128 and 256 units, 0.9 at 800. Whole multiples keep the number of shapes to compile low:
    the sizes are those of `tfasr.layers.geometry.padded_batch_size`.
    """
    if not compiled:
        return [(tensor,) for tensor in tensors]
    parts = min(_cores(), 2)
    batch = tf.shape(tensors[0])[0]
    multiple = tf.where(batch < 8, 2, 8)
    # A replica's share of the last batch can be empty, and an empty program cannot be run.
    padding = -(-tf.maximum(batch, 1) // multiple) * multiple - batch

    def split(tensor):
        paddings = [(0, padding)] + [(0, 0)] * (len(tensor.shape) - 1)
        return tf.split(tf.pad(tensor, paddings), parts, axis=0)

    return [(None,) * parts if tensor is None else split(tensor) for tensor in tensors]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: what this process may use
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _rows(sequence):
    return tf.reshape(sequence, (-1, sequence.shape[-1]))


def _reshape_like(rows, sequence):
    return tf.reshape(rows, tf.concat([tf.shape(sequence)[:2], tf.shape(rows)[1:]], axis=0))


def _outer(left, right):
    """Returns the sum over time and batch of ``left`` transposed times ``right``."""
    return tf.matmul(_rows(tf.cast(left, right.dtype)), _rows(right), transpose_a=True)
