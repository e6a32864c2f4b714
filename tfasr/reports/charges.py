"""The machine, cost and energy of each run of a report, and the workers of its cluster.

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
from dataclasses import dataclass, fields
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

Events = Sequence[Mapping[str, Any]]


def read_worker_files(run_dir: Path) -> dict[int, Events]:
    """Returns the events of each worker by its rank; a damaged file counts as empty.

    Events of a wrong type, see `tfasr.ledger.schema`, are left out.
    """
    files: dict[int, Events] = {}
    for path in run_dir.glob(WORKER_EVENTS) if run_dir.is_dir() else []:
        rank = path.stem.rpartition("-")[2]
        if rank.isdecimal():
            try:
                files[int(rank)] = [e for e in read_events(path) if not wrong_event(e)]
            except (UsageError, OSError):
                files[int(rank)] = []

    return files


def _places(events: Events, key: str) -> Iterator[tuple[tuple[int, int], Any, Any]]:
    """Yields (session, step), value and metadata of each event of a key that belongs to
    a step.
    """
    for event in events:
        if event["key"] == key:
            about = metadata(event)
            place = about.get("session"), about.get("step")
            if None not in place:
                yield place, event.get("value"), about


_SECONDS = ("input_wait_s", "step_s", "ready_s")
Steps = dict[tuple[int, int], Mapping[str, Any]]


@dataclass(frozen=True)
class WorkerTimes:
    """A worker's times in a run.

    Sums over the steps that all workers recorded, without those in which a worker
    compiled.
    """

    rank: int  # of the worker; 0 is the chief
    steps: int  # number of these steps
    utterances: int  # number that this worker trained on
    input_wait_s: float  # seconds that it waited for its part of each batch
    # Seconds from the end of that wait until all workers' gradients were applied.
    step_s: float
    # Part of step_s spent waiting for the last worker, not for the network.
    waited_s: float
    # Seconds that others waited for this worker: the longest wait of each step in which
    # it was last
    held_up_s: float
    # Seconds from when the last worker had its gradients until all gradients were
    # applied, without the exchanges of synchronised batch normalisation
    exchange_s: float
    # Bytes sent over the gradients' size: each step adds 2 (n - 1) / n in a ring of n
    # workers
    sent_buffers: float = 0.0

    @property
    def waited_share(self) -> float:
        return self.waited_s / self.step_s if self.step_s else 0.0


def times_of_workers(files: Mapping[int, Events]) -> list[WorkerTimes]:
    """Returns each worker's times in the order of ranks, [] if fewer than two recorded
    steps.
    """
    noted: dict[int, Steps] = {}
    for rank, events in files.items():
        steps = _places(events, "worker_step")
        noted[rank] = {place: value for place, value, _ in steps if _possible(value)}

    by_rank: dict[int, list[tuple]] = {}
    for parts in _noted_by_all(noted):
        for rank, amounts in _amounts(parts):
            by_rank.setdefault(rank, []).append(amounts)

    columns = {rank: list(zip(*by_rank[rank], strict=True)) for rank in sorted(by_rank)}
    return [
        WorkerTimes(rank, len(utterances), sum(utterances), *map(math.fsum, amounts))
        for rank, (utterances, *amounts) in columns.items()
        if len(columns) > 1
    ]


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
        if len(parts) == len(ranks) > 1 and not any(
            p.get("compiled") for p in parts.values()
        ):
            together.append(parts)

    return together


def _amounts(parts: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[int, tuple]]:
    # The amounts of a step that `WorkerTimes` sums up, by rank. As all workers end a
    # step at the same moment, the worker that began last has the shortest step, and the
    # one whose gradients were ready last has the shortest time from then to the end.
    # With synchronised batch normalisation, workers also wait before they have
    # gradients: only step lengths show this wait.
    from_ready = {
        rank: max(p["step_s"] - p["ready_s"], 0.0) for rank, p in parts.items()
    }
    shortest_s = min(p["step_s"] for p in parts.values())
    soonest_s = min(from_ready.values())
    waited_s = {
        rank: max(p["step_s"] - shortest_s, from_ready[rank] - soonest_s)
        for rank, p in parts.items()
    }
    last = min(waited_s, key=waited_s.get)
    longest_s = max(waited_s.values())
    for rank, p in parts.items():
        worker_amounts = p["utterances"], p["input_wait_s"], p["step_s"], waited_s[rank]
        sent_buffers = 2 * (len(parts) - 1) / len(parts)
        yield (
            rank,
            (
                *worker_amounts,
                longest_s if rank == last else 0.0,
                soonest_s,
                sent_buffers,
            ),
        )


def exchange_of(
    parts: Sequence[WorkerTimes], cluster: Cluster | None
) -> dict[str, Any] | None:
    """Returns how workers exchanged gradients over the chief's steps, or None if unknown."""
    if (
        not parts
        or cluster is None
        or cluster.gradient_bytes <= 0
        or cluster.workers <= 0
    ):
        return None
    chief = parts[0]
    if not chief.steps or not chief.exchange_s or not chief.step_s:
        return None
    link = cluster.link
    size = cluster.gradient_bytes
    return {
        "workers": cluster.workers,  # number in the run's last session
        "gradient_bytes": int(size),  # size of one worker's gradients
        "steps": chief.steps,
        # from the last worker's gradients until all were summed and applied
        "exchange_s": chief.exchange_s,
        "share": chief.exchange_s / chief.step_s,
        # bytes that the chief sent in the ring, divided by exchange_s
        "achieved_bytes_per_s": chief.sent_buffers * size / chief.exchange_s,
        # the same speed, measured by exchanging as many bytes before the first step
        "measured_bytes_per_s": None if link is None else link.bytes_per_s,
        # Seconds to sum a few numbers.
        "latency_s": None if link is None else link.small_s,
    }


