"""Batch normalisation like Keras's that ignores padded frames faster."""

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
    replicas; Keras's masked layer uses only those of its own replica.
    """

    def call(self, inputs, training=None, mask=None, valid=None, dropout=None):
        """Normalises all frames, including masked ones, and applies a `Dropout` if passed.

        ``mask`` and ``valid`` are booleans ``(batch, time)``, True for frames that
        count in the statistics; ``valid`` overrides ``mask``. Keras passes ``mask`` on
        to all following layers, but not ``valid``.
        """
        mask = mask if valid is None else valid
        if not self._is_masked_training(inputs, training, mask):
            outputs = super().call(inputs, training=training, mask=mask)
            return outputs if dropout is None else dropout(outputs, training=training)

        from tfasr.layers import batch_normalization_kernel as kernel

        ones, zeros = (
            fill(inputs.shape[-1:]) for fill in (keras.ops.ones, keras.ops.zeros)
        )
        gamma = keras.ops.convert_to_tensor(self.gamma) if self.scale else ones
        beta = keras.ops.convert_to_tensor(self.beta) if self.center else zeros
        arguments = inputs, gamma, beta, mask, self.epsilon
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if (
            self.synchronized
            or dtype != self.compute_dtype
            or not kernel.normalises_here(dtype)
        ):
            synchronised = kernel.normalise_synchronised
            alone = kernel.normalise_masked
            outputs, mean, variance = (synchronised if self.synchronized else alone)(
                *arguments
            )
        else:
            drawn = kernel.Drawn()
            if dropout is not None and dropout.draws(training):
                drawn = kernel.Drawn(dropout.dropped_levels, dropout.next_seed())
                dropout = None

            outputs, mean, variance = kernel.normalise_and_drop(*arguments, drawn)

        for moving, batch in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            moving.assign(moving * self.momentum + batch * (1.0 - self.momentum))

        outputs = keras.ops.cast(outputs, self.compute_dtype)

        return outputs if dropout is None else dropout(outputs, training=training)

    def _is_masked_training(self, inputs, training, mask) -> bool:
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
