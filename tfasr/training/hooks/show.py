"""Where a run stands: a live line or log lines for people, a file for programs.

`ShowProgress` is for whoever looks at the terminal or the log, and `WriteProgress` for
programs such as ``tfasr watch``, which read ``progress.json``. Neither is a record of
the run; that is the ledger.
"""

import contextlib
import dataclasses
import json
import logging
import math
import os
import sys
import time
from typing import Any

from rich.live import Live
from rich.text import Text

from tfasr.errors import stderr_console
from tfasr.kit.files import PARTIAL_SUFFIX, PROGRESS_FILE, new_file
from tfasr.training.hooks.targets import WatchTargets
from tfasr.training.loop import Hook
from tfasr.training.run import TrainingRun
from tfasr.training.step import StepResult

log = logging.getLogger("tfasr")

# How often the live line is renewed, when the first log line comes and how often the
# next ones, and how often the file is written. Shorter times would cost training time.
LIVE_EVERY_S = 0.5
FIRST_LOG_S = 10.0
LOG_EVERY_S = 60.0
WRITE_EVERY_S = 2.0
# In the throughput that is shown, a step's weight relative to that of the next step.
# The mean is then over about the last ten.
_FADING = 0.9


class ShowProgress(Hook):
    """Shows epoch, step, loss, throughput and time left while a run trains.

    On a terminal that is one line at the bottom, renewed at most twice a second; log
    messages appear above it. Elsewhere it is a log message after ten seconds, then one
    a minute. Nothing is read from a device. The throughput is that of about the last
    ten steps. The time left is what all remaining epochs take at the pace of this
    session since its first step, with evaluations.
    """

    def __init__(self):
        self._live: Live | None = None
        # Log handlers that write above the live line, with their former streams.
        self._redirected: list[tuple[logging.StreamHandler, object]] = []
        self._due_s = 0.0  # by the monotonic clock, when to show something next
        # When this session's first step ended, and the utterances trained on since.
        self._began_s: float | None = None
        self._since = 0
        self._in_epoch = 0  # utterances of this epoch so far
        # Utterances of the last steps and their seconds, both fading.
        self._recent = 0.0
        self._recent_s = 0.0

    def on_train_begin(self, run: TrainingRun) -> None:
        if on_terminal():
            self._due_s = time.monotonic() + LIVE_EVERY_S
            self._open()
        else:
            self._due_s = time.monotonic() + FIRST_LOG_S

    def on_epoch_begin(self, run: TrainingRun, epoch: int) -> None:
        self._in_epoch = min(
            run.state.step_in_epoch * run.experiment.pipeline.batch_size(epoch),
            _utterances(run),
        )

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        self._in_epoch = min(self._in_epoch + step.utterances, _utterances(run))
        now_s = time.monotonic()
        # The first step compiles, so the pace leaves it out.
        if self._began_s is None:
            self._began_s = now_s
        else:
            self._since += step.utterances

        if not step.compile_s:
            seconds = step.input_wait_s + step.train_s
            self._recent = _FADING * self._recent + step.utterances
            self._recent_s = _FADING * self._recent_s + seconds

        if now_s < self._due_s:
            return

        text = self._text(run, step.loss, now_s)
        if self._live is None:
            log.info(text)
            self._due_s = now_s + LOG_EVERY_S
        else:
            self._show(text)
            self._due_s = now_s + LIVE_EVERY_S

    def on_epoch_trained(self, run: TrainingRun, epoch: int) -> None:
        if self._live is not None:
            self._show(f"epoch {epoch}/{run.training.epochs}  saving and evaluating")

    def close(self) -> None:
        if self._live is None:
            return

        self._live.stop()
        self._live = None

        for handler, stream in self._redirected:
            handler.setStream(stream)

    def _open(self) -> None:
        """Begins the live line; messages of the log then appear above it."""
        console = stderr_console()
        self._live = Live(
            console=console,
            # Training renews the line, so no thread has to.
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
        )
        stderr_before = sys.stderr
        self._live.start()
        # If the process was killed, a hidden cursor would stay hidden.
        console.show_cursor()

        # Live has replaced standard error, but handlers keep the stream they were
        # given.
        for handler in (*logging.getLogger().handlers, *log.handlers):
            if not isinstance(handler, logging.StreamHandler):
                continue

            if handler.stream is stderr_before:
                self._redirected.append((handler, handler.setStream(sys.stderr)))

    def _show(self, text: str) -> None:
        self._live.update(
            Text(text, no_wrap=True, overflow="ellipsis", style="cyan"), refresh=True
        )

    def _text(self, run: TrainingRun, loss: float, now_s: float) -> str:
        """Returns the line that is shown or logged, see the class."""
        state = run.state
        epochs = run.training.epochs
        utterances = _utterances(run)
        parts = [
            f"epoch {state.epoch}/{epochs} {self._in_epoch / max(utterances, 1):4.0%}",
            f"step {state.step}",
            f"loss {loss:.3f}",
        ]

        if self._recent_s > 0:
            parts.append(f"{self._recent / self._recent_s:.0f} utterances/s")

        if self._since:
            ahead = (epochs - state.epoch + 1) * utterances - self._in_epoch
            left_s = (now_s - self._began_s) / self._since * ahead
            left = f"{duration(left_s)} left"

            if run.training.stop_at_targets:
                left += " at most"

            parts.append(left)

        return "  ".join(parts)


