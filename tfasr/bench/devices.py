"""The Keras backend and devices that a benchmark runs on, their utilisation and memory.

Shared by the workloads: how batches grow until the memory is full, what counts as a
cliff, and how busy devices were. Nothing here loads a framework before it is called.
"""

import importlib.util
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.bench.workload import BACKENDS
from tfasr.display.chart import CLIFF_COLOUR, Points
from tfasr.display.table import plural
from tfasr.telemetry.host import HostSampler
from tfasr.telemetry.machine import available_bytes, peak_bytes
from tfasr.telemetry.samplers import UtilisationSampler
from tfasr.tta.host import read_host_file, whole_use
from tfasr.tta.run import Run

log = logging.getLogger("tfasr")

# Whose versions are stated, by backend.
_PACKAGES = {
    "tensorflow": ("tensorflow",),
    "jax": ("jax", "jaxlib"),
    "torch": ("torch",),
}


def installed_backends() -> list[str]:
    """Returns the backends that can be imported, without importing them."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


def describe_backend() -> dict[str, Any]:
    """Returns Keras's current backend, its devices and versions as JSON values."""
    import keras

    name = keras.backend.backend()
    versions = {
        package: metadata.version(package) for package in ("keras", *_PACKAGES[name])
    }

    return {"name": name, "devices": _devices(name), "versions": versions}


def visible_gpus() -> int:
    """Returns how many GPUs Keras's backend sees."""
    named = describe_backend()["devices"]
    return sum("gpu" in device.lower() or "cuda" in device.lower() for device in named)


def _devices(name: str) -> list[str]:
    """Returns the names of a backend's devices."""
    if name == "tensorflow":
        import tensorflow as tf

        return [device.name for device in tf.config.list_logical_devices()]

    if name == "jax":
        import jax

        return [str(device) for device in jax.devices()]

    import torch

    count = torch.cuda.device_count()

    return [f"cuda:{index}" for index in range(count)] or ["cpu"]


def devices_text(count: int) -> str:
    """Returns "1 device", "2 devices" and so on."""
    return plural(count, "device")


def fate_of(row: dict[str, Any]) -> str:
    """Returns why a batch size was not run, "cliff" if it is one, or "".

    ``row`` has the values ``reason`` and ``cliff``, see `is_cliff`.
    """
    if row["reason"]:
        return row["reason"]
    if row["cliff"]:
        return "cliff"

    return ""


