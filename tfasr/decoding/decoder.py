"""The interface that every decoder implements."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Hypothesis:
    """What a decoder heard in one utterance.

    Attributes:
        text: plain spelling, separators removed.
        score: natural logarithm of the decoder's score; larger is better.
    """

    text: str
    score: float


class Decoder(Protocol):
    """Writes down what log-probabilities say.

    One may have a method ``begin()``, which returns a `DecodedUtterance` for frames that come bit
    by bit.
    """

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        """Returns the best hypothesis of each utterance.

        Args:
            log_probs: float32 ``(batch, time, classes)``, natural logarithms, blank last.
            lengths: integers ``(batch,)``: valid frames of each utterance.
        """


class DecodedUtterance(Protocol):
    """One utterance whose frames come bit by bit; its result is that of `Decoder.decode`."""

    def hear(self, log_probs: np.ndarray) -> None:
        """Takes the next frames.

        Args:
            log_probs: float32 ``(time, classes)``, natural logarithms, blank last.
        """

    def best(self) -> Hypothesis:
        """Returns the best hypothesis of all frames so far; asking changes nothing."""


@dataclass(frozen=True)
class DecoderKind:
    """A decoder that evaluations can be asked for by name.

    Attributes:
        make: ``make(config, alphabet, lexicon, num_threads)`` returns a `Decoder`; the config is a
            `tfasr.decoding.choice.DecoderConfig`, the number of threads None for one a core.
        needs_lexicon: whether it only finds words of the training transcripts.
        has_beam: whether ``config.beam_width`` changes anything.
        label: how tables call it.
        recombines: whether ``config.recombine`` changes anything.
        on_tensorflow: whether TensorFlow's threads decode.
    """

    make: Callable[..., Decoder]
    needs_lexicon: bool = False
    has_beam: bool = True
    label: str = ""
    recombines: bool = False
    on_tensorflow: bool = False


def check_kind(kind: object) -> None:
    """Raises TypeError for what cannot be registered as a decoder."""
    if not isinstance(kind, DecoderKind) or not callable(kind.make):
        raise TypeError(f"it must be a tfasr.decoding.decoder.DecoderKind. Received: {kind!r}.")


def check_log_probs(log_probs: np.ndarray, lengths: np.ndarray, num_classes: int) -> None:
    """Raises ValueError unless the arrays are what `Decoder.decode` takes."""
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
