"""Graphs in ONNX compute what Keras computes, for every family that has one."""

import keras
import numpy as np
import pytest

from tfasr.exporting.export import WRITTEN_BY_HAND
from tfasr.exporting.onnx import recurrent_graph
from tfasr.models.build import build_recogniser
from tfasr.models.conformer import ConformerConfig
from tfasr.models.deep_speech_2 import DeepSpeech2Config
from tfasr.models.model import model_name
from tfasr.models.recurrent import AcousticModelConfig, GruModelConfig
from tfasr.models.separable_conv import SeparableConvConfig
from tfasr.recognising.runtimes import OnnxAcoustics

onnx = pytest.importorskip(
    "onnx", reason="needs the export extra: pip install 'tfasr[export]'"
)
pytest.importorskip("onnxruntime")


FEATURES = 3
CLASSES = 6
BINS = 21  # of Deep Speech 2, which convolves over them
CONFIGS = {
    "lstm": AcousticModelConfig(conv_filters=5, num_lstm_layers=2, lstm_units=4, conv_kernel=4),
    "lstm both ways": AcousticModelConfig(
        conv_filters=5, num_lstm_layers=2, lstm_units=4, conv_kernel=4, bidirectional=True
    ),
    "lstm without normalisation": AcousticModelConfig(
        conv_filters=5, num_lstm_layers=1, lstm_units=4, conv_stride=5, batch_normalisation=False
    ),
    "no recurrence": AcousticModelConfig(conv_filters=5, num_lstm_layers=0, lstm_units=4),
    "gru": GruModelConfig(conv_filters=5, num_gru_layers=2, gru_units=4),
    "gru both ways": GruModelConfig(
        conv_filters=5, num_gru_layers=1, gru_units=4, bidirectional=True
    ),
    "separable convolutions": SeparableConvConfig(
        filters=(4, 6), kernels=(3, 4), repeats=2, first_kernel=5,
        last_filters=(5, 7), last_kernel=4,
    ),
    "conformer": ConformerConfig(
        width=8, num_blocks=2, num_heads=2, conv_kernel=4, subsampling=2
    ),
    "conformer without subsampling": ConformerConfig(
        width=8, num_blocks=1, num_heads=4, conv_kernel=5, subsampling=0
    ),
    "deep speech 2": DeepSpeech2Config(
        conv_filters=3, num_recurrent_layers=2, units=5, clip=1.5, num_bins=BINS
    ),
}  # fmt: skip


def num_features(config) -> int:
    return BINS if isinstance(config, DeepSpeech2Config) else FEATURES


def made(config) -> keras.Model:
    """A model all of whose numbers differ from what a new one has."""
    model = build_recogniser(config, num_features(config), CLASSES, seed=1)
    rng = np.random.default_rng(2)
    for variable in model.variables:
        if "float" in str(variable.dtype):
            values = rng.normal(0.1, 0.5, variable.shape)
            variable.assign(
                np.abs(values) + 0.1 if "variance" in variable.path else values
            )

    return model


def graph_of(config, model, metadata) -> bytes:
    return recurrent_graph(model, num_features(config), metadata)


def log_softmax(logits) -> np.ndarray:
    return keras.ops.convert_to_numpy(keras.ops.log_softmax(logits, axis=-1))


@pytest.mark.parametrize(
    "name", [n for n, c in CONFIGS.items() if model_name(c) in WRITTEN_BY_HAND]
)
def test_a_graph_says_what_the_model_says(name):
    config = CONFIGS[name]
    model = made(config)
    graph = graph_of(config, model, {"key": "value"})
    acoustics = OnnxAcoustics(graph)
    features = (
        np.random.default_rng(3)
        .normal(size=(3, 41, num_features(config)))
        .astype(np.float32)
    )
    lengths = np.array([41, 20, 33], np.int32)
    expected = log_softmax(model(features, lengths, training=False))
    found = acoustics.log_probs(features, lengths)
    assert found.shape == expected.shape
    for row, other, frames in zip(
        found, expected, config.output_lengths(lengths), strict=True
    ):
        np.testing.assert_allclose(row[:frames], other[:frames], atol=1e-5)
    operators = {node.op_type for node in onnx.load_from_string(graph).graph.node}
    assert not operators & {"Loop", "Scan", "If", "BatchNormalization"}
    assert onnx.load_from_string(graph).metadata_props[0].value == "value"


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_graph_continues_where_it_stopped(name):
    config = CONFIGS[name]
    model = made(config)
    acoustics = OnnxAcoustics(graph_of(config, model, {}))
    features = np.random.default_rng(4).normal(size=(40, FEATURES)).astype(np.float32)
    whole = acoustics.log_probs(features[None], np.array([40], np.int32))[0]
    state = acoustics.initial_state()
    start = 0
    parts = []
    for frames in (1, 3, 4):
        last = start + config.conv_kernel + (frames - 1) * config.conv_stride
        log_probs, state = acoustics.continued(features[start:last], state)
        parts.append(log_probs)
        start += frames * config.conv_stride

    np.testing.assert_allclose(np.concatenate(parts), whole[:8], atol=1e-5)
