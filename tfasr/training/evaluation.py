"""Evaluation: forward passes, decoding and error counts over a whole split."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.data.batches import Batch, BatchSource, Reading, Share
from tfasr.data.shards import ShardedUtterance
from tfasr.decoding.choice import make_decoder
from tfasr.decoding.decoder import Decoder, Hypothesis
from tfasr.errors import RunError
from tfasr.kit.files import make_folder, whole_file
from tfasr.scoring.errors import ErrorCounts, count_errors
from tfasr.training.ctc import CtcModel
from tfasr.training.experiment import Experiment
from tfasr.training.workers.exchange import Workers
from tfasr.tta.metrics import compute_metrics

# Starting to read takes some 0.1 s, longer than the forward passes of AN4's validation
# split.
_KEPT_BYTES = 2**26


@dataclass(frozen=True)
class EvaluationResult:
    """The errors, the loss and the transcripts of an evaluation."""

    counts: ErrorCounts  # errors and rates
    loss: float  # mean CTC loss of the utterances
    utterances: list[ShardedUtterance]  # those scored
    hypotheses: list[Hypothesis]  # in the same order
    # Another decoder's, from the same forward passes.
    second: "SecondResult | None" = None
    # the users' metrics by name, see `tfasr.tta.metrics.compute_metrics`
    computed: dict[str, float] = field(default_factory=dict)

    def scores(self) -> dict[str, float]:
        """Returns rates, counts and loss, as in the ledger's ``tracked_stats``.

        A second decoder's rates are named after it: ``word_beam_wer`` and
        ``word_beam_cer``.
        """
        values = {**self.counts.to_json(), "loss": self.loss, **self.computed}
        if self.second is not None:
            for metric in ("wer", "cer"):
                values[f"{self.second.name}_{metric}"] = getattr(
                    self.second.counts, metric
                )

        return values

    def write_hypotheses(self, path: Path) -> None:
        """Writes a line of JSON per utterance: id, reference, hypothesis, score, speaker.

        A second decoder's hypothesis comes last, under the decoder's name.
        """
        second = self.second
        others = second.hypotheses if second else [None] * len(self.hypotheses)
        lines = []
        for utterance, hypothesis, other in zip(
            self.utterances, self.hypotheses, others, strict=True
        ):
            line = hypothesis_line(
                utterance.id, utterance.text, hypothesis, utterance.speaker
            )
            if second:
                line[second.name] = other.text

            lines.append(line)

        write_lines(path, lines)


def hypothesis_line(
    utterance_id: str, reference: str, hypothesis: Hypothesis, speaker: str = ""
) -> dict[str, Any]:
    return {
        "id": utterance_id,
        "reference": reference,
        "hypothesis": hypothesis.text,
        "score": round(hypothesis.score, 4),
        "speaker": speaker,
    }


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Writes an evaluation's hypotheses, one JSON object per line."""
    make_folder(path.parent)
    with whole_file(path) as file:
        for line in lines:
            file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


@dataclass(frozen=True)
class SecondResult:
    """A second decoder's transcripts, in the order of the utterances, and its seconds
    of work.
    """

    name: str
    counts: ErrorCounts
    hypotheses: list[Hypothesis]
    worked_s: float


@dataclass(frozen=True)
class _Decoded:
    hypotheses: list[Hypothesis]
    worked_s: float
    second: list[Hypothesis]
    second_worked_s: float


@dataclass
class PendingEvaluation:
    """An evaluation whose forward passes are done; the decoder may still be at work."""

    # Positions of the utterances, and their decoding.
    batches: list[tuple[list[int], Future]]
    losses: np.ndarray  # (utterances,)
    score: Callable[[list[tuple[list[int], _Decoded]], np.ndarray], EvaluationResult]
    _result: tuple[EvaluationResult, float] | None = None

    def done(self) -> bool:
        return all(future.done() for _, future in self.batches)

    def result(self) -> tuple[EvaluationResult, float]:
        """Waits for the decoders; returns the result and the first decoder's seconds of
        work.
        """
        if self._result is None:
            batches = [
                (positions, future.result()) for positions, future in self.batches
            ]
            worked_s = sum(decoded.worked_s for _, decoded in batches)
            self._result = self.score(batches, self.losses), worked_s

        return self._result


