"""Which decoder a config names, within what it may ask for; no decoder is run here."""

import pytest

from tfasr import Alphabet
from tfasr.decoding.choice import (
    DECODERS,
    DecoderConfig,
    check_beam,
    load_lexicon,
    needs_lexicon,
    save_lexicon,
)
from tfasr.decoding.decoder import DecoderKind
from tfasr.decoding.word_beam_search import MAX_COUNT, BigramCounts, WordBeamSearch
from tfasr.errors import UsageError


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
    assert [name for name in DECODERS if needs_lexicon(DecoderConfig(name=name))] == ["word_beam"]
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


ALPHABET = Alphabet("ab ", separator=None)
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
        ({"mode": "ngrams", "language_model": COUNTS, "smoothing": 1.1e9}, r"smoothing must lie"),
        ({"mode": "ngrams", "language_model": COUNTS, "smoothing": -1e-9}, r"smoothing must lie"),
        ({"mode": "ngrams", "language_model": COUNTS, "smoothing": "1"}, r"smoothing must lie"),
        (
            {"mode": "ngrams", "language_model": COUNTS, "seed": 2**64},
            "seed must be an integer in 0",
        ),
        ({"mode": "ngrams"}, "needs language_model=BigramCounts"),
        ({"mode": "kenlm", "language_model": COUNTS}, "needs language_model=KenlmModel"),
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
        (["a", 3], r"strings that are not empty. Received: \['3'\]"),
        (["a", ""], r"strings that are not empty. Received: \[\"''\"\]"),
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


def test_what_is_not_said_is_greedy_and_a_beam_of_256():
    assert DecoderConfig() == DecoderConfig(name="greedy", beam_width=256, recombine=False)
    assert not DecoderConfig().recombine
    assert WordBeamSearch(ALPHABET, ["a"]).beam_width == 256


def test_messages_stay_short():
    with pytest.raises(ValueError, match="none for 12 words") as refused:
        BigramCounts({"a": 1}, {("a", f"b{n:02}"): 1 for n in range(12)})
    assert "b09" in str(refused.value)
    assert "b10" not in str(refused.value)
    with pytest.raises(ValueError, match="must be a tfasr.Alphabet") as refused:
        WordBeamSearch("x" * 60, ["a"])
    assert f"'{'x' * 50}'" in str(refused.value)
