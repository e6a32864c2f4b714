"""The interface of decoders, the greedy decoder and TensorFlow's prefix beam search.

A decoder turns a model's log-probabilities into text. All get the same arrays, whatever
the model's framework, so that they can be compared (`tfasr bench`, workload
``decoder``).
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tfasr.alphabet import Alphabet, words
from tfasr.errors import needed

# Hypotheses that `MiddleRescoring` compares; more have not been tried.
RESCORED_HYPOTHESES = 64


@dataclass(frozen=True)
class Hypothesis:
    """The decoded text of one utterance.

    Attributes:
        text: in plain spelling, without the alphabet's separator between doubled
            letters.
        score: natural logarithm of the decoder's score for the text; larger is better.
    """

    text: str
    score: float


class Decoder(Protocol):
    """Decodes log-probabilities into text.

    A decoder may have a method ``begin()`` that returns a `DecodedUtterance`.
    """

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        """Returns the best hypothesis of each utterance.

        ``log_probs`` are float32 ``(batch, time, classes)``, natural logarithms, blank
        last; ``lengths`` integers ``(batch,)``: the number of valid frames of each
        utterance.
        """


class DecodedUtterance(Protocol):
    """Decodes an utterance while its frames arrive.

    The result equals that of `Decoder.decode` on all frames.
    """

    def hear(self, log_probs: np.ndarray) -> None:
        """Adds frames of log-probabilities, float32 ``(time, classes)``, blank last."""

    def best(self) -> Hypothesis:
        """Returns the best hypothesis for all frames so far; more frames may follow."""


@dataclass(frozen=True)
class DecoderKind:
    """What is registered for a decoder's name.

    Attributes:
        make: ``make(config, alphabet, lexicon, num_threads)`` with a
            `tfasr.decoding.choice.DecoderConfig` and the number of threads; None means
            one per core.
        needs_lexicon: whether it finds only words of the training transcripts.
        has_beam: whether ``config.beam_width`` has an effect.
        label: in tables.
        recombines: whether ``config.recombine`` has an effect.
        on_tensorflow: whether it decodes in TensorFlow's threads.
    """

    make: Callable[..., Decoder]
    needs_lexicon: bool = False
    has_beam: bool = True
    label: str = ""
    recombines: bool = False
    on_tensorflow: bool = False


def check_kind(kind: object) -> None:
    """Raises TypeError if an object can't be registered as a decoder."""
    if not isinstance(kind, DecoderKind) or not callable(kind.make):
        raise TypeError(
            f"it must be a tfasr.decoding.decoder.DecoderKind. Received: {kind!r}."
        )


def check_log_probs(
    log_probs: np.ndarray,
    lengths: np.ndarray,
    num_classes: int,
) -> None:
    """Raises ValueError unless the arrays are valid arguments of `Decoder.decode`."""
    if log_probs.ndim != 3 or log_probs.shape[2] != num_classes:
        raise ValueError(
            f"log_probs must have the shape (batch, time, {num_classes}): the alphabet's "
            f"characters and the blank. Received: shape={log_probs.shape}."
        )

    if lengths.shape != log_probs.shape[:1]:
        raise ValueError(
            f"lengths must have the shape ({log_probs.shape[0]},). Received: {lengths.shape}."
        )

    if lengths.size and (lengths.min() < 0 or lengths.max() > log_probs.shape[1]):
        raise ValueError(
            f"lengths must lie in 0..{log_probs.shape[1]}, the frames of log_probs. "
            f"Received: {lengths.min()}..{lengths.max()}."
        )