def on_all_devices(strategy: tf.distribute.Strategy, forward: Callable) -> Callable:
    """Returns a function that computes ``forward`` of a batch on all devices of this process.

    ``forward`` maps tensors whose first axis is the batch to tensors ``(batch, ...)``.
    Each device takes equally many rows; the last ones compute the batch's last row
    again if need be.
    """
    devices = strategy.num_replicas_in_sync
    if devices == 1 or not isinstance(strategy, tf.distribute.MirroredStrategy):
        return forward

    def on_devices(batch: Any) -> Any:
        rows = tf.shape(tf.nest.flatten(batch)[0])[0]
        share = -(-rows // devices)

        def of_replica() -> Any:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            own_rows = tf.minimum(number * share + tf.range(share), rows - 1)
            return forward(
                tf.nest.map_structure(lambda value: tf.gather(value, own_rows), batch)
            )

        def joined(value: Any) -> tf.Tensor:
            return tf.concat(strategy.experimental_local_results(value), axis=0)[:rows]

        return tf.nest.map_structure(joined, strategy.run(of_replica))

    return on_devices


class Evaluator:
    """Evaluates a model on one split, as often as asked, decoding in a thread.

    All devices of the model's strategy share each batch. ``second`` is the name of a
    second decoder, and the decoder. Each of the ``workers`` evaluates different shards,
    and all get the whole result. ``middle`` gives decoders the middle layer's
    log-probabilities too, which `MiddleRescoring` needs.
    """

    def __init__(
        self,
        model: CtcModel,
        source: BatchSource,
        decoder: Decoder,
        second: tuple[str, Decoder] | None = None,
        workers: Workers | None = None,
        middle: bool = False,
    ):
        self._workers = workers or Workers()
        share = Share(self._workers.rank, self._workers.count) if workers else None
        self._source = source
        self._decoder = decoder
        self._second = second
        self._batches = source.evaluation(share)
        self._kept: list[Batch] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")

        def forward(batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            losses, *logits = model.utterance_losses(
                batch, training=False, middle=middle
            )
            lengths = model.output_lengths(batch["feature_lengths"])
            return (
                tf.concat([tf.nn.log_softmax(x) for x in logits], axis=-1),
                lengths,
                losses,
            )

        self._forward = tf.function(
            on_all_devices(model.distribute_strategy, forward),
            input_signature=[self._batches.element_spec],
            autograph=False,
        )

    @property
    def traces(self) -> int:
        return self._forward.experimental_get_tracing_count()

    def start(self, advance: Callable[[int], None] | None = None) -> PendingEvaluation:
        """Runs the forward passes of the whole split, while a thread decodes their outputs.

        ``advance`` is called with each batch's number of utterances once they are
        decoded.
        """
        batches = []
        losses = []
        for positions, log_probs, lengths, loss in self.forward_passes():
            decoding = self._thread.submit(self._decode, log_probs, lengths)
            batches.append((positions.tolist(), decoding))
            if advance is not None:
                count = len(positions)
                decoding.add_done_callback(lambda _, count=count: advance(count))

            losses.append(loss)

        none = np.zeros(0, np.float32)  # of a worker that has no shard
        return PendingEvaluation(batches, np.concatenate(losses or [none]), self._score)

    def forward_passes(
        self,
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yields the model's outputs for each batch of the split.

        These are the utterances' positions in the split ``(batch,)``, float32
        log-probabilities ``(batch, frames, classes)``, valid frames ``(batch,)`` and
        CTC losses ``(batch,)``.
        """
        for batch in self._read():
            log_probs, lengths, loss = (
                tensor.numpy() for tensor in self._forward(batch)
            )
            yield batch["positions"].numpy(), log_probs, lengths, loss

    def _read(self) -> Iterator[Batch]:
        """Yields the split's batches, which stay in memory if they take at most
        `_KEPT_BYTES`.
        """
        if self._kept:
            yield from self._kept
            return

        num_features = self._batches.element_spec["features"].shape[-1]
        is_small = (
            4 * num_features * int(self._source.split.frames.sum()) <= _KEPT_BYTES
        )
        kept_batches = []
        for batch in Reading(self._batches, self._source.split):
            if is_small:
                kept_batches.append(batch)

            yield batch

        self._kept = kept_batches

    def evaluate(
        self, advance: Callable[[int], None] | None = None
    ) -> EvaluationResult:
        """Scores every utterance of the split; raises RunError unless each was scored once."""
        return self.start(advance).result()[0]

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _decode(self, log_probs: np.ndarray, lengths: np.ndarray) -> _Decoded:
        began = time.perf_counter()
        hypotheses = self._decoder.decode(log_probs, lengths)
        decoded = time.perf_counter()
        second = self._second[1].decode(log_probs, lengths) if self._second else []
        return _Decoded(
            hypotheses, decoded - began, second, time.perf_counter() - decoded
        )

    def _score(
        self, batches: list[tuple[list[int], _Decoded]], losses: np.ndarray
    ) -> EvaluationResult:
        if self._workers.count > 1:
            batches, losses = _brought_together(self._workers, batches, losses)

        loss = float(np.mean(losses))
        utterances = self._source.split.utterances
        expected = {utterance.position for utterance in utterances}
        where = [position for positions, _ in batches for position in positions]
        if set(where) != expected or len(where) != len(expected):
            raise RunError(
                f"An evaluation must score each of the split's {len(expected)} utterances once. "
                f"Received: {len(where)} from {self._source.split.folder}. Its shards do not match "
                "its index: run tfasr prepare into an empty --shard_dir."
            )

        references = [utterance.text for utterance in utterances]

        def scored(
            decoded: Iterable[Hypothesis],
        ) -> tuple[ErrorCounts, list[Hypothesis]]:
            by_position = dict(zip(where, decoded, strict=True))
            ordered = [by_position[utterance.position] for utterance in utterances]
            return count_errors(
                references, [hypothesis.text for hypothesis in ordered]
            ), ordered

        counts, ordered = scored(
            h for _, decoded in batches for h in decoded.hypotheses
        )
        second = None
        if self._second:
            other = scored(h for _, decoded in batches for h in decoded.second)
            worked_s = sum(decoded.second_worked_s for _, decoded in batches)
            second = SecondResult(self._second[0], *other, worked_s)

        computed = compute_metrics(
            references, [hypothesis.text for hypothesis in ordered]
        )
        return EvaluationResult(counts, loss, utterances, ordered, second, computed)


def _brought_together(
    workers: Workers, batches: list[tuple[list[int], _Decoded]], losses: np.ndarray
) -> tuple[list[tuple[list[int], _Decoded]], np.ndarray]:
    shared = [
        (positions, dataclasses.asdict(decoded)) for positions, decoded in batches
    ]
    answers = workers.gather({"batches": shared, "losses": losses.tolist()})

    def decoded(values: dict) -> _Decoded:
        texts = {
            name: [Hypothesis(**h) for h in values[name]]
            for name in ("hypotheses", "second")
        }
        return _Decoded(**{**values, **texts})

    of_all = [
        (where, decoded(values)) for a in answers for where, values in a["batches"]
    ]
    all_losses = [loss for answer in answers for loss in answer["losses"]]
    return of_all, np.asarray(all_losses, np.float32)


def make_evaluator(
    experiment: Experiment,
    model: CtcModel,
    source: BatchSource,
    alphabet: Alphabet,
    lexicon: Sequence[str],
    workers: Workers | None = None,
) -> Evaluator:
    second = experiment.second_decoder
    return Evaluator(
        model,
        source,
        make_decoder(experiment.decoder, alphabet, lexicon),
        None
        if second is None
        else (second.name, make_decoder(second, alphabet, lexicon)),
        workers,
    )
