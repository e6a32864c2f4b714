"""A recogniser's graph in ONNX, node by node: no loop, and every batch normalisation folded away.

A normalisation multiplies and shifts what the next layer multiplies by a matrix: its numbers go
into that matrix and that layer's bias.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tfasr.exporting.onnx_nodes import NodeWriter
from tfasr.exporting.recurrent_weights import RecurrentWeights, recurrent_weights
from tfasr.recognising.onnx_acoustics import FEATURES, LENGTHS, LOG_PROBS, NEXT

OUTPUT_LENGTHS = "output_lengths"


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

    def folded(self, kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns kernel ``(inputs, outputs)`` and bias of a layer that takes what came before."""
        return kernel * self.scale[:, None], bias + self.shift @ kernel


class GraphWriter(NodeWriter):
    """Collects the layers of a recogniser."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[tuple[str, int]] = []

    def convolution(self, layer: Any) -> str:
        """Adds a rectified convolution over time; returns ``(output frames, batch, filters)``."""
        kernel = np.asarray(layer.kernel.numpy()).transpose(2, 1, 0)
        inputs = [
            self.node("Transpose", [FEATURES], "features_by_channel", perm=[0, 2, 1]),
            self.weight("convolution_kernel", kernel),
            self.weight("convolution_bias", np.asarray(layer.bias.numpy())),
        ]
        strides = [layer.strides[0]]
        convolved = self.node("Conv", inputs, "convolved", strides=strides, pads=[0, 0])
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
    writer = GraphWriter()
    config = model.config
    writer.output_lengths(config.conv_kernel, config.conv_stride)
    hidden = writer.convolution(model.convolution)
    affines = [Affine.of(layer) for layer in model.normalisations]
    for number, layer in enumerate(model.recurrent):
        weights = recurrent_weights(layer)
        if affines:
            weights = weights.behind(affines[number].scale, affines[number].shift)
        hidden = writer.recurrent(number, hidden, weights)
    kernel, bias = (np.asarray(v.numpy(), np.float64) for v in model.classifier.weights)
    if affines:
        kernel, bias = affines[-1].folded(kernel, bias)
    writer.log_probs(hidden, kernel, bias)
    return writer.model(num_features, len(bias), metadata)
