"""Measured training steps as a table."""

from collections.abc import Sequence

from tfasr.bench.step.timing import WARM_UPS, StepTiming
from tfasr.display.table import UNKNOWN, Table

_COLUMNS = [
    "batch x\nframes",
    "precision",
    "forward\nms",
    "backward\nms",
    "update\nms",
    "step\nms",
    "audio s\nper s",
    "utterances\nper s",
    "GFLOP\nper s",
    "ceiling\nGFLOP per s",
    "utilisation\n%",
    "peak memory\nMiB",
    "compile\ns",
]


def step_table(timings: Sequence[StepTiming]) -> Table:
    """Returns a row for each measured step."""
    kernels = sorted({kernel for timing in timings for kernel in timing.lstm_kernels})
    traced = sorted({timing.traces for timing in timings})
    notes = [
        f"Medians of {_range(timing.rounds for timing in timings)} rounds on a synthetic batch; "
        f"the first {WARM_UPS} calls of everything, in which it is traced and compiled, are left "
        "out. Backward and update are differences: forward and backward less forward, the whole "
        "step less both.",
        "GFLOP counts the matrix products of the model over all padded frames, backward twice "
        f"forward ({UNKNOWN} where the model does not tell them); the ceiling is that of large "
        "matrix products in the precision's dtype, measured in the same run.",
        f"Recurrence: {', '.join(kernels) or UNKNOWN}. Traces of the step: "
        f"{', '.join(map(str, traced))}. Compile is what the first step took beyond a later one.",
        "Each row is measured in a process of its own; peak memory is "
        + " and ".join(sorted({f"the {timing.peak_memory_of}'s" for timing in timings}))
        + ".",
    ]
    return Table("A training step", _COLUMNS, [_cells(timing) for timing in timings], notes)


def _cells(timing: StepTiming) -> list[str]:
    parts = timing.accumulation_steps
    memory = timing.peak_memory_bytes
    return [
        f"{timing.batch} x {timing.frames}" + (f" in {parts}" if parts > 1 else ""),
        timing.precision,
        f"{1000 * timing.forward_s:.1f}",
        f"{1000 * timing.backward_s:.1f}",
        f"{1000 * timing.update_s:.1f}",
        f"{1000 * timing.step_s:.1f}",
        f"{timing.audio_s_per_s:.0f}",
        f"{timing.utterances_per_s:.1f}",
        UNKNOWN if timing.flops is None else f"{timing.flops_per_s / 1e9:.0f}",
        f"{timing.ceiling_flops_per_s / 1e9:.0f}",
        UNKNOWN if timing.flops is None else f"{100 * timing.model_flops_utilisation:.1f}",
        UNKNOWN if memory is None else f"{memory / 2**20:.0f}",
        f"{timing.compile_s:.1f}",
    ]


def _range(values) -> str:
    values = sorted(set(values))
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
