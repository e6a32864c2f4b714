import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.layers.lstm import LSTM
from tfasr.models.recurrent import AcousticModel, AcousticModelConfig

# TensorFlow 2.21 under numpy 2.4, wherever Keras turns a variable into an array.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)

SMALL = {"conv_filters": 6, "conv_kernel": 5, "num_lstm_layers": 2, "lstm_units": 4}
FEATURES = 3


def make(seed=0, dtype=None, **sizes):
    model = AcousticModel(
        AcousticModelConfig(**{**SMALL, **sizes}), 7, seed=seed, dtype=dtype
    )
    model.build((None, None, FEATURES))
    return model


def make_batch(lengths=(20, 31, 12), seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(len(lengths), max(lengths), FEATURES)).astype(
        np.float32
    )
    for row, length in zip(features, lengths, strict=True):
        row[length:] = 0
    return features, np.array(lengths, np.int32)


def randomise_statistics(model):
    """Gives batch normalisation something to do in inference."""
    rng = np.random.default_rng(5)
    for layer in model.normalisations:
        gamma, beta, mean, variance = layer.weights
        for weight in (gamma, variance):
            weight.assign(rng.uniform(0.5, 2, weight.shape))
        for weight in (beta, mean):
            weight.assign(rng.normal(size=weight.shape))


def count(weights):
    return sum(int(np.prod(w.shape)) for w in weights)


