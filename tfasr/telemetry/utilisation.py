"""Samples CPU and GPU utilisation beside a run, into files of their own."""

import contextlib
import threading
import time
from pathlib import Path

import psutil

from tfasr.run_files import CPU_FILE, GPU_FILE
from tfasr.telemetry.nvml import nvml
from tfasr.telemetry.process_tree import ProcessTree
from tfasr.telemetry.sample_file import SampleFile

CPU_INTERVAL_S = 0.03
GPU_INTERVAL_S = 0.1


class UtilisationSampler:
    """Writes ``cpu.csv`` every 0.03 s and, where NVML works, ``gpu.csv`` every 0.1 s.

    ``cpu.csv``: ``time_ms, cpu_percent, process_percent``, since the sample before: how busy all
    cores were, and how busy this process and its children kept them; what is between the two is
    the work of others, and 100 % is all cores in both. ``gpu.csv``:
    ``time_ms, gpu, utilisation_percent, memory_used_bytes, power_w``, a line per device. Use it as
    a context manager.

    Args:
        run_dir: where the files go; a resumed run appends.

    Source: the paper, section 4 and Figure 8 (a sample every 0.03 s).
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
        tree = ProcessTree()
        columns = ("time_ms", "cpu_percent", "process_percent")
        with contextlib.closing(SampleFile(self._run_dir / CPU_FILE, columns)) as file:
            while file.works and not self._stop.wait(CPU_INTERVAL_S):
                now_ms = f"{time.time() * 1000:.0f}"
                file.add(now_ms, psutil.cpu_percent(), f"{tree.percent():.1f}")

    def _sample_gpus(self) -> None:
        with nvml() as library:
            if library is None:
                return
            count = library.nvmlDeviceGetCount()
            handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            columns = ("time_ms", "gpu", "utilisation_percent", "memory_used_bytes", "power_w")
            with contextlib.closing(SampleFile(self._run_dir / GPU_FILE, columns)) as file:
                while file.works and not self._stop.wait(GPU_INTERVAL_S):
                    for index, handle in enumerate(handles):
                        used = library.nvmlDeviceGetUtilizationRates(handle).gpu
                        memory = library.nvmlDeviceGetMemoryInfo(handle).used
                        power_w = library.nvmlDeviceGetPowerUsage(handle) / 1000
                        file.add(f"{time.time() * 1000:.0f}", index, used, memory, power_w)
