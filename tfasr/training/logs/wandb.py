"""Scalars in Weights & Biases; its own settings and variables choose account and project."""

import re
from collections.abc import Sequence
from pathlib import Path

from tfasr.training.logs.registry import Log, required
from tfasr.tta.clock import Event


class WandbLog(Log):
    """Logs scalars with ``step`` and ``useful_seconds``, either of which can be a chart's axis.

    A resumed run goes on in the W&B run it began; steps that were lost stand there twice.

    Args:
        run_dir: the run's folder, which gives the run its name.
        events: of its ledger; with the first one's time the name is an identity.
    """

    package = "wandb"

    def __init__(self, run_dir: Path, events: Sequence[Event]):
        name = run_dir.resolve().name
        identity = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{name}-{events[0]['time_ms']}")
        self._run = required("wandb").init(
            project="tfasr", name=name, id=identity, dir=str(run_dir), resume="allow"
        )
        self._run.define_metric("step")
        self._run.define_metric("useful_seconds")
        self._run.define_metric("*", step_metric="step")

    def write(self, scalars: dict[str, float], step: int, useful_s: float) -> None:
        self._run.log({**scalars, "step": step, "useful_seconds": useful_s})

    def close(self) -> None:
        self._run.finish()
