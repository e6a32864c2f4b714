import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.corpora.manifests import ctc_frames_needed
from tfasr.data.augmentation import (
    AugmentationConfig,
    Tempo,
    VocalTract,
    augment,
    least_frames,
    most_frames,
    resampled,
)
from tfasr.data.features import FeatureConfig, compute_features


def masked(config, seed, frames=60, bins=20, mfcc=0):
    """Which features of an utterance are masked, shaped (frames, features)."""
    features = tf.ones([frames, bins + mfcc])
    seed = tf.constant(seed, tf.int64)
    return augment(features, config, seed, bins).numpy() == 0


def runs(flags):
    """Returns the lengths of the stretches of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags, [0]]).astype(int)))
    return (edges[1::2] - edges[::2]).tolist()


def test_nothing_is_masked_by_default():
    features = tf.random.stateless_normal([30, 5], [1, 2])
    untouched = augment(features, AugmentationConfig(), tf.constant([1, 2]), 5)

    np.testing.assert_array_equal(untouched, features)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31 - 1), st.integers(0, 1000), st.integers(1, 70))
def test_a_mask_covers_whole_frames_no_longer_than_allowed(order, position, frames):
    config = AugmentationConfig(
        time_masks=1, time_mask_frames=9, time_mask_fraction=0.25
    )
    flags = masked(config, [order, position], frames)

    assert (flags.all(axis=1) == flags.any(axis=1)).all(), "whole frames"

    lengths = runs(flags.any(axis=1))

    assert len(lengths) <= 1
    assert sum(lengths) <= min(9, frames // 4)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31 - 1), st.integers(1, 30))
def test_a_band_covers_whole_features_no_wider_than_allowed(order, bins):
    config = AugmentationConfig(frequency_masks=1, frequency_mask_bins=6)
    flags = masked(config, [order, 3], bins=bins)

    assert (flags.all(axis=0) == flags.any(axis=0)).all(), "whole features"

    lengths = runs(flags.any(axis=0))

    assert len(lengths) <= 1
    assert sum(lengths) <= min(6, bins)


def test_bands_leave_mfcc_alone_which_are_no_frequencies():
    config = AugmentationConfig(frequency_masks=2, frequency_mask_bins=20)
    flags = np.stack([masked(config, [7, n], bins=20, mfcc=13)[0] for n in range(200)])

    assert flags[:, :20].any(axis=0).all()
    assert not flags[:, 20:].any()


def test_all_widths_and_places_occur():
    config = AugmentationConfig(
        time_masks=1, time_mask_frames=3, time_mask_fraction=1.0
    )
    seen = [masked(config, [5, n], frames=6, bins=1)[:, 0] for n in range(200)]

    assert {sum(flags) for flags in seen} == {0, 1, 2, 3}
    assert all(np.any(seen, axis=0))


def test_the_same_seed_masks_the_same():
    config = AugmentationConfig(time_masks=2, frequency_masks=2, time_mask_fraction=0.5)
    np.testing.assert_array_equal(masked(config, [1, 2]), masked(config, [1, 2]))


def test_other_seeds_mask_others():
    config = AugmentationConfig(time_masks=2, frequency_masks=2, time_mask_fraction=0.5)

    different = {masked(config, [1, n]).tobytes() for n in range(20)}
    assert len(different) > 15


def test_senseless_masks_are_refused():
    with pytest.raises(ValueError, match="time_mask_fraction"):
        AugmentationConfig(time_mask_fraction=1.5)
    with pytest.raises(ValueError, match="frequency_masks"):
        AugmentationConfig(frequency_masks=-1)
    with pytest.raises(ValueError, match=r"tempo_change must be in 0..0.5"):
        AugmentationConfig(tempo_change=0.6)
    with pytest.raises(ValueError, match=r"vocal_tract_change must be in 0..0.5"):
        AugmentationConfig(vocal_tract_change=-0.1)
    with pytest.raises(ValueError, match="from_epoch must be an epoch, counted from 1"):
        AugmentationConfig(from_epoch=0)


LONGEST = 90


def outputs(frames):
    """A convolution of 5 frames with stride 3."""
    return (frames - 5) // 3 + 1


@pytest.fixture(scope="module")
def tempo():
    """A change of the tempo by up to 30 %."""
    return Tempo(0.3, outputs, LONGEST)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=25),
    st.integers(0, 40),
    st.integers(0, 2**31 - 1),
)
def test_labels_keep_the_output_frames_that_they_need(tempo, labels, spare, seed):
    needed = ctc_frames_needed(labels)
    frames = min(3 * (needed - 1) + 5 + spare, LONGEST)

    drawn = int(
        tempo.frames(tf.constant(frames), tf.constant(labels), tf.constant([seed, 1]))
    )

    if outputs(frames) >= needed:
        assert outputs(drawn) >= needed
    assert drawn <= most_frames(frames, 0.3)
    assert drawn >= least_frames(frames, 0.3)


def test_all_lengths_between_the_bounds_occur_about_evenly(tempo):
    labels = tf.constant([1])
    seen = [
        int(tempo.frames(tf.constant(10), labels, tf.constant([7, n])))
        for n in range(200)
    ]

    assert set(seen) == set(range(7, 14))
    assert np.mean(seen) == pytest.approx(10, abs=0.4)
    assert int(tempo.frames(tf.constant(10), labels, tf.constant([7, 3]))) == seen[3]


@pytest.mark.parametrize("frames", [1, 2, 7, 12, 30])
def test_what_rises_evenly_rises_evenly_in_as_many_frames(frames):
    ramp = np.linspace([0, 5], [1, -5], 12, dtype=np.float32)

    result = resampled(tf.constant(ramp), tf.constant(frames)).numpy()
    expected = np.linspace(ramp[0], ramp[-1], frames)

    np.testing.assert_allclose(result, expected, atol=1e-5)
    if frames == len(ramp):
        np.testing.assert_array_equal(result, ramp)


def test_a_tempo_that_does_not_change_leaves_all_bounds():
    assert most_frames(50, 0.0) == least_frames(50, 0.0) == 50


CONFIG = FeatureConfig()


def tone(hz, config=CONFIG):
    """The features of a second of a sine."""
    seconds = np.arange(config.sample_rate_hz) / config.sample_rate_hz
    return compute_features(
        tf.constant(0.3 * np.sin(2 * np.pi * hz * seconds), tf.float32), config
    )


def scaled(features, factor, config=CONFIG):
    """Features of a vocal tract that is longer or shorter by the factor."""
    return (
        VocalTract(0.2, config)
        .scaled(features, tf.constant(factor, tf.float32))
        .numpy()
    )


def loudest(features):
    """The bin with most energy, frame by frame."""
    return np.asarray(features)[:, : CONFIG.num_mel_bins].argmax(axis=1)


@pytest.mark.parametrize("factor", [0.8, 0.9, 1.1, 1.2])
@pytest.mark.parametrize("hz", [700, 1500, 3000])
def test_a_tone_is_heard_where_the_scaled_frequency_lies(hz, factor):
    result = loudest(scaled(tone(hz), factor))
    expected = loudest(tone(hz * factor))

    assert np.abs(result - expected).max() <= 1


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_half_the_sample_rate_stays_where_it_is(factor):
    assert np.abs(loudest(scaled(tone(7900), factor)) - loudest(tone(7900))).max() <= 1


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 12), st.floats(0.7, 1.4), st.integers(0, 2**31 - 1))
def test_cepstra_are_those_of_the_scaled_energies_which_stay_within_bounds(
    frames, factor, seed
):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(frames, CONFIG.num_features)).astype(np.float32)

    result = scaled(tf.constant(features), factor)

    assert result.shape == features.shape

    energies = result[:, : CONFIG.num_mel_bins]
    cepstra = result[:, CONFIG.num_mel_bins :]
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
        sample_rate_hz=8000,
        num_mel_bins=40,
        num_mfcc=0,
        lower_edge_hz=100,
        upper_edge_hz=3800,
    )

    result = scaled(tone(800, config), 1.15, config)
    expected = tone(920, config)

    assert result.shape == expected.shape
    assert np.abs(result.argmax(axis=1) - expected.numpy().argmax(axis=1)).max() <= 1


def test_a_seed_draws_one_vocal_tract_and_other_seeds_others():
    tract = VocalTract(0.1, CONFIG)
    speech = tone(1000)

    drawn = [tract.drawn(speech, tf.constant([3, n])).numpy() for n in range(12)]

    np.testing.assert_array_equal(
        drawn[4], tract.drawn(speech, tf.constant([3, 4])).numpy()
    )
    assert len({features.tobytes() for features in drawn}) == 12

    places = [loudest(features)[0] for features in drawn]

    assert loudest(tone(880))[0] <= min(places) < loudest(speech)[0] < max(places)
    assert max(places) <= loudest(tone(1120))[0]
