"""Graphs in ONNX compute what Keras computes, for every kind that has one."""

import keras
import numpy as np
import pytest

from tfasr.models.acoustic_model import AcousticModelConfig
from tfasr.models.build import build_recogniser
from tfasr.models.gru import GruModelConfig

onnx = pytest.importorskip("onnx", reason="needs the export extra: pip install 'tfasr[export]'")
pytest.importorskip("onnxruntime")

from tfasr.exporting.onnx_graph import recurrent_graph  # noqa: E402 - needs onnx
from tfasr.recognising.onnx_acoustics import OnnxAcoustics  # noqa: E402

FEATURES, CLASSES = 3, 6
CONFIGS = {
    "lstm": AcousticModelConfig(conv_filters=5, num_lstm_layers=2, lstm_units=4, conv_kernel=4),
    "lstm both ways": AcousticModelConfig(
        conv_filters=5, num_lstm_layers=2, lstm_units=4, conv_kernel=4, bidirectional=True
    ),
    "lstm without normalisation": AcousticModelConfig(
        conv_filters=5, num_lstm_layers=1, lstm_units=4, batch_normalisation=False
    ),
    "no recurrence": AcousticModelConfig(conv_filters=5, num_lstm_layers=0, lstm_units=4),
    "gru": GruModelConfig(conv_filters=5, num_gru_layers=2, gru_units=4, conv_stride=5),
    "gru both ways": GruModelConfig(
        conv_filters=5, num_gru_layers=1, gru_units=4, conv_stride=5, bidirectional=True
    ),
}


def made(config) -> keras.Model:
    """A model all of whose numbers differ from what a new one has."""
    model = build_recogniser(config, FEATURES, CLASSES, seed=1)
    rng = np.random.default_rng(2)
    for variable in model.variables:
        if "float" in str(variable.dtype):
            variable.assign(np.abs(rng.normal(0.4, 0.3, variable.shape)) * rng.choice([1, 1, 1.5]))
    return model


def log_softmax(logits) -> np.ndarray:
    return keras.ops.convert_to_numpy(keras.ops.log_softmax(logits, axis=-1))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_graph_says_what_the_model_says(name):
    config = CONFIGS[name]
    model = made(config)
    graph = recurrent_graph(model, FEATURES, {"key": "value"})
    acoustics = OnnxAcoustics(graph, num_threads=1)
    features = np.random.default_rng(3).normal(size=(3, 41, FEATURES)).astype(np.float32)
    lengths = np.array([41, 20, 33], np.int32)
    for row, length in zip(features, lengths, strict=True):
        row[length:] = 0
    expected = log_softmax(model(features, lengths, training=False))
    found = acoustics.log_probs(features, lengths)
    assert found.shape == expected.shape
    for row, other, frames in zip(found, expected, config.output_lengths(lengths), strict=True):
        np.testing.assert_allclose(row[:frames], other[:frames], atol=1e-5)
    operators = {node.op_type for node in onnx.load_from_string(graph).graph.node}
    assert not operators & {"Loop", "Scan", "If", "BatchNormalization"}
    assert onnx.load_from_string(graph).metadata_props[0].value == "value"


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_graph_continues_where_it_stopped(name):
    config = CONFIGS[name]
    model = made(config)
    acoustics = OnnxAcoustics(recurrent_graph(model, FEATURES, {}), num_threads=1)
    features = np.random.default_rng(4).normal(size=(40, FEATURES)).astype(np.float32)
    whole = acoustics.log_probs(features[None], np.array([40], np.int32))[0]
    state, start, parts = acoustics.initial_state(), 0, []
    for frames in (1, 3, 4):
        last = start + config.conv_kernel + (frames - 1) * config.conv_stride
        log_probs, state = acoustics.continued(features[start:last], state)
        parts.append(log_probs)
        start += frames * config.conv_stride
    np.testing.assert_allclose(np.concatenate(parts), whole[:8], atol=1e-5)
