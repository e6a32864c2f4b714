"""``progress.json``: how far a run has come, for programs that watch it."""

import contextlib
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

from tfasr.durable import PARTIAL_SUFFIX
from tfasr.run_files import PROGRESS_FILE
from tfasr.training.hooks.forecasts import ForecastTargets
from tfasr.training.hooks.targets import AnnounceTargets
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.run_clock import RunClock
from tfasr.training.step import StepResult

EVERY_S = 2.0


class WriteProgress(Hook):
    """Keeps ``progress.json`` current: written at the ends of epochs, and at most every 2 s.

    It holds ``status`` ("training", "finished", or "stopped" where an error or a signal ended the
    process; one that is killed leaves "training" behind), ``updated_ms`` (wall clock), ``epoch``
    and ``step`` (done so far), ``epochs`` (the last epoch), ``elapsed_s`` (since the creation of
    the model), ``loss`` of the last step, ``evaluation`` (the last one's ``epoch`` and metrics, or
    None), ``targets_met``, see `MetTarget`, and ``forecasts``, see `Forecast`. The ledger, not
    this file, is the record of the run: a file that the disk does not take is passed over.

    Args:
        run_dir: the run's folder.
        epochs: the last one's number.
        progress: says where the run stands.
        targets: says which are met.
        clock: the run's.
        forecasts: says when targets will be met.
    """

    def __init__(
        self,
        run_dir: Path,
        epochs: int,
        progress: RunProgress,
        targets: AnnounceTargets,
        clock: RunClock,
        forecasts: ForecastTargets,
    ):
        self._path = run_dir / PROGRESS_FILE
        self._epochs = epochs
        self._progress = progress
        self._targets = targets
        self._clock = clock
        self._forecasts = forecasts
        self._loss: float | None = None
        self._status = "training"
        self._due_s = -math.inf

    def on_train_begin(self) -> None:
        """Writes where the run begins."""
        self._write()

    def on_step(self, step: StepResult) -> None:
        """Writes when it is time."""
        self._loss = step.loss
        if time.monotonic() >= self._due_s:
            self._write()

    def on_epoch_end(self, epoch: int) -> None:
        """Writes the evaluation."""
        self._write()

    def on_train_end(self) -> None:
        """Writes that the run is at its end."""
        self._status = "finished"
        self._write()

    def close(self) -> None:
        """Writes that the process ends, where the run is not at its end."""
        if self._status == "training":
            self._status = "stopped"
            self._write()

    def _write(self) -> None:
        # Not synced to the disk: after a power loss nobody is watching.
        partial = self._path.with_name(self._path.name + PARTIAL_SUFFIX)
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(self._content(), indent=1) + "\n", encoding="utf-8")
            partial.replace(self._path)
        self._due_s = time.monotonic() + EVERY_S

    def _content(self) -> dict[str, Any]:
        state = self._progress.state
        evaluation = None
        if state.history:
            scores = {m: v if math.isfinite(v) else None for m, v in state.history[-1].items()}
            evaluation = {"epoch": len(state.history), **scores}
        return {
            "status": self._status,
            "updated_ms": int(time.time() * 1000),
            "epoch": min(state.epoch, self._epochs),
            "epochs": self._epochs,
            "step": state.step,
            "elapsed_s": round(self._clock.elapsed_s(), 3),
            "loss": self._loss,
            "evaluation": evaluation,
            "targets_met": [dataclasses.asdict(target) for target in self._targets.met],
            "forecasts": self._forecasts.to_json(),
        }
