"""A user's Keras callbacks, called as Keras's `fit` calls them.

They are for small additions that exist already, such as a learning rate schedule. What
must be exact when a run is resumed is better written as a `tfasr.training.loop.Hook`.
"""

from collections.abc import Sequence

import keras

from tfasr.training.loop import Hook
from tfasr.training.run import TrainingRun
from tfasr.training.step import StepResult


class KerasCallbacks(Hook):
    """Calls ordinary Keras callbacks at the beginning and end of training, epochs and steps.

    Epochs and batches are counted from 0, as in Keras; in a resumed epoch, the count of
    batches continues. ``logs`` have the step's ``loss`` after a batch. After an epoch
    they have ``loss``, the mean over the utterances that this process trained on in it,
    and ``val_loss``, ``val_cer``, ``val_cer_reference`` and ``val_wer``; training waits
    for an overlapped evaluation. ``model.stop_training`` ends training after the
    current batch and an evaluation. Checkpoints contain what a callback changed in the
    model and optimizer, not its own attributes.
    """

    needs_scores = True

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], run: TrainingRun):
        run.model.stop_training = False
        self._callbacks = keras.callbacks.CallbackList(
            list(callbacks),
            model=run.model,
            epochs=run.training.epochs,
            steps=None,
            verbose=0,
        )
        # The sum over the epoch's utterances so far, and their number.
        self._loss_sum = 0.0
        self._utterances = 0

    def on_train_begin(self, run: TrainingRun) -> None:
        self._callbacks.on_train_begin()

    def on_epoch_begin(self, run: TrainingRun, epoch: int) -> None:
        self._loss_sum = 0.0
        self._utterances = 0
        self._callbacks.on_epoch_begin(epoch - 1)

    def on_step_begin(self, run: TrainingRun) -> None:
        self._callbacks.on_train_batch_begin(run.state.step_in_epoch)

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        self._loss_sum += step.loss * step.utterances
        self._utterances += step.utterances

        self._callbacks.on_train_batch_end(
            run.state.step_in_epoch - 1, {"loss": step.loss}
        )
        if run.model.stop_training:
            run.request_stop()

    def on_epoch_end(self, run: TrainingRun, epoch: int) -> None:
        scores = run.state.history[-1]
        logs = {f"val_{name}": scores[name] for name in scores if name != "epoch"}
        # There are none if the previous session was killed before the evaluation.
        if self._utterances:
            logs = {"loss": self._loss_sum / self._utterances, **logs}

        self._callbacks.on_epoch_end(epoch - 1, logs)
        if run.model.stop_training:
            run.request_stop()

    def on_train_end(self, run: TrainingRun) -> None:
        self._callbacks.on_train_end()
