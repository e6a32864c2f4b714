"""How many threads the compiled parts of layers take."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.layers import compiled
from tfasr.layers.fused_call import Dropout
from tfasr.layers.geometry import conv_output_frames


@pytest.mark.parametrize(
    ("cores", "told", "environment", "replicas", "expected"),
    [
        (8, 0, None, 1, 8),
        (8, 3, None, 1, 3),
        (8, 0, "2", 1, 2),
        (8, 3, "2", 1, 3),
        (2, 16, None, 1, 2),
        (8, 0, None, 2, 4),
        (8, 0, None, 3, 2),
        (1, 0, "", 4, 1),
    ],
)
def test_they_keep_to_the_cores_and_to_what_tensorflow_was_told(
    monkeypatch, cores, told, environment, replicas, expected
):
    monkeypatch.setattr(compiled, "usable_cores", lambda: cores)
    monkeypatch.setattr(
        tf.config.threading, "get_intra_op_parallelism_threads", lambda: told
    )
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)

    if environment is not None:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", environment)

    monkeypatch.setattr(compiled, "replicas_here", lambda: replicas)

    assert compiled.team_size()() == expected


# Dropout of 16 random bits against what dropout is.


@settings(deadline=None, max_examples=40)
@given(
    rate=st.floats(0.01, 0.95),
    shape=st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 7)),
    dtype=st.sampled_from(["float32", "mixed_bfloat16", "mixed_float16"]),
)
def test_values_are_dropped_or_scaled_and_so_are_their_gradients(rate, shape, dtype):
    layer = Dropout(rate, seed=3, dtype=dtype)
    inputs = tf.cast(tf.ones(shape), layer.compute_dtype)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True)

    gradient = tape.gradient(outputs, inputs)
    assert outputs.dtype == gradient.dtype == inputs.dtype

    outputs = outputs.numpy().astype("float32")
    kept = outputs != 0
    # Numbers of bfloat16 are up to 0.8 % apart.
    tolerance = 1e-4 if dtype == "float32" else 1e-2

    np.testing.assert_allclose(outputs[kept], 1 / (1 - rate), rtol=1e-3 + tolerance)
    np.testing.assert_array_equal(gradient.numpy().astype("float32"), outputs)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.7])
def test_the_rate_and_the_expectation_are_kept(rate):
    outputs = np.asarray(
        Dropout(rate, seed=7)(np.ones((1001, 999), "float32"), training=True)
    )
    deviation = np.sqrt(rate * (1 - rate) / outputs.size)

    assert abs((outputs == 0).mean() - rate) < 5 * deviation + 1 / (1 << 17)
    assert abs(outputs.mean() - 1) < 5 * deviation / (1 - rate)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.7])
def test_neighbours_are_dropped_independently(rate):
    outputs = np.asarray(
        Dropout(rate, seed=7)(np.ones((1001, 999), "float32"), training=True)
    )

    # Neighbours share a word of random bits and must not know of each other.
    dropped = (outputs == 0).reshape(-1)
    pairs = dropped[:-1:2] & dropped[1::2]

    assert abs(pairs.mean() - rate**2) < 5 * rate / np.sqrt(pairs.size)


def test_calls_and_seeds_differ_and_repeat():
    def masks(seed):
        layer = Dropout(0.5, seed=seed)
        step = tf.function(lambda x: layer(x, training=True))
        return [step(tf.ones((8, 8))).numpy() for _ in range(2)]

    first, second = masks(1)

    assert (first != second).any()
    assert (first != masks(2)[0]).any()
    np.testing.assert_array_equal([first, second], masks(1))


@pytest.mark.parametrize(
    "options", [{"rate": 0.0}, {"rate": 0.5, "noise_shape": (None, 1)}]
)
def test_elsewhere_it_is_keras_layer(options):
    inputs = np.ones((6, 4), "float32")

    ours = Dropout(seed=1, **options)
    theirs = keras.layers.Dropout(seed=1, **options)

    for training in (False, True):
        np.testing.assert_array_equal(
            np.asarray(ours(inputs, training=training)),
            np.asarray(theirs(inputs, training=training)),
        )

    np.testing.assert_array_equal(np.asarray(Dropout(0.9)(inputs)), inputs)


def test_it_is_saved_and_loaded(tmp_path):
    model = keras.Sequential([keras.Input((3,)), Dropout(0.25, seed=5)])
    model.save(tmp_path / "model.keras")

    layer = keras.saving.load_model(tmp_path / "model.keras").layers[-1]

    assert type(layer) is Dropout
    assert layer.rate == 0.25


# Sizes that layers make of their inputs.


@pytest.mark.parametrize(
    ("frames", "left"), [(10, 0), (11, 1), (12, 1), (13, 2), (1670, 830)]
)
def test_a_valid_convolution_leaves_whole_windows(frames, left):
    assert (
        conv_output_frames(frames, 11, 2) == left == len(range(0, frames - 11 + 1, 2))
    )
