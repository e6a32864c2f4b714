"""Named rules that make two spellings of the same speech equal, before scoring.

A name has a version: what it does to a text never changes. A better rule gets another
name. So an error rate with a normaliser's name can be compared years later.
"""

import importlib.metadata
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

from tfasr import letters
from tfasr.errors import UsageError, extra, optional_package
from tfasr.kit.registry import Registry


@dataclass(frozen=True)
class NormaliserKind:
    """A rule.

    Attributes:
        apply: returns a text as the rule writes it, from the text and its language, ""
            if unknown.
        package: whose version belongs to the rule; "" for tfasr's own.
    """

    apply: Callable[[str, str], str]
    package: str = ""


# All rules, by the values of ``--normalise``.
NORMALISERS: Registry[NormaliserKind] = Registry(
    "normaliser",
    {
        "plain-1": "tfasr.normalisers:PLAIN_1",
        "spoken-1": "tfasr.normalisers:SPOKEN_1",
        "whisper-english": "tfasr.normalisers:WHISPER_ENGLISH",
    },
)

# Languages that write 1,234.5; most others write 1.234,5.
_POINT_LANGUAGES = (
    "",
    "en",
    "ja",
    "ko",
    "zh",
    "cmn",
    "yue",
    "th",
    "he",
    "hi",
    "bn",
    "ta",
    "te",
)

# What is left of numbers such as 1:30.
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[.,:](?=\d)")


def check_normaliser(name: str, language: str) -> None:
    """Raises UsageError unless a normaliser can be used for a language.

    A name may be unknown, its package missing or the language unfit.

    Args:
        name: of the rule.
        language: BCP 47 tag of the texts; "" if unknown.
    """
    if name not in NORMALISERS:
        raise UsageError(
            f"--normalise must be one of {NORMALISERS.listed()}. Received: {name!r}."
        )

    # A number and a letter are what rules need packages and languages for.
    normalised("1 a", name, language)


def normalised(text: str, name: str, language: str = "") -> str:
    """Returns a text as the normaliser of that name writes it.

    "" leaves the text as it is.

    >>> normalised("It’s 3 o'clock!", "plain-1", "en")
    "it's 3 o'clock"
    """
    if name:
        return NORMALISERS[name].apply(text, letters.primary_language(language))

    return text


def described(name: str, language: str = "") -> str:
    """Describes a normaliser for comparisons: name, language, package's version.

    >>> described("plain-1", "de-AT")
    'plain-1 of de'
    """
    words = [name]
    if language:
        words.append(f"of {letters.primary_language(language)}")

    package = NORMALISERS[name].package
    if package:
        words.append(f"({package} {importlib.metadata.version(package)})")

    return " ".join(words)


def _plain_1(text: str, language: str) -> str:
    """Removes case, punctuation, markers and ways of typing.

    Letters, digits and spaces are left.

    >>> _plain_1("Well-known: 1,234 [laughter]", "en")
    'well known 1234'
    """
    text = _with_numbers(letters.without_markers(text), language, str)
    text = _BETWEEN_DIGITS.sub(" ", text)
    # The fraction slash of ½ is a space, so that 1 and 2 stay apart.
    text = unicodedata.normalize("NFKC", text).replace("\N{FRACTION SLASH}", " ")
    text = letters.lower(text.replace(letters.TATWEEL, ""), language)
    text = letters.without_stray_apostrophes(letters.with_plain_apostrophes(text))
    text = "".join(map(_spoken_character, text))

    return " ".join(letters.without_edge_joiners(text).split())


def _spoken_character(character: str) -> str:
    """Returns a character that may be spoken, a space for a dash, or ""."""
    category = unicodedata.category(character)
    if category[0] not in "PSC" or character in letters.JOINERS or character == "'":
        return character

    if category in ("Pd", "Cc") or character in "/|\\":
        return " "

    return ""


def _spoken_1(text: str, language: str) -> str:
    """Does what plain-1 does, and writes numbers in words.

    Raises:
        UsageError: as `_in_words`, if the text has a number.
    """
    text = unicodedata.normalize("NFKC", letters.without_markers(text))
    in_words = _with_numbers(text, language, lambda number: _in_words(number, language))

    return _plain_1(in_words, language)


def _with_numbers(text: str, language: str, written: Callable[[str], str]) -> str:
    """Replaces numbers by what ``written`` makes of them.

    Args:
        text: has the numbers, as the language writes them.
        language: decides what separates thousands and fractions.
        written: gets a number such as "1234.5".
    """
    point = ","
    group = "."
    if language in _POINT_LANGUAGES:
        point = "."
        group = ","

    def replaced(match: re.Match[str]) -> str:
        """Returns what takes a number's place, apart from the words around it."""
        return f" {written(match[0].replace(group, '').replace(point, '.'))} "

    return _number(point, group).sub(replaced, text)


@cache
def _number(point: str, group: str) -> re.Pattern[str]:
    """Returns the pattern of a number that stands alone.

    Args:
        point: separates the fraction.
        group: separates thousands, if the number has such separators.
    """
    integer = rf"(?:\d{{1,3}}(?:{re.escape(group)}\d{{3}})+|\d+)"
    return re.compile(rf"(?<!\w){integer}(?:{re.escape(point)}\d+)?(?!\w)")


def _in_words(number: str, language: str) -> str:
    """Returns a number such as "1234.5" in a language's words.

    Raises:
        UsageError: without a language, without num2words, or if it lacks the language.
    """
    if not language:
        raise UsageError(
            "The normaliser spoken-1 writes numbers in a language's words. Name it, "
            "such as --language en."
        )

    with optional_package("the num2words package", "spoken-1", extra("normalisers")):
        from num2words import num2words

    # A whole number, such as 3.0, has no fraction in words.
    value = Decimal(number)
    if value % 1 == 0:
        value = int(value)

    try:
        return num2words(value, lang=language)
    except NotImplementedError as error:
        raise UsageError(
            f"num2words must know the language. Received: --language {language}. Use "
            "plain-1, which leaves digits as they are."
        ) from error


def _whisper_english(text: str, _: str) -> str:
    """The rule of OpenAI's Whisper for English, as leaderboards use it."""
    return _whisper_rule()(text)


@cache
def _whisper_rule() -> Any:
    """Loads Whisper's rule, once: it reads a file of spellings."""
    package = "the whisper-normalizer package"
    with optional_package(package, "whisper-english", extra("normalisers")):
        from whisper_normalizer.english import EnglishTextNormalizer

    return EnglishTextNormalizer()


PLAIN_1 = NormaliserKind(_plain_1)
SPOKEN_1 = NormaliserKind(_spoken_1, package="num2words")
WHISPER_ENGLISH = NormaliserKind(_whisper_english, package="whisper-normalizer")
