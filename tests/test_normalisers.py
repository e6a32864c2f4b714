"""Named normalisers: what they make equal, and what they leave different."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfasr.errors import UsageError
from tfasr.normalisers import NORMALISERS, check_normaliser, described, normalised

# The name is a promise: these results never change.
PLAIN_1 = [
    ("", "Mr. Smith’s ﬁne [laughter] co-op, <unk> OK?", "mr smith's fine co op ok"),
    ("", "ＡＢＣ１２ ﾊﾛｰ", "abc12 ハロー"),
    ("", "It`s 10:30; 3.5 or 1,000 ½", "it's 10 30 3 5 or 1000 1 2"),
    ("de", "1.234,5 Euro – „gut“", "1234 5 euro gut"),
    ("", "كتـــاب \u200cتست\u200c", "كتاب تست"),
    ("tr", "IŞIK İyi", "ışık iyi"),
    ("", "'tis rock'n'roll' \u200bzero", "tis rock'n'roll zero"),
    ("hi", "हाँ। क्\u200dष", "हाँ क्\u200dष"),
    ("", "{breath} (um) a_b", "um ab"),
]


@pytest.mark.parametrize(("language", "text", "expected"), PLAIN_1)
def test_plain_1_never_changes(language, text, expected):
    assert normalised(text, "plain-1", language) == expected


@given(text=st.text(max_size=30), language=st.sampled_from(["", "tr", "de", "lt"]))
def test_plain_1_changes_nothing_twice(text, language):
    once = normalised(text, "plain-1", language)
    assert normalised(once, "plain-1", language) == once


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "21 cats, 3.5 dogs", "twenty one cats three point five dogs"),
        ("en-GB", "1,200 at 10:30, x2", "one thousand two hundred at ten thirty x2"),
        ("de", "1.234,5", "eintausendzweihundertvierunddreißig komma fünf"),
        ("fr", "Il a 80 ans", "il a quatre vingts ans"),
        ("tr", "12 elma", "oniki elma"),
    ],
)
def test_spoken_1_writes_numbers_in_words(language, text, expected):
    pytest.importorskip("num2words", reason="an optional extra: tfasr[normalisers]")
    assert normalised(text, "spoken-1", language) == expected


def test_a_normaliser_is_described_with_its_packages_version():
    assert described("plain-1", "tr-TR") == "plain-1 of tr"
    pytest.importorskip("num2words", reason="an optional extra: tfasr[normalisers]")
    assert described("spoken-1", "en").startswith("spoken-1 of en (num2words 0.")


def test_what_a_normaliser_lacks_is_named(monkeypatch):
    with pytest.raises(UsageError, match="one of plain-1, spoken-1, whisper-english"):
        check_normaliser("plain-2", "")
    monkeypatch.setitem(sys.modules, "num2words", None)
    with pytest.raises(UsageError, match=r"pip install 'tfasr\[normalisers\]'"):
        check_normaliser("spoken-1", "en")


def test_numbers_need_a_language_that_is_known():
    pytest.importorskip("num2words", reason="an optional extra: tfasr[normalisers]")
    with pytest.raises(UsageError, match="--language en"):
        check_normaliser("spoken-1", "")
    with pytest.raises(UsageError, match="Use plain-1"):
        check_normaliser("spoken-1", "xx")


def test_whispers_rule_is_whispers():
    pytest.importorskip(
        "whisper_normalizer", reason="an optional extra: tfasr[normalisers]"
    )
    pytest.importorskip("more_itertools")
    assert (
        normalised("Mr. Smith's colour [music]", "whisper-english")
        == "mister smith is color"
    )
    assert "whisper-english" in NORMALISERS
