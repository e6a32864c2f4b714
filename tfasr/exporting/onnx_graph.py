"""A recogniser's graph in ONNX, node by node, without a loop."""

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tfasr.exporting.folded import FoldedStack
from tfasr.exporting.onnx_nodes import NodeWriter
from tfasr.exporting.recurrent_weights import RecurrentWeights
from tfasr.recognising.onnx_acoustics import FEATURES, LENGTHS, LOG_PROBS, NEXT

OUTPUT_LENGTHS = "output_lengths"


class GraphWriter(NodeWriter):
    """Collects the layers of a recogniser."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[tuple[str, int]] = []

    def convolution(self, kernel: np.ndarray, bias: np.ndarray, stride: int) -> str:
        """Adds a rectified convolution over time; returns ``(output frames, batch, filters)``.

        Args:
            kernel: ``(frames, features, filters)``.
            bias: ``(filters,)``.
            stride: in frames.
        """
        inputs = [
            self.node("Transpose", [FEATURES], "features_by_channel", perm=[0, 2, 1]),
            self.weight("convolution_kernel", kernel.transpose(2, 1, 0)),
            self.weight("convolution_bias", bias),
        ]
        convolved = self.node("Conv", inputs, "convolved", strides=[stride], pads=[0, 0])
        rectified = self.node("Relu", [convolved], "rectified")
        return self.node("Transpose", [rectified], "frames", perm=[2, 0, 1])

    def output_lengths(self, kernel: int, stride: int) -> str:
        """Adds ``(lengths - kernel) / stride + 1``, the valid output frames."""
        numbers = {"kernel": kernel, "stride": stride, "one": 1}
        for name, number in numbers.items():
            self.weight(name, np.array([number], np.int32))
        beyond = self.node("Sub", [LENGTHS, "kernel"], "frames_beyond_kernel")
        steps = self.node("Div", [beyond, "stride"], "strides_within")
        return self.node("Add", [steps, "one"], OUTPUT_LENGTHS)

    def recurrent(self, number: int, hidden: str, weights: RecurrentWeights) -> str:
        """Adds a recurrent layer, with states in and out where it runs forwards alone."""
        name = f"recurrent_{number}"
        inputs = [
            hidden,
            self.weight(f"{name}_w", weights.kernel),
            self.weight(f"{name}_r", weights.recurrent_kernel),
            self.weight(f"{name}_b", weights.bias),
            OUTPUT_LENGTHS,
        ]
        outputs = [f"{name}_outputs"]
        both = len(weights.kernel) == 2
        if not both:
            own = [f"{state}_{number}" for state in weights.states]
            self.states += [(state, weights.units) for state in own]
            inputs += own
            outputs += [NEXT + state for state in own]
        self.nodes.append(
            helper.make_node(
                weights.operator,
                inputs,
                outputs,
                name=name,
                hidden_size=weights.units,
                direction="bidirectional" if both else "forward",
                **weights.attributes,
            )
        )
        # From (frames, directions, batch, units) to (frames, batch, directions * units).
        beside = self.node("Transpose", outputs[:1], f"{name}_by_batch", perm=[0, 2, 1, 3])
        shape = self.weight(f"{name}_shape", np.array([0, 0, -1], np.int64))
        return self.node("Reshape", [beside, shape], f"{name}_hidden")

    def log_probs(self, hidden: str, kernel: np.ndarray, bias: np.ndarray) -> str:
        """Adds the dense layer to classes and the logarithm of their probabilities."""
        weights = [self.weight("classifier_kernel", kernel), self.weight("classifier_bias", bias)]
        product = self.node("MatMul", [hidden, weights[0]], "products")
        logits = self.node("Add", [product, weights[1]], "logits")
        by_batch = self.node("Transpose", [logits], "logits_by_batch", perm=[1, 0, 2])
        return self.node("LogSoftmax", [by_batch], LOG_PROBS, axis=-1)

    def model(self, num_features: int, num_classes: int, metadata: dict[str, str]) -> bytes:
        """Returns the whole graph, checked, as a file's content."""
        real = TensorProto.FLOAT
        inputs = [
            helper.make_tensor_value_info(FEATURES, real, ["batch", "frames", num_features]),
            helper.make_tensor_value_info(LENGTHS, TensorProto.INT32, ["batch"]),
        ]
        outputs = [
            helper.make_tensor_value_info(LOG_PROBS, real, ["batch", "output_frames", num_classes]),
            helper.make_tensor_value_info(OUTPUT_LENGTHS, TensorProto.INT32, ["batch"]),
        ]
        for name, units in self.states:
            shape = [1, "batch", units]
            inputs.append(helper.make_tensor_value_info(name, real, shape))
            outputs.append(helper.make_tensor_value_info(NEXT + name, real, shape))
        return self.file("recogniser", inputs, outputs, metadata)


def recurrent_graph(model: Any, num_features: int, metadata: dict[str, str]) -> bytes:
    """Returns the graph of a convolution, recurrent layers and a dense layer.

    Args:
        model: a built `AcousticModel` or `GruModel`.
        num_features: features per frame.
        metadata: key and value pairs that the file carries.
    """
    stack = FoldedStack.of(model)
    writer = GraphWriter()
    writer.output_lengths(len(stack.kernel), stack.stride)
    hidden = writer.convolution(stack.kernel, stack.bias, stack.stride)
    for number, weights in enumerate(stack.recurrent):
        hidden = writer.recurrent(number, hidden, weights)
    writer.log_probs(hidden, stack.classifier_kernel, stack.classifier_bias)
    return writer.model(num_features, len(stack.classifier_bias), metadata)
