"""Keeps TensorFlow from leaving out what is to be timed."""

from collections.abc import Iterable

import tensorflow as tf


def after(value: tf.Tensor, tensors: Iterable[tf.Tensor | None]) -> tf.Tensor:
    """Returns a value that cannot be had without computing tensors.

    A control dependency does not do: TensorFlow's graph optimizer drops operations without side
    effects of which no result is used, also where something was told to wait for them.

    Args:
        value: a float tensor.
        tensors: with at least one element each; None among them is left out.

    Returns:
        The value; NaN if the tensors' first elements sum up to NaN.
    """
    firsts = [
        tf.cast(tf.reshape(tensor, (-1,))[0], tf.float32)
        for tensor in tensors
        if tensor is not None
    ]
    number = tf.add_n(firsts) if firsts else tf.zeros(())
    return tf.where(tf.math.is_nan(number), tf.cast(float("nan"), value.dtype), value)
