"""Samples as arrays, and from a pipe."""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np


def as_samples(samples: np.ndarray) -> np.ndarray:
    """Returns samples as float32 in -1..1.

    Args:
        samples: floats in -1..1 or int16 ``(samples,)``.

    Raises:
        ValueError: for another type, or what is no finite number.
    """
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / 32768
    if samples.dtype.kind != "f":
        raise ValueError(f"samples must be floats or int16. Received: dtype={samples.dtype}.")
    samples = samples.astype(np.float32, copy=False)
    if not np.isfinite(samples).all():
        bad = int(np.flatnonzero(~np.isfinite(samples))[0])
        raise ValueError(f"samples must be finite. Received: samples[{bad}]={samples[bad]}.")
    return samples


def pcm_chunks(stream: BinaryIO, sample_rate_hz: int, chunk_s: float = 0.1) -> Iterator[np.ndarray]:
    """Yields samples as they come, int16 ``(samples,)``, until the stream ends.

    Args:
        stream: such as ``sys.stdin.buffer``: signed 16 bit, little endian, one channel.
        sample_rate_hz: of the samples.
        chunk_s: the most seconds in a chunk.
    """
    # What has come already is taken at once, instead of waiting until a chunk is full.
    read = getattr(stream, "read1", stream.read)
    most_bytes = 2 * max(int(chunk_s * sample_rate_hz), 1)
    half = b""
    while data := read(most_bytes):
        data = half + data
        half = data[len(data) // 2 * 2 :]
        yield np.frombuffer(data[: len(data) // 2 * 2], "<i2")
