"""Masked batch normalisation in TensorFlow, with a hand-written gradient.

`tfasr.layers.batch_normalization` calls one of three functions here:
`normalise_and_drop` runs compiled C++ on CPUs, `normalise_masked` TensorFlow's
operations elsewhere, and `normalise_synchronised` covers several replicas. All return
outputs, mean and variance.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

from tfasr.layers.compiled import (
    call,
    plain,
    runs_here,
    second_derivatives_refused,
    team_size,
)
from tfasr.layers.fused_call import kept_scale
from tfasr.layers.operations import Operation, core

# What `counted` sets while a replica's step is traced; None for a weight of 1.
_COUNTED: contextvars.ContextVar = contextvars.ContextVar("_COUNTED", default=None)
Tensors = tuple[tf.Tensor, ...]


@contextlib.contextmanager
def counted(share: tf.Tensor) -> Iterator[None]:
    """Weights this replica's frames in synchronised statistics by ``share`` (1 or 0).

    It is 0 for a replica that gets no utterances of a batch. That replica runs the step
    on another one's utterances, and its result is dropped.
    """
    token = _COUNTED.set(share)
    try:
        yield
    finally:
        _COUNTED.reset(token)


def summed_over_replicas(values: tf.Tensor) -> tf.Tensor:
    """Adds up a tensor over the replicas of TensorFlow's current strategy, if any."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values

    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def normalise_synchronised(
    inputs,
    gamma,
    beta,
    mask,
    epsilon: float,
    summed: Callable = summed_over_replicas,
) -> Tensors:
    """Does what `normalise_masked` does, with statistics over all replicas' frames.

    The gradients of ``gamma`` and ``beta`` cover this replica's frames; the optimizer
    sums them over replicas. ``summed`` sums a tensor over all replicas.

    Source: Ioffe and Szegedy 2015, Algorithm 1, over a batch that is split among
    several devices.
    """
    shape = tf.shape(inputs)
    channels = inputs.shape[-1]
    counts = tf.reshape(tf.cast(mask, tf.float32), (-1, 1))
    if _COUNTED.get() is not None:
        counts *= _COUNTED.get()

    def both(d_beta, along):
        return tf.unstack(summed(tf.stack([d_beta, along])))

    @tf.custom_gradient
    def normalise(inputs, gamma, beta):
        valid = tf.where(counts > 0, _rows(inputs, channels), 0.0)
        local = tf.concat(
            [tf.reduce_sum(valid, axis=0), tf.reduce_sum(counts)[None]], axis=0
        )
        sums = summed(local)
        weights = tf.transpose(counts / tf.maximum(sums[-1], 1.0))
        mean = sums[:-1] / tf.maximum(sums[-1], 1.0)
        centred = _rows(inputs, channels) - mean
        # Not the mean square minus the squared mean: that difference would lose digits.
        variance = summed(tf.matmul(weights, tf.square(valid - mean))[0])
        inverse = tf.math.rsqrt(variance + epsilon)
        outputs = tf.reshape(centred * (inverse * gamma) + beta, shape)

        return (outputs, mean, variance), _gradient(
            inputs,
            gamma,
            centred,
            inverse,
            weights,
            both,
        )

    return normalise(inputs, tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))


def normalise_masked(inputs, gamma, beta, mask, epsilon: float) -> Tensors:
    """Normalises frames by mean and variance of the unmasked ones.

    Args:
        inputs: ``(batch, time, channels)``.
        gamma: scale ``(channels,)``.
        beta: offset ``(channels,)``.
        mask: ``(batch, time)``, True for frames that count.
        epsilon: added to the variance.

    Returns:
        float32 outputs and, without gradients, mean and variance ``(channels,)``.

    Source: Ioffe and Szegedy 2015, Algorithm 1 and the gradients below it, with weights
    of 0 and 1.
    """
    shape = tf.shape(inputs)
    channels = inputs.shape[-1]
    counts = tf.reshape(tf.cast(mask, tf.float32), (-1, 1))
    # A matmul with this row of weights sums over frames three times as fast as masking
    # and summing.
    weights = tf.transpose(counts / tf.maximum(tf.reduce_sum(counts), 1.0))

    @tf.custom_gradient
    def normalise(inputs, gamma, beta):
        # A masked frame may contain anything, and zero times infinity is not zero.
        valid = tf.where(tf.cast(counts, tf.bool), _rows(inputs, channels), 0.0)
        mean = tf.matmul(weights, valid)[0]
        centred = _rows(inputs, channels) - mean
        variance = tf.matmul(weights, tf.square(valid - mean))[0]
        inverse = tf.math.rsqrt(variance + epsilon)
        outputs = tf.reshape(centred * (inverse * gamma) + beta, shape)

        return (outputs, mean, variance), _gradient(
            inputs,
            gamma,
            centred,
            inverse,
            weights,
        )

    # Passes the variables' values, because custom_gradient needs extra code for
    # variables.
    return normalise(inputs, tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))