def rounds_of_workers(timeline: Timeline) -> list[dict[str, Any]]:
    """Returns, by rank, each worker's part of a run whose workers trained in rounds."""
    rounds: dict[int, list[Round]] = {}
    held_up_s = Counter()
    departures = Counter(worker.rank for worker in timeline.all(WorkerLeft))
    for exchanged in timeline.all(Exchanged):
        held_up_s[exchanged.waited_for] += exchanged.waited_s
        for one in exchanged.workers:
            rounds.setdefault(one.rank, []).append(one)

    return [
        {
            "rank": rank,  # 0 is the chief
            "rounds": len(of_rank),  # number of rounds that it delivered
            "utterances": sum(one.utterances for one in of_rank),
            # Seconds of its steps.
            "train_s": math.fsum(one.train_s for one in of_rank),
            # seconds that its weights and changes spent on the network
            "link_s": math.fsum(one.link_s for one in of_rank),
            # seconds that the chief waited in rounds in which this worker came last
            "held_up_s": held_up_s[rank],
            # the largest number of others' changes added during one of its rounds
            "staleness": max(one.staleness for one in of_rank),
            "left": departures[rank],  # how often the other workers went on without it
        }
        for rank, of_rank in sorted(rounds.items())
    ]


@dataclass(frozen=True)
class WorkerMachine:
    """A worker's machine, with means over the time in which it was sampled."""

    rank: int  # of the worker
    hostname: str  # of its machine; "" if unknown
    cpu_percent: float | None  # how busy all cores of its host were; None if unknown
    # The worker's part of ``cpu_percent``; None if unknown.
    process_percent: float | None
    gpu_percent: float | None  # the mean over the GPUs that it sees; None without GPUs
    # Its host's energy counters that no lower rank has counted.
    counters: tuple[str, ...]
    shares_with: int | None  # the lower rank that counts this host's energy, or None
    # Of its ``counters``, on the chief's monotonic clock.
    samples: tuple[EnergySample, ...]
    # What the machine gave it in all its time; None if unknown.
    host: HostUse | None = None

    @property
    def measured(self) -> bool:
        return bool(self.counters) or self.shares_with is not None


def machines_of(
    files: Mapping[int, Events], run_dir: Path | None = None
) -> list[WorkerMachine]:
    """Returns the machines of a run's workers by rank; ``run_dir`` has what they gave them."""
    taken: dict[tuple[str, str], int] = {}
    machines = []
    chief_s = _steps_s(files.get(0, []))
    for rank, events in sorted(files.items()):
        machine = next(
            (e for e in reversed(events) if e["key"] == "worker_machine"), None
        )
        value = machine.get("value") if machine else None
        if value is None:
            continue
        host_id = str(value.get("host"))
        places = {
            name: (host_id, counter) for name, counter in value["counters"].items()
        }
        shared = {taken[place] for place in places.values() if place in taken}
        names = [name for name, place in places.items() if place not in taken]
        taken |= {places[name]: rank for name in names}
        samples = list(_samples(events))
        hostname = value["hostname"]
        percents = (
            _mean(samples, f"{part}_percent") for part in ("cpu", "process", "gpu")
        )
        offsets = _offsets_s(_steps_s(events), chief_s) if rank else None
        energy = (
            tuple(names),
            min(shared, default=None),
            tuple(_energy(samples, names, offsets)),
        )
        host = None
        if run_dir is not None:
            host = whole_use(read_host_file(run_dir, worker_host_file(rank)))
        machines.append(WorkerMachine(rank, hostname, *percents, *energy, host=host))

    return machines


