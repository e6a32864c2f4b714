"""The machine, cost and energy of each run of a report, and the workers of its cluster.

A cluster's workers write files next to the chief's ledger, ``events-worker-RANK.jsonl``:
the times of their steps, and samples of their machines. What is made of them here is
kept in `tfasr.reports.numbers.RunAnalysis`; `tfasr.reports.tables.machines` shows it.

Workers' clocks are not compared. A step ends for all workers at the same moment, when
the gradients have been summed. Each worker records how long before that moment its own
gradients were ready. The last one waited for nobody; the others waited for as long as
they were ready before it.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import WORKER_EVENTS, worker_host_file
from tfasr.ledger.events import read_events
from tfasr.ledger.intervals import metadata
from tfasr.ledger.schema import Cluster, Exchanged, Round, WorkerLeft, wrong_event
from tfasr.ledger.timeline import Timeline
from tfasr.tta.costs import Cost, HardwareConfig, cost_of, load_hardware
from tfasr.tta.energy import (
    EnergySample,
    EnergySpan,
    EnergyUse,
    energy_of_hosts,
    energy_spans,
    read_samples,
)
from tfasr.tta.host import HostUse, read_host_file, whole_use
from tfasr.tta.run import Run

# Events of a worker's file, as JSON objects.
Events = Sequence[Mapping[str, Any]]
# A step that workers can agree on: the number of the session, and of the step.
Place = tuple[int, int]


def read_worker_files(run_dir: Path) -> dict[int, Events]:
    """Returns the events of each worker by its rank; a damaged file counts as empty.

    Events of a wrong type, see `tfasr.ledger.schema`, are left out.
    """
    files: dict[int, Events] = {}
    for path in run_dir.glob(WORKER_EVENTS):
        rank = path.stem.rpartition("-")[2]
        if not rank.isdecimal():
            continue

        try:
            events = [event for event in read_events(path) if not wrong_event(event)]
        except (UsageError, OSError):
            events = []

        files[int(rank)] = events

    return files


def _places(events: Events, key: str) -> Iterator[tuple[Place, Any, Any]]:
    """Yields place, value and metadata of each event of a key that belongs to a step."""
    for event in events:
        if event["key"] == key:
            about = metadata(event)
            place = (about.get("session"), about.get("step"))
            if None not in place:
                yield place, event.get("value"), about


# The times of a step that a worker records, in seconds.
_SECONDS = ("input_wait_s", "step_s", "ready_s")
# A worker's record of each step.
Steps = dict[Place, Mapping[str, Any]]


@dataclass(frozen=True)
class WorkerTimes:
    """A worker's times in a run.

    Sums over the steps that all workers recorded, without those in which a worker
    compiled. It has many fields because each is a column of the table of workers.

    Attributes:
        rank: of the worker; 0 is the chief.
        steps: number of these steps.
        utterances: number that this worker trained on.
        input_wait_s: seconds that it waited for its part of each batch.
        step_s: seconds from the end of that wait until all workers' gradients were
            applied.
        waited_s: part of ``step_s`` spent waiting for the last worker, not for the
            network.
        held_up_s: seconds that others waited for this worker: the longest wait of each
            step in which it was last.
        exchange_s: seconds from when the last worker had its gradients until all
            gradients were applied, without the exchanges of synchronised batch
            normalisation.
        sent_buffers: bytes sent over the gradients' size: each step adds 2 (n - 1) / n
            in a ring of n workers.
    """

    rank: int
    steps: int
    utterances: int
    input_wait_s: float
    step_s: float
    waited_s: float
    held_up_s: float
    exchange_s: float
    sent_buffers: float = 0.0

    @property
    def waited_share(self) -> float:
        """The share of its steps that it waited for the last worker."""
        if not self.step_s:
            return 0.0

        return self.waited_s / self.step_s


def times_of_workers(files: Mapping[int, Events]) -> list[WorkerTimes]:
    """Returns each worker's times in the order of ranks.

    [] if fewer than two workers recorded steps. ``files`` are those of
    `read_worker_files`.
    """
    noted: dict[int, Steps] = {}
    for rank, events in files.items():
        steps = _places(events, "worker_step")
        noted[rank] = {place: value for place, value, _ in steps if _possible(value)}

    by_rank: dict[int, list[WorkerTimes]] = {}
    for parts in _noted_by_all(noted):
        for times in _times_of_step(parts):
            by_rank.setdefault(times.rank, []).append(times)

    if len(by_rank) < 2:
        return []

    return [_summed(by_rank[rank]) for rank in sorted(by_rank)]


def _summed(steps: Sequence[WorkerTimes]) -> WorkerTimes:
    """Returns the sum of a worker's times over steps."""
    sums = {name: math.fsum(getattr(step, name) for step in steps) for name in _SUMMED}
    utterances = sum(step.utterances for step in steps)

    return replace(steps[0], steps=len(steps), utterances=utterances, **sums)


