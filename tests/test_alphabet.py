import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.alphabet import ENGLISH, Alphabet, normalise

texts = st.text(ENGLISH[:-1], max_size=30)


def test_the_papers_classes():
    alphabet = Alphabet()
    assert (alphabet.num_classes, alphabet.blank_id) == (30, 29)
    assert alphabet.encode(" az'") == [0, 1, 26, 27]


def test_cool_is_spelled_with_a_separator():
    alphabet = Alphabet()
    assert alphabet.spell("cool") == "co_ol"
    assert alphabet.encode("cool") == [3, 15, 28, 15, 12]
    assert alphabet.spell("aaa") == "a_a_a"
    assert Alphabet("col", None).encode("cool") == [0, 1, 1, 2]


@given(texts)
def test_encoding_and_decoding_are_inverse_and_no_labels_are_equal_neighbours(text):
    alphabet = Alphabet()
    labels = alphabet.encode(text)
    assert alphabet.decode(labels) == text
    assert all(a != b for a, b in zip(labels, labels[1:], strict=False))
    assert len(labels) <= 2 * len(text)
    plain = Alphabet(ENGLISH[:-1], None)
    assert plain.decode(plain.encode(text)) == text


@given(st.text(max_size=20))
def test_foreign_characters_are_those_that_encoding_refuses(text):
    alphabet = Alphabet()
    foreign = alphabet.foreign_characters(text)
    assert foreign == sorted(set(text) - set(ENGLISH[:-1]))
    if foreign:
        with pytest.raises(
            ValueError, match="must be written in the alphabet"
        ) as error:
            alphabet.encode(text)
        assert str(foreign) in str(error.value)
    else:
        alphabet.encode(text)


@given(st.text(max_size=20))
def test_normalising_twice_is_normalising_once(text):
    once = normalise(text)
    assert normalise(once) == once
    assert once == once.strip()
    assert "  " not in once


def test_normalising():
    assert normalise("\tHe  SAID\nso ") == "he said so"
    assert normalise("E\u0301") == "\u00e9"


@pytest.mark.parametrize("label", [-1, 29, 30])
def test_blanks_and_unknown_labels_are_not_decoded(label):
    with pytest.raises(ValueError, match=rf"0\.\.28.*{label}"):
        Alphabet().decode([1, label])


@pytest.mark.parametrize(
    ("characters", "separator"),
    [("aba", None), ("", None), ("ab", "c"), ("ab", ""), ("ab", "ab")],
)
def test_senseless_alphabets_are_refused(characters, separator):
    with pytest.raises(ValueError, match="Received"):
        Alphabet(characters, separator)


@pytest.mark.parametrize("alphabet", [Alphabet(), Alphabet("äö ", None)])
def test_saved_and_loaded(tmp_path, alphabet):
    alphabet.save(tmp_path / "alphabet.json")
    assert Alphabet.load(tmp_path / "alphabet.json") == alphabet
