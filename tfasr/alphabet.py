"""The characters or units a recogniser writes, and how they spell a transcript.

An `Alphabet` normalises transcripts when a corpus is prepared, encodes them as labels
for training, and decodes labels to text. A run keeps it in alphabet.json. The functions
before it say what a character, a word and a space are in all scripts; scoring uses them
too.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from tfasr import letters
from tfasr.errors import UsageError, needed
from tfasr.kit.files import read_object, write_whole
from tfasr.normalisers import described, normalised

# A character that is followed by the same one.
_BEFORE_ITS_EQUAL = re.compile(r"(.)(?=\1)", re.DOTALL)

# The paper's characters, in the order of its classes.
ENGLISH = " abcdefghijklmnopqrstuvwxyz'_"

# Stands for the space before a word, in units.
WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"

# Scripts that write no spaces between words, so each character counts as a word.
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"


def normalise(text: str, language: str = "") -> str:
    """Returns ``text`` in NFC, in lower case, with single spaces between words.

    >>> normalise("Zwei  Äpfel ")
    'zwei äpfel'

    Args:
        text: such as a transcript.
        language: BCP 47 tag whose rules for case hold, see `tfasr.letters.lower`.
    """
    if text.isascii() and not language:
        text = text.lower()
    else:
        text = letters.lower(text, language)

    return " ".join(text.split())


def clusters(text: str) -> list[str]:
    """Returns the characters that a reader sees: letters with their combining marks.

    >>> len("e\N{COMBINING ACUTE ACCENT}"), len(clusters("e\N{COMBINING ACUTE ACCENT}"))
    (2, 1)

    Source: Unicode Standard Annex 29, grapheme clusters.
    """
    if text.isascii():
        return list(text)

    return needed("regex", "Text").findall(r"\X", text)


def words(text: str) -> list[str]:
    """Splits a text into words: at spaces, and at characters of scripts without spaces.

    >>> words("two 中文")
    ['two', '中', '文']
    """
    if not is_unspaced(text):
        return text.split()

    pattern = rf"(?={_UNSPACED})\X|(?:(?!{_UNSPACED})\S)+"

    return needed("regex", "Text").findall(pattern, text)


def join_words(parts: Iterable[str]) -> str:
    """Joins words with spaces, but not next to characters of scripts without spaces.

    >>> join_words(["two", "中", "文"])
    'two中文'
    """
    text = ""
    for part in parts:
        at_edge = not text or not part
        if not at_edge and not is_unspaced(text[-1]) and not is_unspaced(part[0]):
            text += " "

        text += part

    return text


def is_unspaced(text: str) -> bool:
    """Whether a text has characters of a script that writes no spaces between words.

    >>> is_unspaced("two 中文"), is_unspaced("two")
    (True, False)
    """
    return not text.isascii() and bool(needed("regex", "Text").search(_UNSPACED, text))


def is_punctuation(character: str) -> bool:
    """Whether nobody pronounces a character: punctuation, a symbol or invisible.

    Joiners are letters here, since words differ by them.
    """
    category = unicodedata.category(character)
    return category[0] in "PSC" and character not in letters.JOINERS


@dataclass(frozen=True)
class Alphabet:
    """An ordered set of characters; the CTC blank is the class after the last one.

    The separator, if there is one, is written between two equal characters: "cool" is
    spelled ``co_ol``, so that a CTC path never needs a blank to tell two equal labels
    apart. With units, the classes are units instead of characters, and the separator is
    not used.

    Args:
        characters: the characters in class order, each once; all of length one. Without
            a space, transcripts are written without spaces.
        separator: one of ``characters``, or None to spell doubled characters as they
            are.
        units: sub-word units and their scores in sentencepiece's notation, including
            every single character; empty if the classes are characters.
        units_kind: how a word is cut into units: "unigram" for the best sum of scores,
            "bpe" for merging the neighbours with the best score until none can be
            merged, "word" for the whole word or, if that isn't a unit, its characters.
        mapping: pairs of a text to replace in transcripts and its replacement.
        keep_case: whether transcripts keep upper case.
        language: a BCP 47 tag whose rules for case hold, such as "tr", whose I is the
            capital of ı.
        normaliser: a name in `tfasr.normalisers.NORMALISERS`, applied to transcripts
            before anything else; "" for none.
        punctuation: what happens to punctuation that isn't in the alphabet: "refused"
            rejects it like any other foreign character, "kept" and "dropped" remove it.
            "dropped" also removes apostrophes that aren't between letters.

    Raises:
        ValueError: if a character occurs twice, the separator is not one of them, or
            the units can't spell all characters.

    Source: the paper (arXiv 2003.12366), section 4.4.3: space, a-z, apostrophe,
    separator.
    """

    characters: str = ENGLISH
    separator: str | None = "_"
    units: tuple[tuple[str, float], ...] = ()
    units_kind: Literal["unigram", "bpe", "word"] = "unigram"
    mapping: tuple[tuple[str, str], ...] = ()
    keep_case: bool = False
    language: str = ""
    normaliser: str = ""
    punctuation: Literal["refused", "dropped", "kept"] = "refused"

    def __post_init__(self):
        if not isinstance(self.characters, str):
            raise TypeError(
                f"Characters must be a string. Received: {self.characters!r:.80}."
            )

        repeated = sorted(
            c for c, count in Counter(self.characters).items() if count > 1
        )
        if not self.characters or repeated:
            raise ValueError(
                "An alphabet must hold at least one character and each only once. "
                f"Received: characters={self.characters!r}, repeated: {repeated}."
            )

        if self.separator is not None and (
            len(self.separator) != 1 or self.separator not in self.characters
        ):
            raise ValueError(
                "The separator must be one of the alphabet's characters, or None. "
                f"Received: separator={self.separator!r}, "
                f"characters={self.characters!r}."
            )

        if self.units:
            self._check_units()

    def _check_units(self) -> None:
        """Raises ValueError unless the units can spell every text of the alphabet.

        Each character must be a unit, so that any word can be cut; no unit may reach
        into the next word.
        """
        names = [name for name, _ in self.units]

        # What makes units unfit, each for its part of the message.
        signs = self.unit_characters
        missing = signs - set(names)
        foreign = set("".join(names)) - signs
        crossing = {n for n in names if WORD_START in n[1:] or not n}
        double = len(names) - len(set(names))
        wrong = missing or foreign or crossing or double

        if wrong or self.units_kind not in self._cuts:
            raise ValueError(
                "Units must spell every character of the alphabet "
                f"{self.characters[:80]!r}. Each unit must occur once and lie within a "
                f"word. Received: {self.units_kind} units; missing characters: "
                f"{sorted(missing)[:20]}; characters of another alphabet: "
                f"{sorted(foreign)[:20]}; units across words: {sorted(crossing)[:5]}; "
                f"repeated units: {double}. Train units on this text, or use the "
                "alphabet of the units."
            )

    @property
    def unit_characters(self) -> frozenset[str]:
        """The characters of units: `WORD_START` takes the place of the space."""
        if " " not in self._writable:
            return self._writable

        return self._writable - {" "} | {WORD_START}

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The text of each class but the blank: characters or units."""
        return tuple(name for name, _ in self.units) or tuple(self.characters)

    @property
    def blank_id(self) -> int:
        """The class of the CTC blank: the last one."""
        return len(self.units) or len(self.characters)

    @property
    def num_classes(self) -> int:
        """The number of classes, blank included."""
        return self.blank_id + 1

    @property
    def separator_id(self) -> int:
        """The class of the separator, or -1 without one.

        An alphabet of units has none, whatever ``separator`` is.
        """
        if self.units or self.separator is None:
            return -1

        return self._ids[self.separator]

    @property
    def spelled_classes(self) -> list[list[int]]:
        """For each class but the blank, the classes of its characters.

        A decoder that knows words by their characters follows units with these.
        """
        return [
            [self._ids[character] for character in symbol] for symbol in self.symbols
        ]

    @cached_property
    def word_starts(self) -> tuple[bool, ...]:
        """Whether each class but the blank starts a word by itself.

        Units do with `WORD_START`, characters of scripts without spaces always. Before
        all others, a word begins after the space's label.
        """
        if self.units:
            return tuple(symbol[0] == WORD_START for symbol in self.symbols)

        # Marks and invisible characters belong to the letter before them.
        return tuple(
            is_unspaced(symbol) and unicodedata.category(symbol)[0] not in "MC"
            for symbol in self.symbols
        )

    @cached_property
    def _ids(self) -> dict[str, int]:
        """The class of each symbol."""
        return {symbol: index for index, symbol in enumerate(self.symbols)}

    @cached_property
    def _writable(self) -> frozenset[str]:
        """The characters that a transcript may have: all but the separator."""
        return frozenset(self.characters) - {self.separator}

    def normalise(self, text: str) -> str:
        """Returns a transcript as the recogniser should write it.

        This is the function `normalise` with the alphabet's normaliser, mapping,
        language, case and punctuation. An apostrophe between letters is not
        punctuation; all kinds of apostrophes that aren't in the alphabet are written as
        ', if that is.
        """
        text = normalised(text, self.normaliser, self.language)
        text = self._mapped_and_cased(unicodedata.normalize("NFC", text))
        if "'" in self._writable:
            text = letters.with_plain_apostrophes(text, kept=self._writable)
            if self.punctuation == "dropped":
                text = letters.without_stray_apostrophes(text)

        if self.punctuation != "refused":
            foreign = set(text) - self._writable
            for character in filter(is_punctuation, foreign):
                # A dash is between words, an apostrophe within one.
                replacement = ""
                if unicodedata.category(character) == "Pd" or character in "/|\\":
                    replacement = " "

                text = text.replace(character, replacement)

        text = " ".join(text.split())
        if " " not in self._writable:
            text = text.replace(" ", "")

        return unicodedata.normalize("NFC", text)

    def _mapped_and_cased(self, text: str) -> str:
        """Applies the mapping's lines as they are written, and again to lower case.

        So a line with I and one with i are different, and a line in lower case also
        holds for capitals that no other line names. No line is applied to what another
        one wrote.
        """
        if not self.mapping:
            return self._cased(text)

        targets = self._targets

        parts = []
        for number, part in enumerate(self._split_at_sources(text)):
            # Every second part is a source.
            if number % 2:
                parts.append(self._cased(targets[part]))
                continue

            for place, piece in enumerate(self._split_at_sources(self._cased(part))):
                if place % 2:
                    piece = self._cased(targets[piece])

                parts.append(piece)

        return "".join(parts)

    def _cased(self, text: str) -> str:
        """Returns a text in the case of the alphabet's transcripts."""
        if self.keep_case:
            return text

        return letters.lower(text, self.language)

    @property
    def text_rule(self) -> str:
        """Describes what `normalise` does and what counts as a word, for comparisons."""
        case = "lower case"
        language = letters.primary_language(self.language)
        if self.keep_case:
            case = "case kept"
        elif language in letters.SPECIAL_CASING:
            case += f" of {language}"

        rules = ["NFC", case, "single spaces"]
        if self.normaliser:
            rules.append(f"normaliser {described(self.normaliser, self.language)}")
        if self.punctuation != "refused":
            rules.append(f"punctuation {self.punctuation}")
        if self.mapping:
            pairs = json.dumps(self.mapping).encode()
            rules.append(f"mapping {hashlib.sha256(pairs).hexdigest()[:16]}")

        if is_unspaced(self.characters):
            rules.append("each character without spaces a word")
        if any(unicodedata.category(c)[0] == "M" for c in self.characters):
            rules.append("characters with their marks")

        return ", ".join(rules)

    @property
    def units_fact(self) -> dict[str, Any]:
        """Returns the units' kind, number and hash for a run's ledger.

        The hash tells whether two runs have the same units.
        """
        names = hashlib.sha256("\n".join(self.symbols).encode()).hexdigest()[:16]
        return {"kind": self.units_kind, "count": len(self.units), "hash": names}

    @cached_property
    def _targets(self) -> dict[str, str]:
        """What each source of the mapping becomes."""
        return dict(self.mapping)

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """The lengths of the mapping's sources by their first character."""
        lengths: dict[str, set[int]] = {}
        for source in self._targets:
            lengths.setdefault(source[0], set()).add(len(source))

        return {
            first: sorted(of_first, reverse=True) for first, of_first in lengths.items()
        }

    @cached_property
    def _first_characters(self) -> re.Pattern[str]:
        """Matches a character with which a source of the mapping begins."""
        return re.compile(f"[{re.escape(''.join(self._lengths))}]")

    def _split_at_sources(self, text: str) -> list[str]:
        """Splits a text at the mapping's sources; the longest at a place counts.

        Every second part is a source. A pattern of all sources would be tried one by
        one: it takes minutes for a mapping of 50 000 lines.
        """
        parts: list[str] = []
        # Where the part begins that no source has ended yet, and where to look next.
        begin = 0
        place = 0

        while (match := self._first_characters.search(text, place)) is not None:
            place = match.start()
            lengths = self._lengths[match[0]]
            ends = (place + length for length in lengths)
            end = next((end for end in ends if text[place:end] in self._targets), None)

            if end is None:
                place += 1
                continue

            parts.append(text[begin:place])
            parts.append(text[place:end])
            begin = end
            place = end

        parts.append(text[begin:])

        return parts

    def foreign_characters(self, text: str) -> list[str]:
        """Returns the characters of a text that can't be written, sorted.

        The separator is one of them: it is written between equal characters alone.

        >>> Alphabet().foreign_characters("naïve_")
        ['_', 'ï']
        """
        if self._writable.issuperset(text):
            return []

        return sorted(set(text) - self._writable)

    def spell(self, text: str) -> str:
        """Returns ``text`` with the separator between equal neighbours.

        >>> Alphabet().spell("cool")
        'co_ol'
        """
        if self.separator is None or self.units:
            return text

        return _BEFORE_ITS_EQUAL.sub(lambda match: match[0] + self.separator, text)

    def encode(self, text: str) -> list[int]:
        """Returns the labels (no blanks) of a normalised transcript without separators.

        >>> Alphabet().encode("ab"), Alphabet().decode([1, 2])
        ([1, 2], 'ab')

        Raises:
            ValueError: if ``text`` has characters outside the alphabet; the message
                names them.
        """
        foreign = self.foreign_characters(text)
        if foreign:
            raise ValueError(
                "A transcript must be written in the alphabet "
                f"{self.characters[:80]!r}, without its separator {self.separator!r}. "
                f"Received: {text!r}, which also has the characters {foreign}."
            )

        if not self.units:
            return [self._ids[character] for character in self.spell(text)]

        start = ""
        if " " in self._writable:
            start = WORD_START

        cut = self._cuts[self.units_kind]
        names: list[str] = []
        for word in text.split():
            names += cut(start + word)

        return [self._ids[name] for name in names]

    @property
    def _cuts(self) -> dict[str, Callable[[str], list[str]]]:
        """The functions that cut a word into units, by kind."""
        return {
            "unigram": self._best_units,
            "bpe": self._merged_units,
            "word": self._whole_word,
        }

    def _whole_word(self, word: str) -> list[str]:
        """Returns a word that is a unit, or its characters."""
        if word in self._ids:
            return [word]

        return list(word)

    @cached_property
    def _scores(self) -> tuple[dict[str, float], int]:
        """The units' scores, and the length of the longest unit."""
        return dict(self.units), max(map(len, self.symbols))

    def _best_units(self, word: str) -> list[str]:
        """Returns the units of a word with the largest sum of scores.

        Source: Kudo, "Subword regularization", ACL 2018: the Viterbi path of a unigram
        model.
        """
        scores, longest = self._scores
        # For each length of the word's beginning: the best sum, and where its last unit
        # begins.
        best: list[tuple[float, int]] = [(0.0, 0)]
        for end in range(1, len(word) + 1):
            sums = []
            for begin in range(max(0, end - longest), end):
                score = scores.get(word[begin:end])
                if score is not None:
                    sums.append((best[begin][0] + score, begin))

            best.append(max(sums))

        names = []
        end = len(word)

        while end:
            names.append(word[best[end][1] : end])
            end = best[end][1]

        return names[::-1]

    def _merged_units(self, word: str) -> list[str]:
        """Returns the units of a word after merging the best neighbours.

        Source: Sennrich, Haddow, Birch, ACL 2016: byte-pair encoding.
        """
        scores, _ = self._scores
        names = list(word)

        while True:
            pairs = [
                (scores.get(a + b), -n) for n, (a, b) in enumerate(pairwise(names))
            ]
            scored = [pair for pair in pairs if pair[0] is not None]
            if not scored:
                return names

            # The best pair; of equally good ones, the first.
            first = -max(scored)[1]
            names[first : first + 2] = ["".join(names[first : first + 2])]

    def decode(self, labels: Sequence[int]) -> str:
        """Returns the text, without separators, of collapsed labels (no blanks).

        Raises:
            ValueError: if a label is not the class of a character or unit.
        """
        wrong = [int(label) for label in labels if not 0 <= label < self.blank_id]
        if wrong:
            raise ValueError(
                f"Labels must lie in 0..{self.blank_id - 1}. Received: {wrong}. Remove "
                "blanks before decoding."
            )

        separator = self.separator_id
        text = "".join(self.symbols[label] for label in labels if label != separator)

        if self.units:
            return text.replace(WORD_START, " ").strip()

        return text

    def to_json(self) -> dict[str, Any]:
        """Returns characters, separator, and other fields that aren't the default."""
        content = {"characters": self.characters, "separator": self.separator}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in content and value != field.default:
                content[field.name] = value

        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Alphabet":
        """Reads what `to_json` returned.

        Raises:
            ValueError, TypeError: if it isn't an alphabet.
        """
        pairs = {
            name: tuple(map(tuple, content[name]))
            for name in ("units", "mapping")
            if name in content
        }
        return cls(**content | pairs)

    def save(self, path: str | Path) -> None:
        """Writes the alphabet as JSON, which `load` reads."""
        write_whole(path, json.dumps(self.to_json(), ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Alphabet":
        """Reads what `save` wrote.

        Raises:
            UsageError: names a missing or damaged file.
        """
        remedy = "Copy it again from the run or export that it belongs to."
        content = read_object(path, remedy, ("characters", "separator"))

        try:
            return cls.from_json(content)
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} must hold an alphabet: {error} {remedy}"
            ) from None