def powers_up_to(most: int) -> list[int]:
    """Returns 1, 2, 4 and so on up to ``most``, which is included."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


def num_gpus() -> int:
    """Returns how many GPUs TensorFlow could use, without starting them."""
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


# Names this process's CPU use among devices.
PROCESS = "CPU, this process"


@dataclass(frozen=True)
class DeviceUse:
    """How busy a device was during a measurement.

    Attributes:
        device: "GPU 0" and so on, or `PROCESS`, for which 100 % is all cores.
        seconds: time of each sample from the start.
        percent: utilisation since the previous sample.
        memory_bytes: a GPU's peak memory; None if unknown.
    """

    device: str
    seconds: list[float] = field(default_factory=list)
    percent: list[float] = field(default_factory=list)
    memory_bytes: float | None = None

    @property
    def mean_percent(self) -> float | None:
        """Mean of the samples; None without samples."""
        if not self.percent:
            return None

        return sum(self.percent) / len(self.percent)


@contextmanager
def watched_devices(uses: list[DeviceUse]) -> Iterator[None]:
    """Samples the use of the CPU every 0.03 s and of GPUs every 0.1 s during the block.

    Adds the use of this process and of each GPU to ``uses``. If the machine took much
    of what the body could have used, a warning names the cause.
    """
    with tempfile.TemporaryDirectory() as folder:
        began_ms = time.time() * 1000
        with UtilisationSampler(Path(folder)), HostSampler(Path(folder), 0):
            yield

        # A busy machine makes whatever is measured slower, and shows in no other
        # figure.
        host = whole_use(read_host_file(folder))
        if host is not None and host.disturbed:
            cause, share = host.causes()[0]
            log.warning(
                "Measured on a busy machine: %s took %.0f %%.", cause, 100 * share
            )

        sampled = Run(Path(folder), "", [])
        cpu = sampled.utilisation("cpu")
        gpus = sampled.utilisation("gpu")
        uses.append(_use(PROCESS, cpu, "process_percent", began_ms))

        for gpu in np.unique(gpus.get("gpu", [])):
            of_gpu = {name: column[gpus["gpu"] == gpu] for name, column in gpus.items()}
            uses.append(_use(f"GPU {gpu:.0f}", of_gpu, "utilisation_percent", began_ms))


def _use(
    device: str,
    columns: dict[str, np.ndarray],
    name: str,
    began_ms: float,
) -> DeviceUse:
    """Returns the samples of a device, with times from ``began_ms`` on."""
    if not columns:
        return DeviceUse(device)

    seconds = (columns["time_ms"] - began_ms) / 1000
    memory = columns.get("memory_used_bytes", np.empty(0)).tolist()

    return DeviceUse(
        device,
        seconds.tolist(),
        columns[name].tolist(),
        max(memory, default=None),
    )


def expected_bytes(
    batches: Sequence[int],
    peaks: Sequence[float],
    batch: int,
) -> float | None:
    """Extrapolates a larger batch's memory from the last two batches.

    None if there are fewer.
    """
    if len(batches) < 2:
        return None

    # Bytes per utterance; less than none would mean that the peak came earlier.
    slope = (peaks[-1] - peaks[-2]) / (batches[-1] - batches[-2])
    return peaks[-1] + max(slope, 0.0) * (batch - batches[-1])


def growing_batches(
    sizes: Sequence[int],
    memory_share: float,
    measure: Callable[[int], Any],
) -> Iterator[tuple[int, Any, str]]:
    """Measures growing batches while they fit into ``memory_share`` of the free memory.

    A batch that would not fit isn't tried, because the system may end the process.

    Args:
        sizes: of batches, growing.
        memory_share: of what is free before each batch.
        measure: called with a size.

    Yields:
        ``(size, measure(size), "")`` for each size that fits, and at last ``(size,
        None, reason)`` for the first that doesn't.
    """
    batches: list[int] = []
    peaks: list[float] = []

    for size in sizes:
        result = None
        reason = ""
        expected = expected_bytes(batches, peaks, size)
        # What the process has had already, it can have again.
        allowed = (peak_bytes() or 0) + memory_share * available_bytes()

        if expected is not None and expected > allowed:
            reason = f"needs {expected / 2**30:.1f} GiB; {allowed / 2**30:.1f} GiB may be used"
        else:
            try:
                result = measure(size)
            except Exception as error:
                if not out_of_memory(error):
                    raise

                reason = "out of memory"

        yield size, result, reason
        if reason:
            return

        if (peak := peak_bytes()) is not None:
            batches.append(size)
            peaks.append(float(peak))


# Names of exception classes. Other errors, such as JAX's, have RESOURCE_EXHAUSTED in
# the message.
_CLASSES = (
    "OutOfMemoryError",
    "ResourceExhaustedError",
    "MemoryError",
    "_ArrayMemoryError",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of any framework means that memory ran out."""
    named = any(cls.__name__ in _CLASSES for cls in type(error).__mro__)
    return named or "RESOURCE_EXHAUSTED" in str(error)


def is_cliff(batch: int, utterance_s: float | None, others, tolerance: float) -> bool:
    """Whether an utterance takes over ``tolerance`` longer than in a smaller batch.

    ``others`` are pairs of a batch size and seconds per utterance, None if it was not
    run.

    Source: the remarks on batches of 9 and of 96 in the thread on DeepMark's Deep
    Speech 2.
    """
    smaller = [
        seconds for size, seconds in others if size < batch and seconds is not None
    ]
    return utterance_s is not None and any(
        utterance_s > s * (1 + tolerance) for s in smaller
    )


def cliff_rings(batches: Sequence[float], values: Sequence[float]) -> list[Points]:
    """Returns rings around the points of a chart that are cliffs."""
    if not batches:
        return []

    rings = Points(
        x=batches,
        y=values,
        series="cliff: slower than in a smaller batch",
        symbol="ring",
        size=15,
        colour=CLIFF_COLOUR,
    )
    return [rings]
