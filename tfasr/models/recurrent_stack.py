"""A convolution and a stack of recurrent layers: all that LSTMs' and GRUs' models share."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras

from tfasr.config import require
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.dropout import Dropout
from tfasr.layers.geometry import conv_output_frames
from tfasr.layers.padding import valid_frames
from tfasr.models.flops import forward_flops, training_flops
from tfasr.models.footprint import least_parameters
from tfasr.models.network import Network, class_scores
from tfasr.models.stages import Stage


class RecurrentStackConfig:
    """What follows from the sizes of such a model; a config class has the fields of its own.

    Its fields are conv_filters, conv_kernel, conv_stride, num_KIND_layers, KIND_units,
    bidirectional, dropout and, optionally, batch_normalisation.

    Attributes:
        kind: of the recurrent layers, a part of their fields' names.
        gates: matrices that a recurrent layer has for its inputs, and as many for its states.
        model: the class of the model.
    """

    batch_normalisation: bool = True
    kind: str
    gates: int
    model: type["RecurrentStack"]

    @property
    def num_layers(self) -> int:
        """How many recurrent layers follow the convolution."""
        return getattr(self, f"num_{self.kind}_layers")

    @property
    def units(self) -> int:
        """Width of each recurrent layer, in each direction."""
        return getattr(self, f"{self.kind}_units")

    def check(self) -> None:
        for field in ("conv_filters", "conv_kernel", "conv_stride", f"{self.kind}_units"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(self.num_layers >= 0, self, f"num_{self.kind}_layers", "at least 0")
        require(0 <= self.dropout < 1, self, "dropout", "in 0..1, below 1")

    def make(
        self, num_features: int, num_classes: int, *, seed: int = 0, dtype: str | None = None
    ) -> "RecurrentStack":
        return self.model(self, num_classes, seed, dtype=dtype)

    def smaller(self, units: int) -> "RecurrentStackConfig":
        sizes = {f"num_{self.kind}_layers": 2, f"{self.kind}_units": units}
        return dataclasses.replace(self, conv_filters=units, **sizes)

    @property
    def directions(self) -> int:
        """Of the recurrence, 1 or 2."""
        return 2 if self.bidirectional else 1

    @property
    def can_stream(self) -> bool:
        return not self.bidirectional

    def output_lengths(self, lengths: Any) -> Any:
        return conv_output_frames(lengths, self.conv_kernel, self.conv_stride)

    def flops(self, num_features: int, num_classes: int, frames: int, *, training: bool) -> int:
        count = training_flops if training else forward_flops
        return count(self, num_features, num_classes, 1, frames)

    def least_parameters(self, num_features: int, num_classes: int) -> int:
        return least_parameters(self, num_features, num_classes)


class RecurrentStack(Network):
    """Conv1D, then recurrent layers, then a dense layer to classes.

    Padding must stand on the right. The convolution is valid, and forwards the recurrence comes to
    the padding last, so that it changes no valid output frame; backwards it is masked. Batch
    statistics leave it out.
    """

    model_name = ""  # for Keras

    def __init__(
        self,
        config: RecurrentStackConfig,
        num_classes: int,
        seed: int = 0,
        dtype: str | keras.DTypePolicy | None = None,
    ):
        super().__init__(self.model_name, config, dtype)
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
        self.recurrent = [self._recurrent(number, seeds) for number in range(config.num_layers)]
        blocks = range(config.num_layers + 1)
        self.normalisations = [
            BatchNormalization(dtype=self.dtype_policy, name=f"normalisation_{i}")
            for i in blocks
            if config.batch_normalisation
        ]
        self.dropouts = [
            Dropout(config.dropout, seed=next(seeds), dtype=self.dtype_policy, name=f"dropout_{i}")
            for i in blocks
        ]
        self.classifier = class_scores(num_classes, next(seeds))

    def one_way(self, seeds: Iterator[int], **options: Any) -> keras.layers.Layer:
        raise NotImplementedError(f"{type(self).__name__} must define one_way.")

    def _recurrent(self, number: int, seeds: Iterator[int]) -> keras.layers.Layer:
        # Backwards of its own: Keras's copy of the forward layer would draw the same weights.
        layers = [
            self.one_way(
                seeds,
                units=self.config.units,
                return_sequences=True,
                go_backwards=go_backwards,
                dtype=self.dtype_policy,
                name=f"{self.config.kind}_{number}" + "_backward" * go_backwards,
            )
            for go_backwards in (False, True)[: self.config.directions]
        ]
        if not self.config.bidirectional:
            return layers[0]
        return keras.layers.Bidirectional(
            layers[0],
            backward_layer=layers[1],
            dtype=self.dtype_policy,
            name=f"bidirectional_{number}",
        )

    def build(self, input_shape: Any = None) -> None:
        """Makes all weights for features of the shape ``(batch, frames, num_features)``."""
        self.convolution.build(input_shape)
        shape = (None, None, self.config.conv_filters)
        for block in range(len(self.dropouts)):
            if self.normalisations:
                self.normalisations[block].build(shape)
            if block < len(self.recurrent):
                self.recurrent[block].build(shape)
                shape = (None, None, self.config.directions * self.config.units)
        self.classifier.build(shape)
        self.built = True

    def encodings(self, features: Any, feature_lengths: Any, training: bool) -> list:
        hidden = self.convolution(features)
        valid = self._valid(hidden, feature_lengths)
        outputs = [self._finished(0, hidden, valid, training)]
        for number in range(len(self.recurrent)):
            outputs.append(self._recurred(number, outputs[-1], valid, training))
        return outputs[1:] or outputs

    def initial_state(self, batch: int) -> list:
        """Returns what the recurrence knows before any frame, see `tfasr.models.recogniser`."""
        sizes = [size for layer in self.recurrent for size in _state_sizes(layer)]
        return [keras.ops.zeros((batch, size)) for size in sizes]

    def continued(self, features: Any, state: list) -> tuple[Any, list]:
        """Computes the class scores of frames that follow others, see `tfasr.models.recogniser`."""
        hidden = self._finished(0, self.convolution(features), None, training=False)
        waiting, reached = list(state), []
        for number, layer in enumerate(self.recurrent):
            last = [waiting.pop(0) for _ in _state_sizes(layer)]
            # Keras's layers hand out the states behind their steps only if they were made to.
            _, hidden, states = layer.inner_loop(hidden, last, None, training=False)
            reached += states
            hidden = self._finished(number + 1, hidden, None, training=False)
        return self.classifier(hidden), reached

    def _valid(self, hidden, feature_lengths):
        """Returns booleans ``(batch, output frames)``: whether a frame belongs to its utterance."""
        return valid_frames(hidden, self.output_lengths(feature_lengths))

    def _recurred(self, number, hidden, valid, training):
        # Run backwards, a layer would begin in the padding: there it needs the mask.
        masked = {"mask": valid} if self.config.bidirectional else {}
        hidden = self.recurrent[number](hidden, training=training, **masked)
        return self._finished(number + 1, hidden, valid, training)

    def _finished(self, block, hidden, valid, training):
        dropout = self.dropouts[block]
        if not self.normalisations:
            return dropout(hidden, training=training)
        # Not as a mask: Keras would hand it on to every layer behind, the recurrent ones too.
        normalisation = self.normalisations[block]
        return normalisation(hidden, training=training, valid=valid, dropout=dropout)

    def stages(self) -> list[Stage]:
        def behind(block: int) -> list:
            return [*self.normalisations[block : block + 1], self.dropouts[block]]

        def front_end(features, lengths):
            hidden = self.convolution(features)
            return self._finished(0, hidden, self._valid(hidden, lengths), training=True)

        def recurrent(number: int):
            def forward(hidden, lengths):
                return self._recurred(number, hidden, self._valid(hidden, lengths), training=True)

            return forward

        stages = [Stage("front end", front_end, [self.convolution, *behind(0)])]
        width = self.config.conv_filters
        for number, layer in enumerate(self.recurrent):
            layers = [layer, *behind(number + 1)]
            stages.append(Stage(f"recurrent {number + 1}", recurrent(number), layers, width))
            width = self.config.directions * self.config.units
        head = Stage("head", lambda hidden, _: self.classifier(hidden), [self.classifier], width)
        return [*stages, head]


def _state_sizes(layer: Any) -> list[int]:
    return keras.tree.flatten(layer.cell.state_size)
