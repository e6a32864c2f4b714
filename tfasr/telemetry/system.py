"""Describes the machine and software of a run."""

import os
import platform
import socket
import sys
from typing import Any

import psutil

from tfasr.telemetry.gpus import describe_gpus
from tfasr.telemetry.machine import describe_host, describe_processor, version

_PACKAGES = ("tfasr", "tensorflow", "keras", "numpy", "soundfile", "jiwer")


def describe_system() -> dict[str, Any]:
    processor = describe_processor()
    gpus, _ = describe_gpus()
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": processor["model"] or "n/a",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [gpu["name"] for gpu in gpus],
        "python": sys.version.split()[0],
        "packages": {name: version(name) or "n/a" for name in _PACKAGES},
        "processor_details": processor,
        "gpu_details": gpus,
        "surroundings": describe_host(),
    }
