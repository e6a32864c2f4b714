"""Writes ONNX graphs of features and models, optionally with int8 weights.

The graphs of the paper's model and of the GRU are written node by node, without loops.
They are two to six times as fast as those that tf2onnx converts, and only they accept
recurrent states. tf2onnx converts all other models. The features' Fourier transform is
a convolution with cosines and sines, which every runtime supports.
"""

import contextlib
import itertools
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tfasr._version import __version__
from tfasr.data.features import (
    LEAST_DEVIATION,
    LOG_FLOOR,
    PRIOR_FRAMES,
    FeatureConfig,
    cosines,
    hann_window,
    mel_filters,
)
from tfasr.errors import RunError
from tfasr.exporting.weights import FoldedStack, RecurrentWeights
from tfasr.kit.config import to_json
from tfasr.kit.process import quiet_stderr
from tfasr.recognising.runtimes import NEXT, onnx_runtime, onnx_session
from tfasr.recognising.spec import (
    FEATURES,
    LENGTHS,
    LOG_PROBS,
    OUTPUT_LENGTHS,
    RecogniserSpec,
)

# Versions of ONNX's operators, of graphs written here and by tf2onnx, and of its files.
# Newer ones than needed would exclude older runtimes.
OPSET = 17
CONVERTED_OPSET = 18
IR_VERSION = 8
# Converts between (batch, channels, frames) and (batch, frames, channels).
BY_FRAME = [0, 2, 1]
# Without Conv, because ONNX Runtime's integer convolution is slower than its float
# convolution.
_INT8_OPERATORS = ["LSTM", "MatMul"]
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def metadata(spec: RecogniserSpec) -> dict[str, str]:
    """Returns the metadata to store in a graph, for programs that have no other file."""
    content = {
        "model_type": f"tfasr_{spec.model}",
        "version": __version__,
        "features": json.dumps(to_json(spec.features)),
        "window_samples": str(spec.features.window_samples),
        "step_samples": str(spec.features.step_samples),
        "normalisation": spec.features.normalisation,
        "characters": spec.alphabet.characters,
        "separator": spec.alphabet.separator or "",
        "blank_id": str(spec.alphabet.blank_id),
        "kernel_frames": str(spec.geometry[0]),
        "stride_frames": str(spec.geometry[1]),
    }
    if spec.alphabet.units:
        content["units"] = "\n".join(spec.alphabet.symbols)

    return content


