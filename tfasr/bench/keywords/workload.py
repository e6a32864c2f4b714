"""A network of 8504 parameters on single words: memory, time to accuracy, confusions."""

import tempfile
from pathlib import Path

import keras
import numpy as np

from tfasr.bench.keywords.config import KeywordTrainingConfig
from tfasr.bench.keywords.data import (
    SPLITS,
    KeywordData,
    speech_commands_keywords,
    synthetic_keywords,
)
from tfasr.bench.keywords.figure import keyword_chart
from tfasr.bench.keywords.tables import confusion_table, memory_table, training_table
from tfasr.bench.keywords.training import (
    METRIC,
    error_rate,
    train_keywords,
)
from tfasr.bench.workload import Context, Result, Workload
from tfasr.errors import UsageError
from tfasr.models.keyword_spotter import KeywordSpotterConfig, memory_accounting
from tfasr.tta.load import load_run
from tfasr.tta.run import Run


def run(network: KeywordSpotterConfig, training: KeywordTrainingConfig, context: Context) -> Result:
    """Trains the keyword spotter on a corpus, or on synthetic utterances.

    Raises:
        UsageError: if PyTorch is to train it on another backend's process.
    """
    if training.framework == "torch" and keras.backend.backend() != "torch":
        raise UsageError(
            "KeywordTrainingConfig.framework = 'torch' must come with --backend torch. Received: "
            f"{keras.backend.backend()}."
        )
    data = _data(network, training, context)
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = Path(context.out or scratch) / "run"
        confusion = train_keywords(network, training, data, run_dir)
        finished = load_run(run_dir)
    return _result(network, training, data, finished, confusion)


def _data(
    network: KeywordSpotterConfig, training: KeywordTrainingConfig, context: Context
) -> KeywordData:
    if context.corpus_dir is not None:
        if keras.backend.backend() != "tensorflow":
            _leave_gpus_to_keras()
        return speech_commands_keywords(
            context.corpus_dir, network, context.fraction, training.seed
        )
    wanted = (training.num_train, training.num_validation, training.num_test)
    sizes = {
        name: max(1, round(context.fraction * size))
        for name, size in zip(SPLITS, wanted, strict=True)
    }
    return synthetic_keywords(network, sizes, training.seed)


def _leave_gpus_to_keras() -> None:
    """Keeps TensorFlow, which computes the features, from taking another backend's memory."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")


def _result(
    network: KeywordSpotterConfig,
    training: KeywordTrainingConfig,
    data: KeywordData,
    finished: Run,
    confusion: np.ndarray,
) -> Result:
    target = {METRIC: training.target_error}
    reached = finished.time_to_accuracy(window=training.target_window, **target)
    throughput = finished.throughput()
    left_out = throughput.warmup_steps + throughput.traced_steps
    points = finished.accuracy_curve(METRIC)
    layers = memory_accounting(network)
    name = "PyTorch alone" if training.framework == "torch" else keras.backend.backend()
    backend = f"{name}, {training.layout}"
    return Result(
        tables=[
            memory_table(layers),
            training_table(data, training, points, reached, throughput, confusion, backend),
            confusion_table(data.words, confusion),
        ],
        values={
            "framework": training.framework,
            "layout": training.layout,
            "source": data.source,
            "utterances": {name: len(split) for name, split in data.splits.items()},
            "parameters": sum(layer.weights for layer in layers),
            "memory_bytes": sum(layer.num_bytes for layer in layers),
            "validation_error": [[p.epoch, p.elapsed_s, p.value] for p in points],
            "target": [METRIC, training.target_error],
            "time_to_accuracy_s": reached.seconds,
            "epochs_to_accuracy": reached.epoch,
            "utterances_per_s": throughput.utterances_per_s,
            "test_accuracy": 1 - error_rate(confusion),
            "words": data.words,
            "confusion": confusion.tolist(),
        },
        warmup_steps=left_out,
        figures={
            "keyword_spotting": lambda: keyword_chart(
                data.words, confusion, points, training.target_error
            )
        },
    )


KEYWORD_SPOTTING = Workload(run, (KeywordSpotterConfig, KeywordTrainingConfig))
