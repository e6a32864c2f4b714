"""The Deep Speech 2 network of the DeepMark benchmark, in Keras 3.

The workload ``ds2`` of ``tfasr bench`` times it on random input, as DeepMark did, and
`tfasr train` can train it like any other model.
"""

import dataclasses
from typing import Literal

import keras

from tfasr.errors import UsageError
from tfasr.kit.config import MOST_LAYERS, config_class, require, require_within
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.clipped_rnn import BidirectionalClippedRNN
from tfasr.layers.fused_call import convolution_policy, valid_frames, widened
from tfasr.layers.geometry import conv_output_frames, padded_conv_output_frames
from tfasr.models.costs import step_bytes
from tfasr.models.recurrent import Stage, class_scores

# Frequency x time: kernels and strides of the two convolutions.
CONVOLUTIONS = (((5, 20), (2, 2)), ((5, 10), (1, 2)))
# DeepMark's frequency bins per frame, and its characters plus the blank.
NUM_BINS = 161
NUM_CLASSES = 29


@config_class
class DeepSpeech2Config:
    """Sizes of the network; the defaults are DeepMark's.

    Attributes:
        num_bins: per 10 ms frame; None: as many as features, or DeepMark's 161.
        conv_filters: channels of both convolutions.
        num_recurrent_layers: number of recurrent layers.
        units: of the fully connected and, in each direction, of each recurrent layer.
        num_classes: including the blank, the last; None: the alphabet's, or 29.
        clip: the largest output of a rectifier.
        recurrent_kernel: "generic" for Keras's loop, which exporters understand.

    Source: github.com/DeepMark/deepmark, issue 1 and torch/audio.
    """

    num_bins: int | None = None
    conv_filters: int = 32
    num_recurrent_layers: int = 7
    units: int = 1760
    num_classes: int | None = None
    clip: float = 20.0
    recurrent_kernel: Literal["auto", "generic"] = "auto"

    def check(self) -> None:
        for field in ("conv_filters", "units", "clip"):
            require(getattr(self, field) > 0, self, field, "positive")

        require(
            self.num_classes is None or self.num_classes > 0,
            self,
            "num_classes",
            "positive",
        )
        require_within(self, 0, num_recurrent_layers=MOST_LAYERS)
        bins = NUM_BINS if self.num_bins is None else self.num_bins
        require(
            frequency_bins(bins) > 0,
            self,
            "num_bins",
            "enough for two kernels of 5",
        )

    def make(self, num_features: int, num_classes: int, *, seed: int = 0, dtype=None):
        # A benchmark may fix sizes that data must then match.
        for field, expected in (
            ("num_bins", num_features),
            ("num_classes", num_classes),
        ):
            if getattr(self, field) not in (None, expected):
                raise UsageError(
                    f"DeepSpeech2Config.{field} must be {expected}, to match features and "
                    f"alphabet, or unset. Received: {getattr(self, field)}."
                )

        if frequency_bins(num_features) < 1:
            raise UsageError(
                "Deep Speech 2 convolves over the features of a frame, so FeatureConfig must have "
                f"enough for two kernels of 5. Received: {num_features} features per frame."
            )

        sized = dataclasses.replace(
            self,
            num_bins=num_features,
            num_classes=num_classes,
        )
        return DeepSpeech2(sized, seed, dtype=dtype)

    def output_lengths(self, lengths):
        return output_frames(lengths)

    def flops(
        self,
        num_features: int,
        num_classes: int,
        frames: int,
        *,
        training: bool,
    ) -> int:
        bins = num_features
        channels = 1
        of_convolutions = []

        for kernel, stride in CONVOLUTIONS:
            bins = conv_output_frames(bins, kernel[0], stride[0])
            frames = padded_conv_output_frames(frames, stride[1])
            weights = kernel[0] * kernel[1] * channels * self.conv_filters
            of_convolutions.append(2 * frames * bins * weights)
            channels = self.conv_filters

        # The input of the first recurrent layer, projected once for both
        # directions.
        width = bins * channels
        weights = 0
        for _ in range(self.num_recurrent_layers):
            weights += self.units * (width + 2 * self.units)
            width = self.units

        weights += self.units * (width + num_classes)
        forward = sum(of_convolutions) + 2 * frames * weights

        # The backward pass costs twice as much, except for the features, which need no
        # gradient.
        return 3 * forward - of_convolutions[0] if training else forward

    def step_bytes(
        self,
        num_features: int,
        parameters: int,
        batch: int,
        frames: int,
    ) -> int:
        bins = num_features
        values = 2 * frames * num_features
        for (kernel, _), (stride, time_stride) in CONVOLUTIONS:
            bins = conv_output_frames(bins, kernel, stride)
            frames = padded_conv_output_frames(frames, time_stride)
            # Padded, convolved, normalised and rectified values, and room for their
            # gradients.
            values += 8 * frames * bins * self.conv_filters

        values += frames * self.units * (12 * self.num_recurrent_layers + 12)

        return step_bytes(parameters, batch * values)

    def portable(self) -> "DeepSpeech2Config":
        return dataclasses.replace(self, recurrent_kernel="generic")


