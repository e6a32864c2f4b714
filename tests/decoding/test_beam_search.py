import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.test_greedy import TINY, log_probs_of, one_path
from tfasr.decoding.decoder import BeamSearchDecoder


def best_by_all_paths(log_probs):
    """Returns the most probable labels and the logarithm of their probability."""
    frames, classes = log_probs.shape
    totals = collections.defaultdict(lambda: -np.inf)
    for path in itertools.product(range(classes), repeat=frames):
        labels = tuple(n for n, _ in itertools.groupby(path) if n != classes - 1)
        score = log_probs[range(frames), path].astype(np.float64).sum()
        totals[labels] = np.logaddexp(totals[labels], score)
    return max(totals.items(), key=lambda item: item[1])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10000), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_a_wide_beam_finds_the_best_of_all_labels(seed, lengths):
    log_probs = log_probs_of(seed, len(lengths), 5, 4)
    hypotheses = BeamSearchDecoder(TINY, 1024).decode(log_probs, np.array(lengths))
    for row, length, hypothesis in zip(log_probs, lengths, hypotheses, strict=True):
        labels, score = best_by_all_paths(row[:length])
        assert hypothesis.text == TINY.decode(labels)
        assert hypothesis.score == pytest.approx(score, abs=1e-3)


def test_it_sums_paths_where_greedy_takes_the_best():
    # The blank is the best path, but "a" has three paths.
    log_probs = np.log(np.array([[[0.4, 0.05, 0.05, 0.5]] * 2], np.float32))
    (hypothesis,) = BeamSearchDecoder(TINY, 16).decode(log_probs, np.array([2]))
    assert hypothesis.text == "a"
    assert hypothesis.score == pytest.approx(np.log(0.16 + 2 * 0.2), abs=1e-5)


def test_frames_behind_the_length_are_not_heard():
    log_probs = log_probs_of(3, 2, 9, 4)
    lengths = np.array([4, 9])
    changed = log_probs.copy()
    changed[0, 4:] = one_path([0, 1, 0, 1, 0])[0]
    decoder = BeamSearchDecoder(TINY, 32)
    assert decoder.decode(changed, lengths) == decoder.decode(log_probs, lengths)


def test_doubled_characters_with_and_without_separator():
    decoder = BeamSearchDecoder(TINY, 16)
    for path in ([0, 3, 0], [0, 2, 0]):
        assert decoder.decode(one_path(path), np.array([3]))[0].text == "aa"


def test_certainty_and_float64_are_taken():
    certain = np.full((1, 3, 4), -np.inf)
    certain[0, range(3), [0, 3, 1]] = 0
    (hypothesis,) = BeamSearchDecoder(TINY, 16).decode(certain, np.array([3]))
    assert (hypothesis.text, hypothesis.score) == ("ab", 0.0)


def test_a_beam_must_hold_something():
    with pytest.raises(ValueError, match="at least 1. Received: 0"):
        BeamSearchDecoder(TINY, 0)
