"""The measured times of one model on one backend."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelTimes:
    """What one process measured of one model.

    Attributes:
        model: its name.
        layout: of its images; "" where it has none.
        first_s: seconds of the first step, which compiles.
        forward_ms: milliseconds of each forward pass.
        step_ms: milliseconds of each whole step.
        reason: why the backend cannot run it so, or "".
    """

    model: str
    layout: str = ""
    first_s: float | None = None
    forward_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class BackendAnswer:
    """What one process measured.

    Attributes:
        backend: see `tfasr.bench.probes.backend.describe_backend`.
        models: one entry for each model and layout.
    """

    backend: dict[str, Any]
    models: list[ModelTimes]


@dataclass(frozen=True)
class BackendTimes:
    """One model on one backend, over all processes.

    Attributes:
        model: its name.
        layout: of its images; "" where it has none.
        backend: Keras's, or "native_torch".
        batch_size: utterances of a step.
        first_s: seconds of the first step of each process.
        forward_ms: milliseconds of each forward pass, a list a process.
        step_ms: milliseconds of each whole step, a list a process.
        reason: why there are none, or "".
    """

    model: str
    layout: str
    backend: str
    batch_size: int
    first_s: list[float]
    forward_ms: list[list[float]]
    step_ms: list[list[float]]
    reason: str = ""

    @classmethod
    def of(cls, backend: str, batch_size: int, processes: Sequence[ModelTimes]) -> "BackendTimes":
        """Puts together what the processes of a backend measured of one model."""
        first = processes[0]
        return cls(
            first.model,
            first.layout,
            backend,
            batch_size,
            [one.first_s for one in processes],
            [one.forward_ms for one in processes],
            [one.step_ms for one in processes],
            first.reason,
        )

    @property
    def median_forward_ms(self) -> float | None:
        """The median of the processes' medians; None where it was not run."""
        return _median(self.forward_ms)

    @property
    def median_step_ms(self) -> float | None:
        """The median of the processes' medians; None where it was not run."""
        return _median(self.step_ms)

    @property
    def utterances_per_s(self) -> float | None:
        """Utterances per second; None where it was not run."""
        step_ms = self.median_step_ms
        return None if step_ms is None else 1000 * self.batch_size / step_ms

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        ran = not self.reason
        return {
            "model": self.model,
            "layout": self.layout,
            "backend": self.backend,
            "batch_size": self.batch_size,
            "forward_ms": self.median_forward_ms,
            "step_ms": self.median_step_ms,
            "utterances_per_s": self.utterances_per_s,
            "first_step_s": statistics.median(self.first_s) if ran else None,
            "all_forward_ms": self.forward_ms,
            "all_step_ms": self.step_ms,
            "reason": self.reason,
        }


def _median(processes: Sequence[Sequence[float]]) -> float | None:
    measured = [statistics.median(one) for one in processes if one]
    return statistics.median(measured) if measured else None
