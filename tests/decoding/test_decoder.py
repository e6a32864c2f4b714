import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr import Alphabet as tfasr_Alphabet
from tfasr.alphabet import Alphabet
from tfasr.decoding.choice import (
    DECODERS,
    DecoderConfig,
    check_beam,
    load_lexicon,
    make_decoder,
    needs_lexicon,
    save_lexicon,
)
from tfasr.decoding.decoder import (
    BeamSearchDecoder,
    DecoderKind,
    GreedyDecoder,
    MiddleRescoring,
    PriorDivision,
    ctc_log_probs,
)
from tfasr.decoding.word_beam_search import MAX_COUNT, BigramCounts, WordBeamSearch
from tfasr.errors import UsageError

TINY = Alphabet("ab_", "_")


def log_probs_of(seed, *shape):
    logits = np.random.default_rng(seed).normal(scale=2, size=shape)
    return (logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)).astype(
        np.float32
    )


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
@given(st.integers(0, 1000), st.floats(0, 1))
def test_priors_are_divided_out_to_a_power(seed, weight):
    class Kept:
        def decode(self, log_probs, lengths):
            self.received = log_probs
            return [None]

        def decode_n_best(self, log_probs, lengths, n_best):
            return [log_probs, lengths, n_best]

    kept = Kept()
    log_probs = log_probs_of(seed, 1, 7, 4)
    log_priors = log_probs_of(seed + 1, 4)
    given_ = log_probs.copy()
    lengths = np.array([7])
    PriorDivision(kept, log_priors, weight).decode(log_probs, lengths)
    wanted = (
        np.exp(log_probs.astype(float)) / np.exp(log_priors.astype(float)) ** weight
    )
    wanted /= wanted.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(np.exp(kept.received), wanted, rtol=1e-4)
    assert kept.received.dtype == np.float32 and kept.received.max() <= 0
    several = PriorDivision(kept, log_priors, weight).decode_n_best(
        log_probs, lengths, 9
    )
    np.testing.assert_array_equal(several[0], kept.received)
    assert several[1:] == [lengths, 9]
    # Another decoder may read them too.
    np.testing.assert_array_equal(log_probs, given_)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.lists(st.integers(0, 7), min_size=1, max_size=4))
def test_it_is_the_best_path_of_the_valid_frames(seed, lengths):
    log_probs = log_probs_of(seed, len(lengths), 7, 4)
    hypotheses = GreedyDecoder(TINY).decode(log_probs, np.array(lengths))
    for row, length, hypothesis in zip(log_probs, lengths, hypotheses, strict=True):
        path = row[:length].argmax(axis=1)
        labels = [label for label, _ in itertools.groupby(path) if label != 3]
        assert hypothesis.text == "".join("ab_"[n] for n in labels).replace("_", "")
        assert hypothesis.score == pytest.approx(
            row[:length].max(axis=1).sum(), abs=1e-5
        )


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
    assert isinstance(make_decoder(DecoderConfig(name="greedy"), TINY), GreedyDecoder)
    assert isinstance(
        make_decoder(DecoderConfig(name="beam", beam_width=4), TINY), BeamSearchDecoder
    )
    with pytest.raises(ValueError, match="beam_width must be 1..65536"):
        DecoderConfig(beam_width=0)
    with pytest.raises(
        ValueError, match="name must be a known decoder: greedy, beam, word_beam"
    ):
        DecoderConfig(name="best")


def by_all_paths(log_probs):
    """Returns the logarithm of the probability of all labels that have a path."""
    frames, classes = log_probs.shape
    totals = collections.defaultdict(lambda: -np.inf)
    for path in itertools.product(range(classes), repeat=frames):
        labels = tuple(n for n, _ in itertools.groupby(path) if n != classes - 1)
        score = log_probs[range(frames), path].astype(np.float64).sum()
        totals[labels] = np.logaddexp(totals[labels], score)

    return totals


def best_by_all_paths(log_probs):
    return max(by_all_paths(log_probs).items(), key=lambda item: item[1])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10000), st.integers(0, 5))
