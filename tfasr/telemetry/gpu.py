"""What a GPU gives this process: its clock, what slows it down, who else uses it.

`UtilisationSampler` writes these values into ``gpu.csv`` once a second, and
`tfasr.tta.gpus` reads them.
"""

import math
import os
from typing import Any

from tfasr.telemetry.system import ask
from tfasr.tta.gpus import GPU_STATE

# NVML's numbers of the clock of the processors (NVML_CLOCK_SM) and of the sensor in the
# chip (NVML_TEMPERATURE_GPU). pynvml, which names them, may be missing.
SM_CLOCK = 1
SENSOR = 0

# NVML states powers in milliwatts.
MILLIWATTS = 1e-3


def gpu_state(library: Any, handle: Any) -> tuple[float, ...]:
    """Returns the values of `GPU_STATE`; NaN for those that a GPU doesn't offer.

    Args:
        library: pynvml.
        handle: NVML's, of the GPU.

    Source: NVIDIA's NVML API reference, Device Queries.
    """

    def asked(name: str, *arguments: Any) -> float:
        """Asks one of NVML's questions about the GPU; NaN without an answer."""
        answer = ask(library, name, handle, *arguments)
        if answer is None:
            return math.nan

        return float(answer)

    values = {
        "sm_mhz": asked("nvmlDeviceGetClockInfo", SM_CLOCK),
        "most_mhz": asked("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        "slowed_by": asked("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "power_limit_w": asked("nvmlDeviceGetEnforcedPowerLimit") * MILLIWATTS,
        "temperature_c": asked("nvmlDeviceGetTemperature", SENSOR),
        "other_processes": _others(library, handle),
    }

    return tuple(values[name] for name in GPU_STATE)


def _others(library: Any, handle: Any) -> float:
    """Returns how many other processes compute on a GPU; NaN if unknown.

    Inside a container, NVML may count none of those outside of it.
    """
    processes = ask(library, "nvmlDeviceGetComputeRunningProcesses", handle)
    if processes is None:
        return math.nan

    return float(sum(process.pid != os.getpid() for process in processes))
