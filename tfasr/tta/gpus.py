"""What slowed a run's GPUs down, from the samples in ``gpu.csv``.

`tfasr.telemetry` writes the samples; reports show these sentences below their tables.
"""

import numpy as np

# Columns of ``gpu.csv``: the clock of the multiprocessors and the highest that the GPU
# allows, the reasons for which it is lower (bits of `REASONS`), the power cap, the
# temperature, and how many other processes compute on the GPU.
GPU_STATE = (
    "sm_mhz",
    "most_mhz",
    "slowed_by",
    "power_limit_w",
    "temperature_c",
    "other_processes",
)
# Bits of nvmlClocksThrottleReasons that slow down a busy GPU. An idle GPU and clocks
# that were set by an administrator have other bits.
REASONS = {
    0x04: "its power cap",
    0x08: "a hardware slowdown",
    0x20: "heat",
    0x40: "heat, by hardware",
    0x80: "its power supply",
}

WORTH_NAMING = 0.1  # the part of a GPU's busy samples from which on a cause is named


def gpu_notes(samples: dict[str, np.ndarray]) -> list[str]:
    """Returns a sentence for each GPU that was slowed down or used by others.

    Only samples in which it was busy count.

    Args:
        samples: the columns of ``gpu.csv``, see `tfasr.tta.run.Run.utilisation`. Files
            without the columns of `GPU_STATE` have no notes.
    """
    if not {*GPU_STATE, "gpu", "utilisation_percent"} <= samples.keys():
        return []

    notes = []
    for gpu in np.unique(samples["gpu"]):
        busy = (samples["gpu"] == gpu) & (samples["utilisation_percent"] > 0)
        note = _note({name: samples[name][busy] for name in GPU_STATE})
        if note:
            notes.append(f"GPU {gpu:.0f}: {note}")

    return notes


def _note(samples: dict[str, np.ndarray]) -> str:
    """Names the causes that slowed one GPU down, or "", from samples of it at work."""
    parts = []
    reasons = _measured(samples["slowed_by"]).astype(np.int64)
    for bit, cause in REASONS.items():
        share = _share((reasons & bit) > 0)
        if share >= WORTH_NAMING:
            parts.append(f"{cause} slowed it down in {share:.0%} of its busy samples")

    if parts:
        parts.append(
            f"its clock was {_median(samples['sm_mhz'])} of "
            f"{_median(samples['most_mhz'])} MHz, its temperature "
            f"{_median(samples['temperature_c'])} °C, its power cap "
            f"{_median(samples['power_limit_w'])} W (medians)"
        )

    share = _share(_measured(samples["other_processes"]) > 0)
    if share >= WORTH_NAMING:
        parts.append(
            f"other processes computed on it in {share:.0%} of its busy samples"
        )

    return "; ".join(parts)


def _measured(values: np.ndarray) -> np.ndarray:
    return values[~np.isnan(values)]


def _share(chosen: np.ndarray) -> float:
    """Returns which part of some samples is chosen; 0 without samples."""
    if not chosen.size:
        return 0.0

    return float(np.mean(chosen))


def _median(values: np.ndarray) -> str:
    measured = _measured(values)
    if not measured.size:
        return "n/a"

    return f"{np.median(measured):.0f}"
