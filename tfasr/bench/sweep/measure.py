"""Measuring processes of the hardware sweep: one precision each, with all batch sizes."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.backends.measure import RUNTIMES
from tfasr.bench.decoder import log_softmax
from tfasr.bench.devices import growing_batches, is_cliff
from tfasr.bench.synthetic import noise_batch
from tfasr.data.batches import BatchSource
from tfasr.data.features import FeatureConfig
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.exporting.litert import QUANTISED, convert, runner
from tfasr.kit.config import PRECISIONS, config_class, require, require_precision, swept
from tfasr.kit.process import usable_cores
from tfasr.models.build import build_recogniser
from tfasr.models.model import MODELS, RecogniserConfig, portable
from tfasr.scoring.errors import ErrorCounts, count_errors
from tfasr.telemetry.machine import peak_memory_mib
from tfasr.training.build import build_model
from tfasr.training.evaluation import Evaluator
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.trained import TrainedRun, open_trained


@config_class
class SweepConfig:
    """Precisions, batch sizes, networks and threads of the sweep."""

    # float32 and others of `tfasr.kit.config.swept`
    precisions: tuple[str, ...] = ("float32", "mixed_bfloat16", "mixed_float16", "int8")
    inference_batches: tuple[int, ...] = (1, 2, 3, 4)  # utterances
    # utterances, as far as they fit into memory
    training_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    calls: int = 200  # of inference, for each size
    steps: int = 10  # of training, for each size
    warmup: int = 4  # calls and steps before those, left out
    frames: int = 1000  # feature frames of each utterance
    labels: int = 120  # of each utterance
    memory_share: float = 0.8  # fraction of the free memory for training
    networks: tuple[str, ...] = ()  # to compare, of `tfasr.models.model.MODELS`
    network_units: int = 0  # width of all networks; 0 for each config's sizes
    runtimes: tuple[str, ...] = tuple(RUNTIMES)  # in which networks are compared, if installed
    lengths: tuple[int, ...] = (250, 500, 1000, 2000)  # feature frames of those comparisons
    axes_batch: int = 8  # utterances in those comparisons
    axes_steps: int = 10  # steps in those comparisons
    # numbers of threads (OpenMP and MKL, within an operation, parallel operations), each measured
    # in a process of TensorFlow and of PyTorch
    threads: tuple[tuple[int, int, int], ...] = ()
    threads_network: str = "acoustic_model"  # measured with those threads, at the longest length
    # an utterance this much slower in a larger batch is a cliff (a fraction)
    cliff_tolerance: float = 0.05

    def check(self) -> None:
        require_precision(self, "precisions", swept())
        require("float32" in self.precisions, self, "precisions", "float32 and others")
        for name in ("inference_batches", "training_batches", "lengths"):
            require(all(n > 0 for n in getattr(self, name)), self, name, "positive")
        valid = all(name in MODELS for name in (*self.networks, self.threads_network))
        require(valid, self, "networks", f"of {MODELS.listed()}")
        positive = all(n > 0 for numbers in self.threads for n in numbers)
        require(positive, self, "threads", "positive numbers of threads")
        valid = set(self.runtimes) <= set(RUNTIMES) and bool(self.runtimes)
        require(valid, self, "runtimes", f"some of {', '.join(RUNTIMES)}")
        for name in ("lengths", "inference_batches"):
            require(bool(getattr(self, name)), self, name, "at least one")
        require(self.network_units >= 0, self, "network_units", "at least 0")
        for name in ("calls", "steps", "warmup", "frames", "labels", "axes_batch", "axes_steps"):
            require(getattr(self, name) > 0, self, name, "positive")
        require(0 < self.memory_share <= 1, self, "memory_share", "above 0 and at most 1")
        require(self.cliff_tolerance >= 0, self, "cliff_tolerance", "at least 0")


@dataclass(frozen=True)
class SweepTask:
    """Work of one process of the sweep."""

    model: Any  # its config
    num_features: int
    precision: str  # of `tfasr.kit.config.swept`
    batches: tuple[int, ...]  # utterances
    calls: int  # measured for each size
    sweep: SweepConfig  # the other sizes


@dataclass(frozen=True)
class BatchTimes:
    """The calls with one batch size."""

    batch: int  # utterances
    seconds: list[float] = field(default_factory=list)  # of every call after the warm-up
    warmup_s: list[float] = field(default_factory=list)
    peak_memory_mib: float | None = None  # see `SweepRow`
    device_memory_mib: float | None = None  # see `SweepRow`
    reason: str = ""  # why it was not run, or ""


@dataclass(frozen=True)
class InferenceTimes:
    """A precision's latencies and its error."""

    batches: list[BatchTimes]  # growing
    logit_error: float  # relative root mean square difference from float32, random weights


@dataclass(frozen=True)
class SweepRow:
    """One batch size in one precision."""

    mode: str  # "inference" or "training"
    precision: str  # of `tfasr.kit.config.swept`
    batch: int  # utterances
    p50_s: float | None  # of a batch; None if it was not run
    p90_s: float | None = None
    p99_s: float | None = None
    calls: int = 0  # after the warm-up
    peak_memory_mib: float | None = None  # of the process, including all smaller sizes
    device_memory_mib: float | None = None  # of TensorFlow on the GPU, for this size alone
    reason: str = ""  # why it was not run, or ""
    cliff: bool = False  # whether an utterance takes longer than in a smaller batch

    @property
    def utterance_s(self) -> float | None:
        return None if self.p50_s is None else self.p50_s / self.batch

    @classmethod
    def of(cls, mode: str, precision: str, measured: "BatchTimes") -> "SweepRow":
        seconds = measured.seconds
        quantiles = np.quantile(seconds, [0.5, 0.9, 0.99]).tolist() if seconds else [None] * 3
        names = ("peak_memory_mib", "device_memory_mib", "reason")
        more = {name: getattr(measured, name) for name in names}
        return cls(mode, precision, measured.batch, *quantiles, calls=len(seconds), **more)


