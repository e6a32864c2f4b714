"""What each precision costs a trained run in errors."""

from pathlib import Path

import numpy as np

from tfasr.bench.decoder.log_probs import log_softmax
from tfasr.cores import usable_cores
from tfasr.data.pipeline import BatchSource
from tfasr.decoding.greedy import GreedyDecoder
from tfasr.exporting.litert import QUANTISED, convert, runner
from tfasr.metrics import ErrorCounts, count_errors
from tfasr.models.build import build_recogniser
from tfasr.models.recogniser import portable
from tfasr.precision import PRECISIONS
from tfasr.training.evaluation import Evaluator
from tfasr.training.trained import TrainedRun, open_trained


def measure_errors(
    run_dir: Path,
    split: str,
    precision: str,
    shard_dir: Path | None = None,
    checkpoint: str = "best",
) -> ErrorCounts:
    """Evaluates a run's model in one precision, decoding greedily.

    Args:
        run_dir: a folder that `tfasr train` wrote.
        split: a prepared split.
        precision: of `tfasr.precision.swept`.
        shard_dir: where the split is; None for the run's own.
        checkpoint: "best" (by validation CER), "last", or a file.
    """
    trained = open_trained(run_dir)
    source = trained.source(split, shard_dir)
    if PRECISIONS[precision].litert:
        return _by_litert(trained, source, precision, checkpoint)
    model = trained.model(checkpoint, precision=precision)
    return Evaluator(model, source, GreedyDecoder(trained.alphabet)).evaluate().counts


def _by_litert(
    trained: TrainedRun, source: BatchSource, precision: str, checkpoint: str
) -> ErrorCounts:
    config, num_features = trained.experiment.model, trained.experiment.features.num_features
    model = build_recogniser(portable(config), num_features, trained.alphabet.num_classes)
    model.set_weights(trained.model(checkpoint).recogniser.get_weights())
    utterances = source.split.utterances
    frames = max(utterance.frames for utterance in utterances)
    # One utterance at a time, all padded alike: padding stands on the right and changes nothing.
    logits = runner(
        convert(model, 1, frames, num_features, quantised=precision in QUANTISED), usable_cores()
    )
    decoder, texts = GreedyDecoder(trained.alphabet), {}
    for batch in source.evaluation():
        rows = (batch[name].numpy() for name in ("positions", "features", "feature_lengths"))
        for position, features, length in zip(*rows, strict=True):
            padded = np.zeros((1, frames, num_features), np.float32)
            padded[0, :length] = features[:length]
            lengths = np.array([length], np.int32)
            found = logits(padded, lengths)
            outputs = np.asarray(config.output_lengths(lengths))
            texts[int(position)] = decoder.decode(log_softmax(found[0])[None], outputs)[0].text
    ordered = [texts[utterance.position] for utterance in utterances]
    return count_errors([utterance.text for utterance in utterances], ordered)
