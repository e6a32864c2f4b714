"""N-gram models: estimates from transcripts, ARPA files, and scores of words by kenlm.

`KenlmModel` is the language model that word beam search uses; kenlm reads it from a
file of any origin. `NgramModel` makes such a file of a text, for corpora that come
without one.
"""

import logging
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfasr.decoding.arpa import is_binary, loadable_by_kenlm
from tfasr.decoding.decoder import split_words
from tfasr.errors import optional_package
from tfasr.kit.files import write_whole

# Limits of settings; values beyond them are mistakes.
MAX_WEIGHT = 10.0
MAX_WORD_BONUS = 100.0
MAX_ORDER = 6  # the limit of the kenlm package on PyPI
# ARPA's marks of a sentence's start and end, and of all words not in the model.
BEGIN = "<s>"
END = "</s>"
UNKNOWN = "<unk>"
# ARPA's log10 probability of the sentence's start, which is never predicted
_NEVER = -99.0
UNKNOWN_RULES = ("score", "drop")  # for words of the lexicon not in the model
_NAMED = 10  # words in a message
Words = tuple[str, ...]

log = logging.getLogger("tfasr")


class KenlmModel:
    """Scores words with an n-gram model, for `WordBeamSearch` with ``mode="kenlm"``.

    A word multiplies a beam's probability by ``P(word | words before it) ** weight *
    exp(word_bonus)``; the sentence's end counts as a word without bonus.

    Args:
        path: an ARPA file, which may be compressed by gzip, or KenLM's binary format.
        weight: in 0..10.
        word_bonus: in -100..100, a natural logarithm that offsets the model's
            preference for few words.
        unknown: what happens to words of the lexicon that the model doesn't have:
            "score" gives them the probability of ``<unk>``, "drop" removes them from
            the lexicon.

    Raises:
        ValueError: if a number is out of range, or the file is missing or damaged.
        UsageError: if the kenlm package is missing.
    """

    def __init__(
        self,
        path: str | Path,
        weight: float = 1.0,
        word_bonus: float = 0.0,
        unknown: Literal["score", "drop"] = "score",
    ):
        if not 0 <= weight <= MAX_WEIGHT:
            raise ValueError(
                f"weight must lie in 0..{MAX_WEIGHT}. Received: weight={weight!r}."
            )

        if not abs(word_bonus) <= MAX_WORD_BONUS:
            raise ValueError(
                f"word_bonus must lie in -{MAX_WORD_BONUS}..{MAX_WORD_BONUS}. "
                f"Received: word_bonus={word_bonus!r}."
            )

        if unknown not in UNKNOWN_RULES:
            raise ValueError(
                f"unknown must be one of {UNKNOWN_RULES}. Received: {unknown!r}."
            )

        self.path = Path(path)
        self.weight = float(weight)
        self.word_bonus = float(word_bonus)
        self.unknown = unknown

        with loadable_by_kenlm(self.path) as file:
            # A temporary file may go once it is loaded.
            self._model = _loaded(file, self.path)

    def known_words(self, lexicon: Iterable[str]) -> list[str]:
        """Returns the words to decode with, and logs how many the model doesn't have.

        Raises:
            ValueError: if none would be left.
        """
        words = list(lexicon)
        # In the order of the lexicon.
        words_in_model = [word for word in words if word in self._model]
        if len(words_in_model) == len(words):
            return words

        missing = sorted(set(words) - set(words_in_model))
        drops = self.unknown == "drop"
        log.warning(
            "%d of the lexicon's %d words are not in %s (%s%s) and %s.",
            len(missing),
            len(words),
            self.path,
            ", ".join(missing[:_NAMED]),
            ", ..." if len(missing) > _NAMED else "",
            "are dropped" if drops else f"get the probability of its {UNKNOWN}",
        )
        if drops and not words_in_model:
            raise ValueError(
                f"{self.path} must have words of the lexicon, or none can be recognised. It has "
                f"none of the {len(words)}: is its text in the same letter case and language?"
            )

        return words_in_model if drops else words

    def scorer(self, words: list[str]) -> "WordScorer":
        """Returns a scorer for these words by index; unknown ones count as ``<unk>``."""
        return WordScorer(_kenlm(), self._model, words, self.weight, self.word_bonus)


