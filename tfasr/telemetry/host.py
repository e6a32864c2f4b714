"""What surrounds the processors: memory, limits, load, networks, operating system."""

import math
import os
import platform
import re
from pathlib import Path
from typing import Any

import psutil

from tfasr.cores import control_groups, quota
from tfasr.telemetry.processor import ROOT, text

_CONTAINER = re.compile(r"docker|kubepods|containerd|lxc|libpod")


def describe_host(root: Path = ROOT) -> dict[str, Any]:
    """Returns this computer's memory, limits, load, networks and system as JSON values.

    Args:
        root: the folder that holds ``proc``, ``sys`` and ``etc``; memory and load are always
            those of this computer.

    Returns:
        "memory_bytes"; "usable_threads", those this process may run on; "cpu_limit", in
        processors, and "memory_limit_bytes" of the control group; "load", the average of a
        minute; "networks"; "operating_system"; "kernel"; "container". None is not known.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    load = getattr(os, "getloadavg", None)
    return {
        "memory_bytes": psutil.virtual_memory().total,
        "usable_threads": len(affinity(0)) if affinity else None,
        "cpu_limit": None if math.isinf(quota(root)) else quota(root),
        "memory_limit_bytes": _memory_limit(root),
        "load": load()[0] if load else None,
        "networks": _networks(root / "sys" / "class"),
        "operating_system": _operating_system(root),
        "kernel": f"{platform.system()} {platform.release()}",
        "container": _container(root),
    }


def _memory_limit(root: Path) -> int | None:
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [text(group / name) for group in control_groups("memory", root) for name in names]
    # Version 1 says "no limit" by a number near 2 ** 63.
    return min((int(n) for n in limits if n.isdigit() and int(n) < 1 << 60), default=None)


def _networks(classes: Path) -> list[dict[str, Any]]:
    networks = []
    for folder in sorted((classes / "net").glob("*")):
        speed = text(folder / "speed")
        if folder.name != "lo" and folder.is_dir():
            mbit = int(speed) if speed.isdigit() and int(speed) > 0 else None
            state = text(folder / "operstate") or None
            networks.append({"name": folder.name, "state": state, "mbit_per_s": mbit})
    for rate in sorted((classes / "infiniband").glob("*/ports/*/rate")):
        port = rate.parent
        gigabit = re.match(r"([\d.]+) Gb/sec", text(rate))
        networks.append(
            {
                "name": f"{port.parents[1].name}:{port.name}",
                "state": text(port / "state").partition(": ")[2].lower() or None,
                "mbit_per_s": round(float(gigabit[1]) * 1000) if gigabit else None,
            }
        )
    return networks


def _operating_system(root: Path) -> str:
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', text(root / "etc" / "os-release"), re.MULTILINE)
    return name[1] if name else platform.platform()


def _container(root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run" / ".containerenv").exists():
        return "podman"
    match = _CONTAINER.search(text(root / "proc" / "1" / "cgroup"))
    return match[0] if match else None