class BeamSearchDecoder:
    """CTC prefix beam search without dictionary or language model, by TensorFlow."""

    def __init__(self, alphabet: Alphabet, beam_width: int = 256):
        if beam_width < 1:
            raise ValueError(f"beam_width must be at least 1. Received: {beam_width}.")

        self._alphabet = alphabet
        self._beam_width = beam_width

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        """Returns the best hypothesis of each utterance, see `Decoder`."""
        lengths = np.asarray(lengths)
        check_log_probs(log_probs, lengths, self._alphabet.num_classes)
        if not log_probs.size:
            return [Hypothesis("", 0.0) for _ in lengths]

        # Imported late, as other decoders don't need it.
        tf = needed("tensorflow", "The decoder 'beam'")
        (paths,), scores = tf.nn.ctc_beam_search_decoder(
            tf.constant(np.swapaxes(log_probs, 0, 1)),
            tf.constant(lengths, tf.int32),
            beam_width=self._beam_width,
        )
        # TensorFlow returns one sparse matrix of all paths.
        labels: list[list[int]] = [[] for _ in lengths]
        rows = paths.indices.numpy()[:, 0]
        values = paths.values.numpy()
        for row, label in zip(rows, values, strict=True):
            labels[row].append(int(label))

        texts = map(self._alphabet.decode, labels)

        return [
            Hypothesis(text, float(score))
            for text, score in zip(texts, scores.numpy()[:, 0], strict=True)
        ]


BEAM = DecoderKind(
    lambda config, alphabet, lexicon, num_threads: BeamSearchDecoder(
        alphabet, config.beam_width
    ),
    label="prefix beam",
    on_tensorflow=True,
)


class GreedyDecoder:
    """Takes each frame's most probable class.

    The paper (arXiv 2003.12366) calls this beam width 1.
    """

    def __init__(self, alphabet: Alphabet):
        self._alphabet = alphabet

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        lengths = np.asarray(lengths)
        check_log_probs(log_probs, lengths, self._alphabet.num_classes)
        utterances = [self.begin() for _ in lengths]
        for utterance, frames, count in zip(
            utterances,
            log_probs,
            lengths,
            strict=True,
        ):
            utterance.hear(frames[:count])

        return [utterance.best() for utterance in utterances]

    def begin(self) -> "GreedyUtterance":
        """Returns an utterance that is decoded while its frames arrive."""
        return GreedyUtterance(self._alphabet)


@dataclass(frozen=True)
class PriorDivision:
    """Decodes class probabilities divided by the classes' priors to the power ``weight``.

    A CTC model prefers classes that are frequent in its training text. A dictionary and
    a language model know that already, so it would count twice. Scores are those of the
    quotients.

    Attributes:
        decoder: a `Decoder`; for `decode_n_best`, one that has this method.
        log_priors: natural logarithms of the classes' mean probabilities, float32
            ``(classes,)``.
        weight: 0 changes nothing, 1 divides by the priors.

    Source: A. Zeyer, R. Schlueter, H. Ney, Why does CTC result in peaky behavior?, 2021
    (arXiv 2105.14849), on label priors.
    """

    decoder: Any
    log_priors: np.ndarray
    weight: float

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        return self.decoder.decode(self._divided(log_probs), lengths)

    def decode_n_best(
        self,
        log_probs: np.ndarray,
        lengths: np.ndarray,
        n_best: int,
    ) -> list[list[Hypothesis]]:
        return self.decoder.decode_n_best(self._divided(log_probs), lengths, n_best)

    def _divided(self, log_probs: np.ndarray) -> np.ndarray:
        """Returns log-probabilities of the quotients, which add up to 1 in each frame."""
        quotients = log_probs - np.float32(self.weight) * self.log_priors
        quotients -= np.logaddexp.reduce(quotients, axis=-1, keepdims=True)
        return np.minimum(quotients, 0)


@dataclass(frozen=True)
class MiddleRescoring:
    """Rescores word beam search's best hypotheses with a middle layer's outputs.

    A hypothesis's score is the search's plus ``weight`` times the log-probability of
    its text in the middle layer. If the search's best text doesn't fit into the middle
    layer's frames, it stays the best. `decode` gets log-probabilities with the classes
    of the last layer, then the middle layer's.

    Attributes:
        search: has the method ``decode_n_best`` of `WordBeamSearch`.
        alphabet: of the last layer.
        middle_labels: for each class but the blank, the classes that the middle layer
            has learnt in its place.
        weight: of the middle layer's log-probability.
    """

    search: Any
    alphabet: Alphabet
    middle_labels: Sequence[Sequence[int]]
    weight: float

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        # Both layers have as many classes.
        last, middle = np.split(log_probs, 2, axis=-1)
        candidates = self.search.decode_n_best(last, lengths, RESCORED_HYPOTHESES)
        return [
            self._best(hypotheses, frames[:count])
            for hypotheses, frames, count in zip(
                candidates,
                middle,
                lengths,
                strict=True,
            )
        ]

    def _best(self, hypotheses: list[Hypothesis], log_probs: np.ndarray) -> Hypothesis:
        """Returns the hypothesis with the best sum of both scores."""
        labels = []
        for hypothesis in hypotheses:
            units = self.alphabet.encode(hypothesis.text)
            of_units = (self.middle_labels[unit] for unit in units)
            labels.append(list(itertools.chain.from_iterable(of_units)))

        of_middle = ctc_log_probs(log_probs, labels)
        if np.isneginf(of_middle[0]):
            return hypotheses[0]

        scores = [
            h.score + self.weight * m
            for h, m in zip(hypotheses, of_middle, strict=True)
        ]
        best = int(np.argmax(scores))

        return Hypothesis(hypotheses[best].text, float(scores[best]))


