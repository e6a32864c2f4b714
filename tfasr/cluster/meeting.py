"""The first meeting of a run's workers, before TensorFlow connects them.

Workers meet at the chief's port first, where those that are missing or have another
version of tfasr are named. Then the port is closed, and TensorFlow takes it over.
"""

import logging
import threading
import time
from collections.abc import Iterator

import grpc

from tfasr.cluster.description import Cluster
from tfasr.cluster.stream import START_S, ChiefPort, ChiefStream, check_free
from tfasr.errors import RunError, UsageError

log = logging.getLogger("tfasr")

_LOOK_S = 0.2  # between looks at who is here
_TELL_S = 20.0  # between messages about who is missing
_LEAVE_S = 5.0  # at most, for the workers to read that all are here


def await_peers(
    cluster: Cluster, timeout_s: float = START_S, secret: bytes = b""
) -> None:
    """Waits until all workers have met at the chief's port.

    Args:
        cluster: the workers; the chief opens its port, the others connect to it.
        timeout_s: how long to wait for all of them.
        secret: the secret that they share, see `tfasr.cluster.trust.shared_secret`.

    Raises:
        UsageError: if this worker's port is taken, or another worker has another
            version of tfasr.
        RunError: if workers are missing after ``timeout_s``.
    """
    if cluster.rank:
        check_free(cluster.addresses[cluster.rank], cluster.rank)
        ChiefStream(cluster, secret, timeout_s).close()
        return

    here: dict[int, grpc.ServicerContext] = {}
    over = threading.Event()

    def attend(
        rank: int, incoming: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Keeps a worker's stream open until all are here."""
        here[rank] = context
        while context.is_active() and not over.wait(_LOOK_S):
            pass

        yield from ()  # the stream's end says that all are here

    port = ChiefPort(cluster, secret, attend)
    try:
        _await_workers(cluster, timeout_s, port, here)
        over.set()
        port.close(_LEAVE_S)
    finally:
        # If workers are missing, those that came are not kept waiting.
        port.close()
        over.set()


def _await_workers(
    cluster: Cluster,
    timeout_s: float,
    port: ChiefPort,
    here: dict[int, grpc.ServicerContext],
) -> None:
    """Waits at the chief's port, and says now and then who is missing.

    Args:
        cluster: the workers.
        timeout_s: how long to wait for all of them.
        port: the chief's port.
        here: the streams of the workers that have come, by rank; others add to it.
    """
    began_s = time.monotonic()
    tell_s = _TELL_S
    while True:
        missing = [
            rank
            for rank in range(1, cluster.size)
            if rank not in here or not here[rank].is_active()
        ]
        if not missing:
            return

        if port.other_version:
            raise UsageError(port.other_version)

        names = ", ".join(map(cluster.name, missing))
        waited_s = time.monotonic() - began_s
        if waited_s >= timeout_s:
            raise RunError(
                f"All {cluster.size} workers must be up within {timeout_s:.0f} s. "
                f"Missing: {names}. Check their messages, and whether they can reach "
                "this host."
            )

        if waited_s >= tell_s:
            log.info("waiting for %s", names)
            tell_s += _TELL_S

        time.sleep(_LOOK_S)
