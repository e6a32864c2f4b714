"""Which worker of a cluster waited for which: from what each noted of its own steps.

Workers' clocks are not compared. A step ends for all at the same moment, when the gradients are
added up: who was ready a longer time before that end waited for who was ready last.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.analysis.worker_files import Events, read_worker_files

_SECONDS = ("input_wait_s", "step_s", "ready_s")
Steps = dict[tuple[int, int], Mapping[str, Any]]


@dataclass(frozen=True)
class WorkerPart:
    """A worker's part of a run, over the steps that all workers noted and none compiled in."""

    rank: int  # of the worker; 0 is the chief
    steps: int  # how many
    utterances: int  # of its shares
    input_wait_s: float  # seconds until its shares were there
    step_s: float  # seconds from then until all workers' gradients were applied
    # Of them, those for the worker that was last; a lower bound, since what keeps all of them
    # waiting, such as the network, is nobody's
    waited_s: float
    held_up_s: float  # seconds that the first of the others waited for this one, where it was last
    # Seconds from when the last worker had its gradients until all were applied: the exchange and
    # the update. With synchronised batch normalisation, the exchange of statistics is not in it
    exchange_s: float
    # How often it sent as many bytes as all gradients have: in a ring of n workers 2 (n - 1) / n
    # times a step
    sent_buffers: float = 0.0

    @property
    def waited_share(self) -> float:
        """The part of its steps that it waited for others, a fraction."""
        return self.waited_s / self.step_s if self.step_s else 0.0


def worker_parts(run_dir: Path) -> list[WorkerPart]:
    """Returns the parts of a run's workers by rank; [] where fewer than two noted their steps."""
    return parts_of(read_worker_files(run_dir))


def parts_of(files: Mapping[int, Events]) -> list[WorkerPart]:
    """Returns the parts of workers by rank, from what each noted; see `worker_parts`."""
    noted = {rank: _steps(events) for rank, events in files.items()}
    together = _noted_by_all(noted)
    ranks = sorted({rank for parts in together for rank in parts})
    return [_part(rank, together) for rank in ranks] if len(ranks) > 1 else []


def _steps(events: Events) -> Steps:
    steps = {}
    for event in events:
        value, metadata = event.get("value"), event.get("metadata")
        if event["key"] != "worker_step" or not isinstance(metadata, dict) or not _whole(value):
            continue
        place = metadata.get("session"), metadata.get("step")
        if all(isinstance(number, int) for number in place):
            steps[place] = value
    return steps


def _whole(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("utterances"), int)
        and all(
            isinstance(value.get(name), int | float) and 0 <= value[name] < math.inf
            for name in _SECONDS
        )
    )


def _noted_by_all(noted: Mapping[int, Steps]) -> list[dict[int, Mapping[str, Any]]]:
    sessions: dict[int, set[int]] = {}
    for rank, steps in noted.items():
        for session, _ in steps:
            sessions.setdefault(session, set()).add(rank)
    found = []
    for place in sorted({place for steps in noted.values() for place in steps}):
        ranks = sessions[place[0]]
        parts = {rank: noted[rank][place] for rank in ranks if place in noted[rank]}
        if len(parts) == len(ranks) > 1 and not any(p.get("compiled") for p in parts.values()):
            found.append(parts)
    return found


def _part(rank: int, together: list[dict[int, Mapping[str, Any]]]) -> WorkerPart:
    steps = [parts for parts in together if rank in parts]
    waits = [_waits(parts) for parts in steps]
    own = [parts[rank] for parts in steps]
    return WorkerPart(
        rank,
        len(own),
        sum(one["utterances"] for one in own),
        math.fsum(one["input_wait_s"] for one in own),
        math.fsum(one["step_s"] for one in own),
        math.fsum(wait[rank] for wait in waits),
        math.fsum(max(wait.values()) for wait in waits if min(wait, key=wait.get) == rank),
        math.fsum(min(_from_ready(parts).values()) for parts in steps),
        math.fsum(2 * (len(parts) - 1) / len(parts) for parts in steps),
    )


def _waits(parts: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """Returns how long each worker waited in a step for the last one.

    The last to begin has the shortest step, the last to have its gradients the shortest time from
    them to the end. With synchronised batch normalisation workers already wait in the model, and
    only the first tells.
    """
    from_ready = _from_ready(parts)
    shortest_s, soonest_s = min(p["step_s"] for p in parts.values()), min(from_ready.values())
    return {
        rank: max(p["step_s"] - shortest_s, from_ready[rank] - soonest_s)
        for rank, p in parts.items()
    }


def _from_ready(parts: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    return {rank: max(p["step_s"] - p["ready_s"], 0.0) for rank, p in parts.items()}
