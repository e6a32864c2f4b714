"""The length distribution is exact for any batch size, and kept by any fraction."""

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.bench.ds2 import LABEL_LENGTHS, RandomBlock, epoch_batches, utterance_counts

COUNTS = [3, 10, 11, 13, 14, 13, 9, 8, 5, 4, 3, 2, 2, 2, 1]


def test_the_whole_epoch_has_1280_times_the_counts():
    assert utterance_counts(1.0) == [1280 * count for count in COUNTS]
    assert sum(utterance_counts(1.0)) == 128_000


@settings(deadline=None)
@given(fraction=st.floats(1e-6, 1.0), batch_size=st.integers(1, 300))
def test_every_utterance_is_in_one_batch_and_every_batch_of_one_length(fraction, batch_size):
    counts = utterance_counts(fraction)
    seen: Counter[int] = Counter()
    smaller: Counter[int] = Counter()
    for length_s, size in epoch_batches(counts, batch_size):
        assert 0 < size <= batch_size
        seen[length_s] += size
        smaller[length_s] += size < batch_size
    assert [seen[length_s] for length_s in range(1, 16)] == counts
    assert max(smaller.values()) <= 1


@settings(deadline=None)
@given(fraction=st.floats(1e-6, 1.0))
def test_a_fraction_keeps_the_distribution_to_within_one_utterance(fraction):
    counts = utterance_counts(fraction)
    total = max(1, round(Fraction(fraction) * 128_000))
    assert sum(counts) == total
    shares = [Fraction(count * total, 100) for count in COUNTS]
    assert all(abs(count - share) < 1 for count, share in zip(counts, shares, strict=True))


@settings(deadline=None)
@given(hundreds=st.integers(1, 1280))
def test_a_fraction_of_whole_hundreds_is_exact(hundreds):
    assert utterance_counts(hundreds / 1280) == [hundreds * count for count in COUNTS]


def test_missing_utterances_go_to_the_lengths_that_lost_most():
    # 10 utterances: shares 0.3 1.0 1.1 1.3 1.4 1.3 0.9 0.8 0.5 0.4 0.3 0.2 0.2 0.2 0.1
    expected = [0, 1, 1, 1, 2, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert utterance_counts(10 / 128_000) == expected


def test_batches_are_cut_from_one_block():
    block = RandomBlock(batch_size=4, num_bins=5, num_labels=28, longest_s=3, seed=1)
    features, labels = block.cut(3, 4)
    shorter, fewer = block.cut(2, 3)
    assert features.shape == (4, 300, 5)
    assert labels.shape == (4, LABEL_LENGTHS[2])
    assert fewer.shape == (3, LABEL_LENGTHS[1])
    np.testing.assert_array_equal(shorter, features[:3, :200])
    np.testing.assert_array_equal(fewer, labels[:3, : LABEL_LENGTHS[1]])
    assert labels.min() >= 0 and labels.max() < 28