def _loaded(file: Path, path: Path) -> Any:
    """Loads a file with kenlm; ValueError, naming the user's ``path``, if it is damaged."""
    kenlm = _kenlm()
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE

    try:
        return kenlm.Model(str(file), config)
    except (OSError, RuntimeError, MemoryError) as error:
        reason = str(error).replace(str(file), str(path))
        if is_binary(path):
            raise ValueError(
                f"{path} must be a binary file that this version of kenlm can load. kenlm: "
                f"{reason} Use the model's ARPA file, or convert it again: build_binary "
                "MODEL.arpa MODEL.bin."
            ) from error

        raise ValueError(
            f"{path} must be a sound ARPA file. kenlm: {reason}"
        ) from error


class WordScorer:
    """Gives a kenlm model's states numbers for the C++ search.

    The search runs in several threads and knows states only by their numbers; -1 is a
    sentence's start.
    """

    def __init__(
        self,
        kenlm: Any,
        model: Any,
        words: list[str],
        weight: float,
        word_bonus: float,
    ):
        self._new_state = kenlm.State
        self._model = model
        self._words = words
        self._scale = weight * math.log(10)
        self._word_bonus = word_bonus
        self._begin = kenlm.State()
        model.BeginSentenceWrite(self._begin)
        self._states: list[Any] = []
        self._ids: dict[Any, int] = {}
        # The search scores words from several threads.
        self._lock = threading.Lock()

    def score(self, state: int, word: int) -> tuple[int, float]:
        """Returns the next state, and the natural logarithm of the word's factor."""
        following = self._new_state()
        log10 = self._model.BaseScore(self._state(state), self._words[word], following)

        with self._lock:
            # Equal states get the same number, so that beams can be
            # compared.
            number = self._ids.setdefault(following, len(self._states))
            if number == len(self._states):
                self._states.append(following)

        return number, self._scale * log10 + self._word_bonus

    def end(self, state: int) -> float:
        """Returns the natural logarithm of the sentence end's factor."""
        log10 = self._model.BaseScore(self._state(state), "</s>", self._new_state())
        return self._scale * log10

    def _state(self, number: int) -> Any:
        """Returns the state with a number."""
        return self._begin if number < 0 else self._states[number]


def _kenlm() -> Any:
    """Imports kenlm; UsageError if it isn't installed."""
    with optional_package("the kenlm package", "A language model", "'tfasr[kenlm]'"):
        import kenlm

        return kenlm


@dataclass(frozen=True)
class Order:
    """One order of an n-gram model: 1 for single words, 2 for pairs, and so on.

    Attributes:
        probabilities: of an n-gram's last word after the others.
        left_over: for each context, the factor that gives the probability of a word
            that never followed it, from the word's probability after the shorter
            context.
    """

    probabilities: Mapping[Words, float]
    left_over: Mapping[Words, float]


