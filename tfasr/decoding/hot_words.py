"""Hot words: words that are expected in the speech, such as names.

They become more probable than the acoustic model alone makes them. A recogniser in use
gets them from a file or a mapping (`hot_words_of`); the decoders of `HOT_WORD_DECODERS`
add their weights.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from tfasr.alphabet import Alphabet, is_unspaced, words
from tfasr.errors import UsageError
from tfasr.kit.text import text_lines

log = logging.getLogger("tfasr")

MAX_HOT_WEIGHT = 100.0
DEFAULT_WEIGHT = 5.0  # of a word without one in its file
# What an occurrence adds to the log score at most for each class that it writes. A word
# that wasn't spoken costs -log(probability) for each of them, 7 to 17 in a pause, so
# more than it earns. Without a bound, a large weight fills pauses with the word, again
# and again.
MOST_PER_CLASS = 3.0
_SHOWN = 5  # words in a warning
_REMEDY = (
    "A line of hot words is a word or name, or that, a tab and a weight from "
    f"-{MAX_HOT_WEIGHT:g} to {MAX_HOT_WEIGHT:g}."
)
HotWords = Mapping[str, float]
"""Weights by word, in plain spelling, which are added to the log score at each occurrence."""


def most_added(word: str, alphabet: Alphabet) -> float:
    """Returns the most that an occurrence of a hot word adds to a text's log score.

    It is `MOST_PER_CLASS` for each of the word's classes, and for the space between it
    and the next word if the alphabet has one.
    """
    labels = alphabet.encode(word)
    classes = len(labels) - labels.count(alphabet.separator_id)
    if " " in alphabet.symbols and not is_unspaced(word[0]):
        classes += 1

    return MOST_PER_CLASS * classes


def hot_words_of(
    source: "HotWords | str | Path",
    alphabet: Alphabet,
    default_weight: float = DEFAULT_WEIGHT,
) -> dict[str, float]:
    """Returns the weights of single words, spelled as the alphabet spells transcripts.

    Each word of a name such as "new york" gets the name's weight; in scripts without
    spaces, each character. A word that several lines name gets the largest weight. The
    log names weights above what an occurrence can add; see `most_added`.

    Args:
        source: weights by word or name, or a text file with one per line.
        alphabet: of the recogniser.
        default_weight: of lines without a weight.

    Raises:
        UsageError: if the file can't be read, a word has other characters than the
            alphabet, or a weight isn't a number in -100..100. The message names the
            line.
    """
    if isinstance(source, Mapping):
        entries = [
            (f"The hot word {text!r}", text, weight) for text, weight in source.items()
        ]
    else:
        entries = []
        for number, line in enumerate(text_lines(source, _REMEDY), start=1):
            text, tab, weight = line.partition("\t")
            if text.strip():
                place = f"Line {number} of {source}"
                entries.append((place, text, weight if tab else default_weight))

    weights: dict[str, float] = {}
    for place, text, weight in entries:
        # As transcripts were before training.
        normalised = alphabet.normalise(text)
        if not normalised or (foreign := alphabet.foreign_characters(normalised)):
            why = f"has the characters {foreign}" if normalised else "has no letters"
            raise UsageError(
                f"Hot words must be written in the letters of the alphabet. {place} is {text!r}, "
                f"which {why}. {_REMEDY}"
            )

        number = _weight(weight, place)
        for word in words(normalised):
            # A word may be part of several names.
            weights[word] = max(number, weights.get(word, number))

    if not weights:
        raise UsageError(
            f"Hot words must name at least one word. Received: {source}. {_REMEDY}"
        )

    _warn_of_large(weights, alphabet)

    return weights


def _warn_of_large(weights: HotWords, alphabet: Alphabet) -> None:
    """Warns of weights that the decoders lower, see `most_added`."""
    lowered = [
        f"{word} {weight:g} to {most_added(word, alphabet):g}"
        for word, weight in weights.items()
        if weight > most_added(word, alphabet)
    ]
    if lowered:
        more = ", ..." if len(lowered) > _SHOWN else ""
        log.warning(
            "hot words: the weights of %d are lowered, because larger ones write a word where "
            "there was no speech: %s%s",
            len(lowered),
            ", ".join(lowered[:_SHOWN]),
            more,
        )


def _weight(weight: str | float, place: str) -> float:
    """Returns a weight as a number; UsageError if it isn't one or is too large."""
    try:
        number = float(weight)
    except ValueError:
        number = float("nan")

    if not abs(number) <= MAX_HOT_WEIGHT:
        raise UsageError(f"{place} has the weight {weight!r}. {_REMEDY}")

    return number
