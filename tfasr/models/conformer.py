"""A Conformer encoder with a CTC head, in Keras 3.

One of the models in `tfasr.models.model.MODELS`, for comparisons with the paper's LSTM.
`ConformerConfig` is what other code uses.
"""

import dataclasses
import math

import keras
import numpy as np

from tfasr.kit.config import MOST_LAYERS, config_class, require, require_within
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.fused_call import Dropout, convolution_policy, valid_frames, widened
from tfasr.layers.geometry import padded_conv_output_frames
from tfasr.models.costs import step_bytes
from tfasr.models.recurrent import Network, class_scores

_LONGEST_WAVE = 10_000  # the source's: wavelengths reach 2 pi times as many frames
FAR_BELOW_ZERO = -1e9  # a score whose softmax is exactly 0 in float32
_EXPANSION = 4  # inner width of the feed-forward modules as a multiple of the width
_ATTENTION = ("queries", "keys", "values", "outputs")


def sinusoids(hidden):
    """Returns position encodings ``(1, time, width)`` for ``(batch, time, width)``.

    The width must be even: half of it are sines, half cosines.

    Source: Vaswani et al. 2017, "Attention is all you need", section 3.5.
    """
    steps = keras.ops.arange(keras.ops.shape(hidden)[1], dtype="int32")
    rates = keras.ops.convert_to_tensor(wave_rates(hidden.shape[-1]))
    angles = keras.ops.cast(steps, "float32")[:, None] * rates[None, :]
    waves = keras.ops.concatenate(
        [keras.ops.sin(angles), keras.ops.cos(angles)], axis=-1
    )

    return keras.ops.cast(waves, hidden.dtype)[None]


def wave_rates(width: int) -> np.ndarray:
    """Returns the growth of each angle of `sinusoids` per frame, float32 ``(width / 2,)``."""
    half = width // 2
    # Rates fall geometrically from 1.
    falls = np.float32(-math.log(_LONGEST_WAVE) / max(half - 1, 1))
    return np.exp(np.arange(half, dtype=np.float32) * falls)