# The fields of `WorkerTimes` that are sums of floats.
_SUMMED = [field.name for field in fields(WorkerTimes)][3:]


def _possible(step: Mapping[str, Any] | None) -> bool:
    """Whether a step's seconds are all there and not negative."""
    return step is not None and all(step[name] >= 0 for name in _SECONDS)


def _noted_by_all(noted: Mapping[int, Steps]) -> list[dict[int, Mapping[str, Any]]]:
    """Returns the steps that all workers of a session recorded, in order, by rank.

    Steps in which a worker compiled are left out: they say nothing about waiting.
    """
    sessions: dict[int, set[int]] = {}
    for rank, steps in noted.items():
        for session, _ in steps:
            sessions.setdefault(session, set()).add(rank)

    together = []
    for place in sorted({place for steps in noted.values() for place in steps}):
        ranks = sessions[place[0]]
        parts = {rank: noted[rank][place] for rank in ranks if place in noted[rank]}
        compiled = any(part.get("compiled") for part in parts.values())

        if len(parts) == len(ranks) > 1 and not compiled:
            together.append(parts)

    return together


def _times_of_step(parts: Mapping[int, Mapping[str, Any]]) -> Iterator[WorkerTimes]:
    """Yields each worker's times in one step.

    As all workers end a step at the same moment, the worker that began last has the
    shortest step, and the one whose gradients were ready last has the shortest time from
    then to the end. With synchronised batch normalisation, workers also wait before they
    have gradients: only step lengths show this wait.

    Args:
        parts: what each worker recorded of the step, by rank.
    """
    from_ready_s = {
        rank: max(part["step_s"] - part["ready_s"], 0.0) for rank, part in parts.items()
    }
    shortest_s = min(part["step_s"] for part in parts.values())
    soonest_s = min(from_ready_s.values())
    waited_s = {
        rank: max(part["step_s"] - shortest_s, from_ready_s[rank] - soonest_s)
        for rank, part in parts.items()
    }
    last = min(waited_s, key=waited_s.get)
    longest_s = max(waited_s.values())

    for rank, part in parts.items():
        held_up_s = longest_s if rank == last else 0.0

        yield WorkerTimes(
            rank=rank,
            steps=1,
            utterances=part["utterances"],
            input_wait_s=part["input_wait_s"],
            step_s=part["step_s"],
            waited_s=waited_s[rank],
            held_up_s=held_up_s,
            exchange_s=soonest_s,
            sent_buffers=2 * (len(parts) - 1) / len(parts),
        )


