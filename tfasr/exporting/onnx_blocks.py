"""What the graphs of the models that are no recurrent stack are made of.

Values are ``(batch, channels, frames)``, as ONNX convolves them, unless a method says otherwise.
"""

from typing import Any

import numpy as np
from onnx import TensorProto

from tfasr.exporting.onnx_graph import OUTPUT_LENGTHS, GraphWriter
from tfasr.recognising.onnx_acoustics import LENGTHS, LOG_PROBS

BY_FRAME = [0, 2, 1]
"""The permutation between ``(batch, channels, frames)`` and ``(batch, frames, channels)``."""


class BlockWriter(GraphWriter):
    """Collects layers; nodes and weights get numbers for names."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, int] = {}

    def _named(self, kind: str) -> str:
        number = self._numbers.get(kind, 0)
        self._numbers[kind] = number + 1
        return f"{kind.lower()}_{number}"

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one output, and returns that."""
        return self.node(kind, list(inputs), self._named(kind), **attributes)

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        """Adds a constant, and returns its name."""
        return self.weight(self._named("constant"), np.asarray(array, dtype))

    def strided_lengths(self, strides: list[int]) -> list[str]:
        """Adds the frames after each of some padded convolutions, rounded up.

        Returns:
            The names of the frames before each of them, and behind the last.
        """
        before = [LENGTHS]
        for number, stride in enumerate(strides, start=1):
            more = self.add("Add", before[-1], self.constant([stride - 1], np.int32))
            last = number == len(strides)
            name = OUTPUT_LENGTHS if last else self._named("lengths")
            before.append(self.node("Div", [more, self.constant([stride], np.int32)], name))
        if not strides:
            before.append(self.node("Identity", [LENGTHS], OUTPUT_LENGTHS))
        return before

    def valid(self, hidden: str, lengths: str, axis: int = 2) -> str:
        """Adds booleans ``(batch, frames)``: whether a frame belongs to its utterance.

        Args:
            hidden: what has the frames.
            lengths: int32 ``(batch,)``.
            axis: of the frames in `hidden`.
        """
        count = self.add("Shape", hidden, start=axis, end=axis + 1)
        frames = self.add("Squeeze", count)
        zero, one = (self.constant(number, np.int64) for number in (0, 1))
        number = self.add("Range", zero, frames, one)
        ends = self.add("Unsqueeze", lengths, self.constant([1], np.int64))
        return self.add("Less", number, self.add("Cast", ends, to=TensorProto.INT64))

    def mask(self, valid: str, axes: list[int]) -> str:
        """Adds 1 and 0 for booleans ``(batch, frames)``, with more axes of one element."""
        numbers = self.add("Cast", valid, to=TensorProto.FLOAT)
        return self.add("Unsqueeze", numbers, self.constant(axes, np.int64))

    def convolved(
        self,
        hidden: str,
        kernel: np.ndarray,
        bias: np.ndarray | None,
        pads: tuple[int, int],
        **attributes: Any,
    ) -> str:
        """Adds a convolution over frames.

        Args:
            hidden: its inputs.
            kernel: ``(outputs, inputs of a group, frames)``.
            bias: ``(outputs,)``; None for none.
            pads: frames of zeros before the first and behind the last.
            attributes: of ONNX's Conv: ``strides``, ``dilations``, ``group``.
        """
        weights = [self.constant(kernel)] + ([] if bias is None else [self.constant(bias)])
        return self.add("Conv", hidden, *weights, pads=list(pads), **attributes)

    def dense(self, hidden: str, kernel: np.ndarray, bias: np.ndarray | None) -> str:
        """Adds a dense layer over the last axis; its kernel is ``(inputs, outputs)``."""
        product = self.add("MatMul", hidden, self.constant(kernel))
        return product if bias is None else self.add("Add", product, self.constant(bias))

    def dense_layer(self, hidden: str, layer: Any) -> str:
        """Adds a Keras dense layer over the last axis."""
        return self.dense(hidden, *(np.asarray(v.numpy()) for v in layer.weights))

    def clipped(self, hidden: str, most: float) -> str:
        """Adds a rectifier that lets nothing above ``most`` through."""
        return self.add("Clip", hidden, self.constant(0.0), self.constant(most))

    def class_log_probs(self, hidden: str, classifier: Any) -> str:
        """Adds the last layer's log-probabilities, of ``(batch, frames, channels)``."""
        return self.node("LogSoftmax", [self.dense_layer(hidden, classifier)], LOG_PROBS, axis=-1)