def test_probabilities_of_labels_are_the_sums_of_their_paths(seed, frames):
    log_probs = log_probs_of(seed, frames, 4)
    totals = by_all_paths(log_probs)
    labels = [
        labels for n in range(4) for labels in itertools.product(range(3), repeat=n)
    ]
    found = ctc_log_probs(log_probs, labels)
    np.testing.assert_allclose(
        found, [totals[one] for one in labels], rtol=1e-5, atol=1e-5
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10000), st.floats(0.1, 2), st.booleans())
def test_the_middle_layer_scores_the_best_hypotheses_again(seed, weight, divided):
    last, middle = log_probs_of(seed, 2, 2, 5, 4)
    alphabet = Alphabet("ab ", None)
    search = WordBeamSearch(alphabet, ["a", "ab", "bb"], beam_width=64)
    if divided:
        search = PriorDivision(search, log_probs_of(seed + 1, 4), 0.5)
    lengths = np.array([5, 3])
    swapped = [[1], [0, 2], [2]]
    rescoring = MiddleRescoring(search, alphabet, swapped, weight)
    found = rescoring.decode(np.concatenate([last, middle], axis=-1), lengths)
    rows = zip(
        search.decode_n_best(last, lengths, 64), middle, lengths, found, strict=True
    )
    for hypotheses, log_probs, length, best in rows:
        totals = by_all_paths(log_probs[:length])

        def score(hypothesis, totals=totals):
            labels = [
                m for label in alphabet.encode(hypothesis.text) for m in swapped[label]
            ]
            return hypothesis.score + weight * totals[tuple(labels)]

        wanted = max(hypotheses, key=score)
        if np.isneginf(score(hypotheses[0])):
            assert best == hypotheses[0]
            continue

        assert best.score == pytest.approx(score(wanted), abs=1e-4)
        assert best.text in {
            h.text for h in hypotheses if score(h) > score(wanted) - 1e-4
        }


def test_a_text_too_long_for_the_middle_layers_frames_stays_the_best():
    alphabet = Alphabet("ab ", None)
    last = np.log(np.array([[[0.05, 0.05, 0.85, 0.05]] * 2], np.float32))
    last[0, 0, :3] = np.log([0.85, 0.05, 0.05])  # "a "
    search = WordBeamSearch(alphabet, ["a"], beam_width=64, collapse_spaces=False)
    (alone,) = search.decode(last, np.array([2]))
    # "aa" needs a blank
    rescoring = MiddleRescoring(search, alphabet, [[0, 0], [1], [2]], 1e-6)
    (best,) = rescoring.decode(np.concatenate([last, last], axis=-1), np.array([2]))
    assert best == alone and alone.text.startswith("a")


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


# Which decoder a config names, within what it may ask for; no decoder is run here.


@pytest.mark.parametrize("width", [1, 65536])
def test_a_beam_may_be_that_wide(width):
    assert DecoderConfig(name="beam", beam_width=width).beam_width == width


@pytest.mark.parametrize("width", [0, -1, 65537])
def test_a_beam_may_not_be_that_wide(width):
    with pytest.raises(ValueError, match=rf"beam_width must be 1\.\.65536.*{width}"):
        DecoderConfig(name="beam", beam_width=width)


def test_a_beam_that_memory_does_not_hold_is_told_half_of_what_it_holds():
    # 220 bytes a class and frame: 220 * 30 * 400 = 2.64 MB a unit of width.
    beam = DecoderConfig(name="beam", beam_width=1001)
    check_beam(beam, 30, 400, 1001 * 2_640_000)
    with pytest.raises(
        UsageError, match=r"into 2\.5 GiB.*needs about 2\.5 GiB.*--beam_width 500 or"
    ):
        check_beam(beam, 30, 400, 1001 * 2_640_000 - 1)

    with pytest.raises(UsageError, match="--beam_width 1 or less"):
        check_beam(beam, 30, 400, 1000)
    check_beam(DecoderConfig(name="word_beam", beam_width=1001), 30, 400, 1000)


def test_a_decoder_of_ones_own_needs_no_lexicon_and_has_a_beam_unless_it_says_otherwise():
    own = DecoderKind(lambda *_: None)
    assert (own.needs_lexicon, own.has_beam, own.label) == (False, True, "")
    assert [name for name in DECODERS if needs_lexicon(DecoderConfig(name=name))] == [
        "word_beam"
    ]
    assert not DECODERS["greedy"].has_beam


def test_a_lexicon_is_kept_a_word_a_line(tmp_path):
    save_lexicon(tmp_path, ["no", "yes"])
    assert (tmp_path / "lexicon.txt").read_text() == "no\nyes\n"
    assert load_lexicon(tmp_path) == ["no", "yes"]
    save_lexicon(tmp_path, [])
    with pytest.raises(UsageError, match="is empty"):
        load_lexicon(tmp_path)


