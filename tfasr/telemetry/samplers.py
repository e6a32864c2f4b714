"""Samples CPU and GPU utilisation during a run, into files or a worker's events.

`UtilisationSampler` is for the run's own process, `MachineNotes` for the other workers
of a run, whose events reach the ledger through the chief. `tfasr.tta` and reports read
both; what can't be sampled is missing there, never 0.
"""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tfasr.kit.files import CPU_FILE, GPU_FILE
from tfasr.telemetry.energy import CounterSampler, SampleFile, gpu_handles
from tfasr.telemetry.gpu import gpu_state
from tfasr.telemetry.host import ProcessorTime
from tfasr.telemetry.system import nvml
from tfasr.tta.gpus import GPU_STATE

# A worker's samples are events of a ledger, so there are fewer of them than in files.
EVERY_S = 5.0

# Names the host since it was started; its containers share it.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# The paper sampled processors every 0.03 s.
CPU_INTERVAL_S = 0.03
GPU_INTERVAL_S = 0.1

# `gpu_state` asks six more questions about each GPU, and its answers change slowly.
GPU_STATE_S = 1.0


class ProcessTree:
    """Measures how much of the machine's processors this process and its children use.

    Children are looked for every ten seconds; those that start and end in between count
    once they were waited for.
    """

    def __init__(self) -> None:
        # psutil may not know the number, as in some containers.
        self._cores = psutil.cpu_count() or 1
        self._processor_time = ProcessorTime()

        # Seconds of all processes at the last call, and when that was.
        self._used_s = self._processor_time.ran_s()
        self._at_s = time.monotonic()

    def percent(self) -> float:
        """Returns the share of all processors' time since the last call, in percent.

        100 is all cores for the whole time.
        """
        used_s = self._processor_time.ran_s()
        at_s = time.monotonic()
        elapsed_s = at_s - self._at_s

        # While a child that ended is waited for, its time may count twice or not at
        # all.
        spent_s = max(used_s - self._used_s, 0.0)
        self._used_s = used_s
        self._at_s = at_s
        if elapsed_s > 0:
            return min(100.0, 100 * spent_s / elapsed_s / self._cores)

        return 0.0


def host_id() -> str:
    """Returns an id shared by all processes of a host, including those in containers.

    Where Linux has none, it is the host's name, which a container changes.
    """
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii").strip()

    return socket.gethostname()


class MachineNotes(CounterSampler):
    """Records ``worker_machine`` once, and ``worker_sample`` every 5 s.

    ``worker_machine``: ``{"host", "hostname", "counters"}``; ``counters`` maps each
    counter's name to an id. A GPU's id is its UUID, so two workers of a host don't
    count its energy twice.

    ``worker_sample``, also at the start and the end: ``{"cpu_percent",
    "process_percent", "gpu_percent", "energy"}``: the use of all cores since the
    previous sample, in total and by this process and its children (100 % is all cores;
    None in the first sample), each GPU's current utilisation, and for each counter its
    joules and the value at which it restarts from 0 (None if it never does).

    Args:
        note: is called with an event's key and value, and adds the time.
    """

    def __init__(self, note: Callable[[str, Any], None]):
        super().__init__("machine", EVERY_S)
        self._note = note
        self._tree = ProcessTree()
        # psutil's times at the last sample.
        self._before: Any = None

        names = [counter.name for counter in self.counters]
        note(
            "worker_machine",
            {
                "host": host_id(),
                "hostname": socket.gethostname(),
                "counters": {name: self._identity(name) for name in names},
            },
        )
        self.begin()

    def look(self) -> None:
        """Takes a sample and hands it to ``note``."""
        energy = {name: list(reading) for name, reading in self.readings().items()}
        cpu, process = self._processors()
        sample = {
            "cpu_percent": cpu,
            "process_percent": process,
            "gpu_percent": self._gpus(),
            "energy": energy,
        }

        # Training itself reports a full disk.
        with contextlib.suppress(OSError, ValueError):
            self._note("worker_sample", sample)

    def _processors(self) -> tuple[float | None, float | None]:
        """Returns the use of all cores since the last call, by all and by this process.

        Both are percent; None in the first call.
        """
        # psutil.cpu_percent shares its last reading between all callers in this
        # process.
        now = psutil.cpu_times()
        before = self._before
        self._before = now
        process = self._tree.percent()
        if before is None:
            return None, None

        busy_then, idle_then = _busy_and_idle(before)
        busy_now, idle_now = _busy_and_idle(now)
        busy = busy_now - busy_then
        spent = busy + idle_now - idle_then

        # Two samples may be closer than the kernel's clock ticks.
        share = 0.0
        if spent > 0:
            share = 100 * min(max(busy / spent, 0.0), 1.0)

        return round(share, 2), round(process, 2)

    def _gpus(self) -> list[float]:
        """Returns each GPU's utilisation in percent; [] without NVML."""
        percents: list[float] = []
        with contextlib.suppress(Exception):
            for handle in gpu_handles(self.library):
                percents.append(self.library.nvmlDeviceGetUtilizationRates(handle).gpu)

        return percents

    def _identity(self, name: str) -> str:
        """Returns a counter's id on this host: a GPU's UUID, or its name.

        Args:
            name: of the counter, such as "package-0" or "gpu0-power".
        """
        if not name.startswith("gpu"):
            return name

        index = int(name.removeprefix("gpu").removesuffix("-power"))

        with contextlib.suppress(Exception):
            handle = self.library.nvmlDeviceGetHandleByIndex(index)
            identity = self.library.nvmlDeviceGetUUID(handle)
            # Older versions of pynvml return bytes.
            if isinstance(identity, bytes):
                identity = identity.decode()

            return str(identity)

        return name


