"""Scalars for tools that plot them while a run trains: TensorBoard, MLflow, W&B."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from tfasr.ledger import Ledger, read_events
from tfasr.training.callbacks import RunProgress
from tfasr.training.checkpoint import plain_array
from tfasr.training.logs.registry import Log, open_logs
from tfasr.tta.timeline import Timeline


class ScalarLog(keras.callbacks.Callback):
    """Gives logs the training's scalars after every step and the accuracies once they are known.

    Training: ``train/loss``, ``train/learning_rate``, ``train/utterances_per_s`` and
    ``train/audio_s_per_s`` of a step with its wait for input. Evaluation: ``validation/cer``,
    ``cer_reference``, ``wer`` and ``loss``, at the step that ended the epoch. All come with the
    *useful seconds*: the run's own clock as in every table, from the creation of the model, with
    everything counted, lost work too, but the downtime between sessions. The time it takes is
    booked as ``logging``.

    Args:
        names: of `tfasr.training.logs.registry.LOGS`.
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
