"""What machine and software a run used."""

import os
import platform
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("tfasr", "tensorflow", "keras", "numpy", "soundfile", "jiwer")


def describe_system() -> dict[str, Any]:
    """Returns processor, memory, GPUs and software versions as JSON values."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": _processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpu_names(),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _processor_name() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "n/a"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "n/a"


def _gpu_names() -> list[str]:
    with nvml() as library:
        if library is None:
            return []
        handles = map(library.nvmlDeviceGetHandleByIndex, range(library.nvmlDeviceGetCount()))
        return [str(library.nvmlDeviceGetName(handle)) for handle in handles]


class nvml:  # noqa: N801 - a context manager, read as one
    """Opens NVML; gives None where there is no NVIDIA driver or no nvidia-ml-py."""

    def __enter__(self):
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # noqa: BLE001 - NVML's own error class is only known once it loads
            self._library = None
        else:
            self._library = pynvml
        return self._library

    def __exit__(self, *_):
        if self._library is not None:
            self._library.nvmlShutdown()
