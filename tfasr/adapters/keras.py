"""A Keras callback that records your ``fit``, on any Keras backend."""

from collections.abc import Mapping

import keras

from tfasr.adapters.translation import Score, new_utterances, note
from tfasr.errors import UsageError
from tfasr.recording.recorder import Recorder


class RecordFit(keras.callbacks.Callback):
    """Records the epochs, steps and validations of ``fit``.

    ::

        with tfasr.Recorder(
            "runs/mine", train_samples=len(x), targets=["accuracy=0.9"]
        ) as run:
            model = build()
            saver = keras.callbacks.ModelCheckpoint("runs/mine.keras")
            recorder = RecordFit(run, batch_size=32, checkpoint=True)
            model.fit(
                x,
                y,
                batch_size=32,
                validation_data=held_out,
                epochs=20,
                initial_epoch=run.epochs_done,
                callbacks=[saver, recorder],
            )

    The recorded loss of a step is Keras's, the mean over the epoch so far.

    Args:
        run: an open recorder.
        batch_size: utterances, or samples of any kind, per step, as passed to ``fit``;
            default: the recorder's ``global_batch_size``.
        metrics: maps the ledger's names to Keras's, such as ``{"accuracy": "acc"}``;
            default: all metrics that are built into tfasr or declared in the recorder.
        score: returns references and hypotheses of the validation set, for WER and CER.
        checkpoint: whether a callback before this one saves a checkpoint after each
            epoch.
        stop_at_targets: whether to stop training once the run's targets are met.

    Raises:
        UsageError: if neither the callback nor the recorder was given the batch size.
    """

    def __init__(
        self,
        run: Recorder,
        *,
        batch_size: int | None = None,
        metrics: Mapping[str, str] | None = None,
        score: Score | None = None,
        checkpoint: bool = False,
        stop_at_targets: bool = False,
    ):
        super().__init__()
        self._run = run
        # Keras gives callbacks the number of batches but not their size.
        self._batch_size = batch_size or run.global_batch_size
        if self._batch_size is None:
            raise UsageError(
                "RecordFit needs the number of samples in a step, which fit doesn't pass to "
                "callbacks. Pass the same batch size as to fit: RecordFit(run, batch_size=32)."
            )

        self._names = metrics
        self._score = score
        self._checkpoint = checkpoint
        self._stop_at_targets = stop_at_targets
        # `evaluate` outside `fit` calls the same methods, and is not recorded.
        self._fitting = False
        # Samples of the epoch so far: its last batch may be smaller than the others.
        self._seen = 0

    def on_train_begin(self, logs=None):
        self._fitting = True

    def on_train_end(self, logs=None):
        self._fitting = False

    def on_epoch_begin(self, epoch, logs=None):
        self._run.epoch()
        self._seen = 0

    def on_train_batch_begin(self, batch, logs=None):
        self._first = batch
        self._step = self._run.step().__enter__()

    def on_train_batch_end(self, batch, logs=None):
        # With steps_per_execution, Keras calls this once for several batches.
        done = (batch - self._first + 1) * self._batch_size
        self._step.utterances = new_utterances(self._run, self._seen, done)
        self._seen += done
        self._step.loss = (logs or {}).get("loss")
        self._step.__exit__(None, None, None)

    def on_test_begin(self, logs=None):
        if self._fitting:
            self._evaluation = self._run.evaluation().__enter__()

    def on_test_end(self, logs=None):
        if self._fitting:
            note(self._evaluation, logs or {}, "val_", self._names, self._score)
            self._evaluation.__exit__(None, None, None)

    def on_epoch_end(self, epoch, logs=None):
        if self._checkpoint:
            self._run.checkpoint()
        if self._stop_at_targets and self._run.targets_met:
            self.model.stop_training = True