def _utterances(run: TrainingRun) -> int:
    return len(run.splits["train"].utterances)


def on_terminal() -> bool:
    """Whether standard error is a terminal that can renew a line, and -q was not passed."""
    if log.level > logging.INFO or not sys.stderr.isatty():
        return False

    return os.environ.get("TERM", "dumb") != "dumb"


def duration(seconds: float) -> str:
    """Formats seconds with minutes and, if there are any, hours.

    >>> duration(42.4), duration(725), duration(12000)
    ('0:42', '12:05', '3:20:00')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"

    return f"{minutes}:{seconds:02d}"


class WriteProgress(Hook):
    """Keeps ``progress.json`` current: written at the ends of epochs, and at most every 2 s.

    It contains:
        status: "training", "finished", or "stopped" by an error or a signal; a process
            that is killed leaves "training" behind.
        updated_ms: by the wall clock.
        epoch, step: done so far; ``epochs`` is the last epoch.
        elapsed_s: since the creation of the model.
        loss: of the last step.
        evaluation: the last one's ``epoch`` and metrics, or None.
        targets_met: see `MetTarget`.
        forecasts: see `Forecast`.

    The ledger, not this file, is the record of the run, so a full disk is ignored.
    """

    def __init__(self, run: TrainingRun, targets: WatchTargets):
        self._run = run
        self._targets = targets
        self._loss: float | None = None
        self._status = "training"
        self._due_s = -math.inf

    def on_train_begin(self, run: TrainingRun) -> None:
        self._write(run)

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        self._loss = step.loss
        if time.monotonic() >= self._due_s:
            self._write(run)

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        self._write(run)

    def on_train_end(self, run: TrainingRun) -> None:
        self._status = "finished"
        self._write(run)

    def close(self) -> None:
        if self._status == "training":
            self._status = "stopped"
            self._write(self._run)

    def _write(self, run: TrainingRun) -> None:
        """Replaces the file; a reader sees the old one or the new one.

        It is not synced to the disk: after a power loss nobody is watching.
        """
        path = run.run_dir / PROGRESS_FILE
        partial = path.with_name(path.name + PARTIAL_SUFFIX)

        try:
            with new_file(partial) as file:
                file.write(json.dumps(self._content(run), indent=1).encode() + b"\n")

            partial.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

        self._due_s = time.monotonic() + WRITE_EVERY_S

    def _content(self, run: TrainingRun) -> dict[str, Any]:
        """Returns what the file contains, see the class."""
        state = run.state
        epochs = run.training.epochs
        evaluation = None

        if state.history:
            # JSON knows neither NaN nor infinity.
            evaluation = {"epoch": len(state.history)}
            for metric, value in state.history[-1].items():
                evaluation[metric] = value if math.isfinite(value) else None

        return {
            "status": self._status,
            "updated_ms": int(time.time() * 1000),
            "epoch": min(state.epoch, epochs),
            "epochs": epochs,
            "step": state.step,
            "elapsed_s": round(run.clock.elapsed_s(), 3),
            "loss": self._loss,
            "evaluation": evaluation,
            "targets_met": list(map(dataclasses.asdict, self._targets.met)),
            "forecasts": list(map(dataclasses.asdict, self._targets.forecasts)),
        }
