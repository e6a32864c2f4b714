"""Decisions to end that all workers take at the same step."""

import signal

from tfasr.training.interruption import Interruption
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.workers.exchange import Workers


class AgreedInterruption:
    """A signal that any worker got, once all know of it.

    Args:
        own: this worker's.

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


class Agree(Hook):
    """Lets all workers begin an epoch, or end before it, together.

    Args:
        workers: all of them.
        interruption: what a signal has asked.
        progress: the chief's decision to stop becomes that of all.
    """

    def __init__(self, workers: Workers, interruption: AgreedInterruption, progress: RunProgress):
        self._workers = workers
        self._interruption = interruption
        self._progress = progress

    def on_epoch_begin(self, epoch: int) -> None:
        """Tells the others of a signal that came during the evaluation."""
        self._interruption.agree(max(self._workers.gather(self._interruption.asked)))

    def on_epoch_end(self, epoch: int) -> None:
        """Ends training where the chief does."""
        self._progress.stop_requested = self._workers.gather(self._progress.stop_requested)[0]
