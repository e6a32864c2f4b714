"""Describes GPUs through NVML, and the machine and software of a run; None means unknown."""

import contextlib
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

# An extra is named after what is installed, tfasr or tfasr-measure.
from tfasr.errors import extra
from tfasr.telemetry.machine import (
    ROOT,
    describe_host,
    describe_processor,
    text,
    version,
)

_PACKAGES = ("tfasr", "tensorflow", "keras", "numpy", "soundfile", "jiwer")
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")


@contextlib.contextmanager
def nvml() -> Iterator[tuple[Any, str]]:
    """Opens NVML; yields ``pynvml`` and "", or None and the reason."""
    problem = ""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        problem = f"nvidia-ml-py is not installed: pip install {extra('gpu')}"
    except Exception as error:  # noqa: BLE001 - NVML's error class exists only once it loads
        problem = f"NVML does not start: {error}"

    try:
        yield None if problem else pynvml, problem
    finally:
        if not problem:
            pynvml.nvmlShutdown()


def describe_gpus() -> tuple[list[dict[str, Any]], str]:
    """Returns the GPUs as JSON values, and the reason if there aren't any, or "".

    ``nvlinks`` counts active links; ``energy`` is "counter", "power" or None.
    """
    with nvml() as (library, problem):
        if library is None:
            return [], problem
        count = _ask(library.nvmlDeviceGetCount) or 0
        driver = _text(_ask(library.nvmlSystemGetDriverVersion))
        return [_describe(library, index, driver) for index in range(count)], ""


def nvidia_devices(root: Path = ROOT) -> int:
    """Counts the NVIDIA GPUs on the PCI bus, with or without a driver."""
    devices = (root / "sys" / "bus" / "pci" / "devices").glob("*")
    return sum(
        text(device / "vendor") == _NVIDIA
        and text(device / "class").startswith(_DISPLAY)
        for device in devices
    )


def _describe(library: Any, index: int, driver: str | None) -> dict[str, Any]:
    handle = library.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *arguments: Any) -> Any:
        return _ask(getattr(library, name, None), handle, *arguments)

    memory = ask("nvmlDeviceGetMemoryInfo")
    energy = None if ask("nvmlDeviceGetPowerUsage") is None else "power"
    if ask("nvmlDeviceGetTotalEnergyConsumption") is not None:
        energy = "counter"
    most = getattr(library, "NVML_NVLINK_MAX_LINKS", 18)
    links = [ask("nvmlDeviceGetNvLinkState", link) for link in range(most)]
    return {
        "name": _text(ask("nvmlDeviceGetName")),
        "memory_bytes": None if memory is None else memory.total,
        "driver": driver,
        "pcie": {
            "generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "max_generation": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "max_width": ask("nvmlDeviceGetMaxPcieLinkWidth"),
        },
        "nvlinks": None
        if all(link is None for link in links)
        else sum(map(bool, links)),
        "energy": energy,
    }


def _ask(question: Callable | None, *arguments: Any) -> Any:
    try:
        return None if question is None else question(*arguments)
    except Exception:  # noqa: BLE001 - NVML's error class exists only once it loads
        return None


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def describe_system() -> dict[str, Any]:
    processor = describe_processor()
    gpus, _ = describe_gpus()
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": processor["model"] or "n/a",
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else None,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [gpu["name"] for gpu in gpus],
        "python": sys.version.split()[0],
        "packages": {name: version(name) or "n/a" for name in _PACKAGES},
        "processor_details": processor,
        "gpu_details": gpus,
        "surroundings": describe_host(),
    }
