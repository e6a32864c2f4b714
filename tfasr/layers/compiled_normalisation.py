"""Batch normalisation and dropout behind it as one compiled operation, forwards and backwards.

TensorFlow's own operations pass over the activations some twenty times and keep a handful of
copies of them for the gradient. Here a training step reads them three times and writes them once
in either direction, and keeps nothing but the inputs: what was dropped is drawn again.
"""

from typing import NamedTuple

import tensorflow as tf

from tfasr.layers.compiled import (
    call,
    function,
    plain,
    runs_here,
    second_derivatives_refused,
    team_size,
)
from tfasr.layers.dropout import kept_scale
from tfasr.layers.operations import Operation

NORMALISED = "normalise_float32"
_REFUSE = second_derivatives_refused(
    "Compiled batch normalisation",
    "Compute it in a tf.function with jit_compile=True, which takes TensorFlow's own operations.",
)


class Drawn(NamedTuple):
    """What is dropped, and drawn as `tfasr.layers.dropout` draws it.

    Attributes:
        levels: of 65536, which are dropped; 0 for no dropout.
        seed: int32 ``(2,)`` of the draw; None for no dropout.
    """

    levels: int = 0
    seed: tf.Tensor | None = None


def normalises_here(dtype: str) -> bool:
    """Returns whether `normalise_and_drop` can compute in a dtype in the graph being made."""
    return runs_here(dtype, NORMALISED)


def normalise_and_drop(
    inputs: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    mask: tf.Tensor,
    epsilon: float,
    drawn: Drawn,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalises all frames with the mean and variance of those that count, and drops some values.

    Arguments are those of `tfasr.layers.batch_normalization_kernel.normalise_masked`, with inputs
    in float32 or bfloat16, and what is dropped.

    Returns:
        The outputs, of the shape and dtype of the inputs; the mean and the variance
        ``(channels,)``, through which no gradient flows. The gradient has no gradient: asking for
        it raises NotImplementedError.

    Source: Ioffe and Szegedy 2015, Algorithm 1 and the gradients below it, with weights of 0 and 1;
        Srivastava et al. 2014, dropout.
    """
    seed = tf.zeros((2,), tf.int32) if drawn.seed is None else drawn.seed
    mask = tf.cast(mask, tf.bool)

    @tf.custom_gradient
    def normalise(inputs, gamma, beta):
        known = [tf.stop_gradient(tensor) for tensor in (inputs, gamma)]
        outputs, mean, variance = _forward(*known, tf.stop_gradient(beta), mask, seed, options)

        @tf.custom_gradient
        def gradient(d_outputs, inputs, gamma):
            d_outputs = tf.stop_gradient(d_outputs)
            saved = (*known, mean, variance)
            return _backward(saved, d_outputs, mask, seed, options), _REFUSE

        return (outputs, mean, variance), lambda d_outputs, *_: gradient(d_outputs, inputs, gamma)

    scale = kept_scale(drawn.levels, inputs.dtype.as_numpy_dtype)
    options = {"epsilon": epsilon, "dropped_levels": drawn.levels, "scale": scale}
    return normalise(inputs, tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))


def _forward(inputs, gamma, beta, mask, seed, options):
    run, threads = function(f"normalise_{inputs.dtype.name}"), team_size()
    channels = inputs.shape[-1]

    def normalise(inputs, gamma, beta, mask, seed):
        rows = plain(inputs).reshape(-1, channels)
        known = rows, gamma, beta, mask.reshape(-1)
        outputs, *statistics = run(*known, seed=seed, threads=threads(), **options)
        return [outputs.view(inputs.dtype).reshape(inputs.shape), *statistics]

    operation = _operation("TfasrNormalise", inputs, options)
    shapes = [inputs.shape, (channels,), (channels,)]
    return call(normalise, operation, [inputs, gamma, beta, mask, seed], shapes)


def _backward(saved, d_outputs, mask, seed, options):
    inputs = saved[0]
    run, threads = function(f"normalise_back_{inputs.dtype.name}"), team_size()
    channels = inputs.shape[-1]

    def differentiate(inputs, gamma, mean, variance, d_outputs, mask, seed):
        rows, d_rows = (plain(array).reshape(-1, channels) for array in (inputs, d_outputs))
        known = rows, gamma, mean, variance, d_rows, mask.reshape(-1)
        d_inputs, *others = run(*known, seed=seed, threads=threads(), **options)
        return [d_inputs.view(inputs.dtype).reshape(inputs.shape), *others]

    operation = _operation("TfasrNormaliseGradient", inputs, options)
    shapes = [inputs.shape, (channels,), (channels,)]
    with tf.name_scope("normalisation_gradient"):
        return call(differentiate, operation, [*saved, d_outputs, mask, seed], shapes)


def _operation(name, inputs, options):
    dtypes = [inputs.dtype, tf.float32, tf.float32]
    known = {"epsilon": float(options["epsilon"]), "scale": float(options["scale"])}
    levels = int(options["dropped_levels"])
    return Operation(name, dtypes, {"T": inputs.dtype, "dropped_levels": levels, **known})
