"""Features without TensorFlow are those of TensorFlow, whole and in parts."""

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_features import CONFIGS, chirp
from tfasr.data import features as module
from tfasr.data.features import (
    FeatureConfig,
    compute_features,
    expect_many_frames,
    normalise_features,
    normalise_frames,
    numpy_features,
)

ODD = FeatureConfig(window_samples=401, step_samples=100, num_mel_bins=10, num_mfcc=0)


@pytest.mark.parametrize("config", [*CONFIGS, ODD], ids=["paper", "8 kHz", "odd window"])
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
    whole, frames, held = numpy_features(samples, config), [], samples[:0]
    for part in np.split(samples, sorted(cuts)):
        held = np.concatenate([held, part])
        frames.append(numpy_features(held, config))
        held = held[len(frames[-1]) * config.step_samples :]
    np.testing.assert_allclose(np.concatenate(frames), whole, atol=1e-5)
