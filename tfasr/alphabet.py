"""The characters a recogniser writes, their order, and how a transcript is spelled in them."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tfasr.errors import UsageError
from tfasr.kit.files import read_object, write_whole

_BEFORE_ITS_EQUAL = re.compile(r"(.)(?=\1)", re.DOTALL)
ENGLISH = " abcdefghijklmnopqrstuvwxyz'_"


def normalise(text: str) -> str:
    """Returns ``text`` in NFC, in lower case, with single spaces between words."""
    return " ".join(unicodedata.normalize("NFC", text).lower().split())


@dataclass(frozen=True)
class Alphabet:
    """An ordered set of characters; the CTC blank is the class after the last one.

    With a separator, a character that follows itself is kept apart by it: "cool" is spelled
    ``co_ol``, so that a CTC path never needs a blank to tell two equal labels apart.

    Args:
        characters: the characters in class order, each once; all of length one.
        separator: one of ``characters``, or None to spell doubled characters as they are.

    Raises:
        ValueError: if a character stands twice or the separator is not one of them.

    Source: the paper (arXiv 2003.12366), section 4.4.3: space, a-z, apostrophe, separator.
    """

    characters: str = ENGLISH
    separator: str | None = "_"

    def __post_init__(self):
        if not isinstance(self.characters, str):
            raise TypeError(f"Characters must be one text. Received: {self.characters!r:.80}.")
        repeated = sorted(c for c, count in Counter(self.characters).items() if count > 1)
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
                f"Received: separator={self.separator!r}, characters={self.characters!r}."
            )

    @property
    def blank_id(self) -> int:
        """The class of the CTC blank: the last one."""
        return len(self.characters)

    @property
    def num_classes(self) -> int:
        """The number of classes, blank included."""
        return len(self.characters) + 1

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: index for index, character in enumerate(self.characters)}

    @cached_property
    def _writable(self) -> frozenset[str]:
        return frozenset(self._ids) - {self.separator}

    def foreign_characters(self, text: str) -> list[str]:
        """Returns the characters that can't be written, such as the separator; sorted."""
        if self._writable.issuperset(text):
            return []
        return sorted(set(text) - self._writable)

    def spell(self, text: str) -> str:
        """Returns ``text`` with the separator between equal neighbours: "cool" -> "co_ol"."""
        if self.separator is None:
            return text
        return _BEFORE_ITS_EQUAL.sub(lambda match: match[0] + self.separator, text)

    def encode(self, text: str) -> list[int]:
        """Returns the labels of a normalised transcript in plain spelling, without blanks.

        Raises:
            ValueError: if ``text`` has characters outside the alphabet; it names them.
        """
        if foreign := self.foreign_characters(text):
            raise ValueError(
                f"A transcript must be written in the alphabet {self.characters!r} "
                f"(separator {self.separator!r} aside). "
                f"Received: {text!r} with the characters {foreign}."
            )
        return [self._ids[character] for character in self.spell(text)]

    def decode(self, labels: Sequence[int]) -> str:
        """Returns the plain text of collapsed labels: no blanks, separators removed.

        Raises:
            ValueError: if a label is not the class of a character.
        """
        wrong = [int(label) for label in labels if not 0 <= label < self.blank_id]
        if wrong:
            raise ValueError(
                f"Labels must lie in 0..{self.blank_id - 1}: blanks are removed before. "
                f"Received: {wrong}."
            )
        return "".join(
            self.characters[label] for label in labels if self.characters[label] != self.separator
        )

    def save(self, path: str | Path) -> None:
        """Writes ``alphabet.json``."""
        content = {"characters": self.characters, "separator": self.separator}
        write_whole(path, json.dumps(content, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Alphabet":
        """Reads what `save` wrote; a UsageError names a missing or damaged file."""
        remedy = "Copy it from where it was written."
        content = read_object(path, remedy, ("characters", "separator"))
        try:
            return cls(content["characters"], content["separator"])
        except (ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} must hold an alphabet: {error} {remedy}") from None
