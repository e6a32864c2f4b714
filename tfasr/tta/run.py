"""A finished or growing run, read from its folder.

`load_run` checks a ledger and returns a `Run`, from which everything else about it is
asked: times to accuracy, curves, throughput, the machine and its samples.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.display.chart import Axis, Chart, Mark, Panel, Rule, curve, run_colour
from tfasr.display.table import dataframe, html_table
from tfasr.errors import UsageError, explained
from tfasr.kit import files
from tfasr.ledger.events import last_value, read_ledger
from tfasr.ledger.intervals import Event
from tfasr.ledger.schema import TargetRule, TrainStep
from tfasr.ledger.timeline import Timeline, second_writer, wrong_value
from tfasr.tta import policies
from tfasr.tta.decomposition import WARMUP_STEPS, Throughput, throughput
from tfasr.tta.explain import Explanation, line_numbers
from tfasr.tta.metrics import HIGHER, Metrics, Target, check_target, metric_named
from tfasr.tta.policies import PAPER, AccuracyPoint, Policy, TimeToAccuracy

if TYPE_CHECKING:
    import pandas as pd

    from tfasr.display.vega import Drawing

# The columns of `Run.steps_to_dataframe`.
_STEP_FIELDS = [field.name for field in dataclasses.fields(TrainStep)]

# What to do about a file that can't be read, at the end of messages.
_REMEDY = "Delete the file to report without the machine's facts."
_REMEDY_CONFIG = (
    "Bring the file back, or delete it to report without the configuration."
)
_REMEDY_SAMPLES = "Delete the file to report without its samples."


@dataclass(frozen=True, eq=False)
class Run:
    """A run's ledger and the other files in its folder.

    Example:
        ::

            run = tfasr.load_run("runs/small")
            minutes = run.time_to_accuracy(cer=0.10).minutes
            print(run.explain(cer=0.10, policy="mlperf"))

    Attributes:
        path: the run's folder.
        name: its name in reports; the folder's name, unless two runs of a report share
            it.
        events: the ledger's events in file order.
        cut: whether a crash cut off the ledger's last line, which is missing here.
        ledger_hash: the hash in the ledger's last line, which covers all; None for
            other programs' logs, whose lines have none.
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
        """Seconds from the model's creation to each event, see `Timeline.elapsed_s`."""
        return self.timeline.elapsed_s

    @property
    def wall_s(self) -> float:
        """Wall-clock seconds of all sessions together.

        Each begins at the creation of its process, if known.
        """
        return self.timeline.wall_s

    @cached_property
    def intervals(self) -> dict[str, float]:
        """Seconds per interval, see `tfasr.ledger.intervals.INTERVALS`."""
        return self.timeline.interval_seconds()

    def intervals_until(self, until_s: float) -> dict[str, float]:
        """Returns seconds per interval in the beginning of a run.

        Args:
            until_s: seconds after the model's creation.
        """
        return self.timeline.interval_seconds(until_s)

    def fact(self, key: str) -> Any:
        """Returns the value of the last event with a key, or None.

        Example:
            ::

                batch = run.fact("global_batch_size")
        """
        return self.timeline.fact(key)

    @property
    def targets(self) -> list[tuple[str, float]]:
        """The targets in the run's configuration: metric and value.

        Error rates are fractions.
        """
        targets = self.fact("targets") or []
        return [(str(metric), float(value)) for metric, value in targets]

    @property
    def target_window(self) -> int | None:
        """Over how many epochs the median must meet the targets; None if unknown."""
        rule = self.timeline.last(TargetRule)
        if rule is None:
            return None

        return rule.window

    @property
    def declared_metrics(self) -> dict[str, dict[str, Any]]:
        """The run's own metrics, as its ledger states them."""
        return self.fact("metrics") or {}

    @cached_property
    def metrics(self) -> Metrics:
        """The registered metrics and the run's own.

        Raises:
            UsageError: if the run gives another meaning to a registered name.
        """
        return Metrics.of(self.declared_metrics, self.path)

    @property
    def comparability(self) -> dict[str, Any] | None:
        """What must be equal for results to be comparable, or None if unknown.

        These are, for example, the hashes of the validation split and its texts, the
        alphabet and the decoder.
        """
        return self.fact("comparability")

    @property
    def sessions(self) -> int:
        """The number of processes that wrote the run."""
        return max(1, len(self.timeline.of("session_start")))

    @property
    def status(self) -> str:
        """How the run ended: "success", "aborted" or "interrupted".

        It is "unfinished" if it goes on, was killed, or the log doesn't say it.
        """
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
        """Returns a metric over a policy's clock.

        It has a point for each evaluation that the policy counts.

        Args:
            metric: "cer", "wer" or another key of ``tracked_stats``.
            policy: a clock policy or its name.

        Raises:
            UsageError: for an unknown policy.
        """
        clock = policies.policy_named(policy)
        key = (metric, clock)
        if key not in self._curves:
            self._curves[key] = clock.curve(self.timeline, metric)

        return self._curves[key]

    def plot(self, metric: str = "") -> "Drawing":
        """Draws a metric over time; notebooks show the result.

        Args:
            metric: its name; by default that of the first target.

        Raises:
            UsageError: if no evaluation has the metric.
        """
        from tfasr.display.vega import Drawing  # here: drawing is slow to load

        evaluated = [name for name in self.metrics if self.accuracy_curve(name)]
        metric = to_plot(metric, self.targets, evaluated)
        kind = metric_named(metric, self.metrics)
        label = kind.label or metric.replace("_", " ")
        scale = 1
        title = label
        if kind.rate:
            scale = 100
            title = f"{label}, %"

        points = self.accuracy_curve(metric)
        minutes = [point.elapsed_s / 60 for point in points]
        values = [scale * point.value for point in points]
        marks: list[Mark] = [
            Rule(value=scale * value, label=f"{scale * value:.4g}")
            for name, value in self.targets
            if name == metric
        ]
        marks += curve(minutes, values, run_colour(0), self.name)

        # With some room to the right of the last point.
        x = Axis(
            "minutes since the creation of the model", limits=(0.0, 1.03 * minutes[-1])
        )
        y = Axis(title, log=kind.better != HIGHER and min(values) > 0)
        panel = Panel(marks, x, y)
        return Drawing(Chart(metric, f"{label} of {self.name}", [panel]))

    def throughput(self, warmup_steps: int = WARMUP_STEPS) -> Throughput:
        """Returns the steady speed, see `tfasr.tta.decomposition.Throughput`.

        Args:
            warmup_steps: how many first steps of each session to leave out.
        """
        return throughput(self.timeline, warmup_steps=warmup_steps)

    def time_to_accuracy(
        self,
        *,
        policy: str | Policy = PAPER,
        window: int | None = None,
        **target: float,
    ) -> TimeToAccuracy:
        """Returns when the run reached a target, as in ``run.time_to_accuracy(cer=0.10)``.

        Args:
            policy: a clock policy or its name, see `tfasr.tta.policies`.
            window: over how many evaluations to take the median; by default the
                policy's.
            **target: one metric and its value; error rates are fractions.

        Raises:
            UsageError: for an unknown policy, an impossible target, or not exactly
                one.
        """
        metric, value = self._one_target("time_to_accuracy", target)
        clock = policies.policy_named(policy)
        if window is None:
            window = clock.window

        return policies.first_sustained(
            self.accuracy_curve(metric, clock),
            value,
            metric=metric,
            window=window,
            metrics=self.metrics,
        )

    def explain(
        self,
        *,
        policy: str | Policy = PAPER,
        window: int | None = None,
        **target: float,
    ) -> Explanation:
        """Explains a time to accuracy event by event, as in ``print(run.explain(cer=0.10))``.

        Arguments and errors are those of `time_to_accuracy`.
        """
        metric, value = self._one_target("explain", target)
        clock = policies.policy_named(policy)
        result, bracket = clock.time_to_accuracy(
            self.timeline, value, metric=metric, window=window, metrics=self.metrics
        )
        return Explanation(
            run=self.name,
            timeline=self.timeline,
            lines=line_numbers(self.path),
            policy=clock,
            kind=self.metrics[metric],
            readings=clock.readings(self.timeline, metric),
            result=result,
            bracket=bracket,
        )

    def _one_target(self, method: str, target: dict[str, float]) -> Target:
        """Returns the only target of a method's keyword arguments, checked.

        Args:
            method: the method's name, for the message.
            target: the keyword arguments.
        """
        if len(target) != 1:
            raise UsageError(
                f"{method} needs exactly one target, such as cer=0.10. "
                f"Received: {target}."
            )

        [(metric, value)] = target.items()
        return check_target(metric, value, self.metrics)

    @property
    def config(self) -> str | None:
        """The configuration as written (gin), or None if it was not saved."""
        return _text(self.path / files.GIN_GIVEN_FILE, _REMEDY_CONFIG)

    @property
    def operative_config(self) -> str | None:
        """The configuration in effect (gin), or None if it was not saved."""
        return _text(self.path / files.GIN_OPERATIVE_FILE, _REMEDY_CONFIG)

    @property
    def system(self) -> dict[str, Any]:
        """The machine's facts from ``run.json``, or {} if they were not saved.

        Raises:
            UsageError: if the file is damaged.
        """
        path = self.path / files.RUN_FILE
        if not path.is_file():
            return {}

        facts = files.read_object(path, _REMEDY)
        # Reports rely on these two being objects.
        system = facts.get("system")
        if system is None:
            system = {}
        if not isinstance(system, dict) or not isinstance(
            system.get("packages"), dict | None
        ):
            raise UsageError(
                f"system and its packages in {path} must be JSON objects. {_REMEDY}"
            )

        return facts

    @property
    def hypotheses(self) -> list[Path]:
        """The files with the evaluations' hypotheses, sorted by name."""
        return sorted((self.path / files.HYPOTHESES_FOLDER).glob("*.jsonl"))

    def utilisation(self, device: str = "cpu") -> dict[str, np.ndarray]:
        """Returns the samples of a device, by column.

        Args:
            device: "cpu" or "gpu", of ``cpu.csv`` and ``gpu.csv``.

        Returns:
            Each column as floats, NaN where a sample lacks it; {} if the file is
            missing.
        """
        text = _text(self.path / f"{device}.csv", _REMEDY_SAMPLES)
        if text is None or not text.strip():
            return {}

        # A killed process leaves its last line incomplete.
        heading, *lines = text.splitlines()
        names = heading.split(",")
        complete = [line for line in lines if line.count(",") == len(names) - 1]
        if not complete:
            return {name: np.zeros(0) for name in names}

        # Samples every 0.03 s make long files: the fast reader first, then the tolerant
        # one.
        try:
            rows = np.loadtxt(complete, delimiter=",", ndmin=2, comments=None)
        except ValueError:
            rows = np.array([list(map(_float, line.split(","))) for line in complete])

        return dict(zip(names, rows.T, strict=True))

    def to_dataframe(self, policy: str | Policy = PAPER) -> "pd.DataFrame":
        """Returns the accuracy curve, one row per evaluation that counts.

        Columns: ``epoch``, ``elapsed_s`` by the policy's clock, and metrics (rates as
        fractions).
        """
        rows: dict[int, dict[str, float]] = {}
        for metric in self.metrics:
            for point in self.accuracy_curve(metric, policy):
                row = rows.setdefault(point.epoch, {"epoch": point.epoch})
                row["elapsed_s"] = point.elapsed_s
                row[metric] = point.value

        return dataframe(list(rows.values()), ["epoch", "elapsed_s"])

    def steps_to_dataframe(self) -> "pd.DataFrame":
        """Returns the training steps without lost work, one row each.

        Columns: ``step``, ``epoch``, ``elapsed_s`` (since the model's creation) and the
        step's values in the ledger, such as ``loss`` and ``train_s``.
        """
        rows = []
        line = self.timeline
        for index, stats in zip(line.steps.indices, line.steps.values, strict=True):
            row = {
                "step": line.metadata[index].get("step"),
                "epoch": line.metadata[index].get("epoch_num"),
                "elapsed_s": line.elapsed_s[index],
            }
            row |= {name: stats.get(name) for name in _STEP_FIELDS}
            rows.append(row)

        return dataframe(rows, ["step", "epoch", "elapsed_s", *_STEP_FIELDS])

    def _repr_html_(self) -> str:
        """Returns a table of the run's state, times to its targets and intervals.

        Notebooks show it for a run.
        """
        total_s = math.fsum(self.intervals.values())
        targets = ", ".join(f"{metric} {value:g}" for metric, value in self.targets)
        rows = [
            ["status", self.status],
            ["sessions", str(self.sessions)],
            ["wall", f"{total_s:.1f} s"],
            ["targets", targets or "none"],
        ]
        for metric, value in self.targets:
            reached = self.time_to_accuracy(**{metric: value})
            rows.append([f"time to {metric} {value:g}", reached.summary])

        for name, seconds in self.intervals.items():
            if seconds:
                share = f"{seconds:.1f} s, {100 * seconds / total_s:.1f} %"
                rows.append([name.replace("_", " "), share])

        return html_table(["", ""], rows, self.name)


