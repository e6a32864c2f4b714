"""Describes this computer from the Linux kernel's files; None means unknown.

Runs state `conditions` in their ledgers, and reports show and compare them. Functions
that read ``/proc`` and ``/sys`` take the folder that has both, so that tests can
describe other machines.
"""

import math
import os
import platform
import re
import resource
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from tfasr.kit.process import control_groups, quota

# Where the kernel's folders are; tests have others.
ROOT = Path("/")

# Instruction sets that decide how fast networks compute, by the kernel's flag.
_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 bf16",
    "amx_tile": "AMX",
    "amx_bf16": "AMX bf16",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "bf16",
}

# Names in the control group of a container's first process.
_CONTAINER = re.compile(r"docker|kubepods|containerd|lxc|libpod")

# Where Linux counts this process's memory.
_STATUS = Path("/proc/self/status")

# Control groups version 2, then version 1; a container sees its own group as the root.
_CGROUPS = (
    ("memory.max", "memory.current", Path("/sys/fs/cgroup")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", Path("/sys/fs/cgroup/memory")),
)

# How long git may take, in seconds; a folder on a network may be slow.
_PATIENCE_S = 5

# Control groups of version 1 write "no limit" as a number near 2 ** 63.
_NO_LIMIT_BYTES = 1 << 60


def describe_processor(root: Path = ROOT) -> dict[str, Any]:
    """Describes the processors in JSON values.

    ``sockets`` and ``cores`` are only known if every processor says where it is.
    ``threads`` are what the system calls processors.

    Args:
        root: the folder with ``proc`` and ``sys``.

    Source: the manual page proc(5), and the Linux kernel's
    Documentation/ABI/testing/sysfs-devices-system-cpu.
    """
    blocks = _cpuinfo(root / "proc" / "cpuinfo")
    first = next(iter(blocks), {})

    # "Features" on ARM. A processor without flags says nothing about a hypervisor.
    flags = (first.get("flags") or first.get("Features") or "").split()
    virtual = None
    if flags:
        virtual = "hypervisor" in flags

    # The socket of each thread, and the core in it.
    located = [
        (block["physical id"], block["core id"])
        for block in blocks
        if "physical id" in block and "core id" in block
    ]
    sockets = None
    cores = None

    if blocks and len(located) == len(blocks):
        sockets = len({socket for socket, _ in located})
        cores = len(set(located))

    cpus = root / "sys" / "devices" / "system" / "cpu"
    nodes = list((root / "sys" / "devices" / "system" / "node").glob("node[0-9]*"))
    khz = text(cpus / "cpu0" / "cpufreq" / "cpuinfo_max_freq")
    max_mhz = None
    if khz.isdigit():
        max_mhz = int(khz) // 1000

    return {
        "model": first.get("model name") or platform.processor() or None,
        "sockets": sockets,
        "cores": cores,
        "threads": len(blocks) or None,
        "instructions": [name for flag, name in _INSTRUCTIONS.items() if flag in flags],
        "virtual": virtual,
        "numa_nodes": len(nodes) or None,
        "governors": _governors(root),
        "max_mhz": max_mhz,
    }


def _governors(root: Path) -> list[str]:
    """Returns the frequency governors of all cores, such as ["performance"].

    It is [] in most virtual machines, whose host chooses the frequency.
    """
    cpus = root / "sys" / "devices" / "system" / "cpu"
    governors = {text(path) for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")}

    return sorted(governors - {""})


def text(path: Path) -> str:
    """Returns a small file's stripped text, or "" if it can't be read.

    Files of the kernel may be missing, or readable by root alone.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(path: Path) -> list[dict[str, str]]:
    """Returns the fields of each block of /proc/cpuinfo; each processor has one.

    On ARM, a last block without a processor describes the board, and is left out.
    """
    blocks = []
    for block in text(path).split("\n\n"):
        pairs = [line.partition(":") for line in block.splitlines() if ":" in line]
        values = {key.strip(): value.strip() for key, _, value in pairs}
        if "processor" in values:
            blocks.append(values)

    return blocks


def describe_host(root: Path = ROOT) -> dict[str, Any]:
    """Returns this computer's memory, limits, load, networks and system as JSON values.

    ``cpu_limit`` is a number of processors, ``load`` the average over the last minute.

    Args:
        root: the folder with ``proc``, ``sys`` and ``etc``.
    """
    usable = usable_processors()

    load = None
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]

    # The strictest group's limit holds.
    groups = control_groups("memory", root)
    names = ("memory.max", "memory.limit_in_bytes")
    texts = [text(group / name) for group in groups for name in names]
    limits = [int(limit) for limit in texts if limit.isdigit()]
    limits = [limit for limit in limits if limit < _NO_LIMIT_BYTES]

    release = text(root / "etc" / "os-release")
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)

    return {
        "memory_bytes": psutil.virtual_memory().total,
        "usable_threads": usable and len(usable),
        "cpu_limit": _cpu_limit(root),
        "memory_limit_bytes": min(limits, default=None),
        "load": load,
        "networks": _networks(root / "sys" / "class"),
        "operating_system": name[1] if name else platform.platform(),
        "kernel": f"{platform.system()} {platform.release()}",
        "container": _container(root),
    }


def usable_processors() -> list[int] | None:
    """Returns the processors on which this process may run, by the kernel's numbers.

    It is None on other systems than Linux, which don't know them.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None

    return sorted(os.sched_getaffinity(0))


def _cpu_limit(root: Path) -> float | None:
    """Returns how many processors' time control groups grant; None without a limit.

    It is a number of JSON, which has no infinity.
    """
    limit = quota(root)
    if math.isinf(limit):
        return None

    return limit


# Variables that change how fast TensorFlow, its libraries and Python compute.
_OF_SPEED = re.compile(
    r"(TF|XLA|OMP|KMP|GOMP|MKL|OPENBLAS|BLIS|NUMEXPR|DNNL|ONEDNN|TFASR)_\w+"
    r"|(CUDA|NVIDIA|NCCL|MALLOC)_\w+"
    r"|LD_PRELOAD|GLIBC_TUNABLES|PYTHON(OPTIMIZE|MALLOC|HASHSEED|DEVMODE)"
)

# Variables of that form which only name a run's study or cluster.
_NOT_OF_SPEED = ("TFASR_DECLARED", "TF_CONFIG")


def conditions(root: Path = ROOT) -> dict[str, Any]:
    """Describes all that decides this process's speed, but code and machine.

    ``environment`` has the variables that set threads, kernels and memory; ``threads``
    those that TensorFlow is set to use (0: as many as there are processors), None
    before it is imported; ``load`` is the machine's average over the last minute.

    Args:
        root: the folder with ``proc`` and ``sys``.
    """
    environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if _OF_SPEED.fullmatch(name) and name not in _NOT_OF_SPEED
    }

    tensorflow = sys.modules.get("tensorflow")
    threads = None
    if tensorflow is not None:
        threading = tensorflow.config.threading
        threads = {
            "intra_op": threading.get_intra_op_parallelism_threads(),
            "inter_op": threading.get_inter_op_parallelism_threads(),
        }

    return {
        "environment": environment,
        "affinity": usable_processors(),
        "governors": _governors(root),
        "threads": threads,
        "nice": os.nice(0),
        "cpu_limit": _cpu_limit(root),
        "load": round(os.getloadavg()[0], 2),
    }


def _networks(classes: Path) -> list[dict[str, Any]]:
    """Returns all networks but the loopback: Ethernet, then ports of InfiniBand.

    ``mbit_per_s`` is None if the adapter doesn't tell its speed, as those of virtual
    machines.

    Args:
        classes: the folder ``/sys/class``.
    """
    networks = []
    for folder in sorted((classes / "net").glob("*")):
        if folder.name == "lo" or not folder.is_dir():
            continue

        # Some adapters without a cable say -1, others 0.
        speed = text(folder / "speed")
        mbit_per_s = None
        if speed.isdigit():
            mbit_per_s = int(speed) or None

        networks.append(
            {
                "name": folder.name,
                "state": text(folder / "operstate") or None,
                "mbit_per_s": mbit_per_s,
            }
        )

    for rate in sorted((classes / "infiniband").glob("*/ports/*/rate")):
        port = rate.parent
        gigabit = re.match(r"([\d.]+) Gb/sec", text(rate))
        mbit_per_s = None
        if gigabit:
            mbit_per_s = round(float(gigabit[1]) * 1000)

        networks.append(
            {
                "name": f"{port.parents[1].name}:{port.name}",
                # Such as "4: ACTIVE".
                "state": text(port / "state").partition(": ")[2].lower() or None,
                "mbit_per_s": mbit_per_s,
            }
        )

    return networks


def _container(root: Path) -> str | None:
    """Returns the kind of container in which this process runs, or None.

    It is "docker", "podman", or a name in the first process's control group.
    """
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run" / ".containerenv").exists():
        return "podman"

    match = _CONTAINER.search(text(root / "proc" / "1" / "cgroup"))
    if match is None:
        return None

    return match[0]


def peak_bytes() -> int | None:
    """Returns this process's peak memory in bytes; None where Linux doesn't count it.

    ``getrusage`` would include what its parent had when this process was started.
    """
    kibibytes = re.search(r"^VmHWM:\s*(\d+)", text(_STATUS), re.MULTILINE)
    if kibibytes is None:
        return None

    return int(kibibytes[1]) * 1024


def peak_memory_mib() -> float | None:
    """Returns this process's peak memory in MiB, see `peak_bytes`."""
    peak = peak_bytes()
    if peak is None:
        return None

    return peak / 2**20


def available_bytes() -> int:
    """Returns how many bytes of memory are left for this process.

    It is the least of what the machine, control groups and ``ulimit -v`` leave, and
    never below 0.
    """
    candidates = [psutil.virtual_memory().available]
    for *names, folder in _CGROUPS:
        limit, usage = (text(folder / name) for name in names)
        if limit.isdigit() and usage.isdigit():
            candidates.append(int(limit) - int(usage))

    # The limit of ``ulimit -v`` is one of addresses, not of memory in use.
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        candidates.append(most - psutil.Process().memory_info().vms)

    return max(min(candidates), 0)


def process_age_s() -> float:
    """Returns the seconds since this process was created.

    On Linux it is measured by a clock that nobody sets, so that a corrected wall clock
    doesn't change a run's start-up time.
    """
    try:
        # The command in parentheses may contain anything; the 20th field after it is
        # the start.
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
        fields = stat.rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, ValueError, IndexError, AttributeError):
        age_s = time.time() - psutil.Process().create_time()

    return max(0.0, age_s)


def revision(folder: str | Path = ".") -> str | None:
    """Returns a folder's git commit, with "+" after changes; None if unknown.

    Files that git doesn't know, such as new runs, are no changes.

    Args:
        folder: anywhere in a checkout.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD").strip()
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.SubprocessError):
        return None

    if changed:
        commit += "+"

    return commit


def _git(folder: str | Path, *words: str) -> str:
    """Returns a git command's output.

    Raises:
        OSError: if git isn't installed.
        subprocess.SubprocessError: if the command fails or takes `_PATIENCE_S`.
    """
    # Without this option, `status` rewrites the user's index and, if killed, leaves its
    # lock.
    command = ["git", "--no-optional-locks", *words]
    result = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=True,
    )

    return result.stdout


def version(package: str) -> str | None:
    """Returns an installed package's version, or None.

    Args:
        package: its name on the package index, such as "nvidia-ml-py".
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