def ctc_log_probs(log_probs: np.ndarray, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the natural logarithm of each text's CTC probability, float64 ``(texts,)``.

    It is -inf if a text has no path. All texts are computed together, frame by frame.

    Args:
        log_probs: one utterance's valid frames ``(time, classes)``, blank last.
        texts: their labels.

    Source: A. Graves et al., Connectionist Temporal Classification, ICML 2006.
    """
    blank = log_probs.shape[1] - 1
    lengths = np.array([len(labels) for labels in texts], int)
    # Columns: one that is never reached, the start, and the labels with blanks around
    # each.
    states = np.full((len(texts), 2 * lengths.max(initial=0) + 3), blank)
    for row, labels in zip(states, texts, strict=True):
        row[3 : 3 + 2 * len(labels) : 2] = labels

    # A blank may be skipped between different labels.
    skips = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    # Log-probabilities of all paths to each state so far.
    reached = np.full(states.shape, -np.inf)
    reached[:, 1] = 0

    for frame in log_probs:
        skipped = np.where(skips, reached[:, :-2], -np.inf)
        stepped = np.logaddexp(reached[:, 2:], reached[:, 1:-1])
        reached[:, 2:] = np.logaddexp(stepped, skipped) + frame[states[:, 2:]]
        reached[:, 1] = -np.inf

    rows = np.arange(len(texts))

    return np.logaddexp(reached[rows, 2 * lengths + 2], reached[rows, 2 * lengths + 1])


class GreedyUtterance:
    """Greedy decoding of frames that arrive in parts."""

    def __init__(self, alphabet: Alphabet):
        self._alphabet = alphabet
        self._last = alphabet.blank_id
        self._labels: list[int] = []
        self._score = 0.0

    def hear(self, log_probs: np.ndarray) -> None:
        """Adds frames; a class that goes on from the last frame isn't written again."""
        if not len(log_probs):
            return

        classes = log_probs.argmax(axis=1)
        # Where another class than in the frame before begins.
        starts = classes != np.append(self._last, classes[:-1])
        written = starts & (classes != self._alphabet.blank_id)
        self._labels += classes[written].tolist()
        self._last = int(classes[-1])
        self._score += float(log_probs.max(axis=1).sum())

    def best(self) -> Hypothesis:
        return Hypothesis(self._alphabet.decode(self._labels), self._score)


GREEDY = DecoderKind(
    lambda config, alphabet, lexicon, num_threads: GreedyDecoder(alphabet),
    has_beam=False,
    label="greedy",
)


def split_words(text: str, word_characters: str | None = None) -> list[str]:
    """Returns a text's words: the longest possible runs of ``word_characters``.

    If that is None, `tfasr.alphabet.words` splits the text.
    """
    if word_characters is None:
        return words(text)
    if not word_characters:
        return []

    return re.findall(f"[{re.escape(word_characters)}]+", text)


def lexicon_from_transcripts(
    transcripts: Iterable[str], word_characters: str | None = None
) -> list[str]:
    """Returns the distinct words of transcripts, sorted: the usual dictionary.

    Source: the paper, section 2.2.2.
    """
    distinct_words: set[str] = set()
    for text in transcripts:
        distinct_words.update(split_words(text, word_characters))

    return sorted(distinct_words)
