"""Frames that come bit by bit are decoded as all at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.decoding.word_beam_search import BigramCounts, WordBeamSearch

ALPHABET = Alphabet(" abc_")
WORDS = ["ab", "cab", "a", "bac", "acc"]


def decoders():
    counts = BigramCounts.from_transcripts(["ab cab a", "a bac acc ab"])
    return {
        "greedy": GreedyDecoder(ALPHABET),
        "words": WordBeamSearch(ALPHABET, WORDS, beam_width=6),
        "recombined": WordBeamSearch(ALPHABET, WORDS, beam_width=3, recombine=True),
        "bigrams": WordBeamSearch(
            ALPHABET, WORDS, beam_width=6, mode="ngrams_forecast", language_model=counts
        ),
    }


DECODERS = decoders()


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(0, 30),
    cuts=st.lists(st.integers(0, 30), max_size=5),
)
def test_the_result_is_that_of_all_frames_at_once(name, seed, frames, cuts):
    decoder = DECODERS[name]
    scores = np.random.default_rng(seed).normal(0, 3, (frames, ALPHABET.num_classes))
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    log_probs = log_probs.astype(np.float32)
    utterance, begun = decoder.begin(), 0
    for end in [*sorted(min(cut, frames) for cut in cuts), frames]:
        utterance.hear(log_probs[begun:end])
        begun = end
        (expected,) = decoder.decode(log_probs[None, :end], np.array([end]))
        found = utterance.best()
        assert found.text == expected.text == utterance.best().text
        # Greedy scores are added up in another order.
        assert found.score == pytest.approx(expected.score, rel=0 if name != "greedy" else 1e-5)


def test_utterances_do_not_disturb_each_other():
    decoder = DECODERS["words"]
    clear = np.log(np.full((4, ALPHABET.num_classes), 0.02, np.float32))
    said = {}
    for word in ("ab", "a"):
        said[word] = clear.copy()
        path = [*ALPHABET.encode(word), *[ALPHABET.blank_id] * (4 - len(word))]
        said[word][np.arange(4), path] = np.log(0.9)
    first, second = decoder.begin(), decoder.begin()
    for frame in range(4):
        first.hear(said["ab"][frame : frame + 1])
        second.hear(said["a"][frame : frame + 1])
    assert (first.best().text, second.best().text) == ("ab", "a")
    with pytest.raises(ValueError, match="at most 0, not NaN"):
        first.hear(np.full((1, ALPHABET.num_classes), np.nan, np.float32))
    with pytest.raises(ValueError, match=r"shape \(time, classes\)"):
        first.hear(said["ab"][0])
    assert first.best().text == "ab"
    del decoder, first
    assert second.best().text == "a"
