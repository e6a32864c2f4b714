"""One model's measured times on one backend."""

import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BackendTimes:
    """One model on one backend.

    Attributes:
        model: its name.
        backend: Keras's.
        batch_size: utterances of a step.
        first_s: seconds of the first step of each process.
        forward_ms: milliseconds of each forward pass, a list a process.
        step_ms: milliseconds of each whole step, a list a process.
    """

    model: str
    backend: str
    batch_size: int
    first_s: list[float]
    forward_ms: list[list[float]]
    step_ms: list[list[float]]

    @property
    def median_forward_ms(self) -> float:
        """The median of the processes' medians."""
        return statistics.median(map(statistics.median, self.forward_ms))

    @property
    def median_step_ms(self) -> float:
        """The median of the processes' medians."""
        return statistics.median(map(statistics.median, self.step_ms))

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "model": self.model,
            "backend": self.backend,
            "batch_size": self.batch_size,
            "forward_ms": self.median_forward_ms,
            "step_ms": self.median_step_ms,
            "utterances_per_s": 1000 * self.batch_size / self.median_step_ms,
            "first_step_s": statistics.median(self.first_s),
            "all_forward_ms": self.forward_ms,
            "all_step_ms": self.step_ms,
        }


def collected(
    model: str, backend: str, batch_size: int, answers: list[dict[str, Any]]
) -> BackendTimes:
    """Returns one model's times from what `tfasr.bench.backends.measure.measure` returned."""
    found = [answer["models"][model] for answer in answers]
    columns = ([one[key] for one in found] for key in ("first_s", "forward_ms", "step_ms"))
    return BackendTimes(model, backend, batch_size, *columns)
