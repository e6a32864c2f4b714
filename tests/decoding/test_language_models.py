"""N-gram models: probabilities that are probabilities, by the published rule, as ARPA files."""

import math
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.decoding.language_models import (
    BEGIN,
    END,
    MAX_ORDER,
    UNKNOWN,
    KenlmModel,
    NgramModel,
)
from tfasr.errors import UsageError

# What `KenlmModel` sees to itself: files, numbers and states. kenlm itself is played
# here.

HEAD = "\\data\\\nngram 1=2\nngram 2=1\n\n"


class State:
    """A state of the played model: the words before, of which equal ones are one state."""

    def __init__(self):
        self.words = ()

    def __eq__(self, other):
        return self.words[-1:] == other.words[-1:]

    def __hash__(self):
        return hash(self.words[-1:])


class Model:
    """Gives a word's logarithm by its length, one half more behind an equal word."""

    def __init__(self, path, config):
        assert config.show_progress is False

    def __contains__(self, word):
        return word in ("a", "bb")

    def BeginSentenceWrite(self, state):  # noqa: N802 - kenlm's name
        state.words = ("<s>",)

    def BaseScore(self, state, word, following):  # noqa: N802 - kenlm's name
        following.words = (*state.words, word)
        return -float(len(word)) - (0.5 if state.words[-1] == word else 0.0)


@pytest.fixture
def kenlm(monkeypatch):
    played = types.ModuleType("kenlm")
    played.Config = types.SimpleNamespace
    played.ARPALoadComplain = types.SimpleNamespace(NONE=0)
    played.State = State
    played.Model = Model
    monkeypatch.setitem(sys.modules, "kenlm", played)


@pytest.fixture
def arpa(tmp_path):
    path = tmp_path / "model.arpa"
    path.write_text(HEAD + "\\1-grams:\n-1\ta\n")
    return path


def test_words_have_natural_logarithms_and_states_are_numbered_once(kenlm, arpa):
    scorer = KenlmModel(arpa, weight=2, word_bonus=0.25).scorer(["a", "bb"])
    ten = 2 * math.log(10)
    assert scorer.score(-1, 0) == (0, pytest.approx(-ten + 0.25))
    assert scorer.score(0, 0) == (0, pytest.approx(-1.5 * ten + 0.25))
    assert scorer.score(0, 1) == (1, pytest.approx(-2 * ten + 0.25))
    assert scorer.score(-1, 1) == (1, pytest.approx(-2 * ten + 0.25))
    assert scorer.end(1) == pytest.approx(-4 * ten)
    plain = KenlmModel(arpa)
    assert (plain.weight, plain.word_bonus) == (1.0, 0.0)


def test_words_that_the_model_lacks_are_counted_and_scored_or_dropped(
    kenlm, arpa, caplog
):
    lexicon = ["a", "c", "bb", "déjà"]
    assert KenlmModel(arpa).known_words(lexicon) == lexicon
    assert "2 of the lexicon's 4 words" in caplog.text
    assert "(c, déjà) and get the probability of its <unk>" in caplog.text
    caplog.clear()
    dropping = KenlmModel(arpa, unknown="drop")
    assert dropping.known_words(lexicon) == ["a", "bb"]
    assert "(c, déjà) and are dropped" in caplog.text
    caplog.clear()
    assert dropping.known_words(["bb", "a"]) == ["bb", "a"]
    assert not caplog.text
    with pytest.raises(ValueError, match="same letter case"):
        dropping.known_words(["A", "BB"])
    with pytest.raises(ValueError, match=r"one of \('score', 'drop'\)"):
        KenlmModel(arpa, unknown="raise")


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ({"weight": -0.1}, "weight"),
        ({"weight": 10.1}, "weight"),
        ({"word_bonus": 100.1}, "word_bonus"),
        ({"word_bonus": -100.1}, "word_bonus"),
        ({"weight": math.nan}, "weight"),
    ],
)
def test_numbers_out_of_range_are_named(kenlm, arpa, numbers, name):
    with pytest.raises(ValueError, match=f"{name} must lie in"):
        KenlmModel(arpa, **numbers)
    KenlmModel(arpa, weight=10, word_bonus=-100)
    KenlmModel(arpa, weight=0, word_bonus=100)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must not be empty"),
        ("hello\n" * 2000 + HEAD, r"begins with \\data\\"),
        ("hello", r"begins with \\data\\"),
        ("\n\n\\data\\\n\n\\1-grams:\n", r"begins with \\data\\"),
        ("\\data\\\nngram 1=9999\n\\1-grams:\n", r"counts \[9999\]"),
        (
            "\\data\\\nngram 1=" + "9" * 30 + "\n\\1-grams:\n",
            r"counts \[999999999999999999\]",
        ),
        (
            "\\data\\\nngram 1=8\nngram 2=4\n\nngram 3=1\n",
            r"38 bytes, which counts \[8, 4, 1\]",
        ),
    ],
)
def test_what_is_no_arpa_file_is_refused(kenlm, tmp_path, content, message):
    path = tmp_path / "bad.arpa"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        KenlmModel(path)
    with pytest.raises(ValueError, match="must exist"):
        KenlmModel(tmp_path / "none.arpa")


def test_a_file_of_the_least_bytes_for_its_counts_is_taken(kenlm, tmp_path):
    path = tmp_path / "least.arpa"
    head = "\\data\\\nngram 1=10\n"
    path.write_text(head + "x" * (40 - len(head)))
    KenlmModel(path)
    path.write_text(head + "x" * (39 - len(head)))
    with pytest.raises(ValueError, match="of 39 bytes"):
        KenlmModel(path)


