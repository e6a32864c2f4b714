"""Evaluation: forward passes, decoding and error counts over a whole split.

An `Evaluator` runs a model over a split while a thread decodes its outputs. What it
starts is a `PendingEvaluation`, so that training may go on while the decoder works, and
what that returns is an `EvaluationResult`: scores for the ledger and hypotheses for a
file. `tfasr.training.placement` decides where and when evaluations run.
"""

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

# A split's batches of up to this size stay in memory, since starting to read takes some
# 0.1 s, longer than the forward passes of AN4's validation split.
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
    # The users' metrics by name, see `tfasr.tta.metrics.compute_metrics`.
    computed: dict[str, float] = field(default_factory=dict)

    def scores(self) -> dict[str, float]:
        """Returns rates, counts and loss, as in the ledger's ``tracked_stats``.

        A second decoder's rates are named after it: ``word_beam_wer`` and
        ``word_beam_cer``.
        """
        values = {**self.counts.to_json(), "loss": self.loss, **self.computed}
        second = self.second
        if second is not None:
            values[f"{second.name}_wer"] = second.counts.wer
            values[f"{second.name}_cer"] = second.counts.cer

        return values

    def write_hypotheses(self, path: Path) -> None:
        """Writes a line of JSON per utterance: id, reference, hypothesis, score, speaker.

        A second decoder's hypothesis comes last, under the decoder's name.
        """
        second = self.second
        lines = []

        for number, utterance in enumerate(self.utterances):
            line = hypothesis_line(
                utterance.id,
                utterance.text,
                self.hypotheses[number],
                utterance.speaker,
            )
            if second is not None:
                line[second.name] = second.hypotheses[number].text

            lines.append(line)

        write_lines(path, lines)


def hypothesis_line(
    utterance_id: str, reference: str, hypothesis: Hypothesis, speaker: str = ""
) -> dict[str, Any]:
    """Returns an utterance's line in a file of hypotheses, as a dict.

    Args:
        utterance_id: names the utterance.
        reference: its transcript.
        hypothesis: what the decoder wrote, with its score.
        speaker: "" if unknown.
    """
    return {
        "id": utterance_id,
        "reference": reference,
        "hypothesis": hypothesis.text,
        "score": round(hypothesis.score, 4),
        "speaker": speaker,
    }


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Writes an evaluation's hypotheses, one JSON object per line.

    The file is written whole or not at all.

    Args:
        path: of the file; its folder is made if it is missing.
        lines: from `hypothesis_line`.
    """
    make_folder(path.parent)
    with whole_file(path) as file:
        for line in lines:
            file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


@dataclass(frozen=True)
class SecondResult:
    """A second decoder's transcripts, in the order of the utterances.

    ``worked_s`` is its seconds of work.
    """

    name: str
    counts: ErrorCounts
    hypotheses: list[Hypothesis]
    worked_s: float


@dataclass(frozen=True)
class _Decoded:
    """A decoded batch: the hypotheses of both decoders, and their seconds of work."""

    positions: list[int]  # of the utterances in the split
    hypotheses: list[Hypothesis]
    worked_s: float
    second: list[Hypothesis]  # empty without a second decoder
    second_worked_s: float


@dataclass
class PendingEvaluation:
    """An evaluation whose forward passes are done; the decoder may still be at work."""

    batches: list[Future[_Decoded]]
    losses: np.ndarray  # (utterances,)
    score: Callable[[list[_Decoded], np.ndarray], EvaluationResult]
    _result: tuple[EvaluationResult, float] | None = None

    def done(self) -> bool:
        """Whether the decoder is done, too."""
        return all(batch.done() for batch in self.batches)

    def result(self) -> tuple[EvaluationResult, float]:
        """Waits for the decoders; returns the result and the first one's seconds of work."""
        if self._result is None:
            batches = [batch.result() for batch in self.batches]
            self._result = (
                self.score(batches, self.losses),
                sum(batch.worked_s for batch in batches),
            )

        return self._result