def to_plot(metric: str, targets: Sequence[Target], evaluated: Sequence[str]) -> str:
    """Returns the metric to draw; raises UsageError unless it was evaluated.

    Args:
        metric: the one that the user wants, or "".
        targets: the run's targets, the first of which is the default.
        evaluated: the metrics that the run has, the next default.
    """
    if not metric:
        defaults = [*(name for name, _ in targets), *evaluated, "cer"]
        metric = defaults[0]

    if metric not in evaluated:
        metric_names = ", ".join(evaluated) or "nothing yet"
        raise UsageError(
            f"No evaluation has the metric {metric!r}. Evaluated: {metric_names}."
        )

    return metric


def _text(path: Path, remedy: str) -> str | None:
    """Returns a file's text; None if it is missing.

    Args:
        path: the file.
        remedy: what to do if it can't be read, for the message.
    """
    if not path.is_file():
        return None

    return files.read_text(path, remedy)


def _float(cell: str) -> float:
    """Returns a cell as a number; NaN if it is empty or something else."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def read_targets(path: str | Path) -> list[tuple[str, float]]:
    """Returns the last targets in a run's ledger without parsing the rest.

    It returns [] if the ledger can't be read.
    """
    try:
        return [(metric, value) for metric, value in last_value(path, "targets") or []]
    except (OSError, ValueError, RecursionError):
        return []  # reading the rest will report the error


def read_metrics(path: str | Path) -> dict[str, dict[str, Any]]:
    """Returns the metrics that a run's ledger declares, without parsing the rest.

    It returns {} if the ledger can't be read.
    """
    try:
        return last_value(path, "metrics") or {}
    except (OSError, ValueError, RecursionError):
        return {}  # reading the rest will report the error


def load_run(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder, of which only ``events.jsonl`` is required.

    Args:
        path: the ``--run_dir`` of ``tfasr train``.
        name: the run's name in reports, by default the folder's.

    Raises:
        UsageError: if its folder or ledger is missing, empty or broken.
    """
    path = Path(path)
    events_file = path / files.EVENTS_FILE
    try:
        return _checked_run(path, name)
    except RecursionError as error:
        text = f"A line of {events_file} is not an event: it is nested too deeply."
        raise UsageError(text) from error
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(explained(error)[0]) from error
    except ValueError as error:
        text = str(error)
        if str(path) not in text:
            text = f"{events_file}: {text}"

        raise UsageError(text) from error


