"""A finished or growing run, read from its folder."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.display.chart import Axis, Chart, Mark, Panel, Rule, curve, run_colour
from tfasr.display.table import dataframe, html_table
from tfasr.errors import UsageError, explained
from tfasr.kit.files import (
    EVENTS_FILE,
    GIN_GIVEN_FILE,
    GIN_OPERATIVE_FILE,
    HYPOTHESES_FOLDER,
    RUN_FILE,
    read_object,
    read_text,
)
from tfasr.ledger.events import last_value, read_ledger
from tfasr.ledger.intervals import Event
from tfasr.ledger.timeline import Timeline, second_writer, wrong_value
from tfasr.tta.decomposition import WARMUP_STEPS, Throughput, throughput
from tfasr.tta.explain import Explanation, explain, line_numbers
from tfasr.tta.metrics import HIGHER, METRICS, Target, check_target, declare, metric_named
from tfasr.tta.policies import (
    PAPER,
    AccuracyPoint,
    Policy,
    TimeToAccuracy,
    first_sustained,
    policy_named,
)

if TYPE_CHECKING:
    import pandas as pd

    from tfasr.display.vega import Drawing

_STEP_FIELDS = (
    "loss", "utterances", "audio_s", "frames", "padded_frames", "input_wait_s", "compile_s",
    "train_s",
)  # fmt: skip
_REMEDY = "Delete the file to report without the machine's facts."
_REMEDY_CONFIG = "Bring the file back, or delete it to report without the configuration."
_REMEDY_SAMPLES = "Delete the file to report without its samples."


@dataclass(frozen=True, eq=False)
class Run:
    """A run's ledger and the other files in its folder.

    Attributes:
        path: the run's folder.
        name: its name in reports; the folder's name, unless two runs of a report share it.
        events: the ledger's events in file order.
        cut: whether a crash cut off the ledger's last line, which is missing here.
        ledger_hash: the hash in the ledger's last line, which covers all lines; None if an older
            tfasr wrote it.
    """

    path: Path
    name: str
    events: list[Event] = field(repr=False)
    cut: bool = False
    ledger_hash: str | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """The events on the run's clock, and what can be computed from them alone."""
        return Timeline(self.events)

    @property
    def elapsed_s(self) -> list[float]:
        """Seconds from the model's creation to each event."""
        return self.timeline.elapsed_s

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds of all sessions, each from the creation of its process if known."""
        return self.timeline.wall_s

    @cached_property
    def intervals(self) -> dict[str, float]:
        """Seconds per interval, see `tfasr.ledger.intervals.INTERVALS`."""
        return self.timeline.interval_seconds()

    def intervals_until(self, until_s: float) -> dict[str, float]:
        """Returns seconds per interval up to ``until_s`` seconds after the model's creation."""
        return self.timeline.interval_seconds(until_s)

    def fact(self, key: str) -> Any:
        """Returns the value of the last event with a key, or None."""
        return self.timeline.fact(key)

    @property
    def targets(self) -> list[tuple[str, float]]:
        """The targets in the run's configuration: metric and value, error rates as fractions."""
        return [(str(metric), float(value)) for metric, value in self.fact("targets") or []]

    @property
    def target_window(self) -> int | None:
        """The number of evaluations whose median must meet the targets; None if unknown."""
        rule = str((self.comparability or {}).get("target_rule"))
        match = re.fullmatch(r"median of (\d+) epochs(, \d+ evaluations each)?", rule)
        return int(match[1]) if match else None

    @property
    def declared_metrics(self) -> dict[str, dict[str, Any]]:
        """The run's own metrics, see `tfasr.tta.metrics`."""
        return self.fact("metrics") or {}

    @property
    def comparability(self) -> dict[str, Any] | None:
        """What must be equal for results to be comparable, or None if unknown."""
        value = self.fact("comparability")
        return value if isinstance(value, dict) else None

    @property
    def sessions(self) -> int:
        """The number of processes that wrote the run."""
        return max(1, len(self.timeline.of("session_start")))

    @property
    def status(self) -> str:
        """How the run ended: "success", "aborted", "interrupted", or "unfinished" if unknown."""
        ends = self.timeline.of("session_start", "run_stop")
        if not ends or self.timeline.keys[ends[-1]] == "session_start":
            return "unfinished"
        return str(self.timeline.metadata[ends[-1]].get("status", "unfinished"))

    @cached_property
    def _curves(self) -> dict[tuple[str, Policy], list[AccuracyPoint]]:
        return {}

    def accuracy_curve(
        self, metric: str = "cer", policy: str | Policy = PAPER
    ) -> list[AccuracyPoint]:
        """Returns a metric over a policy's clock: a point per evaluation that the policy counts."""
        key = (metric, policy_named(policy))
        if key not in self._curves:
            self._curves[key] = key[1].curve(self.timeline, metric)
        return self._curves[key]

    def plot(self, metric: str = "") -> "Drawing":
        """Draws a metric over time, by default that of the first target; notebooks show the result.

        Raises UsageError if no evaluation has the metric.
        """
        from tfasr.display.vega import Drawing  # here: drawing is slow to load

        evaluated = [name for name in METRICS if self.accuracy_curve(name)]
        metric = to_plot(metric, self.targets, evaluated)
        points = self.accuracy_curve(metric)
        kind = metric_named(metric)
        scale, unit = (100, ", %") if kind.rate else (1, "")
        marks: list[Mark] = [
            Rule(value=scale * value, label=f"{scale * value:.4g}")
            for name, value in self.targets
            if name == metric
        ]
        x, y = [p.elapsed_s / 60 for p in points], [scale * p.value for p in points]
        marks += curve(x, y, run_colour(0), self.name)
        label, log = kind.label or metric.replace("_", " "), kind.better != HIGHER and min(y) > 0
        minutes = Axis("minutes since the creation of the model", limits=(0.0, 1.03 * x[-1]))
        panel = Panel(marks, minutes, Axis(f"{label}{unit}", log=log))
        return Drawing(Chart(metric, f"{label} of {self.name}", [panel]))

    def throughput(self, warmup_steps: int = WARMUP_STEPS) -> Throughput:
        """Returns the steady speed, see `tfasr.tta.decomposition`."""
        return throughput(self.timeline, warmup_steps=warmup_steps)

    def time_to_accuracy(
        self, *, policy: str | Policy = PAPER, window: int | None = None, **target: float
    ) -> TimeToAccuracy:
        """Returns when the run reached a target, as in ``run.time_to_accuracy(cer=0.10)``.

        Args:
                policy: a clock policy or its name, see `tfasr.tta.policies`.
                window: over how many evaluations to take the median; by default the policy's.
                **target: one metric and its value; error rates are fractions.

        Raises:
                UsageError: for an unknown policy, an impossible target, or not exactly one.
        """
        metric, value = _one_target("time_to_accuracy", target)
        clock = policy_named(policy)
        points = self.accuracy_curve(metric, clock)
        window = clock.window if window is None else window
        return first_sustained(points, value, metric=metric, window=window)

    def explain(
        self, *, policy: str | Policy = PAPER, window: int | None = None, **target: float
    ) -> Explanation:
        """Explains a time to accuracy event by event, as in ``print(run.explain(cer=0.10))``.

        Arguments and errors are those of `time_to_accuracy`.
        """
        metric, value = _one_target("explain", target)
        clock = policy_named(policy)
        window = clock.window if window is None else window
        names = {"run": self.name, "path": self.path}
        return explain(self.timeline, value, metric=metric, policy=clock, window=window, **names)

    @property
    def config(self) -> str | None:
        """The configuration as written (gin), or None if it was not saved."""
        return _text(self.path / GIN_GIVEN_FILE, _REMEDY_CONFIG)

    @property
    def operative_config(self) -> str | None:
        """The configuration in effect (gin), or None if it was not saved."""
        return _text(self.path / GIN_OPERATIVE_FILE, _REMEDY_CONFIG)

    @property
    def system(self) -> dict[str, Any]:
        """The machine's facts from ``run.json``, or {} if they were not saved."""
        path = self.path / RUN_FILE
        if not path.is_file():
            return {}
        facts = read_object(path, _REMEDY)
        system = facts.get("system")
        packages = system.get("packages") if isinstance(system, dict) else None
        if not isinstance(system, dict | None) or not isinstance(packages, dict | None):
            raise UsageError(f"system and its packages in {path} must be JSON objects. {_REMEDY}")
        return facts

    @property
    def hypotheses(self) -> list[Path]:
        """The files with the evaluations' hypotheses, sorted by name."""
        return sorted((self.path / HYPOTHESES_FOLDER).glob("*.jsonl"))

    def utilisation(self, device: str = "cpu") -> dict[str, np.ndarray]:
        """Returns the columns of ``cpu.csv`` or ``gpu.csv`` as floats, or {} if it is missing."""
        text = _text(self.path / f"{device}.csv", _REMEDY_SAMPLES)
        if text is None or not text.strip():
            return {}
        names, *rows = (line.split(",") for line in text.splitlines())
        complete = [row for row in rows if len(row) == len(names)]
        columns = zip(*complete, strict=True) if complete else ((),) * len(names)
        return {
            name: np.array([_float(cell) for cell in column], dtype=float)
            for name, column in zip(names, columns, strict=True)
        }

    def to_dataframe(self, policy: str | Policy = PAPER) -> "pd.DataFrame":
        """Returns the accuracy curve, one row per evaluation that counts.

        Columns: ``epoch``, ``elapsed_s`` by the policy's clock, and metrics (rates as fractions).
        """
        rows: dict[int, dict[str, float]] = {}
        for metric in METRICS:
            for point in self.accuracy_curve(metric, policy):
                row = rows.setdefault(point.epoch, {"epoch": point.epoch})
                row |= {"elapsed_s": point.elapsed_s, metric: point.value}
        return dataframe(list(rows.values()), ["epoch", "elapsed_s"])

    def steps_to_dataframe(self) -> "pd.DataFrame":
        """Returns the training steps without lost work, one row each.

        Columns: ``step``, ``epoch``, ``elapsed_s`` (since the model's creation) and the step's
        values in the ledger, such as ``loss`` and ``train_s``.
        """
        rows = []
        line = self.timeline
        for index, stats in zip(line.steps.indices, line.steps.values, strict=True):
            where = line.metadata[index]
            row = {"step": where.get("step"), "epoch": where.get("epoch_num")}
            row["elapsed_s"] = line.elapsed_s[index]
            rows.append(row | {field: stats.get(field) for field in _STEP_FIELDS})
        return dataframe(rows, ["step", "epoch", "elapsed_s", *_STEP_FIELDS])

    def _repr_html_(self) -> str:
        spent = self.intervals
        total_s = math.fsum(spent.values())
        about = {
            "status": self.status,
            "sessions": str(self.sessions),
            "wall": f"{total_s:.1f} s",
            "targets": ", ".join(f"{metric} {value:g}" for metric, value in self.targets) or "none",
        }
        for metric, value in self.targets:
            about[f"time to {metric} {value:g}"] = self.time_to_accuracy(**{metric: value}).summary
        about |= {
            name.replace("_", " "): f"{seconds:.1f} s, {100 * seconds / total_s:.1f} %"
            for name, seconds in spent.items()
            if seconds
        }
        return html_table(["", ""], [[name, text] for name, text in about.items()], self.name)


