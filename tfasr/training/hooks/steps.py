"""Records every step in the ledger, and ends a run whose loss is not finite."""

import logging
import math
from typing import Any

import numpy as np

from tfasr.data.shards import ShardedSplit
from tfasr.errors import RunError
from tfasr.ledger import Ledger
from tfasr.models.recogniser import kernels
from tfasr.training.checkpoint import TrainingState
from tfasr.training.ctc_model import CtcModel
from tfasr.training.loop import Hook, RunProgress
from tfasr.training.step import StepResult

log = logging.getLogger("tfasr")

_FACTS = (
    "loss",
    "utterances",
    "audio_s",
    "frames",
    "padded_frames",
    "input_wait_s",
    "compile_s",
    "train_s",
)


class BookSteps(Hook):
    """Writes every step into the ledger and ends the run at a loss that is not finite.

    Args:
        model: tells the kernels of its recurrent layers after the first step.
        ledger: the run's.
        progress: advanced by one step.
        split: names the utterances of a bad step.
    """

    def __init__(self, model: CtcModel, ledger: Ledger, progress: RunProgress, split: ShardedSplit):
        self._model = model
        self._ledger = ledger
        self._progress = progress
        self._split = split

    def on_step(self, step: StepResult) -> None:
        """Books the step; raises RunError if its loss is not finite."""
        state = self._progress.state
        self._progress.advance(step=state.step + 1, step_in_epoch=state.step_in_epoch + 1)
        where = {"epoch_num": state.epoch, "step": state.step + 1}
        if not math.isfinite(step.loss):
            self._ledger.event("train_step", {**_facts(step), "loss": None}, **where)
            raise RunError(self._describe(step, state))
        self._ledger.event("train_step", _facts(step), **where)
        if state.step == 0:
            self._book_kernels()

    def _book_kernels(self) -> None:
        used = sorted(kernels(self._model.recogniser))
        self._ledger.event("lstm_kernel", used)
        if used:
            log.info("recurrent layers computed by: %s", ", ".join(used))

    def _describe(self, step: StepResult, state: TrainingState) -> str:
        bad = set(step.positions[~np.isfinite(step.utterance_loss)].tolist())
        ids = [u.id for u in self._split.utterances if u.position in bad]
        return (
            f"The loss must be finite. Step {state.step + 1} (epoch {state.epoch}) got "
            f"{step.loss} from the utterances {', '.join(ids[:20])}"
            f"{' and more' if len(ids) > 20 else ''}. The last good checkpoint is kept. Lower the "
            "learning rate or clip gradients (clipnorm), look at those utterances, then start a "
            "new run or continue with --resume."
        )


def _facts(step: StepResult) -> dict[str, Any]:
    return {name: round(getattr(step, name), 6) for name in _FACTS}
