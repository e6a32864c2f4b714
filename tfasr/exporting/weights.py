"""Weights for ONNX and LiteRT graphs, with batch normalisation folded in.

In inference, batch normalisation multiplies and adds constants, so the layer before or
after it can do that. `FoldedStack.of` returns all weights of a recurrent model in this
form; the writers of graphs know nothing of Keras.
"""

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

# Index of each of ONNX's gates (LSTM i, o, f, c; GRU z, r, h) in Keras's (i, f, c, o;
# z, r, h).
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2)}
_STATES = {"LSTM": ("h", "c"), "GRU": ("h",)}  # their names in graphs
# Keras, like cuDNN, applies the reset gate after multiplying by the recurrent weights.
_ATTRIBUTES: dict[str, dict[str, int]] = {"LSTM": {}, "GRU": {"linear_before_reset": 1}}


@dataclass(frozen=True)
class RecurrentWeights:
    """A recurrent layer's weights, for one or both directions.

    Attributes:
        operator: ONNX's "LSTM" or "GRU".
        units: width of each direction.
        kernel: ``(directions, gates * units, inputs)``.
        recurrent_kernel: ``(directions, gates * units, units)``.
        bias: ``(directions, 2 * gates * units)``, of the inputs, then of the
            recurrence.

    Source: ONNX's LSTM-14, GRU-14.
    """

    operator: str
    units: int
    kernel: np.ndarray
    recurrent_kernel: np.ndarray
    bias: np.ndarray

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the recurrent states."""
        return _STATES[self.operator]

    @property
    def attributes(self) -> dict[str, int]:
        """Attributes of ONNX's operator that differ from its defaults."""
        return _ATTRIBUTES[self.operator]

    def behind(self, affine: "Affine") -> "RecurrentWeights":
        """Folds ``affine``, which comes before the layer, into the weights."""
        bias = self.bias.copy()
        # The inputs' half of the bias.
        bias[:, : self.kernel.shape[1]] += self.kernel @ affine.shift
        return replace(self, kernel=self.kernel * affine.scale, bias=bias)


def recurrent_weights(layer: Any) -> RecurrentWeights:
    """Returns the weights of a Keras LSTM or GRU, bidirectional or not.

    Raises:
        TypeError: for any other layer.
    """
    if isinstance(layer, keras.layers.Bidirectional):
        forward = recurrent_weights(layer.forward_layer)
        backward = recurrent_weights(layer.backward_layer)
        joined = np.concatenate
        return replace(
            forward,
            kernel=joined([forward.kernel, backward.kernel]),
            recurrent_kernel=joined(
                [forward.recurrent_kernel, backward.recurrent_kernel]
            ),
            bias=joined([forward.bias, backward.bias]),
        )

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
        """Returns the scale and shift of a batch normalisation layer, in float64."""
        mean, variance = (
            np.asarray(v.numpy()) for v in (layer.moving_mean, layer.moving_variance)
        )
        # In float64, so that folding adds no rounding.
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
        """Folds this into the next layer.

        Returns that layer's kernel ``(inputs, outputs)`` and bias.
        """
        return kernel * self.scale[:, None], bias + self.shift @ kernel


@dataclass(frozen=True)
class FoldedStack:
    """A built `RecurrentStack`'s weights, with its normalisations folded in.

    Attributes:
        kernel: of the convolution ``(frames, features, filters)``.
        bias: of the convolution ``(filters,)``, before its ReLU.
        stride: of the convolution, in frames.
        recurrent: of the recurrent layers.
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
        """Reads the weights of a model that has been built."""
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
