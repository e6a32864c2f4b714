"""The training states of the paper's Figure 6 as Keras callbacks."""

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfasr.data.shards import ShardedSplit
from tfasr.errors import RunError
from tfasr.ledger import Ledger
from tfasr.models.recogniser import kernels
from tfasr.run_files import HYPOTHESES_FOLDER
from tfasr.training.checkpoint import TrainingState, keep_as_best, save_checkpoint
from tfasr.training.evaluation import EvaluationResult, Evaluator, PendingEvaluation
from tfasr.training.sentences import SentenceSampler

log = logging.getLogger("tfasr")

STEP_FACTS = (
    "loss",
    "utterances",
    "audio_s",
    "frames",
    "padded_frames",
    "input_wait_s",
    "compile_s",
    "train_s",
)
COUNTS = ("utterances", "frames", "padded_frames")


class RunProgress:
    """The state of a run, shared by its callbacks and saved with every checkpoint."""

    def __init__(self, state: TrainingState):
        self.state = state

    def advance(self, **changes: Any) -> None:
        """Replaces fields of the state."""
        self.state = dataclasses.replace(self.state, **changes)


class BookSteps(keras.callbacks.Callback):
    """Writes every step into the ledger and ends the run at a loss that is no number.

    Args:
        ledger: the run's.
        progress: advanced by one step.
        split: names the utterances of a bad step.
    """

    def __init__(self, ledger: Ledger, progress: RunProgress, split: ShardedSplit):
        super().__init__()
        self._ledger = ledger
        self._progress = progress
        self._split = split

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Books the step; raises RunError if its loss is not finite."""
        state = self._progress.state
        self._progress.advance(step=state.step + 1, step_in_epoch=state.step_in_epoch + 1)
        where = {"epoch_num": state.epoch, "step": state.step + 1}
        if not math.isfinite(logs["loss"]):
            self._ledger.event("train_step", {**_facts(logs), "loss": None}, **where)
            raise RunError(self._describe(logs, state))
        self._ledger.event("train_step", _facts(logs), **where)
        if batch == 0 and state.step_in_epoch == 0 and state.epoch == 1:
            used = sorted(kernels(self.model.recogniser))
            self._ledger.event("lstm_kernel", used)
            log.info("recurrence: %s", ", ".join(used) or "n/a")

    def _describe(self, logs: dict[str, Any], state: TrainingState) -> str:
        bad = set(logs["positions"][~np.isfinite(logs["utterance_loss"])].tolist())
        ids = [u.id for u in self._split.utterances if u.position in bad]
        return (
            f"The loss must be finite. Step {state.step + 1} (epoch {state.epoch}) got "
            f"{logs['loss']} from the utterances {', '.join(ids[:20])}"
            f"{' and more' if len(ids) > 20 else ''}. The last good checkpoint is kept. Lower the "
            "learning rate or clip gradients (clipnorm), look at those utterances, then start a "
            "new run or continue with --resume."
        )


def _facts(logs: dict[str, Any]) -> dict[str, Any]:
    """The step's facts for the ledger; Keras has made floats of the counts."""
    return {
        name: int(logs[name]) if name in COUNTS else round(logs[name], 6) for name in STEP_FACTS
    }


