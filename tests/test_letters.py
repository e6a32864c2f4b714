"""Case by language, and what transcripts have that nobody pronounces."""

import re
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet, normalise
from tfasr.errors import UsageError
from tfasr.letters import (
    lower,
    oddities,
    primary_language,
    upper,
    with_plain_apostrophes,
)

TURKISH = "İstanbul IŞIK Isparta DİYARBAKIR ılık iğne"


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("tr", TURKISH, "istanbul ışık ısparta diyarbakır ılık iğne"),
        ("tr-TR", "KIRMIZI İYİ", "kırmızı iyi"),
        ("TR", "I\u0307zmir", "izmir"),  # decomposed
        ("tr", "I\u0323\u0307", "ị"),  # with a mark between the letter and its dot
        ("tr", "ÂLİM GÖZÜ ÇAĞRI", "âlim gözü çağrı"),
        ("az", "QIZIL İL", "qızıl il"),
        ("az-Latn-AZ", "ƏLİ I", "əli ı"),
        ("tur", "I", "ı"),  # the code of ISO 639-2
        ("lt", "Ì Í Ĩ", "i̇̀ i̇́ i̇̃"),
        ("lt", "Į\u0301 J\u0303", "į̇́ j̇̃"),
        ("lt", "ILGIS Ė", "ilgis ė"),  # no mark above the letters
        ("", "İstanbul", "i̇stanbul"),  # Unicode's rule for other languages
        ("de", "STRASSE IN ẞ", "strasse in ß"),
        ("el", "ΟΔΟΣ ΣΟΦΟΣ Σ", "οδος σοφος σ"),
        ("", "ΟΔΟΣ", "οδος"),  # the final sigma is of no language
        ("en", "IS", "is"),
    ],
)
def test_lower_case_follows_the_language(language, text, expected):
    assert lower(text, language) == unicodedata.normalize("NFC", expected)
    assert normalise(f"  {text}\n", language) == unicodedata.normalize("NFC", expected)


@pytest.mark.parametrize("language", ["", "tr", "az", "lt", "de", "el"])
@given(text=st.text(st.characters(codec="utf-8"), max_size=20))
def test_lower_case_stays_lower_case(language, text):
    once = lower(text, language)
    assert unicodedata.is_normalized("NFC", once)
    assert lower(once, language) == once


@given(text=st.text("abcçdefgğhıijklmnoöprsştuüvyz ", max_size=20))
def test_turkish_capitals_come_back(text):
    assert lower(upper(text, "tr"), "tr") == text
    assert "i" not in upper(text, "tr") and "ı" not in upper(text, "tr")


def test_only_tags_are_languages():
    assert primary_language("cmn-Hans-CN") == "cmn"
    assert primary_language("tr_TR") == "tr"
    for wrong in ("t", "turkish language", "../tr", "tr--TR", "x" * 9):
        with pytest.raises(UsageError, match="BCP 47"):
            primary_language(wrong)


def alphabet(characters, **changes):
    return Alphabet(characters, separator=None, **changes)


@pytest.mark.parametrize(
    ("mapping", "language", "text", "expected"),
    [
        # A line with I and one with i are different lines.
        (
            (("I", "ı"), ("İ", "i")),
            "",
            TURKISH,
            "istanbul ışık ısparta diyarbakır ılık iğne",
        ),
        ((("i\u0307", "i"),), "", "İstanbul", "istanbul"),
        ((("ß", "ss"),), "", "STRAẞE Maß", "strasse mass"),  # also a capital of no line
        (
            (("Dr.", "doktor"), ("dr.", "Doktor")),
            "",
            "Dr. und dr.",
            "doktor und doktor",
        ),
        # No line changes another one's text.
        ((("a", "b"), ("b", "c")), "", "ab AB", "bc bc"),
        ((("I", "i"),), "tr", "I ı İ", "i ı i"),  # before the language's own rule
    ],
)
def test_a_mappings_lines_are_taken_as_written(mapping, language, text, expected):
    spelled = alphabet(" '" + "".join(sorted(set(expected) - {" "})), mapping=mapping)
    spelled = alphabet(spelled.characters, mapping=mapping, language=language)
    assert spelled.normalise(text) == expected
    kept = alphabet("Aıb ", mapping=(("I", "ı"),), keep_case=True)
    assert kept.normalise("AI b") == "Aı b"


@given(
    st.lists(
        st.text("ab^]-é", min_size=1, max_size=3), min_size=1, max_size=6, unique=True
    ),
    st.text("ab^]-é", max_size=12),
)
def test_the_longest_source_of_a_mapping_counts_at_each_place(sources, text):
    mapping = tuple((source, "c") for source in sources)
    kept = Alphabet("abc ", separator=None, mapping=mapping, keep_case=True)
    longest_first = sorted(sources, key=len, reverse=True)
    expected = re.sub("|".join(map(re.escape, longest_first)), "c", text)
    assert kept.normalise(text) == expected


@pytest.mark.parametrize("sign", "’‘‛`´′＇ʼʻʹ'")
@pytest.mark.parametrize("punctuation", ["dropped", "refused"])
def test_every_apostrophe_between_letters_is_the_same(sign, punctuation):
    english = alphabet(" 'abcdefghijklmnopqrstuvwxyzїя", punctuation=punctuation)
    assert english.normalise(
        f"It{sign}s O{sign}Brien п{sign}ять".replace("пять", "п")
    ) == (f"it's o'brien п{sign if punctuation == 'never' else chr(39)}ять")
    assert with_plain_apostrophes(f"{sign}90s five{sign}") == f"{sign}90s five{sign}"


def test_an_apostrophe_of_the_alphabet_is_a_letter_of_it():
    hawaiian = alphabet(" 'ʻaehiklmnopuw", punctuation="dropped")
    assert hawaiian.normalise("Hawaiʻi ʻōlelo".replace("ō", "o")) == "hawaiʻi ʻolelo"
    assert hawaiian.normalise("Hawai’i ‘olelo’") == "hawai'i olelo"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("[laughter] hi <unk> {breath}", {"markers": 3}),
        ("<noise> [background speech]", {"markers": 2}),
        ("3.5 kg, 1,200 or 7", {"numbers": 3}),
        ("٣ كتـــاب", {"numbers": 1, "tatweels": 3}),
        ("ﬁn oﬃce ＡＢ", {"compatibility letters": 4}),
        ("Ǆ ﾊﾛｰ №", {"compatibility letters": 4}),
        ("\u200cتست\u200c کتاب\u200cها", {"joiners at the edge of a word": 2}),
        ("क्\u200dष \u200dक", {"joiners at the edge of a word": 1}),
        ("it's a < b, naïve – 한국어 ạ̈", {}),
    ],
)
def test_what_nobody_pronounces_is_counted(text, kinds):
    assert Counter(kind for kind, _ in oddities(text)) == kinds


def test_the_rule_for_case_is_declared_for_comparisons():
    assert "lower case of tr" in alphabet("ab ", language="tr-TR").text_rule
    assert alphabet("ab ", language="de").text_rule == alphabet("ab ").text_rule
    for changes in ({"language": "az"}, {"normaliser": "plain-1"}):
        assert Alphabet.from_json(alphabet("ab ", **changes).to_json()) == alphabet(
            "ab ", **changes
        )
        assert alphabet("ab ", **changes).text_rule != alphabet("ab ").text_rule
