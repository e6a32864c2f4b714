import numpy as np
import pytest
import scipy.fft
import scipy.signal
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.made_corpus import noise
from tfasr.data import features as module
from tfasr.data.features import (
    PRIOR_FRAMES,
    FeatureConfig,
    compute_features,
    expect_many_frames,
    normalise_features,
    normalise_frames,
    numpy_features,
    pooled,
)

CONFIGS = [
    FeatureConfig(),
    FeatureConfig(
        sample_rate_hz=8000,
        window_samples=256,
        step_samples=80,
        num_mel_bins=20,
        num_mfcc=20,
        lower_edge_hz=100.0,
        upper_edge_hz=3800.0,
    ),
    FeatureConfig(spectrum="magnitude"),
]


def chirp(seconds=1.0, rate_hz=16000):
    """A tone that rises, with a little noise."""
    times = np.arange(round(seconds * rate_hz)) / rate_hz
    swept = 0.3 * scipy.signal.chirp(times, 80, seconds, 0.45 * rate_hz)
    return (swept + 0.02 * noise(seconds, 7)[: len(times)]).astype(np.float32)


def mel(hz):
    return 2595 * np.log10(1 + np.asarray(hz) / 700)


def independent_features(samples, config):
    """The definition, in NumPy and SciPy and float64."""
    window = scipy.signal.get_window("hann", config.window_samples)
    starts = range(0, len(samples) - config.window_samples + 1, config.step_samples)
    frames = np.stack([samples[s : s + config.window_samples] for s in starts]).astype(
        np.float64
    )

    energies = np.abs(scipy.fft.rfft(frames * window, axis=1))
    if config.spectrum == "power":
        energies = energies**2

    frequencies = scipy.fft.rfftfreq(config.window_samples, 1 / config.sample_rate_hz)
    edges = np.linspace(
        mel(config.lower_edge_hz), mel(config.upper_edge_hz), config.num_mel_bins + 2
    )
    triangles = np.stack(
        [
            np.interp(mel(frequencies), edges[b : b + 3], [0, 1, 0])
            for b in range(len(edges) - 2)
        ]
    )
    triangles[:, 0] = 0  # the constant part belongs to no filter
    log_mel = np.log(energies @ triangles.T + 1e-6)
    # SciPy's type II is twice the plain sum.
    cepstra = (
        scipy.fft.dct(log_mel, type=2, axis=1) / 2 * np.sqrt(2 / config.num_mel_bins)
    )

    return np.concatenate([log_mel, cepstra[:, : config.num_mfcc]], axis=1)


@pytest.mark.parametrize("config", CONFIGS, ids=["power", "8 kHz", "magnitude"])
@pytest.mark.parametrize(
    "samples", [chirp(), noise(0.7).astype(np.float32)], ids=["chirp", "noise"]
)
def test_features_agree_with_an_independent_computation(config, samples):
    computed = compute_features(samples, config).numpy()

    assert computed.dtype == np.float32
    np.testing.assert_allclose(
        computed, independent_features(samples, config), atol=1e-3
    )


def test_cepstra_are_scaled_equally_the_zeroth_included():
    features = compute_features(chirp(), FeatureConfig()).numpy()
    log_mel = features[:, :80]
    cepstra = features[:, 80:]

    np.testing.assert_allclose(
        cepstra[:, 0], log_mel.sum(axis=1) * np.sqrt(2 / 80), rtol=1e-4
    )

    orthonormal = scipy.fft.dct(log_mel, type=2, norm="ortho")[:, 1:13]
    np.testing.assert_allclose(cepstra[:, 1:], orthonormal, atol=1e-3)


def test_a_tone_is_loudest_in_the_filter_around_it():
    tone = np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000).astype(np.float32)

    loudest = compute_features(tone, FeatureConfig()).numpy()[:, :80].argmax(axis=1)
    centres = np.linspace(0, mel(8000), 82)[1:-1]

    assert set(loudest) == {int(np.abs(centres - mel(1000)).argmin())}


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 3000))
def test_frames_are_those_that_are_counted(num_samples):
    config = FeatureConfig(num_mel_bins=8, num_mfcc=3)
    samples = noise(1.0)[:num_samples].astype(np.float32)

    features = compute_features(samples, config)
    starts = [s for s in range(0, num_samples, 160) if s + 512 <= num_samples]

    assert features.shape == (len(starts), 11)
    assert config.num_frames(num_samples) == len(starts)


def test_offline_and_in_graph_are_one():
    config = FeatureConfig()
    samples = chirp(0.5)

    offline = compute_features(samples, config)
    dataset = tf.data.Dataset.from_tensors(samples).map(
        lambda s: compute_features(s, config)
    )

    np.testing.assert_allclose(next(iter(dataset)), offline, atol=1e-3)


def test_silence_is_finite_and_normalised_to_zero():
    features = compute_features(np.zeros(4000, np.float32), FeatureConfig())

    np.testing.assert_allclose(features[:, :80], np.log(1e-6), rtol=1e-5)
    np.testing.assert_allclose(
        normalise_features(features, FeatureConfig()), 0, atol=0.05
    )


