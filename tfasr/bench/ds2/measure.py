"""Times batches of every length through Deep Speech 2, forward and backward."""

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfasr.bench.ds2.config import DeepMarkConfig
from tfasr.bench.ds2.data import LENGTHS_S, RandomBlock, batch_sizes
from tfasr.bench.ds2.times import DeepMarkMeasurement, LengthMeasurement
from tfasr.bench.probes.ctc import ctc_losses
from tfasr.bench.probes.make_stepper import make_stepper
from tfasr.bench.probes.step import Batch, Stepper, seconds_of
from tfasr.models.deep_speech_2 import DeepSpeech2, DeepSpeech2Config, output_frames

_log = logging.getLogger(__name__)


def measure_epoch(
    network: DeepSpeech2Config, bench: DeepMarkConfig, counts: Sequence[int], strategy: Any = None
) -> tuple[DeepMarkMeasurement, int, int]:
    """Measures an epoch or a share of one.

    Args:
        network: sizes.
        bench: how it is run.
        counts: utterances of 1, 2, ... 15 s.
        strategy: a ``tf.distribute.Strategy`` of several devices, or None for one.

    Returns:
        The measurement, the trainable parameters and the passes left out.
    """
    num_devices = strategy.num_replicas_in_sync if strategy else 1
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = DeepSpeech2(network, seed=bench.seed)
        model.build()
    stepper = make_stepper(model, ctc_losses, strategy=strategy)
    longest = max(s for s, count in zip(LENGTHS_S, counts, strict=True) if count)
    block = RandomBlock(
        bench.batch_size, model.num_bins, model.num_classes - 1, longest, bench.seed
    )
    lengths, warmups = [], 0
    for length_s, count in zip(LENGTHS_S, counts, strict=True):
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
        forward_s.append(seconds_of(stepper.forward, batches[size]))
        total_s.append(seconds_of(stepper.gradients, batches[size]))
    if sizes:
        mean_ms = 1000 * sum(total_s) / len(total_s)
        _log.info("%2d s: %d batches, %.0f ms each", length_s, len(sizes), mean_ms)
    return (forward_s, total_s), len(batches) * warmup_steps


def _batch(block: RandomBlock, length_s: int, size: int) -> Batch:
    features, labels = block.cut(length_s, size)
    frames = np.full(size, output_frames(features.shape[1]), np.int32)
    label_lengths = np.full(size, labels.shape[1], np.int32)
    return Batch((np.ascontiguousarray(features),), (frames, np.array(labels), label_lengths))