def _rows(tensor: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns all frames one below the other, float32 ``(batch * time, channels)``."""
    return tf.reshape(tf.cast(tensor, tf.float32), (-1, channels))


def _gradient(
    inputs,
    gamma,
    centred,
    inverse,
    weights,
    both=lambda *sums: sums,
) -> Callable:
    """Returns a function for the gradients of ``inputs``, ``gamma`` and ``beta``.

    Args:
        inputs: as they were passed.
        gamma: the scale.
        centred: the inputs minus the mean, ``(frames, channels)``.
        inverse: of the standard deviation.
        weights: ``(1, frames)``, each frame's share of the mean.
        both: sums the gradients of ``beta`` and ``gamma`` over the replicas that share
            statistics.
    """

    def gradient(d_outputs, *_):
        d_outputs = _rows(d_outputs, inputs.shape[-1])
        d_beta = tf.reduce_sum(d_outputs, axis=0)
        along = tf.reduce_sum(d_outputs * centred, axis=0) * inverse
        all_beta, all_along = both(d_beta, along)
        # Each input also moves the mean and the variance, and through them all
        # outputs.
        slope = gamma * inverse
        through_statistics = slope * all_beta + centred * (slope * inverse * all_along)
        d_inputs = slope * d_outputs - tf.transpose(weights) * through_statistics

        return (
            tf.cast(tf.reshape(d_inputs, tf.shape(inputs)), inputs.dtype),
            along,
            d_beta,
        )

    return gradient


_REFUSE = second_derivatives_refused(
    "Compiled batch normalisation",
    "Compute it in a tf.function with jit_compile=True, which uses TensorFlow's own operations.",
)


class Drawn(NamedTuple):
    """Dropout for `normalise_and_drop`: the same bits as `tfasr.layers.fused_call.Dropout`."""

    levels: int = 0  # dropout rate in units of 1/65536; 0 for no dropout
    seed: tf.Tensor | None = None  # int32 (2,)


def normalises_here(dtype: str) -> bool:
    """Whether `normalise_and_drop` can run in the current graph for this dtype."""
    return runs_here(dtype, "normalise_float32")


def normalise_and_drop(
    inputs,
    gamma,
    beta,
    mask,
    epsilon: float,
    drawn: Drawn,
) -> Tensors:
    """Does what `normalise_masked` does, followed by dropout, in float32 or bfloat16.

    Outputs have the inputs' dtype. A second derivative raises NotImplementedError.

    Source: Ioffe and Szegedy 2015, Algorithm 1 and the gradients below it, with weights
    of 0 and 1; Srivastava et al. 2014, dropout.
    """
    seed = tf.zeros((2,), tf.int32) if drawn.seed is None else drawn.seed
    mask = tf.cast(mask, tf.bool)

    @tf.custom_gradient
    def normalise(inputs, gamma, beta):
        # Constants for the compiled function, whose gradient is the one below.
        x, scales, shifts = (
            tf.stop_gradient(tensor) for tensor in (inputs, gamma, beta)
        )
        tensors = [x, scales, shifts, mask, seed]
        outputs, mean, variance = _compiled(
            "normalise",
            "TfasrNormalise",
            tensors,
            options,
        )

        @tf.custom_gradient
        def gradient(d_outputs, *_):
            tensors = [
                x,
                scales,
                mean,
                variance,
                tf.stop_gradient(d_outputs),
                mask,
                seed,
            ]
            with tf.name_scope("normalisation_gradient"):
                gradients = _compiled(
                    "normalise_back",
                    "TfasrNormaliseGradient",
                    tensors,
                    options,
                )
                return gradients, _REFUSE

        return (outputs, mean, variance), lambda d_outputs, *_: gradient(
            d_outputs, inputs, gamma
        )

    # Computed here, so that it is the same as `Dropout`'s.
    scale = kept_scale(drawn.levels, inputs.dtype.as_numpy_dtype)
    options = {"epsilon": epsilon, "dropped_levels": drawn.levels, "scale": scale}

    return normalise(inputs, tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))


def _compiled(function: str, operation: str, tensors, options):
    """Calls a compiled C++ function.

    Args:
        function: its name without the dtype.
        operation: its name as an operation of TensorFlow.
        tensors: inputs, further tensors, mask and seed, in this order.
        options: constants.

    Returns:
        An array with the inputs' shape and dtype, and two vectors ``(channels,)``: mean
        and variance, or the gradients of gamma and beta.
    """
    dtype = tensors[0].dtype
    shape = tensors[0].shape
    channels = tensors[0].shape[-1]
    run = getattr(core, f"{function}_{dtype.name}")
    threads = team_size()

    def normalise(*arrays):
        *arrays, mask, seed = arrays
        like = arrays[0]
        # The core sees frames one below the other.
        arrays = [plain(a).reshape(-1, channels) if a.ndim == 3 else a for a in arrays]
        first, *others = run(
            *arrays,
            mask.reshape(-1),
            seed=seed,
            threads=threads(),
            **options,
        )

        return [first.view(like.dtype).reshape(like.shape), *others]

    attributes = {"T": dtype, "dropped_levels": int(options["dropped_levels"])}
    attributes |= {name: float(options[name]) for name in ("epsilon", "scale")}
    operation = Operation(operation, [dtype, tf.float32, tf.float32], attributes)

    return call(normalise, operation, tensors, [shape, (channels,), (channels,)])
