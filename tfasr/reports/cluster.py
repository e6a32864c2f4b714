"""Which worker of a cluster waited for which, from what each worker noted about its steps.

Workers' clocks are not compared. A step ends for all at the same moment, when the gradients are
added up: who was ready a longer time before that end waited for who was ready last.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import WORKER_EVENTS
from tfasr.ledger.events import read_events
from tfasr.tta.energy import EnergySample

Events = Sequence[Mapping[str, Any]]


def read_worker_files(run_dir: Path) -> dict[int, Events]:
    """Returns the events of each worker by its rank; a damaged file counts as empty."""
    files: dict[int, Events] = {}
    for path in run_dir.glob(WORKER_EVENTS) if run_dir.is_dir() else []:
        rank = path.stem.rpartition("-")[2]
        if rank.isdecimal():
            try:
                files[int(rank)] = read_events(path)
            except UsageError:
                files[int(rank)] = []
    return files


def _places(events: Events, key: str) -> Iterator[tuple[tuple[int, int], Any, Any]]:
    """Yields session and step, value and metadata of the events of steps."""
    for event in events:
        metadata = event.get("metadata")
        if event["key"] == key and isinstance(metadata, dict):
            place = metadata.get("session"), metadata.get("step")
            if all(isinstance(number, int) for number in place):
                yield place, event.get("value"), metadata


_SECONDS = ("input_wait_s", "step_s", "ready_s")
Steps = dict[tuple[int, int], Mapping[str, Any]]


@dataclass(frozen=True)
class WorkerTimes:
    """A worker's part of a run, over the steps that all workers noted and none compiled in."""

    rank: int  # of the worker; 0 is the chief
    steps: int  # how many
    utterances: int  # of its shares
    input_wait_s: float  # seconds until its shares were there
    step_s: float  # seconds from then until all workers' gradients were applied
    waited_s: float  # part of step_s spent waiting for the last worker, not for the network
    held_up_s: float  # seconds that the first of the others waited for this one, where it was last
    # From when the last worker had its gradients until all were applied; without the statistics of
    # synchronised batch normalisation
    exchange_s: float
    sent_buffers: float = 0.0  # gradients sent, in buffers: 2 (n - 1) / n a step in a ring of n

    @property
    def waited_share(self) -> float:
        return self.waited_s / self.step_s if self.step_s else 0.0


def times_of_workers(files: Mapping[int, Events]) -> list[WorkerTimes]:
    noted = {
        rank: {place: value for place, value, _ in _places(events, "worker_step") if _whole(value)}
        for rank, events in files.items()
    }
    together = _noted_by_all(noted)
    ranks = sorted({rank for parts in together for rank in parts})
    return [_part(rank, together) for rank in ranks] if len(ranks) > 1 else []


def _whole(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("utterances"), int)
        and all(_number(value.get(name)) and value[name] >= 0 for name in _SECONDS)
    )


def _noted_by_all(noted: Mapping[int, Steps]) -> list[dict[int, Mapping[str, Any]]]:
    sessions: dict[int, set[int]] = {}
    for rank, steps in noted.items():
        for session, _ in steps:
            sessions.setdefault(session, set()).add(rank)
    together = []
    for place in sorted({place for steps in noted.values() for place in steps}):
        ranks = sessions[place[0]]
        parts = {rank: noted[rank][place] for rank in ranks if place in noted[rank]}
        if len(parts) == len(ranks) > 1 and not any(p.get("compiled") for p in parts.values()):
            together.append(parts)
    return together


def _part(rank: int, together: list[dict[int, Mapping[str, Any]]]) -> WorkerTimes:
    steps = [parts for parts in together if rank in parts]
    waits = [_waits(parts) for parts in steps]
    of_rank = [parts[rank] for parts in steps]
    return WorkerTimes(
        rank,
        len(of_rank),
        sum(step["utterances"] for step in of_rank),
        math.fsum(step["input_wait_s"] for step in of_rank),
        math.fsum(step["step_s"] for step in of_rank),
        math.fsum(wait[rank] for wait in waits),
        math.fsum(max(wait.values()) for wait in waits if min(wait, key=wait.get) == rank),
        math.fsum(min(_from_ready(parts).values()) for parts in steps),
        math.fsum(2 * (len(parts) - 1) / len(parts) for parts in steps),
    )


