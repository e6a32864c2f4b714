import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.data.batches import bucket_boundaries


def padded_frames(lengths, boundaries):
    boundaries = np.asarray(boundaries)
    return int(boundaries[np.searchsorted(boundaries, lengths)].sum())


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=15), st.integers(1, 5))
def test_boundaries_are_the_best_of_all(lengths, num_buckets):
    boundaries = bucket_boundaries(lengths, num_buckets)
    assert boundaries == sorted(set(boundaries))
    assert boundaries[-1] == max(lengths)
    assert 1 <= len(boundaries) <= num_buckets
    others = sorted(set(lengths) - {max(lengths)})
    best = min(
        padded_frames(lengths, [*chosen, max(lengths)])
        for size in range(min(num_buckets - 1, len(others)) + 1)
        for chosen in itertools.combinations(others, size)
    )
    assert padded_frames(lengths, boundaries) == best


def test_the_shortest_and_rare_lengths_can_be_boundaries():
    assert bucket_boundaries([10, 100], 2) == [10, 100]
    assert bucket_boundaries([10] * 5000 + [500, 1000], 3) == [10, 500, 1000]


def test_many_lengths_are_cut_well():
    lengths = np.random.default_rng(0).integers(100, 1600, 20000)
    boundaries = bucket_boundaries(lengths, 8)
    assert len(boundaries) == 8
    assert boundaries[-1] == lengths.max()
    # Uniform lengths in 8 equal buckets: half a bucket's width is padded.
    even = np.linspace(100, 1600, 9)[1:].astype(int)
    assert padded_frames(lengths, boundaries) < 1.005 * padded_frames(lengths, even)


def test_one_length_needs_one_bucket():
    assert bucket_boundaries([7, 7, 7], 8) == [7]


def test_no_utterances_are_refused():
    with pytest.raises(ValueError, match="must hold utterances"):
        bucket_boundaries([], 3)
