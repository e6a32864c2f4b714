"""A finished or growing run: its folder, read."""

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


@dataclass(frozen=True)
class LossCurve:
    """The training loss of the steps that count; equally long arrays in the order of steps."""

    steps: np.ndarray  # step numbers, counted from 1
    elapsed_s: np.ndarray  # seconds from the model's creation to the end of the step
    loss: np.ndarray  # NaN if the ledger has no number


@dataclass(frozen=True, eq=False)
class Run:
    """A run's ledger and the other files in its folder.

    Attributes:
        path: the run's folder.
        name: its name in reports; the folder's name, unless two runs of a report share it.
        events: the ledger's events in file order.
        cut: whether a crash cut off the ledger's last line, which is left out.
        ledger_hash: the hash in the ledger's last line, which rests on all lines before it; None if
            an older tfasr wrote it.
    """

    path: Path
    name: str
    events: list[Event] = field(repr=False)
    cut: bool = False
    ledger_hash: str | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """The events on the run's own clock, with everything that follows from them alone."""
        return Timeline(self.events)

    @property
    def elapsed_s(self) -> list[float]:
        """Seconds from the model's creation to each event."""
        return self.timeline.elapsed_s

    @property
    def wall_s(self) -> float:
        """Seconds of all sessions, from the creation of each process if known."""
        return self.timeline.wall_s

    @cached_property
    def intervals(self) -> dict[str, float]:
        """Seconds by interval, see `tfasr.ledger.intervals.INTERVALS`."""
        return self.timeline.interval_seconds()

    def intervals_until(self, until_s: float) -> dict[str, float]:
        """Returns seconds by interval up to a time since the model's creation."""
        return self.timeline.interval_seconds(until_s)

    def fact(self, key: str) -> Any:
        """Returns the value of the last event with that key, or None."""
        return self.timeline.fact(key)

    @property
    def targets(self) -> list[tuple[str, float]]:
        """The targets the run set itself: metrics and values, error rates as fractions."""
        return [(str(metric), float(value)) for metric, value in self.fact("targets") or []]

    @property
    def target_window(self) -> int | None:
        """How many evaluations' median meets the run's targets by its own rule; None: unknown."""
        rule = str((self.comparability or {}).get("target_rule"))
        known = re.fullmatch(r"median of (\d+) epochs", rule)
        return int(known[1]) if known else None

    @property
    def declared_metrics(self) -> dict[str, dict[str, Any]]:
        """The run's own metrics, see `tfasr.tta.metrics`."""
        return self.fact("metrics") or {}

    @property
    def comparability(self) -> dict[str, Any] | None:
        """What makes the run's results comparable, or None if unknown."""
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
        """Returns a metric over a policy's clock, a point for each evaluation that counts."""
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

    def loss_curve(self) -> LossCurve:
        """Returns the training loss of each step that was not lost."""
        line, steps = self.timeline, self.timeline.steps
        numbers = [line.metadata[index].get("step", math.nan) for index in steps.indices]
        elapsed_s = (steps.at_us - line.zero_us) / 1e6
        return LossCurve(np.array(numbers, dtype=float), elapsed_s, steps.column("loss"))

    def throughput(self, warmup_steps: int = WARMUP_STEPS) -> Throughput:
        """Returns the steady speed, see `tfasr.tta.decomposition`."""
        return throughput(self.timeline, warmup_steps=warmup_steps)

    def time_to_accuracy(
        self, *, policy: str | Policy = PAPER, window: int | None = None, **target: float
    ) -> TimeToAccuracy:
        """Returns when the run met a target, as in ``run.time_to_accuracy(cer=0.10)``.

        Args:
            policy: the clock and the rule, or their name, see `tfasr.tta.policies`.
            window: how many evaluations' median must meet the target; by default the policy's.
            **target: one metric and its value; error rates are fractions.

        Raises:
            UsageError: unless there is one target that can be reached, and the policy is known.
        """
        metric, value = _one_target("time_to_accuracy", target)
        clock = policy_named(policy)
        points = self.accuracy_curve(metric, clock)
        window = clock.window if window is None else window
        return first_sustained(points, value, metric=metric, window=window)

    def explain(
        self, *, policy: str | Policy = PAPER, window: int | None = None, **target: float
    ) -> Explanation:
        """Explains a time to accuracy, as in ``print(run.explain(cer=0.10))``, event by event.

        Takes and raises what `time_to_accuracy` does.
        """
        metric, value = _one_target("explain", target)
        clock = policy_named(policy)
        window = clock.window if window is None else window
        names = {"run": self.name, "path": self.path}
        return explain(self.timeline, value, metric=metric, policy=clock, window=window, **names)

    @property
    def config(self) -> str | None:
        """The configuration as written, gin's text; None if it was not saved."""
        return _text(self.path / GIN_GIVEN_FILE, _REMEDY_CONFIG)

    @property
    def operative_config(self) -> str | None:
        """The configuration as used, gin's text; None if it was not saved."""
        return _text(self.path / GIN_OPERATIVE_FILE, _REMEDY_CONFIG)

    @property
    def system(self) -> dict[str, Any]:
        """Facts about the machine from ``run.json``; {} if they were not saved."""
        path = self.path / RUN_FILE
        if not path.is_file():
            return {}
        facts = read_object(path, _REMEDY)
        system = facts.get("system")
        packages = system.get("packages") if isinstance(system, dict) else None
        if not isinstance(system, dict | None) or not isinstance(packages, dict | None):
            raise UsageError(f"{path} must hold objects as system and its packages. {_REMEDY}")
        return facts

    @property
    def hypotheses(self) -> list[Path]:
        """The files with the evaluations' hypotheses, sorted by name."""
        return sorted((self.path / HYPOTHESES_FOLDER).glob("*.jsonl"))

    def utilisation(self, device: str = "cpu") -> dict[str, np.ndarray]:
        """Returns the columns of ``cpu.csv`` or ``gpu.csv`` as floats, ``time_ms`` among them; {}
        without it.
        """
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
        """Returns the accuracy curve, a row for each evaluation that counts.

        Columns ``epoch``, ``elapsed_s`` by the policy's clock, and metrics, rates as fractions.
        """
        rows: dict[int, dict[str, float]] = {}
        for metric in METRICS:
            for point in self.accuracy_curve(metric, policy):
                row = rows.setdefault(point.epoch, {"epoch": point.epoch})
                row |= {"elapsed_s": point.elapsed_s, metric: point.value}
        return dataframe(list(rows.values()), ["epoch", "elapsed_s"])

    def steps_to_dataframe(self) -> "pd.DataFrame":
        """Returns the training steps that count, a row each.

        Columns ``step``, ``epoch``, ``elapsed_s`` (since the model's creation), and what the ledger
        has of a step, such as ``loss`` and ``train_s``.
        """
        rows = []
        line = self.timeline
        for index in line.steps.indices:
            where, value = line.metadata[index], self.events[index].get("value")
            stats = value if isinstance(value, dict) else {}
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
        raise UsageError(f"Nothing was evaluated by {metric!r}. Evaluated: {known}.")
    return metric


