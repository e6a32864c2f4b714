"""Evaluation by the very model that is trained, between its epochs."""

from pathlib import Path

from tfasr.ledger import Ledger
from tfasr.training.evaluation import Evaluator, PendingEvaluation
from tfasr.training.placement.protocol import Scores


class DecodingScores:
    """An evaluation whose forward passes are done; see `tfasr.training.placement.protocol`."""

    waiting = "decode"

    def __init__(self, epoch: int, checkpoint: Path, pending: PendingEvaluation):
        self.epoch = epoch
        self.checkpoint = checkpoint
        self._pending = pending

    def done(self) -> bool:
        """Says whether the decoder is at its end."""
        return self._pending.done()

    def scores(self) -> Scores:
        """Waits for the decoder."""
        result, worked_s = self._pending.result()
        work = {"decode_work": round(worked_s, 6)}
        if result.second is not None:
            work["second_decode_work"] = round(result.second.worked_s, 6)
        return Scores(result.scores(), work)

    def write_hypotheses(self, path: Path) -> None:
        """Writes them."""
        self._pending.result()[0].write_hypotheses(path)

    def booked(self) -> None:
        """Nothing was kept."""


class SharedModel:
    """Runs the forward passes of an evaluation on the model that is trained.

    Args:
        evaluator: of the validation split, on the training model.
        ledger: books the forward passes.
        overlap: whether training goes on while the decoder works.
    """

    outlives_checkpoints = False

    def __init__(self, evaluator: Evaluator, ledger: Ledger, *, overlap: bool):
        self.most_pending = 1 if overlap else 0
        self._evaluator = evaluator
        self._ledger = ledger

    @property
    def traces(self) -> int:
        """How often the forward pass was traced."""
        return self._evaluator.traces

    def start(self, epoch: int, checkpoint: Path) -> DecodingScores:
        """Runs the forward passes and leaves the decoder at its work."""
        with self._ledger.interval("eval_forward", epoch_num=epoch):
            pending = self._evaluator.start()
        return DecodingScores(epoch, checkpoint, pending)

    def begin(self, unscored: range) -> list[DecodingScores]:
        """Nothing is left by earlier sessions: no checkpoint is saved before the scores."""
        return []

    def close(self) -> None:
        """Ends the decoder's thread."""
        self._evaluator.close()
