"""Where epochs are evaluated: in the training model, a second model, or another process.

The hook `tfasr.training.hooks.evaluate.Evaluate` starts an evaluation through the run's
`Placement`, and later asks the `PendingScores` that it got for the scores.
`TrainingConfig.evaluation_placement` chooses between `SharedModel`, `SwappedModel` and
`OtherProcess`. All three evaluate the same weights and give the same scores; they
differ in what training waits for, and in memory.
"""

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import CHECKPOINTS_FOLDER, epoch_name, hypotheses_file
from tfasr.kit.process import ChildError, Correspondence, load_tensorflow, received
from tfasr.ledger.events import Ledger, read_events
from tfasr.ledger.intervals import evaluated_epoch, evaluation_place
from tfasr.ledger.schema import EvaluatorDied
from tfasr.training.checkpoint import (
    give_second_name,
    model_variables,
    restore_for_use,
    values_kept,
)
from tfasr.training.ctc import CtcModel
from tfasr.training.evaluation import Evaluator, PendingEvaluation
from tfasr.training.swap import Swap
from tfasr.training.trained import open_trained

log = logging.getLogger("tfasr")

# After so many deaths of the other process over one checkpoint, the run ends.
_MOST_DEATHS = 3


@dataclass(frozen=True)
class Devices:
    """The devices that ``TrainingConfig.evaluation_devices`` names, by their numbers."""

    processors: tuple[int, ...]  # empty for all
    gpus: tuple[int, ...]  # empty for none

    def environment(self) -> dict[str, str]:
        """Returns environment variables that show a child process only these GPUs."""
        if not self.gpus:
            return {"CUDA_VISIBLE_DEVICES": "-1"}

        # This process may itself see only some GPUs, under other numbers.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(
                [visible.split(",")[gpu] if visible else str(gpu) for gpu in self.gpus]
            )
        }


def named_devices(names: Sequence[str]) -> Devices:
    """Parses names such as "cpu:3" and "gpu:1"."""
    numbers = {"cpu": (), "gpu": ()}
    for name in names:
        kind, _, number = name.partition(":")
        numbers[kind] += (int(number),)

    return Devices(numbers["cpu"], numbers["gpu"])


def leave_to_evaluation(names: Sequence[str]) -> None:
    """Checks that devices exist, and hides GPUs among them from this process.

    TensorFlow takes the memory of every GPU that it sees, so call this before it looks
    for GPUs. Raises UsageError if a device is missing, or this process holds the GPUs
    already.
    """
    devices = named_devices(names)
    processors = set()
    # Not every system lets a process choose its processors.
    if hasattr(os, "sched_getaffinity"):
        processors = os.sched_getaffinity(0)

    gpus = tf.config.list_physical_devices("GPU") if devices.gpus else []

    missing = [f"cpu:{n}" for n in devices.processors if n not in processors]
    missing += [f"gpu:{n}" for n in devices.gpus if n >= len(gpus)]
    if missing:
        raise UsageError(
            "TrainingConfig.evaluation_devices must name devices that this process may use. "
            f"Received: {list(names)}; {missing} are not among the processors "
            f"{sorted(processors)} and {len(gpus)} GPUs."
        )

    if not devices.gpus:
        return

    trained_on = [gpu for number, gpu in enumerate(gpus) if number not in devices.gpus]
    try:
        tf.config.set_visible_devices(trained_on, "GPU")
    except RuntimeError as error:
        raise UsageError(
            "The training process must not use the GPUs of TrainingConfig.evaluation_devices, but "
            f"has begun to: {error}. Train in a new process, as tfasr train does."
        ) from error


# An epoch's ``tracked_stats`` and further events, such as ``{"decode_work": 0.5}``.
Scores = tuple[dict[str, float], Mapping[str, object]]


@dataclass
class PendingScores:
    """An evaluation, running or finished.

    Attributes:
        epoch: that is evaluated, or the point at which a part of one ends.
        checkpoint: with the weights; None if an earlier session has recorded the scores.
        waiting: the ledger's interval in which training waits for the scores.
    """

    epoch: float
    checkpoint: Path | None

    def done(self) -> bool:
        """Whether `scores` would return at once."""
        raise NotImplementedError

    def scores(self) -> Scores:
        """Waits for the scores; raises RunError if they will not come."""
        raise NotImplementedError

    def write_hypotheses(self, path: Path) -> None:
        """Writes the hypotheses behind the scores, unless they are there already."""

    def booked(self) -> None:
        """Called once the scores are on disk; files kept for the evaluation may then go."""