def test_counts_are_what_a_float_holds_exactly():
    assert MAX_COUNT == 2**53
    assert BigramCounts({"a": 2**53}, {}).unigrams["a"] == float(2**53)
    for wrong in (2**53 + 1, 0, -1, 1.0):
        with pytest.raises(ValueError, match=r"integers in 1\.\.2\*\*53"):
            BigramCounts({"a": 1}, {("a", "a"): wrong})


ALPHABET = tfasr_Alphabet("ab ", separator=None)
COUNTS = BigramCounts({"a": 1}, {})


@pytest.mark.parametrize(
    "options",
    [
        {"beam_width": 1},
        {"beam_width": 65536},
        {"num_threads": 1},
        {"num_threads": 1024},
        {"mode": "ngrams", "language_model": COUNTS, "smoothing": 0},
        {"mode": "ngrams", "language_model": COUNTS, "smoothing": 1e9},
        {"mode": "ngrams_forecast", "language_model": COUNTS, "seed": 2**64 - 1},
        {"mode": "ngrams_forecast_sample", "language_model": COUNTS, "seed": 0},
    ],
)
def test_word_beam_search_takes_the_ends_of_its_ranges(options):
    found = WordBeamSearch(ALPHABET, ["a"], **options)
    assert found.beam_width == options.get("beam_width", 256)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 65537}, r"beam_width must be an integer in 1\.\.65536"),
        ({"beam_width": True}, "beam_width=True"),
        ({"num_threads": 1025}, r"num_threads must be an integer in 1\.\.1024"),
        (
            {"mode": "ngrams", "language_model": COUNTS, "smoothing": 1.1e9},
            r"smoothing must lie",
        ),
        (
            {"mode": "ngrams", "language_model": COUNTS, "smoothing": -1e-9},
            r"smoothing must lie",
        ),
        (
            {"mode": "ngrams", "language_model": COUNTS, "smoothing": "1"},
            r"smoothing must lie",
        ),
        (
            {"mode": "ngrams", "language_model": COUNTS, "seed": 2**64},
            "seed must be an integer in 0",
        ),
        ({"mode": "ngrams"}, "needs language_model=BigramCounts"),
        (
            {"mode": "kenlm", "language_model": COUNTS},
            "needs language_model=KenlmModel",
        ),
        ({"mode": "words", "language_model": COUNTS}, "takes no language model"),
        ({"mode": "none"}, "mode must be one of"),
        ({"word_characters": "ac"}, r"with \['c'\]"),
    ],
)
def test_word_beam_search_names_what_is_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        WordBeamSearch(ALPHABET, ["a"], **options)


@pytest.mark.parametrize(
    ("lexicon", "message"),
    [
        (["a", 3], r"non-empty strings. Received: \['3'\]"),
        (["a", ""], r"non-empty strings. Received: \[\"''\"\]"),
        ([], "at least one word"),
        ("ab", "an iterable of words"),
        (["a", "c", "ad"], r"2 words with the characters \['c', 'd'\]: \['ad', 'c'\]"),
    ],
)
def test_words_that_cannot_be_written_are_named(lexicon, message):
    with pytest.raises(ValueError, match=message):
        WordBeamSearch(ALPHABET, lexicon)


def test_ten_of_many_words_are_named():
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - what it says is looked at
        WordBeamSearch(ALPHABET, list(range(12)))
    assert str(refused.value).count("'") == 20


def test_where_nobody_counts_the_cores_there_is_one(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert WordBeamSearch(ALPHABET, ["a"]).num_threads == 1
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert WordBeamSearch(ALPHABET, ["a"]).num_threads == 3


def test_what_is_not_said_is_word_beam_search_with_256_beams():
    assert DecoderConfig() == DecoderConfig(
        name="word_beam", beam_width=256, recombine=False
    )
    assert not DecoderConfig().recombine
    assert WordBeamSearch(ALPHABET, ["a"]).beam_width == 256


def test_messages_stay_short():
    with pytest.raises(ValueError, match="12 words without") as refused:
        BigramCounts({"a": 1}, {("a", f"b{n:02}"): 1 for n in range(12)})
    assert "b09" in str(refused.value)
    assert "b10" not in str(refused.value)
    with pytest.raises(ValueError, match="must be a tfasr.Alphabet") as refused:
        WordBeamSearch("x" * 60, ["a"])
    assert f"'{'x' * 50}'" in str(refused.value)
