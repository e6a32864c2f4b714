"""Samples how busy the devices are while something is measured."""

import csv
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tfasr.run_files import CPU_FILE, GPU_FILE
from tfasr.telemetry.utilisation import UtilisationSampler

PROCESS = "CPU, this process"
"""The processor's cores, as far as the measuring process kept them busy."""


@dataclass(frozen=True)
class DeviceUse:
    """A device while something was measured.

    Attributes:
        device: "GPU 0" and so on, or `PROCESS`, for which 100 % is all cores.
        seconds: of each sample, since the beginning.
        percent: how busy it was since the sample before.
        memory_bytes: the most that was taken of a GPU's; None for the processor.
    """

    device: str
    seconds: list[float] = field(default_factory=list)
    percent: list[float] = field(default_factory=list)
    memory_bytes: float | None = None

    @property
    def mean_percent(self) -> float | None:
        """How busy it was on average; None without a sample."""
        return sum(self.percent) / len(self.percent) if self.percent else None


@contextmanager
def watched_devices(found: list[DeviceUse]) -> Iterator[None]:
    """Watches the process every 0.03 s and GPUs every 0.1 s while the body runs.

    Args:
        found: gets the process, then every GPU that NVML tells of.
    """
    with tempfile.TemporaryDirectory() as folder:
        began_ms = time.time() * 1000
        with UtilisationSampler(Path(folder)):
            yield
        processes = _rows(Path(folder) / CPU_FILE)
        found.append(_use(PROCESS, processes, "process_percent", began_ms))
        by_gpu: dict[str, list[dict[str, str]]] = {}
        for row in _rows(Path(folder) / GPU_FILE):
            by_gpu.setdefault(row["gpu"], []).append(row)
        for gpu in sorted(by_gpu, key=int):
            found.append(_use(f"GPU {gpu}", by_gpu[gpu], "utilisation_percent", began_ms))


def _use(device: str, rows: list[dict[str, str]], column: str, began_ms: float) -> DeviceUse:
    def numbers(name: str, of: Callable[[float], float] = float) -> list[float]:
        return [of(float(row[name])) for row in rows]

    memory = max(numbers("memory_used_bytes")) if rows and "memory_used_bytes" in rows[0] else None
    seconds = numbers("time_ms", lambda ms: (ms - began_ms) / 1000)
    return DeviceUse(device, seconds, numbers(column), memory)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
