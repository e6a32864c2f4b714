"""Estimates whether the next larger batch fits into the processor's memory."""

from collections.abc import Sequence

from tfasr.telemetry.memory import available_bytes, peak_bytes


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


class MemoryLimit:
    """Records the peak memory of growing batches and refuses the next if it would not fit.

    Args:
        share: of the free memory that a batch may use.
    """

    def __init__(self, share: float):
        self._share = share
        self._batches: list[int] = []
        self._peaks: list[float] = []

    def refusal(self, batch: int) -> str:
        """Returns why a batch would not fit, or ""."""
        expected = expected_bytes(self._batches, self._peaks, batch)
        if expected is None:
            return ""
        allowed = (peak_bytes() or 0) + self._share * available_bytes()
        if expected <= allowed:
            return ""
        return f"needs {expected / 2**30:.1f} GiB; {allowed / 2**30:.1f} GiB may be used"

    def ran(self, batch: int) -> None:
        """Records that a batch has run, with the process's peak memory."""
        peak = peak_bytes()
        if peak is not None:
            self._batches.append(batch)
            self._peaks.append(float(peak))
