"""Samples CPU and GPU utilisation beside a run, into files of their own."""

import threading
import time
from pathlib import Path
from typing import TextIO

import psutil

from tfasr.run_files import CPU_FILE, GPU_FILE
from tfasr.telemetry.nvml import nvml

CPU_INTERVAL_S = 0.03
GPU_INTERVAL_S = 0.1


class UtilisationSampler:
    """Writes ``cpu.csv`` every 0.03 s and, where NVML works, ``gpu.csv`` every 0.1 s.

    ``cpu.csv``: ``time_ms, cpu_percent`` over all cores since the sample before. ``gpu.csv``:
    ``time_ms, gpu, utilisation_percent, memory_used_bytes, power_w``, a line per device. Use it as
    a context manager.

    Args:
        run_dir: where the files go; a resumed run appends.
    """

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._sample_cpu, name="cpu-sampler", daemon=True),
            threading.Thread(target=self._sample_gpus, name="gpu-sampler", daemon=True),
        ]

    def __enter__(self) -> "UtilisationSampler":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _sample_cpu(self) -> None:
        psutil.cpu_percent()
        with _opened(self._run_dir / CPU_FILE, "time_ms,cpu_percent") as file:
            while not self._stop.wait(CPU_INTERVAL_S):
                file.write(f"{time.time() * 1000:.0f},{psutil.cpu_percent()}\n")

    def _sample_gpus(self) -> None:
        with nvml() as library:
            if library is None:
                return
            count = library.nvmlDeviceGetCount()
            handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            header = "time_ms,gpu,utilisation_percent,memory_used_bytes,power_w"
            with _opened(self._run_dir / GPU_FILE, header) as file:
                while not self._stop.wait(GPU_INTERVAL_S):
                    for index, handle in enumerate(handles):
                        used = library.nvmlDeviceGetUtilizationRates(handle).gpu
                        memory = library.nvmlDeviceGetMemoryInfo(handle).used
                        power_w = library.nvmlDeviceGetPowerUsage(handle) / 1000
                        now_ms = time.time() * 1000
                        file.write(f"{now_ms:.0f},{index},{used},{memory},{power_w}\n")


def _opened(path: Path, header: str) -> TextIO:
    """Opens a file for appending; a new one begins with its header."""
    begins = not path.exists()
    file = path.open("a", encoding="utf-8")
    if begins:
        file.write(header + "\n")
    return file
