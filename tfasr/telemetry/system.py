"""Describes GPUs through NVML, and the machine and software of a run.

`describe_system` is what run.json and a study's list of hosts state; ``None`` means
unknown. Questions that a GPU or its driver doesn't answer are left open, never raised.
"""

import contextlib
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
    usable_processors,
    version,
)

# Packages that a run's result or speed may depend on.
_PACKAGES = ("tfasr", "tensorflow", "keras", "numpy", "soundfile", "jiwer")

# On the PCI bus: NVIDIA's number, and the classes of VGA and 3D controllers.
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")


@contextlib.contextmanager
def nvml() -> Iterator[tuple[Any, str]]:
    """Opens NVML; yields ``pynvml`` and "", or None and the reason.

    The reason says what to do if a package is missing.
    """
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

    ``nvlinks`` counts active links; ``energy`` is "counter", "power" or None, see
    `energy.gpu_counters`.
    """
    with nvml() as (library, problem):
        if library is None:
            return [], problem

        count = ask(library.nvmlDeviceGetCount) or 0
        driver = _text(ask(library.nvmlSystemGetDriverVersion))
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
    """Describes one GPU by its index."""
    handle = library.nvmlDeviceGetHandleByIndex(index)

    def asked(name: str, *arguments: Any) -> Any:
        return ask(getattr(library, name, None), handle, *arguments)

    memory = asked("nvmlDeviceGetMemoryInfo")
    energy = None if asked("nvmlDeviceGetPowerUsage") is None else "power"
    if asked("nvmlDeviceGetTotalEnergyConsumption") is not None:
        energy = "counter"

    # 18 links is the most of any GPU so far; older versions of pynvml don't tell.
    most = getattr(library, "NVML_NVLINK_MAX_LINKS", 18)
    links = [asked("nvmlDeviceGetNvLinkState", link) for link in range(most)]
    nvlinks = None
    if any(link is not None for link in links):
        nvlinks = sum(map(bool, links))

    return {
        "name": _text(asked("nvmlDeviceGetName")),
        "memory_bytes": None if memory is None else memory.total,
        "driver": driver,
        "pcie": {
            "generation": asked("nvmlDeviceGetCurrPcieLinkGeneration"),
            "width": asked("nvmlDeviceGetCurrPcieLinkWidth"),
            "max_generation": asked("nvmlDeviceGetMaxPcieLinkGeneration"),
            "max_width": asked("nvmlDeviceGetMaxPcieLinkWidth"),
        },
        "nvlinks": nvlinks,
        "energy": energy,
    }


def ask(question: Callable | None, *arguments: Any) -> Any:
    """Asks NVML a question; returns None without an answer."""
    if question is None:
        return None

    try:
        return question(*arguments)
    except Exception:  # noqa: BLE001 - NVML's error class exists only once it loads
        return None


def _text(value: Any) -> str | None:
    """Returns a text, which older versions of pynvml return as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def describe_system() -> dict[str, Any]:
    """Describes the machine and the software of this process, as JSON values."""
    processor = describe_processor()
    gpus, _ = describe_gpus()
    usable = usable_processors()

    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": processor["model"] or "n/a",
        "cores": None if usable is None else len(usable),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [gpu["name"] for gpu in gpus],
        "python": sys.version.split()[0],
        "packages": {name: version(name) or "n/a" for name in _PACKAGES},
        "processor_details": processor,
        "gpu_details": gpus,
        "surroundings": describe_host(),
    }
