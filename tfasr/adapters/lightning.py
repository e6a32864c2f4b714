"""A PyTorch Lightning callback that records a ``Trainer``'s ``fit``."""

from collections.abc import Callable, Mapping

from tfasr.adapters.translation import Score, batch_utterances, check_step, note
from tfasr.recording.recorder import Recorder

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback


class RecordFit(Callback):
    """Records steps, validations and checkpoints of ``fit``; validations end epochs.

    ::

        with tfasr.Recorder(
            "runs/mine", train_samples=len(data), targets=["accuracy=0.9"]
        ) as run:
            recorder = RecordFit(run, metrics={"accuracy": "val_acc"})
            trainer = Trainer(callbacks=[recorder])
            trainer.fit(module, data_module, ckpt_path=last if run.steps_done else None)

    Args:
        run: an open recorder.
        metrics: maps the ledger's names to the logged names, such as ``{"accuracy":
            "acc"}``; by default all ``val_`` metrics that are built in or declared.
        score: returns references and hypotheses of the validation set, to be scored.
        utterances: returns a batch's number of utterances; default: its first tensor's
            length.
        stop_at_targets: whether to stop training once the run's targets are met.
    """

    def __init__(
        self,
        run: Recorder,
        *,
        metrics: Mapping[str, str] | None = None,
        score: Score | None = None,
        utterances: Callable[..., int] = batch_utterances,
        stop_at_targets: bool = False,
    ):
        self._run = run
        self._utterances = utterances
        self._logs = {"prefix": "val_", "names": metrics, "score": score}
        self._stop_at_targets = stop_at_targets
        # The open step and evaluation, and whether a checkpoint is being saved.
        self._step = None
        self._evaluation = None
        self._saved = False

    def on_train_start(self, trainer, pl_module):
        check_step(self._run, trainer.global_step)

    def on_train_epoch_start(self, trainer, pl_module):
        self._run.epoch()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self._book_saved()
        if not self._run.in_epoch:
            self._run.epoch()
        if self._step is None:
            self._step = self._run.step(utterances=0).__enter__()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self._step.utterances += self._utterances(batch)
        # Lightning passes what `training_step` returned: a loss, or a dict with one.
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._step.loss = loss
        # With accumulated gradients, several batches make one step.
        if trainer.global_step > self._run.steps_done:
            self._end_step()

    def on_validation_start(self, trainer, pl_module):
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._end_step()
            self._evaluation = self._run.evaluation().__enter__()

    def on_validation_end(self, trainer, pl_module):
        if self._evaluation is not None:
            note(self._evaluation, trainer.callback_metrics, **self._logs)
            self._evaluation.__exit__(None, None, None)
            self._evaluation = None
            if self._stop_at_targets and self._run.targets_met:
                trainer.should_stop = True

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self._saved = True

    def on_train_end(self, trainer, pl_module):
        self._book_saved()

    def _end_step(self):
        """Ends the open step, if there is one."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _book_saved(self):
        """Records a checkpoint, at the next call after Lightning has written it."""
        if self._saved:
            self._end_step()
            self._run.checkpoint()
            self._saved = False
