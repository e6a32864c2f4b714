"""Graphs in LiteRT compute what Keras computes, whatever frames come together."""

import numpy as np
import pytest

from tests.exporting.test_onnx_graph import (
    CLASSES,
    CONFIGS,
    FEATURES,
    log_softmax,
    made,
)
from tfasr.exporting.litert import STEP_FRAMES, litert_graph
from tfasr.recognising.runtimes import LitertAcoustics


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_graph_says_what_the_model_says(name):
    config = CONFIGS[name]
    model = made(config)
    graph = litert_graph(model, FEATURES, int8=False)
    check_operators(graph)
    acoustics = LitertAcoustics(graph, config.conv_stride)
    # Lengths of which one, some and many calls come, the last of them not full.
    shortest = config.conv_kernel
    lengths = [
        n + shortest for n in (0, 3, config.conv_stride * (2 * STEP_FRAMES + 3) + 1)
    ]
    features = np.random.default_rng(3).normal(size=(3, max(lengths), FEATURES))
    features = features.astype(np.float32)
    lengths = np.array(lengths, np.int32)
    expected = log_softmax(model(features, lengths, training=False))
    found = acoustics.log_probs(features, lengths)
    assert found.shape == (*expected.shape[:2], CLASSES)
    for row, other, frames in zip(
        found, expected, config.output_lengths(lengths), strict=True
    ):
        np.testing.assert_allclose(row[:frames], other[:frames], atol=1e-5)
    state = acoustics.initial_state()
    start = 0
    parts = []
    for frames in (1, STEP_FRAMES + 1, 5):
        last = start + config.conv_kernel + (frames - 1) * config.conv_stride
        log_probs, state = acoustics.continued(features[2, start:last], state)
        parts.append(log_probs)
        start += frames * config.conv_stride

    whole = np.concatenate(parts)
    np.testing.assert_allclose(whole, expected[2][: len(whole)], atol=1e-5)


def check_operators(content: bytes) -> None:
    """There is no loop, and no operator of TensorFlow's."""
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content)
    assert [code.customCode for code in model.operatorCodes if code.customCode] == []
    builtin = {code.builtinCode for code in model.operatorCodes}
    assert not builtin & {schema.BuiltinOperator.WHILE, schema.BuiltinOperator.IF}
    assert len(model.subgraphs) == 1
