"""DeepMark's network: its size by independent arithmetic, its geometry, its recurrence."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.layers.clipped_rnn import BidirectionalClippedRNN
from tfasr.models.deep_speech_2 import DeepSpeech2, DeepSpeech2Config, output_frames

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)

TINY = DeepSpeech2Config(units=4, num_recurrent_layers=1, conv_filters=2)


def test_the_parameters_are_those_of_the_specification():
    # Shapes alone: no numbers are drawn.
    with keras.StatelessScope(initialize_variables=False):
        model = DeepSpeech2(DeepSpeech2Config())
        model.build()

    width = 1760
    characters = 29
    features = 75 * 32
    convolutions = (5 * 20 * 1 * 32 + 32) + (5 * 10 * 32 * 32 + 32)
    of_convolutions = 2 * (32 + 32)
    directions = 2 * (width * width + width)
    first = features * width + 2 * width + directions
    others = 6 * (width * width + 2 * width + directions)
    head = (width * width + width) + (width * characters + characters)
    expected = convolutions + of_convolutions + first + others + head
    assert expected == 69_430_301
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == expected


def test_a_second_of_frames_becomes_25_of_75_by_32_features():
    model = DeepSpeech2(DeepSpeech2Config(units=4, num_recurrent_layers=1))
    model.build()
    assert tuple(model.recurrent[0].projection.kernel.shape) == (75 * 32, 4)
    for seconds in (1, 2, 15):
        logits = model(keras.KerasTensor((3, 100 * seconds, 161)))
        assert logits.shape == (3, 25 * seconds, 29)
        assert output_frames(100 * seconds) == 25 * seconds


@settings(max_examples=8, deadline=None)
@given(frames=st.integers(1, 60))
def test_any_number_of_frames_gives_every_fourth(frames):
    model = DeepSpeech2(TINY)
    model.build()
    assert model(keras.KerasTensor((1, frames, 161))).shape[1] == output_frames(frames)
    assert output_frames(frames) == len(range(0, len(range(0, frames, 2)), 2))


@pytest.mark.parametrize("frames", [40, 41, 42, 43])
def test_the_first_convolution_is_keras_same_in_time_and_valid_in_frequency(frames):
    seen = []

    class Listening(DeepSpeech2):
        def _rectified(self, hidden):
            seen.append(hidden)
            return super()._rectified(hidden)

    model = Listening(TINY)
    model.build()
    spectrogram = np.random.default_rng(frames).standard_normal(
        (1, frames, 161), np.float32
    )
    model(spectrogram, training=False)
    same = keras.layers.Conv2D(2, (20, 5), strides=(2, 1), padding="same")
    same.build((None, None, 161, 1))
    same.set_weights(model.convolutions[0].get_weights())
    # Of "same" in frequency, valid keeps what no padding touched, and stride 2 every
    # second bin.
    expected = same(spectrogram[..., None])[:, :, 2:-2:2] / np.sqrt(1 + 1e-3)
    np.testing.assert_allclose(seen[0], expected, rtol=1e-4, atol=1e-5)


def test_the_recurrence_is_that_of_both_directions_summed():
    random = np.random.default_rng(0)
    layer = BidirectionalClippedRNN(3, clip=0.7)
    layer.build((None, None, 5))
    inputs = random.standard_normal((2, 6, 5), np.float32)
    weights = {v.path.split("/", 1)[-1]: v for v in layer.trainable_variables}
    for variable in weights.values():
        variable.assign(random.standard_normal(variable.shape).astype(np.float32))
    projected = layer.normalisation(inputs @ layer.projection.kernel.numpy()).numpy()
    expected = np.zeros((2, 6, 3))
    for direction, steps in (
        (layer.forwards, range(6)),
        (layer.backwards, range(5, -1, -1)),
    ):
        state = np.zeros((2, 3))
        for step in steps:
            cell = direction.cell
            recurrent = state @ cell.recurrent_kernel.numpy() + cell.bias.numpy()
            state = np.clip(projected[:, step] + recurrent, 0, 0.7)
            expected[:, step] += state

    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5, atol=1e-6)
    assert expected.max() > 0.7  # a sum is not clipped again


def test_a_saved_layer_is_the_same_layer():
    layer = BidirectionalClippedRNN(3, clip=2.0, seed=1)
    again = BidirectionalClippedRNN.from_config(layer.get_config())
    inputs = np.ones((1, 4, 2), np.float32)
    np.testing.assert_array_equal(layer(inputs), again(inputs))


def test_sizes_that_make_no_network_are_refused():
    with pytest.raises(ValueError, match="num_bins"):
        DeepSpeech2Config(num_bins=12)
    with pytest.raises(ValueError, match="units"):
        DeepSpeech2Config(units=0)


def trainable_ds2(**sizes):
    """Returns a small model whose statistics, offsets and scales are as if it had learnt."""
    config = DeepSpeech2Config(
        **{"units": 6, "num_recurrent_layers": 1, "conv_filters": 3, **sizes}
    )
    model = config.make(20, 7)
    model.build((None, None, 20))
    learnt(model)
    return model


def learnt(model):
    random = np.random.default_rng(1)
    for variable in model.variables:
        low = 0.5 if variable.name in ("moving_variance", "gamma") else -0.5
        if len(variable.shape) < 2:
            variable.assign(random.uniform(low, 1.0, variable.shape))


@pytest.fixture(scope="module")
def ds2():
    return trainable_ds2(num_recurrent_layers=2)


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 45), min_size=1, max_size=4),
    padding=st.integers(0, 20),
    training=st.booleans(),
    garbage=st.sampled_from([0.0, 50.0, -50.0]),
)
def test_logits_and_statistics_do_not_depend_on_padding(
    ds2, lengths, padding, training, garbage
):
    random = np.random.default_rng(len(lengths) * 100 + padding)
    features = random.standard_normal((len(lengths), max(lengths), 20), np.float32)
    longer = np.pad(features, [(0, 0), (0, padding), (0, 0)])
    for row, length in zip(longer, lengths, strict=True):
        row[length:] = garbage
    results = []
    statistics = []
    for batch in (features, longer):
        learnt(ds2)
        logits = np.asarray(ds2(batch, np.array(lengths, np.int32), training=training))
        results.append(
            [row[: output_frames(n)] for row, n in zip(logits, lengths, strict=True)]
        )
        statistics.append(
            [variable.numpy() for variable in ds2.non_trainable_variables]
        )

    for some, others in (*zip(*results, strict=True), *zip(*statistics, strict=True)):
        np.testing.assert_allclose(some, others, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", ["auto", "generic"])
def test_an_utterance_is_recognised_the_same_alone_and_in_a_batch(kernel):
    model = trainable_ds2(recurrent_kernel=kernel)
    lengths = [40, 17, 4, 1]
    random = np.random.default_rng(0)
    features = random.standard_normal((len(lengths), max(lengths), 20), np.float32)
    together = np.asarray(model(features, np.array(lengths, np.int32)))
    assert model.kernels == {"fused CPU" if kernel == "auto" else "generic loop"}
    for row, length in enumerate(lengths):
        # Alone there is no padding: without lengths, as DeepMark's batches are.
        alone = np.asarray(model(features[row : row + 1, :length]))
        np.testing.assert_allclose(
            together[row, : alone.shape[1]], alone[0], rtol=1e-4, atol=1e-4
        )


def test_no_gradient_comes_from_padded_frames():
    model = trainable_ds2()
    features = tf.random.stateless_normal((2, 30, 20), seed=(1, 2))
    lengths = tf.constant([30, 9])
    with tf.GradientTape() as tape:
        tape.watch(features)
        logits = model(features, lengths, training=True)
        loss = tf.reduce_sum(logits[0] ** 2) + tf.reduce_sum(
            logits[1, : output_frames(9)] ** 2
        )

    gradient = tape.gradient(loss, features).numpy()
    assert np.isfinite(gradient).all()
    assert (gradient[1, 9:] == 0).all()
    assert np.abs(gradient[1, :9]).max() > 0


@pytest.mark.parametrize("frames", [1, 23, 24])
def test_operations_are_those_of_the_products_in_the_graph(frames):
    config = DeepSpeech2Config(
        units=5, num_recurrent_layers=2, conv_filters=3, recurrent_kernel="generic"
    )
    model = config.make(20, 7)
    model.build((None, None, 20))
    for layer in model.recurrent:
        layer.forwards.unroll = layer.backwards.unroll = True
    forward = tf.function(
        lambda x: model(x), input_signature=[tf.TensorSpec((2, frames, 20))]
    )
    total = 0
    for operation in forward.get_concrete_function().graph.get_operations():
        if operation.type in ("MatMul", "BatchMatMulV2", "Conv2D"):
            *_, outputs = operation.outputs[0].shape
            rows = operation.outputs[0].shape.num_elements() // outputs
            total += 2 * rows * operation.inputs[1].shape.num_elements()

    assert 2 * config.flops(20, 7, frames, training=False) == total


def test_bins_and_classes_that_the_run_does_not_have_are_refused():
    with pytest.raises(UsageError, match=r"num_bins must be 20.*Received: 161"):
        DeepSpeech2Config(num_bins=161).make(20, 7)
    with pytest.raises(UsageError, match="two kernels of 5"):
        DeepSpeech2Config().make(12, 7)
