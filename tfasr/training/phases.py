"""The phases of the loop between its steps: saving a checkpoint, and evaluating an epoch."""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from tfasr.errors import RunError
from tfasr.kit.files import hypotheses_file
from tfasr.ledger.intervals import evaluation_place
from tfasr.training.build import build_model
from tfasr.training.checkpoint import TrainingState, keep_as_best, save_checkpoint
from tfasr.training.ctc import CtcModel
from tfasr.training.evaluation import Evaluator, make_evaluator
from tfasr.training.placement import (
    OtherProcess,
    PendingScores,
    Placement,
    SharedModel,
    SwappedModel,
)
from tfasr.training.run import TrainingRun

log = logging.getLogger("tfasr")

KEPT_SCORES = ("cer", "cer_reference", "wer", "loss")  # in a run's history, per epoch


class Checkpoints:
    """Saves a run's checkpoints.

    ``newest`` is the last one saved, at first the one that the run resumes from. ``for_use``
    computes what is saved for inference in place of the model's weights
    (`tfasr.training.averaging`).
    """

    def __init__(
        self,
        run: TrainingRun,
        newest: Path | None = None,
        for_use: Callable[[TrainingState], Mapping[str, np.ndarray]] | None = None,
    ):
        self.newest = newest
        self._saved = run.state if newest else None
        self._for_use = for_use

    def save(self, run: TrainingRun) -> None:
        """Saves the state, unless the newest checkpoint holds it; RunError on a full disk."""
        state, ledger = run.state, run.ledger
        if state == self._saved:
            return
        where = {"step": state.step, "epoch_num": state.epoch}
        for_use = None
        if self._for_use is not None:
            with ledger.interval("averaging", **where):
                for_use = self._for_use(state)
        with ledger.interval("checkpoint", **where):
            try:
                # The ledger first: after a power loss, no checkpoint may be newer than the ledger.
                ledger.sync()
                keep, mark = run.training.keep_checkpoints, ledger.mark()
                self.newest = save_checkpoint(run.run_dir, run.model, state, keep, for_use, mark)
            except OSError as error:
                raise RunError(
                    f"The checkpoint of step {state.step} could not be written into {run.run_dir}: "
                    f"{error}. Earlier ones are kept: free some space, then --resume."
                ) from error
        self._saved = state


class Evaluations:
    """Evaluates every epoch on the validation split and keeps the best checkpoint.

    Evaluations in parallel with training are recorded once their scores are known: between two
    steps, in the epochs' order. Training waits for those in this process before it saves the next
    checkpoint; for those in another process, if too many are under way, and at the end.
    """

    def __init__(self, placement: Placement):
        self._placement = placement
        self._pending: deque[PendingScores] = deque()

    def begin(self, run: TrainingRun) -> None:
        """Resumes the evaluations that earlier sessions left unfinished."""
        state, finer = run.state, run.training.evaluations_per_epoch > 1
        unscored = state.evaluating if finer else range(len(state.history) + 1, state.epoch)
        self._pending.extend(self._placement.begin(unscored))

    def evaluate(self, run: TrainingRun, epoch: float, checkpoint: Path, *, wait: bool) -> None:
        """Evaluates an epoch, or starts to; ``wait`` waits for the scores."""
        most_pending, where = self._placement.most_pending, evaluation_place(epoch)
        with run.ledger.interval("eval", **where):
            self._pending.append(self._placement.start(epoch, checkpoint))
            if isinstance(epoch, float):
                run.advance(evaluating=[*run.state.evaluating, epoch])
            if not most_pending:
                self._book(run)
        while len(self._pending) > (0 if wait else most_pending):
            self._book_first(run)

    def collect(self, run: TrainingRun) -> None:
        while self._pending and self._pending[0].done():
            self._book_first(run)

    def finish(self, run: TrainingRun) -> None:
        while self._pending:
            self._book_first(run)

    def settle(self, run: TrainingRun) -> None:
        """Records the scores that the next checkpoint must contain."""
        # All scores, unless a later session can resume evaluations under way.
        (self.collect if self._placement.outlives_checkpoints else self.finish)(run)

    def close(self) -> None:
        self._placement.close()

    def _book_first(self, run: TrainingRun) -> None:
        with run.ledger.interval("eval", **evaluation_place(self._pending[0].epoch)):
            self._book(run)

    def _book(self, run: TrainingRun) -> None:
        pending, ledger, history = self._pending.popleft(), run.ledger, run.state.history
        epoch, where = pending.epoch, evaluation_place(pending.epoch)
        with ledger.interval(pending.waiting, **where):
            values, work = pending.scores()
        for key, value in work.items():
            ledger.event(key, value, **where)
        ledger.event("eval_accuracy", values["wer"], **where)
        ledger.event("tracked_stats", values, **where)
        pending.write_hypotheses(hypotheses_file(run.run_dir, epoch))
        best = min((past["cer"] for past in history), default=math.inf)
        if values["cer"] < best and pending.checkpoint is not None:
            keep_as_best(pending.checkpoint)
        ledger.sync()
        pending.booked()
        scored = [*history, kept_scores(epoch, values)]
        run.advance(history=scored, evaluating=run.state.evaluating[1:])
        loss, cer, wer = values["loss"], 100 * values["cer"], 100 * values["wer"]
        second = [
            f"; {name.removesuffix('_wer')}: WER {100 * value:.2f} %"
            for name, value in values.items()
            if name.endswith("_wer")
        ]
        scored = f"validation loss {loss:.3f}, CER {cer:.2f} %, WER {wer:.2f} %"
        log.info("epoch %g: %s%s", epoch, scored, "".join(second))


def kept_scores(epoch: float, values: Mapping[str, float]) -> dict[str, float]:
    place = {"epoch": epoch} if isinstance(epoch, float) else {}
    return {**place, **{metric: values[metric] for metric in KEPT_SCORES}}


def evaluator_of(run: TrainingRun, model: CtcModel) -> Evaluator:
    workers = run.team.workers if run.team.share else None
    source = run.sources["validation"]
    return make_evaluator(run.experiment, model, source, run.alphabet, run.lexicon, workers)


def make_placement(run: TrainingRun, *, averaged: bool = False) -> Placement:
    """Chooses where epochs are evaluated; ``averaged`` if checkpoints hold averaged weights."""
    training, model, ledger = run.training, run.model, run.ledger
    overlap = training.overlap_evaluation
    if training.evaluation_placement == "beside":
        return OtherProcess(run.run_dir, training.evaluation_devices, ledger)
    if training.evaluation_placement == "swapped":
        build = partial(build_model, run.experiment, run.alphabet, compiled=False)
        return SwappedModel(model, build, partial(evaluator_of, run), ledger, overlap)
    return SharedModel(model, evaluator_of(run, model), ledger, overlap, averaged)