# Session, monotonic clock in seconds, wall clock in milliseconds, and the recorded
# values
Noted = tuple[int, float, float, Mapping[str, Any]]


def _samples(events: Events) -> Iterable[Noted]:
    """Yields a worker's samples that have a session and a monotonic clock."""
    for event in events:
        if event["key"] != "worker_sample" or event.get("value") is None:
            continue
        session = metadata(event).get("session")
        mono_s = metadata(event).get("mono_s")
        if session is not None and _number(mono_s):
            yield session, mono_s, event["time_ms"], event["value"]


def _mean(samples: Iterable[Noted], name: str) -> float | None:
    """Returns the mean of a sampled value over time, None if it was never sampled.

    A sample counts for the time since the one before it, within a session.
    """
    # A mean over time: each sample counts for the time since the sample before it.
    weighted = []
    whole_s = 0.0
    for before, now in itertools.pairwise(samples):
        value = now[3].get(name)
        values = value if isinstance(value, list) else [value]
        elapsed_s = now[1] - before[1]
        if (
            before[0] == now[0]
            and elapsed_s > 0
            and values
            and all(map(_number, values))
        ):
            weighted.append(elapsed_s * statistics.fmean(values))
            whole_s += elapsed_s

    return math.fsum(weighted) / whole_s if whole_s else None


def _steps_s(events: Events) -> dict[tuple[int, int], float]:
    """Returns the monotonic seconds at the end of each step, by session and step."""
    steps = _places(events, "worker_step")
    return {place: at["mono_s"] for place, _, at in steps if _number(at.get("mono_s"))}


def _offsets_s(
    worker: Mapping[tuple[int, int], float], chief: Mapping[tuple[int, int], float]
) -> dict[int, float]:
    """Returns, by session, what to add to a worker's clock to get the chief's.

    It is the median difference of the times at which both recorded the end of a
    step, which is the same moment on both hosts.
    """
    # By session, the seconds to add to a worker's clock to get the chief's: the
    # difference of the times at which both recorded the end of a step, which is the
    # same moment.
    offsets: dict[int, list[float]] = {}
    for place in worker.keys() & chief.keys():
        offsets.setdefault(place[0], []).append(chief[place] - worker[place])
    return {session: statistics.median(values) for session, values in offsets.items()}


def _energy(
    samples: Iterable[Noted],
    names: Sequence[str],
    offsets_s: Mapping[int, float] | None,
) -> Iterable[EnergySample]:
    """Yields a worker's counter readings on the chief's clock."""
    for session, mono_s, time_ms, value in samples:
        offset_s = 0.0 if offsets_s is None else offsets_s.get(session)
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
    """What energy counters measured in a run, counting each host once."""

    # By host, with names of its counters.
    sources: tuple[tuple[list[EnergySpan], list[str]], ...]
    problem: str = ""  # why a sum over the hosts would be incomplete

    @property
    def counters(self) -> list[str]:
        """The names of all counters, those of workers with their rank."""
        return sorted(name for _, names in self.sources for name in names)

    def use(self, run: Run, until_us: float) -> EnergyUse | None:
        """Returns the energy until ``until_us`` of the run's clock; None if a host's is
        unknown.
        """
        if self.problem or not self.sources:
            return None
        return energy_of_hosts(self.sources, run.timeline.pieces, until_us=until_us)


def measured_energy(run: Run) -> MeasuredEnergy:
    """Returns the energy that counters on a run's hosts measured, each host once."""
    if not run.path.is_dir():
        return MeasuredEnergy(())
    by_host = []
    samples = read_samples(run.path)
    if samples:
        by_host.append((samples, sorted({sample.counter for sample in samples})))
    workers = max((cluster.workers for cluster in run.timeline.all(Cluster)), default=0)
    problem = ""
    if workers > 1:
        machines = machines_of(read_worker_files(run.path))
        others = [m for m in machines if m.rank and m.counters]
        if samples or others:
            problem = _problem(workers, machines, bool(samples))
        by_host += [
            (m.samples, [f"{n} of worker {m.rank}" for n in m.counters]) for m in others
        ]

    spans = ((energy_spans(samples, run.timeline), names) for samples, names in by_host)
    return MeasuredEnergy(tuple(spans), problem)


