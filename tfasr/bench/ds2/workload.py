"""The DeepMark speech benchmark: forward and backward of Deep Speech 2 over an epoch of lengths."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfasr.bench.ds2.data import (
    COUNTS,
    HUNDREDS,
    LENGTHS_S,
    RandomBlock,
    batch_sizes,
    utterance_counts,
)
from tfasr.bench.ds2.figure import lengths_figure
from tfasr.bench.ds2.measurement import DeepMarkMeasurement, LengthMeasurement
from tfasr.bench.ds2.tables import deepmark_tables
from tfasr.bench.probes.ctc import ctc_losses
from tfasr.bench.probes.make_stepper import make_stepper, make_strategy
from tfasr.bench.probes.step import Batch, Stepper
from tfasr.bench.workload import Context, Result
from tfasr.config import config_class, require
from tfasr.models.deep_speech_2 import DeepSpeech2, DeepSpeech2Config, output_frames

_log = logging.getLogger(__name__)


@config_class
class DeepMarkConfig:
    """How the benchmark is run.

    Attributes:
        batch_size: utterances of a batch, over all devices.
        warmup_steps: passes through each shape of a batch that are left out.
        num_devices: devices that share each batch; several on TensorFlow only.
        seed: of weights and data.

    Source: the batch size, DeepMark's torch/audio/benchmark.lua.
    """

    batch_size: int = 32
    warmup_steps: int = 1
    num_devices: int = 1
    seed: int = 0

    def check(self) -> None:
        """Raises ValueError for values that measure nothing."""
        for field in ("batch_size", "warmup_steps", "num_devices"):
            require(getattr(self, field) > 0, self, field, "at least 1")
        require(self.seed >= 0, self, "seed", "at least 0")


@dataclass(frozen=True)
class _Setting:
    """What is run: the network, how, and how many utterances of each length."""

    network: DeepSpeech2Config
    bench: DeepMarkConfig
    counts: list[int]


def run(network: DeepSpeech2Config, bench: DeepMarkConfig, context: Context) -> Result:
    """Measures an epoch, on one device and, where there are more, on all of them."""
    setting = _Setting(network, bench, utterance_counts(context.fraction))
    # Before anything is computed: only then can a processor be cut into devices.
    strategy = make_strategy(bench.num_devices)
    alone, parameters, warmups = _measure(setting)
    measured = [alone]
    if bench.num_devices > 1:
        several, _, more = _measure(setting, strategy)
        measured.append(several)
        warmups += more
    backend = keras.backend.backend()
    return Result(
        tables=deepmark_tables(measured, backend, parameters, warmups),
        values={
            "parameters": parameters,
            "full_counts": [HUNDREDS * count for count in COUNTS],
            "runs": [measurement.to_json() for measurement in measured],
            "scaling": measured[-1].scaling(alone) if len(measured) > 1 else None,
        },
        warmup_steps=warmups,
        figures={"ds2": lambda: lengths_figure(measured[-1], backend)},
    )


def _measure(setting: _Setting, strategy: Any = None) -> tuple[DeepMarkMeasurement, int, int]:
    """Returns the measurement, the trainable parameters and the passes left out."""
    network, bench = setting.network, setting.bench
    num_devices = strategy.num_replicas_in_sync if strategy else 1
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = DeepSpeech2(network, seed=bench.seed)
        model.build()
    stepper = make_stepper(model, ctc_losses, strategy=strategy)
    longest = max(s for s, count in zip(LENGTHS_S, setting.counts, strict=True) if count)
    block = RandomBlock(
        bench.batch_size, network.num_bins, network.num_classes - 1, longest, bench.seed
    )
    lengths, warmups = [], 0
    for length_s, count in zip(LENGTHS_S, setting.counts, strict=True):
        sizes = batch_sizes(count, bench.batch_size)
        times, left_out = _measure_length(stepper, block, length_s, sizes, bench.warmup_steps)
        lengths.append(LengthMeasurement(length_s, sizes, *times))
        warmups += left_out
    parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return DeepMarkMeasurement(bench.batch_size, num_devices, lengths), parameters, warmups


def _measure_length(
    stepper: Stepper, block: RandomBlock, length_s: int, sizes: Sequence[int], warmup_steps: int
) -> tuple[tuple[list[float], list[float]], int]:
    """Returns the seconds of forward, and of forward and backward, of each batch, and warm-ups."""
    forward_s, total_s = [], []
    batches = {size: stepper.place(_batch(block, length_s, size)) for size in dict.fromkeys(sizes)}
    for batch in batches.values():
        for _ in range(warmup_steps):
            stepper.forward(batch)
            stepper.gradients(batch)
    for size in sizes:
        forward_s.append(_seconds(stepper.forward, batches[size]))
        total_s.append(_seconds(stepper.gradients, batches[size]))
    if sizes:
        mean_ms = 1000 * sum(total_s) / len(total_s)
        _log.info("%2d s: %d batches, %.0f ms each", length_s, len(sizes), mean_ms)
    return (forward_s, total_s), len(batches) * warmup_steps


def _batch(block: RandomBlock, length_s: int, size: int) -> Batch:
    features, labels = block.cut(length_s, size)
    frames = np.full(size, output_frames(features.shape[1]), np.int32)
    label_lengths = np.full(size, labels.shape[1], np.int32)
    return Batch((np.ascontiguousarray(features),), (frames, np.array(labels), label_lengths))


def _seconds(step: Callable[[Batch], float], batch: Batch) -> float:
    began = time.perf_counter()
    step(batch)
    return time.perf_counter() - began
