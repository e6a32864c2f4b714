"""Greedy decoding: the most probable class of each frame, repeats and blanks removed."""

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.decoding.decoder import DecoderKind, Hypothesis, check_log_probs


class GreedyDecoder:
    """Takes each frame's most probable class; what the paper calls beam width 1.

    Args:
        alphabet: names the classes; the blank is the last.
    """

    def __init__(self, alphabet: Alphabet):
        self._alphabet = alphabet

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        lengths = np.asarray(lengths)
        check_log_probs(log_probs, lengths, self._alphabet.num_classes)
        return [self._decode_one(p[:n]) for p, n in zip(log_probs, lengths, strict=True)]

    def _decode_one(self, log_probs: np.ndarray) -> Hypothesis:
        utterance = self.begin()
        utterance.hear(log_probs)
        return utterance.best()

    def begin(self) -> "GreedyUtterance":
        """Returns an utterance whose frames come bit by bit."""
        return GreedyUtterance(self._alphabet)


class GreedyUtterance:
    """The best path of frames that come bit by bit."""

    def __init__(self, alphabet: Alphabet):
        self._alphabet = alphabet
        self._last = alphabet.blank_id
        self._labels: list[int] = []
        self._score = 0.0

    def hear(self, log_probs: np.ndarray) -> None:
        """Takes the next frames, see `tfasr.decoding.decoder.DecodedUtterance`."""
        if not len(log_probs):
            return
        path = np.append(self._last, log_probs.argmax(axis=1))
        starts = path[1:] != path[:-1]
        self._labels += path[1:][starts & (path[1:] != self._alphabet.blank_id)].tolist()
        self._last = int(path[-1])
        self._score += float(log_probs.max(axis=1).sum())

    def best(self) -> Hypothesis:
        """Returns the best path's text so far."""
        return Hypothesis(self._alphabet.decode(self._labels), self._score)


GREEDY = DecoderKind(
    lambda config, alphabet, lexicon, num_threads: GreedyDecoder(alphabet),
    has_beam=False,
    label="greedy",
)
