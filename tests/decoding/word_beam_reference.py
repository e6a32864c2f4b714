"""Word beam search written for clarity: the semantics that the compiled decoder must have.

Linear probabilities in float64, beams as tuples of classes in a dictionary, nothing pruned early.
Source: Scheidl, Fiel, Sablatnig, "Word beam search: a CTC decoding algorithm", 2018.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

FORECAST_MODES = ("ngrams_forecast", "ngrams_forecast_sample")


@dataclass
class Bigrams:
    """Add-k smoothed word bigrams of one running text."""

    words: list[tuple[int, ...]]
    k: float
    unigrams: Counter = field(init=False)
    bigrams: Counter = field(init=False)

    def __post_init__(self):
        self.unigrams = Counter(self.words)
        self.bigrams = Counter(zip(self.words, self.words[1:], strict=False))

    def log_prob(self, word, previous) -> float:
        probability = self.prob(word, previous)
        return math.log(probability) if probability > 0 else -math.inf

    def prob(self, word, previous) -> float:
        if previous is None:
            return self.unigrams[word] / len(self.words)
        if not self.unigrams[previous]:
            return 0.0
        return (self.bigrams[previous, word] + self.k) / (
            self.unigrams[previous] + self.k * len(self.unigrams)
        )

    def prefix_prob(self, prefix, previous) -> float:
        return min(
            1.0,
            sum(
                self.prob(word, previous)
                for word in self.unigrams
                if word[: len(prefix)] == prefix
            ),
        )


@dataclass
class Beam:
    """One class sequence: its probabilities and what its text means to dictionary and model."""

    prefix: tuple[int, ...] = ()
    last_word: tuple[int, ...] | None = None
    num_words: int = 0
    log_product: float = 0.0
    lm: float = 1.0
    p_blank: float = 0.0
    p_non_blank: float = 0.0

    @property
    def total(self) -> float:
        return self.p_blank + self.p_non_blank

    @property
    def score(self) -> float:
        return self.total * self.lm


@dataclass
class Reference:
    """Decodes one utterance.

    Args:
        dictionary: words as tuples of classes.
        word_classes: classes that words are made of; the others but the blank separate words.
        blank: the class of the blank.
        bigrams: the language model of every mode but ``words``.
    """

    dictionary: set[tuple[int, ...]]
    word_classes: set[int]
    blank: int
    beam_width: int
    mode: str = "words"
    bigrams: Bigrams | None = None

    def __post_init__(self):
        self.prefixes = {word[:n] for word in self.dictionary for n in range(len(word) + 1)}

    def allowed(self, prefix) -> list[int]:
        between_words = not prefix or prefix in self.dictionary
        return [
            c
            for c in range(self.blank)
            if (c in self.word_classes and (*prefix, c) in self.prefixes)
            or (c not in self.word_classes and between_words)
        ]

    def grow(self, beam: Beam, c: int) -> Beam:
        """Returns ``beam`` with class ``c`` written, still without probability."""
        state = Beam(beam.prefix, beam.last_word, beam.num_words, beam.log_product, beam.lm)
        if c in self.word_classes:
            state.prefix = (*beam.prefix, c)
            if self.mode in FORECAST_MODES:
                ahead = self.bigrams.prefix_prob(state.prefix, beam.last_word)
                log_ahead = math.log(ahead) if ahead > 0 else -math.inf
                state.lm = math.exp((beam.log_product + log_ahead) / (beam.num_words + 1))
            return state
        if beam.prefix and self.mode != "words":
            state.log_product += self.bigrams.log_prob(beam.prefix, beam.last_word)
            state.last_word = beam.prefix
            state.num_words += 1
            state.lm = math.exp(state.log_product / state.num_words)
        state.prefix = ()
        return state

    def step(self, beams: dict[tuple[int, ...], Beam], y) -> dict[tuple[int, ...], Beam]:
        following: dict[tuple[int, ...], Beam] = {}
        for sequence, beam in beams.items():
            stay = following.setdefault(
                sequence, Beam(*(getattr(beam, name) for name in STATE_FIELDS))
            )
            stay.p_blank += beam.total * y[self.blank]
            if sequence:
                stay.p_non_blank += beam.p_non_blank * y[sequence[-1]]
            for c in self.allowed(beam.prefix):
                grown = following.setdefault((*sequence, c), self.grow(beam, c))
                repeated = bool(sequence) and c == sequence[-1]
                grown.p_non_blank += y[c] * (beam.p_blank if repeated else beam.total)
        return following

    def best(self, beams):
        """The beams of positive score, best first; equal scores in the order of their classes."""
        kept = [(sequence, beam) for sequence, beam in beams.items() if beam.score > 0]
        return sorted(kept, key=lambda item: (-item[1].score, item[0]))[: self.beam_width]

    def complete(self, sequence, prefix):
        words = [word for word in self.dictionary if word[: len(prefix)] == prefix]
        if prefix and len(words) == 1:
            return (*sequence, *words[0][len(prefix) :])
        return sequence

    def decode(self, log_probs) -> list[tuple[tuple[int, ...], float]]:
        """Returns the final beams, best first, as (classes, natural logarithm of the score)."""
        beams = {(): Beam(p_blank=1.0)}
        scale = 0
        for frame in np.asarray(log_probs, np.float32):
            y = [math.exp(value) for value in frame]
            beams = dict(self.best(self.step(beams, y)))
            scale += self.rescale(beams)
        found = [
            (self.complete(sequence, beam.prefix), math.log(beam.score) + scale * math.log(2))
            for sequence, beam in self.best(beams)
        ]
        return found or [((), -math.inf)]

    @staticmethod
    def rescale(beams) -> int:
        """Multiplies by a power of two, which rounds nothing; returns the exponent taken out."""
        exponent = math.frexp(max((beam.total for beam in beams.values()), default=1.0))[1]
        for beam in beams.values():
            beam.p_blank = math.ldexp(beam.p_blank, -exponent)
            beam.p_non_blank = math.ldexp(beam.p_non_blank, -exponent)
        return exponent


STATE_FIELDS = ("prefix", "last_word", "num_words", "log_product", "lm")
