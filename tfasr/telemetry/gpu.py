"""What a GPU gives this process: its clock, what slows it down, who else uses it.

`UtilisationSampler` writes these values into ``gpu.csv`` once a second, and
`tfasr.tta.gpus` reads them.
"""

import math
import os
from collections.abc import Callable
from typing import Any

from tfasr.tta.gpus import GPU_STATE

# NVML's numbers of the clock of the processors (NVML_CLOCK_SM) and of the sensor in the
# chip (NVML_TEMPERATURE_GPU). pynvml, which names them, may be missing.
SM_CLOCK = 1
SENSOR = 0

MILLIWATTS = 1e-3


def gpu_state(library: Any, handle: Any) -> tuple[float, ...]:
    """Returns the values of `GPU_STATE`; NaN where a GPU or its driver has none.

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
    """Returns how many other processes compute on a GPU; NaN if that can't be told."""
    try:
        processes = library.nvmlDeviceGetComputeRunningProcesses(handle)
    except Exception:  # noqa: BLE001 - NVML's error class exists only once it loads
        return math.nan

    return float(sum(process.pid != os.getpid() for process in processes))


def _number(question: Callable | None, *arguments: Any) -> float:
    """Returns the number that NVML answers with; NaN without an answer."""
    if question is None:
        return math.nan

    try:
        return float(question(*arguments))
    except Exception:  # noqa: BLE001 - see `_others`
        return math.nan
