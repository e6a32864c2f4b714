"""SIGTERM and SIGINT: a checkpoint at the next step, then the end of the run."""

import logging
import signal
import threading
from types import FrameType

from tfasr.errors import RunError
from tfasr.training.workers.exchange import Workers

log = logging.getLogger("tfasr")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunInterruptedError(RunError):
    """The process was asked by a signal to end; a checkpoint was saved, the run can be resumed.

    Attributes:
        exit_code: 128 and the signal's number, as shells count: 143 for SIGTERM, 130 for SIGINT.
    """

    def __init__(self, message: str, received: signal.Signals):
        super().__init__(message)
        self.exit_code = 128 + received


class Interruption:
    """Notes a first SIGTERM or SIGINT while its block runs; a second one works as it did before.

    Outside the main thread, where Python takes no handlers, it notes nothing.

    Attributes:
        received: the signal, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            # An ignored signal stays so: nohup and shells' background jobs mean it.
            handled = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def agree_between(self, workers: Workers) -> None:
        """Does nothing: one process agrees with itself."""

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()
        log.warning(
            "%s: saving a checkpoint at the next step, then ending. A second signal ends at once.",
            self.received.name,
        )

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
