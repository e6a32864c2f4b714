import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.data.augmentation import VocalTract
from tfasr.data.features import FeatureConfig, compute_features

CONFIG = FeatureConfig()


def tone(hz, config=CONFIG):
    """The features of a second of a sine."""
    seconds = np.arange(config.sample_rate_hz) / config.sample_rate_hz
    return compute_features(tf.constant(0.3 * np.sin(2 * np.pi * hz * seconds), tf.float32), config)


def scaled(features, factor, config=CONFIG):
    return VocalTract(0.2, config).scaled(features, tf.constant(factor, tf.float32)).numpy()


def loudest(features):
    """The bin with most energy, frame by frame."""
    return np.asarray(features)[:, : CONFIG.num_mel_bins].argmax(axis=1)


@pytest.mark.parametrize("factor", [0.8, 0.9, 1.1, 1.2])
@pytest.mark.parametrize("hz", [700, 1500, 3000])
def test_a_tone_is_heard_where_the_scaled_frequency_lies(hz, factor):
    found, expected = loudest(scaled(tone(hz), factor)), loudest(tone(hz * factor))
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_half_the_sample_rate_stays_where_it_is(factor):
    assert np.abs(loudest(scaled(tone(7900), factor)) - loudest(tone(7900))).max() <= 1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 12), st.floats(0.7, 1.4), st.integers(0, 2**31 - 1))
def test_cepstra_are_those_of_the_scaled_energies_which_stay_within_bounds(frames, factor, seed):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(frames, CONFIG.num_features)).astype(np.float32)
    found = scaled(tf.constant(features), factor)
    assert found.shape == features.shape
    energies, cepstra = found[:, : CONFIG.num_mel_bins], found[:, CONFIG.num_mel_bins :]
    bins = np.arange(CONFIG.num_mel_bins) + 0.5
    for order in range(CONFIG.num_mfcc):
        wave = np.cos(np.pi * order * bins / CONFIG.num_mel_bins)
        expected = np.sqrt(2 / CONFIG.num_mel_bins) * energies @ wave
        np.testing.assert_allclose(cepstra[:, order], expected, atol=1e-3)
    for frame, own in zip(energies, features[:, : CONFIG.num_mel_bins], strict=True):
        assert own.min() - 1e-4 <= frame.min() <= frame.max() <= own.max() + 1e-4


def test_a_factor_of_1_changes_rounding_alone():
    np.testing.assert_allclose(scaled(tone(1000), 1.0), tone(1000), atol=2e-3)


def test_features_without_cepstra_and_of_another_band_are_scaled_too():
    config = FeatureConfig(
        sample_rate_hz=8000, num_mel_bins=40, num_mfcc=0, lower_edge_hz=100, upper_edge_hz=3800
    )
    found, expected = scaled(tone(800, config), 1.15, config), tone(920, config)
    assert found.shape == expected.shape
    assert np.abs(found.argmax(axis=1) - expected.numpy().argmax(axis=1)).max() <= 1


def test_a_seed_draws_one_vocal_tract_and_other_seeds_others():
    tract, speech = VocalTract(0.1, CONFIG), tone(1000)
    drawn = [tract.drawn(speech, tf.constant([3, n])).numpy() for n in range(12)]
    np.testing.assert_array_equal(drawn[4], tract.drawn(speech, tf.constant([3, 4])).numpy())
    assert len({features.tobytes() for features in drawn}) == 12
    places = [loudest(features)[0] for features in drawn]
    assert loudest(tone(880))[0] <= min(places) < loudest(speech)[0] < max(places)
    assert max(places) <= loudest(tone(1120))[0]
