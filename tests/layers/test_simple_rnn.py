import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.layers.clipped_rnn import ClippedReLU, SimpleRNN

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)


def twins(features, units, **options):
    """Returns Keras's layer and ours with equal random weights."""
    layers = [kind(units, **options) for kind in (keras.layers.SimpleRNN, SimpleRNN)]
    for layer in layers:
        layer.build((None, None, features))

    rng = np.random.default_rng(units)
    weights = [rng.normal(scale=0.5, size=w.shape) for w in layers[0].weights]

    for layer in layers:
        layer.set_weights(weights)

    return layers


def outputs_and_gradients(layer, inputs, mask, state):
    sources = [inputs, state]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = keras.tree.flatten(layer(inputs, mask=mask, initial_state=[state]))
        # Without a ceiling outputs grow, and the sine of thousands shows their last
        # bits alone.
        scaled = [
            o / tf.stop_gradient(tf.maximum(1.0, tf.reduce_max(tf.abs(o))))
            for o in outputs
        ]
        loss = tf.add_n([tf.reduce_sum(tf.sin(k + o)) for k, o in enumerate(scaled)])

    gradients = tape.gradient(
        loss, sources + [v.value for v in layer.trainable_variables]
    )
    return [x.numpy() for x in outputs + gradients]


@settings(deadline=None, max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 14), st.integers(1, 9), st.integers(1, 5)),
    units=st.integers(1, 40),
    ceiling=st.none() | st.sampled_from([0.5, 20.0]),
    options=st.fixed_dictionaries(
        {
            n: st.booleans()
            for n in ("return_sequences", "return_state", "go_backwards", "use_bias")
        }
    ),
    masked=st.booleans(),
)
def test_outputs_and_all_gradients_are_keras_own(
    shape, units, ceiling, options, masked
):
    batch, time, features = shape
    activation = "relu" if ceiling is None else ClippedReLU(ceiling)
    keras_own, ours = twins(features, units, activation=activation, **options)
    rng = np.random.default_rng(time)
    inputs = tf.constant(rng.normal(size=shape), tf.float32)
    state = tf.constant(rng.normal(size=(batch, units)), tf.float32)
    mask = tf.constant(rng.random((batch, time)) < 0.7) if masked else None

    expected = outputs_and_gradients(keras_own, inputs, mask, state)
    received = outputs_and_gradients(ours, inputs, mask, state)

    for x, y in zip(received, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * max(1, np.abs(y).max()))
    assert ours.last_kernel == "fused CPU"


def test_other_activations_are_left_to_keras():
    keras_own, ours = twins(3, 5, activation="tanh")
    inputs = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 3)), tf.float32)

    np.testing.assert_allclose(ours(inputs), keras_own(inputs), atol=1e-6)
    assert ours.last_kernel == "generic loop"


def test_a_saved_model_comes_back(tmp_path):
    layer = keras.layers.Bidirectional(SimpleRNN(4, activation=ClippedReLU(3)))
    model = keras.Sequential([keras.Input((None, 3)), layer])
    model.save(tmp_path / "model.keras")

    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = 5 * np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")

    np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-6)
    assert loaded.layers[0].forward_layer.last_kernel == "fused CPU"


def test_a_ceiling_must_be_positive():
    with pytest.raises(
        ValueError, match="ceiling must be positive. Received: ceiling=0"
    ):
        ClippedReLU(0)