class GraphWriter:
    """Collects nodes and weights. A method that adds a node returns the name of its output.

    Tensors are ``(batch, channels, frames)`` unless a method's docstring gives another
    shape.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        # Name and units of each recurrent state.
        self.states: list[tuple[str, int]] = []
        self._numbers: Counter[str] = Counter()

    def weight(self, name: str, array: np.ndarray) -> str:
        """Stores an array, floats in float32; returns its name."""
        if array.dtype.kind == "f":
            array = array.astype(np.float32)

        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Adds an operation whose output has a name that users see."""
        self.nodes.append(
            helper.make_node(kind, inputs, [output], name=output, **attributes)
        )
        return output

    def _named(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind.lower()}_{self._numbers[kind]}"

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds an operation whose output gets a number."""
        return self.node(kind, list(inputs), self._named(kind), **attributes)

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        """Stores a small array or number; returns its name."""
        return self.weight(self._named("constant"), np.asarray(array, dtype))

    def model(
        self,
        num_features: int,
        num_classes: int,
        carried: dict[str, str],
    ) -> bytes:
        """Returns the graph as a recogniser's file, with its recurrent states.

        ``carried`` is metadata.
        """
        real = TensorProto.FLOAT
        integer = TensorProto.INT32
        inputs = [
            (FEATURES, real, ["batch", "frames", num_features]),
            (LENGTHS, integer, ["batch"]),
        ]
        outputs = [
            (LOG_PROBS, real, ["batch", "output_frames", num_classes]),
            (OUTPUT_LENGTHS, integer, ["batch"]),
        ]

        for name, units in self.states:
            inputs.append((name, real, [1, "batch", units]))
            outputs.append((NEXT + name, real, [1, "batch", units]))

        return self.file("recogniser", inputs, outputs, carried)

    def file(
        self,
        name: str,
        inputs: list,
        outputs: list,
        carried: dict[str, str],
    ) -> bytes:
        """Checks the graph and returns it as a file.

        Inputs and outputs are (name, type, shape); ``carried`` is metadata.
        """
        make = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            name,
            list(itertools.starmap(make, inputs)),
            list(itertools.starmap(make, outputs)),
            self.weights,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="tfasr")

        return checked_content(model, carried)


def checked_content(model: onnx.ModelProto, carried: dict[str, str]) -> bytes:
    """Returns a checked model as a file, with metadata."""
    # The installed onnx would write its own, newer version.
    model.ir_version = IR_VERSION
    helper.set_model_props(model, carried)
    # Also infers all shapes.
    onnx.checker.check_model(model, full_check=True)

    return model.SerializeToString()


def converted_graph(
    recognise: Any,
    num_features: int,
    name: str,
    carried: dict,
) -> bytes:
    """Converts any model with tf2onnx.

    Args:
        recognise: maps features and lengths to a dictionary of `LOG_PROBS` and
            `OUTPUT_LENGTHS`.
        num_features: features per frame.
        name: of the model, for messages.
        carried: metadata.

    Raises:
        RunError: if tf2onnx can't convert it.
    """
    import tensorflow as tf
    from tf2onnx import convert

    signature = (
        tf.TensorSpec([None, None, num_features], tf.float32, name=FEATURES),
        tf.TensorSpec([None], tf.int32, name=LENGTHS),
    )
    refusal = f"The model {name!r} can't be converted to ONNX"
    remedy = "Export it with --to saved_model or --to keras."

    try:
        with _corrected_tf2onnx() as handlers, quiet_stderr():
            model, _ = convert.from_function(
                tf.function(recognise),
                signature,
                opset=CONVERTED_OPSET,
                custom_op_handlers=handlers,
            )
    except Exception as error:  # tf2onnx and TensorFlow raise many kinds of errors
        raise RunError(f"{refusal}: {_one_line(error)}. {remedy}") from error

    nodes = _all_nodes(model.graph)
    unknown = sorted(
        {n.op_type for n in nodes if not onnx.defs.has(n.op_type, n.domain)}
    )
    if unknown:  # tf2onnx only logs these operations, and still writes the file
        raise RunError(
            f"{refusal}: tf2onnx can't convert {', '.join(unknown)}. {remedy}"
        )

    # tf2onnx names no axes.
    names = {
        FEATURES: ["batch", "frames"],
        LENGTHS: ["batch"],
        LOG_PROBS: ["batch", "output_frames"],
        OUTPUT_LENGTHS: ["batch"],
    }
    for value in (*model.graph.input, *model.graph.output):
        for axis, size in zip(
            value.type.tensor_type.shape.dim,
            names[value.name],
            strict=False,
        ):
            axis.dim_param = size

    model.producer_name = "tfasr"
    try:
        return checked_content(model, carried)
    except onnx.checker.ValidationError as error:
        raise RunError(f"{refusal}: {_one_line(error)}. {remedy}") from error


def _one_line(error: Exception) -> str:
    """Returns an error's kind and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields all nodes of a graph, also those within loops."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g)


@contextlib.contextmanager
def _corrected_tf2onnx() -> Iterator[dict[str, tuple]]:
    """Yields handlers for operations that tf2onnx 1.17 lacks or gets wrong.

    Its FloorDiv and FloorMod round negative integers towards 0. Its rewriters of
    bidirectional recurrences ignore utterances' lengths, and are switched off. Its
    logging is stopped, too.
    """
    from tf2onnx import tfonnx

    rewriters = ("rewrite_bi_direction_lstm", "rewrite_bi_direction_gru")
    originals = {name: getattr(tfonnx, name) for name in rewriters}
    logger = logging.getLogger("tf2onnx")
    # Restored afterwards, as another part of the program may use tf2onnx.
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
    """Replaces FloorDiv: integers are divided after subtracting the remainder."""
    first, second = node.input
    if graph.get_dtype(first) in _INTEGERS:
        # It has the divisor's sign.
        rest = graph.make_node("Mod", [first, second]).output[0]
        _replaced(
            graph,
            node,
            "Div",
            [graph.make_node("Sub", [first, rest]).output[0], second],
        )
    else:
        _replaced(graph, node, "Floor", graph.make_node("Div", [first, second]).output)


