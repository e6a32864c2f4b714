"""A few training utterances decoded again and again, to watch a model learn."""

import functools
import logging

import tensorflow as tf

from tfasr.data.pipeline import Batch, BatchSource
from tfasr.decoding.decoder import Decoder
from tfasr.ledger import Ledger
from tfasr.training.ctc_model import CtcModel
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.step import StepResult

log = logging.getLogger("tfasr")


class PrintSentences(Hook):
    """Logs what the model makes of the first training utterances, beside their transcripts.

    The utterances are read from the shards when they are first needed, apart from the batches of
    training, and without augmentation; the model works as in an evaluation.

    Args:
        model: transcribes them.
        source: of the training split.
        decoder: writes the hypotheses.
        count: how many utterances.
        every_steps: steps between two looks; 0 for none.
        ledger: books the time.
        progress: says which step it is.

    Source: the paper, Figure 6: sentences of the training set, beam width 1.
    """

    def __init__(
        self,
        model: CtcModel,
        source: BatchSource,
        decoder: Decoder,
        *,
        count: int,
        every_steps: int,
        ledger: Ledger,
        progress: RunProgress,
    ):
        self._model = model
        self._source = source
        self._decoder = decoder
        self._count = count
        self._every_steps = every_steps if count else 0
        self._ledger = ledger
        self._progress = progress

    def on_step(self, step: StepResult) -> None:
        """Prints when it is time."""
        state = self._progress.state
        if not self._every_steps or state.step % self._every_steps:
            return
        with self._ledger.interval("sentences", step=state.step):
            log.info("step %d, epoch %d, loss %.3f", state.step, state.epoch, step.loss)
            for reference, hypothesis in self.sentences():
                log.info("  said:  %s\n  heard: %s", reference, hypothesis)

    def sentences(self) -> list[tuple[str, str]]:
        """Returns pairs of a transcript and what the model makes of the utterance now."""
        said = self._source.split.at(self._batch["positions"].numpy().tolist())
        log_probs, lengths = (tensor.numpy() for tensor in self._forward())
        hypotheses = self._decoder.decode(log_probs, lengths)
        return [(u.text, h.text) for u, h in zip(said, hypotheses, strict=True)]

    @functools.cached_property
    def _batch(self) -> Batch:
        return self._source.first(self._count)

    @tf.function
    def _forward(self) -> tuple[tf.Tensor, tf.Tensor]:
        lengths = self._model.output_lengths(self._batch["feature_lengths"])
        return tf.nn.log_softmax(self._model(self._batch, training=False)), lengths