def _one_target(method: str, target: dict[str, float]) -> tuple[str, float]:
    if len(target) != 1:
        raise UsageError(
            f"{method} must be given one target, such as cer=0.10. Received: {target}."
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
    """Returns the targets that a run's ledger states last, without reading the rest of it."""
    try:
        return [(str(metric), float(value)) for metric, value in last_value(path, "targets") or []]
    except (OSError, TypeError, ValueError, OverflowError, RecursionError):
        return []  # reading the rest will say what is wrong


def read_metrics(path: str | Path) -> dict[str, dict[str, Any]]:
    """Returns the metrics that a run's ledger declares, without reading the rest of it."""
    try:
        metrics = last_value(path, "metrics")
    except (OSError, ValueError, RecursionError):
        return {}  # reading the rest will say what is wrong
    if not isinstance(metrics, dict):
        return {}
    return metrics if all(isinstance(fields, dict) for fields in metrics.values()) else {}


def load_run(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder; only its ``events.jsonl`` is required.

    ``path`` is the ``--run_dir`` of ``tfasr train``, ``name`` the run's name in reports, by default
    the folder's. Raises UsageError if the folder does not exist, or its ledger is missing, empty or
    broken.
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
                f"A ledger must hold events. {path / EVENTS_FILE} holds none: the run has not "
                "begun."
            )
        name = name or path.resolve().name
        run = Run(path, name, ledger.events, ledger.cut, ledger_hash=ledger.chain)
        wrong = wrong_value(run.timeline)
        if wrong is not None:
            index, kind = wrong
            raise ValueError(
                f"The values of a ledger must be of their kind. In line {line_numbers(path)[index]}"
                f" of {path / EVENTS_FILE} {kind}. Leave the run out, or restore the line."
            )
        declare(run.declared_metrics, path)
        _ = run.timeline.clock_us  # an event without a usable time is reported here
        twice = second_writer(run.timeline)
        if twice is not None:
            raise ValueError(
                f"A ledger must be written by one process at a time. In {path / EVENTS_FILE} "
                f"{twice}: its times say nothing of either. Train again into an empty folder."
            )
    except RecursionError as error:
        ledger = path / EVENTS_FILE
        raise UsageError(
            f"Every line of {ledger} must be an event. One is nested too deeply."
        ) from error
    except UsageError:
        raise
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise UsageError(str(error) if missing else explained(error)[0]) from error
    except ValueError as error:
        where = "" if str(path) in str(error) else f"{path / EVENTS_FILE}: "
        raise UsageError(f"{where}{error}") from error
    return run
