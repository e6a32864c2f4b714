"""The energy of a run whose workers are on several hosts: every host once, or none at all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.analysis.worker_machines import WorkerMachine, worker_machines
from tfasr.tta.costs.energy import (
    EnergySample,
    EnergySpan,
    EnergyUse,
    added,
    energy_spans,
    energy_use,
    read_samples,
)
from tfasr.tta.run import Run


@dataclass(frozen=True)
class MeasuredEnergy:
    """What energy counters showed in a run."""

    # Of each host its spans on the run's clock, and the names of its counters
    sources: tuple[tuple[list[EnergySpan], list[str]], ...]
    problem: str = ""  # why there is no sum; "" where there is one, or nothing was measured

    @property
    def counters(self) -> list[str]:
        return sorted(name for _, names in self.sources for name in names)

    def use(self, run: Run, until_us: float) -> EnergyUse | None:
        """Returns the energy of a run's beginning; None where that of a host is not known."""
        if self.problem or not self.sources:
            return None
        each = [
            energy_use(spans, run.timeline.pieces, names, until_us=until_us)
            for spans, names in self.sources
        ]
        return None if None in each else added(each)


def measured_energy(run: Run) -> MeasuredEnergy:
    """Returns what is known of a run's energy: of the chief's host, and of all others."""
    if not run.path.is_dir():
        return MeasuredEnergy(())
    samples = read_samples(run.path)
    own = [_source(run, samples, sorted({sample.counter for sample in samples}))] if samples else []
    workers = _most_workers(run.timeline.of("cluster"), run)
    if workers < 2:
        return MeasuredEnergy(tuple(own))
    machines = worker_machines(run.path)
    others = [m for m in machines if m.rank and m.counters]
    if not own and not others:
        return MeasuredEnergy(())
    problem = _problem(workers, machines, own)
    more = [
        _source(run, m.samples, [f"{name} of worker {m.rank}" for name in m.counters])
        for m in others
    ]
    return MeasuredEnergy((*own, *more), problem)


def _source(
    run: Run, samples: Iterable[EnergySample], names: list[str]
) -> tuple[list[EnergySpan], list[str]]:
    return energy_spans(samples, run.timeline), names


def _most_workers(places: Iterable[int], run: Run) -> int:
    counts: list[Any] = []
    for place in places:
        value = run.events[place].get("value")
        counts.append(value.get("workers") if isinstance(value, dict) else None)
    return max((count for count in counts if isinstance(count, int)), default=0)


def _problem(workers: int, machines: Sequence[WorkerMachine], own: Sequence[Any]) -> str:
    unmeasured = {m.rank: m for m in machines if not (own if m.rank == 0 else m.measured)}
    missing = sorted(set(range(workers)) - {m.rank for m in machines})
    if missing:
        return (
            f"no energy: of the machines of workers {', '.join(map(str, missing))} nothing is "
            "known; copy their events-worker files into the run's folder"
        )
    if unmeasured:
        named = ", ".join(f"worker {rank} ({m.hostname})" for rank, m in unmeasured.items())
        return f"no energy: a sum would lack that of {named}, whose host shows no energy counter"
    return ""
