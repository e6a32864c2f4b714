"""Hot words: what they add to a text's score, in a file and in both beam searches."""

import gzip
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr import Alphabet
from tfasr.decoding.choice import DecoderConfig, make_decoder, with_hot_words
from tfasr.decoding.hot_words import MOST_PER_CLASS, hot_words_of, most_added
from tfasr.decoding.word_beam_search import WordBeamSearch
from tfasr.errors import UsageError

ALPHABET = Alphabet("ab ", separator=None)
WIDE = 5000  # keeps every beam of these small problems


def texts_with_scores(probabilities, hot_words, allowed=None):
    """Returns each text's log score: the best of its class sequences, each summed over
    its paths.

    ``allowed``: the words of a dictionary, or None for any.
    """
    sequences = {}
    for path in itertools.product(range(4), repeat=len(probabilities)):
        labels = tuple(label for label, _ in itertools.groupby(path) if label != 3)
        probability = math.prod(probabilities[t][label] for t, label in enumerate(path))
        sequences[labels] = sequences.get(labels, 0.0) + probability

    scores = {}
    for labels, probability in sequences.items():
        words = "".join(ALPHABET.characters[label] for label in labels).split()
        if allowed is not None and not set(words) <= set(allowed):
            continue
        added = (min(hot_words[w], 3.0 * (len(w) + 1)) for w in words if w in hot_words)
        score = math.log(probability) + sum(added)
        text = " ".join(words)
        scores[text] = max(score, scores.get(text, -math.inf))

    return scores