def exchange_of(
    parts: Sequence[WorkerTimes], cluster: Cluster | None
) -> dict[str, Any] | None:
    """Returns how workers exchanged gradients over the chief's steps, or None if unknown.

    Args:
        parts: of `times_of_workers`, the chief first.
        cluster: as the chief's ledger describes it; None if it doesn't.
    """
    if not parts or cluster is None:
        return None
    if cluster.gradient_bytes <= 0 or cluster.workers <= 0:
        return None

    chief = parts[0]
    if not chief.steps or not chief.exchange_s or not chief.step_s:
        return None

    size = cluster.gradient_bytes

    return {
        # Number in the run's last session.
        "workers": cluster.workers,
        # Size of one worker's gradients.
        "gradient_bytes": int(size),
        "steps": chief.steps,
        # From the last worker's gradients until all were summed and applied.
        "exchange_s": chief.exchange_s,
        "share": chief.exchange_s / chief.step_s,
        # Bytes that the chief sent in the ring, divided by exchange_s.
        "achieved_bytes_per_s": chief.sent_buffers * size / chief.exchange_s,
        # The same speed, measured by exchanging as many bytes before the first step.
        "measured_bytes_per_s": getattr(cluster.link, "bytes_per_s", None),
        # Seconds to sum a few numbers.
        "latency_s": getattr(cluster.link, "small_s", None),
    }


def rounds_of_workers(timeline: Timeline) -> list[dict[str, Any]]:
    """Returns, by rank, each worker's part of a run whose workers trained in rounds.

    It is read from the chief's ledger; [] for other runs.
    """
    rounds: dict[int, list[Round]] = {}
    held_up_s = Counter()
    departures = Counter(worker.rank for worker in timeline.all(WorkerLeft))

    for exchanged in timeline.all(Exchanged):
        held_up_s[exchanged.waited_for] += exchanged.waited_s
        for delivered in exchanged.workers:
            rounds.setdefault(delivered.rank, []).append(delivered)

    return [
        {
            # 0 is the chief.
            "rank": rank,
            # Number of rounds that it delivered.
            "rounds": len(of_rank),
            "utterances": sum(delivered.utterances for delivered in of_rank),
            # Seconds of its steps.
            "train_s": math.fsum(delivered.train_s for delivered in of_rank),
            # Seconds that its weights and changes spent on the network.
            "link_s": math.fsum(delivered.link_s for delivered in of_rank),
            # Seconds that the chief waited in rounds in which this worker came last.
            "held_up_s": held_up_s[rank],
            # The largest number of others' changes added during one of its rounds.
            "staleness": max(delivered.staleness for delivered in of_rank),
            # How often the other workers went on without it.
            "left": departures[rank],
        }
        for rank, of_rank in sorted(rounds.items())
    ]


@dataclass(frozen=True)
class WorkerMachine:
    """A worker's machine, with means over the time in which it was sampled.

    Attributes:
        rank: of the worker.
        hostname: of its machine; "" if unknown.
        cpu_percent: how busy all cores of its host were; None if unknown.
        process_percent: the worker's part of ``cpu_percent``; None if unknown.
        gpu_percent: the mean over the GPUs that it sees; None without GPUs.
        counters: its host's energy counters that no lower rank has counted.
        shares_with: the lower rank that counts this host's energy, or None.
        samples: of its ``counters``, on the chief's monotonic clock.
        host: what the machine gave it in all its time; None if unknown.
    """

    rank: int
    hostname: str
    cpu_percent: float | None
    process_percent: float | None
    gpu_percent: float | None
    counters: tuple[str, ...]
    shares_with: int | None
    samples: tuple[EnergySample, ...]
    host: HostUse | None = None

    @property
    def measured(self) -> bool:
        """Whether the energy of its host is known."""
        return bool(self.counters) or self.shares_with is not None


def machines_of(
    files: Mapping[int, Events], run_dir: Path | None = None
) -> list[WorkerMachine]:
    """Returns the machines of a run's workers by rank.

    Args:
        files: of `read_worker_files`.
        run_dir: where the workers saved what their machines gave them; None to leave
            that out.
    """
    # Which rank counts the energy counter of a host.
    taken: dict[tuple[str, str], int] = {}
    machines = []
    chief_s = _steps_s(files.get(0, []))

    for rank, events in sorted(files.items()):
        described = [e.get("value") for e in events if e["key"] == "worker_machine"]
        if not described or described[-1] is None:
            continue

        machine = described[-1]
        host_id = str(machine.get("host"))
        counted = []
        shared = []

        for counter in machine["counters"]:
            place = (host_id, counter)
            if place in taken:
                shared.append(taken[place])
            else:
                counted.append(counter)

        taken |= {(host_id, counter): rank for counter in counted}

        # The chief's own clock needs no correction.
        offsets_s = _offsets_s(_steps_s(events), chief_s) if rank else None

        host = None
        if run_dir is not None:
            host = whole_use(read_host_file(run_dir, worker_host_file(rank)))

        samples = list(_samples(events))
        machines.append(
            WorkerMachine(
                rank=rank,
                hostname=machine["hostname"],
                cpu_percent=_mean(samples, "cpu_percent"),
                process_percent=_mean(samples, "process_percent"),
                gpu_percent=_mean(samples, "gpu_percent"),
                counters=tuple(counted),
                shares_with=min(shared, default=None),
                samples=tuple(_energy(samples, counted, offsets_s)),
                host=host,
            )
        )

    return machines


