"""Copies the weights of tfasr's model to the PyTorch twin."""

import keras
import numpy as np
import torch

from tfasr.models.recurrent import AcousticModel
from twin.torch_model import TorchTwin


def copy_to_torch(model: AcousticModel, twin: TorchTwin) -> None:
    """Copies weights and moving statistics of a built model to the twin.

    Keras stores kernels as ``(inputs, outputs)``, PyTorch the other way round; a
    convolution's are ``(width, inputs, outputs)`` and ``(outputs, inputs, width)``. The
    gates have the same order: Keras's input, forget, candidate, output are PyTorch's i,
    f, g, o.

    Raises:
        ValueError: if the two differ in a shape.
    """
    pairs = [
        (twin.convolution.weight, model.convolution.kernel),
        (twin.convolution.bias, model.convolution.bias),
        (twin.classifier.weight, model.classifier.kernel),
        (twin.classifier.bias, model.classifier.bias),
    ]
    ours = [item for layer in model.recurrent for item in _one_way(layer)]
    for theirs, layer in zip(twin.lstms(), ours, strict=True):
        pairs += [
            (theirs.weight_ih_l0, layer.cell.kernel),
            (theirs.weight_hh_l0, layer.cell.recurrent_kernel),
            (theirs.bias_ih_l0, layer.cell.bias),
        ]
        torch.nn.init.zeros_(theirs.bias_hh_l0)

    for theirs, ours in zip(twin.normalisations, model.normalisations, strict=True):
        pairs += [
            (theirs.weight, ours.gamma),
            (theirs.bias, ours.beta),
            (theirs.running_mean, ours.moving_mean),
            (theirs.running_var, ours.moving_variance),
        ]

    for parameter, variable in pairs:
        _assign(parameter, np.array(variable.value.numpy()).T)


def _one_way(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    if isinstance(layer, keras.layers.Bidirectional):
        return [layer.forward_layer, layer.backward_layer]

    return [layer]


def _assign(parameter: torch.Tensor, value: np.ndarray) -> None:
    if tuple(parameter.shape) != value.shape:
        raise ValueError(
            f"Twin and model must have the same sizes. Received: a weight of "
            f"{value.shape} for one of {tuple(parameter.shape)}."
        )

    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
