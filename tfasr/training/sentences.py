"""A few utterances heard again and again, to watch a model learn."""

import tensorflow as tf

from tfasr.data.pipeline import BatchSource
from tfasr.decoding.greedy import GreedyDecoder
from tfasr.training.ctc_model import CtcModel


class SentenceSampler:
    """Hears the first utterances of a split, greedily: a beam of width 1 would be far worse.

    Args:
        model: hears them.
        source: batches of the split.
        decoder: writes them down.
        count: how many.
    """

    def __init__(self, model: CtcModel, source: BatchSource, decoder: GreedyDecoder, count: int):
        self._model = model
        self._decoder = decoder
        batch = next(iter(source.evaluation()))
        self._batch = {name: value[:count] for name, value in batch.items()}
        texts = {utterance.position: utterance.text for utterance in source.split.utterances}
        self._references = [texts[p] for p in self._batch["positions"].numpy().tolist()]

    @tf.function
    def _forward(self) -> tuple[tf.Tensor, tf.Tensor]:
        lengths = self._model.output_lengths(self._batch["feature_lengths"])
        return tf.nn.log_softmax(self._model(self._batch, training=False)), lengths

    def sentences(self) -> list[tuple[str, str]]:
        """Returns pairs of what was said and what is heard now."""
        log_probs, lengths = (tensor.numpy() for tensor in self._forward())
        heard = self._decoder.decode(log_probs, lengths)
        return [(r, h.text) for r, h in zip(self._references, heard, strict=True)]
