"""Results that others published, with their sources, for comparison with yours.

Each source is a JSON file in this folder. It has the source's tables under their original names,
how they were measured, rows in SI units and fractions, and notes on contradictions in the source.
"""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tfasr.errors import UsageError
from tfasr.ledger.intervals import Event

SOURCES = ("paper", "mlperf", "algoperf", "deepmark")
"""The valid arguments of `published`."""


@dataclass(frozen=True)
class PublishedTable:
    name: str  # in its source, such as "Table 4"
    kind: str  # such as "systems", "machines", "evaluation" or "time_to_accuracy"
    what: str  # what it shows
    conditions: str  # how it was measured
    # by heading; times in seconds, rates as fractions, None if never reached or not stated
    rows: list[dict[str, Any]]
    notes: list[str]  # about the entire table

    def all_notes(self) -> list[str]:
        of_rows = [f"{row.get('system', '')}: {row['note']}" for row in self.rows if "note" in row]
        return [*self.notes, *of_rows]


@dataclass(frozen=True)
class PublishedSource:
    name: str
    source: str
    tables: dict[str, PublishedTable]


def published(name: str) -> PublishedSource:
    """Returns the results of a source; raises UsageError for an unknown name."""
    if name not in SOURCES:
        raise UsageError(
            f"Published results must be one of {', '.join(SOURCES)}. Received: {name!r}."
        )
    text = resources.files("tfasr.tta.published").joinpath(f"{name}.json").read_text("utf-8")
    content = json.loads(text)
    tables = {key: PublishedTable(key, **table) for key, table in content["tables"].items()}
    return PublishedSource(content["name"], content["source"], tables)


class TableEvents:
    """Builds a run's events from a table of evaluations."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now_s = 0.0
        self._step = 0
        for key in ("session_start", "model_creation", "run_start"):
            self._event(key)

    def train(self, seconds: float, epoch: int) -> None:
        self._now_s += max(0.0, seconds)
        self._step += 1
        value = {"train_s": max(0.0, seconds), "input_wait_s": 0.0, "compile_s": 0.0}
        self._event("train_step", value, epoch_num=epoch, step=self._step)

    def evaluate(self, seconds: float, epoch: int, stats: dict[str, float]) -> None:
        self._event("eval_start", epoch_num=epoch)
        self._event("eval_forward_start", epoch_num=epoch)
        self._now_s += max(0.0, seconds)
        self._event("eval_forward_stop", epoch_num=epoch)
        self._event("tracked_stats", stats, epoch_num=epoch)
        self._event("eval_stop", epoch_num=epoch)

    def save(self, until_s: float) -> None:
        """Adds a checkpoint that lasts until ``until_s``."""
        self._event("checkpoint_start")
        self._now_s = max(self._now_s, until_s)
        self._event("checkpoint_stop")

    def end_epoch(self, epoch: int) -> None:
        self._event("epoch_stop", epoch_num=epoch)

    def end(self) -> list[Event]:
        self._event("run_stop", status="success")
        return self.events

    def _event(self, key: str, value: Any = None, **metadata: Any) -> None:
        metadata = {**metadata, "session": 0, "mono_s": self._now_s}
        self.events.append(
            {"time_ms": round(self._now_s * 1000), "key": key, "value": value, "metadata": metadata}
        )
