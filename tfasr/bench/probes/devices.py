"""Devices of a measuring process: GPUs where there are, else slices of the processor."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfasr.errors import UsageError
from tfasr.run_files import GPU_FILE
from tfasr.telemetry.utilisation import UtilisationSampler


def usable_cores() -> int:
    """Returns the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_gpus() -> int:
    """Returns how many GPUs TensorFlow sees; starts none of them."""
    return len(tf.config.list_physical_devices("GPU"))


def use_devices(count: int) -> str:
    """Makes this process use so many devices; to be called before TensorFlow uses any.

    Args:
        count: GPUs, or where there is none logical devices that share the processor.

    Returns:
        "GPU" or "logical CPU".

    Raises:
        UsageError: if there are GPUs, but fewer.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        processor = tf.config.list_physical_devices("CPU")[0]
        slices = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        tf.config.set_logical_device_configuration(processor, slices)
        return "logical CPU"
    if count > len(gpus):
        raise UsageError(
            f"Device counts must not exceed the {len(gpus)} GPUs. Received: {count}. Bind fewer, "
            "as with --gin_binding 'ScalingConfig.device_counts = (1, 2)'."
        )
    tf.config.set_visible_devices(gpus[:count], "GPU")
    for gpu in gpus[:count]:
        tf.config.experimental.set_memory_growth(gpu, True)
    return "GPU"


@contextmanager
def watched_gpus(found: list[dict[str, Any]]) -> Iterator[None]:
    """Watches GPUs through NVML while the body runs; without NVML nothing is found.

    Args:
        found: gets ``utilisation_percent`` (mean) and ``memory_bytes`` (the most) of every GPU.
    """
    with tempfile.TemporaryDirectory() as folder:
        with UtilisationSampler(Path(folder)):
            yield
        path = Path(folder) / GPU_FILE
        found += _read(path) if path.is_file() else []


def _read(path: Path) -> list[dict[str, Any]]:
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        _, gpu, utilisation, memory, _ = line.split(",")
        by_gpu.setdefault(int(gpu), []).append((float(utilisation), float(memory)))
    return [
        {
            "utilisation_percent": sum(one for one, _ in samples) / len(samples),
            "memory_bytes": max(one for _, one in samples),
        }
        for _, samples in sorted(by_gpu.items())
    ]


def peak_device_bytes(count: int) -> list[int | None]:
    """Returns the most memory that TensorFlow used on each GPU; None for slices of a processor."""
    if not tf.config.list_logical_devices("GPU"):
        return [None] * count
    information = tf.config.experimental.get_memory_info
    return [information(f"GPU:{index}")["peak"] for index in range(count)]
