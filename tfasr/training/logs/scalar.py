"""Scalars for tools that plot them while a run trains: TensorBoard, MLflow, W&B."""

from collections.abc import Sequence

from tfasr.training.checkpoint import plain_array
from tfasr.training.logs.registry import Log
from tfasr.training.loop import Hook
from tfasr.training.run import TrainingRun
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
    """

    def __init__(self, logs: Sequence[Log]):
        self._logs = logs
        self._written = 0
        self._last_steps: dict[int, int] = {}

    def on_train_begin(self, run: TrainingRun) -> None:
        self._written = len(run.state.history)

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        if not self._logs:
            return
        seconds = step.input_wait_s + step.compile_s + step.train_s
        scalars = {
            "train/loss": step.loss,
            "train/learning_rate": float(plain_array(run.model.optimizer.learning_rate)),
            "train/utterances_per_s": step.utterances / seconds,
            "train/audio_s_per_s": step.audio_s / seconds,
        }
        with run.ledger.interval("logging", step=run.state.step):
            self._write(run, scalars, run.state.step)
        self._write_evaluations(run)

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        self._last_steps[epoch] = run.state.step
        self._write_evaluations(run)

    def on_train_end(self, run: TrainingRun) -> None:
        self._write_evaluations(run)

    def _write_evaluations(self, run: TrainingRun) -> None:
        history, last_step = run.state.history, run.state.step
        if not self._logs or len(history) == self._written:
            return
        with run.ledger.interval("logging", step=last_step):
            for epoch, scores in enumerate(history[self._written :], start=self._written + 1):
                scalars = {f"validation/{metric}": value for metric, value in scores.items()}
                self._write(run, scalars, self._last_steps.get(epoch, last_step))
            self._written = len(history)
            for log in self._logs:
                log.flush()

    def close(self) -> None:
        for log in self._logs:
            log.close()

    def _write(self, run: TrainingRun, scalars: dict[str, float], step: int) -> None:
        useful_s = run.clock.elapsed_s()
        for log in self._logs:
            log.write(scalars, step, useful_s)
