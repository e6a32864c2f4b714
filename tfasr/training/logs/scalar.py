"""Scalars for tools that plot them while a run trains: TensorBoard, MLflow, W&B."""

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import keras

from tfasr.errors import UsageError
from tfasr.ledger import Ledger, read_events
from tfasr.training.callbacks import RunProgress
from tfasr.training.checkpoint import plain_array
from tfasr.tta.clock import Event
from tfasr.tta.timeline import Timeline

LOGS = {"tensorboard": "TensorBoardLog", "mlflow": "MlflowLog", "wandb": "WandbLog"}
"""Classes by name, each in ``tfasr.training.<name>_log``."""


class Log(Protocol):
    """Where scalars go; made of the run's folder and the events of its ledger so far."""

    def write(self, scalars: dict[str, float], step: int, useful_s: float) -> None:
        """Takes values that belong to an optimizer step and to a time of the run."""

    def flush(self) -> None:
        """Makes what was written safe from a crash."""

    def close(self) -> None:
        """Ends the log."""


def required(package: str) -> ModuleType:
    """Returns a package that a log needs.

    Raises:
        UsageError: if it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"--log_to {package} must have the package {package}, which is not installed "
            f"({error}). Install it with: pip install {package}, or leave --log_to {package} out."
        ) from error


def check_logs(names: Sequence[str]) -> None:
    """Raises UsageError for a log that is unknown or whose package is missing."""
    for name in names:
        if name not in LOGS:
            raise UsageError(f"A log must be one of {sorted(LOGS)}. Received: {name!r}.")
        if name != "tensorboard":  # TensorFlow itself writes what TensorBoard reads
            required(name)


def open_logs(names: Sequence[str], run_dir: Path, events: Sequence[Event]) -> list[Log]:
    """Returns the logs of those names, once each."""
    modules = {name: importlib.import_module(f"{__package__}.{name}") for name in names}
    return [getattr(module, LOGS[name])(run_dir, events) for name, module in modules.items()]


class ScalarLog(keras.callbacks.Callback):
    """Gives logs the training's scalars after every step and the accuracies once they are known.

    Training: ``train/loss``, ``train/learning_rate``, ``train/utterances_per_s`` and
    ``train/audio_s_per_s`` of a step with its wait for input. Evaluation: ``validation/cer``,
    ``cer_reference``, ``wer`` and ``loss``, at the step that ended the epoch. All come with the
    *useful seconds*: the run's own clock as in every table, from the creation of the model, with
    everything counted, lost work too, but the downtime between sessions. The time it takes is
    booked as ``logging``.

    Args:
        names: of `LOGS`.
        run_dir: the run's folder; its ledger must have the session's beginning.
        ledger: books the time.
        progress: says which step it is and holds the accuracies.
    """

    def __init__(self, names: Sequence[str], run_dir: Path, ledger: Ledger, progress: RunProgress):
        super().__init__()
        self._ledger = ledger
        self._progress = progress
        self._written = len(progress.state.history)
        self._last_steps: dict[int, int] = {}
        self._logs: list[Log] = []
        if names:
            events = read_events(run_dir)
            self._zero_s = events[-1]["metadata"]["mono_s"] - Timeline(events).elapsed_s[-1]
            self._logs = open_logs(names, run_dir, events)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Writes the step, and an overlapped evaluation that is known by now."""
        if not self._logs:
            return
        seconds = logs["input_wait_s"] + logs["compile_s"] + logs["train_s"]
        scalars = {
            "train/loss": float(logs["loss"]),
            "train/learning_rate": float(plain_array(self.model.optimizer.learning_rate)),
            "train/utterances_per_s": logs["utterances"] / seconds,
            "train/audio_s_per_s": logs["audio_s"] / seconds,
        }
        with self._ledger.interval("logging", step=self._progress.state.step):
            self._write(scalars, self._progress.state.step)
        self.write_evaluations()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the evaluation, where it is known at the epoch's end."""
        state = self._progress.state
        # The evaluation has moved on to the next epoch.
        self._last_steps[state.epoch - 1] = state.step
        self.write_evaluations()

    def write_evaluations(self) -> None:
        """Writes the evaluations that have become known, and flushes."""
        history = self._progress.state.history
        if not self._logs or len(history) == self._written:
            return
        with self._ledger.interval("logging", step=self._progress.state.step):
            for epoch, scores in enumerate(history[self._written :], start=self._written + 1):
                scalars = {f"validation/{metric}": value for metric, value in scores.items()}
                self._write(scalars, self._last_steps.get(epoch, self._progress.state.step))
            self._written = len(history)
            for log in self._logs:
                log.flush()

    def close(self) -> None:
        """Ends the logs."""
        for log in self._logs:
            log.close()

    def _write(self, scalars: dict[str, float], step: int) -> None:
        useful_s = time.monotonic() - self._zero_s
        for log in self._logs:
            log.write(scalars, step, useful_s)
