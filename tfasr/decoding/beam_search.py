"""Prefix beam search over characters, TensorFlow's implementation."""

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.decoding.decoder import DecoderKind, Hypothesis, check_log_probs


class BeamSearchDecoder:
    """CTC prefix beam search without dictionary or language model.

    Args:
        alphabet: names the classes; the blank is the last.

    Raises:
        ValueError: if the beam width is below 1.
    """

    def __init__(self, alphabet: Alphabet, beam_width: int = 256):
        if beam_width < 1:
            raise ValueError(f"beam_width must be at least 1. Received: {beam_width}.")
        self._alphabet = alphabet
        self._beam_width = beam_width

    def decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> list[Hypothesis]:
        lengths = np.asarray(lengths)
        check_log_probs(log_probs, lengths, self._alphabet.num_classes)
        if not log_probs.size:
            return [Hypothesis("", 0.0) for _ in lengths]
        (paths,), scores = tf.nn.ctc_beam_search_decoder(
            tf.constant(np.swapaxes(log_probs, 0, 1)),
            tf.constant(lengths, tf.int32),
            beam_width=self._beam_width,
        )
        labels: list[list[int]] = [[] for _ in lengths]
        rows, values = paths.indices.numpy()[:, 0], paths.values.numpy()
        for row, label in zip(rows, values, strict=True):
            labels[row].append(int(label))
        texts = map(self._alphabet.decode, labels)
        return [
            Hypothesis(text, float(score))
            for text, score in zip(texts, scores.numpy()[:, 0], strict=True)
        ]


BEAM = DecoderKind(
    lambda config, alphabet, lexicon, num_threads: BeamSearchDecoder(alphabet, config.beam_width),
    label="prefix beam",
    on_tensorflow=True,
)
