"""Recurrent layers on CPUs: compiled steps, with a gradient derived by hand.

Everything that does not depend on the previous step stays outside of the steps: the projection of
all inputs before them, the weights' gradients after them, as large matmuls of TensorFlow. The steps
themselves run in a compiled core (``_recurrent/``), the weights packed once for all of them.
"""

import math

import tensorflow as tf

from tfasr.layers.compiled import (
    call,
    function,
    plain,
    second_derivatives_refused,
    team_size,
)
from tfasr.layers.operations import Operation

REFUSE_SECOND_DERIVATIVES = second_derivatives_refused(
    "The fused kernel", "Pass kernel='generic' to the layer."
)


def recurrent_sequence(
    inputs: tf.Tensor, kernel: tf.Tensor, *recurrence, **options
) -> tuple[tf.Tensor, ...]:
    """Runs a recurrent layer over sequences: an LSTM with tanh and sigmoid, or a clipped ReLU.

    Args:
        inputs: ``(batch, time, features)`` in the dtype of the matmuls: float32
            or bfloat16.
        kernel: ``(features, gates * units)``, in the same dtype.
        *recurrence: what `recurrent_steps` takes after the projected inputs.

    Returns:
        What `recurrent_steps` returns.
    """
    return recurrent_steps(like(tf.matmul(rows_of(inputs), kernel), inputs), *recurrence, **options)


def recurrent_steps(
    projected: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
    initial_h: tf.Tensor,
    initial_c: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    ceiling: float = math.inf,
) -> tuple[tf.Tensor, ...]:
    """Runs the steps of a recurrent layer whose inputs are projected already.

    Args:
        projected: ``(batch, time, gates * units)`` in the dtype of the matmuls, float32 or
            bfloat16. Four gates make an LSTM, in Keras's order (input, forget, candidate, output);
            one makes a vanilla layer.
        recurrent_kernel: ``(units, gates * units)``, in the same dtype.
        bias: ``(gates * units,)``.
        initial_h: float32 ``(batch, units)``: the output before the first step.
        initial_c: float32 ``(batch, units)``: the cell state before it; None for a vanilla layer.
        mask: booleans ``(batch, time)``: False leaves the states as they are; None for no mask.
        ceiling: what the vanilla layer's ReLU is clipped at.

    Returns:
        float32: the outputs h of all steps ``(batch, time, units)``, the last h and, of an LSTM,
        the last c ``(batch, units)``. The gradient has no gradient: asking for it raises
        NotImplementedError.

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
            upstream = [tf.stop_gradient(g) for g in upstream_and_differentiable[: len(results)]]
            saved = (gates, c, outputs, r, h_c, mask)
            dz, previous_h, d_bias, *d_states = _backward(saved, upstream, ceiling)
            gradients = [dz, outer(previous_h, dz), tf.cast(d_bias, b.dtype)]
            return gradients + d_states[: len(h_c)], REFUSE_SECOND_DERIVATIVES

        return results, lambda *upstream: gradient(*upstream, *differentiable)

    return run(projected, recurrent_kernel, bias, *states)


def _forward(projected, bias, recurrent_kernel, states, mask, ceiling):
    name, threads = f"forward_{projected.dtype.name}", team_size()

    def steps(projected, bias, recurrent_kernel, h, c, *mask):
        matrices = plain(projected), bias, plain(recurrent_kernel)
        run, options = function(name), {"threads": threads(), "ceiling": ceiling}
        return run(*matrices, h, c, *(mask or [None]), **options)

    masks = [] if mask is None else [mask]
    arguments = [projected, tf.cast(bias, tf.float32), recurrent_kernel, *_two(states), *masks]
    batch, time, width = projected.shape
    units = recurrent_kernel.shape[0]
    shapes = [(batch, time, width), (batch, None, units), (batch, time, units)]
    operation = Operation(
        "TfasrRecurrence", [tf.float32] * 3, _attributes(projected, mask, ceiling)
    )
    return call(steps, operation, arguments, shapes)


def _backward(saved, upstream, ceiling):
    gates, c, outputs, recurrent_kernel, states, mask = saved
    dtype = recurrent_kernel.dtype
    name, threads = f"backward_{dtype.name}", team_size()

    def steps(gates, c, outputs, recurrent_kernel, h, c0, d_outputs, d_h, d_c, *mask):
        known = gates, c, outputs, plain(recurrent_kernel), h, c0, *(mask or [None])
        run, options = function(name), {"threads": threads(), "ceiling": ceiling}
        dz, previous_h, *others = run(*known, d_outputs, d_h, d_c, **options)
        return [dz.view(dtype.as_numpy_dtype), previous_h.view(dtype.as_numpy_dtype), *others]

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
    return {"T": multiplied.dtype, "masks": 0 if mask is None else 1, "ceiling": float(ceiling)}


def _two(states):
    return states if len(states) == 2 else [*states, tf.zeros((0, 0))]


def rows_of(sequence):
    return tf.reshape(sequence, (-1, sequence.shape[-1]))


def like(rows, sequence):
    return tf.reshape(rows, tf.concat([tf.shape(sequence)[:2], tf.shape(rows)[1:]], axis=0))


def outer(left, right):
    return tf.matmul(rows_of(tf.cast(left, right.dtype)), rows_of(right), transpose_a=True)
