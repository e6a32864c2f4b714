"""Masked batch normalisation in TensorFlow with a gradient derived by hand."""

import tensorflow as tf


def normalise_masked(
    inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, mask: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalises all frames with the mean and variance of those that count.

    Args:
        inputs: ``(batch, time, channels)``; computed with in float32.
        gamma: ``(channels,)`` scales.
        beta: ``(channels,)`` offsets.
        mask: ``(batch, time)``: True for the frames that count.
        epsilon: added to the variance.

    Returns:
        The outputs like ``inputs``, in float32; the mean and the variance ``(channels,)``, through
        which no gradient flows.

    Source: Ioffe and Szegedy 2015, Algorithm 1 and the gradients below it, with weights of 0 and 1.
    """
    shape, channels = tf.shape(inputs), inputs.shape[-1]
    counts = tf.reshape(tf.cast(mask, tf.float32), (-1, 1))
    # Sums over frames as matmuls with a row of weights: a third of the time of masking and summing.
    weights = tf.transpose(counts / tf.maximum(tf.reduce_sum(counts), 1.0))

    def rows(tensor):
        return tf.reshape(tf.cast(tensor, tf.float32), (-1, channels))

    @tf.custom_gradient
    def normalise(inputs, gamma, beta):
        # A masked frame may hold anything, and zero times infinity is no zero.
        valid = tf.where(tf.cast(counts, tf.bool), rows(inputs), 0.0)
        mean = tf.matmul(weights, valid)[0]
        centred = rows(inputs) - mean
        variance = tf.matmul(weights, tf.square(valid - mean))[0]
        inverse = tf.math.rsqrt(variance + epsilon)
        outputs = tf.reshape(centred * (inverse * gamma) + beta, shape)

        def gradient(d_outputs, *_):
            d_outputs = rows(d_outputs)
            d_beta = tf.reduce_sum(d_outputs, axis=0)
            along = tf.reduce_sum(d_outputs * centred, axis=0) * inverse
            slope = gamma * inverse
            through_statistics = slope * d_beta + centred * (slope * inverse * along)
            d_inputs = slope * d_outputs - tf.transpose(weights) * through_statistics
            return tf.cast(tf.reshape(d_inputs, shape), inputs.dtype), along, d_beta

        return (outputs, mean, variance), gradient

    # A variable would have to be a variable's gradient in custom_gradient; its value is a tensor.
    return normalise(inputs, tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))