def _floor_mod(graph: Any, node: Any, *_: Any) -> None:
    """Replaces FloorMod."""
    first, second = node.input
    if graph.get_dtype(first) in _INTEGERS:
        _replaced(graph, node, "Mod", [first, second])
    else:
        times = graph.make_node(
            "Floor", graph.make_node("Div", [first, second]).output
        ).output[0]
        product = graph.make_node("Mul", [times, second]).output[0]
        _replaced(graph, node, "Sub", [first, product])


def _erfc(graph: Any, node: Any, *_: Any) -> None:
    """Replaces Erfc by one minus Erf."""
    erf = graph.make_node("Erf", list(node.input)).output[0]
    dtype = helper.tensor_dtype_to_np_dtype(graph.get_dtype(node.input[0]))
    ones = graph.make_const(f"{node.name}_one", np.ones([], dtype)).output[0]
    _replaced(graph, node, "Sub", [ones, erf])


def _replaced(graph: Any, node: Any, kind: str, inputs: list[str]) -> None:
    """Puts another operation in a node's place."""
    # Read before the node is removed, when the graph forgets them.
    shapes = node.output_shapes
    dtypes = node.output_dtypes
    outputs = node.output
    graph.remove_node(node.name)
    graph.make_node(
        kind,
        inputs,
        name=node.name,
        shapes=shapes,
        dtypes=dtypes,
        outputs=outputs,
    )


def quantised(graph: bytes) -> bytes:
    """Returns the graph with int8 weights and dynamic quantisation; GRUs stay float32."""
    onnx_runtime()  # before the import below, to switch off telemetry
    from onnxruntime.quantization import QuantType, quantize_dynamic

    root = logging.getLogger()
    # Hides ONNX Runtime's advice to optimise the graph before quantising.
    root.disabled = True
    try:
        with tempfile.TemporaryDirectory() as folder:
            float32 = Path(folder, "float32.onnx")
            int8 = Path(folder, "int8.onnx")
            float32.write_bytes(graph)
            quantize_dynamic(
                float32,
                int8,
                op_types_to_quantize=_INT8_OPERATORS,
                per_channel=False,
                weight_type=QuantType.QInt8,
            )
            return int8.read_bytes()
    finally:
        root.disabled = False


SAMPLES = "samples"  # name of the features' graph's input
# Allowed for normalised features: rounding in nearly silent filters.
MOST_DIFFERENCE = 0.01


def checked_feature_graph(spec: RecogniserSpec) -> bytes:
    """Returns the features' graph after comparing it with tfasr's features.

    Raises:
        RunError: if they differ by more than rounding.
    """
    graph = feature_graph(spec.features, spec.statistics, metadata(spec))
    # Loud and nearly silent, tonal and noisy, in all filters.
    samples = _sounds(spec.features)
    (features,) = onnx_session(graph).run([FEATURES], {SAMPLES: samples[None]})[0]
    expected = spec.normalised_features(samples)
    same_shape = features.shape == expected.shape
    difference = float(np.abs(features - expected).max()) if same_shape else np.inf
    if not difference <= MOST_DIFFERENCE:
        raise RunError(
            "The features' graph must compute the same features as tfasr. For generated sounds, "
            f"they differ by up to {difference:.3g} (shapes {features.shape} and "
            f"{expected.shape}). Nothing was written; please report this error."
        )

    return graph


def _sounds(config: FeatureConfig) -> np.ndarray:
    """Returns a sweep of all frequencies with noise, of changing loudness."""
    count = max(2 * config.sample_rate_hz, 4 * config.window_samples)
    times = np.arange(count) / count
    rng = np.random.default_rng(1)
    tone = np.sin(2 * np.pi * 0.2 * config.sample_rate_hz * times**2)
    loudness = 0.5 * 10 ** (-2 * (1 + np.sin(6 * np.pi * times)))

    sounds = loudness * (tone + 0.1 * rng.normal(size=count))

    return sounds.clip(-1, 1).astype(np.float32)


