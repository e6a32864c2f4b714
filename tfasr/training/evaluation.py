"""Evaluation: forward passes, decoding and error counts over a whole split."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfasr.data.pipeline import BatchSource
from tfasr.data.shards import ShardedUtterance
from tfasr.decoding.decoder import Decoder, Hypothesis
from tfasr.durable import make_folder, whole_file
from tfasr.errors import RunError
from tfasr.metrics import ErrorCounts, count_errors
from tfasr.training.ctc_model import CtcModel


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
        make_folder(path.parent)
        with whole_file(path) as file:
            for utterance, hypothesis in zip(self.utterances, self.hypotheses, strict=True):
                line = {
                    "id": utterance.id,
                    "reference": utterance.text,
                    "hypothesis": hypothesis.text,
                    "score": round(hypothesis.score, 4),
                    "speaker": utterance.speaker,
                }
                file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


class PendingEvaluation:
    """An evaluation whose forward passes are done; the decoder may still be at work.

    Args:
        batches: per batch, its utterances' positions and the decoding under way.
        losses: CTC losses of all utterances ``(utterances,)``.
        score: makes the result of hypotheses by position, their number and the mean loss.
    """

    def __init__(
        self,
        batches: list[tuple[list[int], Future]],
        losses: np.ndarray,
        score: Callable[[dict[int, Hypothesis], int, float], EvaluationResult],
    ):
        self._batches = batches
        self._losses = losses
        self._score = score

    def done(self) -> bool:
        """Says whether `result` would return at once."""
        return all(future.done() for _, future in self._batches)

    def result(self) -> tuple[EvaluationResult, float]:
        """Waits for the decoder; returns the result and the seconds that the decoder worked.

        Raises:
            RunError: unless exactly the split's utterances were scored, each once.
        """
        hypotheses: dict[int, Hypothesis] = {}
        scored, worked_s = 0, 0.0
        for positions, future in self._batches:
            decoded, decode_s = future.result()
            hypotheses.update(zip(positions, decoded, strict=True))
            scored += len(decoded)
            worked_s += decode_s
        return self._score(hypotheses, scored, float(np.mean(self._losses))), worked_s


class Evaluator:
    """Evaluates a model on one split, as often as asked.

    The decoder works in a thread of its own: while one batch is decoded, the next goes through the
    model.

    Args:
        model: whose forward pass is traced once.
        source: batches of the split.
        decoder: writes the hypotheses.
    """

    def __init__(self, model: CtcModel, source: BatchSource, decoder: Decoder):
        self._source = source
        self._decoder = decoder
        self._batches = source.evaluation()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")

        @tf.function(input_signature=[self._batches.element_spec])
        def forward(batch):
            losses, logits = model.utterance_losses(batch, training=False)
            lengths = model.output_lengths(batch["feature_lengths"])
            return tf.nn.log_softmax(logits), lengths, losses

        self._forward = forward

    @property
    def traces(self) -> int:
        """How often the forward pass was traced."""
        return self._forward.experimental_get_tracing_count()

    def start(self) -> PendingEvaluation:
        """Runs the forward passes of the whole split and leaves the decoder at its work."""
        batches, losses = [], []
        for positions, log_probs, lengths, loss in self.forward_passes():
            decoding = self._thread.submit(self._decode, log_probs, lengths)
            batches.append((positions.tolist(), decoding))
            losses.append(loss)
        return PendingEvaluation(batches, np.concatenate(losses), self._score)

    def forward_passes(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yields what the model answers to each batch of the split.

        The arrays are the utterances' positions in the split ``(batch,)``, float32
        log-probabilities ``(batch, frames, classes)``, the utterances' valid frames ``(batch,)``
        and CTC losses ``(batch,)``.
        """
        for batch in self._batches:
            log_probs, lengths, loss = (tensor.numpy() for tensor in self._forward(batch))
            yield batch["positions"].numpy(), log_probs, lengths, loss

    def evaluate(self) -> EvaluationResult:
        """Decodes and scores every utterance of the split.

        Raises:
            RunError: unless exactly the split's utterances were scored, each once.
        """
        return self.start().result()[0]

    def _decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> tuple[list[Hypothesis], float]:
        began = time.perf_counter()
        return self._decoder.decode(log_probs, lengths), time.perf_counter() - began

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
