"""ONNX graphs: a writer for nodes, conversion of any Keras model, int8 weights."""

import contextlib
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tfasr._version import __version__
from tfasr.errors import RunError
from tfasr.kit.config import to_json
from tfasr.kit.process import quiet_stderr
from tfasr.recognising.runtimes import NEXT, onnx_runtime
from tfasr.recognising.spec import FEATURES, LENGTHS, LOG_PROBS, OUTPUT_LENGTHS, RecogniserSpec

OPSET = 17
CONVERTED_OPSET = 18
IR_VERSION = 8
BY_FRAME = [0, 2, 1]  # converts between (batch, channels, frames) and (batch, frames, channels)
# Without the convolution: ONNX Runtime's integer convolution is slower than its float one.
_INT8_OPERATORS = ["LSTM", "MatMul"]
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def metadata(spec: RecogniserSpec) -> dict[str, str]:
    """Returns the graph's description of itself, for programs that read no other file."""
    return {
        "model_type": f"tfasr_{spec.model}",
        "version": __version__,
        "features": json.dumps(to_json(spec.features)),
        "window_samples": str(spec.features.window_samples),
        "step_samples": str(spec.features.step_samples),
        "normalisation": spec.features.normalisation,
        "characters": spec.alphabet.characters,
        "separator": spec.alphabet.separator or "",
        **({"units": "\n".join(spec.alphabet.symbols)} if spec.alphabet.units else {}),
        "blank_id": str(spec.alphabet.blank_id),
        "kernel_frames": str(spec.geometry[0]),
        "stride_frames": str(spec.geometry[1]),
    }