def _problem(
    workers: int, machines: Sequence[WorkerMachine], chief_measured: bool
) -> str:
    """Returns why the hosts' energy can't be added up, or ""."""
    missing = sorted(set(range(workers)) - {m.rank for m in machines})
    if missing:
        return (
            "no energy: nothing is known about the machines of workers "
            f"{', '.join(map(str, missing))}; copy their events-worker files into the run's folder"
        )

    unmeasured = {
        m.rank: m for m in machines if not (m.measured if m.rank else chief_measured)
    }
    if unmeasured:
        named = ", ".join(
            f"worker {rank} ({m.hostname})" for rank, m in unmeasured.items()
        )
        return f"no energy: the host of {named} has no energy counter, so a sum would be incomplete"

    return ""


@dataclass(frozen=True)
class TargetCharge:
    """Cost and energy from the start of the run's process until a target was met."""

    cost: Cost
    energy: EnergyUse | None


@dataclass(frozen=True)
class RunCharges:
    """What a run's time cost on its machine, in dollars and energy."""

    hardware: HardwareConfig | None  # the run's machine; None if unknown
    # One for each target of the report; None if never met.
    targets: list[TargetCharge | None]
    counters: list[str]  # the energy counters that were sampled
    notes: list[str]  # caveats for readers

    @property
    def known(self) -> bool:
        """Whether there is anything to show."""
        return self.hardware is not None or bool(self.counters or self.notes)


class Machines:
    """The machines of runs: those named with ``--hardware``, else those that the runs
    recorded.

    ``asked`` contains "FILE" for all runs, or "NAME=FILE" for the run or folder of that
    name, which takes precedence. Raises `UsageError` for a wrong or repeated
    description.
    """

    def __init__(
        self, asked: Iterable[str] = (), price_usd_per_hour: float | None = None
    ):
        if price_usd_per_hour is not None and not 0 <= price_usd_per_hour < math.inf:
            message = "--price_usd_per_hour must be a number of at least 0."
            raise UsageError(f"{message} Received: {price_usd_per_hour}.")

        stated = {"price_usd_per_hour": price_usd_per_hour}
        self._price = {} if price_usd_per_hour is None else stated
        self._by_name: dict[str, HardwareConfig] = {}
        for text in asked:
            name, _, file = (
                text.rpartition("=") if not Path(text).is_file() else ("", "", text)
            )
            if name in self._by_name:
                of = f"the run {name!r}" if name else "all runs"
                raise UsageError(
                    f"--hardware must name one machine for {of}. Received: two."
                )

            self._by_name[name] = load_hardware(
                file, price_usd_per_hour=price_usd_per_hour
            )

    def of(self, run: Run, folder: str) -> tuple[HardwareConfig | None, list[str]]:
        """Returns a run's machine, or None, and notes about it."""
        for name in (run.name, folder, ""):
            if name in self._by_name:
                return self._by_name[name], []

        stated = [
            run.events[index].get("value") for index in run.timeline.of("hardware")
        ]
        if not stated and not self._price:
            return None, []
        if any(other != stated[0] for other in stated):
            return None, [
                "sessions state different machines: name the right one with --hardware"
            ]
        fact = stated[0] if stated and stated[0] else {}
        names = {field.name for field in fields(HardwareConfig)} & fact.keys()
        try:
            return HardwareConfig(
                **{name: fact[name] for name in names} | self._price
            ), []
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"The run {run.name} recorded a wrong description of its machine: {error}"
            ) from error

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
    """Returns a run's cost and energy for each target.

    ``untils`` contains, for each target, the seconds of each kind of interval until the
    target was met, or None if it was never met.
    """
    hardware = machine[0]
    notes = list(machine[1])
    measured = measured_energy(run)

    def charge_until(charged_s: float) -> TargetCharge:
        energy = measured.use(run, round(charged_s * 1e6))
        return TargetCharge(cost_of(hardware, charged_s, energy), energy)

    charges = [
        None if u is None else charge_until(math.fsum(u.values())) for u in untils
    ]
    met = [charge for charge in charges if charge]
    counters = [] if measured.problem else measured.counters
    if measured.problem:
        notes.append(measured.problem)
    if hardware is not None and hardware.hourly_usd is None:
        notes.append("no price in dollars: set one with --price_usd_per_hour")
    if counters:
        notes.append(f"energy of {', '.join(counters)} only")
    incomplete = (
        c.energy for c in met if c.energy is not None and c.energy.total_unknown_s
    )
    if energy := next(incomplete, None):
        parts = [
            f"{name} {seconds:.1f}"
            for name, seconds in energy.unknown_s.items()
            if seconds
        ]
        notes.append(
            f"the energy of {energy.total_unknown_s:.1f} s is unknown and not included "
            f"({', '.join(parts)} s)"
        )

    if any(charge.cost.kwh_is == "estimate" for charge in met):
        notes.append(f"energy estimated from a nominal power of {hardware.power_w:g} W")
    return RunCharges(hardware, charges, counters, notes)
