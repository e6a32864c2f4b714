"""A finished or growing run, read from its folder."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.display.chart import Axis, Chart, Mark, Panel, Rule, curve, run_colour
from tfasr.display.table import (
    Column,
    Table,
    dataframe,
    fixed,
    html_table,
    table_of,
    to_text,
    values_of,
)
from tfasr.errors import UsageError, explained
from tfasr.kit import files
from tfasr.ledger.events import last_value, read_ledger
from tfasr.ledger.intervals import Event, evaluated_epoch
from tfasr.ledger.schema import TargetRule
from tfasr.ledger.timeline import Timeline, second_writer, wrong_value
from tfasr.tta import policies
from tfasr.tta.decomposition import WARMUP_STEPS, Throughput, throughput
from tfasr.tta.metrics import (
    HIGHER,
    Metric,
    Metrics,
    Target,
    check_target,
    metric_named,
)
from tfasr.tta.policies import (
    PAPER,
    AccuracyPoint,
    Bracket,
    EvaluationReading,
    Policy,
    TimeToAccuracy,
)

if TYPE_CHECKING:
    import pandas as pd

    from tfasr.display.vega import Drawing

_STEP_FIELDS = (
    "loss", "utterances", "audio_s", "frames", "padded_frames", "input_wait_s", "compile_s",
    "train_s",
)  # fmt: skip
_REMEDY = "Delete the file to report without the machine's facts."
_REMEDY_CONFIG = (
    "Bring the file back, or delete it to report without the configuration."
)
_REMEDY_SAMPLES = "Delete the file to report without its samples."
_CLOCK_TEXT = fixed(3)


@dataclass(frozen=True)
class Reason:
    """One line of an explanation, and the event behind it."""

    kind: str  # "start", "left out", "evaluation", "bracket" or "result"
    text: str
    clock_s: float | None  # the policy's clock at the event; None for time left out
    event: int | None  # its index among the run's events, from 0
    # Its line in ``events.jsonl``, from 1; None for other programs' logs.
    line: int | None
    key: str | None
    time_ms: float | None  # wall clock of the event, since 1970
    seconds: float | None = None  # time left out


_COLUMNS: list[Column[Reason]] = [
    Column("how the time came about", "text", lambda reason: reason.text),
    Column(
        "clock\ns", "clock_s", lambda reason: reason.clock_s, _CLOCK_TEXT, missing=""
    ),
    Column("line", "line", lambda reason: reason.line, missing=""),
    Column("event", "key", lambda reason: reason.key, missing=""),
    Column(
        "at\nms since 1970",
        "time_ms",
        lambda reason: reason.time_ms,
        fixed(0),
        missing="",
    ),
    Column("", "kind", lambda reason: reason.kind),
    Column("", "left_out_s", lambda reason: reason.seconds),
]


@dataclass(frozen=True)
class Explanation:
    """A run's time to a target, and the evaluations and rules behind it.

    Shown by ``print``.
    """

    run: str
    policy: Policy
    result: TimeToAccuracy
    bracket: Bracket
    reasons: list[Reason]
    kind: Metric  # of the target

    def table(self) -> Table:
        target = _value(self.kind, self.result.target)
        window = self.result.window
        title = f"{self.run}: time to {self.kind.label or self.result.metric} {target}"
        notes = [f"The rule: {self.policy.rule}. Source: {self.policy.source}."]
        if window != self.policy.window:
            notes.append(
                f"The window was set to {window} instead of {self.policy.window}."
            )

        return table_of(
            f"{title}, policy {self.policy.name}", _COLUMNS, self.reasons, notes
        )

    def to_json(self) -> dict[str, Any]:
        names = ("metric", "target", "window", "seconds", "epoch")
        return {
            "run": self.run,
            "policy": self.policy.name,
            **{name: getattr(self.result, name) for name in names},
            **asdict(self.bracket),
            "reasons": [values_of(_COLUMNS, reason) for reason in self.reasons],
        }

    def __str__(self) -> str:
        return to_text([self.table()])

    def _repr_html_(self) -> str:
        table = self.table()
        return html_table(table.columns, table.rows, table.title)


def line_numbers(path: Path) -> list[int] | None:
    """Returns the line of each event in a run's ledger, from 1; None if it has no ledger."""
    ledger = path / files.EVENTS_FILE
    if not ledger.is_file():
        return None
    lines = files.read_bytes(ledger).split(b"\n")
    return [number for number, line in enumerate(lines, start=1) if line.strip()]


