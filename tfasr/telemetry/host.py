"""What the machine gives this process: stolen, throttled and awaited processors.

A virtual machine, a container with a quota or a second program can take most of a run's
processors without a trace in its ledger. `HostSampler` writes the operating system's
own counters of that into ``host.csv`` once a second; `tfasr.tta.host` reads the file
and says what each interval of a run got. Everything here counts up from some time in
the past; what a machine doesn't offer is empty in the file and None in memory, never 0.

docs/quiet_machine.md shows how well the counters find disturbances of known size.
"""

import contextlib
import dataclasses
import functools
import os
import time
from pathlib import Path
from typing import Any

import psutil

from tfasr.kit.files import HOST_FILE
from tfasr.kit.process import control_groups
from tfasr.telemetry.energy import SampleFile, Sampler
from tfasr.telemetry.machine import ROOT
from tfasr.tta.host import HOST_COLUMNS, HostReading

# A look takes 0.2 ms (benchmarks/host_cost.py).
HOST_INTERVAL_S = 1.0

# Looking for new children reads the whole process table, which takes milliseconds.
CHILDREN_EVERY_S = 10.0

# Clock ticks of 10 ms are then 1 % of two processors.
LOOK_S = 0.5

NANOSECONDS = 1e-9
MICROSECONDS = 1e-6


class ProcessorTime:
    """Adds up the processor time that this process and its children got and awaited.

    Linux counts both for each thread in ``schedstat``: how long it ran, and how long it
    was ready to run while something else had the processor. A thread or a child that
    has ended keeps what it had when it was last looked at.

    Args:
        root: the folder with ``proc``.

    Attributes:
        process: this process.

    Source: the Linux kernel's Documentation/scheduler/sched-stats.rst.
    """

    def __init__(self, root: Path = ROOT):
        self._proc = root / "proc"
        self.process = psutil.Process()

        # By process and thread; those that have ended stay.
        self._waited_ns: dict[tuple[int, int], int] = {}

        # Running children, and when they were last looked for.
        self._children: list[psutil.Process] = []
        self._looked_s = -CHILDREN_EVERY_S

    def ran_s(self) -> float:
        """Returns the processor seconds of this process and all its children."""
        return self.ran_and_kernel_s()[0]

    def ran_and_kernel_s(self) -> tuple[float, float]:
        """Returns these seconds, and those of them in which the kernel worked.

        It works for a process when that reads or writes files or needs memory.
        """
        # The system counts children once they were waited for; running ones are added.
        own = os.times()
        ran_s = time.process_time() + own.children_user + own.children_system
        kernel_s = own.system + own.children_system

        # A child that has ended meanwhile is left out.
        for child in self._running_children():
            with contextlib.suppress(psutil.Error):
                times = child.cpu_times()
                ran_s += times.user + times.system
                kernel_s += times.system

        return ran_s, kernel_s

    def waited_s(self) -> float | None:
        """Returns the seconds that threads were ready to run and had no processor.

        It is None where the kernel doesn't count them.
        """
        seen = False
        pids = [child.pid for child in self._running_children()]
        for pid in [os.getpid(), *pids]:
            # Plain strings: a training has a hundred threads, and pathlib takes longer
            # than they.
            threads = f"{self._proc}/{pid}/task"
            try:
                names = os.listdir(threads)  # noqa: PTH208
            # The child has ended, or this isn't Linux.
            except OSError:
                continue

            for name in names:
                # Time on a processor, time waiting for one, and number of time slices.
                fields = _content(f"{threads}/{name}/schedstat").split()
                if len(fields) == 3:
                    self._waited_ns[pid, int(name)] = int(fields[1])
                    seen = True

        if not seen:
            return None

        return sum(self._waited_ns.values()) * NANOSECONDS

    def _running_children(self) -> list[psutil.Process]:
        """Returns the children that ran at most ten seconds ago."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= CHILDREN_EVERY_S:
            self._looked_s = now_s
            with contextlib.suppress(psutil.Error):
                self._children = self.process.children(recursive=True)

        return self._children


def _content(path: str) -> str:
    """Returns a small file's text, or "" if it can't be read.

    It avoids pathlib, since it reads a file for each of a training's hundred threads
    every second.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read().decode("ascii", "replace")
    except OSError:
        return ""


