"""The graph of the Conformer in ONNX."""

from typing import Any

import numpy as np

from tfasr.exporting.folded import Affine
from tfasr.exporting.onnx_blocks import BY_FRAME, BlockWriter
from tfasr.exporting.onnx_graph import OUTPUT_LENGTHS
from tfasr.layers.conformer_block import FAR_BELOW_ZERO, wave_rates
from tfasr.recognising.onnx_acoustics import FEATURES


def conformer_graph(model: Any, num_features: int, metadata: dict[str, str]) -> bytes:
    """Returns the graph of a `tfasr.models.conformer.ConformerModel`.

    Args:
        model: built.
        num_features: features per frame.
        metadata: key and value pairs that the file carries.
    """
    writer = BlockWriter()
    lengths = writer.strided_lengths([2] * len(model.subsampling))
    hidden = writer.add("Transpose", FEATURES, perm=BY_FRAME)
    for layer, before in zip(model.subsampling, lengths, strict=False):
        mask = writer.mask(writer.valid(hidden, before), [1])
        kernel, bias = (np.asarray(v.numpy()) for v in layer.weights)
        masked = writer.add("Mul", hidden, mask)
        hidden = writer.convolved(masked, kernel.transpose(2, 1, 0), bias, (1, 1), strides=[2])
        hidden = writer.add("Relu", hidden)
    valid = writer.valid(hidden, OUTPUT_LENGTHS)
    hidden = writer.dense_layer(writer.add("Transpose", hidden, perm=BY_FRAME), model.projection)
    hidden = writer.add("Add", hidden, _positions(writer, hidden, model.config.width))
    for block in model.blocks:
        hidden = _Block(writer, block, valid).outputs(hidden)
    writer.class_log_probs(hidden, model.classifier)
    return writer.model(num_features, model.classifier.units, metadata)


def _positions(writer: BlockWriter, hidden: str, width: int) -> str:
    """Adds the sinusoids ``(frames, width)`` of the frames' numbers."""
    frames = writer.add("Squeeze", writer.add("Shape", hidden, start=1, end=2))
    numbers = writer.add(
        "Range", writer.constant(0, np.int64), frames, writer.constant(1, np.int64)
    )
    steps = writer.add("Unsqueeze", numbers, writer.constant([1], np.int64))
    angles = writer.add("Mul", writer.add("Cast", steps, to=1), writer.constant(wave_rates(width)))
    return writer.add("Concat", writer.add("Sin", angles), writer.add("Cos", angles), axis=-1)


class _Block:
    """Adds a `tfasr.layers.conformer_block.ConformerBlock`; values are by frame.

    Args:
        writer: collects the nodes.
        block: the layer.
        valid: booleans ``(batch, frames)``.
    """

    def __init__(self, writer: BlockWriter, block: Any, valid: str):
        self._writer = writer
        self._block = block
        self._valid = valid

    def outputs(self, hidden: str) -> str:
        """Adds all of it."""
        add, block = self._writer.add, self._block
        first, attention, convolution, second, last = block.norms
        half = self._writer.constant(0.5)

        def fed_forward(number: int, norm: Any) -> str:
            inner, outer = block.feed_forwards[number]
            activated = self._silu(self._writer.dense_layer(self._normed(hidden, norm), inner))
            return add("Add", hidden, add("Mul", half, self._writer.dense_layer(activated, outer)))

        hidden = fed_forward(0, first)
        hidden = add("Add", hidden, self._attended(self._normed(hidden, attention)))
        hidden = add("Add", hidden, self._convolved(self._normed(hidden, convolution)))
        hidden = fed_forward(1, second)
        return self._normed(hidden, last)

    def _normed(self, hidden: str, norm: Any) -> str:
        weights = [self._writer.constant(v.numpy()) for v in (norm.gamma, norm.beta)]
        return self._writer.add(
            "LayerNormalization", hidden, *weights, axis=-1, epsilon=norm.epsilon
        )

    def _silu(self, hidden: str) -> str:
        return self._writer.add("Mul", hidden, self._writer.add("Sigmoid", hidden))

    def _attended(self, hidden: str) -> str:
        add, constant = self._writer.add, self._writer.constant
        heads, width = (self._block.sizes[name] for name in ("num_heads", "width"))
        apart = constant([0, 0, heads, width // heads], np.int64)
        queries, keys, values = (
            add("Reshape", self._writer.dense_layer(hidden, layer), apart)
            for layer in self._block.attention[:3]
        )
        queries, values = (add("Transpose", one, perm=[0, 2, 1, 3]) for one in (queries, values))
        keys = add("Transpose", keys, perm=[0, 2, 3, 1])
        scaled = add("Mul", queries, constant((width // heads) ** -0.5))
        heard = add("Unsqueeze", self._valid, constant([1, 2], np.int64))
        scores = add("Where", heard, add("MatMul", scaled, keys), constant(FAR_BELOW_ZERO))
        together = add("MatMul", add("Softmax", scores, axis=-1), values)
        together = add("Transpose", together, perm=[0, 2, 1, 3])
        joined = add("Reshape", together, constant([0, 0, width], np.int64))
        return self._writer.dense_layer(joined, self._block.attention[3])

    def _convolved(self, hidden: str) -> str:
        add, block = self._writer.add, self._block
        width, reach = block.sizes["width"], block.sizes["kernel"] - 1
        gated = self._writer.dense_layer(hidden, block.gated)
        bounds = [self._writer.constant([n * width], np.int64) for n in range(3)]
        axis = self._writer.constant([2], np.int64)
        values, gates = (add("Slice", gated, bounds[n], bounds[n + 1], axis) for n in range(2))
        hidden = add("Mul", values, add("Sigmoid", gates))
        hidden = add("Mul", hidden, self._writer.mask(self._valid, [2]))
        # The normalisation is folded into the convolution before it.
        depthwise = np.asarray(block.depthwise.kernel.numpy(), np.float64)[..., 0]
        kernel, bias = Affine.of(block.normalisation).behind(depthwise)
        hidden = self._writer.convolved(
            add("Transpose", hidden, perm=BY_FRAME),
            kernel.T[:, None, :],
            bias,
            (reach // 2, reach - reach // 2),
            group=width,
        )
        activated = add("Transpose", self._silu(hidden), perm=BY_FRAME)
        return self._writer.dense_layer(activated, block.pointwise)
