"""The acoustic model as a Keras user would write it, with Keras's layers and loss."""

from typing import TYPE_CHECKING

import keras

from tfasr.models.recurrent import AcousticModel

if TYPE_CHECKING:
    import tensorflow as tf


def stock_network(config, num_classes: int, num_features: int) -> keras.Model:
    """Returns a functional model from features to logits, built of stock layers.

    Layers are named as in `tfasr.models.recurrent.AcousticModel`. The batch statistics
    include padded frames, because Keras's convolution doesn't pass a mask on.

    Args:
        config: sizes, a `tfasr.models.recurrent.AcousticModelConfig`.
        num_classes: classes, the CTC blank last.
        num_features: features per frame.
    """
    inputs = keras.Input((None, num_features))
    hidden = keras.layers.Conv1D(
        config.conv_filters,
        config.conv_kernel,
        strides=config.conv_stride,
        activation="relu",
        name="convolution",
    )(inputs)
    for block in range(config.num_lstm_layers + 1):
        if config.batch_normalisation:
            hidden = keras.layers.BatchNormalization(name=f"normalisation_{block}")(
                hidden
            )

        hidden = keras.layers.Dropout(config.dropout)(hidden)
        if block < config.num_lstm_layers:
            hidden = keras.layers.LSTM(
                config.lstm_units,
                return_sequences=True,
                recurrent_initializer=config.recurrent_initializer,
                name=f"lstm_{block}",
            )(hidden)

    logits = keras.layers.Dense(num_classes, dtype="float32", name="classifier")(hidden)
    return keras.Model(inputs, logits)


class StockModel(keras.Model):
    """Trains a stock network with Keras's CTC loss, `keras.ops.ctc_loss`.

    Args:
        config: sizes, see `stock_network`.
        num_classes: classes, the CTC blank last.
        num_features: features per frame.
    """

    def __init__(self, config, num_classes: int, num_features: int):
        super().__init__()
        self.network = stock_network(config, num_classes, num_features)
        self._config = config
        self._blank = num_classes - 1
        self.built = True

    def losses(self, batch: "dict[str, tf.Tensor]", training: bool) -> "tf.Tensor":
        """Returns the CTC losses ``(batch,)``."""
        logits = self.network(batch["features"], training=training)
        frames = batch["feature_lengths"] - self._config.conv_kernel
        return keras.ops.ctc_loss(
            batch["labels"],
            logits,
            batch["label_lengths"],
            frames // self._config.conv_stride + 1,
            mask_index=self._blank,
        )

    def train_step(self, batch: "dict[str, tf.Tensor]") -> "dict[str, tf.Tensor]":
        """Updates the weights; `fit` calls it."""
        import tensorflow as tf  # the network alone also runs on other backends

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.losses(batch, training=True))

        variables = self.trainable_variables
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )

        return {"loss": loss}


def copy_to_stock_keras(model: AcousticModel, network: keras.Model) -> None:
    """Copies a built model's weights to a network of `stock_network`."""
    ours = [
        model.convolution,
        *model.recurrent,
        *model.normalisations,
        model.classifier,
    ]
    by_name = {layer.name: layer for layer in ours}
    for layer in network.layers:
        if layer.name in by_name:
            layer.set_weights(by_name[layer.name].get_weights())