# Files are looked for once: a process stays in its control group, and a look must be
# cheap.
@functools.cache
def _quota_files(root: Path) -> list[str]:
    """Returns the files with the times for which quotas held this process back."""
    return [str(group / "cpu.stat") for group in control_groups("cpu", root)]


@functools.cache
def _pressure_file(resource: str, root: Path) -> str:
    """Returns the pressure file of the innermost control group, else of the machine."""
    files = [group / f"{resource}.pressure" for group in control_groups(resource, root)]
    files = [file for file in files if file.is_file()]
    # A group's folder is within those of its parents.
    of_machine = root / "proc" / "pressure" / resource

    return str(max(files, key=lambda file: len(file.parts), default=of_machine))


@functools.cache
def _throttle_files(root: Path) -> list[str]:
    """Returns a file for each core that counts how often heat slowed it down."""
    cpus = root / "sys" / "devices" / "system" / "cpu"
    files = cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    return [str(file) for file in files]


def throttled_s(root: Path = ROOT) -> float | None:
    """Returns the processor seconds for which quotas held this process back.

    It is None without control groups.
    """
    most_s = None
    for file in _quota_files(root):
        for line in _content(file).splitlines():
            name, _, value = line.partition(" ")
            if name == "throttled_usec":  # version 2
                seconds = int(value) * MICROSECONDS
            elif name == "throttled_time":  # version 1
                seconds = int(value) * NANOSECONDS
            else:
                continue

            # A parent's quota holds its children back too, so the groups' times
            # overlap.
            most_s = seconds if most_s is None else max(most_s, seconds)

    return most_s


def stalled_s(resource: str, root: Path = ROOT) -> float | None:
    """Returns the seconds in which some process waited for "memory" or "io".

    They are those of this process's control group, or of the whole machine where groups
    have none.

    Source: the Linux kernel's Documentation/accounting/psi.rst.
    """
    for line in _content(_pressure_file(resource, root)).splitlines():
        kind, *fields = line.split()
        for field in fields:
            name, _, value = field.partition("=")
            if kind == "some" and name == "total":
                return int(value) * MICROSECONDS

    return None


def thermal_throttles(root: Path = ROOT) -> int | None:
    """Returns how often cores were slowed down because of their temperature."""
    texts = [_content(file).strip() for file in _throttle_files(root)]
    counts = [int(count) for count in texts if count.isdigit()]

    if not counts:
        return None

    return sum(counts)


def read_host(processor_time: ProcessorTime, root: Path = ROOT) -> HostReading:
    """Reads all counters at once, within a millisecond of each other.

    Args:
        processor_time: remembers the threads and children that have ended.
        root: the folder with ``proc`` and ``sys``.
    """
    own = _times_of_own_processors()
    busy_s = sum(_busy_s(times) for times in own)
    # Only Linux knows what the hypervisor gave to other machines.
    stolen_s = None
    if hasattr(own[0], "steal"):
        stolen_s = sum(times.steal for times in own)

    # What a system doesn't count stays None.
    involuntary = None
    with contextlib.suppress(psutil.Error, AttributeError, NotImplementedError):
        involuntary = processor_time.process.num_ctx_switches().involuntary

    faults = None
    with contextlib.suppress(ValueError, IndexError):
        # The 12th field of the line, the tenth after the command in parentheses.
        stat = _content(f"{root}/proc/self/stat")
        faults = int(stat.rpartition(")")[2].split()[9])

    swapped_in = None
    with contextlib.suppress(OSError, RuntimeError):
        swapped_in = psutil.swap_memory().sin

    mhz = None
    with contextlib.suppress(OSError, NotImplementedError, AttributeError):
        frequency = psutil.cpu_freq()
        mhz = frequency.current if frequency else None

    ran_s, kernel_s = processor_time.ran_and_kernel_s()

    return HostReading(
        ran_s=ran_s,
        kernel_s=kernel_s,
        waited_s=processor_time.waited_s(),
        throttled_s=throttled_s(root),
        stolen_s=stolen_s,
        busy_s=busy_s,
        memory_stalled_s=stalled_s("memory", root),
        io_stalled_s=stalled_s("io", root),
        involuntary_switches=involuntary,
        major_faults=faults,
        swapped_in_bytes=swapped_in,
        mhz=mhz,
        thermal_throttles=thermal_throttles(root),
    )


