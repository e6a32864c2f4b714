"""A convolution and a stack of GRUs, in one direction or in both, against Keras 3 alone."""

from collections.abc import Iterator

import keras

from tfasr.config import config_class
from tfasr.models.footprint import step_bytes
from tfasr.models.recurrent_stack import RecurrentStack, RecurrentStackConfig


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

    kind = "gru"
    gates = 3
    model = property(lambda self: GruModel)

    def step_bytes(self, num_features: int, parameters: int, batch: int, frames: int) -> int:
        units = self.directions * self.gru_units
        # Gates, states and what Keras's loop keeps of each; the widest layer's work on top.
        a_frame = units * (24 * self.num_gru_layers + 24) + 8 * self.conv_filters
        a_frame += self.conv_kernel * num_features
        values = max(self.output_lengths(frames), 1) * a_frame + 2 * frames * num_features
        return step_bytes(parameters, batch * values)


class GruModel(RecurrentStack):
    """Conv1D, then GRU layers, then a dense layer to classes, see `RecurrentStack`."""

    model_name = "gru_model"

    def one_way(self, seeds: Iterator[int], **options) -> keras.layers.GRU:
        return keras.layers.GRU(
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            recurrent_initializer=keras.initializers.Orthogonal(seed=next(seeds)),
            **options,
        )
