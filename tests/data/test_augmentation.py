import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.data.augmentation import AugmentationConfig, augment


def masked(config, seed, frames=60, bins=20, mfcc=0):
    features, seed = tf.ones([frames, bins + mfcc]), tf.constant(seed, tf.int64)
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
    config = AugmentationConfig(time_masks=1, time_mask_frames=9, time_mask_fraction=0.25)
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


def test_bands_over_all_features_are_those_of_0_1_0():
    config = AugmentationConfig(frequency_masks=2, frequency_masks_over="all_features")
    over_log_mel = AugmentationConfig(frequency_masks=2)
    flags = [masked(config, [7, n], bins=20, mfcc=13) for n in range(50)]
    # As if there had been 33 log-mel features.
    np.testing.assert_array_equal(flags, [masked(over_log_mel, [7, n], bins=33) for n in range(50)])
    assert np.any(flags, axis=(0, 1))[20:].any()


def test_all_widths_and_places_occur():
    config = AugmentationConfig(time_masks=1, time_mask_frames=3, time_mask_fraction=1.0)
    seen = [masked(config, [5, n], frames=6, bins=1)[:, 0] for n in range(200)]
    assert {sum(flags) for flags in seen} == {0, 1, 2, 3}
    assert all(np.any(seen, axis=0))


def test_the_same_seed_masks_the_same_and_another_does_not():
    config = AugmentationConfig(time_masks=2, frequency_masks=2, time_mask_fraction=0.5)
    np.testing.assert_array_equal(masked(config, [1, 2]), masked(config, [1, 2]))
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