class Placement:
    """A way to evaluate epochs.

    Attributes:
        most_pending: how many evaluations may be under way while training goes on.
        outlives_checkpoints: whether checkpoints may be saved before the scores come.
        traces: how often the forward pass was traced; None if unknown.
    """

    most_pending: int = 0
    outlives_checkpoints: bool = False
    traces: int | None = None

    def start(self, epoch: float, checkpoint: Path) -> PendingScores:
        """Starts to evaluate the current weights, which ``checkpoint`` contains too."""
        raise NotImplementedError

    def begin(self, unscored: Sequence[float]) -> list[PendingScores]:
        """Resumes earlier sessions' evaluations, before the first step.

        ``unscored`` are the epochs that were evaluated, but whose scores the run lacks.
        """
        return []

    def close(self) -> None:
        """Releases everything; evaluations under way are abandoned."""


@dataclass
class DecodingScores(PendingScores):
    """An evaluation of which only the decoding is not finished yet."""

    pending: PendingEvaluation
    # What a swap left on the devices, see `Swap`.
    memory: Mapping[str, int] | None = None
    waiting = "decode"

    def done(self) -> bool:
        return self.pending.done()

    def scores(self) -> Scores:
        result, worked_s = self.pending.result()
        work = {"decode_work": round(worked_s, 6)}
        if self.memory is not None:
            work["device_memory"] = self.memory

        if result.second is not None:
            work["second_decode_work"] = round(result.second.worked_s, 6)

        return result.scores(), work

    def write_hypotheses(self, path: Path) -> None:
        result, _ = self.pending.result()
        result.write_hypotheses(path)


@dataclass
class SharedModel(Placement):
    """Runs the forward passes of an evaluation on the model that is trained.

    Averaged weights are read from the epoch's checkpoint for the forward passes;
    training then continues with its own weights, bit for bit. Each way is recorded as
    ``swap``.
    """

    model: CtcModel
    evaluator: Evaluator
    ledger: Ledger
    most_pending: int
    averaged: bool = False  # whether checkpoints hold averaged weights

    @property
    def traces(self) -> int:
        return self.evaluator.traces

    def start(self, epoch: float, checkpoint: Path) -> DecodingScores:
        with contextlib.ExitStack() as training_weights:
            # The weights of training come back when the stack is closed.
            if self.averaged:
                with self.ledger.interval("swap", **evaluation_place(epoch)):
                    training_weights.enter_context(
                        values_kept(model_variables(self.model).values())
                    )
                    restore_for_use(checkpoint, self.model)

            with self.ledger.interval("eval_forward", **evaluation_place(epoch)):
                pending = self.evaluator.start()

            if self.averaged:
                with self.ledger.interval("swap", **evaluation_place(epoch)):
                    training_weights.close()

        return DecodingScores(epoch, checkpoint, pending)

    def close(self) -> None:
        self.evaluator.close()


@dataclass
class SwappedModel(Placement):
    """Swaps the training model for an evaluation model and back, at every evaluation.

    The evaluation model is loaded from the epoch's checkpoint. Each way is recorded as
    ``swap``, and `tfasr.training.swap.Swap` makes it.

    Source: the paper, section 4.4.2 and Figure 6.
    """

    swap: Swap
    make_evaluator: Callable[[CtcModel], Evaluator]
    ledger: Ledger
    most_pending: int
    # Of the evaluation model; made in the first swap.
    evaluator: Evaluator | None = None

    @property
    def traces(self) -> int:
        return 0 if self.evaluator is None else self.evaluator.traces

    def start(self, epoch: float, checkpoint: Path) -> DecodingScores:
        where = evaluation_place(epoch)

        def load(model: keras.Model) -> None:
            restore_for_use(checkpoint, model)
            if self.evaluator is None:
                self.evaluator = self.make_evaluator(model)

        with (
            self.swap.swapped(
                load, lambda: self.ledger.interval("swap", **where)
            ) as memory,
            self.ledger.interval("eval_forward", **where),
        ):
            pending = self.evaluator.start()

        return DecodingScores(epoch, checkpoint, pending, memory)

    def close(self) -> None:
        if self.evaluator:
            self.evaluator.close()


