from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.layers import compiled
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.layers.fused_call import Dropout

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)


def twins(channels, **options):
    """Keras's own layer and ours, with the same weights."""
    layers = [keras.layers.BatchNormalization(**options), BatchNormalization(**options)]
    rng = np.random.default_rng(channels)
    for layer in layers:
        layer.build((None, None, channels))

    weights = [rng.uniform(0.5, 2.0, size=channels) for _ in layers[0].weights]

    for layer in layers:
        layer.set_weights(weights)

    return layers


def outputs_gradients_and_statistics(layer, inputs, mask, training=True):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=training, mask=mask)
        loss = tf.reduce_sum(tf.sin(tf.cast(outputs, "float32")))

    sources = [inputs, *(v.value for v in layer.trainable_variables)]
    gradients = tape.gradient(loss, sources)
    return [x.numpy() for x in (outputs, *gradients)] + layer.get_weights()


def assert_equal(received, expected):
    for ours, keras_own in zip(received, expected, strict=True):
        np.testing.assert_allclose(ours, keras_own, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=25)
@given(
    # One frame alone has no variance: its outputs are the difference of equal numbers
    # times 30.
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(
        lambda x: sum(x) > 3
    ),
    channels=st.sampled_from([2, 5]),
    scale=st.booleans(),
    center=st.booleans(),
    training=st.booleans(),
    masked=st.booleans(),
    core=st.sampled_from([compiled.core, None]),
)
def test_it_computes_what_keras_own_does(
    lengths, channels, scale, center, training, masked, core
):
    keras_own, ours = twins(channels, scale=scale, center=center, momentum=0.5)
    inputs = np.random.default_rng(sum(lengths)).normal(
        1, 3, size=(len(lengths), 7, channels)
    )
    inputs = tf.constant(inputs, tf.float32)
    mask = tf.sequence_mask(lengths, 7) if masked else None
    expected = outputs_gradients_and_statistics(keras_own, inputs, mask, training)

    with mock.patch.object(compiled, "core", core):
        received = outputs_gradients_and_statistics(ours, inputs, mask, training)

    assert_equal(received, expected)


@settings(deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(
        lambda x: sum(x) > 3
    ),
    channels=st.sampled_from([1, 8, 29]),
    rate=st.sampled_from([0.0, 0.1, 0.5]),
    dtype=st.sampled_from(["float32", "mixed_bfloat16"]),
    in_graph=st.booleans(),
)
def test_dropout_behind_it_is_that_of_the_dropout_layer(
    lengths, channels, rate, dtype, in_graph
):
    inputs = np.random.default_rng(sum(lengths)).normal(
        1, 3, size=(len(lengths), 40, channels)
    )
    mask = tf.sequence_mask(lengths, 40)
    results = []

    for core in (compiled.core, None):
        layer = BatchNormalization(momentum=0.5, dtype=dtype)
        dropout = Dropout(rate, seed=4, dtype=dtype)
        layer.build((None, None, channels))

        def step(inputs, layer=layer, dropout=dropout):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=True, valid=mask, dropout=dropout)
                loss = tf.reduce_sum(tf.sin(tf.cast(outputs, "float32")))

            sources = [inputs, *(v.value for v in layer.trainable_variables)]
            return [outputs, *tape.gradient(loss, sources)]

        step = tf.function(step) if in_graph else step
        given = tf.cast(inputs, layer.compute_dtype)
        with mock.patch.object(compiled, "core", core):
            result = [
                x.numpy().astype("float32") for _ in range(2) for x in step(given)
            ]

        results.append(result + layer.get_weights())

    # An activation that is rounded to bfloat16 the other way has another sine.
    tolerance = 1e-4 if dtype == "float32" else 4e-2
    for ours, theirs in zip(*results, strict=True):
        largest = max(1.0, np.abs(theirs).max())

        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance, atol=tolerance * largest
        )

    if rate:
        first = results[0][0]
        second = results[0][4]

        np.testing.assert_array_equal(first == 0, results[1][0] == 0)
        assert first.size < 100 or ((first == 0) != (second == 0)).any()


