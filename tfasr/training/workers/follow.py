"""What each worker of a cluster writes, and what those do that are not the chief."""

import contextlib
import dataclasses
import math
from pathlib import Path

from tfasr.data.shards import content_hashes
from tfasr.errors import RunError
from tfasr.kit.files import make_folder, worker_events_file
from tfasr.ledger.events import Ledger
from tfasr.ledger.intervals import evaluation_place
from tfasr.telemetry.samplers import MachineNotes
from tfasr.training.evaluation import Evaluator
from tfasr.training.experiment import Experiment
from tfasr.training.hooks.record import CheckData
from tfasr.training.hooks.show import ShowProgress
from tfasr.training.loop import Hook, Loop
from tfasr.training.phases import Evaluations, evaluator_of, kept_scores
from tfasr.training.placement import Placement
from tfasr.training.run import TrainingRun, build, open_run
from tfasr.training.run_folder import Interruption
from tfasr.training.step import StepResult
from tfasr.training.workers.team import Team, check_offers, offered


def follow(
    experiment: Experiment,
    shard_dir: Path,
    run_dir: Path,
    team: Team,
    *,
    resume: bool,
    lexicon: str | Path | None = None,
) -> list[dict[str, float]]:
    """Trains and evaluates with the chief until it ends the run, and writes no run.

    Experiment and splits must be the chief's. ``run_dir`` gets ``events-worker-<rank>.jsonl``; it
    may be the chief's folder. Returns and raises what `train` does.
    """
    workers = team.workers
    with contextlib.ExitStack() as held:
        experiment = experiment.continued(run_dir) if resume else experiment
        run = open_run(experiment, shard_dir, run_dir, team, lexicon)
        offers = team.gate.passed(
            offered(experiment, content_hashes(run.splits), None, run.dictionary)
        )
        check_offers(workers, offers)
        session, history = offers[0]["session"], offers[0]["history"]
        if history is not None:
            return history
        make_folder(run_dir)
        interruption = held.enter_context(Interruption())
        steps = held.enter_context(contextlib.closing(WorkerSteps(run_dir, session, team)))
        with steps.ledger.interval("init"):
            build(run, steps.ledger, interruption)
            loop = Loop(
                run,
                [steps, CheckData(), ShowProgress()],
                EvaluationShare(evaluator_of(run, run.model)),
            )
            held.enter_context(contextlib.closing(loop))
        loop.train()
        team.part()
        return run.state.history


class EvaluationShare(Evaluations):
    """Evaluates a worker's share of the split after every epoch; it gets the scores of all."""

    def __init__(self, evaluator: Evaluator):
        super().__init__(Placement())
        self._evaluator = evaluator

    def evaluate(self, run: TrainingRun, epoch: float, checkpoint: None, *, wait: bool) -> None:
        where = evaluation_place(epoch)
        with run.ledger.interval("eval_forward", **where):
            pending = self._evaluator.start()
        with run.ledger.interval("decode", **where):
            values = pending.result()[0].scores()
        run.advance(history=[*run.state.history, kept_scores(epoch, values)])

    def close(self) -> None:
        self._evaluator.close()


class WorkerSteps(Hook):
    """Writes a worker's part of every step, and its machine's state, into its file.

    All workers have it, the chief too. The file begins empty where the run does.
    """

    def __init__(self, run_dir: Path, session: int, team: Team):
        rank, count = team.workers.rank, team.workers.count
        file = worker_events_file(rank)
        if not session:
            (run_dir / file).unlink(missing_ok=True)
        self.ledger = Ledger(run_dir, session, file=file)
        self.ledger.event("worker_start", {"rank": rank, "workers": count})
        self._machine = MachineNotes(self.ledger.event)

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        state = run.state
        if not math.isfinite(step.loss):
            raise RunError(
                f"The loss must be finite. Step {state.step} got {step.loss}: the chief's message "
                "names the utterances."
            )
        times = dataclasses.asdict(run.take_step.times)
        values = {n: round(v, 6) if isinstance(v, float) else v for n, v in times.items()}
        self.ledger.event("worker_step", values, epoch_num=state.epoch, step=state.step)

    def close(self) -> None:
        self._machine.stop()
        self.ledger.close()
