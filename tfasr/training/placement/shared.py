"""Evaluation by the very model that is trained, between its epochs."""

import contextlib
from pathlib import Path

from tfasr.ledger import Ledger
from tfasr.training.checkpoint import model_variables, restore_for_use, values_kept
from tfasr.training.ctc_model import CtcModel
from tfasr.training.evaluation import Evaluator, PendingEvaluation
from tfasr.training.placement.protocol import PendingScores, Placement, Scores


class DecodingScores(PendingScores):
    """An evaluation whose forward passes are done."""

    waiting = "decode"

    def __init__(self, epoch: int, checkpoint: Path, pending: PendingEvaluation):
        self.epoch = epoch
        self.checkpoint = checkpoint
        self._pending = pending

    def done(self) -> bool:
        return self._pending.done()

    def scores(self) -> Scores:
        result, worked_s = self._pending.result()
        work = {"decode_work": round(worked_s, 6)}
        if result.second is not None:
            work["second_decode_work"] = round(result.second.worked_s, 6)
        return Scores(result.scores(), work)

    def write_hypotheses(self, path: Path) -> None:
        self._pending.result()[0].write_hypotheses(path)


class SharedModel(Placement):
    """Runs the forward passes of an evaluation on the model that is trained.

    Where averaged weights are evaluated they are read from the epoch's checkpoint for as long as
    the forward passes take, and training goes on from its own, bit for bit. Each way is booked as
    ``swap``.

    Args:
        model: trained.
        evaluator: of the validation split, on the training model.
        ledger: books the forward passes.
        overlap: whether training goes on while the decoder works.
        averaged: whether checkpoints hold averaged weights.
    """

    def __init__(
        self,
        model: CtcModel,
        evaluator: Evaluator,
        ledger: Ledger,
        *,
        overlap: bool,
        averaged: bool = False,
    ):
        self.most_pending = 1 if overlap else 0
        self._model = model
        self._evaluator = evaluator
        self._ledger = ledger
        self._averaged = averaged

    @property
    def traces(self) -> int:
        return self._evaluator.traces

    def start(self, epoch: int, checkpoint: Path) -> DecodingScores:
        with contextlib.ExitStack() as kept:
            if self._averaged:
                with self._ledger.interval("swap", epoch_num=epoch):
                    kept.enter_context(values_kept(model_variables(self._model).values()))
                    restore_for_use(checkpoint, self._model)
            with self._ledger.interval("eval_forward", epoch_num=epoch):
                pending = self._evaluator.start()
            if self._averaged:
                with self._ledger.interval("swap", epoch_num=epoch):
                    kept.close()
        return DecodingScores(epoch, checkpoint, pending)

    def close(self) -> None:
        self._evaluator.close()
