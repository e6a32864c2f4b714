"""What the workers of a run do that are not its chief: train and evaluate, and write no run."""

import contextlib
import math
from pathlib import Path

from tfasr.data.shards import content_hashes
from tfasr.durable import make_folder
from tfasr.errors import RunError
from tfasr.ledger import Ledger
from tfasr.training.evaluation import Evaluator, make_evaluator
from tfasr.training.experiment import Experiment
from tfasr.training.hooks.stop_on_signal import StopOnSignal
from tfasr.training.interruption import Interruption
from tfasr.training.loop import Hook, RunProgress, train_epochs
from tfasr.training.parts import build_parts
from tfasr.training.run_data import open_data
from tfasr.training.step import StepResult
from tfasr.training.workers.meetings import meetings_of, open_worker_notes
from tfasr.training.workers.offer import check_offers, offered
from tfasr.training.workers.team import Team

_KEPT = ("cer", "cer_reference", "wer", "loss")


def follow(
    experiment: Experiment, shard_dir: Path, run_dir: Path, team: Team, *, resume: bool
) -> list[dict[str, float]]:
    """Trains with the chief until it ends the run.

    Args:
        experiment: must be the chief's.
        shard_dir: must hold the chief's splits.
        run_dir: gets ``events-worker-<rank>.jsonl``; it may be the chief's folder.
        team: all workers.
        resume: whether the chief continues a run.

    Returns:
        Validation metrics of each epoch, as the chief has them.

    Raises:
        UsageError: if shards and configuration do not fit together, or are not the chief's.
        RunError: if a worker fails, or the loss is not finite.
        RunInterruptedError: a RunError; a signal to some worker ended the run.
    """
    workers = team.workers
    with contextlib.ExitStack() as held:
        experiment = experiment.continued(run_dir) if resume else experiment
        data = open_data(experiment, shard_dir)
        offers = team.gate.passed(offered(experiment, content_hashes(data.splits), None))
        check_offers(workers, offers)
        session, history = offers[0]["session"], offers[0]["history"]
        if history is not None:
            return history
        make_folder(run_dir)
        interruption = held.enter_context(Interruption())
        notes = held.enter_context(contextlib.closing(open_worker_notes(run_dir, session, team)))
        ledger = notes.ledger
        with ledger.interval("init"):
            parts = build_parts(experiment, data, team, ledger, None, interruption)
            meetings = meetings_of(team, parts, experiment.training, notes)
            evaluator = make_evaluator(
                experiment,
                parts.model,
                data.sources["validation"],
                data.alphabet,
                data.lexicon(),
                workers,
            )
            hooks = [
                CountSteps(parts.progress),
                meetings.steps,
                meetings.statistics,
                parts.batches,
                ShareEvaluation(evaluator, ledger, parts.progress),
                meetings.agreement,
                StopOnSignal(parts.interruption, None, parts.progress, workers),
            ]
            for hook in hooks:
                held.callback(hook.close)
        epochs = experiment.training.epochs
        train_epochs(parts.step, parts.batches.iterator, parts.progress, hooks, ledger, epochs)
        team.part()
        return parts.progress.state.history


class CountSteps(Hook):
    """Counts the steps as the chief does, and ends a run whose loss is not finite, as it does.

    Args:
        progress: advanced by one step.
    """

    def __init__(self, progress: RunProgress):
        self._progress = progress

    def on_step(self, step: StepResult) -> None:
        """Counts; raises RunError if the step's loss is not finite."""
        state = self._progress.state
        self._progress.advance(step=state.step + 1, step_in_epoch=state.step_in_epoch + 1)
        if not math.isfinite(step.loss):
            raise RunError(
                f"The loss must be finite. Step {state.step + 1} got {step.loss}: the chief's "
                "message says of which utterances."
            )


class ShareEvaluation(Hook):
    """Evaluates this worker's share of the split after every epoch, and keeps the scores of all.

    Args:
        evaluator: of the validation split, together with all workers.
        ledger: the worker's.
        progress: its history gets the scores.
    """

    def __init__(self, evaluator: Evaluator, ledger: Ledger, progress: RunProgress):
        self._evaluator = evaluator
        self._ledger = ledger
        self._progress = progress

    def on_epoch_trained(self, epoch: int) -> None:
        """Evaluates, and moves on to the next epoch."""
        with self._ledger.interval("eval_forward", epoch_num=epoch):
            pending = self._evaluator.start()
        with self._ledger.interval("decode", epoch_num=epoch):
            values = pending.result()[0].scores()
        kept = {metric: values[metric] for metric in _KEPT}
        history = [*self._progress.state.history, kept]
        self._progress.advance(
            epoch=epoch + 1, step_in_epoch=0, epoch_trained=False, history=history
        )

    def close(self) -> None:
        """Ends the decoder's thread."""
        self._evaluator.close()