def test_without_the_package_its_install_is_named(arpa, monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(UsageError, match=r"pip install 'tfasr\[kenlm\]'"):
        KenlmModel(arpa)


SENTENCES = st.lists(
    st.lists(st.sampled_from(["one", "two", "three", "four"]), max_size=6).map(
        " ".join
    ),
    min_size=1,
    max_size=8,
).filter(lambda texts: any(texts))
CONTEXTS = st.lists(st.sampled_from([BEGIN, "one", "two", "four", "never"]), max_size=4)


def read_arpa(path):
    """Returns the logarithms (base 10) of probabilities and of backing off, by n-gram."""
    probabilities = {}
    back_offs = {}
    counted = []
    held = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("ngram "):
            counted.append(int(line.split("=")[1]))
        elif line.startswith("\\") and line.endswith("-grams:"):
            held.append(0)
        elif "\t" in line:
            held[-1] += 1
            probability, words, *back_off = line.split("\t")
            key = tuple(words.split(" "))
            assert len(key) == len(held)
            probabilities[key] = float(probability)
            back_offs[key] = float(back_off[0]) if back_off else 0.0

    assert counted == held
    return probabilities, back_offs


def by_arpa(words, probabilities, back_offs):
    """What an ARPA file says of the last word behind the others, by the format's own rule."""
    if words in probabilities:
        return probabilities[words]
    return back_offs.get(words[:-1], 0.0) + by_arpa(words[1:], probabilities, back_offs)


@given(SENTENCES, st.integers(1, 4), CONTEXTS)
def test_what_may_follow_sums_to_one(sentences, order, context):
    model = NgramModel(sentences, order)
    behind = [model.probability((*context, word)) for word in model.vocabulary]
    assert min(behind) > 0
    assert math.fsum(behind) == pytest.approx(1, abs=1e-9)


@given(SENTENCES, st.integers(1, 4), CONTEXTS)
def test_the_file_says_what_the_model_says(tmp_path_factory, sentences, order, context):
    model = NgramModel(sentences, order)
    path = tmp_path_factory.mktemp("arpa") / "a.arpa"
    model.write(path)
    tables = read_arpa(path)
    known = tuple(w if (w,) in tables[0] else UNKNOWN for w in context)
    for word in model.vocabulary:
        told = by_arpa((*known, word)[-order:], *tables)
        assert told == pytest.approx(
            math.log10(model.probability((*context, word))), abs=1e-5
        )


def test_a_case_worked_out_by_hand():
    """Bigrams are counted; single words count by how many words come before them."""
    model = NgramModel(["a b", "a b", "a c"], order=2)
    # <s> a: 3, a b: 2, a c: 1, b </s>: 2, c </s>: 1; two stand once and two twice.
    discount = 2 / (2 + 2 * 2)
    assert model.orders[0].probabilities.keys() == {
        ("a",),
        ("b",),
        ("c",),
        (END,),
        (UNKNOWN,),
    }
    before = {"a": 1, "b": 1, "c": 1, END: 2}
    once = 3 / (3 + 2 * 1)  # three have one word before them, one has two
    left = once * 4 / 5
    low = {w: (n - once) / 5 + left / 5 for w, n in before.items()}
    assert model.probability(("a",)) == pytest.approx(low["a"])
    assert model.probability(("never heard",)) == pytest.approx(left / 5)
    behind_a = (2 - discount) / 3 + discount * 2 / 3 * low["b"]
    assert model.probability(("a", "b")) == pytest.approx(behind_a)
    assert model.probability(("a", "a")) == pytest.approx(discount * 2 / 3 * low["a"])
    assert model.probability(("c", "b")) == pytest.approx(discount * low["b"])


def test_it_foretells_its_own_text_better_than_counts_of_single_words():
    texts = ["play the next song", "play the last song", "stop the music now"] * 3
    likelihoods = []
    for order in (1, 3):
        model = NgramModel(texts, order)
        total = 0.0
        for text in texts:
            words = (BEGIN, *text.split(), END)
            total += sum(
                math.log(model.probability(words[: i + 1]))
                for i in range(1, len(words))
            )

        likelihoods.append(total)

    assert likelihoods[1] > 0.5 * likelihoods[0]


@pytest.mark.parametrize("order", [0, MAX_ORDER + 1, 2.0])
def test_an_order_out_of_range_is_refused(order):
    with pytest.raises(ValueError, match="order must be an integer in 1..6"):
        NgramModel(["a"], order)


def test_texts_without_words_or_with_marks_are_refused():
    with pytest.raises(ValueError, match="at least one word"):
        NgramModel(["", " "])
    with pytest.raises(ValueError, match="reserve"):
        NgramModel(["a </s> b"])


def test_kenlm_reads_it_alike(tmp_path):
    kenlm = pytest.importorskip(
        "kenlm", reason="kenlm, an optional extra, is not installed"
    )
    model = NgramModel(["a b", "a b", "a c", "c b a"], order=3)
    model.write(tmp_path / "a.arpa")
    loaded = kenlm.Model(str(tmp_path / "a.arpa"))
    scores = [
        score for score, _, _ in loaded.full_scores("c b never a", bos=True, eos=True)
    ]
    words = (BEGIN, "c", "b", "never", "a", END)
    expected = [
        math.log10(model.probability(words[: i + 1])) for i in range(1, len(words))
    ]
    assert scores == pytest.approx(expected, abs=1e-5)
