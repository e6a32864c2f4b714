"""Weights for ONNX and LiteRT graphs, with batch normalisation folded into neighbouring
layers.
"""

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

# Index of each of ONNX's gates (LSTM i, o, f, c; GRU z, r, h) in Keras's (i, f, c, o;
# z, r, h).
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2)}
_STATES = {"LSTM": ("h", "c"), "GRU": ("h",)}
# Keras, like cuDNN, applies the reset gate after multiplying by the recurrent weights.
_ATTRIBUTES: dict[str, dict[str, int]] = {"LSTM": {}, "GRU": {"linear_before_reset": 1}}


@dataclass(frozen=True)
class RecurrentWeights:
    """A recurrent layer's weights, for one or both directions.

    Source: ONNX's LSTM-14, GRU-14.
    """

    operator: str  # ONNX's "LSTM" or "GRU"
    units: int  # width of each direction
    kernel: np.ndarray  # (directions, gates * units, inputs)
    recurrent_kernel: np.ndarray  # (directions, gates * units, units)
    # (directions, 2 * gates * units): bias of the inputs, then of the recurrence
    bias: np.ndarray

    @property
    def states(self) -> tuple[str, ...]:
        return _STATES[self.operator]

    @property
    def attributes(self) -> dict[str, int]:
        return _ATTRIBUTES[self.operator]

    def behind(self, affine: "Affine") -> "RecurrentWeights":
        """Folds ``affine``, which comes before the layer, into the weights."""
        bias = self.bias.copy()
        bias[:, : self.kernel.shape[1]] += self.kernel @ affine.shift
        return replace(self, kernel=self.kernel * affine.scale, bias=bias)


def recurrent_weights(layer: Any) -> RecurrentWeights:
    """Returns the weights of a Keras LSTM or GRU, bidirectional or not; TypeError for
    others.
    """
    if isinstance(layer, keras.layers.Bidirectional):
        pair = [
            recurrent_weights(way)
            for way in (layer.forward_layer, layer.backward_layer)
        ]
        names = ("kernel", "recurrent_kernel", "bias")
        joined = {
            name: np.concatenate([getattr(way, name) for way in pair]) for name in names
        }
        return replace(pair[0], **joined)

    kinds = {keras.layers.LSTM: "LSTM", keras.layers.GRU: "GRU"}
    operator = next(
        (name for kind, name in kinds.items() if isinstance(layer, kind)), None
    )
    if operator is None:
        raise TypeError(f"layer must be an LSTM or a GRU. Received: {layer!r}.")

    kernel, recurrent_kernel, bias = (
        np.asarray(v.numpy(), np.float64) for v in layer.weights[:3]
    )
    gates = _GATES[operator]
    if bias.ndim == 1:  # Keras's LSTM has one bias for inputs and recurrence
        bias = np.stack([bias, np.zeros_like(bias)])

    kernels = (_in_order(array, gates).T[None] for array in (kernel, recurrent_kernel))
    bias = _in_order(bias, gates).reshape(1, -1)

    return RecurrentWeights(operator, layer.units, *kernels, bias)


def _in_order(array: np.ndarray, gates: tuple[int, ...]) -> np.ndarray:
    """Reorders the gates of an array ``(..., gates * units)``."""
    split = np.split(array, len(gates), axis=-1)
    return np.concatenate([split[gate] for gate in gates], axis=-1)


@dataclass(frozen=True)
class Affine:
    """What batch normalisation computes in inference: ``inputs * scale + shift``."""

    scale: np.ndarray
    shift: np.ndarray

    @classmethod
    def of(cls, layer: Any) -> "Affine":
        mean, variance = (
            np.asarray(v.numpy()) for v in (layer.moving_mean, layer.moving_variance)
        )
        scale = 1 / np.sqrt(variance.astype(np.float64) + layer.epsilon)
        shift = -mean * scale
        if layer.scale:
            gamma = np.asarray(layer.gamma.numpy())
            scale = scale * gamma
            shift = shift * gamma

        if layer.center:
            shift = shift + np.asarray(layer.beta.numpy())

        return cls(scale, shift)

    def before(
        self,
        kernel: np.ndarray,
        bias: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Folds this into the next layer; returns its kernel ``(inputs, outputs)`` and
        bias.
        """
        return kernel * self.scale[:, None], bias + self.shift @ kernel


@dataclass(frozen=True)
class FoldedStack:
    """A built `RecurrentStack`'s weights, with its normalisations folded in."""

    kernel: np.ndarray  # of the convolution (frames, features, filters)
    bias: np.ndarray  # of the convolution (filters,), before its ReLU
    stride: int  # of the convolution, in frames
    recurrent: list[RecurrentWeights]
    classifier_kernel: np.ndarray  # (units, classes)
    classifier_bias: np.ndarray  # (classes,)

    @classmethod
    def of(cls, model: Any) -> "FoldedStack":
        affines = [Affine.of(layer) for layer in model.normalisations]
        recurrent = [recurrent_weights(layer) for layer in model.recurrent]
        classifier = [
            np.asarray(v.numpy(), np.float64) for v in model.classifier.weights
        ]
        if affines:
            pairs = zip(recurrent, affines[:-1], strict=True)
            recurrent = [weights.behind(affine) for weights, affine in pairs]
            classifier = list(affines[-1].before(*classifier))

        kernel, bias = (np.asarray(v.numpy()) for v in model.convolution.weights)

        return cls(kernel, bias, model.convolution.strides[0], recurrent, *classifier)
