"""How many cores there are for this process."""

import functools
import math
import os
from pathlib import Path


def usable_cores() -> int:
    """Returns the cores that this process may use: those it may run on, within its quota."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, quota())))


@functools.cache
def quota(root: Path = Path("/")) -> float:
    """Returns how many cores' time Linux's control groups grant to this process; infinite for all.

    Containers are limited so: they see every core of the machine and get a part of their time.

    Args:
        root: folder of ``sys/fs/cgroup`` and ``proc/self/cgroup``.
    """
    return min(map(_granted, control_groups("cpu", root)))


def control_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """Returns folders of a process's groups and of all around them: each limits what is in it."""
    top = root / "sys/fs/cgroup"
    # Inside a container the group's own path may lie outside of what is mounted.
    folders = [top, top / controller]
    try:
        groups = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        groups = []
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers or controller in controllers.split(","):
            for mount in (top / controllers, top / (controller if controllers else "")):
                own = mount / path.strip("/")
                folders += [own, *(p for p in own.parents if p == mount or mount in p.parents)]
    return folders


def _granted(folder: Path) -> float:
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        try:
            words = " ".join((folder / name).read_text("ascii") for name in names).split()
            time_us, period_us = (float(word) for word in words)
        except (OSError, ValueError):  # not there, or "max": no limit
            continue
        if time_us > 0 and period_us > 0:
            return time_us / period_us
    return math.inf
