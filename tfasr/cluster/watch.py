"""Watches whether the other workers are still there, and remembers who was lost first."""

import threading
import time
from collections.abc import Callable

from tfasr.cluster.description import Cluster
from tfasr.cluster.peers import unreachable

EVERY_S = 2.0
_AGAIN_S = 0.5
_TIMES = 3


class PeerWatch:
    """Asks now and then on the ports of all other workers whether somebody answers.

    A worker that notices the loss of another ends, and would be taken for lost in turn: only who
    was gone first is remembered.

    Args:
        cluster: all workers.
        on_lost: called once, in the watching thread, with the ranks of the workers that are gone.
        every_s: seconds between two rounds.

    Attributes:
        lost: the ranks of those that were gone first; [] while all are there.
    """

    def __init__(
        self, cluster: Cluster, on_lost: Callable[[list[int]], None], every_s: float = EVERY_S
    ):
        self.lost: list[int] = []
        self._cluster = cluster
        self._on_lost = on_lost
        self._every_s = every_s
        self._stopped = threading.Event()
        self._round = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="workers", daemon=True)
        self._thread.start()

    def look(self) -> list[int]:
        """Asks at once; returns the ranks of those that were gone first."""
        with self._round:
            if not self.lost:
                self.lost = self._gone()
            return self.lost

    def stop(self) -> None:
        """Ends the watch: from now on workers may leave."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._every_s):
            lost = self.look()
            if lost and not self._stopped.is_set():
                self._on_lost(lost)
                return

    def _gone(self) -> list[int]:
        """Returns who does not answer several times in a row."""
        gone = unreachable(self._cluster)
        for _ in range(_TIMES - 1):
            if not gone:
                break
            time.sleep(_AGAIN_S)
            still = unreachable(self._cluster)
            gone = [rank for rank in gone if rank in still]
        return gone
