"""Evaluation: forward passes, decoding and error counts over a whole split."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfasr.data.pipeline import BatchSource
from tfasr.data.shards import ShardedUtterance
from tfasr.decoding.decoder import Decoder, Hypothesis
from tfasr.errors import RunError
from tfasr.metrics import ErrorCounts, count_errors
from tfasr.training.ctc_model import CtcModel

Interval = Callable[[str], contextlib.AbstractContextManager]


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation found.

    Attributes:
        counts: errors and rates.
        loss: mean CTC loss of the utterances.
        utterances: those scored.
        hypotheses: in the same order.
    """

    counts: ErrorCounts
    loss: float
    utterances: list[ShardedUtterance]
    hypotheses: list[Hypothesis]

    def write_hypotheses(self, path: Path) -> None:
        """Writes one JSON object an utterance: id, reference, hypothesis, score, speaker."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for utterance, hypothesis in zip(self.utterances, self.hypotheses, strict=True):
                line = {
                    "id": utterance.id,
                    "reference": utterance.text,
                    "hypothesis": hypothesis.text,
                    "score": round(hypothesis.score, 4),
                    "speaker": utterance.speaker,
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


class Evaluator:
    """Evaluates a model on one split, as often as asked.

    Args:
        model: whose forward pass is traced once.
        source: batches of the split.
        decoder: writes the hypotheses.
        interval: a context manager by name, called with "eval_forward" and "decode"; a ledger's.
    """

    def __init__(
        self,
        model: CtcModel,
        source: BatchSource,
        decoder: Decoder,
        interval: Interval = lambda name: contextlib.nullcontext(),
    ):
        self._source = source
        self._decoder = decoder
        self._interval = interval
        self._batches = source.evaluation()

        @tf.function(input_signature=[self._batches.element_spec])
        def forward(batch):
            losses, logits = model.utterance_losses(batch, training=False)
            lengths = model.acoustic_model.output_lengths(batch["feature_lengths"])
            return tf.nn.log_softmax(logits), lengths, losses

        self._forward = forward

    def evaluate(self) -> EvaluationResult:
        """Decodes and scores every utterance of the split.

        Raises:
            RunError: unless exactly the split's utterances were scored, each once.
        """
        hypotheses: dict[int, Hypothesis] = {}
        losses: list[np.ndarray] = []
        scored = 0
        for positions, log_probs, lengths, loss in self.forward_passes():
            with self._interval("decode"):
                decoded = self._decoder.decode(log_probs, lengths)
            hypotheses.update(zip(positions.tolist(), decoded, strict=True))
            losses.append(loss)
            scored += len(decoded)
        return self._score(hypotheses, scored, float(np.mean(np.concatenate(losses))))

    def forward_passes(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yields what the model answers to each batch of the split.

        The arrays are the utterances' positions in the split ``(batch,)``, float32
        log-probabilities ``(batch, frames, classes)``, the utterances' valid frames ``(batch,)``
        and CTC losses ``(batch,)``.
        """
        batches = iter(self._batches)
        while True:
            with self._interval("eval_forward"):
                batch = next(batches, None)
                if batch is None:
                    return
                log_probs, lengths, loss = (t.numpy() for t in self._forward(batch))
            yield batch["positions"].numpy(), log_probs, lengths, loss

    def _score(
        self, hypotheses: dict[int, Hypothesis], scored: int, loss: float
    ) -> EvaluationResult:
        utterances = self._source.split.utterances
        expected = {utterance.position for utterance in utterances}
        if hypotheses.keys() != expected or scored != len(expected):
            raise RunError(
                f"An evaluation must score each of the split's {len(expected)} utterances once. "
                f"Received: {scored} from {self._source.split.folder}. Its shards do not match its "
                "index: run tfasr prepare into an empty --shard_dir."
            )
        ordered = [hypotheses[utterance.position] for utterance in utterances]
        references = [utterance.text for utterance in utterances]
        counts = count_errors(references, [hypothesis.text for hypothesis in ordered])
        return EvaluationResult(counts, loss, utterances, ordered)
