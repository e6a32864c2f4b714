"""Word bigrams counted in transcripts: the language model of word beam search."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tfasr.decoding.lexicon import split_words

MAX_COUNT = 1 << 53
"""What a float64 still counts exactly."""


@dataclass(frozen=True)
class BigramCounts:
    """How often words, and words behind words, stand in a training text.

    Attributes:
        unigrams: count by word.
        bigrams: count by (word, following word).
    """

    unigrams: Mapping[str, int]
    bigrams: Mapping[tuple[str, str], int]

    def __post_init__(self):
        if not self.unigrams:
            raise ValueError("Bigram counts must hold at least one word. Received: none.")
        counts = [*self.unigrams.items(), *self.bigrams.items()]
        wrong = [
            (key, count)
            for key, count in counts
            if not isinstance(count, int) or not 1 <= count <= MAX_COUNT
        ]
        if wrong:
            raise ValueError(f"Counts must be integers in 1..2**53. Received: {wrong[:10]}.")
        strangers = sorted({w for pair in self.bigrams for w in pair if w not in self.unigrams})
        if strangers:
            raise ValueError(
                "Every word of a bigram must have a unigram count. "
                f"Received: none for {len(strangers)} words: {strangers[:10]}."
            )

    @classmethod
    def from_transcripts(
        cls, transcripts: Iterable[str], word_characters: str | None = None
    ) -> "BigramCounts":
        """Counts words and their neighbours; no pair crosses the border of two transcripts.

        Args:
            word_characters: what words are made of; None cuts at white space.

        Raises:
            ValueError: if there is no word.
        """
        unigrams: Counter[str] = Counter()
        bigrams: Counter[tuple[str, str]] = Counter()
        for text in transcripts:
            words = split_words(text, word_characters)
            unigrams.update(words)
            bigrams.update(zip(words, words[1:], strict=False))
        return cls(unigrams, bigrams)
