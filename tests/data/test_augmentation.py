import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.data.augmentation import AugmentationConfig, augment


def masked(config, seed, frames=60, bins=20):
    return augment(tf.ones([frames, bins]), config, tf.constant(seed, tf.int64)).numpy() == 0


def runs(flags):
    """Returns the lengths of the stretches of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags, [0]]).astype(int)))
    return (edges[1::2] - edges[::2]).tolist()


def test_nothing_is_masked_by_default():
    features = tf.random.stateless_normal([30, 5], [1, 2])
    untouched = augment(features, AugmentationConfig(), tf.constant([1, 2]))
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
