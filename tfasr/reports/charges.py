"""What each run of a report is charged: which machine it ran on, its cost and its energy."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.reports.cluster import WorkerMachine, worker_machines
from tfasr.tta.costs import Cost, HardwareConfig, cost_of, load_hardware
from tfasr.tta.energy import (
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
        """Returns the energy of a run's beginning, or None if that of a host is unknown."""
        if self.problem or not self.sources:
            return None
        each = [
            energy_use(spans, run.timeline.pieces, names, until_us=until_us)
            for spans, names in self.sources
        ]
        return None if None in each else added(each)


def measured_energy(run: Run) -> MeasuredEnergy:
    """Returns what is known of the energy of all hosts of a run."""
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


@dataclass(frozen=True)
class TargetCharge:
    """Cost and energy until a target was met, from the creation of the run's process if that is
    known.
    """

    cost: Cost
    energy: EnergyUse | None


@dataclass(frozen=True)
class RunCharges:
    hardware: HardwareConfig | None  # its machine, None where it is not known
    targets: list[TargetCharge | None]  # one for each target of the report; None if never met
    counters: list[str]  # the energy counters that were sampled
    notes: list[str]  # what a reader has to know

    @property
    def known(self) -> bool:
        return self.hardware is not None or bool(self.counters or self.notes)


class Machines:
    """On which machine a run ran: what ``--hardware`` names, else what the run recorded.

    ``asked`` has "FILE" for all runs, or "NAME=FILE" for the run or folder of that name, which goes
    before the file for all. Raises `UsageError` for a wrong or repeated description.
    """

    def __init__(self, asked: Iterable[str] = (), price_usd_per_hour: float | None = None):
        self._price = price_usd_per_hour
        self._by_name: dict[str, HardwareConfig] = {}
        for one in asked:
            name, _, file = one.rpartition("=") if not Path(one).is_file() else ("", "", one)
            if name in self._by_name:
                of = f"the run {name!r}" if name else "all runs"
                raise UsageError(f"--hardware must name one machine for {of}. Received: two.")
            self._by_name[name] = load_hardware(file, price_usd_per_hour=price_usd_per_hour)

    def of(self, run: Run, folder: str) -> tuple[HardwareConfig | None, list[str]]:
        """Returns a run's machine, or None, and notes about it."""
        names = [name for name in (run.name, folder) if name in self._by_name]
        if names:
            return self._by_name[names[0]], []
        if "" in self._by_name:
            return self._by_name[""], []
        return self._recorded(run)

    def check_all_used(self, names: Collection[str]) -> None:
        unused = sorted(self._by_name.keys() - set(names) - {""})
        if unused:
            raise UsageError(
                f"--hardware NAME=FILE must name a run of the report. Received: {unused[0]!r}. "
                f"Runs and folders: {', '.join(sorted(set(names)))}"
            )

    def _recorded(self, run: Run) -> tuple[HardwareConfig | None, list[str]]:
        stated = [run.events[index].get("value") for index in run.timeline.of("hardware")]
        price = {} if self._price is None else {"price_usd_per_hour": self._price}
        if not stated and not price:
            return None, []
        if any(other != stated[0] for other in stated):
            return None, ["sessions state different machines: choose with --hardware"]
        return _from_ledger(stated[0] if stated else {}, price, run.name), []


def charges_of(
    run: Run,
    machine: tuple[HardwareConfig | None, list[str]],
    untils: Sequence[Mapping[str, float] | None],
) -> RunCharges:
    """Returns the cost and energy of a run on a machine of `Machines.of`; ``untils`` has for each
    target the seconds by interval until it was met, or None.
    """
    hardware, notes = machine
    measured = measured_energy(run)
    charges = [
        None if until is None else _charge(run, hardware, measured, until) for until in untils
    ]
    told = [*notes, *([measured.problem] if measured.problem else [])]
    counters = [] if measured.problem else measured.counters
    return RunCharges(hardware, charges, counters, [*told, *_notes(hardware, charges, counters)])


def _charge(
    run: Run, hardware: HardwareConfig | None, measured: MeasuredEnergy, until: Mapping[str, float]
) -> TargetCharge:
    charged_s = math.fsum(until.values())
    energy = measured.use(run, round(charged_s * 1e6))
    return TargetCharge(cost_of(hardware, charged_s, energy), energy)


def _notes(
    hardware: HardwareConfig | None, charges: Iterable[TargetCharge | None], counters: Sequence[str]
) -> list[str]:
    notes = []
    if hardware is not None and hardware.hourly_usd is None:
        notes.append("no price in dollars: --price_usd_per_hour gives one")
    if counters:
        notes.append(f"energy of {', '.join(counters)}, and of nothing else")
    for charge in charges:
        energy = charge.energy if charge else None
        if energy is not None and energy.total_unknown_s:
            notes.append(f"the energy of {energy.total_unknown_s:.1f} s is unknown, and not in it")
            break
    if any(charge and charge.cost.kwh_is == "estimate" for charge in charges):
        notes.append(f"energy estimated from a nominal power of {hardware.power_w:g} W")
    return notes


def _from_ledger(value: object, price: dict[str, float], name: str) -> HardwareConfig:
    known = {field.name for field in fields(HardwareConfig)}
    stated: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    try:
        return HardwareConfig(**{k: v for k, v in stated.items() if k in known} | price)
    except (TypeError, ValueError) as error:
        raise UsageError(f"The run {name} must describe its machine: {error}") from error
