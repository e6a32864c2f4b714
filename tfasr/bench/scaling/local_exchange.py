"""An exchange of gradients between two processes on this machine, measured."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tfasr.bench.scaling.worker_prediction import MeasuredExchange
from tfasr.child import call
from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import free_ports

_LITTLE_BYTES = 4096
_ROUNDS = 12
_WARMUP = 2


def local_exchanges(gradient_bytes: int) -> list[MeasuredExchange]:
    """Measures exchanges of little and of all gradients between two processes, by the loopback.

    Args:
        gradient_bytes: of a step.

    Raises:
        RunError: if the processes do not find each other.
    """
    sizes = [_LITTLE_BYTES, max(int(gradient_bytes), 2 * _LITTLE_BYTES)]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ThreadPoolExecutor(2) as threads:
        answers = [
            threads.submit(
                call,
                exchange_seconds,
                rank,
                addresses,
                sizes,
                backend="tensorflow",
                task="Measuring an exchange",
                show_messages=False,
            )
            for rank in range(2)
        ]
        seconds = [answer.result() for answer in answers]
    return [MeasuredExchange(2, size, max(own)) for size, *own in zip(sizes, *seconds, strict=True)]


def exchange_seconds(rank: int, addresses: list[str], sizes: list[int]) -> list[float]:
    """Returns the median seconds of sums of so many bytes, in the process of one of the workers.

    Args:
        rank: of this worker.
        addresses: of all.
        sizes: in bytes.
    """
    from tfasr.training.workers.team import joined

    with joined(Cluster(tuple(addresses), rank)) as team:
        found = [_median_s(team, size) for size in sizes]
        team.part()
    return found


def _median_s(team, size: int) -> float:
    values = [np.zeros(size // 4, np.float32)]
    seconds: Sequence[float] = []
    for _ in range(_WARMUP + _ROUNDS):
        began = time.perf_counter()
        team.workers.sums(values)
        seconds = [*seconds, time.perf_counter() - began]
    return statistics.median(seconds[_WARMUP:])