def _waits(parts: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    # Seconds that each worker waited in a step for the last one. The last to begin has the shortest
    # step, the last to have its gradients the shortest time from them to the end. With synchronised
    # batch normalisation workers already wait in the model, and only the first shows it.
    from_ready = _from_ready(parts)
    shortest_s, soonest_s = min(p["step_s"] for p in parts.values()), min(from_ready.values())
    return {
        rank: max(p["step_s"] - shortest_s, from_ready[rank] - soonest_s)
        for rank, p in parts.items()
    }


def _from_ready(parts: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    return {rank: max(p["step_s"] - p["ready_s"], 0.0) for rank, p in parts.items()}


@dataclass(frozen=True)
class Exchange:
    """A run's exchange, over the steps of its workers' table."""

    workers: int  # of its last session
    gradient_bytes: int  # that each worker has, and all sum up in a step
    steps: int  # of the chief
    exchange_s: float  # from the last worker's gradients until all were summed and applied
    share: float  # that part of the chief's steps, a fraction
    achieved_bytes_per_s: float  # what the chief sent to sum gradients up in a ring, in that time
    measured_bytes_per_s: float | None  # of the same buffer alone, before the first step
    latency_s: float | None  # of a sum of a few numbers; None if unknown


def exchange_of(parts: Sequence[WorkerTimes], cluster: Any) -> Exchange | None:
    """Returns the exchange from the workers' parts and the ledger's fact, or None if unknown."""
    fact = cluster if isinstance(cluster, dict) else {}
    size, count = fact.get("gradient_bytes"), fact.get("workers")
    if not parts or not _positive(size) or not _positive(count):
        return None
    chief = parts[0]
    if not chief.steps or not chief.exchange_s or not chief.step_s:
        return None
    link = fact.get("link") if isinstance(fact.get("link"), dict) else {}
    measured = (link.get(name) for name in ("bytes_per_s", "small_s"))
    bandwidth, latency_s = (value if _positive(value) else None for value in measured)
    share, achieved = chief.exchange_s / chief.step_s, chief.sent_buffers * size / chief.exchange_s
    sizes = int(count), int(size), chief.steps
    return Exchange(*sizes, chief.exchange_s, share, achieved, bandwidth, latency_s)


@dataclass(frozen=True)
class RoundsOfWorker:
    """A worker's part of a run whose workers trained in rounds, as the chief's ledger has it."""

    rank: int  # of the worker; 0 is the chief
    rounds: int  # that it delivered
    utterances: int
    train_s: float  # seconds of its steps
    link_s: float  # seconds in which its weights and changes were on their way
    held_up_s: float  # seconds that the chief waited, where this worker came last
    staleness: int  # the most changes of others that were added during one of its rounds
    left: int  # how often it was left out


def rounds_of_workers(events: Events) -> list[RoundsOfWorker]:
    rounds: dict[int, list[Mapping[str, Any]]] = {}
    held_up_s, left = Counter(), Counter()
    for event in events:
        value = event.get("value")
        if event["key"] == "worker_left" and isinstance(value, dict):
            left[value.get("rank")] += 1
        if event["key"] != "exchanged" or not isinstance(value, dict):
            continue
        held_up_s[value.get("waited_for")] += value.get("waited_s", 0.0)
        for one in value.get("workers", []):
            rounds.setdefault(one["rank"], []).append(one)
    return [
        RoundsOfWorker(
            rank,
            len(of_rank),
            sum(one["utterances"] for one in of_rank),
            math.fsum(one["train_s"] for one in of_rank),
            math.fsum(one["link_s"] for one in of_rank),
            held_up_s[rank],
            max(one["staleness"] for one in of_rank),
            left[rank],
        )
        for rank, of_rank in sorted(rounds.items())
    ]


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


@dataclass(frozen=True)
class WorkerMachine:
    """A worker's machine, over the sessions in which it noted it."""

    rank: int  # of the worker
    hostname: str  # of its machine; "" if unknown
    cpu_percent: float | None  # how busy all cores of its host were; None if unknown
    process_percent: float | None  # how busy the worker kept them; None if unknown
    gpu_percent: float | None  # the mean over the GPUs that it sees; None without any
    counters: tuple[str, ...]  # of its host, without those that a lower rank has counted
    shares_with: int | None  # the rank whose counters are this worker's too
    samples: tuple[EnergySample, ...]  # of its ``counters``, on the chief's monotonic clock

    @property
    def measured(self) -> bool:
        return bool(self.counters) or self.shares_with is not None


def worker_machines(run_dir: Path) -> list[WorkerMachine]:
    """Returns the machines of a run's workers by rank."""
    return machines_of(read_worker_files(run_dir))


def machines_of(files: Mapping[int, Events]) -> list[WorkerMachine]:
    taken: dict[tuple[str, str], int] = {}
    machines = []
    chief_s = _steps_s(files.get(0, []))
    for rank, events in sorted(files.items()):
        machine = next((e for e in reversed(events) if e["key"] == "worker_machine"), None)
        value = machine.get("value") if machine else None
        if not isinstance(value, dict) or not isinstance(value.get("counters"), dict):
            continue
        host = str(value.get("host"))
        places = {str(name): (host, str(counter)) for name, counter in value["counters"].items()}
        shared = {taken[place] for place in places.values() if place in taken}
        names = [name for name, place in places.items() if place not in taken]
        taken |= {places[name]: rank for name in names}
        samples = list(_samples(events))
        offsets = _offsets_s(_steps_s(events), chief_s) if rank else None
        machines.append(
            WorkerMachine(
                rank,
                str(value.get("hostname", "")),
                _mean(samples, "cpu_percent"),
                _mean(samples, "process_percent"),
                _mean(samples, "gpu_percent"),
                tuple(names),
                min(shared, default=None),
                tuple(_energy(samples, names, offsets)),
            )
        )
    return machines


# Session, monotonic clock in seconds, wall clock in milliseconds, and what was noted
Noted = tuple[int, float, float, Mapping[str, Any]]


def _samples(events: Events) -> Iterable[Noted]:
    for event in events:
        value, metadata = event.get("value"), event.get("metadata")
        if event["key"] != "worker_sample" or not isinstance(value, dict):
            continue
        place = metadata if isinstance(metadata, dict) else {}
        session, mono_s = place.get("session"), place.get("mono_s")
        if isinstance(session, int) and _number(mono_s) and _number(event["time_ms"]):
            yield session, mono_s, event["time_ms"], value


def _mean(samples: Iterable[Noted], name: str) -> float | None:
    # Over time: each sample stands for the time since the one before it.
    weighted, whole_s = [], 0.0
    for before, now in itertools.pairwise(samples):
        value = now[3].get(name)
        values = value if isinstance(value, list) else [value]
        elapsed_s = now[1] - before[1]
        if before[0] == now[0] and elapsed_s > 0 and values and all(map(_number, values)):
            weighted.append(elapsed_s * statistics.fmean(values))
            whole_s += elapsed_s
    return math.fsum(weighted) / whole_s if whole_s else None


def _steps_s(events: Events) -> dict[tuple[int, int], float]:
    steps = _places(events, "worker_step")
    return {place: at["mono_s"] for place, _, at in steps if _number(at.get("mono_s"))}


def _offsets_s(
    worker: Mapping[tuple[int, int], float], chief: Mapping[tuple[int, int], float]
) -> dict[int, float]:
    # What to add to a worker's clock for the chief's, by session: steps end together.
    offsets: dict[int, list[float]] = {}
    for place in worker.keys() & chief.keys():
        offsets.setdefault(place[0], []).append(chief[place] - worker[place])
    return {session: statistics.median(values) for session, values in offsets.items()}


def _energy(
    samples: Iterable[Noted], names: Sequence[str], offsets_s: Mapping[int, float] | None
) -> Iterable[EnergySample]:
    for session, mono_s, time_ms, value in samples:
        energy = value.get("energy")
        offset_s = 0.0 if offsets_s is None else offsets_s.get(session)
        if offset_s is None or not isinstance(energy, dict):
            continue
        for name in names:
            shown = energy.get(name)
            if isinstance(shown, list) and len(shown) == 2 and _number(shown[0]):
                limit = shown[1] if _number(shown[1]) else None
                yield EnergySample(time_ms, session, mono_s + offset_s, name, shown[0], limit)


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def worker_times(run_dir: Path) -> list[WorkerTimes]:
    """Returns the parts of a run's workers by rank, [] if fewer than two noted their steps."""
    return times_of_workers(read_worker_files(run_dir))
