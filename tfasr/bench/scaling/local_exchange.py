"""An exchange of gradients between two processes on this machine, measured."""

from concurrent.futures import ThreadPoolExecutor

from tfasr.bench.scaling.worker_prediction import MeasuredExchange
from tfasr.child import call
from tfasr.cluster.description import Cluster
from tfasr.cluster.launcher import free_ports

_LEAST_BYTES = 8192  # a sum of less is all latency, as the small one beside it


def local_exchanges(gradient_bytes: int) -> list[MeasuredExchange]:
    """Measures exchanges of little and of all gradients between two processes, by the loopback.

    Args:
        gradient_bytes: of a step.

    Raises:
        RunError: if the processes do not find each other.
    """
    large_bytes = max(int(gradient_bytes), _LEAST_BYTES)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ThreadPoolExecutor(2) as threads:
        answers = [
            threads.submit(
                call,
                measured_sums,
                rank,
                addresses,
                large_bytes,
                backend="tensorflow",
                task="Measuring an exchange",
                show_messages=False,
            )
            for rank in range(2)
        ]
        of_rank = [answer.result() for answer in answers]
    return [
        MeasuredExchange(2, size, max(own_s, others_s))
        for (size, own_s), (_, others_s) in zip(*of_rank, strict=True)
    ]


def measured_sums(rank: int, addresses: list[str], large_bytes: int) -> list[tuple[int, float]]:
    """Returns bytes and median seconds of a small and of a large sum, in one worker's process.

    Args:
        rank: of this worker.
        addresses: of all.
        large_bytes: of the large sum.
    """
    from tfasr.training.workers.link import measure_link
    from tfasr.training.workers.team import joined

    with joined(Cluster(tuple(addresses), rank)) as team:
        link = measure_link(team.workers, team.strategy, large_bytes, "float32")
        team.part()
    return [(link.small_bytes, link.small_s), (link.large_bytes, link.large_s)]
