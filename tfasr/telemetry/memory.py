"""How much memory this process has held, and how much there still is for it."""

import resource
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
# Version 2 of control groups, then version 1; a container sees its own group as the root.
_CGROUPS = (
    ("memory.max", "memory.current", Path("/sys/fs/cgroup")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", Path("/sys/fs/cgroup/memory")),
)


def peak_bytes() -> int | None:
    """Returns the most memory that this process ever held, or None where that cannot be told.

    Linux's own mark, not ``getrusage``: the latter's is inherited from the process that started
    this one, whose memory may be larger.
    """
    if not _STATUS.is_file():
        return None
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def peak_memory_mib() -> float | None:
    """Returns `peak_bytes` in MiB."""
    peak = peak_bytes()
    return None if peak is None else peak / 2**20


def available_bytes() -> int:
    """Returns how much more memory this process may take before something ends it.

    The least of what the machine has, what its control group leaves it, and its own limit of
    address space (``ulimit -v``), where there is one.
    """
    candidates = [psutil.virtual_memory().available]
    candidates += [left for left in map(_left_in_cgroup, _CGROUPS) if left is not None]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        candidates.append(limit - psutil.Process().memory_info().vms)
    return max(min(candidates), 0)


def _left_in_cgroup(files: tuple[str, str, Path]) -> int | None:
    limit_name, usage_name, folder = files
    try:
        limit = (folder / limit_name).read_text(encoding="utf-8").strip()
        usage = int((folder / usage_name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - usage