def evaluate_checkpoints(
    run_dir: Path, processors: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Evaluates a run's checkpoints one after the other, as its parent process names them.

    It runs in a separate process, and receives dicts with ``epoch``, ``checkpoint``
    and ``hypotheses`` (the file to write).

    Args:
        run_dir: the run's folder.
        processors: to run on; empty for all.

    Yields:
        For each checkpoint its ``epoch``, ``values`` (`EvaluationResult.scores`),
        ``work`` (seconds by ``load_s``, ``forward_s`` and ``decode_s``) and ``traces``
        so far.
    """
    # Ctrl-C reaches all processes of a terminal; the training decides when this one
    # ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before TensorFlow counts the processors.
    if processors:
        os.sched_setaffinity(0, set(processors))

    jobs = queue.SimpleQueue()
    threading.Thread(target=_receive_jobs, args=(jobs,), daemon=True).start()
    load_tensorflow()
    model, evaluator = open_trained(run_dir).validation_evaluator()

    while True:
        job = jobs.get()

        began = time.perf_counter()
        restore_for_use(job["checkpoint"], model)
        loaded = time.perf_counter()
        pending = evaluator.start()
        passed = time.perf_counter()
        result, decode_s = pending.result()
        result.write_hypotheses(job["hypotheses"])

        if result.second is not None:
            decode_s += result.second.worked_s

        work = {
            "load_s": round(loaded - began, 6),
            "forward_s": round(passed - loaded, 6),
            "decode_s": round(decode_s, 6),
        }
        yield {
            "epoch": job["epoch"],
            "values": result.scores(),
            "work": work,
            "traces": evaluator.traces,
        }


def _receive_jobs(jobs: queue.SimpleQueue) -> None:
    """Passes on what the parent process sends, and ends this process with it."""
    for job in received():
        jobs.put(job)

    # Training has ended, so nobody waits for the evaluation that may be under way.
    os._exit(0)


class OtherProcess(Placement):
    """Gives the checkpoints of epochs to another process, which evaluates them in order.

    An epoch's checkpoint keeps a second name until its scores are recorded, so that
    newer ones do not remove it and a resumed run finds what is still to be evaluated. A
    process that dies is started again; its third death over the same checkpoint ends
    the run.

    Source: the paper, section 4.4.2, after Mozilla's DeepSpeech.
    """

    # Each keeps a checkpoint on the disk.
    most_pending = 8
    outlives_checkpoints = True

    def __init__(self, run_dir: Path, devices: Sequence[str], ledger: Ledger):
        self.traces: int | None = None
        self._run_dir = run_dir
        self._devices = named_devices(devices)
        self._ledger = ledger
        self._process: Correspondence | None = None
        # The checkpoints that the process evaluates, by their epochs.
        self._sent: dict[float, Path] = {}
        # What the process has answered, and nobody has asked for yet.
        self._answers: dict[float, dict[str, Any]] = {}
        self._deaths = 0  # over the present checkpoint

    def begin(self, unscored: Sequence[float]) -> list[PendingScores]:
        """Starts the process, and has it evaluate what earlier sessions left."""
        to_score = {self._kept_checkpoint(epoch) for epoch in unscored}
        for path in (self._run_dir / CHECKPOINTS_FOLDER).glob("evaluating-epoch-*.npz"):
            if path not in to_score:
                # Its scores are in the checkpoint, or its epoch is trained again.
                path.unlink()

        pending = [self._resumed(epoch) for epoch in unscored]
        self._start()
        return pending

    def start(self, epoch: float, checkpoint: Path) -> PendingScores:
        kept = self._kept_checkpoint(epoch)
        give_second_name(checkpoint, kept)
        self._sent[epoch] = kept
        self._send(epoch)

        return RemoteScores(epoch, kept, self)

    def answered(self, epoch: float) -> bool:
        """Whether an epoch's scores are known; doesn't wait."""
        while epoch not in self._answers:
            if not self._receive(0):
                return False

        return True

    def answer(self, epoch: float) -> dict[str, Any]:
        """Waits for an epoch's scores.

        Raises RunError if the process keeps dying over them.
        """
        while epoch not in self._answers:
            self._receive(None)

        return self._answers.pop(epoch)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def _kept_checkpoint(self, epoch: float) -> Path:
        """Returns the second name of a checkpoint, under which it waits for its scores."""
        return (
            self._run_dir
            / CHECKPOINTS_FOLDER
            / f"evaluating-epoch-{epoch_name(epoch)}.npz"
        )

    def _resumed(self, epoch: float) -> PendingScores:
        """Returns the evaluation of an epoch that an earlier session began.

        Raises UsageError if neither its checkpoint nor its scores can be found.
        """
        kept = self._kept_checkpoint(epoch)
        if kept.is_file():
            self._sent[epoch] = kept
            return RemoteScores(epoch, kept, self)

        # Its scores were recorded after the checkpoint from which the run continues,
        # but the weights that they belong to are older than it, so the scores still
        # hold.
        for event in reversed(read_events(self._run_dir)):
            about = event.get("metadata") or {}
            if event["key"] == "tracked_stats" and evaluated_epoch(about) == epoch:
                self._answers[epoch] = {"values": event["value"]}
                return RemoteScores(epoch, None, self)

        raise UsageError(
            f"A run whose evaluations run in parallel must keep {kept} until epoch {epoch} is "
            "scored. It is missing, and the ledger has no scores of that epoch: restore it, or "
            "begin a new run."
        )

    def _send(self, epoch: float) -> None:
        """Sends an epoch's checkpoint to the process."""
        job = {
            "epoch": epoch,
            "checkpoint": self._sent[epoch],
            "hypotheses": hypotheses_file(self._run_dir, epoch),
        }
        self._process.send(job)

    def _start(self) -> None:
        """Starts the process, and sends it what it has not evaluated yet."""
        self._process = Correspondence(
            evaluate_checkpoints,
            self._run_dir.resolve(),
            self._devices.processors,
            environment=self._devices.environment(),
            task="The process that evaluates in parallel with training",
        )
        for epoch in sorted(self._sent):
            self._send(epoch)

    def _receive(self, timeout_s: float | None) -> bool:
        """Receives the next answer, or starts the process again if it has died.

        Returns whether one of these happened within the time; None waits for as long
        as it takes.
        """
        try:
            answer = self._process.next_answer(timeout_s)
        except TimeoutError:
            return False
        except ChildError as error:
            self._begin_again(error)
            return True

        self._deaths = 0
        self.traces = answer["traces"]
        self._answers[answer["epoch"]] = answer
        del self._sent[answer["epoch"]]

        return True

    def _begin_again(self, error: ChildError) -> None:
        """Starts the process again, which has died; RunError if it does so too often."""
        self._deaths += 1
        epoch = min(self._sent, default=None)
        place = {"epoch_num": None} if epoch is None else evaluation_place(epoch)

        self._ledger.write(
            EvaluatorDied(exit_code=error.exit_code, deaths=self._deaths), **place
        )
        if self._deaths >= _MOST_DEATHS:
            raise RunError(
                f"The process that evaluates in parallel with training died {self._deaths} times "
                f"over epoch {epoch}, whose checkpoint is kept. {error} Remove the cause and "
                "continue with --resume, which evaluates that epoch."
            ) from error

        log.warning("%s It is started again.", error)
        self._process.close()
        # A cause such as a lack of memory may be over after a moment.
        time.sleep(0.1 * self._deaths)
        self._start()


@dataclass
class RemoteScores(PendingScores):
    """An evaluation in the other process, which writes the hypotheses too."""

    process: OtherProcess
    waiting = "eval_wait"

    def done(self) -> bool:
        return self.process.answered(self.epoch)

    def scores(self) -> Scores:
        answer = self.process.answer(self.epoch)
        work = {}
        # The ledger has the work of scores that an earlier session recorded already.
        if "work" in answer:
            work["evaluation_work"] = answer["work"]

        return answer["values"], work

    def booked(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.unlink(missing_ok=True)
