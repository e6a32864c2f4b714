"""The run's own clock while it trains: the one that every table shows afterwards."""

import time
from collections.abc import Sequence

from tfasr.tta.clock import Event
from tfasr.tta.timeline import Timeline


class RunClock:
    """Seconds since the creation of the model: everything counted but time between sessions.

    Args:
        events: of the run's ledger, to the beginning of this session.
    """

    def __init__(self, events: Sequence[Event]):
        self._zero_s = events[-1]["metadata"]["mono_s"] - Timeline(events).elapsed_s[-1]

    def elapsed_s(self) -> float:
        """Returns the seconds until now; lost work is counted."""
        return time.monotonic() - self._zero_s
