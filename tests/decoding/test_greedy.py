import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet
from tfasr.decoding.choice import DecoderConfig, make_decoder
from tfasr.decoding.decoder import BeamSearchDecoder, GreedyDecoder

TINY = Alphabet("ab_", "_")


def log_probs_of(seed, *shape):
    logits = np.random.default_rng(seed).normal(scale=2, size=shape)
    return (logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)).astype(np.float32)


def one_path(path, classes=4):
    log_probs = np.full((1, len(path), classes), -10, np.float32)
    log_probs[0, range(len(path)), path] = -0.1
    return log_probs


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ([0, 0, 1], "ab"),
        ([0, 3, 0], "aa"),
        ([0, 2, 0], "aa"),
        ([3, 3, 3], ""),
        ([3, 0, 0, 3, 3, 1, 1, 3], "ab"),
        ([2, 2], ""),
    ],
)
def test_repeats_blanks_and_separators_are_removed(path, text):
    (hypothesis,) = GreedyDecoder(TINY).decode(one_path(path), np.array([len(path)]))
    assert hypothesis.text == text
    assert hypothesis.score == pytest.approx(-0.1 * len(path), rel=1e-5)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.lists(st.integers(0, 7), min_size=1, max_size=4))
def test_it_is_the_best_path_of_the_valid_frames(seed, lengths):
    log_probs = log_probs_of(seed, len(lengths), 7, 4)
    hypotheses = GreedyDecoder(TINY).decode(log_probs, np.array(lengths))
    for row, length, hypothesis in zip(log_probs, lengths, hypotheses, strict=True):
        path = row[:length].argmax(axis=1)
        labels = [label for label, _ in itertools.groupby(path) if label != 3]
        assert hypothesis.text == "".join("ab_"[n] for n in labels).replace("_", "")
        assert hypothesis.score == pytest.approx(row[:length].max(axis=1).sum(), abs=1e-5)


@pytest.mark.parametrize("make", [GreedyDecoder, BeamSearchDecoder])
def test_wrong_shapes_and_lengths_are_refused(make):
    decoder = make(TINY)
    good = log_probs_of(0, 2, 5, 4)
    with pytest.raises(ValueError, match=r"\(batch, time, 4\).*\(2, 5, 3\)"):
        decoder.decode(good[:, :, :3], np.array([5, 5]))
    with pytest.raises(ValueError, match=r"\(batch, time, 4\)"):
        decoder.decode(good[0], np.array([5]))
    with pytest.raises(ValueError, match=r"lengths must have the shape \(2,\)"):
        decoder.decode(good, np.array([5]))
    for lengths in ([6, 5], [-1, 5]):
        with pytest.raises(ValueError, match=r"must lie in 0\.\.5"):
            decoder.decode(good, np.array(lengths))


@pytest.mark.parametrize("make", [GreedyDecoder, BeamSearchDecoder])
def test_nothing_is_heard_in_no_frames(make):
    decoder = make(TINY)
    for shape, lengths in (((2, 5, 4), [0, 0]), ((2, 0, 4), [0, 0]), ((0, 5, 4), [])):
        found = decoder.decode(log_probs_of(0, *shape), np.array(lengths, int))
        assert [(h.text, h.score) for h in found] == [("", 0.0)] * len(lengths)


def test_a_config_names_the_decoder():
    assert isinstance(make_decoder(DecoderConfig(), TINY), GreedyDecoder)
    assert isinstance(
        make_decoder(DecoderConfig(name="beam", beam_width=4), TINY), BeamSearchDecoder
    )
    with pytest.raises(ValueError, match="beam_width must be 1..65536"):
        DecoderConfig(beam_width=0)
    with pytest.raises(ValueError, match="name must be a known decoder: greedy, beam, word_beam"):
        DecoderConfig(name="best")
