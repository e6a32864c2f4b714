"""What one batch size in one precision costs, and where a larger one costs more."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tfasr.bench.probes.cliffs import is_cliff


@dataclass(frozen=True)
class BatchTimes:
    """What a process measured of one batch size.

    Attributes:
        batch: utterances.
        seconds: of every call, the warm-up left out.
        warmup_s: seconds of the calls before.
        peak_memory_mib: see `SweepRow`.
        device_memory_mib: see `SweepRow`.
        reason: why it was not run, or "".
    """

    batch: int
    seconds: list[float] = field(default_factory=list)
    warmup_s: list[float] = field(default_factory=list)
    peak_memory_mib: float | None = None
    device_memory_mib: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class InferenceTimes:
    """What a process measured in inference.

    Attributes:
        batches: growing.
        logit_error: the root of the mean squared difference from the logits of a float32 model
            with the same random weights, over the root of their mean square.
    """

    batches: list[BatchTimes]
    logit_error: float


@dataclass(frozen=True)
class SweepRow:
    """One batch size in one precision.

    Attributes:
        mode: "inference" or "training".
        precision: of `tfasr.precision.swept`.
        batch: utterances.
        p50_s: median seconds of a batch; None where it was not run.
        p90_s: what nine in ten stay below.
        p99_s: what 99 in a hundred stay below.
        calls: measured, the warm-up left out.
        peak_memory_mib: the most that the process had held after this batch size, which comes after
            all smaller ones; None where it cannot be told.
        device_memory_mib: the same of TensorFlow on the GPU for this batch size alone.
        reason: why it was not run, or "".
        cliff: whether an utterance takes longer than in a smaller batch.
    """

    mode: str
    precision: str
    batch: int
    p50_s: float | None
    p90_s: float | None = None
    p99_s: float | None = None
    calls: int = 0
    peak_memory_mib: float | None = None
    device_memory_mib: float | None = None
    reason: str = ""
    cliff: bool = False

    @property
    def utterance_s(self) -> float | None:
        """Seconds for each utterance of a batch."""
        return None if self.p50_s is None else self.p50_s / self.batch

    @classmethod
    def of(cls, mode: str, precision: str, measured: "BatchTimes") -> "SweepRow":
        """Makes a row of what a process measured of a batch size."""
        seconds = measured.seconds
        quantiles = np.quantile(seconds, [0.5, 0.9, 0.99]).tolist() if seconds else [None] * 3
        return cls(
            mode,
            precision,
            measured.batch,
            *quantiles,
            calls=len(seconds),
            peak_memory_mib=measured.peak_memory_mib,
            device_memory_mib=measured.device_memory_mib,
            reason=measured.reason,
        )


def flag_cliffs(rows: Sequence[SweepRow], tolerance: float) -> list[SweepRow]:
    """Returns the rows, those marked whose utterances take longer than in a smaller batch.

    Args:
        rows: of any modes and precisions; each is compared within its own.
        tolerance: share by which an utterance may take longer before it counts.
    """
    flagged = []
    for row in rows:
        own = [
            (other.batch, other.utterance_s)
            for other in rows
            if (other.mode, other.precision) == (row.mode, row.precision)
        ]
        cliff = is_cliff(row.batch, row.utterance_s, own, tolerance)
        flagged.append(dataclasses.replace(row, cliff=cliff))
    return flagged


def speedup(row: SweepRow, rows: Sequence[SweepRow]) -> float | None:
    """Returns how many times as fast a row is as float32 at the same batch size; None if untold."""
    found = [
        other.p50_s
        for other in rows
        if (other.mode, other.precision, other.batch) == (row.mode, "float32", row.batch)
    ]
    if row.p50_s is None or not found or found[0] is None:
        return None
    return statistics.fmean(found) / row.p50_s