def test_the_papers_model_has_the_parameters_counted_by_hand():
    model = AcousticModel(AcousticModelConfig(), 30)
    model.build((None, None, 93))
    convolution = 11 * 93 * 600 + 600
    lstms = 4 * 800 * (600 + 800 + 1) + 4 * (4 * 800 * (800 + 800 + 1))
    normalisations = 2 * (600 + 5 * 800)
    classifier = 800 * 30 + 30
    assert (
        count(model.trainable_weights)
        == convolution + lstms + normalisations + classifier
    )
    assert count(model.trainable_weights) == 25_623_630


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_valid_logits_and_statistics_do_not_depend_on_padding(bidirectional, training):
    features, lengths = make_batch()
    longer = np.pad(features, [(0, 0), (0, 15), (0, 0)])
    for row, length in zip(longer, lengths, strict=True):
        row[length:] = 9.0
    results = []
    statistics = []
    for inputs in (features, longer):
        model = make(bidirectional=bidirectional, dropout=0.0)
        randomise_statistics(model)
        logits = keras.ops.convert_to_numpy(model(inputs, lengths, training=training))
        frames = model.output_lengths(lengths)
        results.append([row[:n] for row, n in zip(logits, frames, strict=True)])
        statistics.append([w.numpy() for w in model.non_trainable_weights])

    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    for one, other in zip(*statistics, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_an_utterance_is_recognised_the_same_alone_and_in_a_batch():
    model = make()
    randomise_statistics(model)
    features, lengths = make_batch()
    together = model(features, lengths)
    for row, length in enumerate(lengths):
        alone = model(features[row : row + 1, :length], lengths[row : row + 1])
        np.testing.assert_allclose(together[row, : alone.shape[1]], alone[0], atol=1e-5)


def test_batch_statistics_are_those_of_the_valid_frames():
    model = make(num_lstm_layers=0, dropout=0.0)
    features, lengths = make_batch()
    hidden = keras.ops.convert_to_numpy(model.convolution(features))
    valid = np.concatenate(
        [row[:n] for row, n in zip(hidden, model.output_lengths(lengths), strict=True)]
    )
    model(features, lengths, training=True)
    (layer,) = model.normalisations
    np.testing.assert_allclose(layer.moving_mean, 0.01 * valid.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(
        layer.moving_variance, 0.99 + 0.01 * valid.var(axis=0), atol=1e-5
    )


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(7, 30))
def test_output_lengths_are_those_of_the_logits(kernel, stride, frames):
    model = make(conv_kernel=kernel, conv_stride=stride, num_lstm_layers=0)
    logits = model(
        np.zeros((1, frames, FEATURES), np.float32), np.array([frames], np.int32)
    )
    starts = range(0, frames - kernel + 1, stride)
    assert logits.shape == (1, len(starts), 7)
    assert model.output_lengths(frames) == len(starts)


def test_the_papers_example_of_a_length():
    model = AcousticModel(AcousticModelConfig(), 30)
    assert model.output_lengths(1670) == 830
    assert model.output_lengths(1671) == 831


def weights(model):
    return [w.numpy() for w in model.trainable_weights]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_seed_makes_the_weights(bidirectional):
    one, same, other = (
        weights(make(s, bidirectional=bidirectional)) for s in (1, 1, 2)
    )
    for a, b in zip(one, same, strict=True):
        np.testing.assert_array_equal(a, b)
    kernels = [(a, b) for a, b in zip(one, other, strict=True) if a.ndim > 1]
    assert len(kernels) == 2 + 2 * 2 * (1 + bidirectional)
    assert all(not np.array_equal(a, b) for a, b in kernels)
    drawn = [a.ravel()[:6].tobytes() for a, _ in kernels]
    assert len(set(drawn)) == len(drawn), "no two layers or directions begin alike"


def test_initial_weights_are_glorot_uniform():
    model = AcousticModel(AcousticModelConfig(), 30)
    model.build((None, None, 93))
    limit = np.sqrt(6 / (11 * 93 + 11 * 600))
    kernel = model.convolution.kernel.numpy()
    assert np.abs(kernel).max() <= limit
    assert kernel.std() == pytest.approx(limit / np.sqrt(3), rel=0.01)


def test_a_seed_makes_the_dropout():
    features, lengths = make_batch()
    one, same, other = (
        make(seed, dropout=0.5)(features, lengths, training=True) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    model = make(dropout=0.5)
    np.testing.assert_array_equal(model(features, lengths), model(features, lengths))


def test_forwards_no_frame_depends_on_later_ones_and_bidirectional_all_do():
    features, lengths = make_batch((31,))
    changed = features.copy()
    changed[0, 25:] += 1
    for bidirectional in (False, True):
        model = make(bidirectional=bidirectional)
        before = model(features, lengths)
        after = model(changed, lengths)
        frames_before = model.output_lengths(25)
        equal = np.allclose(
            before[0, :frames_before], after[0, :frames_before], atol=1e-7
        )
        assert equal is not bidirectional
        assert before.shape == (1, 14, 7)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_mask_reaches_the_lstms_only_where_they_run_backwards(
    monkeypatch, bidirectional, training
):
    masks = []
    inner_loop = LSTM.inner_loop

    def listening(self, sequences, initial_state, mask, training=False):
        masks.append(keras.tree.flatten(mask)[0])
        return inner_loop(self, sequences, initial_state, mask, training)

    monkeypatch.setattr(LSTM, "inner_loop", listening)
    model = make(bidirectional=bidirectional)
    logits = model(*make_batch(), training=training)
    assert len(masks) == (4 if bidirectional else 2)
    assert all((mask is not None) is bidirectional for mask in masks)
    assert bidirectional or getattr(logits, "_keras_mask", None) is None


def test_no_activation_stands_between_lstms():
    model = make(num_lstm_layers=2)
    features, lengths = make_batch()
    first, second = model.encodings(features, lengths, training=False)
    by_hand = model.normalisations[2](model.recurrent[1](first), training=False)
    np.testing.assert_allclose(second, by_hand, atol=1e-6)


def test_bidirectional_outputs_are_of_both_directions():
    model = make(bidirectional=True, batch_normalisation=False, num_lstm_layers=1)
    assert model.classifier.kernel.shape == (8, 7)
    assert not model.normalisations


def test_mixed_precision_ends_in_float32():
    model = make(dtype="mixed_bfloat16")
    features, lengths = make_batch()
    logits = model(features, lengths)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert keras.backend.standardize_dtype(model.classifier.kernel.dtype) == "float32"
    assert model.recurrent[0].compute_dtype == "bfloat16"
    exact = make()(features, lengths)
    # Logits of about 1 from layers that round to 8 bits each.
    np.testing.assert_allclose(logits, exact, atol=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"conv_stride": 0}, {"lstm_units": -1}, {"dropout": 1.0}, {"num_lstm_layers": -1}],
)
def test_senseless_sizes_are_refused(wrong):
    (field,) = wrong
    with pytest.raises(ValueError, match=f"AcousticModelConfig.{field} must be"):
        AcousticModelConfig(**wrong)
