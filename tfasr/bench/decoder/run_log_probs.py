"""The log-probabilities that a run's model gives for a split."""

import time
from pathlib import Path

import numpy as np

from tfasr.bench.decoder.log_probs import LogProbs
from tfasr.decoding.greedy import GreedyDecoder
from tfasr.errors import RunError
from tfasr.training.evaluation import Evaluator
from tfasr.training.trained import open_trained


def run_log_probs(
    run_dir: str | Path,
    split: str,
    *,
    shard_dir: str | Path | None = None,
    checkpoint: str = "best",
) -> LogProbs:
    """Evaluates a run's model on a split as `tfasr evaluate` does, and keeps what it answers.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        split: a prepared split.
        shard_dir: where it is; the run's own by default.
        checkpoint: "best" (by validation CER), "last", or a file.

    Returns:
        Utterances in the split's order, without a lexicon.

    Raises:
        UsageError: if the run, its checkpoint or the split is missing or does not fit.
        RunError: if an utterance is missing from its shards.
    """
    trained = open_trained(run_dir)
    source = trained.source(split, shard_dir)
    evaluator = Evaluator(trained.model(checkpoint), source, GreedyDecoder(trained.alphabet))
    next(evaluator.forward_passes())  # traces the forward pass, which is not timed
    answered: dict[int, np.ndarray] = {}
    began = time.perf_counter()
    for positions, log_probs, lengths, _ in evaluator.forward_passes():
        for position, rows, length in zip(positions.tolist(), log_probs, lengths, strict=True):
            answered[position] = rows[:length].copy()  # a view would keep the whole batch
    forward_s = time.perf_counter() - began
    utterances = source.split.utterances
    missing = [utterance.id for utterance in utterances if utterance.position not in answered]
    if missing:
        raise RunError(
            f"Every utterance of the split must be in its shards. {source.split.folder} "
            f"lacks {len(missing)}: {missing[:5]}. Run tfasr prepare into an empty --shard_dir."
        )
    ordered = [answered[utterance.position] for utterance in utterances]
    return LogProbs(
        log_probs=np.concatenate(ordered),
        offsets=np.cumsum([0, *map(len, ordered)]),
        references=[utterance.text for utterance in utterances],
        audio_s=np.array([utterance.duration_s for utterance in utterances]),
        alphabet=trained.alphabet,
        forward_s=forward_s,
    )