@dataclass(frozen=True)
class _Evidence:
    timeline: Timeline
    policy: Policy
    times_s: list[float]
    lines: list[int] | None
    kind: Metric  # of the target

    def reason(
        self, kind: str, text: str, index: int | None, *, seconds: float | None = None
    ) -> Reason:
        if index is None:
            return Reason(kind, text, None, None, None, None, None, seconds)
        event = self.timeline.events[index]
        clock_s = self.times_s[index] if seconds is None else None
        place = (index, self.line(index), event["key"], event["time_ms"])
        return Reason(kind, text, clock_s, *place, seconds)

    def line(self, index: int) -> int | None:
        return self.lines[index] if self.lines and index < len(self.lines) else None


def _start(evidence: _Evidence) -> Iterator[Reason]:
    policy = evidence.policy
    if not evidence.timeline.events:
        yield evidence.reason("start", "the ledger is empty", None)
        return

    index = policy.start_index(evidence.timeline)
    if index is None:
        age_s = evidence.times_s[0]
        unknown = "at the first event (its creation time is unknown)"
        began = f"{age_s:.3f} s before this event" if age_s else unknown
        yield evidence.reason(
            "start", f"the clock starts: the process began {began}", 0
        )
        return

    key = evidence.timeline.keys[index]
    instead = "" if key == policy.start else f", because the log has no {policy.start}"
    yield evidence.reason("start", f"the clock starts{instead}", index)
    before_s = evidence.timeline.clock_us[index] / 1e6
    if before_s:
        text = f"left out: {before_s:.3f} s before the clock's start"
        yield evidence.reason("left out", text, index, seconds=before_s)


def _evaluations(
    evidence: _Evidence, readings: list[EvaluationReading], result: TimeToAccuracy
) -> Iterator[Reason]:
    kind = evidence.kind
    label = kind.label or result.metric
    window = policies.evaluations_in(
        result.window, evidence.timeline.evaluations_per_epoch
    )
    middles = [None] * (window - 1) + list(
        policies.medians([reading.value for reading in readings], window, kind.worst)
    )
    for reading, median in zip(readings, middles, strict=False):
        text = f"epoch {reading.epoch}: {label} {_value(kind, reading.value)}"
        if reading.scored is not None and reading.scored != reading.index:
            line = evidence.line(reading.scored)
            text += f" (event {reading.scored})" if line is None else f" (line {line})"

        if median is None:
            text += f", too early for the median of {window}"
        else:
            if window > 1:
                ruling = f"median of {window} is {_value(kind, median)}, "
            else:
                ruling = ""

            met = kind.met(median, result.target)
            text += f", {ruling}{'meets' if met else 'misses'} {_value(kind, result.target)}"

        yield evidence.reason("evaluation", text, reading.index)


def _lost_evaluations(evidence: _Evidence, metric: str) -> Iterator[Reason]:
    line = evidence.timeline
    for index in line.of("tracked_stats"):
        if not line.useful[index] and metric in policies.scores_at(line, index):
            epoch = evaluated_epoch(line.metadata[index])
            text = f"left out: the evaluation of epoch {epoch}, lost work that was repeated"
            yield evidence.reason("left out", text, index)


def _left_out(evidence: _Evidence, until: int | None) -> Iterator[Reason]:
    line = evidence.timeline
    policy = evidence.policy
    if until is None:
        return
    for session in line.sessions[1:]:
        if session.start <= until:
            first = line.events[session.start]
            last = line.events[session.start - 1]
            apart_s = (first["time_ms"] - last["time_ms"]) / 1e3
            counted_s = (
                line.clock_us[session.start] - line.clock_us[session.start - 1]
            ) / 1e6
            text = f"left out: {max(0.0, apart_s - counted_s):.3f} s of downtime before a session"
            yield evidence.reason("left out", text, session.start)

    start = policy.start_index(line)
    start_us = 0 if start is None else line.clock_us[start]
    stop_us = line.clock_us[until]
    within = policy.counts_evaluation
    stood_still = line.stood_still(
        policy.excluded, within_evaluation=within, start_us=start_us, stop_us=stop_us
    )
    stood_still_s = math.fsum(seconds for seconds, _, _ in stood_still.values())
    passed_s = (stop_us - start_us) / 1e6 - stood_still_s
    if abs(passed_s - evidence.times_s[until]) > 1e-3:
        text = "this policy computes its clock with its own code; intervals can't be listed"
        yield evidence.reason("left out", text, until)
        return

    for name, (seconds, pieces, index) in stood_still.items():
        where = " within evaluations" if name == "overhead" else ""
        if pieces == 1:
            last = "which ends here"
        else:
            last = f"{pieces} pieces, the last one ends here"

        text = f"left out, because {policy.name} doesn't count it: {seconds:.3f} s of {name}{where}"
        text += f", {last}"
        yield evidence.reason("left out", text, index, seconds=seconds)


