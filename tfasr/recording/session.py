"""One process's part of a recorded run: what its blocks write, and where it stands."""

import contextlib
import hashlib
import json
import os
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
    """Writes a process's part of a run into its ledger.

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
        self.ledger = ledger
        self.order = order
        self.steps_done = position.step
        self.history = [position.history[epoch] for epoch in sorted(position.history)]
        self.last_at = time.perf_counter()
        self._run_dir = run_dir
        self._settings = settings
        self._training = self._hashed = False
        order.epoch = position.epoch
        order.evaluated = position.epoch in position.history
        self._start(position, own_process)

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

    def _start(self, position: Position, own_process: bool) -> None:
        resumed = position.session > 0
        age = {"process_age_s": round(process_age_s(), 6)} if own_process else {}
        self.ledger.event(
            "session_start",
            {
                "session": position.session,
                "resumed_from_step": position.step if resumed else None,
                "alive_until_ms": self.ledger.alive_until_ms if resumed else None,
            },
            pid=os.getpid(),
            **age,
        )
        # Looked at before the clock of the paper starts: it is no part of the training.
        content = json.dumps({"system": _system()}, indent=1) + "\n"
        write_whole(self._run_dir / RUN_FILE, content)
        self.ledger.start("init")
        self.ledger.event("model_creation")

    def begin_training(self) -> None:
        """Ends the initialisation, when something is done for the first time."""
        if self._training:
            return
        self._training = True
        settings = self._settings
        self.ledger.stop("init")
        self.ledger.event("run_start", event_type="INTERVAL_START")
        for key, value in settings.facts.items():
            self.ledger.event(key, value)
        self.ledger.event("metrics", settings.metrics)
        self.ledger.event("targets", settings.targets)
        if settings.comparability is not None:
            self.ledger.event("comparability", settings.comparability)
        self.ledger.sync()
        self.touch()

    def note(self, facts: Mapping[str, Any]) -> None:
        """Books facts about the run."""
        for key, value in facts.items():
            self.ledger.event(key, value)
        self.touch()

    def begin_epoch(self, number: int) -> None:
        """Begins an epoch after what is before it."""
        self.begin_training()
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

    def finish(self, status: str, **metadata: str) -> None:
        """Writes how the run ended."""
        with contextlib.suppress(OSError):
            self.ledger.event("run_stop", event_type="INTERVAL_END", status=status, **metadata)
            self.ledger.sync()

    def _comparability(self, references: Sequence[str]) -> dict[str, Any]:
        text = "\n".join(sorted(" ".join(one.split()) for one in references))
        return {
            "validation_references": hashlib.sha256(text.encode()).hexdigest()[:16],
            "validation_utterances": len(references),
            "target_rule": f"median of {self._settings.target_window} epochs",
        }


def _system() -> dict[str, Any]:
    """Returns facts about the machine, and the versions of what this process has imported."""
    system = describe_system()
    used = {name: version(name) for name in _FRAMEWORKS if name in sys.modules}
    others = {name: told for name, told in system["packages"].items() if name not in _FRAMEWORKS}
    system["packages"] = others | {name: told for name, told in used.items() if told}
    return system


def _numbers(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Returns what evaluations found as numbers; what diverged is none."""
    return [
        {name: float("nan") if value is None else value for name, value in scores.items()}
        for scores in history
    ]
