"""A Conformer encoder with a CTC head, against Keras 3 alone."""

import dataclasses

import keras

from tfasr.config import config_class, require
from tfasr.layers.conformer_block import ConformerBlock, sinusoids
from tfasr.layers.geometry import padded_conv_output_frames
from tfasr.layers.padding import valid_frames, widened
from tfasr.models.footprint import step_bytes
from tfasr.models.network import Network, class_scores


@config_class
class ConformerConfig:
    """Sizes of the model; the defaults are Conformer (S)'s.

    Attributes:
        width: of the encoder.
        num_blocks: how many.
        num_heads: of the attention; they share the width.
        expansion: of the feed-forward modules, times the width.
        conv_kernel: frames that the depthwise convolution of a block sees.
        subsampling: convolutions of stride 2 and kernel 3 before the blocks.
        dropout: share of activations dropped in training at the end of each module.

    Source: Gulati et al. 2020, "Conformer: convolution-augmented transformer for speech
    recognition", sections 2 and 3.2. Apart from it, positions are added as sinusoids before the
    blocks instead of entering the attention relatively, and the subsampling convolves over time.
    """

    width: int = 144
    num_blocks: int = 16
    num_heads: int = 4
    expansion: int = 4
    conv_kernel: int = 32
    subsampling: int = 2
    dropout: float = 0.1

    def check(self) -> None:
        for field in ("width", "num_blocks", "num_heads", "expansion", "conv_kernel"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(self.width % self.num_heads == 0, self, "width", "a multiple of num_heads")
        require(self.width % 2 == 0, self, "width", "even")
        require(self.subsampling >= 0, self, "subsampling", "at least 0")
        require(0 <= self.dropout < 1, self, "dropout", "in 0..1, below 1")

    can_stream = False

    def make(
        self, num_features: int, num_classes: int, *, seed: int = 0, dtype: str | None = None
    ) -> "ConformerModel":
        return ConformerModel(self, num_classes, seed, dtype=dtype)

    def output_lengths(self, lengths):
        for _ in range(self.subsampling):
            lengths = padded_conv_output_frames(lengths, 2)
        return lengths

    def flops(self, num_features: int, num_classes: int, frames: int, *, training: bool) -> int:
        width, of_first, total, channels = self.width, 0, 0, num_features
        for number in range(self.subsampling):
            frames = padded_conv_output_frames(frames, 2)
            total += frames * 3 * channels * width
            of_first = total if number == 0 else of_first
            channels = width
        feed_forward = 2 * 2 * width * self.expansion * width
        attention = 4 * width * width + 2 * frames * width
        convolution = 3 * width * width + self.conv_kernel * width
        total += frames * self.num_blocks * (feed_forward + attention + convolution)
        total += frames * (channels * width + width * num_classes)
        # Backward twice as much, but for the features, which need no gradient.
        return 2 * (3 * total - of_first if training else total)

    def smaller(self, units: int) -> "ConformerConfig":
        return dataclasses.replace(self, width=units, num_blocks=4)

    def step_bytes(self, num_features: int, parameters: int, batch: int, frames: int) -> int:
        outputs = self.output_lengths(frames)
        a_frame = (6 * self.expansion + 40) * self.width + 5 * self.num_heads * outputs
        values = outputs * self.num_blocks * a_frame + 2 * frames * (num_features + 3 * self.width)
        return step_bytes(parameters, batch * values)


class ConformerModel(Network):
    """Strided convolutions, a projection, Conformer blocks, and a dense layer to classes.

    Padded frames are zero to the convolutions, and nothing attends to them.
    """

    def __init__(self, config: ConformerConfig, num_classes: int, seed: int = 0, dtype=None):
        super().__init__("conformer", config, dtype)
        policy = self.dtype_policy

        def glorot(number: int):
            return keras.initializers.GlorotUniform(1000 * seed + number)

        self.subsampling = [
            keras.layers.Conv1D(
                config.width,
                3,
                strides=2,
                activation="relu",
                kernel_initializer=glorot(number),
                dtype=policy,
                name=f"subsampling_{number}",
            )
            for number in range(config.subsampling)
        ]
        self.projection = keras.layers.Dense(
            config.width, kernel_initializer=glorot(90), dtype=policy, name="projection"
        )
        self.blocks = [
            ConformerBlock(
                config.width,
                config.num_heads,
                expansion=config.expansion,
                kernel=config.conv_kernel,
                dropout=config.dropout,
                seed=1000 * seed + 100 + 20 * number,
                dtype=policy,
                name=f"block_{number}",
            )
            for number in range(config.num_blocks)
        ]
        self.classifier = class_scores(num_classes, 1000 * seed + 91)

    def build(self, input_shape=None):
        """Makes all weights for features of the shape ``(batch, frames, num_features)``."""
        shape = input_shape
        for layer in self.subsampling:
            layer.build(shape)
            shape = (None, None, self.config.width)
        self.projection.build(shape)
        shape = (None, None, self.config.width)
        for layer in (*self.blocks, self.classifier):
            layer.build(shape)
        self.built = True

    def encodings(self, features, feature_lengths, training):
        hidden, lengths = features, feature_lengths
        valid = valid_frames(hidden, lengths)
        for layer in self.subsampling:
            # A frame on either side: of every two frames one is left, of an odd number the more.
            hidden = layer(widened(hidden, valid, 1, 1))
            lengths = padded_conv_output_frames(lengths, 2)
            valid = valid_frames(hidden, lengths)
        hidden = self.projection(hidden)
        outputs = [hidden + sinusoids(hidden)]
        for block in self.blocks:
            outputs.append(block(outputs[-1], valid, training=training))
        return outputs[1:] or outputs
