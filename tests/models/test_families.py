"""What all model families promise, on every backend that is installed."""

import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models.families import (
    CLASSES,
    FEATURES,
    LENGTHS,
    SIZES,
    batch,
    built,
    config,
    logits,
)
from tfasr.errors import UsageError
from tfasr.models.model import MODELS, can_stream, estimated_step_bytes, model_flops
from tfasr.models.recurrent import zero_output_layer

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)


@pytest.fixture(scope="module")
def models():
    """Every family's small model."""
    return {name: built(name) for name in SIZES}


@pytest.fixture(params=SIZES)
def name(request):
    """A family's name."""
    return request.param


def test_every_family_that_comes_with_tfasr_is_tried_here():
    own = {
        name for name in MODELS if MODELS.entry(name).module.startswith("tfasr.models")
    }
    assert own == {name.removeprefix("bidirectional_") for name in SIZES}


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_answer_the_same(models, backend, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}, one of Keras's backends: pip install {backend}")
    command = [
        sys.executable,
        "-m",
        "tests.models.families",
        str(tmp_path / "logits.npz"),
    ]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    subprocess.run(command, env=environment, check=True)
    found = np.load(tmp_path / "logits.npz")
    assert set(found) == set(SIZES)
    for name, model in models.items():
        np.testing.assert_allclose(
            found[name], logits(model, *batch()), rtol=1e-3, atol=1e-4
        )


def test_a_model_must_name_its_last_layer_before_its_weights_are_changed():
    class Unnamed(keras.Sequential):
        classifier = keras.layers.Dense(3)

    class Named(keras.Sequential):
        def output_layer(self):
            return self.layers[-1]

    with pytest.raises(UsageError, match=r"= True .*Unnamed.*output_layer\(\)"):
        zero_output_layer(Unnamed([keras.layers.Dense(3)]))
    with pytest.raises(
        UsageError, match=r"zero_output_layer = True .*Received: a ReLU"
    ):
        zero_output_layer(Named([keras.layers.ReLU()]))
    model = Named([keras.Input((2,)), keras.layers.Dense(3)])
    zero_output_layer(model)
    assert not np.asarray(model.layers[-1].kernel).any()


def test_no_frame_prefers_a_class_when_the_last_layer_is_zero(models, name):
    model = models[name]
    kernel = model.classifier.kernel.numpy()
    assert logits(model, *batch()).std() > 0
    zero_output_layer(model)
    after = logits(model, *batch())
    model.classifier.kernel.assign(kernel)
    np.testing.assert_array_equal(
        after, np.broadcast_to(model.classifier.bias.numpy(), after.shape)
    )


def test_neither_padding_nor_neighbours_change_an_utterance(models, name):
    model = models[name]
    together = logits(model, *batch(padding=3.0, more=9))
    for row, length in enumerate(LENGTHS):
        features, _ = batch()
        alone = logits(
            model, features[row : row + 1, :length], np.array([length], np.int32)
        )
        frames = config(name).output_lengths(length)
        assert alone.shape[1] == frames
        np.testing.assert_allclose(
            together[row, :frames], alone[0], rtol=1e-4, atol=1e-5
        )


def test_what_can_stream_does_not_look_ahead_and_what_cannot_does(models, name):
    features, lengths = batch()
    changed = features.copy()
    changed[1, -6:] += 5.0
    before, after = (
        logits(models[name], one, lengths)[1] for one in (features, changed)
    )
    # Of the first frames: ten of stride 2 and kernel 11 end before the change.
    same = np.allclose(before[:10], after[:10], atol=1e-6)
    assert same == can_stream(config(name))


def test_batch_statistics_leave_padding_out(models, name):
    # A pass in training, whose moving statistics tell what it saw.
    variables = [v for v in models[name].variables if v.name.startswith("moving_")]
    kept = [keras.ops.convert_to_numpy(v) for v in variables]
    seen = []
    for padding in (0.0, 3.0):
        keras.utils.set_random_seed(0)
        models[name](*batch(padding=padding), training=True)
        seen.append([keras.ops.convert_to_numpy(v) for v in variables])
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)

    assert variables
    for first, second in zip(*seen, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)


def test_operations_grow_with_the_frames_and_training_takes_three_times_as_many(name):
    one, two = (
        model_flops(config(name), FEATURES, CLASSES, 1, frames, training=False)
        for frames in (400, 800)
    )
    assert 1.9 * one < two < 4 * one
    trained = model_flops(config(name), FEATURES, CLASSES, 1, 400, training=True)
    assert 2 * one < trained <= 3 * one
    assert estimated_step_bytes(config(name), FEATURES, 1000, 16, 400) > 2**29


def products(operation) -> int:
    """Operations of one node of a graph, 2 for each product and sum."""
    if operation.type not in (
        "MatMul",
        "BatchMatMulV2",
        "Conv2D",
        "DepthwiseConv2dNative",
    ):
        return 0
    outputs = operation.outputs[0].shape.num_elements()
    if operation.type in ("MatMul", "BatchMatMulV2"):
        transposed = operation.get_attr(
            "transpose_a" if operation.type == "MatMul" else "adj_x"
        )
        return 2 * outputs * operation.inputs[0].shape[-2 if transposed else -1]

    if operation.type == "Conv2D":
        return 2 * outputs * operation.inputs[1].shape[:3].num_elements()
    return 2 * outputs * operation.inputs[1].shape[:2].num_elements()


@pytest.mark.parametrize("name", ["separable_conv", "conformer"])
def test_operations_are_those_of_the_graph(name, monkeypatch):
    # A dilated convolution pads its frames to a multiple of the dilation, and
    # multiplies them.
    monkeypatch.setattr("tfasr.models.separable_conv._LAST_DILATION", 1)
    small = type(config(name))(**SIZES[name])
    model = small.make(FEATURES, CLASSES, seed=0, dtype=None)
    model.build((None, None, FEATURES))
    shapes = [tf.TensorSpec((1, 41, FEATURES)), tf.TensorSpec((1,), tf.int32)]
    forward = tf.function(
        lambda x, n: model(x, n, training=False), input_signature=shapes
    )
    operations = forward.get_concrete_function().graph.get_operations()
    expected = model_flops(small, FEATURES, CLASSES, 1, 41, training=False)
    assert sum(map(products, operations)) == expected
