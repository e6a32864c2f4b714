"""Whether the other workers can be reached: before a run begins, and when one of them is gone."""

import contextlib
import logging
import socket
import time

from tfasr.cluster.description import Cluster, host_of, port_of
from tfasr.errors import RunError, UsageError

log = logging.getLogger("tfasr")

START_S = 600.0
"""How long workers wait for each other at the start."""
_TELL_S = 10.0
_CONNECT_S = 3.0
_PAUSE_S = 0.25


def await_peers(cluster: Cluster, timeout_s: float = START_S) -> None:
    """Waits until all workers listen on their ports.

    This worker listens on its own meanwhile; afterwards the port is free for TensorFlow's server.

    Raises:
        UsageError: if this worker's port is taken.
        RunError: if workers are missing after the timeout.
    """
    own = cluster.addresses[cluster.rank]
    deadline_s = time.monotonic() + timeout_s
    tell_s = time.monotonic() + _TELL_S
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port_of(own)))
            listener.listen(cluster.size + 8)
        except OSError as error:
            raise UsageError(
                f"A worker's port must be free on its host. Received: {own} of worker "
                f"{cluster.rank}: {error.strerror}. Choose another in --cluster, or end what "
                "listens there."
            ) from None
        while missing := unreachable(cluster):
            if time.monotonic() >= deadline_s:
                raise RunError(
                    f"All {cluster.size} workers must be up within {timeout_s:.0f} s. Missing: "
                    f"{', '.join(map(cluster.name, missing))}. Look at their messages, and whether "
                    "this host reaches theirs on these ports."
                )
            if time.monotonic() >= tell_s:
                log.info("waiting for %s", ", ".join(map(cluster.name, missing)))
                tell_s += 6 * _TELL_S
            time.sleep(_PAUSE_S)


def unreachable(cluster: Cluster) -> list[int]:
    """Returns the ranks of the other workers on whose ports nothing answers."""
    return [
        rank
        for rank, address in enumerate(cluster.addresses)
        if rank != cluster.rank and not _answers(address)
    ]


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host_of(address), port_of(address)), timeout=_CONNECT_S).close()
        return True
    return False
