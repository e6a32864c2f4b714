"""What each worker of a cluster records, and how the workers other than the chief train.

`tfasr.training.train.train` calls `follow_steps` or `follow_rounds` in a worker that
isn't the chief, and does everything else in the chief alone: only that process writes
the run. Each worker, the chief too, writes its times into a ledger (`WorkerSteps`).
"""

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
from tfasr.training.hooks.evaluate import evaluator_of
from tfasr.training.hooks.record import CheckData
from tfasr.training.hooks.show import ShowProgress
from tfasr.training.loop import Hook, Loop
from tfasr.training.run import TrainingRun, build, open_run
from tfasr.training.run_folder import (
    Interruption,
    RunInterruptedError,
    kept_scores,
)
from tfasr.training.step import StepResult
from tfasr.training.team import Team
from tfasr.training.workers.exchange import StartBarrier
from tfasr.training.workers.offers import check_offers, offered
from tfasr.training.workers.rounds import ShareTrainer, assign

log = logging.getLogger("tfasr")

# How often a worker that waits for the chief looks for a signal.
_LOOK_S = 0.5
# How long a worker with a signal waits to be ended by the chief, if that got it too.
_LINGER_S = 5.0


def follow_steps(
    experiment: Experiment,
    shard_dir: Path,
    run_dir: Path,
    team: Team,
    barrier: StartBarrier,
    lexicon: str | Path | None = None,
) -> list[dict[str, float]]:
    """Takes all steps together with the chief until the run ends.

    Args:
        experiment: must be the chief's.
        shard_dir: holds splits with the chief's content.
        run_dir: gets ``events-worker-<rank>.jsonl``; it may be the chief's folder.
        team: the workers.
        barrier: which all pass, or none, before anything is built.
        lexicon: a file of words, see `tfasr.training.train.train`.

    Returns:
        The same values as `train`, whose errors it raises too.
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
            loop = Loop(
                run,
                [
                    EvaluateShare(evaluator_of(run, run.model)),
                    steps,
                    CheckData(),
                    ShowProgress(),
                ],
            )
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

    Args:
        experiment: must be the chief's.
        shard_dir: holds splits with the chief's content.
        run_dir: gets ``events-worker-<rank>.jsonl``.
        team: the workers.
        chief: the stream to it.
        lexicon: a file of words, see `tfasr.training.train.train`.

    Raises:
        UsageError, RunError: those of `train`.
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
            chief.connect(START_S, stopped=lambda: bool(run.interruption.received))
            _joined(chief, offer)
            continue

        if done is None:
            return

        run.ledger.event("worker_round", done)


def _joined(chief: ChiefStream, offer: dict[str, Any]) -> dict[str, Any]:
    """Asks the chief to join its run; returns its welcome.

    Raises what `_end` raises if the chief refuses, or has ended.
    """
    chief.send({"kind": "join", "offer": offer})
    welcome, _ = chief.receive()
    if welcome["kind"] == "end":
        _end(welcome)

    return welcome


def _end(message: dict[str, Any]) -> None:
    """Raises what the chief's last message says, unless the run has ended well."""
    reason = message["reason"]
    code = message["exit_code"]
    # As in shells, a signal's number is added to 128.
    if code > 128:
        raise RunInterruptedError(reason, signal.Signals(code - 128))

    if code == 2:
        raise UsageError(reason)

    if code:
        raise RunError(reason)


def _train_block(
    run: TrainingRun, trainer: ShareTrainer, chief: ChiefStream
) -> dict[str, Any] | None:
    """Trains one block, and sends its result to the chief.

    Returns the block's values for the ledger, or None once the run has ended.
    """
    began = time.monotonic()
    message, arrays = _next_message(run.interruption, chief)
    if message["kind"] == "end":
        _end(message)
        return None

    received = time.monotonic()
    weights = message["weights"]
    start = arrays[:weights]
    assign(trainer.variables, start)
    # A newcomer also gets the optimizer's state.
    optimizer_state = arrays[weights:]
    if optimizer_state:
        assign(run.model.optimizer.variables, optimizer_state)

    block = message["block"]
    trainer.go_to(block["epoch"], block["step"], Share(**block["share"]))

    steps = []
    while len(steps) < block["steps"] and trainer.more():
        steps.append(trainer.step())

    made = trainer.delivery(run.team.rank, start, steps)
    result = {
        "steps": made.steps,
        "utterances": made.utterances,
        "of_utterances": made.of_utterances,
        "ends": made.ends,
        "busy_s": time.monotonic() - received,
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
    for name, value in values.items():
        if isinstance(value, float):
            values[name] = round(value, 6)

    return values


def _next_message(
    interruption: Interruption, chief: ChiefStream
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Waits for the chief's next message.

    A signal ends the wait after `_LINGER_S`, with a RunInterruptedError.
    """
    while (received := chief.receive(_LOOK_S)) is None:
        asked = interruption.received
        if asked is None:
            continue

        if time.monotonic() - interruption.received_s > _LINGER_S:
            raise RunInterruptedError(
                f"{asked.name} ended this worker. The others go on without it.", asked
            )

    return received


class EvaluateShare(Hook):
    """Evaluates a worker's share of the split after every epoch; gets the scores of all."""

    def __init__(self, evaluator: Evaluator):
        self._evaluator = evaluator

    def on_saved(self, run: TrainingRun, epoch: float, checkpoint: None) -> None:
        where = evaluation_place(epoch)
        with run.ledger.interval("eval_forward", **where):
            pending = self._evaluator.start()

        with run.ledger.interval("decode", **where):
            result, _ = pending.result()
            values = result.scores()

        run.advance(history=[*run.state.history, kept_scores(epoch, values)])

    def close(self) -> None:
        self._evaluator.close()


class WorkerSteps(Hook):
    """Writes a worker's part of every step, and its machine's state, into its file.

    All workers have this hook, the chief too.

    Args:
        run_dir: gets the file.
        session: of the run.
        team: the workers; its rank is in the file's name.
        fresh: whether training has not begun yet. In a new run, the file then begins
            empty.
    """

    def __init__(self, run_dir: Path, session: int, team: Team, *, fresh: bool = True):
        rank = team.rank
        file = worker_events_file(rank)
        is_new = not session and fresh
        if is_new:
            (run_dir / file).unlink(missing_ok=True)

        self.ledger = Ledger(run_dir, session, file=file)
        self.ledger.write(WorkerStart(rank=rank, workers=team.size))
        self._machine = MachineNotes(self.ledger.event)
        self._held = contextlib.ExitStack()

        # What each worker's machine gave it. The chief's samples are those of the run.
        if rank:
            host_file = worker_host_file(rank)
            if is_new:
                (run_dir / host_file).unlink(missing_ok=True)

            self._held.enter_context(HostSampler(run_dir, session, host_file))

    def on_step(self, run: TrainingRun, step: StepResult) -> None:
        state = run.state
        if not math.isfinite(step.loss):
            raise RunError(
                f"The loss must be finite. Step {state.step} got {step.loss}: the chief's message "
                "names the utterances."
            )

        # In rounds, workers don't step together, so there are no times of a step.
        if run.take_step.times is None:
            return

        self.ledger.write(run.take_step.times, epoch_num=state.epoch, step=state.step)

    def close(self) -> None:
        self._held.close()
        self._machine.stop()
        self.ledger.close()
