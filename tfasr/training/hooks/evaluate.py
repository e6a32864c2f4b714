"""The hook that evaluates a run, when an epoch is saved or in parallel with the next one.

`Evaluate` decides when evaluations start and when their scores are recorded. Where they
run is up to a `Placement`, which `make_placement` chooses by the run's settings.
"""

import logging
import math
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tfasr.kit.files import hypotheses_file
from tfasr.ledger.intervals import evaluation_place
from tfasr.training.build import build_model
from tfasr.training.checkpoint import keep_as_best
from tfasr.training.ctc import CtcModel
from tfasr.training.evaluation import Evaluator, make_evaluator
from tfasr.training.loop import Hook
from tfasr.training.placement import (
    OtherProcess,
    PendingScores,
    Placement,
    SharedModel,
    SwappedModel,
)
from tfasr.training.run import TrainingRun
from tfasr.training.run_folder import kept_scores
from tfasr.training.step import StepResult
from tfasr.training.swap import Swap
from tfasr.tta.metrics import computed_metrics, metric_named

log = logging.getLogger("tfasr")


class Evaluate(Hook):
    """Evaluates epochs, or parts of them, on the validation split.

    It also keeps the best checkpoint, by CER. It is the first of a run's hooks, so that
    the others see the scores.

    Evaluations in parallel with training are recorded once their scores are known:
    between two steps, in the epochs' order. Training waits for those in this process
    before it saves the next checkpoint; for those in another process, if too many are
    under way, and at the end. With ``wait``, it waits for each.
    """

    def __init__(self, placement: Placement, *, wait: bool = False):
        self._placement = placement
        # How many evaluations may be under way once a new one has started.
        self._most_pending = 0 if wait else placement.most_pending

        # In the order of their epochs.
        self._pending: deque[PendingScores] = deque()

    def on_train_begin(self, run: TrainingRun) -> None:
        """Resumes the evaluations that earlier sessions left unfinished."""
        if run.training.evaluations_per_epoch > 1:
            unscored = run.state.evaluating
        else:
            unscored = range(len(run.state.history) + 1, run.state.epoch)

        self._pending.extend(self._placement.begin(unscored))

    def on_saved(self, run: TrainingRun, epoch: float, checkpoint: Path | None) -> None:
        overlapped = self._placement.most_pending > 0
        with run.ledger.interval("eval", **evaluation_place(epoch)):
            self._pending.append(self._placement.start(epoch, checkpoint))
            # A float is the end of a part of an epoch.
            if isinstance(epoch, float):
                run.advance(evaluating=[*run.state.evaluating, epoch])

            if not overlapped:
                self._book(run)

        while len(self._pending) > self._most_pending:
            self._book_first(run)

    def on_step_end(self, run: TrainingRun, step: StepResult) -> None:
        self._book_finished(run)

    def on_checkpoint(self, run: TrainingRun) -> None:
        if self._placement.outlives_checkpoints:
            self._book_finished(run)
        else:
            # A later session could not resume evaluations that are under way.
            self._book_all(run)

    def on_train_end(self, run: TrainingRun) -> None:
        self._book_all(run)

    def close(self) -> None:
        self._placement.close()

    def _book_finished(self, run: TrainingRun) -> None:
        """Books evaluations from the first one on, up to one that isn't finished."""
        while self._pending and self._pending[0].done():
            self._book_first(run)

    def _book_all(self, run: TrainingRun) -> None:
        """Waits for all evaluations."""
        while self._pending:
            self._book_first(run)

    def _book_first(self, run: TrainingRun) -> None:
        with run.ledger.interval("eval", **evaluation_place(self._pending[0].epoch)):
            self._book(run)

    def _book(self, run: TrainingRun) -> None:
        """Waits for the first evaluation's scores and writes them into ledger and state.

        The caller has begun the interval ``eval``.
        """
        pending = self._pending.popleft()
        ledger = run.ledger
        history = run.state.history
        where = evaluation_place(pending.epoch)

        with ledger.interval(pending.waiting, **where):
            values, work = pending.scores()

        for key, value in work.items():
            ledger.event(key, value, **where)

        ledger.event("eval_accuracy", values["wer"], **where)
        ledger.event("tracked_stats", values, **where)
        pending.write_hypotheses(hypotheses_file(run.run_dir, pending.epoch))

        best = min((past["cer"] for past in history), default=math.inf)
        if values["cer"] < best and pending.checkpoint is not None:
            keep_as_best(pending.checkpoint)

        # The scores are on disk before what they could be computed from again may go.
        ledger.sync()
        pending.booked()

        run.advance(
            history=[*history, kept_scores(pending.epoch, values)],
            evaluating=run.state.evaluating[1:],
        )
        _log_scores(pending.epoch, values)


def _log_scores(epoch: float, values: Mapping[str, float]) -> None:
    """Logs an evaluation's scores in a line, error rates in percent."""
    cer = 100 * values["cer"]
    wer = 100 * values["wer"]
    text = f"validation loss {values['loss']:.3f}, CER {cer:.2f} %, WER {wer:.2f} %"

    for name in computed_metrics():
        metric = metric_named(name)
        text += f", {metric.label or name} {metric.shown(values[name])}"

    parts = [text]
    for name, value in values.items():
        # Only a second decoder's rate has a prefix.
        if name.endswith("_wer"):
            parts.append(f"{name.removesuffix('_wer')}: WER {100 * value:.2f} %")

    log.info("epoch %g: %s", epoch, "; ".join(parts))


def evaluator_of(run: TrainingRun, model: CtcModel) -> Evaluator:
    """Returns an evaluator of a run's validation split, for a model of its kind."""
    return make_evaluator(
        run.experiment,
        model,
        run.sources["validation"],
        run.alphabet,
        run.lexicon,
        run.team.workers,
    )


def make_placement(run: TrainingRun, *, averaged: bool = False) -> Placement:
    """Chooses where epochs are evaluated, by `TrainingConfig.evaluation_placement`.

    Args:
        run: built.
        averaged: whether checkpoints contain averaged weights, which evaluations use.
    """
    training = run.training
    model = run.model
    ledger = run.ledger
    # While the decoder works, training may go on with one epoch.
    overlap = int(training.overlap_evaluation)

    if training.evaluation_placement == "beside":
        return OtherProcess(run.run_dir, training.evaluation_devices, ledger)

    if training.evaluation_placement == "swapped":
        build = partial(build_model, run.experiment, run.alphabet, compiled=False)
        return SwappedModel(
            Swap(model, build), partial(evaluator_of, run), ledger, overlap
        )

    return SharedModel(model, evaluator_of(run, model), ledger, overlap, averaged)
