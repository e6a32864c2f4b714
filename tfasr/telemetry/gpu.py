"""What a GPU gives this process: its clock, what slows it down, and who else uses it,
from NVML.
"""

import math
import os
from collections.abc import Callable
from typing import Any

from tfasr.tta.gpus import GPU_STATE

SM_CLOCK = 1  # NVML_CLOCK_SM
SENSOR = 0  # NVML_TEMPERATURE_GPU
MILLIWATTS = 1e-3


def gpu_state(library: Any, handle: Any) -> tuple[float, ...]:
    """Returns the values of `GPU_STATE`, NaN where this GPU or its driver doesn't offer one.

    Source: NVIDIA's NVML API reference, Device Queries.
    """

    def ask(name: str, *arguments: Any) -> float:
        return _number(getattr(library, name, None), handle, *arguments)

    values = {
        "sm_mhz": ask("nvmlDeviceGetClockInfo", SM_CLOCK),
        "most_mhz": ask("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        "slowed_by": ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "power_limit_w": ask("nvmlDeviceGetEnforcedPowerLimit") * MILLIWATTS,
        "temperature_c": ask("nvmlDeviceGetTemperature", SENSOR),
        "other_processes": _others(library, handle),
    }
    return tuple(values[name] for name in GPU_STATE)


def _others(library: Any, handle: Any) -> float:
    """Returns how many other processes compute on a GPU."""
    try:
        processes = library.nvmlDeviceGetComputeRunningProcesses(handle)
    except Exception:  # noqa: BLE001 - NVML's error class exists only once it loads
        return math.nan

    return float(sum(process.pid != os.getpid() for process in processes))


def _number(question: Callable | None, *arguments: Any) -> float:
    try:
        return math.nan if question is None else float(question(*arguments))
    except Exception:  # noqa: BLE001 - see `_others`
        return math.nan
