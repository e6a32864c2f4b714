"""ONNX graphs of the five model families, node by node, without loops.

They are two to six times as fast as converted graphs, and only they accept recurrent states.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from tfasr.exporting.onnx import BY_FRAME, GraphWriter
from tfasr.exporting.weights import Affine, FoldedStack, RecurrentWeights
from tfasr.models.conformer import FAR_BELOW_ZERO, wave_rates
from tfasr.recognising.runtimes import NEXT
from tfasr.recognising.spec import FEATURES, LENGTHS, LOG_PROBS, OUTPUT_LENGTHS

_BY_TIME = [2, 0, 3, 1]  # from (batch, channels, frames, bins)


def recurrent_graph(model: Any, num_features: int, metadata: dict[str, str]) -> bytes:
    """Returns the file of an `AcousticModel` or `GruModel`."""
    stack = FoldedStack.of(model)
    writer = GraphWriter()
    # (lengths - kernel) / stride + 1
    sizes = (len(stack.kernel), stack.stride)
    kernel, stride = (writer.constant([size], np.int32) for size in sizes)
    strides = writer.add("Div", writer.add("Sub", LENGTHS, kernel), stride)
    writer.node("Add", [strides, writer.constant([1], np.int32)], OUTPUT_LENGTHS)
    by_channel = writer.add("Transpose", FEATURES, perm=BY_FRAME)
    convolution = stack.kernel.transpose(2, 1, 0), stack.bias
    hidden = writer.convolved(by_channel, *convolution, (0, 0), strides=[stack.stride])
    hidden = writer.add("Transpose", writer.add("Relu", hidden), perm=[2, 0, 1])
    for number, weights in enumerate(stack.recurrent):
        hidden = _recurrent_layer(writer, number, hidden, weights)
    logits = writer.dense(hidden, stack.classifier_kernel, stack.classifier_bias)
    by_batch = writer.add("Transpose", logits, perm=[1, 0, 2])
    writer.node("LogSoftmax", [by_batch], LOG_PROBS, axis=-1)
    return writer.model(num_features, len(stack.classifier_bias), metadata)


def _recurrent_layer(
    writer: GraphWriter, number: int, hidden: str, weights: RecurrentWeights
) -> str:
    name = f"recurrent_{number}"
    arrays = (weights.kernel, weights.recurrent_kernel, weights.bias)
    inputs = [hidden, *(writer.constant(array) for array in arrays), OUTPUT_LENGTHS]
    outputs = [f"{name}_outputs"]
    two_ways = len(weights.kernel) == 2
    if not two_ways:
        states = [f"{state}_{number}" for state in weights.states]
        writer.states += [(state, weights.units) for state in states]
        inputs += states
        outputs += [NEXT + state for state in states]
    writer.nodes.append(
        helper.make_node(
            weights.operator,
            inputs,
            outputs,
            name=name,
            hidden_size=weights.units,
            direction="bidirectional" if two_ways else "forward",
            **weights.attributes,
        )
    )
    # From (frames, directions, batch, units) to (frames, batch, directions * units).
    by_batch = writer.add("Transpose", outputs[0], perm=[0, 2, 1, 3])
    return writer.add("Reshape", by_batch, writer.constant([0, 0, -1], np.int64))


def separable_graph(model: Any, num_features: int, metadata: dict[str, str]) -> bytes:
    writer = GraphWriter()
    before, _ = writer.strided_lengths([model.config.stride])
    hidden = writer.add("Transpose", FEATURES, perm=BY_FRAME)
    mask = writer.mask(writer.valid(hidden, before), [1])
    hidden = writer.add("Relu", _normalised_conv(writer, model.first, hidden, mask))
    mask = writer.mask(writer.valid(hidden, OUTPUT_LENGTHS), [1])
    for block, shortcut in zip(model.blocks, model.shortcuts, strict=True):
        straight = _normalised_conv(writer, shortcut, hidden, mask)
        for number, layer in enumerate(block, start=1):
            hidden = _normalised_conv(writer, layer, hidden, mask)
            if number == len(block):
                hidden = writer.add("Add", hidden, straight)
            hidden = writer.add("Relu", hidden)
    for layer in model.last:
        hidden = writer.add("Relu", _normalised_conv(writer, layer, hidden, mask))
    writer.class_log_probs(writer.add("Transpose", hidden, perm=BY_FRAME), model.classifier)
    return writer.model(num_features, model.classifier.units, metadata)


def _normalised_conv(writer: GraphWriter, layer: Any, hidden: str, mask: str) -> str:
    """Adds a `NormalisedConv` without its ReLU."""
    convolution = layer.convolution
    pointwise = np.asarray(convolution.weights[-1].numpy(), np.float64)
    if len(convolution.weights) == 2:  # separable; otherwise a dense layer
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


def deep_speech_2_graph(model: Any, num_features: int, metadata: dict[str, str]) -> bytes:
    writer = GraphWriter()
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
        pads = [(len(kernel) - 1) // 2, 0, len(kernel) // 2, 0]
        kernel, strides = kernel.transpose(3, 2, 0, 1), list(layer.strides)
        masked = writer.add("Mul", hidden, mask)
        hidden = writer.clipped(writer.convolved(masked, kernel, bias, pads, strides=strides), clip)
    shape = writer.constant([0, 0, -1], np.int64)
    hidden = writer.add("Reshape", writer.add("Transpose", hidden, perm=_BY_TIME), shape)
    for layer in model.recurrent:
        hidden = _clipped_recurrence(writer, layer, hidden)
    hidden = writer.add("Transpose", hidden, perm=[1, 0, 2])
    kernel = np.asarray(model.fully_connected.kernel.numpy(), np.float64)
    hidden = writer.dense(hidden, *Affine.of(model.last_normalisation).behind(kernel))
    writer.class_log_probs(writer.clipped(hidden, clip), model.classifier)
    return writer.model(num_features, model.classifier.units, metadata)


def _clipped_recurrence(writer: GraphWriter, layer: Any, hidden: str) -> str:
    """Adds a `BidirectionalClippedRNN`; values are ``(frames, batch, channels)``."""
    projection = np.asarray(layer.projection.kernel.numpy(), np.float64)
    kernel, bias = Affine.of(layer.normalisation).behind(projection)
    cells = [layer.forwards.cell, layer.backwards.cell]
    none = np.zeros_like(bias)
    # Both directions get the same projection; ONNX computes it for each.
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


def conformer_graph(model: Any, num_features: int, metadata: dict[str, str]) -> bytes:
    writer = GraphWriter()
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


def _positions(writer: GraphWriter, hidden: str, width: int) -> str:
    numbers = writer.frame_numbers(hidden, axis=1)
    steps = writer.add("Unsqueeze", numbers, writer.constant([1], np.int64))
    angles = writer.add("Mul", writer.add("Cast", steps, to=1), writer.constant(wave_rates(width)))
    return writer.add("Concat", writer.add("Sin", angles), writer.add("Cos", angles), axis=-1)


class _Block:
    """Adds a `tfasr.models.conformer.ConformerBlock`; ``valid`` is ``(batch, frames)``."""

    def __init__(self, writer: GraphWriter, block: Any, valid: str):
        self._writer = writer
        self._block = block
        self._valid = valid

    def outputs(self, hidden: str) -> str:
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
        inputs = [hidden, *(self._writer.constant(v.numpy()) for v in (norm.gamma, norm.beta))]
        return self._writer.add("LayerNormalization", *inputs, axis=-1, epsilon=norm.epsilon)

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
        queries, values = (add("Transpose", part, perm=[0, 2, 1, 3]) for part in (queries, values))
        keys = add("Transpose", keys, perm=[0, 2, 3, 1])
        scaled = add("Mul", queries, constant((width // heads) ** -0.5))
        is_valid = add("Unsqueeze", self._valid, constant([1, 2], np.int64))
        scores = add("Where", is_valid, add("MatMul", scaled, keys), constant(FAR_BELOW_ZERO))
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
        pads = (reach // 2, reach - reach // 2)
        hidden = add("Transpose", hidden, perm=BY_FRAME)
        hidden = self._writer.convolved(hidden, kernel.T[:, None, :], bias, pads, group=width)
        activated = add("Transpose", self._silu(hidden), perm=BY_FRAME)
        return self._writer.dense_layer(activated, block.pointwise)


# Graph writers by the model's name in `tfasr.models.model.MODELS`.
WRITERS: dict[str, Callable[[Any, int, dict[str, str]], bytes]] = {
    "acoustic_model": recurrent_graph,
    "gru": recurrent_graph,
    "separable_conv": separable_graph,
    "conformer": conformer_graph,
    "deep_speech_2": deep_speech_2_graph,
}