class GraphWriter:
    """Collects nodes and weights; each method returns the name of its node's output.

    Values are ``(batch, channels, frames)``, as in ONNX convolutions, unless a method's docstring
    differs.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix  # of numbered names
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.opsets: Sequence = [helper.make_opsetid("", OPSET)]
        self.states: list[tuple[str, int]] = []  # name and units of each recurrent state
        self._numbers: Counter[str] = Counter()

    def weight(self, name: str, array: np.ndarray) -> str:
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _named(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{self._prefix}{kind.lower()}_{self._numbers[kind]}"

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.node(kind, list(inputs), self._named(kind), **attributes)

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        return self.weight(self._named("constant"), np.asarray(array, dtype))

    def strided_lengths(self, strides: list[int]) -> list[str]:
        """Adds the numbers of frames before each padded convolution and after the last."""
        before = [LENGTHS]
        for number, stride in enumerate(strides, start=1):
            more = self.add("Add", before[-1], self.constant([stride - 1], np.int32))
            name = OUTPUT_LENGTHS if number == len(strides) else self._named("lengths")
            before.append(self.node("Div", [more, self.constant([stride], np.int32)], name))
        if not strides:
            before.append(self.node("Identity", [LENGTHS], OUTPUT_LENGTHS))
        return before

    def valid(self, hidden: str, lengths: str) -> str:
        """Adds booleans ``(batch, frames)``, False for padding."""
        ends = self.add("Unsqueeze", lengths, self.constant([1], np.int64))
        ends = self.add("Cast", ends, to=TensorProto.INT64)
        return self.add("Less", self.frame_numbers(hidden, axis=2), ends)

    def frame_numbers(self, hidden: str, axis: int) -> str:
        frames = self.add("Squeeze", self.add("Shape", hidden, start=axis, end=axis + 1))
        start, step = (self.constant(number, np.int64) for number in (0, 1))
        return self.add("Range", start, frames, step)

    def mask(self, valid: str, axes: list[int]) -> str:
        """Adds 1 and 0 for booleans ``(batch, frames)``, with axes of size 1 inserted."""
        numbers = self.add("Cast", valid, to=TensorProto.FLOAT)
        return self.add("Unsqueeze", numbers, self.constant(axes, np.int64))

    def convolved(
        self, hidden: str, kernel: np.ndarray, bias: Any, pads: Sequence[int], **attributes: Any
    ) -> str:
        """Adds a convolution of a kernel ``(outputs, inputs per group, frames)``."""
        weights = [self.constant(kernel)] + ([] if bias is None else [self.constant(bias)])
        return self.add("Conv", hidden, *weights, pads=list(pads), **attributes)

    def dense(self, hidden: str, kernel: np.ndarray, bias: np.ndarray | None) -> str:
        """Adds a dense layer over the last axis; its kernel is ``(inputs, outputs)``."""
        product = self.add("MatMul", hidden, self.constant(kernel))
        return product if bias is None else self.add("Add", product, self.constant(bias))

    def dense_layer(self, hidden: str, layer: Any) -> str:
        return self.dense(hidden, *(np.asarray(v.numpy()) for v in layer.weights))

    def clipped(self, hidden: str, most: float) -> str:
        return self.add("Clip", hidden, self.constant(0.0), self.constant(most))

    def class_log_probs(self, hidden: str, classifier: Any) -> str:
        """Adds the last layer's log-probabilities, from ``(batch, frames, channels)``."""
        return self.node("LogSoftmax", [self.dense_layer(hidden, classifier)], LOG_PROBS, axis=-1)

    def model(self, num_features: int, num_classes: int, carried: dict[str, str]) -> bytes:
        real, integer = TensorProto.FLOAT, TensorProto.INT32
        inputs = [
            (FEATURES, real, ["batch", "frames", num_features]),
            (LENGTHS, integer, ["batch"]),
        ]
        outputs = [(LOG_PROBS, real, ["batch", "output_frames", num_classes])]
        outputs.append((OUTPUT_LENGTHS, integer, ["batch"]))
        inputs += [(name, real, [1, "batch", units]) for name, units in self.states]
        outputs += [(NEXT + name, real, [1, "batch", units]) for name, units in self.states]
        return self.file("recogniser", inputs, outputs, carried)

    def file(self, name: str, inputs: list, outputs: list, carried: dict[str, str]) -> bytes:
        """Returns the checked graph as a file; inputs and outputs are (name, type, shape)."""
        sides = [[helper.make_tensor_value_info(*v) for v in side] for side in (inputs, outputs)]
        graph = helper.make_graph(self.nodes, name, *sides, self.weights)
        model = helper.make_model(graph, opset_imports=self.opsets, producer_name="tfasr")
        return checked_content(model, carried)


def checked_content(model: onnx.ModelProto, carried: dict[str, str]) -> bytes:
    model.ir_version = IR_VERSION
    helper.set_model_props(model, carried)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def converted_graph(recognise: Any, num_features: int, name: str, carried: dict) -> bytes:
    """Converts any model by tf2onnx; RunError if that is impossible.

    ``recognise`` maps features and lengths to a dictionary of `LOG_PROBS` and `OUTPUT_LENGTHS`.
    """
    import tensorflow as tf
    from tf2onnx import convert

    signature = (
        tf.TensorSpec([None, None, num_features], tf.float32, name=FEATURES),
        tf.TensorSpec([None], tf.int32, name=LENGTHS),
    )
    refusal = f"The model {name!r} can't be converted to ONNX"
    remedy = "Export it --to saved_model or --to keras."
    try:
        with _corrected_tf2onnx() as handlers, quiet_stderr():
            options = {"opset": CONVERTED_OPSET, "custom_op_handlers": handlers}
            model, _ = convert.from_function(tf.function(recognise), signature, **options)
    except Exception as error:  # tf2onnx and TensorFlow raise many kinds
        raise RunError(f"{refusal}: {_one_line(error)}. {remedy}") from error
    nodes = _all_nodes(model.graph)
    unknown = sorted({n.op_type for n in nodes if not onnx.defs.has(n.op_type, n.domain)})
    if unknown:  # tf2onnx only logs these, and still writes the file
        raise RunError(f"{refusal}: tf2onnx has no {', '.join(unknown)}. {remedy}")
    names = {FEATURES: ["batch", "frames"], LENGTHS: ["batch"]}
    names |= {LOG_PROBS: ["batch", "output_frames"], OUTPUT_LENGTHS: ["batch"]}
    for value in (*model.graph.input, *model.graph.output):
        for axis, size in zip(value.type.tensor_type.shape.dim, names[value.name], strict=False):
            axis.dim_param = size
    model.producer_name = "tfasr"
    try:
        return checked_content(model, carried)
    except onnx.checker.ValidationError as error:
        raise RunError(f"{refusal}: {_one_line(error)}. {remedy}") from error


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g)


