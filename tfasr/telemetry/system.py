"""Describes GPUs through NVML, and the machine and software of a run.

`describe_system` is what run.json and a study's list of hosts state; ``None`` means
unknown. Questions that a GPU or its driver doesn't answer are left open, never raised.
"""

import contextlib
import platform
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# An extra is named after what is installed, tfasr or tfasr-measure.
from tfasr.errors import extra
from tfasr.telemetry.machine import (
    ROOT,
    describe_host,
    describe_processor,
    text,
    version,
)

# Packages that a run's result or speed may depend on.
_PACKAGES = ("tfasr", "tensorflow", "keras", "numpy", "soundfile", "jiwer")

# On the PCI bus: NVIDIA's number, and the classes of VGA and 3D controllers.
_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")

# The most NVLinks of any GPU so far, for versions of pynvml that don't tell.
_MOST_LINKS = 18


@contextlib.contextmanager
def nvml() -> Iterator[tuple[Any, str]]:
    """Opens NVML; yields ``pynvml`` and "", or None and the reason.

    The reason says what to do if a package is missing.
    """
    library = None
    problem = ""
    try:
        import pynvml

        pynvml.nvmlInit()
        library = pynvml
    except ImportError:
        problem = f"nvidia-ml-py is not installed: pip install {extra('gpu')}"
    # NVML's error class exists only once it loads.
    except Exception as error:  # noqa: BLE001
        problem = f"NVML does not start: {error}"

    try:
        yield library, problem
    finally:
        if library is not None:
            library.nvmlShutdown()


def describe_gpus() -> tuple[list[dict[str, Any]], str]:
    """Returns the GPUs as JSON values, and the reason if there aren't any, or "".

    What a GPU doesn't answer is None. ``nvlinks`` counts active links; ``energy`` is
    "counter", "power" or None, see `energy.gpu_counters`.
    """
    with nvml() as (library, problem):
        if library is None:
            return [], problem

        count = ask(library, "nvmlDeviceGetCount") or 0
        driver = _text(ask(library, "nvmlSystemGetDriverVersion"))
        return [_describe(library, index, driver) for index in range(count)], ""


def nvidia_devices(root: Path = ROOT) -> int:
    """Counts the NVIDIA GPUs on the PCI bus, with or without a driver.

    Args:
        root: the folder with ``sys``.
    """
    devices = (root / "sys" / "bus" / "pci" / "devices").glob("*")
    return sum(
        text(device / "vendor") == _NVIDIA
        and text(device / "class").startswith(_DISPLAY)
        for device in devices
    )


def _describe(library: Any, index: int, driver: str | None) -> dict[str, Any]:
    """Describes one GPU.

    Args:
        library: pynvml.
        index: NVML's number of the GPU, from 0.
        driver: its version, which all GPUs share.
    """
    handle = library.nvmlDeviceGetHandleByIndex(index)

    def asked(name: str, *arguments: Any) -> Any:
        """Asks one of NVML's questions about the GPU."""
        return ask(library, name, handle, *arguments)

    energy = None
    if asked("nvmlDeviceGetTotalEnergyConsumption") is not None:
        energy = "counter"
    elif asked("nvmlDeviceGetPowerUsage") is not None:
        energy = "power"

    most = getattr(library, "NVML_NVLINK_MAX_LINKS", _MOST_LINKS)
    links = [asked("nvmlDeviceGetNvLinkState", link) for link in range(most)]
    nvlinks = None
    if any(link is not None for link in links):
        nvlinks = sum(map(bool, links))

    return {
        "name": _text(asked("nvmlDeviceGetName")),
        "memory_bytes": getattr(asked("nvmlDeviceGetMemoryInfo"), "total", None),
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


def ask(library: Any, name: str, *arguments: Any) -> Any:
    """Asks NVML a question; returns None without an answer.

    Old drivers, old versions of pynvml and small GPUs leave some questions open.

    Args:
        library: pynvml.
        name: of its function, such as "nvmlDeviceGetName".
        arguments: of the function, usually a GPU's handle.
    """
    # NVML's error class exists only once it loads.
    with contextlib.suppress(Exception):
        return getattr(library, name)(*arguments)

    return None


def _text(value: Any) -> str | None:
    """Returns a text, which older versions of pynvml return as bytes."""
    if isinstance(value, bytes):
        return value.decode()

    return value


def describe_system() -> dict[str, Any]:
    """Describes the machine and the software of this process, as JSON values.

    ``cores`` counts the processors that this process may use.
    """
    processor = describe_processor()
    gpus, _ = describe_gpus()
    host = describe_host()

    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": processor["model"] or "n/a",
        "cores": host["usable_threads"],
        "memory_bytes": host["memory_bytes"],
        "gpus": [gpu["name"] for gpu in gpus],
        "python": sys.version.split()[0],
        "packages": {name: version(name) or "n/a" for name in _PACKAGES},
        "processor_details": processor,
        "gpu_details": gpus,
        "surroundings": host,
    }