def flag_cliffs(rows: Sequence[SweepRow], tolerance: float) -> list[SweepRow]:
    """Marks the rows in which an utterance takes longer than in a smaller batch."""

    def batches(row: SweepRow) -> list[tuple[int, float | None]]:
        of_kind = (r for r in rows if (r.mode, r.precision) == (row.mode, row.precision))
        return [(other.batch, other.utterance_s) for other in of_kind]

    cliffs = (is_cliff(r.batch, r.utterance_s, batches(r), tolerance) for r in rows)
    return [replace(row, cliff=cliff) for row, cliff in zip(rows, cliffs, strict=True)]


def speedup(row: SweepRow, rows: Sequence[SweepRow]) -> float | None:
    """Returns a row's speed relative to float32 at the same batch size, or None."""
    same = (row.mode, "float32", row.batch)
    exact = next((r.p50_s for r in rows if (r.mode, r.precision, r.batch) == same), None)
    return None if row.p50_s is None or exact is None else exact / row.p50_s


SEED = 1
Logits = Callable[[np.ndarray, np.ndarray], np.ndarray]


def measure_inference(task: SweepTask) -> InferenceTimes:
    _prepare()
    sizes = (task.sweep.frames, task.num_features)
    answer = _inference_function(task.model, task.precision, *sizes)
    times = []
    for size in sorted(task.batches):
        logits = partial(answer(size), *_features(task, size))
        times.append(_measured(size, logits, task.calls, task.sweep.warmup))
    features = _features(task, 1)
    exact = _inference_function(task.model, "float32", *sizes)(1)(*features)
    difference = answer(1)(*features) - exact
    error = float(np.sqrt(np.mean(np.square(difference)) / np.mean(np.square(exact))))
    return InferenceTimes(times, error)


def measure_training(task: SweepTask, features: FeatureConfig) -> list[BatchTimes]:
    """Measures training steps with growing batches; one that won't fit gets a reason instead."""
    _prepare()
    training = TrainingConfig(precision=task.precision, seed=SEED)
    experiment = Experiment(model=task.model, features=features, training=training)
    model = build_model(experiment, Alphabet(), compiled=True)
    step = tf.function(lambda batch: model.train_step(batch)["utterance_loss"])

    def measured(size: int) -> BatchTimes:
        batch = {name: tf.constant(value) for name, value in _noise(task, size).items()}
        return _measured(size, lambda: step(batch), task.calls, task.sweep.warmup)

    sizes = growing_batches(sorted(task.batches), task.sweep.memory_share, measured)
    return [times or BatchTimes(size, reason=reason) for size, times, reason in sizes]


def _prepare() -> None:
    tf.get_logger().setLevel("ERROR")
    # LiteRT's converter logs the renaming of its inputs through absl.
    logging.getLogger("absl").setLevel(logging.ERROR)
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def _noise(task: SweepTask, size: int) -> dict[str, np.ndarray]:
    classes = Alphabet().num_classes
    shape = (size, task.sweep.frames, task.sweep.labels)
    return noise_batch(*shape, num_features=task.num_features, num_classes=classes)


def _inference_function(
    config: RecogniserConfig, precision: str, frames: int, num_features: int
) -> Callable[[int], Logits]:
    classes = Alphabet().num_classes
    if PRECISIONS[precision].litert:
        model = build_recogniser(portable(config), num_features, classes, seed=SEED)
        quantised = precision in QUANTISED
        return lambda batch: runner(
            convert(model, batch, frames, num_features, quantised=quantised), usable_cores()
        )
    model = build_recogniser(config, num_features, classes, seed=SEED, dtype=precision)
    forward = tf.function(lambda features, lengths: model(features, lengths))
    # Reading the result ensures that it was computed.
    return lambda _: lambda features, lengths: forward(features, lengths).numpy()


def _features(task: SweepTask, size: int) -> tuple[np.ndarray, np.ndarray]:
    batch = _noise(task, size)
    return batch["features"], batch["feature_lengths"]


def _measured(size: int, call: Callable[[], Any], calls: int, warmup: int) -> BatchTimes:
    gpu = bool(tf.config.list_logical_devices("GPU"))
    if gpu:
        tf.config.experimental.reset_memory_stats("GPU:0")
    seconds = []
    for _ in range(warmup + calls):
        began = time.perf_counter()
        call()
        tf.test.experimental.sync_devices()
        seconds.append(time.perf_counter() - began)
    device = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20 if gpu else None
    return BatchTimes(size, seconds[warmup:], seconds[:warmup], peak_memory_mib(), device)


def measure_errors(
    run_dir: Path, split: str, precision: str, shard_dir=None, checkpoint: str = "best"
) -> ErrorCounts:
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
    # One utterance at a time with the same padding, which is on the right and changes nothing.
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
            log_probs = log_softmax(logits(padded, lengths)[0])[None]
            outputs = np.asarray(config.output_lengths(lengths))
            texts[int(position)] = decoder.decode(log_probs, outputs)[0].text
    ordered = [texts[utterance.position] for utterance in utterances]
    return count_errors([utterance.text for utterance in utterances], ordered)