def _conclusion(
    evidence: _Evidence,
    readings: list[EvaluationReading],
    hit: int | None,
    limits: Bracket,
    result: TimeToAccuracy,
) -> Iterator[Reason]:
    def at(seconds: float) -> int | None:
        read = (r.index for r in readings if evidence.times_s[r.index] <= seconds)
        return max(read, default=None)

    if result.window > 1:
        about = f", by the median of the {result.window} around it"
    else:
        about = ""

    miss = at(limits.last_miss_s) if limits.last_miss_s > 0 else None
    if miss is not None:
        yield evidence.reason(
            "bracket", f"the last evaluation that misses{about}", miss
        )

    if hit is None:
        if readings:
            reason = f"longer than {limits.read_s:.3f} s"
        else:
            reason = "no evaluation counts"

        last = readings[-1].index if readings else None
        yield evidence.reason("result", f"never: {reason}", last)
        return

    index = readings[hit].index
    ends = f"{limits.last_miss_s:.3f} and {limits.first_hit_s:.3f} s"
    text = f"the curve crosses the target between {ends}"
    if limits.interpolated_s is not None:
        text += f"; a straight line crosses it at {limits.interpolated_s:.3f} s"
    if limits.read_s > limits.first_hit_s:
        text += f"; the rule is met {limits.read_s - limits.first_hit_s:.3f} s later"
    yield evidence.reason("bracket", text, at(limits.first_hit_s))
    later = len(readings) - 1 - hit
    ignored = f"; {later} later evaluations change nothing" if later else ""
    rule = (
        f"{_CLOCK_TEXT(result.seconds or 0.0)} s by the policy {evidence.policy.name}"
    )
    yield evidence.reason("result", f"{rule}, at epoch {result.epoch}{ignored}", index)


def _value(kind: Metric, value: float) -> str:
    return f"{100 * value:.4g} %" if kind.rate else f"{value:.5g}"