# Session, monotonic clock in seconds, wall clock in milliseconds, and the recorded
# values.
Noted = tuple[int, float, float, Mapping[str, Any]]


def _samples(events: Events) -> Iterable[Noted]:
    """Yields a worker's samples that have a session and a monotonic clock.

    A sample without them can't be related to the chief's clock.
    """
    for event in events:
        if event["key"] != "worker_sample" or event.get("value") is None:
            continue

        about = metadata(event)
        session = about.get("session")
        mono_s = about.get("mono_s")

        if session is not None and _number(mono_s):
            yield session, mono_s, event["time_ms"], event["value"]


def _mean(samples: Iterable[Noted], name: str) -> float | None:
    """Returns the mean of a sampled value over time, None if it was never sampled.

    A sample counts for the time since the one before it, within a session. A value for
    each of several GPUs counts as their mean.
    """
    weighted = []
    whole_s = 0.0

    for before, now in itertools.pairwise(samples):
        values = now[3].get(name)
        if not isinstance(values, list):
            values = [values]

        elapsed_s = now[1] - before[1]
        within = before[0] == now[0] and elapsed_s > 0
        if within and values and all(map(_number, values)):
            weighted.append(elapsed_s * statistics.fmean(values))
            whole_s += elapsed_s

    if not whole_s:
        return None

    return math.fsum(weighted) / whole_s


def _steps_s(events: Events) -> dict[Place, float]:
    """Returns the monotonic seconds at the end of each step, by session and step."""
    steps = _places(events, "worker_step")
    return {place: at["mono_s"] for place, _, at in steps if _number(at.get("mono_s"))}


def _offsets_s(
    worker: Mapping[Place, float], chief: Mapping[Place, float]
) -> dict[int, float]:
    """Returns, by session, what to add to a worker's clock to get the chief's.

    It is the median difference of the times at which both recorded the end of a
    step, which is the same moment on both hosts.
    """
    offsets: dict[int, list[float]] = {}
    for place in worker.keys() & chief.keys():
        offsets.setdefault(place[0], []).append(chief[place] - worker[place])

    return {session: statistics.median(values) for session, values in offsets.items()}


def _energy(
    samples: Iterable[Noted],
    names: Sequence[str],
    offsets_s: Mapping[int, float] | None,
) -> Iterable[EnergySample]:
    """Yields a worker's counter readings on the chief's clock.

    Args:
        samples: of the worker.
        names: of the counters that it counts.
        offsets_s: by session, what to add to its clock; None for the chief. Samples of
            sessions without an offset are left out.
    """
    for session, mono_s, time_ms, value in samples:
        offset_s = offsets_s.get(session) if offsets_s is not None else 0.0
        if offset_s is None:
            continue

        for name in names:
            joules, limit = value["energy"].get(name, (None, None))
            if joules is not None:
                yield EnergySample(
                    time_ms, session, mono_s + offset_s, name, joules, limit
                )


