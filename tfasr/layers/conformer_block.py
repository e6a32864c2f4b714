"""A block of the Conformer: half a feed-forward, attention, convolution, the other half."""

import math

import keras
import numpy as np

from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.dropout import Dropout
from tfasr.layers.padding import widened

_LONGEST_WAVE = 10_000
FAR_BELOW_ZERO = -1e9
_ATTENTION = ("queries", "keys", "values", "outputs")


def sinusoids(hidden):
    """Returns the positions of frames ``(1, time, width)``, to be added to ``hidden``.

    Args:
        hidden: ``(batch, time, width)``, of even width.

    Source: Vaswani et al. 2017, "Attention is all you need", section 3.5.
    """
    steps = keras.ops.arange(keras.ops.shape(hidden)[1], dtype="int32")
    rates = keras.ops.convert_to_tensor(wave_rates(hidden.shape[-1]))
    angles = keras.ops.cast(steps, "float32")[:, None] * rates[None, :]
    waves = keras.ops.concatenate([keras.ops.sin(angles), keras.ops.cos(angles)], axis=-1)
    return keras.ops.cast(waves, hidden.dtype)[None]


def wave_rates(width: int) -> np.ndarray:
    """Returns how fast the angles of `sinusoids` grow by frame, float32 ``(width / 2,)``."""
    half = width // 2
    falls = np.float32(-math.log(_LONGEST_WAVE) / max(half - 1, 1))
    return np.exp(np.arange(half, dtype=np.float32) * falls)


@keras.saving.register_keras_serializable(package="tfasr")
class ConformerBlock(keras.layers.Layer):
    """One block over ``(batch, time, width)``.

    Args:
        expansion: of the feed-forward modules, times the width.
        kernel: frames that the depthwise convolution sees.
        dropout: share of activations dropped in training at the end of each module.
        seed: of the weights and of dropout; the block uses 20 numbers from it on.

    Source: Gulati et al. 2020, section 2, Figures 1 to 4.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        expansion: int = 4,
        kernel: int = 32,
        dropout: float = 0.1,
        seed: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.sizes = {
            "width": width,
            "num_heads": num_heads,
            "expansion": expansion,
            "kernel": kernel,
            "dropout": dropout,
            "seed": seed,
        }
        self._seeds = iter(range(seed, seed + 20))
        self.norms = [
            keras.layers.LayerNormalization(dtype=self.dtype_policy, name=f"norm_{name}")
            for name in ("first", "attention", "convolution", "second", "last")
        ]
        self.dropouts = [
            Dropout(dropout, seed=next(self._seeds), dtype=self.dtype_policy, name=f"dropout_{n}")
            for n in range(4)
        ]
        self.feed_forwards = [
            (self._dense(expansion * width, f"{name}_in"), self._dense(width, f"{name}_out"))
            for name in ("first", "second")
        ]
        # Not Keras's attention, whose copies of a seeded initializer draw the same weights.
        self.attention = [self._dense(width, f"attention_{name}") for name in _ATTENTION]
        self.gated = self._dense(2 * width, "gated")
        self.depthwise = keras.layers.DepthwiseConv1D(
            kernel,
            depthwise_initializer=keras.initializers.GlorotUniform(next(self._seeds)),
            use_bias=False,
            dtype=self.dtype_policy,
            name="depthwise",
        )
        self.normalisation = BatchNormalization(dtype=self.dtype_policy, name="normalisation")
        self.pointwise = self._dense(width, "pointwise")

    def _dense(self, units: int, name: str):
        return keras.layers.Dense(
            units,
            kernel_initializer=keras.initializers.GlorotUniform(next(self._seeds)),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        """Makes the weights for inputs of the shape ``(batch, time, width)``."""
        width = self.sizes["width"]
        shape = (None, None, width)
        for layer in (*self.norms, self.gated, self.depthwise, self.normalisation, self.pointwise):
            layer.build(shape)
        for inner, outer in self.feed_forwards:
            inner.build(shape)
            outer.build((None, None, self.sizes["expansion"] * width))
        for layer in self.attention:
            layer.build(shape)
        self.built = True

    def call(self, inputs, valid, training=False):
        """Returns the block's outputs, of the same shape.

        Args:
            inputs: ``(batch, time, width)``.
            valid: booleans ``(batch, time)``: whether a frame belongs to its utterance.
            training: whether dropout and batch statistics are on.
        """
        first, attention, convolution, second, last = self.norms
        hidden = inputs + 0.5 * self._feed_forward(0, first(inputs), training)
        attended = self._attended(attention(hidden), valid)
        hidden = hidden + self.dropouts[1](attended, training=training)
        hidden = hidden + self._convolved(convolution(hidden), valid, training)
        return last(hidden + 0.5 * self._feed_forward(1, second(hidden), training))

    def _feed_forward(self, number, hidden, training):
        inner, outer = self.feed_forwards[number]
        hidden = outer(keras.ops.silu(inner(hidden)))
        return self.dropouts[3 * number](hidden, training=training)

    def _attended(self, hidden, valid):
        heads = self.sizes["num_heads"]
        batch, steps = keras.ops.shape(hidden)[:2]

        def split(layer):
            apart = keras.ops.reshape(layer(hidden), (batch, steps, heads, -1))
            return keras.ops.transpose(apart, (0, 2, 1, 3))

        queries, keys, values = map(split, self.attention[:3])
        scale = (self.sizes["width"] // heads) ** -0.5
        scores = keras.ops.matmul(queries * scale, keras.ops.transpose(keys, (0, 1, 3, 2)))
        # In float32, as a softmax over many frames needs it; padding gets no weight.
        scores = keras.ops.cast(scores, "float32")
        scores = keras.ops.where(valid[:, None, None, :], scores, FAR_BELOW_ZERO)
        weights = keras.ops.cast(keras.ops.softmax(scores, axis=-1), values.dtype)
        together = keras.ops.transpose(keras.ops.matmul(weights, values), (0, 2, 1, 3))
        width = self.sizes["width"]
        return self.attention[3](keras.ops.reshape(together, (batch, steps, width)))

    def _convolved(self, hidden, valid, training):
        values, gates = keras.ops.split(self.gated(hidden), 2, axis=-1)
        hidden = values * keras.ops.sigmoid(gates)
        reach = self.sizes["kernel"] - 1
        hidden = widened(hidden, valid, reach // 2, reach - reach // 2)
        hidden = self.normalisation(self.depthwise(hidden), training=training, valid=valid)
        hidden = self.pointwise(keras.ops.silu(hidden))
        return self.dropouts[2](hidden, training=training)

    def get_config(self):
        return {**super().get_config(), **self.sizes}
