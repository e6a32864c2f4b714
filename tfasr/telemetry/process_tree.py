"""The processor time that this process and its children have used."""

import contextlib
import resource
import time

import psutil

CHILDREN_EVERY_S = 10.0
"""Looking for children reads all processes of the machine: some milliseconds."""


class ProcessTree:
    """Tells how busy this process and its children keep the machine's processors."""

    def __init__(self) -> None:
        self._cores = psutil.cpu_count() or 1
        self._children: list[psutil.Process] = []
        self._looked_s = -CHILDREN_EVERY_S
        self._used_s, self._at_s = self._now()

    def percent(self) -> float:
        """Returns the share of all processors' time since the last call, in percent."""
        used_s, at_s = self._now()
        elapsed_s = at_s - self._at_s
        # A child's time counts twice or not at all for the moment in which it is waited for.
        spent_s = max(used_s - self._used_s, 0.0)
        self._used_s, self._at_s = used_s, at_s
        return min(100.0, 100 * spent_s / elapsed_s / self._cores) if elapsed_s > 0 else 0.0

    def _now(self) -> tuple[float, float]:
        at_s = time.monotonic()
        if at_s - self._looked_s >= CHILDREN_EVERY_S:
            self._looked_s = at_s
            with contextlib.suppress(psutil.Error):
                self._children = psutil.Process().children(recursive=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s = time.process_time() + ended.ru_utime + ended.ru_stime
        for child in list(self._children):
            try:
                times = child.cpu_times()
                used_s += times.user + times.system
            except psutil.Error:
                self._children.remove(child)
        return used_s, at_s
