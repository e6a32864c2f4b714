"""Word beam search with ARPA language models; needs the optional kenlm package."""

import gzip
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr import Alphabet
from tfasr.decoding.language_models import KenlmModel, NgramModel
from tfasr.decoding.word_beam_search import WordBeamSearch

kenlm = pytest.importorskip(
    "kenlm", reason="kenlm, an optional extra, is not installed"
)


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
    """Per class sequence: whether its last word is whole, and probability times model's
    factor.
    """
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


def test_words_that_the_model_lacks_are_unknown_or_dropped(arpa):
    words = ["a", "ba"]
    scored = KenlmModel(arpa).scorer(words)
    # as <unk>
    assert scored.score(-1, 1)[1] == pytest.approx(math.log(10) * (-1.5 - 0.3))
    sure = np.full((1, 2, 4), 1e-5, np.float32)
    sure[0, [0, 1], [1, 0]] = 1 - 3e-5  # b, then a
    texts = {}
    for rule in ("score", "drop"):
        model = KenlmModel(arpa, unknown=rule)
        search = WordBeamSearch(ALPHABET, words, 5, "kenlm", language_model=model)
        texts[rule] = search.decode(np.log(sure), np.array([2]))[0].text

    assert texts == {"score": "ba", "drop": "a"}


def log10_of(path, *words):
    scorer = KenlmModel(path).scorer(list(words))
    state = -1
    total = 0.0
    for index in range(len(words)):
        state, factor = scorer.score(state, index)
        total += factor

    return (total + scorer.end(state)) / math.log(10)


@pytest.mark.parametrize(
    "written",
    [
        lambda text: gzip.compress(text.encode()),
        lambda text: text.encode("utf-8-sig"),
        lambda text: gzip.compress(text.encode("utf-8-sig")),
        lambda text: text.encode("utf-16"),
        lambda text: f"Made by a toolkit\r\n\r\n{text}".encode(),
        lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
    ],
)
@pytest.mark.parametrize("name", ["model.arpa", "model.gz", "model"])
def test_a_model_is_loaded_however_its_file_was_written(tmp_path, arpa, written, name):
    path = tmp_path / "other" / name
    path.parent.mkdir()
    path.write_bytes(written(ARPA))
    assert log10_of(path, "a", "b") == log10_of(arpa, "a", "b") == pytest.approx(-0.6)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "texts", [["one"], ["one two", "two", "one two one"], ["ç ñ", "ñ ñ"]]
)
def test_what_ngram_writes_is_loaded_with_the_probabilities_it_estimated(
    tmp_path, order, texts
):
    model = NgramModel(texts, order)
    path = tmp_path / "own.arpa"
    model.write(path)
    words = sorted({word for text in texts for word in text.split()})
    sentence = (*words, "</s>")
    expected = sum(
        math.log10(model.probability(("<s>", *sentence[: n + 1])))
        for n in range(len(sentence))
    )
    assert log10_of(path, *words) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("compress", [False, True])
def test_a_model_of_single_words_from_another_program_is_loaded(tmp_path, compress):
    # Factors for backing off, which such a model can't use, and words in no order.
    text = (
        "\\data\\\nngram 1=5\n\n\\1-grams:\n-99\t<s>\t-0.3\n-0.5\tab\t-0.2\n-0.7\t</s>\n"
        "-1.0\t<unk>\n-0.6\ta\t-0.1\n\n\\end\\\n"
    )
    path = tmp_path / "model"
    path.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
    assert log10_of(path, "ab", "a") == pytest.approx(-0.5 - 0.6 - 0.7)
    assert log10_of(path, "a", "never", "ab") == pytest.approx(-0.6 - 1.0 - 0.5 - 0.7)


def test_a_binary_file_of_another_version_names_the_command_that_makes_it_again(
    tmp_path,
):
    path = tmp_path / "model.bin"
    for rest in (b"\0" * 200, b""):
        path.write_bytes(
            b"mmap lm http://kheafield.com/code format version 4\n\0" + rest
        )
        with pytest.raises(ValueError, match=r"build_binary MODEL\.arpa MODEL\.bin"):
            KenlmModel(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("hello\n", "data"),
        (ARPA.replace("\t", " "), "sound ARPA"),
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


@pytest.mark.parametrize(
    "numbers", [{"weight": -1}, {"weight": math.nan}, {"word_bonus": 1e9}]
)
def test_a_number_out_of_range_is_named(arpa, numbers):
    with pytest.raises(ValueError, match=next(iter(numbers))):
        KenlmModel(arpa, **numbers)
