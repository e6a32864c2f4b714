"""What each worker's machine did: utilisation, and energy with every counter counted once."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.analysis.worker_files import Events, read_worker_files
from tfasr.tta.costs.energy import EnergySample


@dataclass(frozen=True)
class WorkerMachine:
    """A worker's machine, over the sessions in which it noted it."""

    rank: int  # of the worker
    hostname: str  # of its machine; "" where it is not known
    cpu_percent: float | None  # how busy all cores of its host were; None where it is not known
    process_percent: float | None  # how busy the worker kept them; likewise
    gpu_percent: float | None  # the mean over the GPUs that it sees; None without any
    # The energy counters that are counted with this worker: those of its host that no worker of a
    # lower rank has counted
    counters: tuple[str, ...]
    shares_with: int | None  # the rank whose counters are this worker's too
    samples: tuple[EnergySample, ...]  # of its ``counters``, on the chief's monotonic clock

    @property
    def measured(self) -> bool:
        """Whether energy of its host is counted, here or with another worker."""
        return bool(self.counters) or self.shares_with is not None


def worker_machines(run_dir: Path) -> list[WorkerMachine]:
    """Returns the machines of a run's workers by rank; [] where no worker noted any."""
    return machines_of(read_worker_files(run_dir))


def machines_of(files: Mapping[int, Events]) -> list[WorkerMachine]:
    """Returns the machines of workers by rank, from what each noted; see `worker_machines`."""
    taken: dict[tuple[str, str], int] = {}
    found = []
    chief_s = _steps_s(files.get(0, []))
    for rank, events in sorted(files.items()):
        machine = next((e for e in reversed(events) if e["key"] == "worker_machine"), None)
        value = machine.get("value") if machine else None
        if not isinstance(value, dict) or not isinstance(value.get("counters"), dict):
            continue
        host = str(value.get("host"))
        identities = {str(name): str(own) for name, own in value["counters"].items()}
        shared = {taken[host, one] for one in identities.values() if (host, one) in taken}
        own = [name for name, one in identities.items() if (host, one) not in taken]
        taken |= {(host, identities[name]): rank for name in own}
        samples = list(_samples(events))
        offsets = {0: None} if rank == 0 else _offsets_s(_steps_s(events), chief_s)
        found.append(
            WorkerMachine(
                rank,
                str(value.get("hostname", "")),
                _mean(samples, "cpu_percent"),
                _mean(samples, "process_percent"),
                _mean(samples, "gpu_percent"),
                tuple(own),
                min(shared, default=None),
                tuple(_energy(samples, own, offsets if rank else None)),
            )
        )
    return found


Noted = tuple[int, float, float, Mapping[str, Any]]
"""Session, monotonic clock in seconds, wall clock in milliseconds, and what was noted."""


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
    found = {}
    for event in events:
        metadata = event.get("metadata")
        if event["key"] == "worker_step" and isinstance(metadata, dict):
            place = metadata.get("session"), metadata.get("step")
            if all(isinstance(n, int) for n in place) and _number(metadata.get("mono_s")):
                found[place] = metadata["mono_s"]
    return found


def _offsets_s(
    own: Mapping[tuple[int, int], float], chief: Mapping[tuple[int, int], float]
) -> dict[int, float]:
    # What to add to a worker's clock for the chief's, by session: steps end together.
    found: dict[int, list[float]] = {}
    for place, mono_s in own.items():
        if place in chief:
            found.setdefault(place[0], []).append(chief[place] - mono_s)
    return {session: statistics.median(offsets) for session, offsets in found.items()}


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
            if not isinstance(shown, list) or len(shown) != 2 or not _number(shown[0]):
                continue
            limit = shown[1] if _number(shown[1]) else None
            yield EnergySample(time_ms, session, mono_s + offset_s, name, shown[0], limit)


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)
