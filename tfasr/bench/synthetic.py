"""Random batches and shards, and the fastest matrix product; needs no corpus."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.workload import seconds_of
from tfasr.data import shards
from tfasr.data.shards import ShardedSplit, ShardedUtterance
from tfasr.kit.config import PRECISIONS
from tfasr.models.model import output_frames

_SHARD = 64


def noise_batch(batch: int, frames: int, labels: int, num_features: int) -> dict[str, np.ndarray]:
    """Returns a batch like one of `tfasr.data.batches.BatchSource`, all utterances equally long."""
    generator = np.random.default_rng(1)
    return {
        "features": generator.standard_normal((batch, frames, num_features), dtype=np.float32),
        "feature_lengths": np.full(batch, frames, np.int32),
        "labels": noise_labels(generator, (batch, labels)),
        "label_lengths": np.full(batch, labels, np.int32),
        "positions": np.arange(batch, dtype=np.int64),
        "duration_s": np.full(batch, frames / 100, np.float32),
    }


def noise_labels(generator: np.random.Generator, shape) -> np.ndarray:
    """Returns random int32 labels that differ from their neighbours in the last axis."""
    num_labels = Alphabet().num_classes - 1
    steps = generator.integers(1, num_labels, shape)
    return (np.cumsum(steps, axis=-1) % num_labels).astype(np.int32)


def write_noise_split(
    folder: Path, utterances: int, frames: int, labels: int, features, model, *, length_spread=0.0
) -> ShardedSplit:
    """Writes shards of random features in the format of `tfasr prepare`, and opens them."""
    from tfasr.data.packing import Packing

    generator = np.random.default_rng(1)
    packing = Packing(Alphabet(), features, shards.ShardConfig(), model)
    shortest = round(frames * (1 - length_spread))
    if output_frames(model, shortest) < labels:
        raise ValueError(
            f"CTC needs enough frames for the labels. Received: {shortest} frames, {labels=}."
        )
    listed, files, sums = [], [], shards.FeatureSums()
    for first in range(0, utterances, _SHARD):
        records = []
        for position in range(first, min(first + _SHARD, utterances)):
            frame_count = int(generator.integers(shortest, frames + 1)) if length_spread else frames
            shape = (frame_count, features.num_features)
            noise = generator.standard_normal(shape, dtype=np.float32).astype(np.float16)
            spelled = noise_labels(generator, labels).tolist()
            sums.add(noise)
            records.append(shards.encode_record(noise, spelled, position, frame_count / 100))
            name, duration_s = f"noise-{position}", frame_count / 100
            listed.append(ShardedUtterance(position, name, "", "", duration_s, frame_count, labels))
        path = folder / f"train-{first // _SHARD:05d}.tfrecord"
        shards.write_shard(path, records, packing.shards.compression)
        files.append({"file": path.name, "bytes": path.stat().st_size})
    index = {**packing.content(), "shards": files, "feature_sums": sums.to_json()}
    return ShardedSplit(folder, index, shards.HeldUtterances(listed))


def matmul_ceiling(precision: str, *, seconds: float = 2.0, size: int | None = None) -> float:
    """Measures the FLOP/s of square matrix products; the fastest repetition counts."""
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    size = size or (8192 if on_gpu else 2048)
    # A GPU queues work: waiting for each result would add the time of its transfer.
    in_a_row = 8 if on_gpu else 1
    dtype = PRECISIONS[precision].dtype
    shape, seeds = (size, size), ((0, 0), (0, 1))
    left, right = (tf.cast(tf.random.stateless_normal(shape, seed), dtype) for seed in seeds)

    @tf.function
    def products(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
        for _ in range(in_a_row):
            # Scaled, so that repeated products don't overflow.
            left = tf.matmul(left, right) * tf.cast(size**-0.5, left.dtype)
        return left[0, 0]

    return in_a_row * 2 * size**3 / fastest_s(lambda: products(left, right).numpy(), seconds)


def gpu_peak_bytes(index: int = 0) -> int | None:
    """Returns TensorFlow's peak memory on a GPU; None for slices of a processor."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    return tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"]


def fastest_s(call: Callable[[], object], seconds: float) -> float:
    """Returns the seconds of the fastest call, without the first, which may trace."""
    call()
    fastest, end = float("inf"), time.perf_counter() + seconds
    while fastest == float("inf") or time.perf_counter() < end:
        fastest = min(fastest, seconds_of(call))
    return fastest
