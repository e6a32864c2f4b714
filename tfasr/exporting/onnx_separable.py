"""The graph of the separable convolutions in ONNX."""

from typing import Any

import numpy as np

from tfasr.exporting.folded import Affine
from tfasr.exporting.onnx_blocks import BY_FRAME, BlockWriter
from tfasr.exporting.onnx_graph import OUTPUT_LENGTHS
from tfasr.recognising.onnx_acoustics import FEATURES


def separable_graph(model: Any, num_features: int, metadata: dict[str, str]) -> bytes:
    """Returns the graph of a `tfasr.models.separable_conv.SeparableConvModel`.

    Args:
        model: built.
        num_features: features per frame.
        metadata: key and value pairs that the file carries.
    """
    writer = BlockWriter()
    before, _ = writer.strided_lengths([model.config.stride])
    hidden = writer.add("Transpose", FEATURES, perm=BY_FRAME)
    mask = writer.mask(writer.valid(hidden, before), [1])
    hidden = writer.add("Relu", _normalised(writer, model.first, hidden, mask))
    mask = writer.mask(writer.valid(hidden, OUTPUT_LENGTHS), [1])
    for block, shortcut in zip(model.blocks, model.shortcuts, strict=True):
        straight = _normalised(writer, shortcut, hidden, mask)
        for number, layer in enumerate(block, start=1):
            hidden = _normalised(writer, layer, hidden, mask)
            if number == len(block):
                hidden = writer.add("Add", hidden, straight)
            hidden = writer.add("Relu", hidden)
    for layer in model.last:
        hidden = writer.add("Relu", _normalised(writer, layer, hidden, mask))
    writer.class_log_probs(writer.add("Transpose", hidden, perm=BY_FRAME), model.classifier)
    return writer.model(num_features, model.classifier.units, metadata)


def _normalised(writer: BlockWriter, layer: Any, hidden: str, mask: str) -> str:
    """Adds a `tfasr.models.separable_conv.NormalisedConv` without its rectifier."""
    convolution = layer.convolution
    pointwise = np.asarray(convolution.weights[-1].numpy(), np.float64)
    if len(convolution.weights) == 2:  # a separable convolution; the other kind is a dense layer
        depthwise = np.asarray(convolution.weights[0].numpy())
        hidden = writer.convolved(
            writer.add("Mul", hidden, mask),
            depthwise.transpose(1, 2, 0),
            None,
            layer.around,
            strides=list(convolution.strides),
            dilations=list(convolution.dilation_rate),
            group=depthwise.shape[1],
        )
        pointwise = pointwise[0]
    kernel, bias = Affine.of(layer.normalisation).behind(pointwise)
    return writer.convolved(hidden, kernel.T[:, :, None], bias, (0, 0))
