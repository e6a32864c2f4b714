"""Evaluation in another process, of checkpoints, while training goes on."""

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.errors import RunError, UsageError
from tfasr.kit.files import CHECKPOINTS_FOLDER, epoch_name, hypotheses_file
from tfasr.kit.process import ChildError, Correspondence, load_tensorflow, received
from tfasr.ledger.events import Ledger, read_events
from tfasr.ledger.intervals import evaluated_epoch, evaluation_place
from tfasr.training.checkpoint import give_second_name, restore_for_use
from tfasr.training.placement import PendingScores, Placement, Scores, named_devices
from tfasr.training.trained import open_trained


def evaluate_checkpoints(run_dir: Path, processors: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Evaluates a run's checkpoints one after the other, as its parent process names them.

    It receives dicts of ``epoch``, ``checkpoint`` and ``hypotheses`` (the file to write), and
    yields for each ``epoch``, ``values`` (`EvaluationResult.scores`), ``work`` (seconds by
    ``load_s``, ``forward_s`` and ``decode_s``) and ``traces`` so far. No ``processors`` means all
    of them.
    """
    # Ctrl-C reaches all processes of a terminal; the training decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if processors:  # before TensorFlow counts them
        os.sched_setaffinity(0, set(processors))
    jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
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
        yield {
            "epoch": job["epoch"],
            "values": result.scores(),
            "work": {
                "load_s": round(loaded - began, 6),
                "forward_s": round(passed - loaded, 6),
                "decode_s": round(decode_s + (result.second.worked_s if result.second else 0), 6),
            },
            "traces": evaluator.traces,
        }


def _listen(jobs: queue.SimpleQueue) -> None:
    for job in received():
        jobs.put(job)
    os._exit(0)  # the training is gone; nobody wants what is being computed


log = logging.getLogger("tfasr")

_MOST_DEATHS = 3


class OtherProcess(Placement):
    """Gives the checkpoints of epochs to another process, which evaluates them in order.

    An epoch's checkpoint keeps a second name until its scores are recorded, so that newer ones do
    not remove it and a resumed run finds what is still to be evaluated. A process that dies is
    started again, up to three times over one checkpoint.

    Source: the paper, section 4.4.2, after Mozilla's DeepSpeech.
    """

    most_pending = 8
    outlives_checkpoints = True

    def __init__(self, run_dir: Path, devices: Sequence[str], ledger: Ledger):
        self.traces: int | None = None
        self._run_dir = run_dir
        self._devices = named_devices(devices)
        self._ledger = ledger
        self._process: Correspondence | None = None
        self._asked: dict[float, Path] = {}
        self._answers: dict[float, dict[str, Any]] = {}
        self._deaths = 0

    def begin(self, unscored: Sequence[float]) -> list[PendingScores]:
        """Starts the process, and has it evaluate what earlier sessions left."""
        kept = {self._held(epoch) for epoch in unscored}
        for path in (self._run_dir / CHECKPOINTS_FOLDER).glob("evaluating-epoch-*.npz"):
            if path not in kept:
                path.unlink()  # its scores are in the checkpoint, or its epoch is trained again
        left = [self._left(epoch) for epoch in unscored]
        self._start()
        return left

    def start(self, epoch: float, checkpoint: Path) -> PendingScores:
        held = self._held(epoch)
        give_second_name(checkpoint, held)
        self._asked[epoch] = held
        self._send(epoch)
        return RemoteScores(epoch, held, self)

    def answered(self, epoch: float) -> bool:
        while epoch not in self._answers and self._take(0):
            pass
        return epoch in self._answers

    def answer(self, epoch: float) -> dict[str, Any]:
        """Waits for an epoch's scores; raises RunError if the process keeps dying over them."""
        while epoch not in self._answers:
            self._take(None)
        return self._answers.pop(epoch)

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    def _held(self, epoch: float) -> Path:
        return self._run_dir / CHECKPOINTS_FOLDER / f"evaluating-epoch-{epoch_name(epoch)}.npz"

    def _left(self, epoch: float) -> PendingScores:
        held = self._held(epoch)
        if held.is_file():
            self._asked[epoch] = held
            return RemoteScores(epoch, held, self)
        # Its scores were booked after the checkpoint from which the run goes on; the weights they
        # are of came before it, and are the same.
        for event in reversed(read_events(self._run_dir)):
            about = event.get("metadata") or {}
            if event["key"] == "tracked_stats" and evaluated_epoch(about) == epoch:
                return KnownScores(epoch, event["value"])
        raise UsageError(
            f"A run whose evaluations run in parallel must keep {held} until epoch {epoch} is "
            "scored. It is gone, and the ledger has no scores of that epoch: bring it back, or "
            "begin a new run."
        )

    def _send(self, epoch: float) -> None:
        hypotheses = hypotheses_file(self._run_dir, epoch)
        checkpoint = self._asked[epoch]
        self._process.send({"epoch": epoch, "checkpoint": checkpoint, "hypotheses": hypotheses})

    def _start(self) -> None:
        self._process = Correspondence(
            evaluate_checkpoints,
            self._run_dir.resolve(),
            self._devices.processors,
            environment=self._devices.environment(),
            task="The process that evaluates in parallel with training",
        )
        for epoch in sorted(self._asked):
            self._send(epoch)

    def _take(self, timeout_s: float | None) -> bool:
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
        del self._asked[answer["epoch"]]
        return True

    def _begin_again(self, error: ChildError) -> None:
        self._deaths += 1
        epoch = min(self._asked, default=None)
        value = {"exit_code": error.exit_code, "deaths": self._deaths}
        place = {"epoch_num": None} if epoch is None else evaluation_place(epoch)
        self._ledger.event("evaluator_died", value, **place)
        if self._deaths >= _MOST_DEATHS:
            raise RunError(
                f"The process that evaluates in parallel with training died {self._deaths} times "
                f"over epoch {epoch}, whose checkpoint is kept. {error} Continue with --resume "
                "once the cause is gone; it is evaluated then."
            ) from error
        log.warning("%s It is started again.", error)
        self._process.close()
        time.sleep(0.1 * self._deaths)
        self._start()


@dataclass
class RemoteScores(PendingScores):
    """An evaluation in the other process, which writes the hypotheses too."""

    epoch: float
    checkpoint: Path
    process: OtherProcess
    waiting = "eval_wait"

    def done(self) -> bool:
        return self.process.answered(self.epoch)

    def scores(self) -> Scores:
        answer = self.process.answer(self.epoch)
        return Scores(answer["values"], {"evaluation_work": answer["work"]})

    def booked(self) -> None:
        self.checkpoint.unlink(missing_ok=True)


@dataclass
class KnownScores(PendingScores):
    """Scores that an earlier session recorded and this one records again."""

    epoch: float
    values: dict[str, float]
    checkpoint = None
    waiting = "eval_wait"

    def done(self) -> bool:
        return True

    def scores(self) -> Scores:
        return Scores(self.values, {})
