"""What each worker of a cluster records, and how the workers other than the chief train."""

import contextlib
import logging
import math
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.cluster.stream import START_S, ChiefStream
from tfasr.data.batches import Share
from tfasr.data.shards import content_hashes
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import make_folder, worker_events_file, worker_host_file
from tfasr.ledger.events import Ledger
from tfasr.ledger.intervals import evaluation_place
from tfasr.ledger.schema import WorkerStart
from tfasr.telemetry.host import HostSampler
from tfasr.telemetry.samplers import MachineNotes
from tfasr.training.evaluation import Evaluator
from tfasr.training.experiment import Experiment
from tfasr.training.hooks.evaluate import evaluator_of, kept_scores
from tfasr.training.hooks.record import CheckData
from tfasr.training.hooks.show import ShowProgress
from tfasr.training.loop import Hook, Loop
from tfasr.training.run import TrainingRun, build, open_run
from tfasr.training.run_folder import Interruption, RunInterruptedError
from tfasr.training.step import StepResult
from tfasr.training.team import Team
from tfasr.training.workers.exchange import StartBarrier
from tfasr.training.workers.offers import check_offers, offered
from tfasr.training.workers.rounds import ShareTrainer, assign

log = logging.getLogger("tfasr")

_LOOK_S = 0.5
# How long a worker with a signal waits to be ended by the chief, if that got it.
_LINGER_S = 5.0


def follow_steps(
    experiment: Experiment,
    shard_dir: Path,
    run_dir: Path,
    team: Team,
    barrier: StartBarrier,
    lexicon: str | Path | None = None,
) -> list[dict[str, float]]:
    """Takes all steps together with the chief until the run ends; only the chief writes it.

    Experiment and splits must be the chief's. ``run_dir`` gets
    ``events-worker-<rank>.jsonl``; it may be the chief's folder. Returns the same
    values and raises the same errors as `train`.
    """
    with contextlib.ExitStack() as held:
        run = open_run(experiment, shard_dir, run_dir, team, lexicon)
        offer = offered(experiment, content_hashes(run.splits), None, run.dictionary)
        offers = barrier.passed(offer)
        check_offers(team.workers, offers)
        of_chief = offers[0]
        if of_chief["history"] is not None:
            return of_chief["history"]

        make_folder(run_dir)
        interruption = held.enter_context(Interruption())
        steps = WorkerSteps(run_dir, of_chief["session"], team)
        held.enter_context(contextlib.closing(steps))
        with steps.ledger.interval("init"):
            run = build(run, steps.ledger, interruption)
            evaluate = EvaluateShare(evaluator_of(run, run.model))
            loop = Loop(run, [evaluate, steps, CheckData(), ShowProgress()])
            held.enter_context(contextlib.closing(loop))

        loop.train()
        log.info(
            "this worker is done: %d epochs, %d steps",
            run.training.epochs,
            run.state.step,
        )
        team.leave()
        return run.state.history


def follow_rounds(
    experiment: Experiment,
    shard_dir: Path,
    run_dir: Path,
    team: Team,
    chief: ChiefStream,
    lexicon: str | Path | None = None,
) -> None:
    """Trains the blocks that the chief hands out until it ends the run.

    ``run_dir`` gets ``events-worker-<rank>.jsonl``. Raises the errors of `train`.
    """
    with contextlib.ExitStack() as held:
        run = open_run(experiment, shard_dir, run_dir, team, lexicon)
        offer = offered(experiment, content_hashes(run.splits), None, run.dictionary)
        welcome = _joined(chief, offer)
        make_folder(run_dir)
        interruption = held.enter_context(Interruption())
        steps = WorkerSteps(run_dir, welcome["session"], team, fresh=welcome["fresh"])
        held.enter_context(contextlib.closing(steps))
        with steps.ledger.interval("init"):
            run = build(run, steps.ledger, interruption)
            trainer = ShareTrainer(run)

        _train_blocks(run, trainer, chief, offer)


def _train_blocks(
    run: TrainingRun, trainer: ShareTrainer, chief: ChiefStream, offer: dict[str, Any]
) -> None:
    """Trains the blocks that the chief hands out until it ends the run.

    If the chief is lost, this waits for it as long as at the start.
    """
    while True:
        try:
            done = _train_block(run, trainer, chief)
        except ConnectionError as error:
            log.warning("lost %s (%s); trying again", chief.name, error)
            chief.close()
            chief.connect(
                START_S, stopped=lambda: run.interruption.received is not None
            )
            _joined(chief, offer)
            continue

        if done is None:
            return

        run.ledger.event("worker_round", done)


