"""Scalars for tools that plot them while a run trains: TensorBoard, MLflow, W&B."""

from collections.abc import Sequence

from tfasr.ledger import Ledger
from tfasr.training.checkpoint import plain_array
from tfasr.training.ctc_model import CtcModel
from tfasr.training.logs.registry import Log
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.run_clock import RunClock
from tfasr.training.step import StepResult


class ScalarLog(Hook):
    """Gives logs the training's scalars after every step and the accuracies once they are known.

    Training: ``train/loss``, ``train/learning_rate``, ``train/utterances_per_s`` and
    ``train/audio_s_per_s`` of a step with its wait for input. Evaluation: ``validation/cer``,
    ``cer_reference``, ``wer`` and ``loss``, at the step that ended the epoch. All come with the
    *useful seconds*: the run's own clock as in every table, from the creation of the model, with
    everything counted, lost work too, but the downtime between sessions. The time it takes is
    booked as ``logging``.

    Args:
        logs: see `tfasr.training.logs.registry.open_logs`; closed here.
        model: tells the learning rate.
        ledger: books the time.
        progress: says which step it is and holds the accuracies.
        clock: the run's.
    """

    def __init__(
        self,
        logs: Sequence[Log],
        model: CtcModel,
        ledger: Ledger,
        progress: RunProgress,
        clock: RunClock,
    ):
        self._logs = logs
        self._model = model
        self._ledger = ledger
        self._progress = progress
        self._clock = clock
        self._written = len(progress.state.history)
        self._last_steps: dict[int, int] = {}

    def on_step(self, step: StepResult) -> None:
        """Writes the step, and an overlapped evaluation that is known by now."""
        if not self._logs:
            return
        seconds = step.input_wait_s + step.compile_s + step.train_s
        scalars = {
            "train/loss": step.loss,
            "train/learning_rate": float(plain_array(self._model.optimizer.learning_rate)),
            "train/utterances_per_s": step.utterances / seconds,
            "train/audio_s_per_s": step.audio_s / seconds,
        }
        with self._ledger.interval("logging", step=self._progress.state.step):
            self._write(scalars, self._progress.state.step)
        self.write_evaluations()

    def on_epoch_end(self, epoch: int) -> None:
        """Writes the evaluation, where it is known at the epoch's end."""
        self._last_steps[epoch] = self._progress.state.step
        self.write_evaluations()

    def on_train_end(self) -> None:
        """Writes the last evaluation."""
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
        useful_s = self._clock.elapsed_s()
        for log in self._logs:
            log.write(scalars, step, useful_s)
