"""A convolution and a stack of GRUs, in one direction or in both, against Keras 3 alone."""

import dataclasses
from collections.abc import Iterator

import keras

from tfasr.config import config_class
from tfasr.models.footprint import step_bytes
from tfasr.models.recurrent_stack import RecurrentStack, RecurrentStackConfig, check_sizes


@config_class
class GruModelConfig(RecurrentStackConfig):
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

    gates = 3
    num_layers = property(lambda self: self.num_gru_layers)
    units = property(lambda self: self.gru_units)

    def check(self) -> None:
        check_sizes(self, "num_gru_layers", "gru_units")

    def make(
        self, num_features: int, num_classes: int, *, seed: int = 0, dtype: str | None = None
    ) -> "GruModel":
        return GruModel(self, num_classes, seed, dtype=dtype)

    def smaller(self, units: int) -> "GruModelConfig":
        return dataclasses.replace(self, conv_filters=units, num_gru_layers=2, gru_units=units)

    def step_bytes(self, num_features: int, parameters: int, batch: int, frames: int) -> int:
        units = self.directions * self.gru_units
        # Gates, states and what Keras's loop keeps of each; the widest layer's work on top.
        a_frame = units * (24 * self.num_gru_layers + 24) + 8 * self.conv_filters
        a_frame += self.conv_kernel * num_features
        values = max(self.output_lengths(frames), 1) * a_frame + 2 * frames * num_features
        return step_bytes(parameters, batch * values)


class GruModel(RecurrentStack):
    """Conv1D, then GRU layers, then a dense layer to classes, see `RecurrentStack`.

    Args:
        config: sizes.
        num_classes: classes, the CTC blank last.
        seed: of the initial weights and of dropout.
        dtype: Keras's dtype policy of all layers but the last, which stays in float32.
    """

    def __init__(self, config: GruModelConfig, num_classes: int, seed: int = 0, dtype=None):
        super().__init__("gru_model", config, num_classes, seed, dtype)

    def one_way(self, number: int, seeds: Iterator[int], go_backwards: bool) -> keras.layers.GRU:
        return keras.layers.GRU(
            self.config.gru_units,
            return_sequences=True,
            go_backwards=go_backwards,
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            recurrent_initializer=keras.initializers.Orthogonal(seed=next(seeds)),
            dtype=self.dtype_policy,
            name=f"gru_{number}" + "_backward" * go_backwards,
        )
