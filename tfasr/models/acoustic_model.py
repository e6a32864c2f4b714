"""The paper's acoustic model, written against Keras 3 alone."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import keras

from tfasr.config import config_class
from tfasr.layers.recurrent.lstm import LSTM
from tfasr.models.costs import ModuleCost, model_costs
from tfasr.models.footprint import estimated_step_bytes
from tfasr.models.recurrent_stack import RecurrentStack, RecurrentStackConfig

RECURRENT_INITIALIZERS = {
    "glorot_uniform": keras.initializers.GlorotUniform,
    "orthogonal": keras.initializers.Orthogonal,
}


@config_class
class AcousticModelConfig(RecurrentStackConfig):
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

    kind = "lstm"
    gates = 4
    model = property(lambda self: AcousticModel)

    def step_bytes(self, num_features: int, parameters: int, batch: int, frames: int) -> int:
        return estimated_step_bytes(self, num_features, parameters, batch, frames)

    def step_costs(self, **sizes: int) -> list[ModuleCost]:
        return model_costs(self, **sizes)

    def portable(self) -> "AcousticModelConfig":
        return dataclasses.replace(self, lstm_kernel="generic")


class AcousticModel(RecurrentStack):
    """Conv1D, then LSTM layers, then a dense layer to classes, see `RecurrentStack`."""

    model_name = "acoustic_model"

    def one_way(self, seeds: Iterator[int], **options) -> LSTM:
        recurrent_initializer = RECURRENT_INITIALIZERS[self.config.recurrent_initializer]
        return LSTM(
            kernel_initializer=keras.initializers.GlorotUniform(next(seeds)),
            recurrent_initializer=recurrent_initializer(seed=next(seeds)),
            kernel=self.config.lstm_kernel,
            **options,
        )

    @property
    def kernels(self) -> set[str]:
        layers = [getattr(layer, "forward_layer", layer) for layer in self.recurrent]
        return {layer.last_kernel for layer in layers if layer.last_kernel}