def _checked_run(path: Path, name: str | None) -> Run:
    """Reads a run and whatever its reports rely on.

    Raises what reading raises, and UsageError or ValueError, which may leave out the
    file.
    """
    if not path.is_dir():
        received = "is a file" if path.exists() else "does not exist"
        raise UsageError(
            f"A run must be a folder that tfasr train wrote. Received: {path}, which "
            f"{received}."
        )

    events_file = path / files.EVENTS_FILE
    ledger = read_ledger(path)
    if not ledger.events:
        raise ValueError(
            f"The ledger {events_file} has no events: the run hasn't started yet."
        )

    run = Run(
        path=path,
        name=name or path.resolve().name,
        events=ledger.events,
        cut=ledger.cut,
        ledger_hash=ledger.chain,
    )
    wrong = wrong_value(run.timeline)
    if wrong is not None:
        index, kind = wrong
        raise ValueError(
            f"In line {line_numbers(path)[index]} of {events_file} {kind}. Leave the run "
            "out, or restore the line."
        )

    _ = run.metrics  # reports one that is described wrongly
    _ = run.timeline.clock_us  # reports an event without a usable time
    twice = second_writer(run.timeline)
    if twice is not None:
        raise ValueError(
            f"Two processes wrote {events_file} at once ({twice}), so its times can't be "
            "trusted. Train again into an empty folder."
        )

    return run
