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
        """Returns the best path's text of each utterance; see `tfasr.decoding.decoder.Decoder`."""
        lengths = np.asarray(lengths)
        check_log_probs(log_probs, lengths, self._alphabet.num_classes)
        return [self._decode_one(p[:n]) for p, n in zip(log_probs, lengths, strict=True)]

    def _decode_one(self, log_probs: np.ndarray) -> Hypothesis:
        path = log_probs.argmax(axis=1)
        starts = np.ones(len(path), bool)
        starts[1:] = path[1:] != path[:-1]
        labels = path[starts & (path != self._alphabet.blank_id)]
        score = float(log_probs.max(axis=1).sum()) if len(path) else 0.0
        return Hypothesis(self._alphabet.decode(labels.tolist()), score)


GREEDY = DecoderKind(
    lambda config, alphabet, lexicon, num_threads: GreedyDecoder(alphabet),
    has_beam=False,
    label="greedy",
)