@contextlib.contextmanager
def _corrected_tf2onnx() -> Iterator[dict[str, tuple]]:
    """Yields handlers for operations that tf2onnx 1.17 lacks or gets wrong, and silences it.

    Its FloorDiv and FloorMod truncate negative integers. Its rewriters of bidirectional recurrences
    ignore utterances' lengths.
    """
    from tf2onnx import tfonnx

    rewriters = ("rewrite_bi_direction_lstm", "rewrite_bi_direction_gru")
    originals = {name: getattr(tfonnx, name) for name in rewriters}
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        for name in rewriters:
            setattr(tfonnx, name, lambda _, nodes: nodes)
        handlers = {"FloorDiv": _floor_div, "FloorMod": _floor_mod, "Erfc": _erfc}
        yield {name: (handler, []) for name, handler in handlers.items()}
    finally:
        for name, original in originals.items():
            setattr(tfonnx, name, original)
        logger.setLevel(level)


def _floor_div(graph: Any, node: Any, *_: Any) -> None:
    first, second = node.input
    if graph.get_dtype(first) in _INTEGERS:
        rest = graph.make_node("Mod", [first, second]).output[0]  # with the divisor's sign
        _replaced(graph, node, "Div", [graph.make_node("Sub", [first, rest]).output[0], second])
    else:
        _replaced(graph, node, "Floor", graph.make_node("Div", [first, second]).output)


def _floor_mod(graph: Any, node: Any, *_: Any) -> None:
    first, second = node.input
    if graph.get_dtype(first) in _INTEGERS:
        _replaced(graph, node, "Mod", [first, second])
    else:
        times = graph.make_node("Floor", graph.make_node("Div", [first, second]).output).output[0]
        product = graph.make_node("Mul", [times, second]).output[0]
        _replaced(graph, node, "Sub", [first, product])


def _erfc(graph: Any, node: Any, *_: Any) -> None:
    erf = graph.make_node("Erf", list(node.input)).output[0]
    dtype = helper.tensor_dtype_to_np_dtype(graph.get_dtype(node.input[0]))
    ones = graph.make_const(f"{node.name}_one", np.ones([], dtype)).output[0]
    _replaced(graph, node, "Sub", [ones, erf])


def _replaced(graph: Any, node: Any, kind: str, inputs: list[str]) -> None:
    facts = {"shapes": node.output_shapes, "dtypes": node.output_dtypes, "outputs": node.output}
    graph.remove_node(node.name)
    graph.make_node(kind, inputs, name=node.name, **facts)


def quantised(graph: bytes) -> bytes:
    """Returns the graph with int8 weights and dynamic activations; GRUs stay float32."""
    onnx_runtime()  # first, to silence it
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, _without_advice():
        float32, int8 = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        float32.write_bytes(graph)
        types = {"op_types_to_quantize": _INT8_OPERATORS, "weight_type": QuantType.QInt8}
        quantize_dynamic(float32, int8, per_channel=False, **types)
        return int8.read_bytes()


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Silences ONNX Runtime's log messages about how to optimise the graph first."""

    def refused(_: logging.LogRecord) -> bool:
        return False

    root = logging.getLogger()
    root.addFilter(refused)
    try:
        yield
    finally:
        root.removeFilter(refused)
