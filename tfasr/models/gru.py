"""A convolution and a stack of GRUs, in one direction or in both, against Keras 3 alone."""

import dataclasses

import keras

from tfasr.config import config_class, require
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.dropout import Dropout
from tfasr.layers.geometry import conv_output_frames
from tfasr.layers.padding import valid_frames
from tfasr.models.footprint import step_bytes


@config_class
class GruModelConfig:
    """Sizes of the model.

    Attributes:
        conv_filters: output channels of the convolution over frames.
        conv_kernel: feature frames that one output frame sees.
        conv_stride: feature frames from one output frame to the next.
        num_gru_layers: how many recurrent layers follow.
        gru_units: width of each, in each direction.
        bidirectional: whether each layer also runs backwards; the outputs are concatenated.
        dropout: share of activations dropped between layers in training.

    Source: Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder"; around the
    recurrence it is the paper's model, section 4.4.3.
    """

    conv_filters: int = 600
    conv_kernel: int = 11
    conv_stride: int = 2
    num_gru_layers: int = 5
    gru_units: int = 800
    bidirectional: bool = False
    dropout: float = 0.05

    def check(self) -> None:
        """Raises ValueError for sizes that make no model."""
        for field in ("conv_filters", "conv_kernel", "conv_stride", "gru_units"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(self.num_gru_layers >= 0, self, "num_gru_layers", "at least 0")
        require(0 <= self.dropout < 1, self, "dropout", "in 0..1, below 1")

    @property
    def directions(self) -> int:
        """Of the recurrence, 1 or 2."""
        return 2 if self.bidirectional else 1

    @property
    def can_stream(self) -> bool:
        """Whether logits never depend on later frames than the convolution's."""
        return not self.bidirectional

    def make(
        self, num_features: int, num_classes: int, *, seed: int = 0, dtype: str | None = None
    ) -> "GruModel":
        """Returns the model, see `tfasr.models.recogniser.RecogniserConfig`."""
        return GruModel(self, num_classes, seed, dtype=dtype)

    def output_lengths(self, lengths):
        """Returns the output frames of so many feature frames."""
        return conv_output_frames(lengths, self.conv_kernel, self.conv_stride)

    def flops(self, num_features: int, num_classes: int, frames: int, *, training: bool) -> int:
        """Returns the operations of an utterance's matrix products."""
        convolution = self.conv_kernel * num_features * self.conv_filters
        weights, width = convolution, self.conv_filters
        for _ in range(self.num_gru_layers):
            weights += self.directions * 3 * self.gru_units * (width + self.gru_units)
            width = self.directions * self.gru_units
        weights += width * num_classes
        outputs = 2 * self.output_lengths(frames)
        # Backward twice as much, but for the features, which need no gradient.
        return outputs * (3 * weights - convolution if training else weights)

    def smaller(self, units: int) -> "GruModelConfig":
        """Returns a small model of the same kind."""
        return dataclasses.replace(self, conv_filters=units, num_gru_layers=2, gru_units=units)

    def step_bytes(self, num_features: int, parameters: int, batch: int, frames: int) -> int:
        """Returns an estimate of the peak memory of a process that trains on such batches."""
        units = self.directions * self.gru_units
        # Gates, states and what Keras's loop keeps of each; the widest layer's work on top.
        a_frame = units * (24 * self.num_gru_layers + 24) + 8 * self.conv_filters
        a_frame += self.conv_kernel * num_features
        values = max(self.output_lengths(frames), 1) * a_frame + 2 * frames * num_features
        return step_bytes(parameters, batch * values)


class GruModel(keras.Model):
    """Conv1D, then GRU layers, then a dense layer to classes.

    Padding must stand on the right: forwards the recurrence comes to it last, and backwards it is
    masked; batch statistics leave it out.

    Args:
        config: sizes.
        num_classes: classes, the CTC blank last.
        seed: of the initial weights and of dropout.
        dtype: Keras's dtype policy of all layers but the last, which stays in float32.
    """

    def __init__(self, config: GruModelConfig, num_classes: int, seed: int = 0, dtype=None):
        super().__init__(name="gru_model", dtype=dtype)
        self.config = config
        policy, seeds = self.dtype_policy, iter(range(seed * 1000, seed * 1000 + 1000))
        self.convolution = keras.layers.Conv1D(
            config.conv_filters,
            config.conv_kernel,
            strides=config.conv_stride,
            activation="relu",
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            dtype=policy,
            name="convolution",
        )
        self.recurrent = [self._recurrent(i, seeds) for i in range(config.num_gru_layers)]
        blocks = range(config.num_gru_layers + 1)
        self.normalisations = [
            BatchNormalization(dtype=policy, name=f"normalisation_{i}") for i in blocks
        ]
        self.dropouts = [
            Dropout(config.dropout, seed=next(seeds), dtype=policy, name=f"dropout_{i}")
            for i in blocks
        ]
        # float32 even under mixed precision: the loss is computed from these.
        self.classifier = keras.layers.Dense(
            num_classes,
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            dtype="float32",
            name="classifier",
        )

    def _recurrent(self, number: int, seeds):
        forward = self._gru(f"gru_{number}", seeds)
        if not self.config.bidirectional:
            return forward
        return keras.layers.Bidirectional(
            forward,
            # Of its own: Keras's copy of the forward layer would draw the same initial weights.
            backward_layer=self._gru(f"gru_{number}_backward", seeds, go_backwards=True),
            dtype=self.dtype_policy,
            name=f"bidirectional_{number}",
        )

    def _gru(self, name: str, seeds, go_backwards: bool = False):
        return keras.layers.GRU(
            self.config.gru_units,
            return_sequences=True,
            go_backwards=go_backwards,
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            recurrent_initializer=keras.initializers.Orthogonal(seed=next(seeds)),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape=None):
        """Makes all weights for features of the shape ``(batch, frames, num_features)``."""
        self.convolution.build(input_shape)
        shape = (None, None, self.config.conv_filters)
        for block, normalisation in enumerate(self.normalisations):
            normalisation.build(shape)
            if block < len(self.recurrent):
                self.recurrent[block].build(shape)
                shape = (None, None, self.config.directions * self.config.gru_units)
        self.classifier.build(shape)
        self.built = True

    def call(self, features, lengths, training=False):
        """Computes class scores.

        Args:
            features: float ``(batch, frames, num_features)``, right-padded.
            lengths: int32 ``(batch,)``: valid frames.
            training: whether dropout and batch statistics are on.

        Returns:
            float32 logits ``(batch, output frames, classes)``.
        """
        hidden = self.convolution(features)
        valid = valid_frames(hidden, self.config.output_lengths(lengths))
        hidden = self._finished(0, hidden, valid, training)
        masked = {"mask": valid} if self.config.bidirectional else {}
        for number, layer in enumerate(self.recurrent):
            hidden = layer(hidden, training=training, **masked)
            hidden = self._finished(number + 1, hidden, valid, training)
        return self.classifier(hidden)

    def _finished(self, block, hidden, valid, training):
        # Not as a mask: Keras would hand it on to every layer behind.
        hidden = self.normalisations[block](hidden, training=training, valid=valid)
        return self.dropouts[block](hidden, training=training)