def test_an_utterance_is_normalised_by_itself():
    features = compute_features(chirp(), FeatureConfig())
    normalised = (
        normalise_features(features, FeatureConfig()).numpy().astype(np.float64)
    )

    np.testing.assert_allclose(normalised.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(normalised.std(axis=0), 1, atol=1e-3)


def test_features_are_normalised_by_the_corpus_or_not_at_all():
    features = tf.constant([[1.0, 10.0], [3.0, 30.0]])
    mean = tf.constant([1.0, 20.0])
    deviation = tf.constant([2.0, 5.0])
    corpus = FeatureConfig(normalisation="corpus")

    normalised = normalise_features(features, corpus, mean, deviation)

    np.testing.assert_allclose(normalised, [[0, -2], [1, 2]])
    assert normalise_features(features, FeatureConfig(normalisation="none")) is features


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"num_mfcc": 81}, "num_mfcc"),
        ({"step_samples": 0}, "step_samples"),
        ({"upper_edge_hz": 9000.0}, "upper_edge_hz"),
        ({"lower_edge_hz": 8000.0}, "lower_edge_hz"),
    ],
)
def test_senseless_sizes_are_refused(wrong, named):
    with pytest.raises(ValueError, match=f"{named}|{'upper_edge_hz'}"):
        FeatureConfig(**wrong)


def test_features_without_cepstra_are_the_energies_alone():
    config = FeatureConfig(num_mfcc=0)

    assert compute_features(chirp(0.2), config).shape[1] == config.num_features == 80


# Features without TensorFlow are those of TensorFlow, whole and in parts.

ODD = FeatureConfig(window_samples=401, step_samples=100, num_mel_bins=10, num_mfcc=0)


@pytest.mark.parametrize(
    "config", [*CONFIGS, ODD], ids=["power", "8 kHz", "magnitude", "odd window"]
)
@pytest.mark.parametrize("count", [0, 255, 600, 16000])
def test_they_are_those_of_tensorflow(config, count):
    samples = chirp()[:count]

    computed = numpy_features(samples, config)
    expected = compute_features(samples, config).numpy()

    assert (computed.dtype, computed.shape) == (np.float32, expected.shape)
    np.testing.assert_allclose(computed, expected, atol=1e-3)


def test_either_transform_gives_the_same(monkeypatch):
    samples = chirp()
    monkeypatch.setattr(module, "_transforms", [np.fft.rfft])
    by_numpy = numpy_features(samples, FeatureConfig())

    expect_many_frames()

    by_scipy = numpy_features(samples, FeatureConfig())

    assert module._transforms[-1] is scipy.fft.rfft
    np.testing.assert_allclose(by_numpy, by_scipy, atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 400))
def test_a_speakers_statistics_are_those_of_more_frames_of_the_corpus(seed, count):
    rng = np.random.default_rng(seed)
    features, mean, deviation = (
        rng.normal(2, 3, (count, 3)),
        rng.normal(size=3),
        rng.random(3),
    )
    half = np.ones((PRIOR_FRAMES // 2, 3))
    everything = np.concatenate(
        [features, mean + deviation * half, mean - deviation * half]
    )

    own = features.mean(axis=0), features.std(axis=0)
    expected = everything.mean(axis=0), everything.std(axis=0)

    np.testing.assert_allclose(
        pooled(count, own, (mean, deviation)), expected, rtol=1e-9
    )

    config = FeatureConfig(num_mel_bins=3, num_mfcc=0, normalisation="speaker")
    result = normalise_frames(features, config, mean, deviation)

    np.testing.assert_allclose(
        result, (features - expected[0]) / expected[1], rtol=1e-6, atol=1e-6
    )
    assert normalise_frames(features[:0], config, mean, deviation).shape == (0, 3)


@pytest.mark.parametrize("normalisation", ["utterance", "corpus", "none"])
def test_normalisation_is_that_of_tensorflow(normalisation):
    config = FeatureConfig(num_mel_bins=3, num_mfcc=0, normalisation=normalisation)
    features = np.random.default_rng(1).normal(2, 3, (50, 3)).astype(np.float32)
    features[:, 1] = 5  # never moves
    statistics = (np.float32([1, 2, 3]), np.float32([0.5, 0, 2]))
    given_statistics = statistics if normalisation == "corpus" else (None, None)

    np.testing.assert_allclose(
        normalise_frames(features, config, *given_statistics),
        np.asarray(normalise_features(features, config, *given_statistics)),
        rtol=1e-5,
        atol=1e-5,
    )
    assert normalise_frames(features[:0], config, *given_statistics).shape == (0, 3)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 8000), max_size=4))
def test_parts_that_begin_at_a_step_have_the_frames_of_the_whole(cuts):
    config, samples = CONFIGS[1], chirp(0.5)
    whole = numpy_features(samples, config)
    frames = []
    held = samples[:0]

    for part in np.split(samples, sorted(cuts)):
        held = np.concatenate([held, part])
        frames.append(numpy_features(held, config))
        held = held[len(frames[-1]) * config.step_samples :]

    np.testing.assert_allclose(np.concatenate(frames), whole, atol=1e-5)


def test_normalising_in_a_graph_makes_tensorflow_warn_about_nothing(monkeypatch):
    warned = []
    monkeypatch.setattr(
        tf.get_logger(), "handle", lambda record: warned.append(record.getMessage())
    )
    frames = np.random.default_rng(1).normal(2, 3, (50, 3)).astype(np.float32)
    data = tf.data.Dataset.from_tensors(frames)

    (normalised,) = data.map(
        lambda features: normalise_features(features, FeatureConfig())
    )

    np.testing.assert_allclose(tf.reduce_mean(normalised, axis=0), 0, atol=1e-5)
    assert not warned
