"""An evaluation after every epoch, which may go on while the next epochs are trained."""

import logging
import math
from collections import deque
from pathlib import Path

from tfasr.ledger import Ledger
from tfasr.run_files import hypotheses_file
from tfasr.training.checkpoint import keep_as_best
from tfasr.training.hooks.checkpoints import SaveCheckpoints
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.placement.protocol import PendingScores, Placement
from tfasr.training.step import StepResult

log = logging.getLogger("tfasr")


class EvaluateEpoch(Hook):
    """Evaluates on the validation split after every epoch and keeps the best checkpoint.

    Where evaluations go on beside training, an accuracy is booked once it is known: between two
    steps, in the epochs' order. Where they are under way in this process, it is before the next
    checkpoint at last; where another process has them, when too many are under way or training
    ends.

    Args:
        placement: where the evaluations are done.
        run_dir: hypotheses go to ``hypotheses/validation-epoch-<n>.jsonl``.
        checkpoints: whose newest is the epoch's.
        ledger: gets the accuracy.
        progress: its history gets the accuracy too.
    """

    def __init__(
        self,
        placement: Placement,
        run_dir: Path,
        checkpoints: SaveCheckpoints,
        ledger: Ledger,
        progress: RunProgress,
    ):
        self._placement = placement
        self._run_dir = run_dir
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._progress = progress
        self._pending: deque[PendingScores] = deque()
        # Unless evaluations can be taken up again, a checkpoint's history must hold every epoch.
        outlives = placement.outlives_checkpoints
        checkpoints.before_save = self.collect if outlives else self.finish

    def on_train_begin(self) -> None:
        """Takes up the evaluations that earlier sessions left."""
        state = self._progress.state
        self._pending.extend(self._placement.begin(range(len(state.history) + 1, state.epoch)))

    def on_step(self, step: StepResult) -> None:
        """Books what is known by now."""
        self.collect()

    def on_epoch_trained(self, epoch: int) -> None:
        """Evaluates, or has it begun, and moves on to the next epoch."""
        self._ledger.start("eval", epoch_num=epoch)
        self._pending.append(self._placement.start(epoch, self._checkpoints.newest))
        self._progress.advance(epoch=epoch + 1, step_in_epoch=0, epoch_trained=False)
        if not self._placement.most_pending:
            self._book()
        self._ledger.stop("eval", epoch_num=epoch)
        while len(self._pending) > self._placement.most_pending:
            self._book_first()

    def on_train_end(self) -> None:
        """Books the last evaluations."""
        self.finish()

    def close(self) -> None:
        """Gives up what is still under way."""
        self._placement.close()

    def collect(self) -> None:
        """Books the evaluations that are done."""
        while self._pending and self._pending[0].done():
            self._book_first()

    def finish(self) -> None:
        """Waits for the evaluations under way and books them."""
        while self._pending:
            self._book_first()

    def _book_first(self) -> None:
        epoch_num = self._pending[0].epoch
        self._ledger.start("eval", epoch_num=epoch_num)
        self._book()
        self._ledger.stop("eval", epoch_num=epoch_num)

    def _book(self) -> None:
        pending = self._pending.popleft()
        epoch_num = pending.epoch
        with self._ledger.interval(pending.waiting, epoch_num=epoch_num):
            scores = pending.scores()
        values = scores.values
        for key, value in scores.work.items():
            self._ledger.event(key, value, epoch_num=epoch_num)
        self._ledger.event("eval_accuracy", values["wer"], epoch_num=epoch_num)
        self._ledger.event("tracked_stats", values, epoch_num=epoch_num)
        pending.write_hypotheses(hypotheses_file(self._run_dir, epoch_num))
        best = min((past["cer"] for past in self._progress.state.history), default=math.inf)
        if values["cer"] < best and pending.checkpoint is not None:
            keep_as_best(pending.checkpoint)
        self._ledger.sync()
        pending.booked()
        history = self._progress.state.history
        kept = {metric: values[metric] for metric in ("cer", "cer_reference", "wer", "loss")}
        self._progress.advance(history=[*history, kept])
        beside = [
            f"; {name.removesuffix('_wer')}: WER {100 * value:.2f} %"
            for name, value in values.items()
            if name.endswith("_wer")
        ]
        log.info(
            "epoch %d: validation loss %.3f, CER %.2f %%, WER %.2f %%%s",
            epoch_num,
            values["loss"],
            100 * values["cer"],
            100 * values["wer"],
            "".join(beside),
        )