class PrintSentences(keras.callbacks.Callback):
    """Logs what the model hears in a few utterances, beside what was said.

    Args:
        sampler: hears them.
        every_steps: steps between two looks; 0 for none.
        ledger: books the time.
        progress: says which step it is.
    """

    def __init__(
        self, sampler: SentenceSampler, every_steps: int, ledger: Ledger, progress: RunProgress
    ):
        super().__init__()
        self._sampler = sampler
        self._every_steps = every_steps
        self._ledger = ledger
        self._progress = progress

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Prints when it is time."""
        step = self._progress.state.step
        if not self._every_steps or step % self._every_steps:
            return
        with self._ledger.interval("sentences", step=step):
            log.info("step %d, epoch %d, loss %.3f", step, self._progress.state.epoch, logs["loss"])
            for reference, hypothesis in self._sampler.sentences():
                log.info("  said:  %s\n  heard: %s", reference, hypothesis)


class SaveCheckpoints(keras.callbacks.Callback):
    """Saves a checkpoint every so many steps and at every epoch's end.

    Args:
        run_dir: the run's folder.
        every_steps: steps between two.
        keep: how many to keep.
        ledger: books the time.
        progress: saved with the variables.
    """

    def __init__(
        self, run_dir: Path, every_steps: int, keep: int, ledger: Ledger, progress: RunProgress
    ):
        super().__init__()
        self._run_dir = run_dir
        self._every_steps = every_steps
        self._keep = keep
        self._ledger = ledger
        self._progress = progress
        self.newest: Path | None = None
        self.before_save: Callable[[], None] = lambda: None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Saves when it is time."""
        if self._progress.state.step % self._every_steps == 0:
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves before the evaluation, so that a crash in it costs no training."""
        if not self._progress.state.epoch_trained:
            self._progress.advance(epoch_trained=True)
            self._save()

    def _save(self) -> None:
        self.before_save()
        state = self._progress.state
        self._ledger.start("checkpoint", step=state.step, epoch_num=state.epoch)
        try:
            # First the ledger: no checkpoint may outlive the lines before it in a power loss.
            self._ledger.sync()
            self.newest = save_checkpoint(self._run_dir, self.model, state, self._keep)
        except OSError as error:
            raise RunError(
                f"Checkpoints must find room in {self._run_dir}. Step {state.step}'s could not be "
                f"written: {error}. The ones before are kept: free some space, then continue with "
                "--resume."
            ) from error
        self._ledger.stop("checkpoint", step=state.step, epoch_num=state.epoch)


class EvaluateEpoch(keras.callbacks.Callback):
    """Evaluates on the validation split after every epoch and keeps the best checkpoint.

    Overlapped, an epoch's end waits for the forward passes alone: training goes on while the
    decoder works, and the accuracy is booked once it is known, before the next checkpoint at last.

    Args:
        evaluator: of the validation split.
        run_dir: hypotheses go to ``hypotheses/validation-epoch-<n>.jsonl``.
        checkpoints: whose newest is the epoch's.
        ledger: gets the accuracy.
        progress: its history gets the accuracy too.
        overlap: whether decoding and training overlap.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        run_dir: Path,
        checkpoints: SaveCheckpoints,
        ledger: Ledger,
        progress: RunProgress,
        overlap: bool = False,
    ):
        super().__init__()
        self._evaluator = evaluator
        self._run_dir = run_dir
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._progress = progress
        self._overlap = overlap
        self._pending: tuple[PendingEvaluation, int, Path | None] | None = None
        # A checkpoint's history must hold every epoch before it.
        checkpoints.before_save = self.finish

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        """Books an overlapped evaluation as soon as it is known."""
        if self._pending is not None and self._pending[0].done():
            self.finish()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluates, books the result and moves on to the next epoch."""
        epoch_num = self._progress.state.epoch
        self._ledger.start("eval", epoch_num=epoch_num)
        with self._ledger.interval("eval_forward", epoch_num=epoch_num):
            pending = self._evaluator.start()
        self._pending = pending, epoch_num, self._checkpoints.newest
        self._progress.advance(epoch=epoch_num + 1, step_in_epoch=0, epoch_trained=False)
        if not self._overlap:
            self._book()
        self._ledger.stop("eval", epoch_num=epoch_num)

    @property
    def traces(self) -> int:
        """How often the evaluation's forward pass was traced."""
        return self._evaluator.traces

    def finish(self) -> None:
        """Waits for the evaluation under way, if any, and books it."""
        if self._pending is None:
            return
        epoch_num = self._pending[1]
        self._ledger.start("eval", epoch_num=epoch_num)
        self._book()
        self._ledger.stop("eval", epoch_num=epoch_num)

    def _book(self) -> None:
        pending, epoch_num, checkpoint = self._pending
        self._pending = None
        with self._ledger.interval("decode", epoch_num=epoch_num):
            result, worked_s = pending.result()
        scores = {**result.counts.to_json(), "loss": result.loss}
        self._ledger.event("decode_work", round(worked_s, 6), epoch_num=epoch_num)
        self._ledger.event("eval_accuracy", result.counts.wer, epoch_num=epoch_num)
        self._ledger.event("tracked_stats", scores, epoch_num=epoch_num)
        self._keep(result, epoch_num, checkpoint)
        history = self._progress.state.history
        kept = {metric: scores[metric] for metric in ("cer", "cer_reference", "wer", "loss")}
        self._progress.advance(history=[*history, kept])
        log.info(
            "epoch %d: validation loss %.3f, CER %.2f %%, WER %.2f %%",
            epoch_num,
            result.loss,
            100 * result.counts.cer,
            100 * result.counts.wer,
        )

    def _keep(self, result: EvaluationResult, epoch_num: int, checkpoint: Path | None) -> None:
        path = self._run_dir / HYPOTHESES_FOLDER / f"validation-epoch-{epoch_num:04d}.jsonl"
        result.write_hypotheses(path)
        best = min((past["cer"] for past in self._progress.state.history), default=math.inf)
        if result.counts.cer < best and checkpoint is not None:
            keep_as_best(checkpoint)
        self._ledger.sync()
