"""One process's part of a recorded run: what its blocks write, and where it stands."""

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfasr.durable import write_whole
from tfasr.ledger import Ledger
from tfasr.recording.folder import Position
from tfasr.recording.order import Order
from tfasr.recording.settings import Settings
from tfasr.run_files import RUN_FILE
from tfasr.telemetry.process import process_age_s
from tfasr.telemetry.software import version
from tfasr.telemetry.system import describe_system
from tfasr.tta.metrics import BUILT_IN
from tfasr.tta.time_to_accuracy import rule_met

_FRAMEWORKS = ("torch", "jax", "flax", "lightning", "transformers", "tensorflow", "keras")


class Session:
    """One process's part of a run: how its ledger begins and ends, whoever trains.

    As a block, it ends the run with what the block raised.

    Args:
        ledger: the run's, open, without an event of this process yet.
        interruptions: errors that say that somebody asked for the end.
    """

    def __init__(
        self, ledger: Ledger, interruptions: tuple[type[BaseException], ...] = (KeyboardInterrupt,)
    ):
        self.ledger = ledger
        self._interruptions = interruptions

    def start(self, resumed_from_step: int | None, *, own_process: bool) -> None:
        """Writes ``session_start``, with the process's age if it was started for this run alone."""
        age = {"process_age_s": round(process_age_s(), 6)} if own_process else {}
        self.ledger.begin_session(resumed_from_step, **age)

    def begin_training(self, facts: Mapping[str, Any]) -> None:
        """Writes ``run_start``, from which on data may be read, and the facts that are known."""
        self.ledger.event("run_start", event_type="INTERVAL_START")
        for key, value in facts.items():
            self.ledger.event(key, value)

    def finish(self, error: BaseException | None = None) -> None:
        """Writes how the run ended; a disk that is full hides no other error."""
        if error is None:
            self.ledger.event("run_stop", event_type="INTERVAL_END", status="success")
            self.ledger.sync()
            return
        status = "interrupted" if isinstance(error, self._interruptions) else "aborted"
        reason = f"{type(error).__name__}: {error}"[:500]
        with contextlib.suppress(OSError):
            self.ledger.event("run_stop", event_type="INTERVAL_END", status=status, reason=reason)
            self.ledger.sync()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.finish(error)


class RecordedSession(Session):
    """What a `tfasr.Recorder`'s blocks write, and where the run stands.

    Args:
        run_dir: the run's folder.
        ledger: the run's, open.
        settings: the run's.
        position: where the session begins.
        order: what may be called now.
        own_process: whether the process's age is booked.

    Attributes:
        steps_done: updates so far.
        history: what the evaluations that count have found, in order.
        last_at: when the last call ended, of ``time.perf_counter``.
    """

    def __init__(
        self,
        run_dir: Path,
        ledger: Ledger,
        settings: Settings,
        position: Position,
        order: Order,
        *,
        own_process: bool,
    ):
        super().__init__(ledger)
        self.order = order
        self.steps_done = position.step
        self.history = [position.history[epoch] for epoch in sorted(position.history)]
        self.last_at = time.perf_counter()
        self._settings = settings
        self._training = self._hashed = False
        order.epoch = position.epoch
        order.evaluated = position.epoch in position.history
        self.start(position.step if position.session else None, own_process=own_process)
        # Looked at before the clock of the paper starts: it is no part of the training.
        write_whole(run_dir / RUN_FILE, json.dumps({"system": _system()}, indent=1) + "\n")
        self.ledger.start("init")
        self.ledger.event("model_creation")

    @property
    def targets_met(self) -> bool:
        """Whether the last evaluations meet all targets."""
        return rule_met(_numbers(self.history), self._settings.pairs, self._settings.target_window)

    @property
    def wanted(self) -> list[str]:
        """The metrics that every evaluation must find: those of the targets."""
        return [metric for metric, _ in self._settings.pairs]

    def knows(self, metric: str) -> bool:
        """Whether readers of the run will know which way a metric is better."""
        return metric in BUILT_IN or metric in self._settings.metrics

    @property
    def where(self) -> dict[str, int]:
        """Step and epoch, as metadata of events."""
        return {"step": self.steps_done, "epoch_num": self.order.epoch}

    def end_init(self) -> None:
        """Ends the initialisation, when something is done for the first time."""
        if self._training:
            return
        self._training = True
        settings = self._settings
        self.ledger.stop("init")
        stated = {} if settings.comparability is None else {"comparability": settings.comparability}
        targets = {"metrics": settings.metrics, "targets": settings.targets}
        self.begin_training({**settings.facts, **targets, **stated})
        self.ledger.sync()
        self.touch()

    def note(self, facts: Mapping[str, Any]) -> None:
        """Books facts about the run."""
        for key, value in facts.items():
            self.ledger.event(key, value)
        self.touch()

    def begin_epoch(self, number: int) -> None:
        """Begins an epoch after what is before it."""
        self.end_init()
        self.order.epoch, self.order.in_epoch, self.order.evaluated = number, True, False
        self.ledger.start("epoch", epoch_num=number)
        self.touch()

    def end_epoch(self) -> None:
        """Ends the epoch that is under way, if one is."""
        if self.order.in_epoch:
            self.order.in_epoch = False
            self.ledger.stop("epoch", epoch_num=self.order.epoch)
        self.touch()

    def book_step(self, value: dict[str, Any]) -> None:
        """Books a step that has ended."""
        self.steps_done += 1
        self.ledger.event("train_step", value, epoch_num=self.order.epoch, step=self.steps_done)
        self.touch()

    def end_evaluation(self, scores: dict[str, Any], references: Sequence[str]) -> None:
        """Ends an evaluated epoch."""
        self.history.append(scores)
        self.order.evaluated = True
        if self._settings.comparability is None and references and not self._hashed:
            self._hashed = True
            self.ledger.event("comparability", self._comparability(references))
        self.end_epoch()
        self.ledger.sync()

    def touch(self) -> None:
        """Notes that waiting for the next batch begins now."""
        self.last_at = time.perf_counter()

    def _comparability(self, references: Sequence[str]) -> dict[str, Any]:
        lines = "\n".join(sorted(" ".join(text.split()) for text in references))
        return {
            "validation_references": hashlib.sha256(lines.encode()).hexdigest()[:16],
            "validation_utterances": len(references),
            "target_rule": f"median of {self._settings.target_window} epochs",
        }


def _system() -> dict[str, Any]:
    system = describe_system()
    used = {name: version(name) for name in _FRAMEWORKS if name in sys.modules}
    others = {name: text for name, text in system["packages"].items() if name not in _FRAMEWORKS}
    system["packages"] = others | {name: text for name, text in used.items() if text}
    return system


def _numbers(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    return [
        {name: float("nan") if value is None else value for name, value in scores.items()}
        for scores in history
    ]
