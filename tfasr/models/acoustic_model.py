"""The paper's acoustic model, written against Keras 3 alone."""

import dataclasses
from typing import Any, Literal

import keras

from tfasr.config import config_class, require
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.dropout import Dropout
from tfasr.layers.geometry import conv_output_frames
from tfasr.layers.recurrent.lstm import LSTM
from tfasr.models.costs import ModuleCost, model_costs
from tfasr.models.flops import forward_flops, training_flops
from tfasr.models.footprint import estimated_step_bytes, least_parameters
from tfasr.models.stages import Stage

RECURRENT_INITIALIZERS = {
    "glorot_uniform": keras.initializers.GlorotUniform,
    "orthogonal": keras.initializers.Orthogonal,
}


@config_class
class AcousticModelConfig:
    """Sizes of the acoustic model.

    Attributes:
        conv_filters: output channels of the convolution over frames.
        conv_kernel: feature frames that one output frame sees.
        conv_stride: feature frames from one output frame to the next.
        num_lstm_layers: how many recurrent layers follow.
        lstm_units: width of each, in each direction.
        bidirectional: whether each layer also runs backwards; the outputs are concatenated.
        dropout: share of activations dropped between layers in training.
        batch_normalisation: whether layers are batch-normalised, padded frames left out.
        recurrent_initializer: of the LSTMs' recurrent weights; all others are Glorot uniform.
        lstm_kernel: demands an implementation, see `tfasr.layers.recurrent.lstm.LSTM`.

    Source: the paper, section 4.4.3; that the convolution's activation is a rectifier is the
    library's choice, the paper names none.
    """

    conv_filters: int = 600
    conv_kernel: int = 11
    conv_stride: int = 2
    num_lstm_layers: int = 5
    lstm_units: int = 800
    bidirectional: bool = False
    dropout: float = 0.05
    batch_normalisation: bool = True
    recurrent_initializer: Literal["glorot_uniform", "orthogonal"] = "glorot_uniform"
    lstm_kernel: Literal["auto", "fused", "cudnn", "generic"] = "auto"

    def check(self) -> None:
        """Raises ValueError for sizes that make no model."""
        for field in ("conv_filters", "conv_kernel", "conv_stride", "lstm_units"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(self.num_lstm_layers >= 0, self, "num_lstm_layers", "at least 0")
        require(0 <= self.dropout < 1, self, "dropout", "in 0..1, below 1")

    def make(
        self, num_features: int, num_classes: int, *, seed: int = 0, dtype: str | None = None
    ) -> "AcousticModel":
        """Returns the model, see `tfasr.models.recogniser.RecogniserConfig`."""
        return AcousticModel(self, num_classes, seed, dtype=dtype)

    def output_lengths(self, lengths):
        """Returns the number of output frames for numbers of feature frames."""
        return conv_output_frames(lengths, self.conv_kernel, self.conv_stride)

    def flops(self, num_features: int, num_classes: int, frames: int, *, training: bool) -> int:
        """Returns the operations of an utterance's matrix products."""
        count = training_flops if training else forward_flops
        return count(self, num_features, num_classes, 1, frames)

    def step_bytes(self, num_features: int, parameters: int, batch: int, frames: int) -> int:
        """Returns an estimate of the peak memory of a process that trains on such batches."""
        return estimated_step_bytes(self, num_features, parameters, batch, frames)

    def least_parameters(self, num_features: int, num_classes: int) -> int:
        """Returns about how many weights the model has, never more."""
        return least_parameters(self, num_features, num_classes)

    @property
    def can_stream(self) -> bool:
        """Whether logits never depend on later frames than the convolution's."""
        return not self.bidirectional

    def step_costs(self, **sizes: int) -> list[ModuleCost]:
        """Returns what each stage, the loss and the update compute and move in a step."""
        return model_costs(self, **sizes)

    def smaller(self, units: int) -> "AcousticModelConfig":
        """Returns a small model of the same kind, to see what does not grow with the size."""
        return dataclasses.replace(self, conv_filters=units, num_lstm_layers=2, lstm_units=units)

    def portable(self) -> "AcousticModelConfig":
        """Returns the same model with Keras's own LSTM loop, which exporters know."""
        return dataclasses.replace(self, lstm_kernel="generic")


class AcousticModel(keras.Model):
    """Conv1D, then LSTM layers, then a dense layer to classes.

    Padding must stand on the right: the convolution is valid and the recurrence runs forwards, so
    valid output frames never depend on padding; batch statistics leave it out by a mask.

    Args:
        config: sizes.
        num_classes: classes, the CTC blank last.
        seed: of the initial weights and of dropout.
        dtype: Keras's dtype policy of all layers but the last, which stays in float32.
    """

    def __init__(
        self,
        config: AcousticModelConfig,
        num_classes: int,
        seed: int = 0,
        dtype: str | keras.DTypePolicy | None = None,
    ):
        super().__init__(name="acoustic_model", dtype=dtype)
        self.config = config
        seeds = iter(range(seed * 1000, seed * 1000 + 1000))
        self.convolution = keras.layers.Conv1D(
            config.conv_filters,
            config.conv_kernel,
            strides=config.conv_stride,
            padding="valid",
            activation="relu",
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            dtype=self.dtype_policy,
            name="convolution",
        )
        self.recurrent = [self._recurrent(i, seeds) for i in range(config.num_lstm_layers)]
        blocks = range(config.num_lstm_layers + 1)
        self.normalisations = [
            BatchNormalization(dtype=self.dtype_policy, name=f"normalisation_{i}")
            for i in blocks
            if config.batch_normalisation
        ]
        self.dropouts = [
            Dropout(config.dropout, seed=next(seeds), dtype=self.dtype_policy, name=f"dropout_{i}")
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
        forward = self._lstm(f"lstm_{number}", seeds)
        if not self.config.bidirectional:
            return forward
        return keras.layers.Bidirectional(
            forward,
            # Of its own: Keras's copy of the forward layer would draw the same initial weights.
            backward_layer=self._lstm(f"lstm_{number}_backward", seeds, go_backwards=True),
            dtype=self.dtype_policy,
            name=f"bidirectional_{number}",
        )

    def _lstm(self, name: str, seeds, go_backwards: bool = False):
        return LSTM(
            self.config.lstm_units,
            return_sequences=True,
            go_backwards=go_backwards,
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            recurrent_initializer=RECURRENT_INITIALIZERS[self.config.recurrent_initializer](
                seed=next(seeds)
            ),
            kernel=self.config.lstm_kernel,
            dtype=self.dtype_policy,
            name=name,
        )

    @property
    def kernels(self) -> set[str]:
        """What computes the recurrence, see `recurrent.lstm.LSTM`; empty before any call."""
        layers = [getattr(layer, "forward_layer", layer) for layer in self.recurrent]
        return {layer.last_kernel for layer in layers if layer.last_kernel}

    def output_lengths(self, feature_lengths):
        """Returns the number of output frames for numbers of feature frames."""
        return self.config.output_lengths(feature_lengths)

    def build(self, input_shape=None):
        """Makes all weights for features of the shape ``(batch, frames, num_features)``."""
        self.convolution.build(input_shape)
        shape = (None, None, self.config.conv_filters)
        for block in range(len(self.dropouts)):
            if self.normalisations:
                self.normalisations[block].build(shape)
            if block < len(self.recurrent):
                self.recurrent[block].build(shape)
                directions = 2 if self.config.bidirectional else 1
                shape = (None, None, directions * self.config.lstm_units)
        self.classifier.build(shape)
        self.built = True

    def call(self, features: Any, feature_lengths: Any, training: bool = False) -> Any:
        """Computes class scores.

        Args:
            features: float ``(batch, frames, num_features)``, right-padded.
            feature_lengths: int32 ``(batch,)``: valid frames.
            training: whether dropout and batch statistics are on.

        Returns:
            float32 logits ``(batch, output frames, classes)``; see `output_lengths`.
        """
        hidden = self.convolution(features)
        valid = self._valid(hidden, feature_lengths)
        hidden = self._finished(0, hidden, valid, training)
        for number in range(len(self.recurrent)):
            hidden = self._recurred(number, hidden, valid, training)
            hidden = self._finished(number + 1, hidden, valid, training)
        return self.classifier(hidden)

    def _valid(self, hidden, feature_lengths):
        """Returns booleans ``(batch, output frames)``: whether a frame belongs to its utterance."""
        steps = keras.ops.arange(keras.ops.shape(hidden)[1], dtype="int32")
        return steps[None, :] < self.output_lengths(feature_lengths)[:, None]

    def _finished(self, block, hidden, valid, training):
        """Normalises and drops out what comes out of the convolution or a recurrent layer."""
        if self.normalisations:
            # Not as a mask: Keras would hand it on to every layer behind, the LSTMs too.
            hidden = self.normalisations[block](hidden, training=training, valid=valid)
        return self.dropouts[block](hidden, training=training)

    def _recurred(self, number, hidden, valid, training):
        # Run backwards, a layer would begin in the padding: there it needs the mask.
        masked = {"mask": valid} if self.config.bidirectional else {}
        return self.recurrent[number](hidden, training=training, **masked)

    def stages(self) -> list[Stage]:
        """Returns the front end, the recurrent blocks and the head, see `tfasr.models.stages`."""

        def behind(block: int) -> list:
            return [*self.normalisations[block : block + 1], self.dropouts[block]]

        def front_end(features, lengths):
            hidden = self.convolution(features)
            return self._finished(0, hidden, self._valid(hidden, lengths), training=True)

        def recurrent(number: int):
            def forward(hidden, lengths):
                valid = self._valid(hidden, lengths)
                hidden = self._recurred(number, hidden, valid, training=True)
                return self._finished(number + 1, hidden, valid, training=True)

            return forward

        stages = [Stage("front end", front_end, [self.convolution, *behind(0)])]
        width = self.config.conv_filters
        for number, layer in enumerate(self.recurrent):
            layers = [layer, *behind(number + 1)]
            stages.append(Stage(f"recurrent {number + 1}", recurrent(number), layers, width))
            width = self.config.lstm_units * (2 if self.config.bidirectional else 1)
        head = Stage("head", lambda hidden, _: self.classifier(hidden), [self.classifier], width)
        return [*stages, head]
