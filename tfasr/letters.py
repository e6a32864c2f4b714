"""What letters depend on: the language, for their case, and how texts are typed.

`tfasr.alphabet` normalises transcripts with these functions, `tfasr.normalisers` texts
to be scored. Everything here works on any language; a language is only needed for those
whose rules for case differ.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

from tfasr.errors import UsageError

# Languages with special rules in Unicode's SpecialCasing.txt. The rule for the
# Greek final sigma holds in every language, and Python's `str.lower` follows it.
_DOTLESS = ("tr", "az")
SPECIAL_CASING = (*_DOTLESS, "lt")

# Other codes of these languages (ISO 639-2 and 639-3); BCP 47 uses the shortest.
_SHORTEST = {"tur": "tr", "aze": "az", "azj": "az", "lit": "lt"}

# A BCP 47 tag, or a locale of POSIX such as "de_AT".
_TAG = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")

# The dot of i, as a separate character; its combining class is that of all marks above
# a letter.
_DOT_ABOVE = "\N{COMBINING DOT ABOVE}"
_ABOVE = 230


def _marks(above: bool) -> str:
    """Returns the combining marks above a letter, or all others, for a pattern.

    They are those of Unicode's block Combining Diacritical Marks.
    """
    marks = (chr(point) for point in range(0x300, 0x370))
    classes = ((mark, unicodedata.combining(mark)) for mark in marks)

    return "".join(m for m, number in classes if number and (number == _ABOVE) == above)


# In decomposed text: the capital I with a dot, and marks of other kinds between the
# two.
_DOTTED_I = re.compile(f"I([{_marks(above=False)}]*){_DOT_ABOVE}")

# Lithuanian keeps the dot of i and j below another mark above the letter.
_ACCENTED = re.compile(f"([IJ])([{_marks(above=False)}]*)(?=[{_marks(above=True)}])")
_DOT_ON_SOFT_DOTTED = re.compile(f"([ij])([{_marks(above=False)}]*){_DOT_ABOVE}")


def primary_language(tag: str) -> str:
    """Returns the language of a BCP 47 tag: "tr" for "tr-TR"; "" for "".

    Raises:
        UsageError: for what can't be a tag.
    """
    if not tag:
        return ""

    if not _TAG.fullmatch(tag):
        raise UsageError(
            "--language must be a BCP 47 tag, such as tr, de-AT or cmn. Received: "
            f"{tag[:40]!r}."
        )

    language = re.split("[-_]", tag)[0].lower()

    return _SHORTEST.get(language, language)


def lower(text: str, language: str = "") -> str:
    """Returns ``text`` in lower case, in NFC, by the rules of a language.

    >>> lower("IŞIK", "tr")
    'ışık'

    Source: Unicode's SpecialCasing.txt; in Turkish and Azerbaijani, I is the capital of
    ı, and İ that of i.
    """
    language = primary_language(language)
    if language in _DOTLESS:
        text = _DOTTED_I.sub(r"i\1", unicodedata.normalize("NFD", text))
        text = text.replace("I", "ı")
    elif language == "lt":
        text = unicodedata.normalize("NFD", text)
        text = _ACCENTED.sub(
            lambda match: f"{match[1].lower()}{match[2]}{_DOT_ABOVE}", text
        )
    else:
        text = unicodedata.normalize("NFC", text)

    return unicodedata.normalize("NFC", text.lower())


def upper(text: str, language: str = "") -> str:
    """Returns ``text`` in upper case, in NFC, by the rules of a language.

    It is for reports that show errors in capitals.

    >>> upper("istanbul", "tr")
    'İSTANBUL'
    """
    language = primary_language(language)
    if language in _DOTLESS:
        text = text.replace("i", "İ")
    elif language == "lt":
        text = _DOT_ON_SOFT_DOTTED.sub(r"\1\2", unicodedata.normalize("NFD", text))

    return unicodedata.normalize("NFC", text.upper())


# Characters that are typed as an apostrophe: quotation marks, accents that stand alone,
# the prime, the full-width apostrophe, and letters of other names (in Ukrainian and
# Hawaiian texts).
APOSTROPHES = "'’‘‛`´′＇ʼʻʹ"

# Between two letters. What is at the edge of a word may be a quotation mark.
_WITHIN_WORD = re.compile(rf"(?<=[^\W\d_])[{APOSTROPHES}](?=[^\W\d_])")

# An apostrophe that isn't between letters.
_STRAY_APOSTROPHE = re.compile(r"(?<![^\W\d_])'|'(?![^\W\d_])")

# Lengthens the line between two letters, and is never pronounced.
TATWEEL = "\N{ARABIC TATWEEL}"

# Invisible characters that decide how the letters around them are joined.
JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
_EDGE_JOINERS = re.compile(rf"(?<!\S)[{JOINERS}]+|[{JOINERS}]+(?!\S)")

# What transcripts have for noises, such as <unk> and [laughter], and numbers in digits.
_MARKERS = re.compile(r"<[^<>\s]+>|\[[^][]+\]|\{[^{}]+\}")
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")


def apostrophes_within_words(text: str) -> Counter[str]:
    """Counts each kind of apostrophe between two letters.

    >>> apostrophes_within_words("l’amour, 'tis")
    Counter({'’': 1})
    """
    return Counter(_WITHIN_WORD.findall(text))


def with_plain_apostrophes(text: str, kept: "frozenset[str]" = frozenset()) -> str:
    """Replaces all kinds of apostrophes between letters by '.

    >>> with_plain_apostrophes("l’amour")
    "l'amour"

    Args:
        text: in any language.
        kept: characters to leave as they are, such as those of an alphabet.
    """
    if text.isascii() and "`" not in text:
        return text

    return _WITHIN_WORD.sub(lambda match: match[0] if match[0] in kept else "'", text)


def without_stray_apostrophes(text: str) -> str:
    """Removes apostrophes that aren't between letters.

    >>> without_stray_apostrophes("'it's the dogs'")
    "it's the dogs"
    """
    return _STRAY_APOSTROPHE.sub("", text)


def without_edge_joiners(text: str) -> str:
    """Removes joiners that join nothing: at the beginning and the end of words.

    They are invisible, and would make a word differ from the same one without them.
    """
    return _EDGE_JOINERS.sub("", text)


def without_markers(text: str) -> str:
    """Replaces markers of events, such as <unk>, [laughter] and {breath}, by spaces.

    >>> without_markers("well [laughter] yes")
    'well   yes'
    """
    return _MARKERS.sub(" ", text)


def oddities(text: str) -> Iterator[tuple[str, str]]:
    """Yields what a transcript has that a recogniser can't hear: its kind and text.

    ``tfasr prepare`` counts them, so that users see what their transcripts need.
    """
    for match in _MARKERS.finditer(text):
        yield "markers", match[0]

    for match in _NUMBERS.finditer(text):
        yield "numbers", match[0]

    if text.isascii():
        return

    for character in text:
        if character == TATWEEL:
            yield "tatweels", character
        elif unicodedata.category(character)[0] in "LN" and is_compatibility(character):
            yield "compatibility letters", character

    for match in _EDGE_JOINERS.finditer(text):
        yield "joiners at the edge of a word", f"U+{ord(match[0][0]):04X}"


def is_compatibility(character: str) -> bool:
    """Whether Unicode has a character only for other encodings: ligatures, full width.

    >>> is_compatibility("ﬁ"), is_compatibility("f")
    (True, False)
    """
    canonical = unicodedata.normalize("NFC", character)
    return unicodedata.normalize("NFKC", character) != canonical
