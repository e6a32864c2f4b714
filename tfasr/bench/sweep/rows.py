"""What one batch size in one precision costs, and where a larger one costs more."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SweepRow:
    """One batch size in one precision.

    Attributes:
        mode: "inference" or "training".
        precision: see `tfasr.bench.sweep.config.PRECISIONS`.
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
    def of(cls, mode: str, precision: str, measured: dict[str, Any]) -> "SweepRow":
        """Makes a row of what a process measured of a batch size.

        Args:
            mode: "inference" or "training".
            precision: its name.
            measured: ``batch``, ``seconds`` of every call, ``reason``, and the memory's fields.
        """
        seconds = measured["seconds"]
        quantiles = np.quantile(seconds, [0.5, 0.9, 0.99]).tolist() if seconds else [None] * 3
        memory = {name: measured.get(name) for name in ("peak_memory_mib", "device_memory_mib")}
        return cls(
            mode,
            precision,
            measured["batch"],
            *quantiles,
            calls=len(seconds),
            reason=measured["reason"],
            **memory,
        )


def flag_cliffs(rows: Sequence[SweepRow], tolerance: float) -> list[SweepRow]:
    """Returns the rows, those marked whose utterances take longer than in a smaller batch.

    Args:
        rows: of any modes and precisions; each is compared within its own.
        tolerance: share by which an utterance may take longer before it counts.
    """
    flagged = []
    for row in rows:
        smaller = [
            other.utterance_s
            for other in rows
            if (other.mode, other.precision) == (row.mode, row.precision)
            and other.batch < row.batch
            and other.utterance_s is not None
        ]
        slower = (
            row.utterance_s is not None
            and bool(smaller)
            and row.utterance_s > min(smaller) * (1 + tolerance)
        )
        flagged.append(dataclasses.replace(row, cliff=slower))
    return flagged


def expected_bytes(batches: Sequence[int], peaks: Sequence[float], batch: int) -> float | None:
    """Returns the memory that a larger batch will take, going on in a line from the last two.

    Args:
        batches: measured, growing.
        peaks: bytes that each took.
        batch: the next one.

    Returns:
        Bytes, or None with fewer than two measurements.
    """
    if len(batches) < 2:
        return None
    slope = (peaks[-1] - peaks[-2]) / (batches[-1] - batches[-2])
    return peaks[-1] + max(slope, 0.0) * (batch - batches[-1])


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