@keras.saving.register_keras_serializable(package="tfasr")
class ConformerBlock(keras.layers.Layer):
    """One block over ``(batch, time, width)``.

    Half a feed-forward module, attention, a convolution, the other half, and a
    normalisation; each adds to its input. Every layer is created here with a seed of
    its own, counted up from ``seed``, of which a block uses 20.

    Source: Gulati et al. 2020, section 2, Figures 1 to 4.
    """

    def __init__(self, width, num_heads, *, kernel=32, dropout=0.1, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.sizes = {
            "width": width,
            "num_heads": num_heads,
            "kernel": kernel,
            "dropout": dropout,
            "seed": seed,
        }
        self._seeds = iter(range(seed, seed + 20))
        self.norms = [
            keras.layers.LayerNormalization(
                dtype=self.dtype_policy,
                name=f"norm_{name}",
            )
            for name in ("first", "attention", "convolution", "second", "last")
        ]
        self.dropouts = [
            Dropout(
                dropout,
                seed=next(self._seeds),
                dtype=self.dtype_policy,
                name=f"dropout_{n}",
            )
            for n in range(4)
        ]
        self.feed_forwards = [
            (
                self._dense(_EXPANSION * width, f"{name}_in"),
                self._dense(width, f"{name}_out"),
            )
            for name in ("first", "second")
        ]
        # Not Keras's attention, whose copies of a seeded initializer all draw the same
        # weights.
        self.attention = [
            self._dense(width, f"attention_{name}") for name in _ATTENTION
        ]
        self.gated = self._dense(2 * width, "gated")
        initializer = keras.initializers.GlorotUniform(next(self._seeds))
        self.depthwise = keras.layers.DepthwiseConv1D(
            kernel,
            use_bias=False,
            depthwise_initializer=initializer,
            dtype=convolution_policy(self.dtype_policy),
            name="depthwise",
        )
        self.normalisation = BatchNormalization(
            dtype=self.dtype_policy,
            name="normalisation",
        )
        self.pointwise = self._dense(width, "pointwise")

    def _dense(self, units: int, name: str):
        """Creates a dense layer with the next seed."""
        return keras.layers.Dense(
            units,
            kernel_initializer=keras.initializers.GlorotUniform(next(self._seeds)),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        width = self.sizes["width"]
        shape = (None, None, width)
        for layer in (
            *self.norms,
            self.gated,
            self.depthwise,
            self.normalisation,
            self.pointwise,
        ):
            layer.build(shape)

        for inner, outer in self.feed_forwards:
            inner.build(shape)
            outer.build((None, None, _EXPANSION * width))

        for layer in self.attention:
            layer.build(shape)

        self.built = True

    def call(self, inputs, valid, training=False):
        """Returns the block's outputs, of the inputs' shape ``(batch, time, width)``.

        ``valid`` are booleans ``(batch, time)``, False for padding.
        """
        # Each normalises what enters its module; the last one, the block's
        # output.
        first, attention, convolution, second, last = self.norms
        hidden = inputs + 0.5 * self._feed_forward(0, first(inputs), training)
        attended = self._attended(attention(hidden), valid)
        hidden = hidden + self.dropouts[1](attended, training=training)
        hidden = hidden + self._convolved(convolution(hidden), valid, training)

        return last(hidden + 0.5 * self._feed_forward(1, second(hidden), training))

    def _feed_forward(self, number, hidden, training):
        """Computes the first (0) or second (1) feed-forward module."""
        inner, outer = self.feed_forwards[number]
        hidden = outer(keras.ops.silu(inner(hidden)))
        return self.dropouts[3 * number](hidden, training=training)

    def _attended(self, hidden, valid):
        """Computes multi-head self-attention over the valid frames of each utterance."""
        heads = self.sizes["num_heads"]
        batch, steps = keras.ops.shape(hidden)[:2]

        def split(layer):
            apart = keras.ops.reshape(layer(hidden), (batch, steps, heads, -1))
            return keras.ops.transpose(apart, (0, 2, 1, 3))

        queries, keys, values = map(split, self.attention[:3])
        scale = (self.sizes["width"] // heads) ** -0.5
        scores = keras.ops.matmul(
            queries * scale, keras.ops.transpose(keys, (0, 1, 3, 2))
        )
        # A softmax over many frames needs float32. Padding gets no weight.
        scores = keras.ops.cast(scores, "float32")
        scores = keras.ops.where(valid[:, None, None, :], scores, FAR_BELOW_ZERO)
        weights = keras.ops.cast(keras.ops.softmax(scores, axis=-1), values.dtype)
        together = keras.ops.transpose(keras.ops.matmul(weights, values), (0, 2, 1, 3))
        width = self.sizes["width"]

        return self.attention[3](keras.ops.reshape(together, (batch, steps, width)))

    def _convolved(self, hidden, valid, training):
        """Computes the convolution module; its kernel sees as many frames on both sides."""
        values, gates = keras.ops.split(self.gated(hidden), 2, axis=-1)
        hidden = values * keras.ops.sigmoid(gates)
        reach = self.sizes["kernel"] - 1
        hidden = widened(hidden, valid, reach // 2, reach - reach // 2)
        hidden = self.normalisation(
            self.depthwise(hidden),
            training=training,
            valid=valid,
        )
        hidden = self.pointwise(keras.ops.silu(hidden))

        return self.dropouts[2](hidden, training=training)

    def get_config(self):
        return {**super().get_config(), **self.sizes}


@config_class
class ConformerConfig:
    """Sizes of the model; the defaults are those of Conformer (S).

    Attributes:
        width: channels of each block's input and output.
        num_blocks: number of blocks, one after the other.
        num_heads: of the attention; each has width / num_heads channels.
        conv_kernel: frames of a block's depthwise convolution.
        subsampling: number of convolutions with stride 2 and kernel 3 before the
            blocks.
        dropout: rate at the end of each of a block's modules.

    Source: Gulati et al. 2020, "Conformer: convolution-augmented transformer for speech
    recognition", sections 2 and 3.2. Unlike in that paper, positions are sinusoids
    added before the blocks, not relative positions in the attention, and subsampling
    convolves over time only.
    """

    width: int = 144
    num_blocks: int = 16
    num_heads: int = 4
    conv_kernel: int = 32
    subsampling: int = 2
    dropout: float = 0.1

    def check(self) -> None:
        for field in ("width", "num_blocks", "num_heads", "conv_kernel"):
            require(getattr(self, field) > 0, self, field, "positive")

        require_within(self, 1, num_blocks=MOST_LAYERS)
        require(
            self.width % self.num_heads == 0,
            self,
            "width",
            "a multiple of num_heads",
        )
        require(self.width % 2 == 0, self, "width", "even")
        require(self.subsampling >= 0, self, "subsampling", "at least 0")
        require(0 <= self.dropout < 1, self, "dropout", "in 0..1, below 1")

    def make(self, num_features: int, num_classes: int, *, seed: int = 0, dtype=None):
        return ConformerModel(self, num_classes, seed, dtype=dtype)

    def output_lengths(self, lengths):
        for _ in range(self.subsampling):
            lengths = padded_conv_output_frames(lengths, 2)
        return lengths

    def flops(
        self,
        num_features: int,
        num_classes: int,
        frames: int,
        *,
        training: bool,
    ) -> int:
        width = self.width
        of_first = 0
        total = 0
        channels = num_features

        for number in range(self.subsampling):
            frames = padded_conv_output_frames(frames, 2)
            total += frames * 3 * channels * width
            if number == 0:
                of_first = total

            channels = width

        # Multiplications of a frame in a block: two modules of two layers.
        feed_forward = 2 * 2 * width * _EXPANSION * width
        # Four projections, then scores and weighted sums over all frames.
        attention = 4 * width * width + 2 * frames * width
        convolution = 3 * width * width + self.conv_kernel * width
        total += frames * self.num_blocks * (feed_forward + attention + convolution)
        total += frames * (channels * width + width * num_classes)

        # The backward pass costs twice as much, except for the features, which need no
        # gradient.
        return 2 * (3 * total - of_first if training else total)

    def smaller(self, units: int) -> "ConformerConfig":
        return dataclasses.replace(self, width=units, num_blocks=4)

    # Values stored per frame and block, counted from the layers above: the feed-forward
    # modules' inner values, some 40 of the width, and the attention's scores.
    def step_bytes(
        self,
        num_features: int,
        parameters: int,
        batch: int,
        frames: int,
    ) -> int:
        outputs = self.output_lengths(frames)
        a_frame = (6 * _EXPANSION + 40) * self.width + 5 * self.num_heads * outputs
        values = outputs * self.num_blocks * a_frame + 2 * frames * (
            num_features + 3 * self.width
        )
        return step_bytes(parameters, batch * values)


class ConformerModel(Network):
    """Strided convolutions, a projection, Conformer blocks, and a dense layer to classes.

    Padding is zero in the convolutions and ignored by the attention.
    """

    def __init__(
        self,
        config: ConformerConfig,
        num_classes: int,
        seed: int = 0,
        dtype=None,
    ):
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
                dtype=convolution_policy(policy),
                name=f"subsampling_{number}",
            )
            for number in range(config.subsampling)
        ]
        self.projection = keras.layers.Dense(
            config.width,
            kernel_initializer=glorot(90),
            dtype=policy,
            name="projection",
        )
        self.blocks = [
            ConformerBlock(
                config.width,
                config.num_heads,
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
        hidden = features
        lengths = feature_lengths
        valid = valid_frames(hidden, lengths)

        for layer in self.subsampling:
            # With one frame of padding on each side, half the frames remain, rounded
            # up.
            hidden = layer(widened(hidden, valid, 1, 1))
            lengths = padded_conv_output_frames(lengths, 2)
            valid = valid_frames(hidden, lengths)

        hidden = self.projection(hidden)
        outputs = [hidden + sinusoids(hidden)]
        for block in self.blocks:
            outputs.append(block(outputs[-1], valid, training=training))

        return outputs[1:] or outputs
