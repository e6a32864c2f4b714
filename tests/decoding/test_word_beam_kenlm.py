"""Word beam search with ARPA language models; needs the optional kenlm package."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr import Alphabet
from tfasr.decoding.language_models import KenlmModel
from tfasr.decoding.word_beam_search import WordBeamSearch

kenlm = pytest.importorskip("kenlm", reason="kenlm, an optional extra, is not installed")


ARPA = """\\data\\
ngram 1=6
ngram 2=4

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.3
-1.0\t</s>
-0.5\ta\t-0.3
-0.7\tab\t-0.2
-0.9\tb\t-0.1

\\2-grams:
-0.2\t<s> a
-0.3\ta b
-0.6\tab ab
-0.1\tb </s>

\\end\\
"""
ALPHABET = Alphabet("ab ", separator=None)
WORDS = ["a", "ab", "b"]


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "model.arpa"
    path.write_text(ARPA, encoding="utf-8")
    return path


def all_texts(y, score):
    """Per class sequence: whether its last word is whole, and probability times model's factor."""
    sequences = {}
    for path in itertools.product(range(4), repeat=len(y)):
        labels = tuple(label for label, _ in itertools.groupby(path) if label != 3)
        probability = math.prod(y[t][label] for t, label in enumerate(path))
        sequences[labels] = sequences.get(labels, 0.0) + probability
    found = {}
    for labels, probability in sequences.items():
        words = "".join(ALPHABET.characters[label] for label in labels).split(" ")
        if all(word in WORDS for word in words if word):
            text = " ".join(word for word in words if word)
            found[labels] = (text, math.log(probability) + score(text))
    return max(found.values(), key=lambda item: item[1])


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(0, 5),
    weight=st.sampled_from([0.0, 0.5, 2.0]),
    bonus=st.sampled_from([-1.0, 0.0, 2.0]),
)
def test_a_beam_that_holds_everything_finds_the_best_sentence(
    tmp_path_factory, seed, frames, weight, bonus
):
    path = tmp_path_factory.mktemp("arpa") / "model.arpa"
    path.write_text(ARPA, encoding="utf-8")
    log_probs = np.log(np.random.default_rng(seed).dirichlet(np.ones(4), size=frames))
    log_probs = log_probs.astype(np.float32).reshape(-1, 4)
    model = kenlm.Model(str(path))

    def score(text):
        return weight * math.log(10) * model.score(text) + bonus * len(text.split())

    decoder = WordBeamSearch(
        ALPHABET,
        WORDS,
        1 << 16,
        "kenlm",
        language_model=KenlmModel(path, weight=weight, word_bonus=bonus),
        num_threads=2,
    )
    (found,) = decoder.decode(log_probs[None], np.array([frames]))
    text, best = all_texts(np.exp(log_probs.astype(np.float64)).tolist(), score)
    assert found.score == pytest.approx(best, rel=1e-5, abs=1e-5)
    assert found.text == text


def test_words_unknown_to_the_model_are_named(arpa):
    with pytest.raises(ValueError, match="'ba'"):
        WordBeamSearch(ALPHABET, ["a", "ba"], 5, "kenlm", language_model=KenlmModel(arpa))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("hello\n", "data"),
        (ARPA[: len(ARPA) // 2], "sound ARPA"),
        (ARPA.replace("-0.5", "zero"), "sound ARPA"),
        (ARPA.replace("ngram 2=4", "ngram 2=400000000000"), "counts"),
        (ARPA.replace("ngram 2=4", "ngram 2=5"), "sound ARPA"),
    ],
)
def test_a_corrupt_arpa_file_is_refused(arpa, content, message):
    arpa.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        KenlmModel(arpa)


def test_a_missing_arpa_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.arpa"):
        KenlmModel(tmp_path / "none.arpa")


@pytest.mark.parametrize("numbers", [{"weight": -1}, {"weight": math.nan}, {"word_bonus": 1e9}])
def test_a_number_out_of_range_is_named(arpa, numbers):
    with pytest.raises(ValueError, match=next(iter(numbers))):
        KenlmModel(arpa, **numbers)