def feature_graph(config: FeatureConfig, statistics, carried: dict[str, str]) -> bytes:
    """Returns a graph file that computes `numpy_features` and `normalise_frames`.

    It maps ``samples`` (batch, samples), float32 in -1..1, unpadded and at least one
    window, to ``features`` (batch, frames, num_features). The file also contains the
    metadata ``carried``.
    """
    writer = GraphWriter()
    features = _normalised(writer, _features(writer, config), config, statistics)
    writer.node("Identity", [features], FEATURES)
    real = TensorProto.FLOAT
    inputs = [(SAMPLES, real, ["batch", "samples"])]
    outputs = [(FEATURES, real, ["batch", "frames", config.num_features])]

    return writer.file("features", inputs, outputs, carried)


def _features(writer: GraphWriter, config: FeatureConfig) -> str:
    """Adds the features before normalisation, ``(batch, frames, features)``."""
    filters = mel_filters(config)
    bins = np.flatnonzero(filters.any(axis=1))  # no filter uses other bins
    by_channel = writer.add("Unsqueeze", SAMPLES, writer.constant([1], np.int64))
    waves = writer.weight("windowed_waves", _windowed_waves(config, bins))
    spectrum = writer.add(
        "Conv",
        by_channel,
        waves,
        strides=[config.step_samples],
        pads=[0, 0],
    )
    by_frame = writer.add("Transpose", spectrum, perm=[0, 2, 1])
    squares = writer.add("Mul", by_frame, by_frame)
    if config.spectrum == "power":
        # A bin's cosine and sine get the same weight, so this matmul also adds their
        # squares.
        weights = np.concatenate([filters[bins], filters[bins]])
    else:
        pairs = writer.weight(
            "both_parts", np.tile(np.eye(len(bins), dtype=np.float32), (2, 1))
        )
        squares = writer.add("Sqrt", writer.add("MatMul", squares, pairs))
        weights = filters[bins]

    energies = writer.add("MatMul", squares, writer.weight("mel_filters", weights))
    log_mel = writer.add("Log", writer.add("Add", energies, writer.constant(LOG_FLOOR)))
    if not config.num_mfcc:
        return log_mel

    matrix = writer.weight("cosines", cosines(config.num_mel_bins, config.num_mfcc))

    return writer.add("Concat", log_mel, writer.add("MatMul", log_mel, matrix), axis=2)


def _windowed_waves(config: FeatureConfig, bins: np.ndarray) -> np.ndarray:
    """Returns cosines and sines times the window, ``(2 * bins, 1, window_samples)``."""
    window = np.arange(config.window_samples)
    # Whole periods are removed in integers, before they cause rounding errors in the
    # sine.
    turns = np.outer(bins, window) % config.window_samples
    angles = 2 * np.pi * turns / config.window_samples
    waves = np.concatenate([np.cos(angles), np.sin(angles)])

    return (waves * hann_window(config.window_samples))[:, None]


