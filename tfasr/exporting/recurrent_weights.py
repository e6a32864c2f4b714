"""Keras's recurrent weights in the order and shape that ONNX wants."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

# Where ONNX's gates stand among Keras's: i, o, f, c among i, f, c, o; z, r, h among z, r, h.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2)}
_STATES = {"LSTM": ("h", "c"), "GRU": ("h",)}
# Keras applies the reset gate behind the recurrent product, as cuDNN does.
_ATTRIBUTES: dict[str, dict[str, int]] = {"LSTM": {}, "GRU": {"linear_before_reset": 1}}


@dataclass(frozen=True)
class RecurrentWeights:
    """A recurrent layer's weights, for one direction or both.

    Attributes:
        operator: ONNX's, "LSTM" or "GRU".
        units: width of each direction.
        kernel: ``(directions, gates * units, inputs)``.
        recurrent_kernel: ``(directions, gates * units, units)``.
        bias: ``(directions, 2 * gates * units)``: of the inputs, then of the recurrence.

    Source: ONNX's operators LSTM-14 and GRU-14.
    """

    operator: str
    units: int
    kernel: np.ndarray
    recurrent_kernel: np.ndarray
    bias: np.ndarray

    @property
    def states(self) -> tuple[str, ...]:
        """The names of its states."""
        return _STATES[self.operator]

    @property
    def attributes(self) -> dict[str, int]:
        """Attributes of the node."""
        return _ATTRIBUTES[self.operator]

    def behind(self, scale: np.ndarray, shift: np.ndarray) -> "RecurrentWeights":
        """Returns weights that take inputs before they are scaled and shifted.

        Args:
            scale: of each input ``(inputs,)``.
            shift: of each input.
        """
        bias = self.bias.copy()
        bias[:, : self.kernel.shape[1]] += self.kernel @ shift
        return dataclasses.replace(self, kernel=self.kernel * scale, bias=bias)


def recurrent_weights(layer: Any) -> RecurrentWeights:
    """Returns the weights of a Keras LSTM or GRU, or of a bidirectional one.

    Raises:
        TypeError: for another layer.
    """
    if isinstance(layer, keras.layers.Bidirectional):
        pair = [recurrent_weights(one) for one in (layer.forward_layer, layer.backward_layer)]
        joined = {
            name: np.concatenate([getattr(one, name) for one in pair])
            for name in ("kernel", "recurrent_kernel", "bias")
        }
        return dataclasses.replace(pair[0], **joined)
    kinds = {keras.layers.LSTM: "LSTM", keras.layers.GRU: "GRU"}
    operator = next((name for kind, name in kinds.items() if isinstance(layer, kind)), None)
    if operator is None:
        raise TypeError(f"layer must be an LSTM or a GRU. Received: {layer!r}.")
    kernel, recurrent_kernel, bias = (np.asarray(v.numpy(), np.float64) for v in layer.weights[:3])
    gates = _GATES[operator]
    if bias.ndim == 1:  # Keras's LSTM has one bias for both products
        bias = np.stack([bias, np.zeros_like(bias)])
    return RecurrentWeights(
        operator,
        layer.units,
        _in_order(kernel, gates).T[None],
        _in_order(recurrent_kernel, gates).T[None],
        _in_order(bias, gates).reshape(1, -1),
    )


def _in_order(array: np.ndarray, gates: tuple[int, ...]) -> np.ndarray:
    """Returns an array ``(..., gates * units)`` with its gates in another order."""
    split = np.split(array, len(gates), axis=-1)
    return np.concatenate([split[gate] for gate in gates], axis=-1)
