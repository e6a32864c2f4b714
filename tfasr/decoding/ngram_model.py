"""N-gram language models of transcripts, estimated and written in ARPA format."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfasr.decoding.lexicon import split_words
from tfasr.durable import write_whole

MAX_ORDER = 6  # what the kenlm package on PyPI is compiled for
BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
_NEVER = -99.0  # log10, ARPA's custom for the sentence's beginning, which follows nothing

Words = tuple[str, ...]


@dataclass(frozen=True)
class Order:
    """The n-grams of one length.

    Attributes:
        probabilities: of a last word behind the others, by n-gram.
        left_over: what a context of so many words leaves to words that never followed it; their
            probabilities behind the shorter context are multiplied by it.
    """

    probabilities: Mapping[Words, float]
    left_over: Mapping[Words, float]


class NgramModel:
    """Interpolated Kneser-Ney estimates of what word follows, one discount for each order.

    The lowest order is interpolated with equal shares for all words, ``<unk>`` among them.

    Args:
        order: 1..6; 3 for trigrams.
        word_characters: what words are made of; None cuts at white space.

    Raises:
        ValueError: if the order is out of range, there is no word, or one is a mark of ARPA files.

    Source: Kneser and Ney, "Improved backing-off for m-gram language modeling", ICASSP 1995;
        interpolated as in Chen and Goodman, "An empirical study of smoothing techniques for
        language modeling", 1998, section 4.1.
    """

    def __init__(
        self, transcripts: Iterable[str], order: int = 3, word_characters: str | None = None
    ):
        if not isinstance(order, int) or not 1 <= order <= MAX_ORDER:
            raise ValueError(f"order must be an integer in 1..{MAX_ORDER}. Received: {order!r}.")
        counts = _counts(transcripts, order, word_characters)
        self.vocabulary = sorted({word for (word,) in counts[0]} - {BEGIN} | {END, UNKNOWN})
        self.orders: list[Order] = []
        for number in range(order):
            self.orders.append(self._order(_adjusted(counts, number)))

    def probability(self, words: Words) -> float:
        """Returns the probability of the last word behind the others; unknown words are <unk>.

        Args:
            words: one at least; those further back than the order are not looked at.
        """
        known = self.orders[0].probabilities
        words = tuple(w if (w,) in known or w == BEGIN else UNKNOWN for w in words)
        return self._probability(words[-len(self.orders) :])

    def write(self, path: str | Path) -> None:
        """Writes an ARPA file, whole or not at all."""
        shown = [dict(order.probabilities) for order in self.orders]
        shown[0][(BEGIN,)] = 10**_NEVER
        lines = ["\\data\\", *(f"ngram {n}={len(grams)}" for n, grams in enumerate(shown, 1))]
        for number, grams in enumerate(shown, 1):
            lines += ["", f"\\{number}-grams:"]
            following = self.orders[number].left_over if number < len(self.orders) else None
            for words, probability in sorted(grams.items()):
                line = f"{math.log10(probability):.7g}\t{' '.join(words)}"
                if following is not None and words in following:
                    line += f"\t{math.log10(following[words]):.7g}"
                lines.append(line)
        write_whole(Path(path), "\n".join([*lines, "", "\\end\\", ""]))

    def _order(self, adjusted: Mapping[Words, int]) -> Order:
        discount = _discount(adjusted)
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
            rest = left_over[()] / len(self.vocabulary)
            probabilities |= {(w,): rest for w in self.vocabulary if (w,) not in probabilities}
        return Order(probabilities, left_over)

    def _probability(self, words: Words) -> float:
        if not words:
            return 1 / len(self.vocabulary)
        order = self.orders[len(words) - 1]
        known = order.probabilities.get(words)
        if known is not None:
            return known
        return order.left_over.get(words[:-1], 1.0) * self._probability(words[1:])


def _counts(
    transcripts: Iterable[str], order: int, word_characters: str | None
) -> list[Counter[Words]]:
    counts: list[Counter[Words]] = [Counter() for _ in range(order)]
    for text in transcripts:
        words = split_words(text, word_characters)
        marks = sorted({BEGIN, END, UNKNOWN} & set(words))
        if marks:
            raise ValueError(f"Transcripts must not hold {marks}, which ARPA files reserve.")
        sentence = (BEGIN, *words, END) if words else ()
        for length, counted in enumerate(counts, 1):
            counted.update(sentence[i : i + length] for i in range(len(sentence) - length + 1))
    if not counts[0]:
        raise ValueError("An n-gram model must be given at least one word. Received: none.")
    return counts


def _adjusted(counts: list[Counter[Words]], number: int) -> dict[Words, int]:
    """Returns what an order is estimated from: but for the highest, how many words come before.

    An n-gram at a sentence's beginning has nothing before it and keeps its count.
    """
    own = counts[number]
    if number + 1 < len(counts):
        before: defaultdict[Words, int] = defaultdict(int)
        for words in counts[number + 1]:
            before[words[1:]] += 1
        own = Counter({w: own[w] if w[0] == BEGIN else before[w] for w in own})
    # Nothing comes before the beginning itself, and nothing has to foretell it.
    return {words: count for words, count in own.items() if words != (BEGIN,)}


def _discount(counts: Mapping[Words, int]) -> float:
    once, twice = (sum(count == times for count in counts.values()) for times in (1, 2))
    if not once or not twice:  # too few words to tell: half a count
        return 0.5
    return once / (once + 2 * twice)
