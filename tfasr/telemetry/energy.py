"""Samples energy counters during a run: RAPL for processors, NVML for GPUs.

Counters only count up; `tfasr.tta.energy` reads ``energy.csv`` and computes what each
interval of a run used. A machine without counters gets no file, and a counter that
fails during a run is left out of that sample: energy must never end a training.

`Sampler` and `SampleFile` are also used by the other samplers of this package.
"""

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.kit.files import ENERGY_FILE, write_whole
from tfasr.telemetry.machine import text
from tfasr.telemetry.system import nvml
from tfasr.tta.energy import ENERGY_COLUMNS

# Seconds between two samples.
ENERGY_INTERVAL_S = 0.5

# Seconds between a `SampleFile`'s writes; a kill loses at most these samples.
FLUSH_S = 1.0


log = logging.getLogger("tfasr")

# Where Linux shows the processors' energy counters.
POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class EnergyCounter:
    """An energy counter of a processor, a memory or a GPU.

    Attributes:
        name: "package-0", "package-0/dram" or "gpu0"; "gpu0-power" integrates power
            samples.
        read: returns joules since some time in the past; may raise.
        range_joules: where the counter restarts from 0; None if it never does.
    """

    name: str
    read: Callable[[], float]
    range_joules: float | None = None


def rapl_zones(root: Path = POWERCAP) -> dict[str, Path]:
    """Returns the folders of the processors' and memories' energy counters, by name.

    Cores and graphics, which are parts of a package, and "psys", which contains
    packages, are left out to count nothing twice.

    Args:
        root: the folder that Linux calls /sys/class/powercap.

    Source: the Linux kernel's Documentation/power/powercap/powercap.rst.
    """
    zones = {}
    for folder in sorted(root.glob("intel-rapl:*")):
        name = text(folder / "name")
        if name.startswith("package"):
            zones[name] = folder
        elif name == "dram":
            # The zone "intel-rapl:0:1" is in the package "intel-rapl:0".
            package = text(root / folder.name.rpartition(":")[0] / "name")
            zones[f"{package or folder.name}/dram"] = folder

    return zones


def rapl_counters(root: Path = POWERCAP) -> list[EnergyCounter]:
    """Returns the counters of `rapl_zones` that this process may read.

    On most systems root alone may: `rapl_access` says how to change that. A counter
    whose range is unknown can't be used, since its restarts would look like negative
    energy.

    Args:
        root: the folder that Linux calls /sys/class/powercap.
    """
    counters = []
    for name, folder in rapl_zones(root).items():
        with contextlib.suppress(OSError, ValueError):
            # Whether it can be read shows only when it is.
            _microjoules(folder / "energy_uj")
            limit = _microjoules(folder / "max_energy_range_uj")
            read = functools.partial(_microjoules, folder / "energy_uj")
            counters.append(EnergyCounter(name, read, limit))

    return counters


def gpu_handles(library: Any) -> list[Any]:
    """Returns NVML's handle of each GPU, in the order of their numbers.

    Args:
        library: pynvml, or None without NVML.
    """
    if library is None:
        return []

    count = library.nvmlDeviceGetCount()

    return [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]


def gpu_counters(library: Any) -> list[EnergyCounter]:
    """Returns each GPU's energy counter, else its integrated power.

    A GPU that offers neither is left out. GPUs before Volta have no counter, only the
    power of the moment.

    Args:
        library: pynvml, or None without NVML.
    """
    counters = []
    for index, handle in enumerate(gpu_handles(library)):
        # The first of them that works.
        reads = {
            f"gpu{index}": functools.partial(_total_joules, library, handle),
            f"gpu{index}-power": _IntegratedPower(library, handle),
        }
        for name, read in reads.items():
            # NVML's error class exists only with pynvml.
            with contextlib.suppress(Exception):
                read()
                counters.append(EnergyCounter(name, read))
                break

    return counters


