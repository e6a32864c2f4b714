"""What slowed GPUs down, from a fake NVML to the note in a report."""

import sys
import time
import types

import numpy as np
import pytest

from tfasr.kit.files import GPU_FILE
from tfasr.telemetry import samplers
from tfasr.telemetry.gpu import gpu_state
from tfasr.telemetry.samplers import UtilisationSampler
from tfasr.tta.gpus import GPU_STATE, gpu_notes
from tfasr.tta.run import Run

POWER_CAP = 0x04
HEAT = 0x20
IDLE = 0x01


def fake_nvml(slowed_by=POWER_CAP, others=0):
    """Two GPUs, at 1200 of 1980 MHz; the second one's driver offers no state."""
    module = types.ModuleType("pynvml")
    module.nvmlInit = module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=90)
    module.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(used=1000)
    module.nvmlDeviceGetPowerUsage = lambda handle: 300_000

    def first(value):
        def ask(handle, *arguments):
            if handle:
                raise RuntimeError("NVML: not supported")

            return value

        return ask

    module.nvmlDeviceGetClockInfo = first(1200)
    module.nvmlDeviceGetMaxClockInfo = first(1980)
    module.nvmlDeviceGetCurrentClocksThrottleReasons = first(slowed_by)
    module.nvmlDeviceGetEnforcedPowerLimit = first(350_000)
    module.nvmlDeviceGetTemperature = first(71)
    processes = [types.SimpleNamespace(pid=-1)] * others
    module.nvmlDeviceGetComputeRunningProcesses = first(processes)

    return module


def columns(slowed_by, *, others=0.0, busy=100.0):
    """Samples of a GPU that was slowed by these reasons."""
    count = len(slowed_by)
    constant = {
        "sm_mhz": 1200.0,
        "most_mhz": 1980.0,
        "power_limit_w": 350.0,
        "temperature_c": 71.0,
        "other_processes": others,
        "gpu": 0.0,
        "utilisation_percent": busy,
    }
    values = {name: np.full(count, value) for name, value in constant.items()}

    return values | {"slowed_by": np.array(slowed_by, float)}


def test_the_state_of_a_gpu_is_what_nvml_says():
    state = dict(zip(GPU_STATE, gpu_state(fake_nvml(others=2), 0), strict=True))

    assert state == {
        "sm_mhz": 1200,
        "most_mhz": 1980,
        "slowed_by": POWER_CAP,
        "power_limit_w": 350,
        "temperature_c": 71,
        "other_processes": 2,
    }


def test_what_a_driver_does_not_offer_is_unknown():
    assert np.isnan(gpu_state(fake_nvml(), 1)).all()
    assert np.isnan(gpu_state(types.ModuleType("pynvml"), 0)).all()


def test_samples_of_a_slowed_gpu_end_as_a_note(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(others=1))
    monkeypatch.setattr(samplers, "GPU_INTERVAL_S", 0.01)
    until_s = time.monotonic() + 20

    with UtilisationSampler(tmp_path):
        while not (tmp_path / GPU_FILE).is_file() and time.monotonic() < until_s:
            time.sleep(0.01)

        time.sleep(0.1)

    (note,) = gpu_notes(Run(tmp_path, "", []).utilisation("gpu"))

    assert note == (
        "GPU 0: its power cap slowed it down in 100% of its busy samples; its clock was 1200 of "
        "1980 MHz, its temperature 71 °C, its power cap 350 W (medians); other processes computed "
        "on it in 100% of its busy samples"
    )


@pytest.mark.parametrize(
    "samples",
    [
        columns([IDLE] * 10),
        columns([POWER_CAP] + [0] * 19),
        columns([HEAT] * 10, busy=0.0),
        columns([np.nan] * 10, others=np.nan),
        {"gpu": np.zeros(3), "utilisation_percent": np.ones(3)},
        {},
    ],
    ids=[
        "idle",
        "rarely slowed",
        "slowed while idle",
        "unknown",
        "older file",
        "no file",
    ],
)
def test_nothing_is_said_of_a_gpu_that_nothing_slowed(samples):
    assert gpu_notes(samples) == []


def test_several_reasons_are_named():
    (note,) = gpu_notes(columns([POWER_CAP] * 5 + [HEAT] * 3 + [0] * 2))

    assert "its power cap slowed it down in 50%" in note
    assert "heat slowed it down in 30%" in note
