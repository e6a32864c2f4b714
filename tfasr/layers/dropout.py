"""Keras's dropout, drawing half as many random bits on CPUs."""

import keras

from tfasr.layers.recurrent.fused_call import has_gpu

_LEVELS = 1 << 16


@keras.saving.register_keras_serializable(package="tfasr")
class Dropout(keras.layers.Dropout):
    """A `keras.layers.Dropout` that decides by 16 random bits an activation instead of 32.

    The rate is rounded to the next of 65536 levels, and what is kept is scaled by that one, so that
    expectations are exact. With the same seed other activations are dropped than by Keras's layer.
    With ``noise_shape``, on GPUs and on Keras's JAX and PyTorch backends it is Keras's layer.
    """

    def call(self, inputs, training=False):
        """Drops activations in training; see `keras.layers.Dropout`."""
        if (
            not training
            or keras.backend.backend() != "tensorflow"
            or self.noise_shape is not None
            or round(self.rate * _LEVELS) in (0, _LEVELS)
            or has_gpu()
        ):
            return super().call(inputs, training=training)
        return inputs * _scales(inputs, round(self.rate * _LEVELS), self.seed_generator.next())


def _scales(inputs, dropped_levels: int, seed):
    """Returns 0 for what is dropped and for all else what restores the expectation."""
    import tensorflow as tf  # on other backends it need not exist

    size = tf.size(inputs)
    # Drawing is most of dropout: 8.8 of 10.9 ms for 4720 x 800 activations on 2 cores.
    words = tf.random.stateless_uniform(
        [(size + 1) // 2], tf.cast(seed, tf.int32), minval=None, maxval=None, dtype=tf.uint32
    )
    levels = tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size], tf.shape(inputs))
    scale = tf.constant(_LEVELS / (_LEVELS - dropped_levels), inputs.dtype)
    kept = levels >= tf.constant(dropped_levels, tf.uint16)
    return tf.where(kept, scale, tf.zeros_like(scale))