def on_all_devices(strategy: tf.distribute.Strategy, forward: Callable) -> Callable:
    """Returns a function that computes ``forward`` on all devices of this process.

    ``forward`` maps tensors whose first axis is the batch to tensors ``(batch, ...)``.
    Each device takes equally many rows; if they don't divide equally, the last devices
    compute the batch's last row again.
    """
    devices = strategy.num_replicas_in_sync
    if devices == 1 or not isinstance(strategy, tf.distribute.MirroredStrategy):
        return forward

    def on_devices(batch: Any) -> Any:
        rows = tf.shape(tf.nest.flatten(batch)[0])[0]
        share = -(-rows // devices)  # rounded up

        def of_replica() -> Any:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            own_rows = tf.minimum(number * share + tf.range(share), rows - 1)
            own_batch = tf.nest.map_structure(
                lambda value: tf.gather(value, own_rows), batch
            )

            return forward(own_batch)

        def joined(value: Any) -> tf.Tensor:
            return tf.concat(strategy.experimental_local_results(value), axis=0)[:rows]

        return tf.nest.map_structure(joined, strategy.run(of_replica))

    return on_devices


class Evaluator:
    """Evaluates a model on one split, as often as asked, decoding in a thread.

    All devices of the model's strategy share each batch.

    Args:
        model: evaluated with the weights that it has when an evaluation starts.
        source: the split's batches.
        decoder: whose hypotheses and rates count.
        second: the name of a second decoder, and the decoder.
        workers: evaluate different shards each; all get the whole result.
        middle: whether decoders get the middle layer's log-probabilities too, which
            `MiddleRescoring` needs.
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
        self._source = source
        self._decoder = decoder
        self._second = second
        # Filled by the first evaluation of a small split.
        self._kept: list[Batch] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decoder")

        self._batches = source.evaluation(
            Share(workers.rank, workers.count) if workers else None
        )

        def forward(batch: Batch) -> tuple[tf.Tensor, ...]:
            losses, *logits = model.utterance_losses(
                batch, training=False, middle=middle
            )
            lengths = model.output_lengths(batch["feature_lengths"])
            # Along the classes: the last layer's, then the middle layer's.
            log_probs = tf.concat([tf.nn.log_softmax(x) for x in logits], axis=-1)

            return log_probs, lengths, losses

        self._forward = tf.function(
            on_all_devices(model.distribute_strategy, forward),
            input_signature=[self._batches.element_spec],
            autograph=False,
        )

    @property
    def traces(self) -> int:
        """How often the forward pass was traced so far."""
        return self._forward.experimental_get_tracing_count()

    def start(self, advance: Callable[[int], None] | None = None) -> PendingEvaluation:
        """Runs the forward passes of the whole split, while a thread decodes.

        ``advance`` is called with each batch's number of utterances, once they are
        decoded.
        """
        batches = []
        losses = []

        for positions, log_probs, lengths, loss in self.forward_passes():
            decoding = self._thread.submit(self._decode, positions, log_probs, lengths)
            batches.append(decoding)
            losses.append(loss)

            if advance is not None:
                count = len(positions)
                decoding.add_done_callback(lambda _, count=count: advance(count))

        # A worker may have no shard.
        return PendingEvaluation(
            batches, np.concatenate(losses or [np.zeros(0, np.float32)]), self._score
        )

    def forward_passes(
        self,
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Yields the model's outputs for each batch of the split.

        These are the utterances' positions in the split ``(batch,)``, float32
        log-probabilities ``(batch, frames, classes)``, valid frames ``(batch,)`` and
        CTC losses ``(batch,)``.
        """
        for batch in self._read():
            log_probs, lengths, loss = self._forward(batch)
            yield (
                batch["positions"].numpy(),
                log_probs.numpy(),
                lengths.numpy(),
                loss.numpy(),
            )

    def _read(self) -> Iterator[Batch]:
        """Yields the split's batches, which stay in memory if they are small."""
        if self._kept:
            yield from self._kept
            return

        num_features = self._batches.element_spec["features"].shape[-1]
        # Features are float32, of four bytes.
        frames = int(self._source.split.frames.sum())
        is_small = 4 * num_features * frames <= _KEPT_BYTES
        kept_batches = []

        for batch in Reading(self._batches, self._source.split):
            if is_small:
                kept_batches.append(batch)

            yield batch

        self._kept = kept_batches

    def evaluate(
        self, advance: Callable[[int], None] | None = None
    ) -> EvaluationResult:
        """Scores every utterance of the split.

        ``advance`` is that of `start`. Raises RunError unless each was scored once.
        """
        result, _ = self.start(advance).result()
        return result

    def close(self) -> None:
        """Ends the thread; batches that it has not begun are not decoded."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _decode(
        self, positions: np.ndarray, log_probs: np.ndarray, lengths: np.ndarray
    ) -> _Decoded:
        began = time.perf_counter()
        hypotheses = self._decoder.decode(log_probs, lengths)
        decoded = time.perf_counter()

        second = []
        if self._second is not None:
            _, decoder = self._second
            second = decoder.decode(log_probs, lengths)

        return _Decoded(
            positions=positions.tolist(),
            hypotheses=hypotheses,
            worked_s=decoded - began,
            second=second,
            second_worked_s=time.perf_counter() - decoded,
        )

    def _score(self, batches: list[_Decoded], losses: np.ndarray) -> EvaluationResult:
        """Returns the result of an evaluation, with the batches of all workers."""
        if self._workers.count > 1:
            batches, losses = _from_all_workers(self._workers, batches, losses)

        utterances = self._source.split.utterances
        expected = {utterance.position for utterance in utterances}
        scored = [position for batch in batches for position in batch.positions]
        if set(scored) != expected or len(scored) != len(expected):
            raise RunError(
                f"An evaluation must score each of the split's {len(expected)} utterances once. "
                f"Received: {len(scored)} from {self._source.split.folder}. Its shards do not "
                "match its index: run tfasr prepare into an empty --shard_dir."
            )

        def in_order(decoded: Iterable[Hypothesis]) -> list[Hypothesis]:
            """Returns hypotheses in the order of the split's utterances."""
            by_position = dict(zip(scored, decoded, strict=True))
            return [by_position[utterance.position] for utterance in utterances]

        references = [utterance.text for utterance in utterances]
        hypotheses = in_order(h for batch in batches for h in batch.hypotheses)
        texts = [hypothesis.text for hypothesis in hypotheses]

        second = None
        if self._second is not None:
            name, _ = self._second
            others = in_order(h for batch in batches for h in batch.second)
            second = SecondResult(
                name=name,
                counts=count_errors(references, [other.text for other in others]),
                hypotheses=others,
                worked_s=sum(batch.second_worked_s for batch in batches),
            )

        return EvaluationResult(
            counts=count_errors(references, texts),
            loss=float(np.mean(losses)),
            utterances=utterances,
            hypotheses=hypotheses,
            second=second,
            computed=compute_metrics(references, texts),
        )


def _from_all_workers(
    workers: Workers, batches: list[_Decoded], losses: np.ndarray
) -> tuple[list[_Decoded], np.ndarray]:
    """Returns all workers' batches and losses ``(utterances,)``, on each of them."""
    answers = workers.gather(
        {
            "batches": [dataclasses.asdict(batch) for batch in batches],
            "losses": losses.tolist(),
        }
    )

    def decoded(content: dict[str, Any]) -> _Decoded:
        for name in ("hypotheses", "second"):
            content[name] = [Hypothesis(**values) for values in content[name]]

        return _Decoded(**content)

    all_batches = [
        decoded(content) for answer in answers for content in answer["batches"]
    ]
    all_losses = [loss for answer in answers for loss in answer["losses"]]
    return all_batches, np.asarray(all_losses, np.float32)


def make_evaluator(
    experiment: Experiment,
    model: CtcModel,
    source: BatchSource,
    alphabet: Alphabet,
    lexicon: Sequence[str],
    workers: Workers | None = None,
) -> Evaluator:
    """Returns the evaluator of a split, with the decoders of an experiment.

    Args:
        experiment: the configs.
        model: to be evaluated.
        source: the split's batches.
        alphabet: of the model's output.
        lexicon: the words that word beam search may write; [] for other decoders.
        workers: share the split, see `Evaluator`.
    """
    decoder = make_decoder(experiment.decoder, alphabet, lexicon)
    second = None
    second_config = experiment.second_decoder
    if second_config is not None:
        second = (second_config.name, make_decoder(second_config, alphabet, lexicon))

    return Evaluator(model, source, decoder, second, workers)