def own_processors() -> list[int] | None:
    """Returns the numbers of the processors that this process may use.

    It is None if these are all, or if the system doesn't say. What happens on other
    processors takes nothing from this process: a container that has some of a machine's
    processors for itself isn't disturbed by its neighbours.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None

    own = sorted(os.sched_getaffinity(0))
    if len(own) == psutil.cpu_count():
        return None

    return own


def _times_of_own_processors() -> list[Any]:
    """Returns ``psutil``'s times, of each processor that this process may use.

    It is one entry with the sums of all processors where they are all its own.
    """
    own = own_processors()
    if own is None:
        return [psutil.cpu_times()]

    times = psutil.cpu_times(percpu=True)
    # Numbers have gaps where processors are switched off.
    if own[-1] >= len(times):
        return [psutil.cpu_times()]

    return [times[number] for number in own]


def _busy_s(times: Any) -> float:
    """Returns the seconds in which processors worked for any program of this machine."""
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # The kernel counts guests' time as user time too.
    guests_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - idle_s - guests_s - getattr(times, "steal", 0.0)


@dataclasses.dataclass(frozen=True)
class TakenNow:
    """Which part of this process's processors others are using now, from 0 to 1.

    Attributes:
        stolen: by the hypervisor, for other virtual machines; None if unknown.
        others: by other programs of this machine.
        throttled: held back by this process's control group; None if unknown.
    """

    stolen: float | None
    others: float
    throttled: float | None

    @property
    def together(self) -> float:
        """The part that is taken for any reason; what is unknown counts as 0."""
        return min((self.stolen or 0.0) + self.others + (self.throttled or 0.0), 1.0)


def taken_now(seconds: float = LOOK_S) -> TakenNow:
    """Watches the machine for a moment and returns what others take of it.

    What this process uses meanwhile is subtracted from what all programs use.
    """
    processor_time = ProcessorTime()
    own = own_processors()
    processors = (psutil.cpu_count() or 1) if own is None else len(own)
    before = read_host(processor_time)
    began_s = time.monotonic()
    time.sleep(seconds)
    after = read_host(processor_time)
    offered_s = (time.monotonic() - began_s) * processors

    def share(name: str) -> float | None:
        then = getattr(before, name)
        now = getattr(after, name)
        if then is None or now is None:
            return None

        return min(max((now - then) / offered_s, 0.0), 1.0)

    others = max(share("busy_s") - share("ran_s"), 0.0)

    return TakenNow(share("stolen_s"), others, share("throttled_s"))


class HostSampler(Sampler):
    """Writes ``host.csv`` regularly, from a session's start to its end.

    Each line has ``time_ms, session, mono_s``, on the ledger's clocks, and the values
    of `tfasr.tta.host.HostReading`. A resumed run appends. Use it as a context manager.

    Args:
        run_dir: the run's folder.
        session: the number of the session, as in the ledger.
        file: the file's name, for a worker that isn't the chief.
        every_s: seconds between two lines.
    """

    def __init__(
        self,
        run_dir: Path,
        session: int,
        file: str = HOST_FILE,
        every_s: float = HOST_INTERVAL_S,
    ):
        super().__init__("host", every_s)
        self._path = run_dir / file
        self._session = session
        self._processor_time = ProcessorTime()
        # Opened when the block begins.
        self._file: SampleFile | None = None

    def __enter__(self) -> "HostSampler":
        self._file = SampleFile(self._path, HOST_COLUMNS)
        self.begin()
        return self

    def __exit__(self, *_) -> None:
        self.stop()
        self._file.close()

    def look(self) -> None:
        """Writes a line with the counters at this moment."""
        reading = read_host(self._processor_time)

        cells = []
        for value in dataclasses.astuple(reading):
            number = "" if value is None else f"{value:.6f}"
            # 12.500000 becomes 12.5, and 12.000000 becomes 12.
            cells.append(number.rstrip("0").rstrip("."))

        self._file.add(
            f"{time.time() * 1000:.0f}",
            self._session,
            f"{time.monotonic():.6f}",
            *cells,
        )
        self._file.flush()
