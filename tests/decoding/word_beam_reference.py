"""Word beam search written for clarity: the semantics that the compiled decoder must have.

Linear probabilities in float64, beams as tuples of classes in a dictionary, nothing
pruned early. Source: Scheidl, Fiel, Sablatnig, "Word beam search: a CTC decoding
algorithm", 2018.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tfasr import Alphabet
from tfasr.decoding.decoder import lexicon_from_transcripts, split_words
from tfasr.decoding.word_beam_search import BigramCounts, WordBeamSearch

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
    """One class sequence: its probabilities and what its text means to dictionary and
    model.
    """

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
        word_classes: classes that words are made of; the others but the blank separate
            words.
        blank: the class of the blank.
        bigrams: the language model of every mode but ``words``.
        starts: word classes that begin a word, without a gap before it.
    """

    dictionary: set[tuple[int, ...]]
    word_classes: set[int]
    blank: int
    beam_width: int
    mode: str = "words"
    bigrams: Bigrams | None = None
    recombine: bool = False
    starts: set[int] = field(default_factory=set)

    def __post_init__(self):
        self.prefixes = {
            word[:n] for word in self.dictionary for n in range(len(word) + 1)
        }

    def allowed(self, prefix) -> list[int]:
        between_words = not prefix or prefix in self.dictionary
        return [
            c
            for c in range(self.blank)
            if (c in self.word_classes - self.starts and (*prefix, c) in self.prefixes)
            or (c in self.starts and between_words and (c,) in self.prefixes)
            or (c not in self.word_classes and between_words)
        ]

    def grow(self, beam: Beam, c: int) -> Beam:
        """Returns ``beam`` with class ``c`` written, still without probability."""
        state = Beam(
            beam.prefix, beam.last_word, beam.num_words, beam.log_product, beam.lm
        )
        if c in self.starts and beam.prefix:
            return self.grow(self.grow(beam, -1), c)  # as after a gap
        if c in self.word_classes:
            state.prefix = (*beam.prefix, c)
            if self.mode in FORECAST_MODES:
                ahead = self.bigrams.prefix_prob(state.prefix, beam.last_word)
                log_ahead = math.log(ahead) if ahead > 0 else -math.inf
                state.lm = math.exp(
                    (beam.log_product + log_ahead) / (beam.num_words + 1)
                )

            return state

        if beam.prefix and self.mode != "words":
            state.log_product += self.bigrams.log_prob(beam.prefix, beam.last_word)
            state.last_word = beam.prefix
            state.num_words += 1
            state.lm = math.exp(state.log_product / state.num_words)

        state.prefix = ()
        return state

    def step(
        self, beams: dict[tuple[int, ...], Beam], y
    ) -> dict[tuple[int, ...], Beam]:
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

    def recombined(self, following, present):
        """Leaves out what the best candidate with the same future dominates.

        Where the beam is full, an extension below all present beams is no candidate.
        """
        if len(present) == self.beam_width:
            least = min(following[sequence].score for sequence in present)
            following = {
                sequence: beam
                for sequence, beam in following.items()
                if sequence in present or beam.score >= least
            }

        groups = {}
        for sequence, beam in following.items():
            key = (beam.prefix, sequence[-1:], beam.last_word, beam.num_words)
            groups.setdefault(key, []).append((sequence, beam))

        kept = {}
        for members in groups.values():
            best = min(members, key=lambda member: (-member[1].score, member[0]))[1]
            for sequence, beam in members:
                if beam is best or not dominates(best, beam):
                    kept[sequence] = beam

        return kept

    def best(self, beams):
        """The beams of positive score, best first; equal scores in the order of their
        classes.
        """
        kept = [(sequence, beam) for sequence, beam in beams.items() if beam.score > 0]
        return sorted(kept, key=lambda item: (-item[1].score, item[0]))[
            : self.beam_width
        ]

    def complete(self, sequence, prefix):
        words = [word for word in self.dictionary if word[: len(prefix)] == prefix]
        if prefix and len(words) == 1:
            return (*sequence, *words[0][len(prefix) :])
        return sequence

    def decode(self, log_probs) -> list[tuple[tuple[int, ...], float]]:
        """Returns the final beams, best first, as (classes, natural logarithm of the
        score).
        """
        beams = {(): Beam(p_blank=1.0)}
        scale = 0
        for frame in np.asarray(log_probs, np.float32):
            y = [math.exp(value) for value in frame]
            following = self.step(beams, y)
            if self.recombine:
                following = self.recombined(following, beams)
            beams = dict(self.best(following))
            scale += self.rescale(beams)

        found = [
            (
                self.complete(sequence, beam.prefix),
                math.log(beam.score) + scale * math.log(2),
            )
            for sequence, beam in self.best(beams)
        ]
        return found or [((), -math.inf)]

    @staticmethod
    def rescale(beams) -> int:
        """Multiplies by a power of two, which rounds nothing; returns the exponent
        taken out.
        """
        exponent = math.frexp(
            max((beam.total for beam in beams.values()), default=1.0)
        )[1]
        for beam in beams.values():
            beam.p_blank = math.ldexp(beam.p_blank, -exponent)
            beam.p_non_blank = math.ldexp(beam.p_non_blank, -exponent)

        return exponent


def dominates(best: Beam, other: Beam) -> bool:
    return (
        best.p_blank >= other.p_blank
        and best.p_non_blank >= other.p_non_blank
        and best.log_product >= other.log_product
    )


STATE_FIELDS = ("prefix", "last_word", "num_words", "log_product", "lm")


@dataclass
class Problem:
    """One utterance for both decoders; ``corpus`` is dictionary and language model in one."""

    chars: str
    word_chars: str
    corpus: str
    log_probs: np.ndarray
    beam_width: int = 10
    mode: str = "words"
    k: float = 0.0
    recombine: bool = False

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.chars.index(c) for c in text)

    def reference(self) -> list[tuple[tuple[int, ...], float]]:
        """All final beams of different classes, best first."""
        words = [self.ids(word) for word in split_words(self.corpus, self.word_chars)]
        found = Reference(
            set(words),
            set(self.ids(self.word_chars)),
            len(self.chars),
            self.beam_width,
            self.mode,
            Bigrams(words, self.k),
            self.recombine,
        ).decode(self.log_probs)
        first = {}
        for sequence, score in found:
            first.setdefault(sequence, score)
        return list(first.items())

    def decoder(self) -> WordBeamSearch:
        counts = BigramCounts.from_transcripts([self.corpus], self.word_chars)
        return WordBeamSearch(
            Alphabet(self.chars, separator=None),
            lexicon_from_transcripts([self.corpus], self.word_chars),
            self.beam_width,
            self.mode,
            language_model=None if self.mode == "words" else counts,
            smoothing=self.k,
            word_characters=self.word_chars,
            recombine=self.recombine,
            collapse_spaces=False,
            num_threads=1,
        )

    def decoded(self, n_best: int = 1 << 16) -> list[tuple[tuple[int, ...], float]]:
        found = self.decoder().decode_n_best(
            self.log_probs[None], np.array([len(self.log_probs)]), n_best
        )
        return [
            (self.ids(hypothesis.text), hypothesis.score) for hypothesis in found[0]
        ]
