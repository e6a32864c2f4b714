"""A signal to some worker, which all workers obey at the same step."""

import signal

from tfasr.training.interruption import Interruption
from tfasr.training.workers.exchange import Workers


class AgreedInterruption:
    """A signal that any worker got, once all know of it.

    Attributes:
        received: the signal, or None.
    """

    def __init__(self, own: Interruption):
        self.received: signal.Signals | None = None
        self._own = own

    @property
    def asked(self) -> int:
        """The number of the signal that this worker got, 0 for none."""
        return int(self._own.received or 0)

    def agree(self, asked: int) -> None:
        """Notes what workers were asked: the largest of their numbers."""
        if asked:
            self.received = signal.Signals(asked)

    def agree_between(self, workers: Workers) -> None:
        """Tells all workers of a signal that came between two steps; all call it."""
        self.agree(max(workers.gather(self.asked)))
