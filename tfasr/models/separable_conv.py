"""Blocks of separable convolutions over time, as in QuartzNet, in Keras 3.

One of the models in `tfasr.models.model.MODELS`: without recurrence, so that a GPU
computes all frames at the same time.
"""

import dataclasses

import keras

from tfasr.kit.config import MOST_LAYERS, config_class, require, require_within
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.fused_call import Dropout, convolution_policy, valid_frames, widened
from tfasr.layers.geometry import padded_conv_output_frames
from tfasr.models.costs import step_bytes
from tfasr.models.recurrent import Network, class_scores

# QuartzNet's, in feature frames, and of its last convolution, which sees every second
# frame.
_STRIDE = 2
_LAST_DILATION = 2


@config_class
class SeparableConvConfig:
    """Sizes of the model; the defaults are QuartzNet-5x5's.

    Source: Kriman et al. 2020, "QuartzNet: deep automatic speech recognition with 1D
    time-channel separable convolutions", Table 1.
    """

    # output channels per block; the first layer, before the blocks, has filters[0]
    filters: tuple[int, ...] = (256, 256, 512, 512, 512)
    kernels: tuple[int, ...] = (33, 39, 51, 63, 75)  # frames, per block
    repeats: int = 5  # separable convolutions per block
    first_kernel: int = 33  # frames that the first convolution sees
    # channels of the two layers after the blocks
    last_filters: tuple[int, int] = (512, 1024)
    # frames, for the first of these two layers; the second's kernel is 1
    last_kernel: int = 87
    dropout: float = 0.0  # share of activations dropped after each layer in training

    def check(self) -> None:
        for field in ("repeats", "first_kernel", "last_kernel"):
            require(getattr(self, field) > 0, self, field, "positive")

        require(
            len(self.kernels) == len(self.filters),
            self,
            "kernels",
            "as long as filters",
        )
        require(bool(self.filters), self, "filters", "one or more numbers")
        require_within(self, 1, repeats=MOST_LAYERS // len(self.filters))

        for field in ("filters", "kernels", "last_filters"):
            require(min(getattr(self, field)) > 0, self, field, "positive numbers")

        require(0 <= self.dropout < 1, self, "dropout", "in 0..1, below 1")

    @property
    def layers(self) -> list[tuple[int, int, int]]:
        """Input and output channels and kernel of separable convolutions but the first."""
        convolutions = []
        width = self.filters[0]

        for filters, kernel in zip(self.filters, self.kernels, strict=True):
            for _ in range(self.repeats):
                convolutions.append((width, filters, kernel))
                width = filters

        return [*convolutions, (width, self.last_filters[0], self.last_kernel)]

    def make(self, num_features: int, num_classes: int, *, seed: int = 0, dtype=None):
        return SeparableConvModel(self, num_classes, seed, dtype=dtype)

    def output_lengths(self, lengths):
        return padded_conv_output_frames(lengths, _STRIDE)

    def flops(
        self,
        num_features: int,
        num_classes: int,
        frames: int,
        *,
        training: bool,
    ) -> int:
        first = num_features * (self.first_kernel + self.filters[0])
        weights = first + self.last_filters[0] * self.last_filters[1]
        weights += self.last_filters[1] * num_classes
        weights += sum(into * (kernel + out) for into, out, kernel in self.layers)
        ins = (self.filters[0], *self.filters[:-1])
        weights += sum(into * out for into, out in zip(ins, self.filters, strict=True))
        outputs = 2 * self.output_lengths(frames)

        # The backward pass costs twice as much, except for the features, which need no
        # gradient.
        if training:
            weights = 3 * weights - first

        return outputs * weights

    def smaller(self, units: int) -> "SeparableConvConfig":
        filters = (units,) * len(self.filters)
        last = (units, 2 * units)
        return dataclasses.replace(self, filters=filters, repeats=1, last_filters=last)

    def step_bytes(
        self,
        num_features: int,
        parameters: int,
        batch: int,
        frames: int,
    ) -> int:
        widths = (
            sum(into + 7 * out for into, out, _ in self.layers)
            + 8 * self.last_filters[1]
        )
        values = self.output_lengths(frames) * widths + 4 * frames * num_features
        return step_bytes(parameters, batch * values)


class SeparableConvModel(Network):
    """A strided separable convolution, residual blocks, two more layers, and class scores.

    Padding is set to zero before each convolution, whatever it contained.
    """

    def __init__(
        self,
        config: SeparableConvConfig,
        num_classes: int,
        seed: int = 0,
        dtype=None,
    ):
        super().__init__("separable_conv", config, dtype)
        self._seeds = iter(range(seed * 1000, seed * 1000 + 1000))
        self.first = self._separable(config.filters[0], config.first_kernel, "first")
        self.blocks = [
            [
                self._separable(filters, kernel, f"block_{i}_{j}")
                for j in range(config.repeats)
            ]
            for i, (filters, kernel) in enumerate(
                zip(config.filters, config.kernels, strict=True)
            )
        ]
        self.shortcuts = [
            self._pointwise(filters, f"shortcut_{i}")
            for i, filters in enumerate(config.filters)
        ]
        filters, more_filters = config.last_filters
        self.last = [
            self._separable(filters, config.last_kernel, "last_0", _LAST_DILATION),
            self._pointwise(more_filters, "last_1"),
        ]
        self.classifier = class_scores(num_classes, next(self._seeds))

    def _separable(self, filters: int, kernel: int, name: str, dilation: int = 1):
        """Creates a separable convolution; the first one of the model is strided."""
        options = {"strides": _STRIDE if name == "first" else 1, **self._options}
        options["dtype"] = convolution_policy(self.dtype_policy)

        for part in ("depthwise", "pointwise"):
            initializer = keras.initializers.GlorotUniform(next(self._seeds))
            options[f"{part}_initializer"] = initializer

        layer = keras.layers.SeparableConv1D(
            filters,
            kernel,
            dilation_rate=dilation,
            **options,
        )

        return self._normalised(layer, (kernel - 1) * dilation, name)

    def _pointwise(self, filters: int, name: str):
        """Creates a convolution with kernel 1, which is a dense layer."""
        initializer = keras.initializers.GlorotUniform(next(self._seeds))
        layer = keras.layers.Dense(
            filters,
            kernel_initializer=initializer,
            **self._options,
        )
        return self._normalised(layer, 0, name)

    @property
    def _options(self) -> dict:
        return {"use_bias": False, "dtype": self.dtype_policy, "name": "convolution"}

    def _normalised(self, layer, reach: int, name: str) -> "NormalisedConv":
        """Adds normalisation, ReLU and dropout to a convolution."""
        return NormalisedConv(
            layer,
            reach,
            self.config.dropout,
            next(self._seeds),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape=None):
        shape = self.first.built_for(input_shape)
        for block, shortcut in zip(self.blocks, self.shortcuts, strict=True):
            shortcut.built_for(shape)
            for layer in block:
                shape = layer.built_for(shape)

        for layer in self.last:
            shape = layer.built_for(shape)

        self.classifier.build(shape)
        self.built = True

    def encode(self, features, feature_lengths, training):
        before = valid_frames(features, feature_lengths)
        strided = features[:, ::_STRIDE]
        valid = valid_frames(strided, self.output_lengths(feature_lengths))
        hidden = self.first(features, before, valid, training=training)

        for block, shortcut in zip(self.blocks, self.shortcuts, strict=True):
            # Around the whole block, added before its last ReLU.
            straight = shortcut(
                hidden,
                valid,
                valid,
                rectified=False,
                training=training,
            )
            for number, layer in enumerate(block, start=1):
                added = straight if number == len(block) else None
                hidden = layer(hidden, valid, valid, added, training=training)

        for layer in self.last:
            hidden = layer(hidden, valid, valid, training=training)

        return hidden


class NormalisedConv(keras.layers.Layer):
    """A convolution over ``reach + 1`` frames, then normalisation, ReLU and dropout."""

    def __init__(self, convolution, reach: int, rate: float, seed: int, **kwargs):
        super().__init__(**kwargs)
        self.convolution = convolution
        self.normalisation = BatchNormalization(
            dtype=self.dtype_policy,
            name="normalisation",
        )
        self.dropout = Dropout(rate, seed=seed, dtype=self.dtype_policy, name="dropout")
        self.around = (reach // 2, reach - reach // 2)

    def built_for(self, shape) -> tuple:
        """Builds the layers for a shape of inputs; returns the shape of their outputs."""
        self.convolution.build(shape)
        filters = getattr(self.convolution, "filters", None) or self.convolution.units
        self.normalisation.build((None, None, filters))
        self.built = True

        return (None, None, filters)

    def call(self, inputs, before, valid, added=None, rectified=True, training=False):
        """Returns ``(batch, time, filters)``.

        Args:
            inputs: ``(batch, time, channels)``.
            before: booleans ``(batch, time)``, False for padded inputs.
            valid: the same for outputs, which a stride makes fewer.
            added: a shortcut's outputs, added before the ReLU.
            rectified: whether the ReLU is applied.
            training: as in Keras.
        """
        inputs = widened(inputs, before, *self.around)
        hidden = self.normalisation(
            self.convolution(inputs),
            training=training,
            valid=valid,
        )
        if added is not None:
            hidden = hidden + added
        if rectified:
            hidden = keras.ops.relu(hidden)

        return self.dropout(hidden, training=training)
