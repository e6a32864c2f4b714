"""What `KenlmModel` sees to itself: files, numbers and states. kenlm itself is played here."""

import math
import sys
import types

import pytest

from tfasr.decoding.language_models import KenlmModel
from tfasr.errors import UsageError

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
    played.State, played.Model = State, Model
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


def test_words_that_the_model_does_not_know_are_named(kenlm, arpa):
    with pytest.raises(ValueError, match=r"1 that do not: \['c'\]"):
        KenlmModel(arpa).scorer(["a", "c"])


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
        ("hello\n" + HEAD, r"must begin with \\data\\"),
        ("\n\n\\data\\\n\n\\1-grams:\n", r"must begin with \\data\\"),
        ("\\data\\\nngram 1=9999\n\\1-grams:\n", r"counts \[9999\]"),
        ("\\data\\\nngram 1=" + "9" * 30 + "\n\\1-grams:\n", r"counts \[999999999999999999\]"),
        ("\\data\\\nngram 1=8\nngram 2=4\n\nngram 3=1\n", r"38 bytes, which counts \[8, 4, 1\]"),
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
