"""What the exchange of gradients took in the steps, against what the workers' link can do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.analysis.stragglers import WorkerPart


@dataclass(frozen=True)
class Exchange:
    """A run's exchange, over the steps of its workers' table."""

    workers: int  # of its last session
    gradient_bytes: int  # that each worker has, and all sum up in a step
    steps: int  # of the chief
    exchange_s: float  # from the last worker's gradients until all were summed and applied
    share: float  # that part of the chief's steps, a fraction
    achieved_bytes_per_s: float  # what the chief sent to sum gradients up in a ring, in that time
    # The same for a buffer of their size and nothing else, before the first step of the last
    # session; None where it was not measured
    measured_bytes_per_s: float | None
    latency_s: float | None  # of a sum of a few numbers; None likewise


def exchange_of(parts: Sequence[WorkerPart], cluster: Any) -> Exchange | None:
    """Returns a run's exchange from its workers' parts and the ledger's fact; None if unknown."""
    known = cluster if isinstance(cluster, dict) else {}
    size, count = known.get("gradient_bytes"), known.get("workers")
    if not parts or not _positive(size) or not _positive(count):
        return None
    chief = parts[0]
    if not chief.steps or not chief.exchange_s or not chief.step_s:
        return None
    link = known.get("link") if isinstance(known.get("link"), dict) else {}
    bandwidth, latency_s = link.get("bytes_per_s"), link.get("small_s")
    return Exchange(
        workers=int(count),
        gradient_bytes=int(size),
        steps=chief.steps,
        exchange_s=chief.exchange_s,
        share=chief.exchange_s / chief.step_s,
        achieved_bytes_per_s=chief.sent_buffers * size / chief.exchange_s,
        measured_bytes_per_s=bandwidth if _positive(bandwidth) else None,
        latency_s=latency_s if _positive(latency_s) else None,
    )


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf
