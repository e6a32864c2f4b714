"""A model of your own: a strided convolution and a stack of GRUs, in Keras alone.

tfasr train --import examples/own_model.py --gin_binding "ModelConfig.name = 'conv_gru'" ...
"""

import keras

from tfasr.kit.config import config_class, require
from tfasr.models.model import MODELS

STRIDE = 3


@MODELS.register("conv_gru")
@config_class
class ConvGruConfig:
    """Sizes; gin binds them as ConvGruConfig.units = 64."""

    units: int = 128  # of the convolution and of each GRU
    num_layers: int = 2  # GRUs

    def check(self) -> None:
        """Raises ValueError for sizes that make no model."""
        require(self.units > 0, self, "units", "at least 1")

    def make(self, num_features, num_classes, *, seed, dtype):
        """Returns the model."""
        return ConvGru(self, num_classes, dtype=dtype)

    def output_lengths(self, lengths):
        """Returns the number of output frames: one for every stride begun."""
        return (lengths + STRIDE - 1) // STRIDE


class ConvGru(keras.Model):
    """Features (batch, frames, features) to float32 logits (batch, output frames, classes)."""

    def __init__(self, config, num_classes, dtype):
        super().__init__(dtype=dtype)
        self.config = config
        policy = self.dtype_policy
        self.convolution = keras.layers.Conv1D(
            config.units, 9, STRIDE, "causal", activation="relu", dtype=policy
        )
        sizes = [config.units] * config.num_layers
        self.recurrent = [
            keras.layers.GRU(n, return_sequences=True, dtype=policy) for n in sizes
        ]
        self.scores = keras.layers.Dense(num_classes, dtype="float32")

    def call(self, features, lengths, training=False):
        """Returns the logits; no layer looks ahead, so padding at the end needs no mask."""
        hidden = self.convolution(features)
        for layer in self.recurrent:
            hidden = layer(hidden, training=training)
        return self.scores(hidden)

    def output_layer(self):
        """Returns the last layer, whose first weights the fast presets set to 0."""
        return self.scores