class Sampler:
    """Calls `look` regularly in a thread, and at the start and the end.

    A subclass calls `begin` and `stop`.

    Args:
        name: the thread's name.
        every_s: seconds between two looks.
    """

    def __init__(self, name: str, every_s: float):
        self._every_s = every_s
        self._stopped = threading.Event()
        # A daemon doesn't keep a process alive whose main thread has died.
        self._thread = threading.Thread(
            target=self._keep_looking, name=name, daemon=True
        )

    def look(self) -> None:
        """Takes a sample.

        It is called by the thread, and by `begin` and `stop` in their callers' thread,
        but never by two at once.
        """
        raise NotImplementedError

    def begin(self) -> None:
        """Takes the first sample and starts the thread."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and takes the last sample; does nothing when called again."""
        if self._thread.ident is not None and not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            self.look()

    def _keep_looking(self) -> None:
        """Looks at regular times until the sampler is stopped."""
        while not self._stopped.wait(self._every_s):
            self.look()


class CounterSampler(Sampler):
    """Reads energy counters in each `look`.

    Args:
        name: the thread's name.
        every_s: seconds between two looks.

    Attributes:
        held: what is closed at the end, such as NVML and files.
        library: pynvml, or None without NVML.
        counters: those that could be read at the start.
    """

    def __init__(self, name: str, every_s: float):
        super().__init__(name, every_s)
        self.held = contextlib.ExitStack()
        self.library, _ = self.held.enter_context(nvml())
        self.counters = rapl_counters(POWERCAP)

        # A GPU that vanishes must not end a run.
        with contextlib.suppress(Exception):
            self.counters += gpu_counters(self.library)

    def readings(self) -> dict[str, tuple[float, float | None]]:
        """Returns each counter's joules, and where it restarts from 0 (None: never).

        A counter that can't be read at this moment is missing.
        """
        readings = {}
        for counter in self.counters:
            # NVML's error class exists only with pynvml.
            with contextlib.suppress(Exception):
                readings[counter.name] = round(counter.read(), 6), counter.range_joules

        return readings

    def stop(self) -> None:
        """Takes the last sample, and closes NVML and the files."""
        super().stop()
        with contextlib.suppress(OSError):
            self.held.close()


class SampleFile:
    """Appends lines of numbers; if the disk is full, it warns and writes no more.

    An existing file keeps its columns, and gets a heading if a killed run left it
    without one. A process that was killed loses at most the last second.

    Args:
        path: the file.
        columns: the names of all values of a line.
    """

    def __init__(self, path: Path, columns: Sequence[str]):
        self._path = path
        self._columns = list(columns)
        self._file = None

        # Lines since the last `flush`. They aren't in the file's buffer, which a fork
        # would write too.
        self._lines: list[str] = []
        self._flushed_s = time.monotonic()

        try:
            self._chosen = self._prepared()
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            self._give_up(error)

    @property
    def works(self) -> bool:
        """Whether the file can still be written."""
        return self._file is not None

    def add(self, *values: object) -> None:
        """Adds a line.

        Args:
            values: one for each of the columns that the file was made with. A file with
                fewer columns takes only theirs.
        """
        if self._file is None:
            return

        cells = [str(values[index]) for index in self._chosen]
        self._lines.append(",".join(cells) + "\n")
        if time.monotonic() - self._flushed_s >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Writes all lines so far, so that a killed process keeps them.

        They are then in the operating system's cache: only a crash of the whole machine
        could lose them.
        """
        lines = self._lines
        self._lines = []
        self._flushed_s = time.monotonic()

        try:
            if self._file is not None:
                self._file.write("".join(lines))
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Writes what is left and closes the file."""
        self.flush()
        # `flush` has reported any error.
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()

    def _prepared(self) -> list[int]:
        """Gives the file a heading if it lacks one; returns which columns it has.

        A line that a killed process left incomplete is removed. A file of an older
        session may have fewer columns: each later line has those.
        """
        content = b""
        if self._path.exists():
            content = self._path.read_bytes()

        lines = content[: content.rfind(b"\n") + 1]
        first = lines.split(b"\n", 1)[0].decode("utf-8", "replace")

        # A file without a heading begins with a time, and may have fewer cells.
        if not lines or first[:1].isdigit():
            heading = self._columns
            if lines:
                heading = heading[: first.count(",") + 1]

            write_whole(self._path, ",".join(heading).encode() + b"\n" + lines)
            return list(range(len(heading)))

        if len(lines) < len(content):
            os.truncate(self._path, len(lines))

        chosen = [name for name in first.split(",") if name in self._columns]

        return [self._columns.index(name) for name in chosen]

    def _give_up(self, error: OSError) -> None:
        """Logs why the file can't be written, and writes no more.

        Samples must never end a run.
        """
        log.warning("%s gets no more samples: %s.", self._path, error.strerror or error)
        file = self._file
        self._file = None

        if file is not None:
            # The buffer doesn't fit on the disk either.
            with contextlib.suppress(OSError):
                file.close()


