"""The tables of the keyword spotter: its memory, its training, its confusions."""

from collections.abc import Sequence

import numpy as np

from tfasr.bench.keywords.config import KeywordTrainingConfig
from tfasr.bench.keywords.data import KeywordData
from tfasr.bench.keywords.training import error_rate
from tfasr.display.table import NEVER, UNKNOWN, Table
from tfasr.models.keyword_spotter import LayerMemory
from tfasr.tta.throughput import Throughput
from tfasr.tta.time_to_accuracy import AccuracyPoint, TimeToAccuracy

_MOST_CONFUSIONS = 10


def memory_table(layers: Sequence[LayerMemory]) -> Table:
    """Returns weights, activations and bytes of each layer, and their sums."""
    weights = sum(layer.weights for layer in layers)
    activations = sum(layer.activations for layer in layers)
    num_bytes = sum(layer.num_bytes for layer in layers)
    rows = [
        [
            layer.name,
            " x ".join(map(str, layer.shape)),
            f"{layer.weights:,}",
            f"{layer.activations:,}",
            f"{layer.num_bytes / 1000:.1f}",
        ]
        for layer in layers
    ]
    rows.append(["sum", "", f"{weights:,}", f"{activations:,}", f"{num_bytes / 1000:.1f}"])
    return Table(
        title=f"Memory of one utterance in single precision: {num_bytes / 1000:.0f} KB",
        columns=["layer", "output", "parameters", "activations", "KB"],
        rows=rows,
        notes=["4 bytes a number, 1 KB is 1000 bytes. Normalisation and rectifier work in place."],
    )


def training_table(
    data: KeywordData,
    config: KeywordTrainingConfig,
    points: Sequence[AccuracyPoint],
    reached: TimeToAccuracy,
    throughput: Throughput,
    confusion: np.ndarray,
    backend: str,
) -> Table:
    """Returns accuracy, time to accuracy and throughput of the run.

    Args:
        data: what it was trained on.
        config: how.
        points: the error rate on the validation split over the run.
        reached: when the target was met.
        throughput: of the steps that count.
        confusion: on the test split.
        backend: Keras's.
    """
    rate = throughput.utterances_per_s
    rows = [
        ["backend", backend],
        ["data", data.source],
        ["utterances: train, validation, test", ", ".join(map(str, _sizes(data)))],
        ["epochs of batches of", f"{len(points)} of {config.batch_size}"],
        ["validation accuracy, last epoch, %", f"{100 * (1 - points[-1].value):.1f}"],
        ["test accuracy, %", f"{100 * (1 - error_rate(confusion)):.1f}"],
        ["epochs to the target", str(reached.epoch or NEVER)],
        ["time to the target, s", f"{reached.seconds:.2f}" if reached.reached else NEVER],
        ["whole run, s", f"{points[-1].elapsed_s:.2f}"],
        ["training, utterances/s", UNKNOWN if rate is None else f"{rate:,.0f}"],
    ]
    return Table(
        title="Keyword spotting: time to accuracy",
        columns=["", "value"],
        rows=rows,
        notes=[
            f"Target: {100 * config.target_error:g} % wrong words on the validation split, the "
            f"median of {config.target_window} epochs; the time counts everything from the "
            f"model's creation. {NEVER}: never reached.",
            f"Utterances a second leave out {throughput.warmup_steps} warm-up steps and "
            f"{throughput.traced_steps} more that compiled.",
        ],
    )


def confusion_table(words: Sequence[str], confusion: np.ndarray) -> Table:
    """Returns the most frequent confusions on the test split."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    pairs = np.argwhere(wrong)
    most = sorted(pairs.tolist(), key=lambda pair: -wrong[pair[0], pair[1]])[:_MOST_CONFUSIONS]
    spoken = confusion.sum(axis=1)
    return Table(
        title="Most frequent confusions on the test split",
        columns=["spoken", "taken for", "times", "of"],
        rows=[
            [words[true], words[taken], str(wrong[true, taken]), str(spoken[true])]
            for true, taken in most
        ],
        notes=[f"{wrong.sum()} of {confusion.sum()} utterances were taken for another word."],
    )


def _sizes(data: KeywordData) -> list[int]:
    return [len(split) for split in data.splits.values()]
