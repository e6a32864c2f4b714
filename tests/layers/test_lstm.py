import sys
from contextlib import nullcontext
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.layers import compiled
from tfasr.layers.lstm import LSTM

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)

OPTIONS = (
    "return_sequences",
    "return_state",
    "go_backwards",
    "zero_output_for_mask",
    "use_bias",
)


def twins(input_shape, units, **options):
    """Returns Keras's layer and ours with equal random weights."""
    layers = [keras.layers.LSTM(units, **options), LSTM(units, **options)]
    for layer in layers:
        layer.build(input_shape)

    rng = np.random.default_rng(units)
    weights = [rng.normal(scale=0.5, size=w.shape) for w in layers[0].weights]

    for layer in layers:
        layer.set_weights(weights + layer.get_weights()[len(weights) :])

    return layers


def outputs_and_gradients(layer, inputs, mask=None, states=None, **call):
    """Returns everything a call returns, and the gradients of everything it depends on."""
    sources = [inputs, *(states or [])]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = keras.tree.flatten(
            layer(inputs, mask=mask, initial_state=states, **call)
        )
        loss = tf.add_n(
            [
                tf.reduce_sum(tf.sin(k + tf.cast(o, "float32")))
                for k, o in enumerate(outputs)
            ]
        )

    gradients = tape.gradient(
        loss, sources + [v.value for v in layer.trainable_variables]
    )
    return [x.numpy() for x in outputs + gradients]


def normal(seed, *shape, dtype="float32"):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


def assert_equal(received, expected, atol=1e-5):
    assert len(received) == len(expected)
    for ours, keras_own in zip(received, expected, strict=True):
        np.testing.assert_allclose(ours, keras_own, rtol=1e-5, atol=atol)


def unbuilt_core():
    """As where the compiled core is missing."""
    return mock.patch.object(compiled, "core", None)


@settings(deadline=None, max_examples=40)
@given(
    # Batches around the rows that are multiplied at once, units around the lanes of a
    # vector.
    shape=st.tuples(st.integers(1, 14), st.integers(1, 9), st.integers(1, 5)),
    units=st.integers(1, 40),
    native=st.booleans(),
    options=st.fixed_dictionaries({name: st.booleans() for name in OPTIONS}),
    with_states=st.booleans(),
    data=st.data(),
)
def test_outputs_and_all_gradients_are_keras_own(
    shape, units, native, options, with_states, data
):
    batch, time, _ = shape
    keras_own, ours = twins(shape, units, **options)
    density = data.draw(st.none() | st.sampled_from([0.1, 0.5, 0.9]))
    draws = np.random.default_rng(time).random((batch, time))
    mask = None if density is None else tf.constant(draws < density)
    states = [normal(k, batch, units) for k in (1, 2)] if with_states else None
    inputs = normal(0, *shape)

    expected = outputs_and_gradients(keras_own, inputs, mask, states)

    with unbuilt_core() if not native else nullcontext():
        assert_equal(outputs_and_gradients(ours, inputs, mask, states), expected)
    assert ours.last_kernel == ("fused CPU" if native else "fused TensorFlow loop")


def test_gradients_are_finite_differences():
    layer = LSTM(3, dtype="float64", return_sequences=True)
    layer.build((2, 4, 2))
    mask = tf.constant([[True, True, False, True], [True, True, True, False]])
    inputs = normal(0, 2, 4, 2, dtype="float64")
    h, c = (normal(k, 2, 3, dtype="float64") for k in (1, 2))
    weights = [v.value + 0.0 for v in layer.trainable_variables]

    def call(inputs, h, c, *weights):
        variables = layer.trainable_variables
        scope = keras.StatelessScope(list(zip(variables, weights, strict=True)))
        with scope:
            return layer(inputs, initial_state=[h, c], mask=mask)

    analytic, numeric = tf.test.compute_gradient(
        call, [inputs, h, c, *weights], delta=1e-6
    )

    assert len(analytic) == 6
    for ours, difference in zip(analytic, numeric, strict=True):
        np.testing.assert_allclose(ours, difference, atol=1e-8)
    assert layer.last_kernel == "fused TensorFlow loop"


def test_configs_are_keras_own():
    keras_own = keras.layers.LSTM(4, name="x", seed=1)
    ours = LSTM(4, name="x", seed=1)

    assert ours.get_config() == keras_own.get_config()
    assert (
        LSTM(4, use_cudnn=True, name="x", seed=1).get_config() == keras_own.get_config()
    )
    assert keras.layers.LSTM.from_config(ours.get_config()).units == 4


