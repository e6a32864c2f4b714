import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.corpora.manifests import ctc_frames_needed
from tfasr.data.augmentation import Tempo, least_frames, most_frames, resampled

LONGEST = 90


def outputs(frames):
    """A convolution of 5 frames with stride 3."""
    return (frames - 5) // 3 + 1


@pytest.fixture(scope="module")
def tempo():
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
    drawn = int(tempo.frames(tf.constant(frames), tf.constant(labels), tf.constant([seed, 1])))
    if outputs(frames) >= needed:
        assert outputs(drawn) >= needed
    assert drawn <= most_frames(frames, 0.3)
    assert drawn >= least_frames(frames, 0.3)


def test_all_lengths_between_the_bounds_occur_about_evenly(tempo):
    labels = tf.constant([1])
    seen = [int(tempo.frames(tf.constant(10), labels, tf.constant([7, n]))) for n in range(200)]
    assert set(seen) == set(range(7, 14))
    assert np.mean(seen) == pytest.approx(10, abs=0.4)
    assert int(tempo.frames(tf.constant(10), labels, tf.constant([7, 3]))) == seen[3]


@pytest.mark.parametrize("frames", [1, 2, 7, 12, 30])
def test_what_rises_evenly_rises_evenly_in_as_many_frames(frames):
    ramp = np.linspace([0, 5], [1, -5], 12, dtype=np.float32)
    found = resampled(tf.constant(ramp), tf.constant(frames)).numpy()
    expected = np.linspace(ramp[0], ramp[-1], frames)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    if frames == len(ramp):
        np.testing.assert_array_equal(found, ramp)


def test_a_tempo_that_does_not_change_leaves_all_bounds():
    assert most_frames(50, 0.0) == least_frames(50, 0.0) == 50