@pytest.mark.parametrize("training", [False, True])
def test_dropout_behind_it_without_a_mask(training):
    layer = BatchNormalization()
    dropout = Dropout(0.5, seed=1)
    outputs = layer(tf.ones((4, 50, 3)), training=training, dropout=dropout)
    # What is equal everywhere is normalised to zero, and else left as it is.
    expected = 0.0 if training else 1.0

    np.testing.assert_allclose(outputs, np.full((4, 50, 3), expected), atol=1e-3)


def test_second_derivatives_are_refused_by_the_compiled_part():
    inputs = tf.ones((2, 5, 3))
    mask = tf.sequence_mask([5, 2])
    layer = BatchNormalization()

    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            loss = tf.reduce_sum(layer(inputs, training=True, valid=mask) ** 2)

        gradient = inner.gradient(loss, inputs)

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        outer.gradient(gradient, inputs)


@pytest.mark.parametrize(
    ("kind", "padding"),
    [
        (BatchNormalization, 1e3),
        (BatchNormalization, np.nan),
        (BatchNormalization, np.inf),
        # Not a number is excluded by newer versions of Keras only.
        (keras.layers.BatchNormalization, 1e3),
    ],
)
def test_padded_frames_do_not_count(kind, padding):
    mask = np.arange(10) < np.array([[10], [7], [3], [0]])
    inputs = np.random.default_rng(0).normal(2, 3, size=(4, 10, 5)).astype("float32")
    inputs[~mask] = padding
    layer = kind(momentum=0.0)
    outputs = layer(inputs, training=True, mask=mask).numpy()

    mean = inputs[mask].mean(axis=0)
    variance = inputs[mask].var(axis=0)

    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance.numpy(), variance, rtol=1e-5)

    expected = (inputs[mask] - mean) / np.sqrt(variance + layer.epsilon)
    np.testing.assert_allclose(outputs[mask], expected, rtol=1e-4, atol=1e-5)


def test_a_batch_of_nothing_but_padding():
    outputs = BatchNormalization()(
        tf.ones((2, 3, 4)), training=True, mask=tf.zeros((2, 3), bool)
    )

    assert np.isfinite(outputs.numpy()).all()


def test_bfloat16_is_normalised_in_float32():
    keras_own, ours = twins(4, dtype="mixed_bfloat16")
    inputs = tf.cast(
        np.random.default_rng(0).normal(100, 1, size=(3, 50, 4)), tf.bfloat16
    )
    mask = tf.sequence_mask([50, 20, 40])

    results = [
        outputs_gradients_and_statistics(layer, inputs, mask)
        for layer in (keras_own, ours)
    ]

    assert results[1][0].dtype == results[0][0].dtype == tf.bfloat16.as_numpy_dtype

    # The gradients, too, are rounded to the inputs' eight bits.
    for index, (ours, keras_own) in enumerate(zip(*reversed(results), strict=True)):
        tolerance = 2e-2 if index < 2 else 1e-4

        ours = ours.astype("float32")
        keras_own = keras_own.astype("float32")

        np.testing.assert_allclose(ours, keras_own, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options", [{"axis": 1}, {"dtype": "float64"}, {"trainable": False}]
)
def test_everything_else_is_left_to_keras(options):
    keras_own = keras.layers.BatchNormalization(**options)
    ours = BatchNormalization(**options)
    inputs = np.random.default_rng(0).normal(size=(3, 6, 4))
    # Keras takes a mask over the first two axes along any channel axis, and broadcasts
    # it.
    mask = None if "axis" in options else tf.sequence_mask([6, 2, 3])

    expected = keras_own(inputs, training=True, mask=mask)

    np.testing.assert_array_equal(ours(inputs, training=True, mask=mask), expected)


def test_a_saved_model_comes_back(tmp_path):
    layers = [keras.layers.Masking(), BatchNormalization(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((None, 3)), *layers])
    model.compile("sgd", "mse")
    inputs, targets = np.random.default_rng(0).normal(size=(2, 4, 6, 3))
    model.fit(inputs, targets[..., :2], epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")

    loaded = keras.models.load_model(tmp_path / "model.keras")

    assert type(loaded.layers[1]) is BatchNormalization
    np.testing.assert_array_equal(loaded(inputs), model(inputs))

    keras_own = keras.layers.BatchNormalization.from_config(layers[1].get_config())
    keras_own.build((None, None, 3))

    keras_own.set_weights(layers[1].get_weights())

    np.testing.assert_array_equal(keras_own(inputs), layers[1](inputs))
