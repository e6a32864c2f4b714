"""The compiled decoder against the clear reference, and both against all paths."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.decoding.word_beam_reference import Problem

MODES = ("words", "ngrams", "ngrams_forecast", "ngrams_forecast_sample")


def posteriors(seed: int, frames: int, classes: int, sharpness: float) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(frames, classes)) * sharpness
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


def agree(found, expected):
    assert [labels for labels, _ in found] == [labels for labels, _ in expected]
    assert [score for _, score in found] == pytest.approx([s for _, s in expected], rel=1e-9)


CORPORA = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=8).map(" ".join)


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
        st.lists(st.sampled_from([0.0, 0.125, 0.25]), min_size=5, max_size=5), max_size=8
    ),
    beam_width=st.integers(1, 12),
    recombine=st.booleans(),
)
@example(corpus="a", grid=[[0.0] * 5], beam_width=1, recombine=False)
@example(corpus="a ab abc", grid=[[0.25] * 5] * 8, beam_width=7, recombine=False)
@example(corpus="a ab abc", grid=[[0.25] * 5] * 8, beam_width=7, recombine=True)
def test_ties_and_impossible_frames_are_those_of_the_reference(corpus, grid, beam_width, recombine):
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
    return labels + problem.ids(next(iter(words))[len(last) :]) if len(words) == 1 else labels


@settings(deadline=None, max_examples=60)
@given(corpus=CORPORA, seed=st.integers(0, 2**32 - 1), frames=st.integers(0, 5))
def test_a_beam_that_holds_everything_finds_what_all_paths_say(corpus, seed, frames):
    problem = Problem("bc a", "abc", corpus, posteriors(seed, frames, 5, 1.0), 1 << 16)
    found: dict[tuple[int, ...], float] = {}
    for labels, probability in sorted(all_texts(problem).items(), key=lambda item: -item[1]):
        found.setdefault(completed(problem, labels), math.log(probability))
    expected = list(found.items())
    agree(problem.reference(), expected)
    agree(problem.decoded(), expected)


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
    words = ["".join(random.choice(list(letters), random.integers(1, 4))) for _ in range(60)]
    problem = Problem(
        chars, letters, " ".join(words), posteriors(seed, 8, len(chars) + 1, 3.0), beam_width
    )
    agree(problem.decoded(), problem.reference())


def test_flat_posteriors_of_a_long_utterance_do_not_underflow():
    problem = Problem(
        "abc ", "abc", "a ab cab b", np.full((1670, 5), -math.log(5), np.float32), beam_width=8
    )
    found, expected = problem.decoded(), problem.reference()
    agree(found, expected)
    assert math.isfinite(found[0][1]) and found[0][0]


def test_a_sampled_forecast_depends_on_nothing_but_the_seed():
    corpus = " ".join("".join(word) for word in itertools.product("abc", repeat=4))
    base = Problem(
        "abc ", "abc", corpus, posteriors(1, 20, 5, 2.0), 20, "ngrams_forecast_sample", k=0.1
    )
    assert base.decoded() == base.decoded()
    exact = Problem("abc ", "abc", corpus, base.log_probs, 20, "ngrams_forecast", k=0.1)
    assert base.decoded()[0][1] == pytest.approx(exact.decoded()[0][1], abs=1.0)