class EnergySampler(CounterSampler):
    """Writes ``energy.csv`` every half a second, if any counter can be read.

    Each line has ``time_ms, session, mono_s, counter, joules, range_joules``, on the
    ledger's clocks; all counters of a sample have the same time. Samples go to the
    operating system at once, so a killed run keeps them. A resumed run appends. Use it
    as a context manager for a session.

    Args:
        run_dir: the run's folder.
        session: the number of the session, as in the ledger.
    """

    def __init__(self, run_dir: Path, session: int):
        super().__init__("energy", ENERGY_INTERVAL_S)
        # The file is only made if there is a counter.
        self._path = run_dir / ENERGY_FILE
        self._session = session

    def __enter__(self) -> "EnergySampler":
        """Begins to sample, if there is something to sample."""
        if self.counters:
            file = SampleFile(self._path, ENERGY_COLUMNS)
            self._file = self.held.enter_context(contextlib.closing(file))
            self.begin()

        return self

    def __exit__(self, *_) -> None:
        """Takes the last sample."""
        self.stop()

    def look(self) -> None:
        """Writes a line for each counter that can be read now."""
        time_ms = f"{time.time() * 1000:.0f}"
        mono_s = f"{time.monotonic():.6f}"

        for name, (joules, range_joules) in self.readings().items():
            limit = ""
            if range_joules is not None:
                limit = f"{range_joules:.6f}"

            self._file.add(time_ms, self._session, mono_s, name, f"{joules:.6f}", limit)

        self._file.flush()


def _total_joules(library: Any, handle: Any) -> float:
    """Returns the joules that a GPU has used since its driver was loaded.

    It raises NVML's own error for a GPU without a counter.
    """
    return library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000


class _IntegratedPower:
    """Adds up a GPU's energy from power samples, by the trapezoidal rule.

    It stands in for the counter that GPUs before Volta lack. What happens between two
    samples is missed.

    Args:
        library: pynvml.
        handle: NVML's, of the GPU.
    """

    def __init__(self, library: Any, handle: Any):
        self._library = library
        self._handle = handle
        # Time and watts of the last sample.
        self._before: tuple[float, float] | None = None
        self._joules = 0.0

    def __call__(self) -> float:
        """Takes a sample of the power; returns the joules since the first one."""
        power_w = self._library.nvmlDeviceGetPowerUsage(self._handle) / 1000
        now_s = time.monotonic()
        if self._before is not None:
            then_s, then_w = self._before
            mean_w = (power_w + then_w) / 2
            self._joules += (now_s - then_s) * mean_w

        self._before = now_s, power_w

        return self._joules


def rapl_access(root: Path = POWERCAP) -> str:
    """Says whether the processors' energy can be read; if not, why and what to do.

    Args:
        root: where Linux shows the counters.

    Returns:
        A part of a sentence that begins with "readable", "not readable" or "n/a".
    """
    zones = rapl_zones(root)
    if not zones:
        return (
            "n/a: no RAPL counters, as in most virtual machines and containers; on "
            "your own host: modprobe intel_rapl_msr"
        )

    readable = [counter.name for counter in rapl_counters(root)]
    refused = [name for name in zones if name not in readable]
    if refused:
        return (
            f"not readable: {', '.join(refused)}. As root: chmod a+r "
            f"{root}/intel-rapl:*/energy_uj (until the next boot)"
        )

    return f"readable: {', '.join(zones)}"


def _microjoules(path: Path) -> float:
    """Returns the joules in a file of microjoules.

    Raises:
        OSError: if it can't be read.
        ValueError: if it has no number.
    """
    return int(path.read_text(encoding="ascii")) / 1e6
