"""What each run of a report is charged: which machine it ran on, its cost and its energy."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tfasr.errors import UsageError
from tfasr.reports.cluster import WorkerMachine, worker_machines
from tfasr.tta.costs import Cost, HardwareConfig, cost_of, load_hardware
from tfasr.tta.energy import (
    EnergySpan,
    EnergyUse,
    energy_of_hosts,
    energy_spans,
    read_samples,
)
from tfasr.tta.run import Run


@dataclass(frozen=True)
class MeasuredEnergy:
    """What energy counters measured in a run, counting each host once."""

    sources: tuple[tuple[list[EnergySpan], list[str]], ...]  # by host, with counters' names
    problem: str = ""  # why there is no sum

    @property
    def counters(self) -> list[str]:
        return sorted(name for _, names in self.sources for name in names)

    def use(self, run: Run, until_us: float) -> EnergyUse | None:
        """Returns the energy of a run's start, or None if a host's is unknown."""
        if self.problem or not self.sources:
            return None
        return energy_of_hosts(self.sources, run.timeline.pieces, until_us=until_us)


def measured_energy(run: Run) -> MeasuredEnergy:
    """Returns the energy of all hosts of a run, as far as it was measured."""
    if not run.path.is_dir():
        return MeasuredEnergy(())
    by_host = []
    samples = read_samples(run.path)
    if samples:
        by_host.append((samples, sorted({sample.counter for sample in samples})))
    facts = [run.events[place].get("value") for place in run.timeline.of("cluster")]
    counts = [fact.get("workers") for fact in facts if isinstance(fact, dict)]
    workers = max((count for count in counts if isinstance(count, int)), default=0)
    problem = ""
    if workers > 1:
        machines = worker_machines(run.path)
        others = [m for m in machines if m.rank and m.counters]
        if samples or others:
            problem = _problem(workers, machines, bool(samples))
        by_host += [(m.samples, [f"{n} of worker {m.rank}" for n in m.counters]) for m in others]
    spans = ((energy_spans(samples, run.timeline), names) for samples, names in by_host)
    return MeasuredEnergy(tuple(spans), problem)


def _problem(workers: int, machines: Sequence[WorkerMachine], chief_measured: bool) -> str:
    missing = sorted(set(range(workers)) - {m.rank for m in machines})
    if missing:
        return (
            f"no energy: of the machines of workers {', '.join(map(str, missing))} nothing is "
            "known; copy their events-worker files into the run's folder"
        )
    unmeasured = {m.rank: m for m in machines if not (m.measured if m.rank else chief_measured)}
    if unmeasured:
        named = ", ".join(f"worker {rank} ({m.hostname})" for rank, m in unmeasured.items())
        return f"no energy: the host of {named} has no energy counter, so a sum would be incomplete"
    return ""


@dataclass(frozen=True)
class TargetCharge:
    """Cost and energy from the start of the run's process until a target was met."""

    cost: Cost
    energy: EnergyUse | None


@dataclass(frozen=True)
class RunCharges:
    hardware: HardwareConfig | None  # its machine, None where it is not known
    targets: list[TargetCharge | None]  # one for each target of the report; None if never met
    counters: list[str]  # the energy counters that were sampled
    notes: list[str]  # caveats for readers

    @property
    def known(self) -> bool:
        return self.hardware is not None or bool(self.counters or self.notes)


class Machines:
    """On which machine a run ran: what ``--hardware`` names, else what the run recorded.

    ``asked`` has "FILE" for all runs, or "NAME=FILE" for the run or folder of that name, which
    takes precedence. Raises `UsageError` for a wrong or repeated description.
    """

    def __init__(self, asked: Iterable[str] = (), price_usd_per_hour: float | None = None):
        if price_usd_per_hour is not None and not 0 <= price_usd_per_hour < math.inf:
            message = "--price_usd_per_hour must be a number of at least 0."
            raise UsageError(f"{message} Received: {price_usd_per_hour}.")
        self._price = (
            {} if price_usd_per_hour is None else {"price_usd_per_hour": price_usd_per_hour}
        )
        self._by_name: dict[str, HardwareConfig] = {}
        for text in asked:
            name, _, file = text.rpartition("=") if not Path(text).is_file() else ("", "", text)
            if name in self._by_name:
                of = f"the run {name!r}" if name else "all runs"
                raise UsageError(f"--hardware must name one machine for {of}. Received: two.")
            self._by_name[name] = load_hardware(file, price_usd_per_hour=price_usd_per_hour)

    def of(self, run: Run, folder: str) -> tuple[HardwareConfig | None, list[str]]:
        """Returns a run's machine, or None, and notes about it."""
        for name in (run.name, folder, ""):
            if name in self._by_name:
                return self._by_name[name], []
        stated = [run.events[index].get("value") for index in run.timeline.of("hardware")]
        if not stated and not self._price:
            return None, []
        if any(other != stated[0] for other in stated):
            return None, ["sessions state different machines: choose with --hardware"]
        fact = stated[0] if stated and isinstance(stated[0], dict) else {}
        names = {field.name for field in fields(HardwareConfig)} & fact.keys()
        try:
            return HardwareConfig(**{name: fact[name] for name in names} | self._price), []
        except (TypeError, ValueError) as error:
            raise UsageError(f"The run {run.name} must describe its machine: {error}") from error

    def check_all_used(self, names: Collection[str]) -> None:
        unused = sorted(self._by_name.keys() - set(names) - {""})
        if unused:
            raise UsageError(
                f"--hardware NAME=FILE must name a run of the report. Received: {unused[0]!r}. "
                f"Runs and folders: {', '.join(sorted(set(names)))}"
            )


def charges_of(
    run: Run,
    machine: tuple[HardwareConfig | None, list[str]],
    untils: Sequence[Mapping[str, float] | None],
) -> RunCharges:
    """Returns a run's charges; ``untils`` has for each target seconds by interval, or None."""
    hardware, notes = machine[0], list(machine[1])
    measured = measured_energy(run)
    charges: list[TargetCharge | None] = []
    for until in untils:
        charges.append(None)
        if until is not None:
            charged_s = math.fsum(until.values())
            energy = measured.use(run, round(charged_s * 1e6))
            charges[-1] = TargetCharge(cost_of(hardware, charged_s, energy), energy)
    met = [charge for charge in charges if charge]
    counters = [] if measured.problem else measured.counters
    if measured.problem:
        notes.append(measured.problem)
    if hardware is not None and hardware.hourly_usd is None:
        notes.append("no price in dollars: --price_usd_per_hour gives one")
    if counters:
        notes.append(f"energy of {', '.join(counters)} only")
    unknown_s = [charge.energy.total_unknown_s for charge in met if charge.energy is not None]
    for seconds in list(filter(None, unknown_s))[:1]:
        notes.append(f"without the energy of {seconds:.1f} s, which is unknown")
    if any(charge.cost.kwh_is == "estimate" for charge in met):
        notes.append(f"energy estimated from a nominal power of {hardware.power_w:g} W")
    return RunCharges(hardware, charges, counters, notes)