@dataclass(frozen=True, eq=False)
class Run:
    """A run's ledger and the other files in its folder.

    Attributes:
        path: the run's folder.
        name: its name in reports; the folder's name, unless two runs of a report share
            it.
        events: the ledger's events in file order.
        cut: whether a crash cut off the ledger's last line, which is missing here.
        ledger_hash: the hash in the ledger's last line, which covers all; None from an
            older tfasr.
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
        """Wall-clock seconds of all sessions, each from the creation of its process if
        known.
        """
        return self.timeline.wall_s

    @cached_property
    def intervals(self) -> dict[str, float]:
        """Seconds per interval, see `tfasr.ledger.intervals.INTERVALS`."""
        return self.timeline.interval_seconds()

    def intervals_until(self, until_s: float) -> dict[str, float]:
        """Returns seconds per interval up to ``until_s`` seconds after the model's
        creation.
        """
        return self.timeline.interval_seconds(until_s)

    def fact(self, key: str) -> Any:
        """Returns the value of the last event with a key, or None."""
        return self.timeline.fact(key)

    @property
    def targets(self) -> list[tuple[str, float]]:
        """The targets in the run's configuration: metric and value, error rates as
        fractions.
        """
        return [
            (str(metric), float(value)) for metric, value in self.fact("targets") or []
        ]

    @property
    def target_window(self) -> int | None:
        """The number of evaluations whose median must meet the targets; None if unknown."""
        rule = self.timeline.last(TargetRule)
        return None if rule is None else rule.window

    @property
    def declared_metrics(self) -> dict[str, dict[str, Any]]:
        """The run's own metrics, as its ledger states them."""
        return self.fact("metrics") or {}

    @cached_property
    def metrics(self) -> Metrics:
        """The registered metrics and the run's own; UsageError if they contradict."""
        return Metrics.of(self.declared_metrics, self.path)

    @property
    def comparability(self) -> dict[str, Any] | None:
        """What must be equal for results to be comparable, or None if unknown."""
        return self.fact("comparability")

    @property
    def sessions(self) -> int:
        """The number of processes that wrote the run."""
        return max(1, len(self.timeline.of("session_start")))

    @property
    def status(self) -> str:
        """How the run ended: "success", "aborted", "interrupted", or "unfinished" if
        unknown.
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
        """Returns a metric over a policy's clock: a point per evaluation that the
        policy counts.
        """
        key = (metric, policies.policy_named(policy))
        if key not in self._curves:
            self._curves[key] = key[1].curve(self.timeline, metric)
        return self._curves[key]

    def plot(self, metric: str = "") -> "Drawing":
        """Draws a metric over time, by default that of the first target; notebooks show
        the result.

        Raises UsageError if no evaluation has the metric.
        """
        from tfasr.display.vega import Drawing  # here: drawing is slow to load

        evaluated = [name for name in self.metrics if self.accuracy_curve(name)]
        metric = to_plot(metric, self.targets, evaluated)
        points = self.accuracy_curve(metric)
        kind = metric_named(metric, self.metrics)
        scale, unit = (100, ", %") if kind.rate else (1, "")
        marks: list[Mark] = [
            Rule(value=scale * value, label=f"{scale * value:.4g}")
            for name, value in self.targets
            if name == metric
        ]
        x = [p.elapsed_s / 60 for p in points]
        y = [scale * p.value for p in points]
        marks += curve(x, y, run_colour(0), self.name)
        label = kind.label or metric.replace("_", " ")
        log = kind.better != HIGHER and min(y) > 0
        minutes = Axis(
            "minutes since the creation of the model", limits=(0.0, 1.03 * x[-1])
        )
        panel = Panel(marks, minutes, Axis(f"{label}{unit}", log=log))
        return Drawing(Chart(metric, f"{label} of {self.name}", [panel]))

    def throughput(self, warmup_steps: int = WARMUP_STEPS) -> Throughput:
        """Returns the steady speed, see `tfasr.tta.decomposition`."""
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
        kind = self.metrics[metric]
        line = self.timeline
        clock = policies.policy_named(policy)
        readings = clock.readings(line, metric)
        result, limits = clock.time_to_accuracy(
            line, value, metric=metric, window=window, metrics=self.metrics
        )
        evidence = _Evidence(
            line, clock, clock.times_s(line), line_numbers(self.path), kind
        )
        hit = next(
            (n for n, reading in enumerate(readings) if reading.epoch == result.epoch),
            None,
        )
        decisive = len(readings) - 1 if hit is None else hit
        reasons = [
            *_start(evidence),
            *_evaluations(evidence, readings[: decisive + 1], result),
            *_lost_evaluations(evidence, metric),
            *_left_out(evidence, readings[decisive].index if readings else None),
            *_conclusion(evidence, readings, hit, limits, result),
        ]
        return Explanation(self.name, clock, result, limits, reasons, kind)

    def _one_target(self, method: str, target: dict[str, float]) -> Target:
        """Returns the only target of a method's keyword arguments, checked."""
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
        """The machine's facts from ``run.json``, or {} if they were not saved."""
        path = self.path / files.RUN_FILE
        if not path.is_file():
            return {}
        facts = files.read_object(path, _REMEDY)
        system = facts.get("system")
        packages = system.get("packages") if isinstance(system, dict) else None
        if not isinstance(system, dict | None) or not isinstance(packages, dict | None):
            raise UsageError(
                f"system and its packages in {path} must be JSON objects. {_REMEDY}"
            )

        return facts

    @property
    def hypotheses(self) -> list[Path]:
        """The files with the evaluations' hypotheses, sorted by name."""
        return sorted((self.path / files.HYPOTHESES_FOLDER).glob("*.jsonl"))

    def utilisation(self, device: str = "cpu") -> dict[str, np.ndarray]:
        """Returns the columns of ``cpu.csv`` or ``gpu.csv`` as floats, or {} if it is
        missing.
        """
        text = _text(self.path / f"{device}.csv", _REMEDY_SAMPLES)
        if text is None or not text.strip():
            return {}
        heading, *lines = text.splitlines()
        names = heading.split(",")
        complete = [line for line in lines if line.count(",") == len(names) - 1]
        if not complete:
            return {name: np.zeros(0) for name in names}
        try:
            # Samples every 0.03 s make long files: the fast reader first, then the
            # tolerant one.
            rows = np.loadtxt(complete, delimiter=",", ndmin=2, comments=None)
        except ValueError:
            rows = np.array(
                [[_float(cell) for cell in line.split(",")] for line in complete]
            )

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
                row |= {"elapsed_s": point.elapsed_s, metric: point.value}

        return dataframe(list(rows.values()), ["epoch", "elapsed_s"])

    def steps_to_dataframe(self) -> "pd.DataFrame":
        """Returns the training steps without lost work, one row each.

        Columns: ``step``, ``epoch``, ``elapsed_s`` (since the model's creation) and the
        step's values in the ledger, such as ``loss`` and ``train_s``.
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
            "targets": ", ".join(
                f"{metric} {value:g}" for metric, value in self.targets
            )
            or "none",
        }
        for metric, value in self.targets:
            about[f"time to {metric} {value:g}"] = self.time_to_accuracy(
                **{metric: value}
            ).summary

        about |= {
            name.replace("_", " "): f"{seconds:.1f} s, {100 * seconds / total_s:.1f} %"
            for name, seconds in spent.items()
            if seconds
        }
        return html_table(
            ["", ""], [[name, text] for name, text in about.items()], self.name
        )


def to_plot(metric: str, targets: Sequence[Target], evaluated: Sequence[str]) -> str:
    """Returns the metric to draw; raises UsageError unless it was evaluated."""
    metric = metric or [*(name for name, _ in targets), *evaluated, "cer"][0]
    if metric not in evaluated:
        metric_names = ", ".join(evaluated) or "nothing yet"
        raise UsageError(
            f"No evaluation has the metric {metric!r}. Evaluated: {metric_names}."
        )

    return metric


def _text(path: Path, remedy: str) -> str | None:
    return files.read_text(path, remedy) if path.is_file() else None


def _float(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def read_targets(path: str | Path) -> list[tuple[str, float]]:
    """Returns the last targets in a run's ledger without parsing the rest; [] if
    unreadable.
    """
    try:
        return [(metric, value) for metric, value in last_value(path, "targets") or []]
    except (OSError, ValueError, RecursionError):
        return []  # reading the rest will report the error


def read_metrics(path: str | Path) -> dict[str, dict[str, Any]]:
    """Returns the metrics that a run's ledger declares, without parsing the rest."""
    try:
        return last_value(path, "metrics") or {}
    except (OSError, ValueError, RecursionError):
        return {}  # reading the rest will report the error