def test_stateful_layers_go_on_where_they_stopped():
    keras_own, ours = twins((2, 4, 3), 5, stateful=True, return_sequences=True)
    for seed in range(3):
        inputs = normal(seed, 2, 4, 3)

        np.testing.assert_allclose(ours(inputs), keras_own(inputs), atol=1e-6)

    for layer in (keras_own, ours):
        layer.reset_state()

    np.testing.assert_allclose(ours(inputs), keras_own(inputs), atol=1e-6)
    assert ours.last_kernel.startswith("fused CPU")


@pytest.mark.parametrize("return_sequences", [False, True])
def test_both_directions_compute_what_keras_does(return_sequences):
    layers = [
        keras.layers.Bidirectional(kind(4, return_sequences=return_sequences))
        for kind in (keras.layers.LSTM, LSTM)
    ]
    for layer in layers:
        layer.build((2, 6, 3))

    layers[1].set_weights(layers[0].get_weights())
    mask = tf.sequence_mask([6, 3])
    inputs = normal(0, 2, 6, 3)

    expected, received = (
        outputs_and_gradients(layer, inputs, mask) for layer in layers
    )

    assert_equal(received, expected)
    assert layers[1].backward_layer.last_kernel.startswith("fused CPU")


def test_one_trace_serves_all_lengths():
    keras_own, ours = twins((None, None, 3), 5, return_sequences=True)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None, 3)),
            tf.TensorSpec((None,), tf.int32),
        ]
    )
    def step(inputs, lengths):
        mask = tf.sequence_mask(lengths, tf.shape(inputs)[1])
        with tf.GradientTape() as tape:
            outputs = ours(inputs, mask=mask)
            loss = tf.reduce_sum(tf.sin(outputs))

        return outputs, *tape.gradient(
            loss, [v.value for v in ours.trainable_variables]
        )

    for time, lengths in ((4, [4, 2]), (1, [1]), (9, [3, 9, 0])):
        inputs = normal(time, len(lengths), time, 3)

        expected = outputs_and_gradients(
            keras_own, inputs, tf.sequence_mask(lengths, time)
        )
        received = step(inputs, tf.constant(lengths))

        assert_equal(received, [expected[0], *expected[2:]])

    assert step.experimental_get_tracing_count() == 1


def test_dropout_draws_keras_own_mask():
    keras_own, ours = twins((2, 5, 6), 4, dropout=0.5, seed=3, return_sequences=True)
    inputs = normal(0, 2, 5, 6)

    expected = outputs_and_gradients(keras_own, inputs, training=True)

    assert_equal(outputs_and_gradients(ours, inputs, training=True), expected)
    assert not np.allclose(ours(inputs, training=True), ours(inputs))


@pytest.mark.parametrize(
    "options",
    [
        {"activation": "relu"},
        {"recurrent_activation": "hard_sigmoid"},
        {"recurrent_dropout": 0.5},
        {"unroll": True},
        {"dropout": 0.5, "implementation": 1, "use_cudnn": False},
    ],
)
def test_what_the_fused_kernel_does_not_compute_is_left_to_keras(options):
    keras_own, ours = twins((2, 4, 3), 5, seed=1, **options)
    inputs = normal(0, 2, 4, 3)

    expected = keras_own(inputs, training=True)

    np.testing.assert_allclose(ours(inputs, training=True), expected, atol=1e-6)
    assert ours.last_kernel == "generic loop"
    with pytest.raises(ValueError, match=f"kernel='fused' .* {next(iter(options))}="):
        LSTM(5, kernel="fused", **options)


def test_the_generic_loop_can_be_demanded():
    layer = LSTM(3, kernel="generic")
    assert layer.last_kernel is None

    layer(normal(0, 2, 4, 3))
    assert layer.last_kernel == "generic loop"


