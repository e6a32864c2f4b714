"""Batch normalisation like Keras's that ignores padded frames faster.

All models of `tfasr.models` normalise with it. The class here works on any backend of
Keras; the fast parts for TensorFlow are in `batch_normalization_kernel`.
"""

import functools

import keras


@keras.saving.register_keras_serializable(package="tfasr")
class BatchNormalization(keras.layers.BatchNormalization):
    """A `keras.layers.BatchNormalization` that trains faster with a mask.

    Weights, config, results and gradients equal those of Keras's layer, but Keras's
    passes over the batch many more times. On CPUs, in float32 and bfloat16, one
    compiled operation computes this layer together with the dropout after it;
    elsewhere, TensorFlow's operations do. Keras's own code runs for inference, without
    a mask, with ``renorm``, for inputs other than ``(batch, time, channels)`` and on
    other backends. With ``synchronized``, statistics cover the unmasked frames of all
    replicas; Keras's masked layer uses only those of one replica.
    """

    def call(self, inputs, training=None, mask=None, valid=None, dropout=None):
        """Normalises all frames, including masked ones, and applies a `Dropout` if passed.

        Args:
            inputs: ``(batch, time, channels)`` for the fast code.
            training: as in Keras.
            mask: booleans ``(batch, time)``, True for frames that count in the
                statistics. Keras passes it on to all following layers.
            valid: the same, and overrides ``mask``, but isn't passed on.
            dropout: computed together with the normalisation where that is faster.
        """
        mask = mask if valid is None else valid
        if not self._is_masked_training(inputs, training, mask):
            outputs = super().call(inputs, training=training, mask=mask)
            return outputs if dropout is None else dropout(outputs, training=training)

        # Needs TensorFlow, which other backends may lack.
        from tfasr.layers import batch_normalization_kernel as kernel

        gamma = keras.ops.ones(inputs.shape[-1:])
        if self.scale:
            gamma = keras.ops.convert_to_tensor(self.gamma)

        beta = keras.ops.zeros(inputs.shape[-1:])
        if self.center:
            beta = keras.ops.convert_to_tensor(self.beta)

        normalise = kernel.normalise_masked
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if self.synchronized:
            normalise = kernel.normalise_synchronised
        elif dtype == self.compute_dtype and kernel.normalises_here(dtype):
            drawn = kernel.Drawn()
            if dropout is not None and dropout.draws(training):
                drawn = kernel.Drawn(dropout.dropped_levels, dropout.next_seed())
                dropout = None

            normalise = functools.partial(kernel.normalise_and_drop, drawn=drawn)

        outputs, mean, variance = normalise(inputs, gamma, beta, mask, self.epsilon)

        for moving, batch in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            # As Keras's layer does.
            moving.assign(moving * self.momentum + batch * (1.0 - self.momentum))

        outputs = keras.ops.cast(outputs, self.compute_dtype)

        return outputs if dropout is None else dropout(outputs, training=training)

    def _is_masked_training(self, inputs, training, mask) -> bool:
        """Whether the code for TensorFlow computes what Keras's layer would."""
        return (
            keras.backend.backend() == "tensorflow"
            and bool(training)
            and self.trainable
            and mask is not None
            and len(inputs.shape) == 3
            and len(mask.shape) == 2
            and self.axis in (-1, 2)
            and not getattr(self, "renorm", False)  # older versions of Keras lack it
            and keras.backend.standardize_dtype(inputs.dtype) != "float64"
        )