def load_run(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder, of which only ``events.jsonl`` is required.

    ``path`` is the ``--run_dir`` of ``tfasr train``; ``name`` is the run's name in
    reports, by default the folder's. Raises UsageError if its folder or ledger is
    missing, empty or broken.
    """
    path = Path(path)
    events_file = path / files.EVENTS_FILE
    try:
        if not path.is_dir():
            raise UsageError(
                f"A run must be a folder that tfasr train wrote. Received: {path}, which "
                f"{'is a file' if path.exists() else 'does not exist'}."
            )

        ledger = read_ledger(path)
        if not ledger.events:
            raise ValueError(
                f"The ledger {events_file} has no events: the run hasn't started yet."
            )

        name = name or path.resolve().name
        run = Run(path, name, ledger.events, ledger.cut, ledger_hash=ledger.chain)
        wrong = wrong_value(run.timeline)
        if wrong is not None:
            index, kind = wrong
            raise ValueError(
                f"In line {line_numbers(path)[index]} of {events_file} {kind}. Leave the "
                "run out, or restore the line."
            )

        _ = run.metrics  # reports one that is described wrongly
        _ = run.timeline.clock_us  # reports an event without a usable time
        twice = second_writer(run.timeline)
        if twice is not None:
            raise ValueError(
                f"Two processes wrote {events_file} at once ({twice}), so its times can't "
                "be trusted. Train again into an empty folder."
            )
    except RecursionError as error:
        text = f"A line of {events_file} is not an event: it is nested too deeply."
        raise UsageError(text) from error
    except UsageError:
        raise
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise UsageError(str(error) if missing else explained(error)[0]) from error
    except ValueError as error:
        where = "" if str(path) in str(error) else f"{events_file}: "
        raise UsageError(f"{where}{error}") from error

    return run