def _number(value: Any) -> bool:
    """Whether a value is a finite number, and not a truth value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


@dataclass(frozen=True)
class MeasuredEnergy:
    """What energy counters measured in a run, counting each host once.

    Attributes:
        sources: for each host, its energy over time and the names of its counters.
        problem: why a sum over the hosts would be incomplete; "" if it is complete.
    """

    sources: tuple[tuple[list[EnergySpan], list[str]], ...]
    problem: str = ""

    @property
    def counters(self) -> list[str]:
        """The names of all counters, those of workers with their rank."""
        return sorted(name for _, names in self.sources for name in names)

    def use(self, run: Run, until_us: float) -> EnergyUse | None:
        """Returns the energy until a moment of the run's clock, in microseconds.

        None if the energy of one of the hosts is unknown.
        """
        if self.problem or not self.sources:
            return None

        return energy_of_hosts(self.sources, run.timeline.pieces, until_us=until_us)


def measured_energy(run: Run) -> MeasuredEnergy:
    """Returns the energy that counters on a run's hosts measured, each host once.

    The chief's host is sampled into ``energy.csv``, the other hosts by their workers.
    If a host has no counter, the result says so instead of a sum that would look
    complete.
    """
    if not run.path.is_dir():
        return MeasuredEnergy(())

    by_host = []
    samples = read_samples(run.path)
    if samples:
        by_host.append((samples, sorted({sample.counter for sample in samples})))

    problem = ""
    workers = max((cluster.workers for cluster in run.timeline.all(Cluster)), default=0)
    if workers > 1:
        machines = machines_of(read_worker_files(run.path))
        # The chief's host is in the run's own samples.
        others = [machine for machine in machines if machine.rank and machine.counters]
        if samples or others:
            problem = _problem(workers, machines, bool(samples))

        for machine in others:
            names = [f"{name} of worker {machine.rank}" for name in machine.counters]
            by_host.append((machine.samples, names))

    spans = ((energy_spans(samples, run.timeline), names) for samples, names in by_host)
    return MeasuredEnergy(tuple(spans), problem)


def _problem(
    workers: int, machines: Sequence[WorkerMachine], chief_measured: bool
) -> str:
    """Returns why the hosts' energy can't be added up, or "".

    Args:
        workers: how many the cluster has.
        machines: those that are known.
        chief_measured: whether the chief's host has a counter.
    """
    missing = sorted(set(range(workers)) - {machine.rank for machine in machines})
    if missing:
        return (
            "no energy: nothing is known about the machines of workers "
            f"{', '.join(map(str, missing))}; copy their events-worker files into the "
            "run's folder"
        )

    unmeasured = []
    for machine in machines:
        measured = machine.measured if machine.rank else chief_measured
        if not measured:
            unmeasured.append(f"worker {machine.rank} ({machine.hostname})")

    if unmeasured:
        return (
            f"no energy: the host of {', '.join(unmeasured)} has no energy counter, so a "
            "sum would be incomplete"
        )

    return ""


@dataclass(frozen=True)
class TargetCharge:
    """Cost and energy from the start of the run's process until a target was met.

    Attributes:
        cost: in dollars and kilowatt-hours, as far as known.
        energy: as counters measured it; None if they didn't.
    """

    cost: Cost
    energy: EnergyUse | None


@dataclass(frozen=True)
class RunCharges:
    """What a run's time cost on its machine, in dollars and energy.

    Attributes:
        hardware: the run's machine; None if unknown.
        targets: one for each target of the report; None if never met.
        counters: the energy counters that were sampled.
        notes: caveats for readers.
    """

    hardware: HardwareConfig | None
    targets: list[TargetCharge | None]
    counters: list[str]
    notes: list[str]

    @property
    def known(self) -> bool:
        """Whether there is anything to show."""
        return self.hardware is not None or bool(self.counters or self.notes)


class Machines:
    """The machines of runs: those named with ``--hardware``, else those that the runs
    recorded.

    Args:
        asked: "FILE" for all runs, or "NAME=FILE" for the run or folder of that name,
            which takes precedence.
        price_usd_per_hour: replaces the price in all descriptions.

    Raises:
        UsageError: for a wrong or repeated description, or a negative price.
    """

    def __init__(
        self, asked: Iterable[str] = (), price_usd_per_hour: float | None = None
    ):
        self._price = {}
        if price_usd_per_hour is not None:
            if not 0 <= price_usd_per_hour < math.inf:
                raise UsageError(
                    "--price_usd_per_hour must be a number of at least 0. Received: "
                    f"{price_usd_per_hour}."
                )

            self._price = {"price_usd_per_hour": price_usd_per_hour}

        self._by_name: dict[str, HardwareConfig] = {}
        for text in asked:
            name, _, file = text.rpartition("=")
            # A file's name may contain "=" too.
            if Path(text).is_file():
                name = ""
                file = text

            if name in self._by_name:
                of = f"the run {name!r}" if name else "all runs"
                raise UsageError(
                    f"--hardware must name one machine for {of}. Received: two."
                )

            self._by_name[name] = load_hardware(
                file, price_usd_per_hour=price_usd_per_hour
            )

    def of(self, run: Run, folder: str) -> tuple[HardwareConfig | None, list[str]]:
        """Returns a run's machine, or None, and notes about it.

        ``folder`` is the name of the path that was given for the run.
        """
        for name in (run.name, folder, ""):
            if name in self._by_name:
                return self._by_name[name], []

        places = run.timeline.of("hardware")
        stated = [run.events[index].get("value") for index in places]
        if not stated and not self._price:
            return None, []

        if any(other != stated[0] for other in stated):
            note = (
                "sessions state different machines: name the right one with --hardware"
            )
            return None, [note]

        # A later tfasr may state more than this one knows.
        known = {field.name for field in fields(HardwareConfig)}
        facts = next(iter(stated), None) or {}
        about = {name: value for name, value in facts.items() if name in known}

        try:
            return HardwareConfig(**about | self._price), []
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"The run {run.name} recorded a wrong description of its machine: {error}"
            ) from error

    def check_all_used(self, names: Collection[str]) -> None:
        """Raises `UsageError` if a description's name is not among the runs' names.

        A name that fits no run is most often a typing error, and the report would
        silently use the machine that the run recorded.
        """
        unused = sorted(self._by_name.keys() - set(names) - {""})
        if unused:
            raise UsageError(
                "--hardware NAME=FILE must name a run of the report. Received: "
                f"{unused[0]!r}. Runs and folders: {', '.join(sorted(set(names)))}"
            )


def charges_of(
    run: Run,
    machine: tuple[HardwareConfig | None, list[str]],
    untils: Sequence[Mapping[str, float] | None],
) -> RunCharges:
    """Returns a run's cost and energy for each target.

    Args:
        run: the run.
        machine: of `Machines.of`.
        untils: for each target, the seconds of each kind of interval until the target
            was met, or None if it was never met.
    """
    hardware, notes = machine
    measured = measured_energy(run)
    charges: list[TargetCharge | None] = []

    for until_s in untils:
        charge = None
        if until_s is not None:
            charged_s = math.fsum(until_s.values())
            energy = measured.use(run, round(charged_s * 1e6))
            charge = TargetCharge(cost_of(hardware, charged_s, energy), energy)

        charges.append(charge)

    notes = list(notes)
    counters = measured.counters
    if measured.problem:
        counters = []
        notes.append(measured.problem)

    if hardware is not None and hardware.hourly_usd is None:
        notes.append("no price in dollars: set one with --price_usd_per_hour")
    if counters:
        notes.append(f"energy of {', '.join(counters)} only")

    met = [charge for charge in charges if charge]
    used = [charge.energy for charge in met if charge.energy is not None]
    notes += [_unknown_note(energy) for energy in used if energy.total_unknown_s][:1]

    if any(charge.cost.kwh_is == "estimate" for charge in met):
        notes.append(f"energy estimated from a nominal power of {hardware.power_w:g} W")

    return RunCharges(hardware, charges, counters, notes)


def _unknown_note(energy: EnergyUse) -> str:
    """Returns a note on seconds in which the counters were not read, by interval."""
    parts = [
        f"{name} {seconds:.1f}" for name, seconds in energy.unknown_s.items() if seconds
    ]

    return (
        f"the energy of {energy.total_unknown_s:.1f} s is unknown and not included "
        f"({', '.join(parts)} s)"
    )