def cudnn_lstm(
    input, input_h, input_c, params, is_training, rnn_mode, sequence_lengths, time_major
):
    """Computes what cuDNN does: zeros after each sequence's end, and its last states."""
    assert (is_training, rnn_mode, time_major) == (True, "lstm", False)
    width = input.shape[2]
    units = input_h.shape[2]
    sizes = [units * width] * 4 + [units * units] * 4 + [units] * 8

    parts = tf.split(params, sizes)
    kernel = tf.concat([tf.reshape(part, (units, width)) for part in parts[:4]], 0)
    recurrent = tf.concat([tf.reshape(part, (units, units)) for part in parts[4:8]], 0)
    bias = tf.concat(parts[8:12], 0) + tf.concat(parts[12:], 0)

    hidden = input_h[:, 0]
    cell = input_c[:, 0]
    outputs = []

    for step in range(input.shape[1]):
        of_inputs = tf.matmul(input[:, step], kernel, transpose_b=True)
        of_states = tf.matmul(hidden, recurrent, transpose_b=True)

        entry, forget, new, exit_ = tf.split(of_inputs + of_states + bias, 4, axis=1)
        next_cell = tf.sigmoid(forget) * cell + tf.sigmoid(entry) * tf.tanh(new)
        next_hidden = tf.sigmoid(exit_) * tf.tanh(next_cell)

        runs = (step < sequence_lengths)[:, tf.newaxis]
        hidden = tf.where(runs, next_hidden, hidden)
        cell = tf.where(runs, next_cell, cell)
        outputs.append(tf.where(runs, next_hidden, tf.zeros_like(next_hidden)))

    return tf.stack(outputs, 1), hidden[:, tf.newaxis], cell[:, tf.newaxis], None, None


@pytest.mark.parametrize("directions", [1, 2])
def test_a_right_padded_mask_reaches_cudnn_as_lengths(monkeypatch, directions):
    """With cuDNN's operation replaced, which needs a GPU: both directions call it, and
    their results are those of the fused kernel.
    """
    layer = LSTM(4, return_sequences=True, zero_output_for_mask=True)
    if directions == 2:
        layer = keras.layers.Bidirectional(layer)

    inputs = normal(0, 3, 6, 3)
    mask = tf.sequence_mask([6, 3, 1])
    expected = outputs_and_gradients(layer, inputs, mask)
    lengths = []

    def counted(**arguments):
        lengths.append(arguments["sequence_lengths"].numpy().tolist())
        return cudnn_lstm(**arguments)

    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", counted)
    rules = sys.modules["keras.src.backend.tensorflow.rnn"]
    monkeypatch.setattr(rules, "_is_gpu_available", lambda: True)
    monkeypatch.setattr(sys.modules[LSTM.__module__], "has_gpu", lambda: True)
    received = outputs_and_gradients(layer, inputs, mask)

    assert lengths == [[6, 3, 1]] * directions

    ours = [layer] if directions == 1 else [layer.forward_layer, layer.backward_layer]

    assert [one.last_kernel for one in ours] == ["cuDNN"] * directions
    assert_equal(received, expected)


@pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="this machine has a GPU"
)
@pytest.mark.parametrize("options", [{"kernel": "cudnn"}, {"use_cudnn": True}])
def test_cudnn_without_a_gpu_fails_loudly(options):
    with pytest.raises(ValueError, match="cuDNN is not supported"):
        LSTM(3, **options)(normal(0, 2, 4, 3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_second_derivatives_are_refused(dtype):
    layer = LSTM(3, dtype=dtype)
    inputs = normal(0, 2, 4, 3, dtype=dtype)

    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            loss = tf.reduce_sum(layer(inputs) ** 2)

        gradient = inner.gradient(loss, inputs)

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        outer.gradient(gradient, inputs)


def test_an_empty_batch_gives_empty_outputs():
    assert LSTM(3, return_sequences=True)(tf.zeros((0, 4, 2))).shape == (0, 4, 3)


def test_an_unknown_kernel_is_refused():
    with pytest.raises(
        ValueError, match="kernel must be one of .* Received: kernel='fast'"
    ):
        LSTM(3, kernel="fast")


def test_bfloat16_keeps_its_states_in_float32():
    """Forty steps with rounded states drift; ours must stay nearer to float32 than Keras's."""
    inputs = normal(0, 4, 40, 8)
    exact = outputs_and_gradients(
        twins((4, 40, 8), 16, return_sequences=True)[1], inputs
    )
    options = {"return_sequences": True, "dtype": "mixed_bfloat16"}
    keras_own, ours = twins((4, 40, 8), 16, **options)

    errors = [
        [
            np.abs(x.astype("float32") - e).mean()
            for x, e in zip(result, exact, strict=True)
        ]
        for result in (
            outputs_and_gradients(layer, inputs) for layer in (keras_own, ours)
        )
    ]

    assert ours(inputs).dtype == tf.bfloat16
    assert ours.last_kernel.startswith("fused CPU")
    assert errors[1][0] < 0.7 * errors[0][0]
    for ours_error, keras_error in zip(errors[1][1:], errors[0][1:], strict=True):
        assert ours_error < keras_error
