"""Where a run stands, for whoever sits before it: one live line, or log lines now and then."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tfasr.training.loop import Hook, RunProgress
from tfasr.training.step import StepResult

log = logging.getLogger("tfasr")

LIVE_EVERY_S = 0.5
LOG_EVERY_S = 60.0
# A step weighs so much less than the one after it in the throughput that is shown.
_FADING = 0.9


class ShowProgress(Hook):
    """Shows epoch, step, loss, throughput and time left while a run trains.

    On a terminal that is one line at the bottom, renewed twice a second at most, which goes away
    with the run; log messages appear above it. Anywhere else it is a log message a minute. It
    shows what the steps have told anyway, and asks nothing of a device.

    The throughput is that of the last ten steps or so; the time left is what all remaining epochs
    take at the pace of this session since its first step, evaluations included.

    Args:
        epochs: the last one's number.
        utterances: of the training split.
        batch_size: returns the utterances of an epoch's global batches.
        progress: says where the run stands.
        stops_at_targets: whether the run may end before its last epoch.
    """

    def __init__(
        self,
        *,
        epochs: int,
        utterances: int,
        batch_size: Callable[[int], int],
        progress: RunProgress,
        stops_at_targets: bool = False,
    ):
        self._epochs = epochs
        self._utterances = utterances
        self._batch_size = batch_size
        self._progress = progress
        self._at_most = " at most" if stops_at_targets else ""
        self._live: Live | None = None
        self._redirected: list[tuple[logging.StreamHandler, object]] = []
        self._due_s = 0.0
        self._began_s: float | None = None
        self._since = 0
        self._in_epoch = 0
        self._recent, self._recent_s = 0.0, 0.0

    def on_train_begin(self) -> None:
        """Opens the line, where there is a terminal to have it."""
        self._due_s = time.monotonic() + (LIVE_EVERY_S if on_terminal() else LOG_EVERY_S)
        if on_terminal():
            self._open()

    def on_epoch_begin(self, epoch: int) -> None:
        """Counts anew, from where a resumed epoch goes on."""
        done = self._progress.state.step_in_epoch * self._batch_size(epoch)
        self._in_epoch = min(done, self._utterances)

    def on_step(self, step: StepResult) -> None:
        """Shows it when it is time."""
        self._in_epoch = min(self._in_epoch + step.utterances, self._utterances)
        now_s = time.monotonic()
        if self._began_s is None:  # the first step compiles: the pace is that of the others
            self._began_s = now_s
        else:
            self._since += step.utterances
        if not step.compile_s:
            seconds = step.input_wait_s + step.train_s
            self._recent = _FADING * self._recent + step.utterances
            self._recent_s = _FADING * self._recent_s + seconds
        if now_s < self._due_s:
            return
        text = self._text(step.loss, now_s)
        if self._live is None:
            log.info(text)
            self._due_s = now_s + LOG_EVERY_S
        else:
            self._show(text)
            self._due_s = now_s + LIVE_EVERY_S

    def on_epoch_trained(self, epoch: int) -> None:
        """Says what training is waiting for."""
        if self._live is not None:
            self._show(f"epoch {epoch}/{self._epochs}  saving and evaluating")

    def close(self) -> None:
        """Takes the line away."""
        if self._live is None:
            return
        self._live.stop()
        self._live = None
        for handler, stream in self._redirected:
            handler.setStream(stream)

    def _open(self) -> None:
        # Without a thread of its own: it is drawn where training calls.
        console = Console(stderr=True)
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False
        )
        before = sys.stderr
        self._live.start()
        console.show_cursor()  # a killed process could not bring it back
        for handler in _stream_handlers():
            if handler.stream is before:
                self._redirected.append((handler, handler.setStream(sys.stderr)))

    def _show(self, text: str) -> None:
        line = Text(text, no_wrap=True, overflow="ellipsis", style="cyan")
        self._live.update(line, refresh=True)

    def _text(self, loss: float, now_s: float) -> str:
        state = self._progress.state
        share = self._in_epoch / max(self._utterances, 1)
        parts = [
            f"epoch {state.epoch}/{self._epochs} {share:4.0%}",
            f"step {state.step}",
            f"loss {loss:.3f}",
        ]
        if self._recent_s > 0:
            parts.append(f"{self._recent / self._recent_s:.0f} utterances/s")
        if self._since:
            ahead = (self._epochs - state.epoch + 1) * self._utterances - self._in_epoch
            left_s = (now_s - self._began_s) / self._since * ahead
            parts.append(f"{duration(left_s)} left{self._at_most}")
        return "  ".join(parts)


def on_terminal() -> bool:
    """Says whether standard error is a terminal that can renew a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def duration(seconds: float) -> str:
    """Returns seconds as "0:42", "12:05" or "3:20:00"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _stream_handlers() -> Iterator[logging.StreamHandler]:
    for logger in (logging.getLogger(), log):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                yield handler