def to_plot(metric: str, targets: Sequence[Target], evaluated: Sequence[str]) -> str:
    """Returns the metric to draw; raises UsageError unless it was evaluated."""
    metric = metric or [*(name for name, _ in targets), *evaluated, "cer"][0]
    if metric not in evaluated:
        known = ", ".join(evaluated) or "nothing yet"
        raise UsageError(f"No evaluation has the metric {metric!r}. Evaluated: {known}.")
    return metric


def _one_target(method: str, target: dict[str, float]) -> tuple[str, float]:
    if len(target) != 1:
        raise UsageError(
            f"{method} needs exactly one target, such as cer=0.10. Received: {target}."
        )
    return check_target(*next(iter(target.items())))


def _text(path: Path, remedy: str) -> str | None:
    return read_text(path, remedy) if path.is_file() else None


def _float(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def read_targets(path: str | Path) -> list[tuple[str, float]]:
    """Returns the last targets in a run's ledger without parsing the rest; [] if unreadable."""
    try:
        return [(str(metric), float(value)) for metric, value in last_value(path, "targets") or []]
    except (OSError, TypeError, ValueError, OverflowError, RecursionError):
        return []  # reading the rest will report the error


def read_metrics(path: str | Path) -> dict[str, dict[str, Any]]:
    """Returns the metrics that a run's ledger declares, without parsing the rest."""
    try:
        metrics = last_value(path, "metrics")
    except (OSError, ValueError, RecursionError):
        return {}  # reading the rest will report the error
    if not isinstance(metrics, dict):
        return {}
    return metrics if all(isinstance(fields, dict) for fields in metrics.values()) else {}


def load_run(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder, of which only ``events.jsonl`` is required.

    ``path`` is the ``--run_dir`` of ``tfasr train``; ``name`` is the run's name in reports, by
    default the folder's. Raises UsageError if the folder does not exist, or its ledger is missing,
    empty or broken.
    """
    path = Path(path)
    try:
        if not path.is_dir():
            raise UsageError(
                f"A run must be a folder that tfasr train wrote. Received: {path}, which "
                f"{'is a file' if path.exists() else 'does not exist'}."
            )
        ledger = read_ledger(path)
        if not ledger.events:
            raise ValueError(
                f"The ledger {path / EVENTS_FILE} has no events: the run has not started yet."
            )
        name = name or path.resolve().name
        run = Run(path, name, ledger.events, ledger.cut, ledger_hash=ledger.chain)
        wrong = wrong_value(run.timeline)
        if wrong is not None:
            index, kind = wrong
            raise ValueError(
                f"In line {line_numbers(path)[index]} of {path / EVENTS_FILE} {kind}. Leave the "
                "run out, or restore the line."
            )
        declare(run.declared_metrics, path)
        _ = run.timeline.clock_us  # reports an event without a usable time
        twice = second_writer(run.timeline)
        if twice is not None:
            raise ValueError(
                f"Two processes wrote {path / EVENTS_FILE} at once ({twice}), so its times can't "
                "be trusted. Train again into an empty folder."
            )
    except RecursionError as error:
        ledger = path / EVENTS_FILE
        raise UsageError(f"A line of {ledger} is not an event: it is nested too deeply.") from error
    except UsageError:
        raise
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise UsageError(str(error) if missing else explained(error)[0]) from error
    except ValueError as error:
        where = "" if str(path) in str(error) else f"{path / EVENTS_FILE}: "
        raise UsageError(f"{where}{error}") from error
    return run
