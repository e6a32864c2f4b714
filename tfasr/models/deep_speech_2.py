"""The Deep Speech 2 network of the DeepMark benchmark, written against Keras 3 alone."""

import keras

from tfasr.config import config_class, require
from tfasr.layers.geometry import conv_output_frames
from tfasr.layers.recurrent.clipped_rnn import BidirectionalClippedRNN

# Frequency x time: kernels and strides of the two convolutions.
CONVOLUTIONS = (((5, 20), (2, 2)), ((5, 10), (1, 2)))


@config_class
class DeepSpeech2Config:
    """Sizes of the network; the defaults are DeepMark's.

    Attributes:
        num_bins: frequency bins of a frame of 10 ms.
        conv_filters: channels of both convolutions.
        num_recurrent_layers: bidirectional recurrent layers.
        units: width of each of them, and of the fully connected layer.
        num_classes: outputs, the CTC blank among them, as the last.
        clip: the largest value that a rectifier lets through.

    Source: github.com/DeepMark/deepmark, issue 1 and torch/audio.
    """

    num_bins: int = 161
    conv_filters: int = 32
    num_recurrent_layers: int = 7
    units: int = 1760
    num_classes: int = 29
    clip: float = 20.0

    def check(self) -> None:
        """Raises ValueError for sizes that make no network."""
        for field in ("conv_filters", "units", "num_classes", "clip"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(self.num_recurrent_layers >= 0, self, "num_recurrent_layers", "at least 0")
        require(frequency_bins(self.num_bins) > 0, self, "num_bins", "enough for two kernels of 5")


def frequency_bins(num_bins: int) -> int:
    """Returns the frequency bins after both convolutions, which are valid in frequency."""
    for (kernel, _), (stride, _) in CONVOLUTIONS:
        num_bins = conv_output_frames(num_bins, kernel, stride)
    return num_bins


def output_frames(frames):
    """Returns the output frames of so many input frames: the convolutions are same in time."""
    for _, (_, stride) in CONVOLUTIONS:
        frames = -(-frames // stride)
    return frames


class DeepSpeech2(keras.Model):
    """Two convolutions, bidirectional recurrent layers, a fully connected layer, class scores.

    All utterances of a batch must be of one length.

    Args:
        config: sizes.
        seed: of the initial weights.
        dtype: Keras's dtype policy of all layers but the last, which stays in float32.
    """

    def __init__(self, config: DeepSpeech2Config, seed: int = 0, dtype=None):
        super().__init__(name="deep_speech_2", dtype=dtype)
        self.config = config
        policy = self.dtype_policy
        self.convolutions = [
            keras.layers.Conv2D(
                config.conv_filters,
                kernel[::-1],
                strides=stride[::-1],
                padding="valid",
                kernel_initializer=keras.initializers.GlorotUniform(100 * seed + number),
                dtype=policy,
                name=f"convolution_{number}",
            )
            for number, (kernel, stride) in enumerate(CONVOLUTIONS)
        ]
        self.normalisations = [
            keras.layers.BatchNormalization(dtype=policy, name=f"normalisation_{number}")
            for number in range(len(CONVOLUTIONS))
        ]
        self.recurrent = [
            BidirectionalClippedRNN(
                config.units,
                config.clip,
                seed=100 * seed + 10 + number,
                dtype=policy,
                name=f"recurrent_{number}",
            )
            for number in range(config.num_recurrent_layers)
        ]
        self.fully_connected, self.classifier = (
            keras.layers.Dense(
                width,
                kernel_initializer=keras.initializers.GlorotUniform(100 * seed + 90 + number),
                dtype=dtype_,
                name=name,
            )
            for number, (width, dtype_, name) in enumerate(
                [
                    (config.units, policy, "fully_connected"),
                    # float32 even under mixed precision: the loss is computed from these.
                    (config.num_classes, "float32", "classifier"),
                ]
            )
        )

    def build(self, input_shape=None):
        """Makes all weights for spectrograms of the shape ``(batch, frames, num_bins)``."""
        config = self.config
        shape = (None, None, config.num_bins, 1)
        for layer, normalisation in zip(self.convolutions, self.normalisations, strict=True):
            layer.build(shape)
            shape = (None, None, None, config.conv_filters)
            normalisation.build(shape)
        shape = (None, None, config.conv_filters * frequency_bins(config.num_bins))
        for layer in self.recurrent:
            layer.build(shape)
            shape = (None, None, config.units)
        self.fully_connected.build(shape)
        self.classifier.build((None, None, config.units))
        self.built = True

    def call(self, spectrograms, training=False):
        """Computes class scores.

        Args:
            spectrograms: float ``(batch, frames, num_bins)``.
            training: whether batches are normalised by their own statistics.

        Returns:
            float32 logits ``(batch, output frames, num_classes)``; see `output_frames`.
        """
        hidden = keras.ops.expand_dims(spectrograms, -1)
        layers = zip(self.convolutions, self.normalisations, CONVOLUTIONS, strict=True)
        for layer, normalisation, ((_, kernel), _) in layers:
            # With stride 2 this is Keras's "same" in time, for odd and even lengths.
            around = ((0, 0), ((kernel - 1) // 2, kernel // 2), (0, 0), (0, 0))
            hidden = normalisation(layer(keras.ops.pad(hidden, around)), training=training)
            hidden = self._rectified(hidden)
        _, _, bins, channels = hidden.shape
        batch, frames = keras.ops.shape(hidden)[:2]
        hidden = keras.ops.reshape(hidden, (batch, frames, bins * channels))
        for layer in self.recurrent:
            hidden = layer(hidden, training=training)
        return self.classifier(self._rectified(self.fully_connected(hidden)))

    def _rectified(self, hidden):
        return keras.ops.clip(hidden, 0.0, self.config.clip)