def _joined(chief: ChiefStream, offer: dict[str, Any]) -> dict[str, Any]:
    chief.send({"kind": "join", "offer": offer})
    welcome, _ = chief.receive()
    if welcome["kind"] == "end":
        _end(welcome)

    return welcome


def _end(message: dict[str, Any]) -> None:
    reason = message["reason"]
    code = message["exit_code"]
    if code > 128:
        raise RunInterruptedError(reason, signal.Signals(code - 128))

    if code:
        raise (UsageError if code == 2 else RunError)(reason)


def _train_block(
    run: TrainingRun, trainer: ShareTrainer, chief: ChiefStream
) -> dict[str, Any] | None:
    """Trains one block; returns the block's values for the ledger, or None at the run's
    end.
    """
    began = time.monotonic()
    message, arrays = _next_message(run.interruption, chief)
    if message["kind"] == "end":
        _end(message)
        return None

    received = time.monotonic()
    weights = message["weights"]
    start = arrays[:weights]
    state = arrays[weights:]  # of the optimizer, for a newcomer
    assign(trainer.variables, start)
    if state:
        assign(run.model.optimizer.variables, state)

    block = message["block"]
    trainer.go_to(block["epoch"], block["step"], Share(**block["share"]))
    steps = []
    while len(steps) < block["steps"] and trainer.more():
        steps.append(trainer.step())

    made = trainer.delivery(run.team.rank, start, steps)
    busy_s = time.monotonic() - received
    result = {
        "steps": made.steps,
        "utterances": made.utterances,
        "of_utterances": made.of_utterances,
        "ends": made.ends,
        "busy_s": busy_s,
        **made.numbers,
    }
    chief.send(result, [*made.changes, made.losses, made.positions])
    if made.ends:
        trainer.read_ahead()

    values = {
        "epoch_num": block["epoch"],
        "step_in_epoch": block["step"],
        "waited_s": received - began,
        **result,
    }
    return {n: round(v, 6) if isinstance(v, float) else v for n, v in values.items()}


def _next_message(
    interruption: Interruption, chief: ChiefStream
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Waits for the chief's next message; a signal ends the wait after `_LINGER_S`."""
    while (received := chief.receive(_LOOK_S)) is None:
        asked = interruption.received
        if asked is not None and time.monotonic() - interruption.received_s > _LINGER_S:
            message = f"{asked.name} ended this worker. The others go on without it."
            raise RunInterruptedError(message, asked)

    return received


class EvaluateShare(Hook):
    """Evaluates a worker's share of the split after every epoch; it gets the scores of all."""

    def __init__(self, evaluator: Evaluator):
        self._evaluator = evaluator

    def on_saved(self, run: TrainingRun, epoch: float, checkpoint: None) -> None:
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

    All workers have this hook, the chief too. In a new run, the file begins empty.
    """

    def __init__(self, run_dir: Path, session: int, team: Team, *, fresh: bool = True):
        rank = team.rank
        count = team.size
        file = worker_events_file(rank)
        if not session and fresh:
            (run_dir / file).unlink(missing_ok=True)

        self.ledger = Ledger(run_dir, session, file=file)
        self.ledger.write(WorkerStart(rank=rank, workers=count))
        self._machine = MachineNotes(self.ledger.event)
        self._held = contextlib.ExitStack()

        # What each worker's machine gave it. The chief's samples are those of the run.
        if rank:
            host_file = worker_host_file(rank)
            if not session and fresh:
                (run_dir / host_file).unlink(missing_ok=True)

            self._held.enter_context(HostSampler(run_dir, session, host_file))

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        state = run.state
        if not math.isfinite(step.loss):
            raise RunError(
                f"The loss must be finite. Step {state.step} got {step.loss}: the chief's message "
                "names the utterances."
            )

        if run.take_step.times is None:  # in rounds, where workers don't step together
            return

        self.ledger.write(run.take_step.times, epoch_num=state.epoch, step=state.step)

    def close(self) -> None:
        self._held.close()
        self._machine.stop()
        self.ledger.close()