FRAMES = st.lists(
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4).map(
        lambda row: np.array(row) / sum(row)
    ),
    min_size=1,
    max_size=5,
)
WEIGHTS = st.dictionaries(
    st.sampled_from(["a", "b", "ab", "ba", "aa", "abb"]),
    st.floats(-6, 100),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(frames=FRAMES, hot_words=WEIGHTS)
def test_any_words_are_found_with_each_hot_words_weight_added(frames, hot_words):
    expected = texts_with_scores(frames, hot_words)
    search = WordBeamSearch(ALPHABET, None, WIDE, hot_words=hot_words, num_threads=1)
    log_probs = np.log(np.array(frames, np.float32))[None]
    (found,) = search.decode_n_best(log_probs, np.array([len(frames)]), 50)
    assert {h.text: pytest.approx(h.score, abs=1e-4) for h in found} == {
        text: expected[text] for text in (h.text for h in found)
    }
    assert found[0].score == pytest.approx(max(expected.values()), abs=1e-4)
    # The same from frames that arrive one by one.
    utterance = search.begin()
    for frame in log_probs[0]:
        utterance.hear(frame[None])
    assert utterance.best() == found[0]


@settings(deadline=None, max_examples=60)
@given(frames=FRAMES, hot_words=WEIGHTS, recombine=st.booleans())
def test_a_dictionarys_words_are_found_with_the_weights_added(
    frames, hot_words, recombine
):
    lexicon = ["a", "bb", "ab"]
    expected = texts_with_scores(frames, hot_words, {*lexicon, *hot_words})
    search = WordBeamSearch(
        ALPHABET, lexicon, WIDE, hot_words=hot_words, recombine=recombine, num_threads=1
    )
    log_probs = np.log(np.array(frames, np.float32))[None]
    (found,) = search.decode(log_probs, np.array([len(frames)]))
    # A last word that only one word can complete is completed, which `expected` doesn't
    # know.
    if found.text in expected and not recombine:
        assert found.score >= max(expected.values()) - 1e-4
    assert (
        set(found.text.split()) <= {*lexicon, *hot_words} or found.text not in expected
    )


@settings(deadline=None, max_examples=60)
@given(
    said=st.text("a", max_size=4),
    pauses=st.lists(st.integers(0, 6), min_size=5, max_size=5),
    hot_words=st.dictionaries(
        st.sampled_from(["b", "bb", "bbb", "bbbb"]), st.floats(5, 100), min_size=1
    ),
    is_open=st.booleans(),
)
def test_no_weight_writes_a_word_into_a_pause(said, pauses, hot_words, is_open):
    unlikely = 1e-6
    rows = []
    for number, pause in enumerate(pauses):
        rows += [3] * (pause + 1)
        if number < len(said):
            rows.append(0)

    frames = np.full((1, len(rows), 4), unlikely, np.float32)
    frames[0, np.arange(len(rows)), rows] = 1 - 3 * unlikely
    lexicon = None if is_open else [*filter(None, [said]), "a"]
    search = WordBeamSearch(ALPHABET, lexicon, WIDE, hot_words=hot_words, num_threads=1)
    (found,) = search.decode(np.log(frames), np.array([len(rows)]))
    assert found.text == said


@pytest.mark.parametrize(
    ("alphabet", "word", "classes"),
    [
        (ALPHABET, "ab", 3),  # and a space
        (Alphabet(), "cool", 5),  # the separator between equal letters is optional
        (Alphabet("上北京海", separator=None), "北", 1),
        (Alphabet("上北京海 ab", separator=None), "北", 1),
        (Alphabet("上北京海 ab", separator=None), "ab", 3),
    ],
)
def test_what_a_word_adds_is_bounded_by_its_classes(alphabet, word, classes, caplog):
    assert most_added(word, alphabet) == MOST_PER_CLASS * classes
    hot_words_of({word: MOST_PER_CLASS * classes}, alphabet)
    assert not caplog.text
    hot_words_of({word: 60.0}, alphabet)
    assert "the weights of 1 are lowered" in caplog.text
    assert f"{word} 60 to {3 * classes}" in caplog.text


def confident(text, chance=0.9):
    """Returns log-probabilities in which each character is the likeliest of its frame."""
    frames = np.full((1, 2 * len(text), 4), (1 - chance) / 3, np.float32)
    for number, character in enumerate(text):
        frames[0, 2 * number, ALPHABET.characters.index(character)] = chance
        frames[0, 2 * number + 1, 3] = chance

    return np.log(frames), np.array([2 * len(text)])


@pytest.mark.parametrize("name", ["beam", "word_beam"])
@pytest.mark.parametrize("hot_word", ["bb", "abba"])
def test_a_hot_word_that_was_almost_said_is_written(name, hot_word):
    said = {"bb": "ab", "abba": "aaba"}[hot_word]
    config = DecoderConfig(name=name, beam_width=20)
    plain = make_decoder(config, ALPHABET, ["ab", "aaba"])
    hot = make_decoder(config, ALPHABET, ["ab", "aaba"], hot_words={hot_word: 8.0})
    arguments = confident(said, chance=0.8)
    assert plain.decode(*arguments)[0].text == said
    assert hot.decode(*arguments)[0].text == hot_word
    cold = make_decoder(config, ALPHABET, ["ab", "aaba"], hot_words={hot_word: -8.0})
    assert cold.decode(*arguments)[0].text == said


def test_greedy_decoding_gives_way_and_other_decoders_refuse():
    assert with_hot_words(DecoderConfig(name="greedy", beam_width=7)) == DecoderConfig(
        name="beam", beam_width=7
    )
    assert with_hot_words(DecoderConfig(name="word_beam")).name == "word_beam"
    with pytest.raises(
        UsageError, match="beam, word_beam. Received: the decoder greedy"
    ):
        make_decoder(DecoderConfig(name="greedy"), ALPHABET, hot_words={"a": 1.0})
    with pytest.raises(ValueError, match="None in mode='words' with hot words"):
        WordBeamSearch(ALPHABET, None)
    with pytest.raises(ValueError, match=r"characters \['z'\]"):
        WordBeamSearch(ALPHABET, ["a"], hot_words={"z": 1.0})


TURKISH = Alphabet(" abeiklmnrstuzı", separator=None, language="tr")


@pytest.mark.parametrize(
    "encode",
    [
        str.encode,
        lambda text: text.encode("utf-8-sig"),
        lambda text: gzip.compress(text.encode()),
    ],
)
def test_a_file_has_a_word_a_line_and_weights_after_tabs(tmp_path, encode):
    path = tmp_path / "names"
    path.write_bytes(encode("İzmir\nLale\t2.5\r\n\n  Kız Kulesi \t-1\nizmir\t9\n"))
    weights = hot_words_of(path, TURKISH, 4.0)
    assert weights == {"izmir": 9.0, "lale": 2.5, "kız": -1.0, "kulesi": -1.0}
    assert hot_words_of({"İzmir": 3, "KIZ": 1}, TURKISH) == {"izmir": 3.0, "kız": 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "izmir\nLODZ\n",
            r"Line 2 of .* is 'LODZ', which has the characters \['d', 'o'\]",
        ),
        ("izmir\tmuch\n", "Line 1 of .* has the weight 'much'"),
        ("izmir\t101\n", "weight '101'"),
        ("izmir\tnan\n", "weight 'nan'"),
        ("\n \n", "at least one word"),
        ("...\n", r"has the characters \['.'\]"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, message):
    path = tmp_path / "names.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        hot_words_of(path, TURKISH)


def test_characters_of_a_script_without_spaces_are_words():
    chinese = Alphabet("上北京海", separator=None)
    weights = hot_words_of({"北京": 5.0}, chinese)
    assert weights == {"北": 5.0, "京": 5.0}
    search = WordBeamSearch(chinese, None, 10, hot_words=weights)
    frames = np.log(np.full((1, 2, 5), 0.2, np.float32))
    assert search.decode(frames, np.array([2]))[0].text in ("北京", "京北")