def _normalised(
    writer: GraphWriter,
    features: str,
    config: FeatureConfig,
    statistics,
) -> str:
    """Adds the normalisation of features ``(batch, frames, features)``."""
    if config.normalisation == "none":
        return features

    if config.normalisation in ("corpus", "speaker") and statistics is None:
        kind = config.normalisation
        raise ValueError(
            f"Normalisation {kind!r} must have statistics. Received: None."
        )

    if config.normalisation == "corpus":
        mean, deviation = statistics
        centred = writer.add("Sub", features, writer.weight("mean", mean))
        limited = writer.weight("deviation", np.maximum(deviation, LEAST_DEVIATION))
        return writer.add("Div", centred, limited)

    mean = writer.add("ReduceMean", features, axes=[1], keepdims=1)
    centred = writer.add("Sub", features, mean)
    squares = writer.add("Mul", centred, centred)
    variance = writer.add("ReduceMean", squares, axes=[1], keepdims=1)
    if config.normalisation == "speaker":  # as `pooled` does
        corpus = writer.weight("corpus_mean", statistics[0])
        corpus_variance = writer.weight("corpus_variance", statistics[1] ** 2)
        # The number of frames of this utterance.
        shape = writer.add("Shape", features, start=1, end=2)
        frames = writer.add("Cast", shape, to=TensorProto.FLOAT)
        share = writer.add(
            "Div", frames, writer.add("Add", frames, writer.constant(PRIOR_FRAMES))
        )
        rest = writer.add("Sub", writer.constant(1), share)
        apart = writer.add("Sub", mean, corpus)
        of_speaker = writer.add("Mul", share, variance)
        prior = writer.add("Mul", rest, corpus_variance)
        weight = writer.add("Mul", share, rest)
        between = writer.add("Mul", weight, writer.add("Mul", apart, apart))
        variance = writer.add("Sum", of_speaker, prior, between)
        mean = writer.add("Add", corpus, writer.add("Mul", share, apart))
        centred = writer.add("Sub", features, mean)

    deviation = writer.add("Sqrt", variance)
    limited = writer.add("Max", deviation, writer.constant(LEAST_DEVIATION))

    return writer.add("Div", centred, limited)


def recurrent_graph(model: Any, num_features: int, carried: dict[str, str]) -> bytes:
    """Returns the graph file of a `RecurrentStack`, with batch normalisation folded in.

    Its inputs and outputs include the recurrent states if the model only looks back.
    """
    stack = FoldedStack.of(model)
    writer = GraphWriter()

    # A convolution without padding leaves (lengths - kernel) / stride + 1 frames.
    kernel = writer.constant([len(stack.kernel)], np.int32)
    stride = writer.constant([stack.stride], np.int32)
    strides = writer.add("Div", writer.add("Sub", LENGTHS, kernel), stride)
    writer.node("Add", [strides, writer.constant([1], np.int32)], OUTPUT_LENGTHS)

    by_channel = writer.add("Transpose", FEATURES, perm=BY_FRAME)
    weights = writer.constant(stack.kernel.transpose(2, 1, 0))
    bias = writer.constant(stack.bias)
    convolved = writer.add("Conv", by_channel, weights, bias, strides=[stack.stride])
    hidden = writer.add("Transpose", writer.add("Relu", convolved), perm=[2, 0, 1])

    for number, layer in enumerate(stack.recurrent):
        hidden = _recurrent_layer(writer, number, hidden, layer)

    product = writer.add("MatMul", hidden, writer.constant(stack.classifier_kernel))
    logits = writer.add("Add", product, writer.constant(stack.classifier_bias))
    by_batch = writer.add("Transpose", logits, perm=[1, 0, 2])
    writer.node("LogSoftmax", [by_batch], LOG_PROBS, axis=-1)

    return writer.model(num_features, len(stack.classifier_bias), carried)


def _recurrent_layer(
    writer: GraphWriter,
    number: int,
    hidden: str,
    weights: RecurrentWeights,
) -> str:
    """Adds a recurrent layer over ``(frames, batch, width)``; returns its outputs.

    The states of a layer with one direction are inputs and outputs of the graph.
    """
    name = f"recurrent_{number}"
    arrays = (weights.kernel, weights.recurrent_kernel, weights.bias)
    inputs = [hidden, *(writer.constant(array) for array in arrays), OUTPUT_LENGTHS]
    outputs = [f"{name}_outputs"]
    # A layer that also runs backwards can't take a state.
    two_ways = len(weights.kernel) == 2
    if not two_ways:
        states = [f"{state}_{number}" for state in weights.states]
        writer.states += [(state, weights.units) for state in states]
        inputs += states
        outputs += [NEXT + state for state in states]

    node = helper.make_node(
        weights.operator,
        inputs,
        outputs,
        name=name,
        hidden_size=weights.units,
        direction="bidirectional" if two_ways else "forward",
        **weights.attributes,
    )
    writer.nodes.append(node)
    # From (frames, directions, batch, units) to (frames, batch, directions * units).
    by_batch = writer.add("Transpose", outputs[0], perm=[0, 2, 1, 3])

    return writer.add("Reshape", by_batch, writer.constant([0, 0, -1], np.int64))
