"""An evaluation after every epoch, whose decoding may overlap with the next epoch's training."""

import logging
import math
from pathlib import Path

from tfasr.ledger import Ledger
from tfasr.run_files import HYPOTHESES_FOLDER
from tfasr.training.checkpoint import keep_as_best
from tfasr.training.evaluation import EvaluationResult, Evaluator, PendingEvaluation
from tfasr.training.hooks.checkpoints import SaveCheckpoints
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.step import StepResult

log = logging.getLogger("tfasr")


class EvaluateEpoch(Hook):
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
        self._evaluator = evaluator
        self._run_dir = run_dir
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._progress = progress
        self._overlap = overlap
        self._pending: tuple[PendingEvaluation, int, Path | None] | None = None
        # A checkpoint's history must hold every epoch before it.
        checkpoints.before_save = self.finish

    def on_step(self, step: StepResult) -> None:
        """Books an overlapped evaluation as soon as it is known."""
        if self._pending is not None and self._pending[0].done():
            self.finish()

    def on_epoch_trained(self, epoch: int) -> None:
        """Evaluates, books the result and moves on to the next epoch."""
        self._ledger.start("eval", epoch_num=epoch)
        with self._ledger.interval("eval_forward", epoch_num=epoch):
            pending = self._evaluator.start()
        self._pending = pending, epoch, self._checkpoints.newest
        self._progress.advance(epoch=epoch + 1, step_in_epoch=0, epoch_trained=False)
        if not self._overlap:
            self._book()
        self._ledger.stop("eval", epoch_num=epoch)

    def on_train_end(self) -> None:
        """Books the last evaluation."""
        self.finish()

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
