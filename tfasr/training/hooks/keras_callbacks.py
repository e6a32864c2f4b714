"""A user's Keras callbacks, called as Keras's `fit` calls them."""

from collections.abc import Sequence

import keras

from tfasr.training.ctc_model import CtcModel
from tfasr.training.hooks.evaluation import EvaluateEpoch
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.step import StepResult


class KerasCallbacks(Hook):
    """Calls ordinary Keras callbacks at the beginning and end of training, epochs and batches.

    Epochs and batches are counted from 0, as Keras does; a resumed epoch's batches go on where
    they were. ``logs`` hold the step's ``loss`` after a batch. After an epoch they hold ``loss``,
    the mean over the utterances that this process trained on in it, and ``val_loss``,
    ``val_cer``, ``val_cer_reference`` and ``val_wer``; an overlapped evaluation is waited for.
    ``model.stop_training`` ends the epoch after the current batch, with its evaluation, and
    training with it. Checkpoints hold what a callback changed in the model and optimizer, not its
    own attributes: in a resumed run it starts from its initial state.

    Args:
        callbacks: at least one.
        model: given to them.
        progress: tells epoch, batch and accuracies.
        evaluation: of the epochs.
        epochs: the last one's number.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: CtcModel,
        progress: RunProgress,
        evaluation: EvaluateEpoch,
        epochs: int,
    ):
        model.stop_training = False
        self._model = model
        self._progress = progress
        self._evaluation = evaluation
        self._callbacks = keras.callbacks.CallbackList(
            list(callbacks), model=model, epochs=epochs, steps=None, verbose=0
        )
        self._loss_sum, self._utterances = 0.0, 0

    def on_train_begin(self) -> None:
        """Begins training."""
        self._callbacks.on_train_begin()

    def on_epoch_begin(self, epoch: int) -> None:
        """Begins an epoch."""
        self._loss_sum, self._utterances = 0.0, 0
        self._callbacks.on_epoch_begin(epoch - 1)

    def on_step_begin(self) -> None:
        """Begins a batch."""
        self._callbacks.on_train_batch_begin(self._progress.state.step_in_epoch)

    def on_step(self, step: StepResult) -> None:
        """Ends a batch."""
        self._loss_sum += step.loss * step.utterances
        self._utterances += step.utterances
        batch = self._progress.state.step_in_epoch - 1
        self._callbacks.on_train_batch_end(batch, {"loss": step.loss})
        self._heed()

    def on_epoch_end(self, epoch: int) -> None:
        """Ends an epoch."""
        self._evaluation.finish()
        logs = {f"val_{name}": value for name, value in self._progress.state.history[-1].items()}
        if self._utterances:  # none where a crash came between the epoch and its evaluation
            logs = {"loss": self._loss_sum / self._utterances, **logs}
        self._callbacks.on_epoch_end(epoch - 1, logs)
        self._heed()

    def on_train_end(self) -> None:
        """Ends training."""
        self._callbacks.on_train_end()

    def _heed(self) -> None:
        if self._model.stop_training:
            self._progress.stop_requested = True