def frequency_bins(num_bins: int) -> int:
    """Returns how many bins remain after both convolutions; below 1 if there are too few."""
    for (kernel, _), (stride, _) in CONVOLUTIONS:
        num_bins = conv_output_frames(num_bins, kernel, stride)

    return num_bins


def output_frames(frames):
    """Returns the number of output frames; the convolutions pad in time."""
    for _, (_, stride) in CONVOLUTIONS:
        frames = padded_conv_output_frames(frames, stride)

    return frames


class DeepSpeech2(keras.Model):
    """Convolutions, bidirectional recurrent layers, a fully connected layer, class scores.

    Padding must be on the right. If ``lengths`` are passed, padded frames are zero
    before each convolution, left out of statistics and ignored by the recurrence. So an
    utterance's logits don't depend on its padding or, in inference, on the other
    utterances.
    """

    def __init__(self, config: DeepSpeech2Config, seed: int = 0, dtype=None):
        super().__init__(name="deep_speech_2", dtype=dtype)
        self.config = config
        self.num_bins = NUM_BINS if config.num_bins is None else config.num_bins
        self.num_classes = (
            NUM_CLASSES if config.num_classes is None else config.num_classes
        )
        policy = self.dtype_policy

        def glorot(number: int):
            return keras.initializers.GlorotUniform(100 * seed + number)

        self.convolutions = [
            keras.layers.Conv2D(
                config.conv_filters,
                kernel[::-1],
                stride[::-1],
                kernel_initializer=glorot(n),
                dtype=convolution_policy(policy),
                name=f"convolution_{n}",
            )
            for n, (kernel, stride) in enumerate(CONVOLUTIONS)
        ]
        self.normalisations = [
            BatchNormalization(dtype=policy, name=f"normalisation_{n}")
            for n in range(len(CONVOLUTIONS))
        ]
        self.recurrent = [
            BidirectionalClippedRNN(
                config.units,
                config.clip,
                seed=100 * seed + 10 + n,
                kernel=config.recurrent_kernel,
                dtype=policy,
                name=f"recurrent_{n}",
            )
            for n in range(config.num_recurrent_layers)
        ]
        self.fully_connected = keras.layers.Dense(
            config.units,
            use_bias=False,
            kernel_initializer=glorot(90),
            dtype=policy,
            name="fully_connected",
        )
        # Its offset serves as the dense layer's bias; the classifier's weights include
        # any scale.
        self.last_normalisation = BatchNormalization(
            scale=False,
            dtype=policy,
            name="last_normalisation",
        )
        self.classifier = class_scores(self.num_classes, 100 * seed + 91)

    @property
    def kernels(self) -> set[str]:
        """Names of the implementations that computed the recurrence so far."""
        used = (layer.forwards.last_kernel for layer in self.recurrent)
        return {kernel for kernel in used if kernel}

    def build(self, input_shape=None):
        config = self.config
        shape = (None, None, self.num_bins, 1)
        for layer, normalisation in zip(
            self.convolutions,
            self.normalisations,
            strict=True,
        ):
            layer.build(shape)
            shape = (None, None, None, config.conv_filters)
            normalisation.build((None, None, config.conv_filters))

        shape = (None, None, config.conv_filters * frequency_bins(self.num_bins))
        for layer in self.recurrent:
            layer.build(shape)
            shape = (None, None, config.units)

        self.fully_connected.build(shape)
        for layer in (self.last_normalisation, self.classifier):
            layer.build((None, None, config.units))

        self.built = True

    def call(self, spectrograms, lengths=None, training=False):
        """Returns float32 logits ``(batch, output frames, num_classes)``.

        ``spectrograms`` are ``(batch, frames, num_bins)``; ``lengths`` int32
        ``(batch,)``, their valid frames, or None for all.
        """
        hidden, valid = self._convolved(spectrograms, lengths, training)
        for layer in self.recurrent:
            hidden = layer(hidden, valid=valid, training=training)

        return self._head(hidden, valid, training)

    def _head(self, hidden, valid, training):
        """Computes the logits from the last recurrent layer's outputs."""
        hidden = self.fully_connected(hidden)
        hidden = self.last_normalisation(hidden, training=training, valid=valid)
        return self.classifier(self._rectified(hidden))

    def output_layer(self) -> keras.layers.Layer:
        return self.classifier

    def stages(self) -> list[Stage]:
        """Returns the parts whose time is measured one by one, see `Stage`."""

        def front_end(features, lengths):
            return self._convolved(features, lengths, training=True)[0]

        def recurrent(layer):
            def forward(hidden, lengths):
                valid = valid_frames(hidden, output_frames(lengths))
                return layer(hidden, valid=valid, training=True)

            return forward

        def head(hidden, lengths):
            valid = valid_frames(hidden, output_frames(lengths))
            return self._head(hidden, valid, training=True)

        stages = [
            Stage("front end", front_end, [*self.convolutions, *self.normalisations])
        ]
        width = self.config.conv_filters * frequency_bins(self.num_bins)
        for number, layer in enumerate(self.recurrent, start=1):
            stages.append(
                Stage(f"recurrent {number}", recurrent(layer), [layer], width)
            )
            width = self.config.units

        layers = [self.fully_connected, self.last_normalisation, self.classifier]

        return [*stages, Stage("head", head, layers, width)]

    def _convolved(self, spectrograms, lengths, training):
        """Returns the convolutions' outputs ``(batch, frames, width)`` and valid frames."""
        hidden = keras.ops.expand_dims(spectrograms, -1)
        valid = None if lengths is None else valid_frames(hidden, lengths)
        layers = zip(self.convolutions, self.normalisations, CONVOLUTIONS, strict=True)
        for layer, normalisation, ((_, kernel), (_, stride)) in layers:
            # Equals Keras's padding "same": of an even length, stride 2 skips the last
            # added frame.
            hidden = layer(widened(hidden, valid, (kernel - 1) // 2, kernel // 2))
            if valid is not None:
                lengths = padded_conv_output_frames(lengths, stride)
                valid = valid_frames(hidden, lengths)

            hidden = self._rectified(
                _normalised(normalisation, hidden, valid, training)
            )

        _, _, bins, channels = hidden.shape
        batch, frames = keras.ops.shape(hidden)[:2]

        return keras.ops.reshape(hidden, (batch, frames, bins * channels)), valid

    def _rectified(self, hidden):
        return keras.ops.clip(hidden, 0.0, self.config.clip)


def _normalised(normalisation, hidden, valid, training):
    """Normalises ``(batch, time, bins, channels)`` by statistics of valid frames."""
    _, _, bins, channels = hidden.shape
    batch, frames = keras.ops.shape(hidden)[:2]
    # Bins count as frames: they share a channel's mean and variance.
    rows = keras.ops.reshape(hidden, (batch, frames * bins, channels))
    valid = None if valid is None else keras.ops.repeat(valid, bins, axis=1)
    rows = normalisation(rows, training=training, valid=valid)

    return keras.ops.reshape(rows, (batch, frames, bins, channels))
