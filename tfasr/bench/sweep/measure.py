"""The measuring processes of the hardware sweep: one precision each, batch sizes in order."""

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.probes.memory_limit import MemoryLimit
from tfasr.bench.probes.noise import noise_batch
from tfasr.bench.probes.out_of_memory import out_of_memory
from tfasr.bench.sweep.config import SweepTask
from tfasr.bench.sweep.rows import BatchTimes, InferenceTimes
from tfasr.cores import usable_cores
from tfasr.data.features import FeatureConfig
from tfasr.exporting.litert import QUANTISED, convert, runner
from tfasr.models.build import build_recogniser
from tfasr.models.recogniser import RecogniserConfig, portable
from tfasr.precision import PRECISIONS
from tfasr.telemetry.memory import peak_memory_mib
from tfasr.training.build import build_model
from tfasr.training.experiment import Experiment, TrainingConfig

SEED = 1

Logits = Callable[[np.ndarray, np.ndarray], np.ndarray]


def measure_inference(task: SweepTask) -> InferenceTimes:
    """Measures the latency of a batch over batch sizes."""
    _prepare()
    sizes = (task.sweep.frames, task.num_features)
    answer = _inference_function(task.model, task.precision, *sizes)
    found = []
    for size in sorted(task.batches):
        call = _call(answer(size), _noise(task, size))
        found.append(_measured(size, call, task.calls, task.sweep.warmup))
    batch = _noise(task, 1)
    given = (batch["features"], batch["feature_lengths"])
    exact = _inference_function(task.model, "float32", *sizes)(1)(*given)
    difference = answer(1)(*given) - exact
    error = float(np.sqrt(np.mean(np.square(difference)) / np.mean(np.square(exact))))
    return InferenceTimes(found, error)


def measure_training(task: SweepTask, features: FeatureConfig) -> list[BatchTimes]:
    """Measures training steps over growing batch sizes, until the memory would be full.

    Returns:
        The batches; one that would not fit has a reason and no seconds.
    """
    _prepare()
    experiment = Experiment(
        model=task.model,
        features=features,
        training=TrainingConfig(precision=task.precision, seed=SEED),
    )
    model = build_model(experiment, Alphabet(), compiled=True)
    step = tf.function(lambda batch: model.train_step(batch)["utterance_loss"])
    found, limit = [], MemoryLimit(task.sweep.memory_share)
    for size in sorted(task.batches):
        reason = limit.refusal(size)
        if not reason:
            try:
                noise = _noise(task, size)
                batch = {name: tf.constant(value) for name, value in noise.items()}
                measured = _measured(
                    size, lambda batch=batch: step(batch), task.calls, task.sweep.warmup
                )
            except Exception as error:
                if not out_of_memory(error):
                    raise
                reason = "out of memory"
            else:
                found.append(measured)
                limit.ran(size)
                continue
        found.append(BatchTimes(size, reason=reason))
        break
    return found


def _prepare() -> None:
    tf.get_logger().setLevel("ERROR")
    # LiteRT's converter tells through absl how it renames what it is given.
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
    """Returns what makes the function from features and lengths to logits for a batch size."""
    classes = Alphabet().num_classes
    if PRECISIONS[precision].litert:
        model = build_recogniser(portable(config), num_features, classes, seed=SEED)
        quantised = precision in QUANTISED
        return lambda batch: runner(
            convert(model, batch, frames, num_features, quantised=quantised), usable_cores()
        )
    model = build_recogniser(config, num_features, classes, seed=SEED, dtype=precision)
    forward = tf.function(lambda features, lengths: model(features, lengths))
    # Read, a result has come back from wherever it was computed.
    return lambda _: lambda features, lengths: forward(features, lengths).numpy()


def _call(logits: Logits, batch: dict[str, np.ndarray]) -> Callable[[], Any]:
    return lambda: logits(batch["features"], batch["feature_lengths"])


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
