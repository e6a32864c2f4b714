"""The weights of a recurrent model as a graph wants them: every batch normalisation folded away.

A normalisation multiplies and shifts what the next layer multiplies by a matrix: its numbers go
into that matrix and that layer's bias.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfasr.exporting.recurrent_weights import RecurrentWeights, recurrent_weights


@dataclass(frozen=True)
class Affine:
    """What a batch normalisation does in inference: ``inputs * scale + shift``."""

    scale: np.ndarray
    shift: np.ndarray

    @classmethod
    def of(cls, layer: Any) -> "Affine":
        """Returns a Keras batch normalisation's numbers."""
        mean, variance = (np.asarray(v.numpy()) for v in (layer.moving_mean, layer.moving_variance))
        scale = 1 / np.sqrt(variance.astype(np.float64) + layer.epsilon)
        shift = -mean * scale
        if layer.scale:
            gamma = np.asarray(layer.gamma.numpy())
            scale, shift = scale * gamma, shift * gamma
        if layer.center:
            shift = shift + np.asarray(layer.beta.numpy())
        return cls(scale, shift)

    def before(self, kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns kernel ``(inputs, outputs)`` and bias of a layer that takes what came before."""
        return kernel * self.scale[:, None], bias + self.shift @ kernel

    def behind(self, kernel: np.ndarray, bias: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Returns kernel ``(..., outputs)`` and bias of a layer that it normalises."""
        return kernel * self.scale, bias * self.scale + self.shift


@dataclass(frozen=True)
class FoldedStack:
    """A convolution, recurrent layers and a dense layer, without the normalisations between them.

    Attributes:
        kernel: of the convolution ``(frames, features, filters)``.
        bias: of the convolution ``(filters,)``; behind it is a rectifier.
        stride: of the convolution, in frames.
        recurrent: the layers.
        classifier_kernel: ``(units, classes)``.
        classifier_bias: ``(classes,)``.
    """

    kernel: np.ndarray
    bias: np.ndarray
    stride: int
    recurrent: list[RecurrentWeights]
    classifier_kernel: np.ndarray
    classifier_bias: np.ndarray

    @classmethod
    def of(cls, model: Any) -> "FoldedStack":
        """Returns the weights of a built `tfasr.models.recurrent_stack.RecurrentStack`."""
        affines = [Affine.of(layer) for layer in model.normalisations]
        recurrent = [recurrent_weights(layer) for layer in model.recurrent]
        classifier = [np.asarray(v.numpy(), np.float64) for v in model.classifier.weights]
        if affines:
            recurrent = [
                weights.behind(affine.scale, affine.shift)
                for weights, affine in zip(recurrent, affines[:-1], strict=True)
            ]
            classifier = list(affines[-1].before(*classifier))
        kernel, bias = (np.asarray(v.numpy()) for v in model.convolution.weights)
        return cls(kernel, bias, model.convolution.strides[0], recurrent, *classifier)