def _busy_and_idle(times: Any) -> tuple[float, float]:
    """Returns the seconds in which all cores worked, and in which they were idle.

    Args:
        times: what `psutil.cpu_times` returned. Waiting for a disk counts as idle.
    """
    parts: Mapping[str, float] = times._asdict()
    idle = parts["idle"] + parts.get("iowait", 0.0)
    # Already counted as user time.
    guests = parts.get("guest", 0.0) + parts.get("guest_nice", 0.0)

    return sum(parts.values()) - guests - idle, idle


class UtilisationSampler:
    """Samples into ``cpu.csv`` and, if NVML works, into ``gpu.csv``.

    ``cpu.csv``, every 0.03 s: ``time_ms, cpu_percent, process_percent``: the use of all
    cores since the previous sample, in total and by this process and its children; 100
    % is all cores.

    ``gpu.csv``, every 0.1 s: ``time_ms, gpu, utilisation_percent, memory_used_bytes,
    power_w``, one line per device, then `tfasr.tta.gpus.GPU_STATE`, read once a second.

    A resumed run appends. Use it as a context manager.

    Args:
        run_dir: the run's folder.

    Source: the paper, section 4 and Figure 8 (a sample every 0.03 s).
    """

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir

        # Each file has another interval, and so another thread.
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._sample_cpu, name="cpu-sampler", daemon=True),
            threading.Thread(target=self._sample_gpus, name="gpu-sampler", daemon=True),
        ]

    def __enter__(self) -> "UtilisationSampler":
        """Begins to sample."""
        for thread in self._threads:
            thread.start()

        return self

    def __exit__(self, *_) -> None:
        """Waits until both files are complete."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _sample_cpu(self) -> None:
        """Writes ``cpu.csv`` until the run ends or the disk is full."""
        # The first call only begins to count.
        psutil.cpu_percent()
        tree = ProcessTree()
        columns = ("time_ms", "cpu_percent", "process_percent")

        with contextlib.closing(SampleFile(self._run_dir / CPU_FILE, columns)) as file:
            while file.works and not self._stop.wait(CPU_INTERVAL_S):
                now_ms = f"{time.time() * 1000:.0f}"
                file.add(now_ms, psutil.cpu_percent(), f"{tree.percent():.1f}")

    def _sample_gpus(self) -> None:
        """Writes ``gpu.csv`` until the run ends or the disk is full."""
        with nvml() as (library, _):
            if library is None:
                return

            handles = gpu_handles(library)
            columns = [
                "time_ms",
                "gpu",
                "utilisation_percent",
                "memory_used_bytes",
                "power_w",
                *GPU_STATE,
            ]

            # Of each GPU, and when they were last asked for.
            states: list[tuple[float, ...]] = []
            looked_s = -math.inf

            with contextlib.closing(
                SampleFile(self._run_dir / GPU_FILE, columns)
            ) as file:
                while file.works and not self._stop.wait(GPU_INTERVAL_S):
                    if time.monotonic() - looked_s >= GPU_STATE_S:
                        looked_s = time.monotonic()
                        states = [gpu_state(library, handle) for handle in handles]

                    for index, handle in enumerate(handles):
                        used = library.nvmlDeviceGetUtilizationRates(handle).gpu
                        memory = library.nvmlDeviceGetMemoryInfo(handle).used
                        power_w = library.nvmlDeviceGetPowerUsage(handle) / 1000
                        now_ms = f"{time.time() * 1000:.0f}"
                        file.add(now_ms, index, used, memory, power_w, *states[index])
