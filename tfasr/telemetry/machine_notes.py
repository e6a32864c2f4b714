"""What a worker of a cluster notes of its machine: use of processors and GPUs, energy counters."""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tfasr.telemetry.energy import POWERCAP, EnergyCounter, gpu_counters, rapl_counters
from tfasr.telemetry.nvml import nvml
from tfasr.telemetry.process_tree import ProcessTree

EVERY_S = 5.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Note = Callable[[str, Any], None]


def host_id() -> str:
    """Returns what processes of one host share and others do not; containers on it have it too."""
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text(encoding="ascii").strip()
    return socket.gethostname()


class MachineNotes:
    """Notes ``worker_machine`` once and ``worker_sample`` every five seconds, at both ends too.

    ``worker_machine``: ``{"host", "hostname", "counters"}``, the counters' identities by their
    names: of a GPU its UUID, so that two workers of a host do not count it twice.
    ``worker_sample``: ``{"cpu_percent", "process_percent", "gpu_percent", "energy"}``: how busy all
    cores were since the sample before and how busy this process and its children kept them, 100 %
    being all cores (None in the first); of each GPU that NVML shows its utilisation now; joules and
    range of each counter.

    Args:
        note: writes a key and its value with the time.
        interval_s: seconds between two samples.
    """

    def __init__(self, note: Note, *, root: Path = POWERCAP, interval_s: float = EVERY_S):
        self._note = note
        self._interval_s = interval_s
        self._held = contextlib.ExitStack()
        self._library = self._held.enter_context(nvml())
        counters = rapl_counters(root)
        with contextlib.suppress(Exception):  # a GPU that vanishes must not end a run
            counters += gpu_counters(self._library)
        self._counters: list[EnergyCounter] = counters
        self._tree = ProcessTree()
        self._before: Any = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="machine", daemon=True)
        identities = {counter.name: self._identity(counter.name) for counter in counters}
        note(
            "worker_machine",
            {"host": host_id(), "hostname": socket.gethostname(), "counters": identities},
        )
        self._look()
        self._thread.start()

    def stop(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            self._look()
            self._held.close()

    def _keep_looking(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._look()

    def _look(self) -> None:
        energy = {}
        for counter in self._counters:
            with contextlib.suppress(Exception):  # NVML's own class is known only with NVML
                energy[counter.name] = [round(counter.read(), 6), counter.range_joules]
        cpu, process = self._processors()
        sample = {"cpu_percent": cpu, "process_percent": process}
        with contextlib.suppress(OSError, ValueError):  # a full disk is the training's to tell
            self._note("worker_sample", {**sample, "gpu_percent": self._gpus(), "energy": energy})

    def _processors(self) -> tuple[float | None, float | None]:
        # psutil.cpu_percent keeps one last reading for the whole process, and others of its
        # callers here ask every few milliseconds.
        now, before = psutil.cpu_times(), self._before
        self._before = now
        process = self._tree.percent()
        if before is None:
            return None, None
        spent = sum(_busy_and_idle(now)) - sum(_busy_and_idle(before))
        busy = _busy_and_idle(now)[0] - _busy_and_idle(before)[0]
        share = 100 * min(max(busy / spent, 0.0), 1.0) if spent > 0 else 0.0
        return round(share, 2), round(process, 2)

    def _gpus(self) -> list[float]:
        library, found = self._library, []
        with contextlib.suppress(Exception):
            for index in range(0 if library is None else library.nvmlDeviceGetCount()):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                found.append(library.nvmlDeviceGetUtilizationRates(handle).gpu)
        return found

    def _identity(self, name: str) -> str:
        if not name.startswith("gpu"):
            return name
        index = int(name.removeprefix("gpu").removesuffix("-power"))
        with contextlib.suppress(Exception):
            identity = self._library.nvmlDeviceGetUUID(
                self._library.nvmlDeviceGetHandleByIndex(index)
            )
            return identity.decode() if isinstance(identity, bytes) else str(identity)
        return name


def _busy_and_idle(times: Any) -> tuple[float, float]:
    parts: Mapping[str, float] = times._asdict()
    idle = parts["idle"] + parts.get("iowait", 0.0)
    guests = parts.get("guest", 0.0) + parts.get("guest_nice", 0.0)  # counted as user's already
    return sum(parts.values()) - guests - idle, idle
