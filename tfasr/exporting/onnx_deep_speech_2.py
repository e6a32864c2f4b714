"""The graph of Deep Speech 2 in ONNX."""

from typing import Any

import numpy as np

from tfasr.exporting.folded import Affine
from tfasr.exporting.onnx_blocks import BlockWriter
from tfasr.exporting.onnx_graph import OUTPUT_LENGTHS
from tfasr.recognising.onnx_acoustics import FEATURES

_BY_TIME = [2, 0, 3, 1]  # from (batch, channels, frames, bins)


def deep_speech_2_graph(model: Any, num_features: int, metadata: dict[str, str]) -> bytes:
    """Returns the graph of a `tfasr.models.deep_speech_2.DeepSpeech2`.

    Args:
        model: built.
        num_features: features per frame.
        metadata: key and value pairs that the file carries.
    """
    writer = BlockWriter()
    strides = [layer.strides[0] for layer in model.convolutions]
    lengths = writer.strided_lengths(strides)
    hidden = writer.add("Unsqueeze", FEATURES, writer.constant([1], np.int64))
    clip = model.config.clip
    for layer, normalisation, before in zip(
        model.convolutions, model.normalisations, lengths, strict=False
    ):
        mask = writer.mask(writer.valid(hidden, before), [1, 3])
        kernel, bias = (np.asarray(v.numpy(), np.float64) for v in layer.weights)
        kernel, bias = Affine.of(normalisation).behind(kernel, bias)
        frames = len(kernel)
        masked = writer.add("Mul", hidden, mask)
        hidden = writer.add(
            "Conv",
            masked,
            writer.constant(kernel.transpose(3, 2, 0, 1)),
            writer.constant(bias),
            pads=[(frames - 1) // 2, 0, frames // 2, 0],
            strides=list(layer.strides),
        )
        hidden = writer.clipped(hidden, clip)
    shape = writer.constant([0, 0, -1], np.int64)
    hidden = writer.add("Reshape", writer.add("Transpose", hidden, perm=_BY_TIME), shape)
    for layer in model.recurrent:
        hidden = _recurrent(writer, layer, hidden)
    hidden = writer.add("Transpose", hidden, perm=[1, 0, 2])
    kernel = np.asarray(model.fully_connected.kernel.numpy(), np.float64)
    hidden = writer.dense(hidden, *Affine.of(model.last_normalisation).behind(kernel))
    writer.class_log_probs(writer.clipped(hidden, clip), model.classifier)
    return writer.model(num_features, model.classifier.units, metadata)


def _recurrent(writer: BlockWriter, layer: Any, hidden: str) -> str:
    """Adds a `BidirectionalClippedRNN`; values are ``(frames, batch, channels)``."""
    projection = np.asarray(layer.projection.kernel.numpy(), np.float64)
    kernel, bias = Affine.of(layer.normalisation).behind(projection)
    cells = [layer.forwards.cell, layer.backwards.cell]
    none = np.zeros_like(bias)
    # Both directions take the same projection, which ONNX computes for each.
    outputs = writer.add(
        "RNN",
        hidden,
        writer.constant(np.stack([kernel.T, kernel.T])),
        writer.constant(np.stack([cell.recurrent_kernel.numpy().T for cell in cells])),
        writer.constant(np.stack([[*(bias + cell.bias.numpy()), *none] for cell in cells])),
        OUTPUT_LENGTHS,
        hidden_size=layer.units,
        direction="bidirectional",
        activations=["Relu", "Relu"],
        clip=layer.clip,
    )
    return writer.add("ReduceSum", outputs, writer.constant([1], np.int64), keepdims=0)