class NgramModel:
    """Interpolated Kneser-Ney estimates of the next word, with one discount per order.

    The lowest order is interpolated with a uniform distribution over all words and
    ``<unk>``.

    Args:
        transcripts: the training text, a sentence each.
        order: 1..6; 3 for trigrams.
        word_characters: see `tfasr.decoding.decoder.split_words`.

    Raises:
        ValueError: for another order, a text without words, or one with ARPA's marks.

    Source: Kneser and Ney, "Improved backing-off for m-gram language modeling", ICASSP
        1995; interpolated as in Chen and Goodman, "An empirical study of smoothing
        techniques for language modeling", 1998, section 4.1.
    """

    def __init__(
        self,
        transcripts: Iterable[str],
        order: int = 3,
        word_characters: str | None = None,
    ):
        if not isinstance(order, int) or not 1 <= order <= MAX_ORDER:
            raise ValueError(
                f"order must be an integer in 1..{MAX_ORDER}. Received: {order!r}."
            )

        counts = _counts(transcripts, order, word_characters)
        self.vocabulary = sorted(
            {word for (word,) in counts[0]} - {BEGIN} | {END, UNKNOWN}
        )
        self.orders: list[Order] = []

        for number in range(order):
            self.orders.append(self._order(_adjusted(counts, number)))

    def probability(self, words: Words) -> float:
        """Returns the last word's probability after the others.

        Unknown words count as ``<unk>``; longer contexts than the order's are cut.
        """
        unigrams = self.orders[0].probabilities
        words = tuple(w if (w,) in unigrams or w == BEGIN else UNKNOWN for w in words)
        return self._probability(words[-len(self.orders) :])

    def write(self, path: str | Path) -> None:
        """Writes an ARPA file, which kenlm and other toolkits read."""
        shown = [dict(order.probabilities) for order in self.orders]
        # kenlm needs a unigram of each word that occurs in longer n-grams.
        shown[0][(BEGIN,)] = 10**_NEVER
        lines = [
            "\\data\\",
            *(f"ngram {n}={len(grams)}" for n, grams in enumerate(shown, 1)),
        ]

        for number, grams in enumerate(shown, 1):
            lines += ["", f"\\{number}-grams:"]
            if number < len(self.orders):
                following = self.orders[number].left_over
            else:
                following = None

            for words, probability in sorted(grams.items()):
                line = f"{math.log10(probability):.7g}\t{' '.join(words)}"
                if following is not None and words in following:
                    line += f"\t{math.log10(following[words]):.7g}"
                lines.append(line)

        write_whole(Path(path), "\n".join([*lines, "", "\\end\\", ""]))

    def _order(self, adjusted: Mapping[Words, int]) -> Order:
        """Estimates one order, after all lower ones."""
        once, twice = (sum(n == times for n in adjusted.values()) for times in (1, 2))
        # If there are too few words to estimate a discount, it is half a count.
        discount = once / (once + 2 * twice) if once and twice else 0.5
        totals: Counter[Words] = Counter()
        followers: Counter[Words] = Counter()

        for words, count in adjusted.items():
            totals[words[:-1]] += count
            followers[words[:-1]] += 1

        left_over = {c: discount * followers[c] / totals[c] for c in totals}
        probabilities = {
            words: (count - discount) / totals[words[:-1]]
            + left_over[words[:-1]] * self._probability(words[1:])
            for words, count in adjusted.items()
        }
        if not self.orders:  # words that were never seen: <unk>
            share = left_over[()] / len(self.vocabulary)
            probabilities |= {
                (w,): share for w in self.vocabulary if (w,) not in probabilities
            }

        return Order(probabilities, left_over)

    def _probability(self, words: Words) -> float:
        """Returns a probability by the orders so far; uniform if there is no word."""
        if not words:
            return 1 / len(self.vocabulary)

        order = self.orders[len(words) - 1]
        probability = order.probabilities.get(words)
        if probability is not None:
            return probability

        return order.left_over.get(words[:-1], 1.0) * self._probability(words[1:])


def _counts(
    transcripts: Iterable[str],
    order: int,
    word_characters: str | None,
) -> list[Counter[Words]]:
    """Counts n-grams of each order within sentences; ValueError for unfit transcripts."""
    counts: list[Counter[Words]] = [Counter() for _ in range(order)]
    for text in transcripts:
        words = split_words(text, word_characters)
        marks = sorted({BEGIN, END, UNKNOWN} & set(words))
        if marks:
            raise ValueError(
                f"Transcripts must not contain {marks}, reserved in ARPA files."
            )

        # An empty transcript is no sentence.
        sentence = (BEGIN, *words, END) if words else ()
        for length, counted in enumerate(counts, 1):
            counted.update(
                sentence[i : i + length] for i in range(len(sentence) - length + 1)
            )

    if not counts[0]:
        raise ValueError("An n-gram model needs at least one word. Received: no words.")

    return counts


def _adjusted(counts: list[Counter[Words]], number: int) -> dict[Words, int]:
    """Returns Kneser and Ney's counts of an order, numbered from 0.

    Below the highest order, they are how many distinct words precede an n-gram.
    """
    adjusted = counts[number]
    if number + 1 < len(counts):
        before: defaultdict[Words, int] = defaultdict(int)
        for words in counts[number + 1]:
            before[words[1:]] += 1

        adjusted = {w: n if w[0] == BEGIN else before[w] for w, n in adjusted.items()}

    # No word precedes the sentence's start, and no model needs to predict it.
    return {words: count for words, count in adjusted.items() if words != (BEGIN,)}
