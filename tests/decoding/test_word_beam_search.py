"""WordBeamSearch as its users meet it: texts, n-best, threads, and every kind of bad input."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.decoding.word_beam_reference import Bigrams, Problem, Reference
from tfasr import Alphabet as tfasr_Alphabet
from tfasr.alphabet import Alphabet
from tfasr.decoding.decoder import GreedyDecoder, Hypothesis, lexicon_from_transcripts
from tfasr.decoding.word_beam_search import BigramCounts, WordBeamSearch
from tfasr.errors import RunError

# Frames that come bit by bit are decoded as all at once.

SMALL_ALPHABET = Alphabet(" abc_")
SMALL_WORDS = ["ab", "cab", "a", "bac", "acc"]


def decoders():
    counts = BigramCounts.from_transcripts(["ab cab a", "a bac acc ab"])
    return {
        "greedy": GreedyDecoder(SMALL_ALPHABET),
        "words": WordBeamSearch(SMALL_ALPHABET, SMALL_WORDS, beam_width=6),
        "recombined": WordBeamSearch(
            SMALL_ALPHABET, SMALL_WORDS, beam_width=3, recombine=True
        ),
        "bigrams": WordBeamSearch(
            SMALL_ALPHABET,
            SMALL_WORDS,
            beam_width=6,
            mode="ngrams_forecast",
            language_model=counts,
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
    scores = np.random.default_rng(seed).normal(
        0, 3, (frames, SMALL_ALPHABET.num_classes)
    )
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    log_probs = log_probs.astype(np.float32)
    utterance = decoder.begin()
    begun = 0
    for end in [*sorted(min(cut, frames) for cut in cuts), frames]:
        utterance.hear(log_probs[begun:end])
        begun = end
        (expected,) = decoder.decode(log_probs[None, :end], np.array([end]))
        found = utterance.best()
        assert found.text == expected.text == utterance.best().text
        # Greedy scores are added up in another order.
        assert found.score == pytest.approx(
            expected.score, rel=0 if name != "greedy" else 1e-5
        )


def test_utterances_do_not_disturb_each_other():
    decoder = DECODERS["words"]
    clear = np.log(np.full((4, SMALL_ALPHABET.num_classes), 0.02, np.float32))
    said = {}
    for word in ("ab", "a"):
        said[word] = clear.copy()
        path = [
            *SMALL_ALPHABET.encode(word),
            *[SMALL_ALPHABET.blank_id] * (4 - len(word)),
        ]
        said[word][np.arange(4), path] = np.log(0.9)

    first = decoder.begin()
    second = decoder.begin()
    for frame in range(4):
        first.hear(said["ab"][frame : frame + 1])
        second.hear(said["a"][frame : frame + 1])

    assert (first.best().text, second.best().text) == ("ab", "a")
    with pytest.raises(ValueError, match="at most 0, not NaN"):
        first.hear(np.full((1, SMALL_ALPHABET.num_classes), np.nan, np.float32))
    with pytest.raises(ValueError, match=r"shape \(time, classes\)"):
        first.hear(said["ab"][0])
    assert first.best().text == "ab"
    del decoder, first
    assert second.best().text == "a"


# The compiled decoder against the clear reference, and both against all paths.

MODES = ("words", "ngrams", "ngrams_forecast", "ngrams_forecast_sample")


def posteriors(seed: int, frames: int, classes: int, sharpness: float) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(frames, classes)) * sharpness
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(
        np.float32
    )


def agree(found, expected):
    assert [labels for labels, _ in found] == [labels for labels, _ in expected]
    assert [score for _, score in found] == pytest.approx(
        [s for _, s in expected], rel=1e-9
    )


CORPORA = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=8).map(
    " ".join
)


@st.composite
def problems(draw, modes=MODES, recombine=False):
    chars = draw(st.permutations("abc .").map("".join))
    return Problem(
        chars=chars,
        word_chars="abc",
        corpus=draw(CORPORA),
        log_probs=posteriors(
            draw(st.integers(0, 2**32 - 1)),
            draw(st.integers(0, 12)),
            len(chars) + 1,
            draw(st.sampled_from([0.5, 2.0, 5.0])),
        ),
        beam_width=draw(st.sampled_from([1, 2, 3, 10, 50])),
        mode=draw(st.sampled_from(modes)),
        k=draw(st.sampled_from([0.0, 0.1, 1.0])),
        recombine=recombine,
    )


@settings(deadline=None, max_examples=200)
@given(problems())
def test_all_beams_are_those_of_the_reference(problem):
    agree(problem.decoded(), problem.reference())


@settings(deadline=None, max_examples=150)
@given(problems(recombine=True))
def test_recombination_is_that_of_the_reference(problem):
    agree(problem.decoded(), problem.reference())


@settings(deadline=None, max_examples=150)
@given(
    corpus=CORPORA,
    grid=st.lists(
        st.lists(st.sampled_from([0.0, 0.125, 0.25]), min_size=5, max_size=5),
        max_size=8,
    ),
    beam_width=st.integers(1, 12),
    recombine=st.booleans(),
)
@example(corpus="a", grid=[[0.0] * 5], beam_width=1, recombine=False)
@example(corpus="a ab abc", grid=[[0.25] * 5] * 8, beam_width=7, recombine=False)
@example(corpus="a ab abc", grid=[[0.25] * 5] * 8, beam_width=7, recombine=True)
def test_ties_and_impossible_frames_are_those_of_the_reference(
    corpus, grid, beam_width, recombine
):
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array(grid, np.float32).reshape(-1, 5))
    problem = Problem("abc ", "abc", corpus, log_probs, beam_width, recombine=recombine)
    agree(problem.decoded(), problem.reference())


def all_texts(problem):
    """Probability of each class sequence that the dictionary allows, over all paths."""
    words = problem.corpus.split()
    blank = len(problem.chars)
    y = np.exp(problem.log_probs.astype(np.float64))
    found = {}
    for path in itertools.product(range(blank + 1), repeat=len(y)):
        labels = tuple(label for label, _ in itertools.groupby(path) if label != blank)
        text = "".join(problem.chars[label] for label in labels)
        *complete, last = text.split(" ")
        prefix = any(word.startswith(last) for word in words)
        if prefix and all(word in words or not word for word in complete):
            probability = math.prod(y[t, label] for t, label in enumerate(path))
            found[labels] = found.get(labels, 0.0) + probability

    return found


def completed(problem, labels):
    last = "".join(problem.chars[label] for label in labels).split(" ")[-1]
    words = {word for word in problem.corpus.split() if last and word.startswith(last)}
    if len(words) == 1:
        return labels + problem.ids(next(iter(words))[len(last) :])

    return labels


@settings(deadline=None, max_examples=60)
@given(corpus=CORPORA, seed=st.integers(0, 2**32 - 1), frames=st.integers(0, 5))
def test_a_beam_that_holds_everything_finds_what_all_paths_say(corpus, seed, frames):
    problem = Problem("bc a", "abc", corpus, posteriors(seed, frames, 5, 1.0), 1 << 16)
    found: dict[tuple[int, ...], float] = {}
    for labels, probability in sorted(
        all_texts(problem).items(), key=lambda item: -item[1]
    ):
        found.setdefault(completed(problem, labels), math.log(probability))

    expected = list(found.items())
    agree(problem.reference(), expected)
    agree(problem.decoded(), expected)


PIECES = ("\u2581", "a", "b", "c", "\u2581a", "\u2581b", "bc")
UNITS = Alphabet(
    " abc", None, tuple((piece, -1.0 - len(piece) / 9) for piece in PIECES)
)
HAN = Alphabet("甲乙丙丁", None)


@settings(deadline=None, max_examples=200)
@given(
    alphabet=st.sampled_from([UNITS, HAN]),
    corpus=CORPORA,
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(0, 12),
    beam_width=st.integers(1, 30),
    mode=st.sampled_from(MODES[:3]),
    recombine=st.booleans(),
)
def test_words_without_gaps_are_those_of_the_reference(
    alphabet, corpus, seed, frames, beam_width, mode, recombine
):
    if alphabet is HAN:
        corpus = " ".join(
            corpus.translate(str.maketrans("abc", "甲乙丙")).replace(" ", "")
        )

    log_probs = posteriors(seed, frames, alphabet.num_classes, 2.0)
    words = [tuple(alphabet.encode(word)) for word in corpus.split()]
    reference = Reference(
        *(
            set(words),
            set(range(alphabet.blank_id)),
            alphabet.blank_id,
            beam_width,
            mode,
        ),
        *(Bigrams(words, 0.1), recombine),
        starts={n for n in range(alphabet.blank_id) if alphabet.word_starts[n]},
    )
    first = {}
    for labels, score in reference.decode(log_probs):
        first.setdefault(labels, score)
    counts = BigramCounts.from_transcripts([corpus])
    decoder = WordBeamSearch(
        *(alphabet, lexicon_from_transcripts([corpus]), beam_width, mode),
        language_model=None if mode == "words" else counts,
        **{"smoothing": 0.1, "recombine": recombine, "num_threads": 1},
    )
    (found,) = decoder.decode_n_best(log_probs[None], np.array([frames]), 1 << 16)
    assert [h.text for h in found] == [alphabet.decode(labels) for labels in first]
    assert [h.score for h in found] == pytest.approx(list(first.values()), rel=1e-9)


def test_units_of_scripts_without_spaces_have_no_words():
    alphabet = Alphabet("甲乙", None, (("甲", -1.0), ("乙", -1.0), ("甲乙", -1.0)))
    with pytest.raises(ValueError, match="units of a script without spaces"):
        WordBeamSearch(alphabet, ["甲"])


def test_an_unfinished_word_with_one_future_is_completed():
    log_probs = np.log(np.array([[0.9, 0.025, 0.025, 0.025, 0.025]], np.float32))
    assert Problem("abc ", "abc", "abc b", log_probs).decoded(1)[0][0] == (0, 1, 2)
    assert Problem("abc ", "abc", "abc ab", log_probs).decoded(1)[0][0] == (0,)
    assert Problem("abc ", "abc", "a abc", log_probs).decoded(1)[0][0] == (0,)


def test_an_empty_prefix_is_not_completed_by_the_only_word():
    log_probs = np.log(np.array([[0.1, 0.1, 0.8]], np.float32))
    assert Problem("a ", "a", "aa", log_probs).decoded(1)[0][0] == ()


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), beam_width=st.sampled_from([1, 5, 40]))
def test_alphabets_wider_than_a_machine_word(seed, beam_width):
    letters = "".join(chr(0x4E00 + i) for i in range(140))
    chars = letters[:70] + " ." + letters[70:]
    random = np.random.default_rng(seed)
    words = [
        "".join(random.choice(list(letters), random.integers(1, 4))) for _ in range(60)
    ]
    problem = Problem(
        chars,
        letters,
        " ".join(words),
        posteriors(seed, 8, len(chars) + 1, 3.0),
        beam_width,
    )
    agree(problem.decoded(), problem.reference())


def test_flat_posteriors_of_a_long_utterance_do_not_underflow():
    problem = Problem(
        "abc ",
        "abc",
        "a ab cab b",
        np.full((1670, 5), -math.log(5), np.float32),
        beam_width=8,
    )
    found = problem.decoded()
    expected = problem.reference()
    agree(found, expected)
    assert math.isfinite(found[0][1]) and found[0][0]


def test_a_sampled_forecast_depends_on_nothing_but_the_seed():
    corpus = " ".join("".join(word) for word in itertools.product("abc", repeat=4))
    base = Problem(
        "abc ",
        "abc",
        corpus,
        posteriors(1, 20, 5, 2.0),
        20,
        "ngrams_forecast_sample",
        k=0.1,
    )
    assert base.decoded() == base.decoded()
    exact = Problem("abc ", "abc", corpus, base.log_probs, 20, "ngrams_forecast", k=0.1)
    assert base.decoded()[0][1] == pytest.approx(exact.decoded()[0][1], abs=1.0)


ALPHABET = tfasr_Alphabet(" abcol_", separator="_")
WORDS = ["cool", "col", "ab", "a"]


def spoken(
    *classes: str, confidence: float = 0.95, alphabet: tfasr_Alphabet = ALPHABET
) -> np.ndarray:
    """Log-probabilities (time, classes) of one frame per character; "-" is the blank."""
    rows = np.full(
        (len(classes), alphabet.num_classes), (1 - confidence) / alphabet.blank_id
    )
    for row, character in zip(rows, classes, strict=False):
        row[
            alphabet.blank_id
            if character == "-"
            else alphabet.characters.index(character)
        ] = confidence

    return np.log(rows).astype(np.float32)


def decode(decoder: WordBeamSearch, *utterances: np.ndarray) -> list[Hypothesis]:
    lengths = np.array([len(u) for u in utterances])
    batch = np.full(
        (len(utterances), lengths.max(), utterances[0].shape[1]), np.nan, np.float32
    )
    for row, utterance in zip(batch, utterances, strict=False):
        row[: len(utterance)] = utterance
    return decoder.decode(batch, lengths)


def test_doubled_letters_are_spelled_with_the_separator_and_written_without():
    found = decode(
        WordBeamSearch(ALPHABET, WORDS, 20), spoken(*"co_ol ab"), spoken(*"-a-")
    )
    assert [hypothesis.text for hypothesis in found] == ["cool ab", "a"]
    assert found[0].score == pytest.approx(8 * math.log(0.95), abs=0.05)


def test_what_is_no_word_becomes_one():
    assert (
        decode(WordBeamSearch(ALPHABET, ["cool"], 20), spoken(*"cb_ol"))[0].text
        == "cool"
    )


def test_spaces_are_collapsed_unless_asked_for():
    said = spoken(*" a - ab ")
    assert decode(WordBeamSearch(ALPHABET, WORDS, 20), said)[0].text == "a ab"
    kept = WordBeamSearch(ALPHABET, WORDS, 20, collapse_spaces=False)
    assert decode(kept, said)[0].text == " a  ab "


def test_lengths_cut_every_utterance_and_an_empty_one_says_nothing():
    decoder = WordBeamSearch(ALPHABET, WORDS, 20)
    batch = np.stack([spoken(*"ab col"), spoken(*"ab col"), spoken(*"ab col")])
    found = decoder.decode(batch, np.array([6, 2, 0]))
    assert [hypothesis.text for hypothesis in found] == ["ab col", "ab", ""]
    assert found[2].score == 0.0
    assert decoder.decode(batch[:0], np.zeros(0, np.int64)) == []


def test_where_every_path_is_impossible_the_text_is_empty_and_the_score_minus_infinity():
    said = np.full((3, ALPHABET.num_classes), -np.inf, np.float32)
    assert decode(WordBeamSearch(ALPHABET, WORDS), said) == [Hypothesis("", -math.inf)]


def test_n_best_are_different_texts_best_first():
    decoder = WordBeamSearch(ALPHABET, WORDS, 50)
    (found,) = decoder.decode_n_best(
        spoken(*"col", confidence=0.5)[None], np.array([3]), 8
    )
    assert found[0].text == "col"
    assert len({hypothesis.text for hypothesis in found}) == len(found) == 8
    scores = [hypothesis.score for hypothesis in found]
    assert scores == sorted(scores, reverse=True)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_threads_change_nothing(seed, recombine):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(9, 15, ALPHABET.num_classes)).astype(np.float32)
    log_probs = np.minimum(logits - logits.max(axis=2, keepdims=True), 0)
    lengths = random.integers(0, 16, 9)
    one, three = (
        WordBeamSearch(ALPHABET, WORDS, 8, recombine=recombine, num_threads=n)
        for n in (1, 3)
    )
    assert one.decode(log_probs, lengths) == three.decode(log_probs, lengths)
    alone = [
        one.decode(u[None, :n], np.array([n]))[0]
        for u, n in zip(log_probs, lengths, strict=True)
    ]
    assert alone == three.decode(log_probs, lengths)


def test_bigrams_decide_between_words_that_sound_alike():
    said = np.logaddexp(spoken(*"a ab"), spoken(*"a co")) - math.log(2)
    lexicon = ["a", "ab", "co"]
    for word in ("ab", "co"):
        counts = BigramCounts.from_transcripts([f"a {word}"] * 9 + ["a", "ab", "co"])
        decoder = WordBeamSearch(
            ALPHABET,
            lexicon,
            50,
            "ngrams_forecast",
            language_model=counts,
            smoothing=0.1,
        )
        assert decode(decoder, said)[0].text == f"a {word}"


def test_a_lexicon_is_the_sorted_words_of_transcripts():
    assert lexicon_from_transcripts(["b a", "a  c"]) == ["a", "b", "c"]
    assert lexicon_from_transcripts(["b.a,a"], "abc") == ["a", "b"]


def test_no_bigram_crosses_two_transcripts():
    counts = BigramCounts.from_transcripts(["a b", "b a b"])
    assert counts.bigrams == {("a", "b"): 2, ("b", "a"): 1}
    assert counts.unigrams == {"a": 2, "b": 3}


COUNTS = BigramCounts({"a": 1}, {})
WRONG_ARGUMENTS = [
    ({"lexicon": []}, "empty dictionary"),
    ({"lexicon": ["a", ""]}, "non-empty"),
    ({"lexicon": ["a", 3]}, "3"),
    ({"lexicon": "cool"}, "iterable of words"),
    ({"lexicon": None}, "iterable of words"),
    ({"lexicon": ["a", "xyz", "éa"]}, r"2 words .*'x', 'y', 'z', 'é'.*'xyz', 'éa'"),
    ({"lexicon": ["abcol", "x"]}, r"1 words .*: \['x'\]"),
    ({"lexicon": ["a b"]}, "' '"),
    ({"lexicon": ["co_ol"]}, "'_'"),
    ({"beam_width": 0}, "beam_width=0"),
    ({"beam_width": -3}, "beam_width=-3"),
    ({"beam_width": 2.0}, r"beam_width=2\.0"),
    ({"beam_width": 1 << 40}, "beam_width"),
    ({"num_threads": 0}, "num_threads=0"),
    ({"mode": "word"}, "mode='word'"),
    ({"mode": "ngrams"}, "BigramCounts"),
    ({"mode": "kenlm"}, "KenlmModel"),
    ({"language_model": COUNTS}, "no language model"),
    (
        {"mode": "ngrams", "language_model": COUNTS, "smoothing": -1.0},
        r"smoothing=-1\.0",
    ),
    (
        {"mode": "ngrams", "language_model": COUNTS, "smoothing": math.nan},
        "smoothing=nan",
    ),
    ({"mode": "ngrams", "language_model": BigramCounts({"zz": 1}, {})}, "'zz'"),
    ({"mode": "ngrams", "language_model": COUNTS, "seed": -1}, "seed=-1"),
    ({"word_characters": "ax"}, "'x'"),
    ({"alphabet": "abc"}, "alphabet"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        WordBeamSearch(**{"alphabet": ALPHABET, "lexicon": WORDS, **arguments})


@pytest.mark.parametrize(
    ("unigrams", "bigrams", "message"),
    [
        ({}, {}, "at least one word"),
        ({"a": 0}, {}, "'a', 0"),
        ({"a": 1.5}, {}, "integers"),
        ({"a": 1}, {("a", "b"): 1}, "'b'"),
    ],
)
def test_wrong_counts_are_named(unigrams, bigrams, message):
    with pytest.raises(ValueError, match=message):
        BigramCounts(unigrams, bigrams)


def changed(index, value):
    log_probs = np.log(np.full((2, 3, ALPHABET.num_classes), 0.1, np.float32))
    log_probs[index] = value
    return log_probs


GOOD = changed((0, 0, 0), -1.0)
WRONG_INPUTS = [
    (changed((1, 2, 3), np.nan), [3, 3], r"log_probs\[1, 2, 3\]=-?nan"),
    (changed((0, 1, 7), 0.5), [3, 3], r"log_probs\[0, 1, 7\]=0.5"),
    (changed((0, 1, 7), np.inf), [3, 3], "=inf"),
    (GOOD, [3, 4], r"0\.\.3"),
    (GOOD, [-1, 3], "-1"),
    (GOOD, [3], "lengths"),
    (GOOD, [3.0, 3.0], "integers"),
    (GOOD[:, :, :-1], [3, 3], "shape"),
    (GOOD[0], [3], "shape"),
    (np.zeros((2, 3, 8), np.int32), [3, 3], "floating"),
]


@pytest.mark.parametrize(("log_probs", "lengths", "message"), WRONG_INPUTS)
def test_a_wrong_input_is_named(log_probs, lengths, message):
    with pytest.raises(ValueError, match=message):
        WordBeamSearch(ALPHABET, WORDS).decode(log_probs, np.array(lengths))


def test_n_best_must_be_positive():
    with pytest.raises(ValueError, match="n_best=0"):
        WordBeamSearch(ALPHABET, WORDS).decode_n_best(GOOD, np.array([3, 3]), 0)


def test_what_lies_behind_a_length_does_not_matter():
    log_probs = changed((1, 2, 3), np.nan)
    assert len(WordBeamSearch(ALPHABET, WORDS).decode(log_probs, np.array([3, 2]))) == 2


FLOATS = st.floats(width=32, allow_subnormal=True)


@settings(deadline=None, max_examples=150)
@given(
    log_probs=arrays.arrays(
        np.float32,
        st.tuples(*[st.integers(0, 4)] * 2, st.integers(7, 9)),
        elements=FLOATS,
    ),
    lengths=st.lists(st.integers(-1, 5), max_size=4),
    words=st.lists(st.text(" abcol_é", max_size=5), max_size=5),
    beam_width=st.integers(-1, 5),
    positive_too=st.booleans(),
)
def test_any_input_gives_hypotheses_or_a_value_error(
    log_probs, lengths, words, beam_width, positive_too
):
    log_probs = log_probs if positive_too else -np.abs(log_probs)
    try:
        decoder = WordBeamSearch(ALPHABET, words, beam_width, num_threads=2)
        found = decoder.decode(log_probs, np.array(lengths, np.int64))
    except ValueError:
        return

    assert len(found) == len(log_probs)
    assert not any(math.isnan(hypothesis.score) for hypothesis in found)
    for hypothesis in found:
        *complete, last = hypothesis.text.split(" ")
        assert set(complete) <= set(words)
        assert not last or any(word.startswith(last) for word in words)


def test_without_the_compiled_core_its_use_says_how_to_build_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tfasr.decoding._word_beam_core", None)
    monkeypatch.delattr("tfasr.decoding._word_beam_core", raising=False)
    with pytest.raises(RunError, match="pip install -e"):
        WordBeamSearch(ALPHABET, WORDS)
