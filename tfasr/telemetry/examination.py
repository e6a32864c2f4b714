"""The examination behind ``tfasr doctor``, and the advice that follows from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.telemetry.energy import POWERCAP, rapl_access
from tfasr.telemetry.gpus import describe_gpus, nvidia_devices
from tfasr.telemetry.host import describe_host
from tfasr.telemetry.processor import ROOT, describe_processor
from tfasr.telemetry.software import (
    OPTIONAL,
    decoder_problem,
    describe_software,
    probe_tensorflow,
)

BUSY_LOAD = 0.25
"""Runnable processes per thread above which clocks measure the neighbours too."""

_TRAINING = ("tensorflow", "keras", "soundfile", "soxr")


@dataclass(frozen=True)
class Examination:
    """What a machine is and has; None for what could not be determined.

    Attributes:
        processor: of `tfasr.telemetry.processor.describe_processor`.
        host: of `tfasr.telemetry.host.describe_host`.
        gpus: of `tfasr.telemetry.gpus.describe_gpus`.
        gpu_problem: why there are none; "" where there are.
        gpus_on_bus: NVIDIA devices on the PCI bus, whether or not NVML sees them.
        software: of `tfasr.telemetry.software.describe_software`.
        decoder_problem: why the compiled decoder does not load; None where it does.
        rapl: whether the processors' energy can be read, in words.
        tensorflow: of `tfasr.telemetry.software.probe_tensorflow`; None unless asked for.
    """

    processor: dict[str, Any]
    host: dict[str, Any]
    gpus: list[dict[str, Any]]
    gpu_problem: str
    gpus_on_bus: int
    software: dict[str, Any]
    decoder_problem: str | None
    rapl: str
    tensorflow: dict[str, Any] | None


def examine(*, tensorflow: bool = False, root: Path = ROOT) -> Examination:
    """Returns what this machine is and has; imports no TensorFlow into this process.

    Args:
        tensorflow: whether to import TensorFlow in another process.
        root: the folder that holds ``proc``, ``sys`` and ``etc``.
    """
    gpus, problem = describe_gpus()
    return Examination(
        processor=describe_processor(root),
        host=describe_host(root),
        gpus=gpus,
        gpu_problem=problem,
        gpus_on_bus=nvidia_devices(root),
        software=describe_software(),
        decoder_problem=decoder_problem(),
        rapl=rapl_access(root / POWERCAP.relative_to("/")),
        tensorflow=probe_tensorflow() if tensorflow else None,
    )


def advice(machine: Examination) -> list[str]:
    """Returns what to correct, or to know, before times measured on a machine are trusted."""
    return [*_clock_advice(machine), *_gpu_advice(machine), *_software_advice(machine)]


def _clock_advice(machine: Examination) -> Iterator[str]:
    host, processor = machine.host, machine.processor
    threads = host["usable_threads"] or processor["threads"]
    if host["load"] is not None and threads and host["load"] > BUSY_LOAD * threads:
        yield (
            f"The machine is busy: load {host['load']:.2f} on {threads} threads. Times measured "
            "now are the neighbours' too; wait, or trust ratios alone."
        )
    slow = [name for name in processor["governors"] if name != "performance"]
    if slow:
        yield (
            f"The clock frequency is governed by {', '.join(slow)}; for steady times: cpupower "
            "frequency-set -g performance"
        )
    if host["cpu_limit"] is not None and threads and host["cpu_limit"] < threads:
        yield (
            f"The control group allows {host['cpu_limit']:g} processors' time to {threads} "
            "threads: threads will be throttled. Raise the limit, or pin to fewer processors."
        )
    if processor["virtual"]:
        yield "This is a virtual machine: others may share its processors unseen."
    if "not readable" in machine.rapl:
        yield f"The processors' energy is {machine.rapl}"


def _gpu_advice(machine: Examination) -> Iterator[str]:
    if not machine.gpus and machine.gpus_on_bus:
        devices = f"{machine.gpus_on_bus} NVIDIA devices"
        yield f"{devices} are there, and not usable: {machine.gpu_problem}"
    for index, gpu in enumerate(machine.gpus):
        pcie = gpu["pcie"]
        if None not in (pcie["width"], pcie["max_width"]) and pcie["width"] < pcie["max_width"]:
            yield (
                f"GPU {index} has {pcie['width']} of {pcie['max_width']} PCIe lanes: look at its "
                "slot. (The generation may fall while it idles; the width should not.)"
            )


def _software_advice(machine: Examination) -> Iterator[str]:
    if machine.decoder_problem is not None:
        yield (
            f"The compiled decoder does not load: {machine.decoder_problem}. Install tfasr again, "
            "with a C++ compiler."
        )
    packages = machine.software["packages"]
    missing = [name for name, version in packages.items() if version is None]
    of_training = [name for name in missing if name in _TRAINING]
    if of_training:
        yield (
            f"Without {', '.join(of_training)} nothing is prepared, trained or evaluated; reports, "
            "the recorder, scoring and decoding work (docs/light_install.md)."
        )
    if len(missing) > len(of_training):
        others = [name for name in missing if name not in _TRAINING]
        yield f"Missing packages: {', '.join(others)}. Install tfasr again."
    if machine.gpus and machine.software["optional"]["nvidia-ml-py"] is None:
        yield f"nvidia-ml-py is not installed: no {OPTIONAL['nvidia-ml-py']}."
    problem = (machine.tensorflow or {}).get("problem")
    if problem:
        yield f"TensorFlow does not load: {problem}"
