"""Explains a time to accuracy step by step, from the clock's start to the result."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfasr.display.table import Column, Table, fixed, html_table, table_of, to_text, values_of
from tfasr.kit.files import EVENTS_FILE
from tfasr.ledger.intervals import evaluated_epoch
from tfasr.ledger.timeline import Timeline
from tfasr.tta.metrics import metric_named
from tfasr.tta.policies import (
    Bracket,
    Policy,
    Reading,
    TimeToAccuracy,
    evaluations_in,
    medians,
)

_CLOCK_TEXT = fixed(3)


@dataclass(frozen=True)
class Reason:
    """One line of an explanation, and the event behind it."""

    kind: str  # "start", "left out", "evaluation", "bracket" or "result"
    text: str
    clock_s: float | None  # the policy's clock at the event; None for time left out
    event: int | None  # its index among the run's events, from 0
    line: int | None  # its line in ``events.jsonl``, from 1; None for other programs' logs
    key: str | None
    time_ms: float | None  # wall clock of the event, since 1970
    seconds: float | None = None  # time left out


_COLUMNS: list[Column[Reason]] = [
    Column("how the time came about", "text", lambda reason: reason.text),
    Column("clock\ns", "clock_s", lambda reason: reason.clock_s, _CLOCK_TEXT, missing=""),
    Column("line", "line", lambda reason: reason.line, missing=""),
    Column("event", "key", lambda reason: reason.key, missing=""),
    Column("at\nms since 1970", "time_ms", lambda reason: reason.time_ms, fixed(0), missing=""),
    Column("", "kind", lambda reason: reason.kind),
    Column("", "left_out_s", lambda reason: reason.seconds),
]


@dataclass(frozen=True)
class Explanation:
    """A run's time to a target, and the evaluations and rules behind it. Shown by ``print``."""

    run: str
    policy: Policy
    result: TimeToAccuracy
    bracket: Bracket
    reasons: list[Reason]

    def table(self) -> Table:
        target, window = _value(self.result.metric, self.result.target), self.result.window
        changed = window != self.policy.window
        notes = (
            [f"The window was set to {window} instead of {self.policy.window}."] if changed else []
        )
        return table_of(
            f"{self.run}: time to {_label(self.result.metric)} {target}, policy {self.policy.name}",
            _COLUMNS,
            self.reasons,
            [f"The rule: {self.policy.rule}. Source: {self.policy.source}.", *notes],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "policy": self.policy.name,
            "metric": self.result.metric,
            "target": self.result.target,
            "window": self.result.window,
            "seconds": self.result.seconds,
            "epoch": self.result.epoch,
            **asdict(self.bracket),
            "reasons": [values_of(_COLUMNS, reason) for reason in self.reasons],
        }

    def __str__(self) -> str:
        return to_text([self.table()])

    def _repr_html_(self) -> str:
        table = self.table()
        return html_table(table.columns, table.rows, table.title)


def explain(
    timeline: Timeline,
    target: float,
    *,
    metric: str,
    policy: Policy,
    window: int,
    run: str,
    path: Path,
) -> Explanation:
    """Explains a run's time to a target; ``path`` is the run's folder."""
    times, readings = policy.times_s(timeline), policy.readings(timeline, metric)
    result, limits = policy.time_to_accuracy(timeline, target, metric=metric, window=window)
    evidence = _Evidence(timeline, policy, times, line_numbers(path))
    hit = next((n for n, reading in enumerate(readings) if reading.epoch == result.epoch), None)
    decisive = len(readings) - 1 if hit is None else hit
    reasons = [
        *_start(evidence),
        *_evaluations(evidence, readings[: decisive + 1], result),
        *_lost_evaluations(evidence, metric),
        *_left_out(evidence, readings[decisive].index if readings else None),
        *_conclusion(evidence, readings, hit, limits, result),
    ]
    return Explanation(run, policy, result, limits, reasons)


def line_numbers(path: Path) -> list[int] | None:
    """Returns the line of each event in a run's ledger, from 1; None if it has no ledger."""
    ledger = path / EVENTS_FILE
    if not ledger.is_file():
        return None
    lines = ledger.read_bytes().split(b"\n")
    return [number for number, line in enumerate(lines, start=1) if line.strip()]


@dataclass(frozen=True)
class _Evidence:
    timeline: Timeline
    policy: Policy
    times_s: list[float]
    lines: list[int] | None

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
        yield evidence.reason("start", f"the clock starts: the process began {began}", 0)
        return
    key = evidence.timeline.keys[index]
    instead = "" if key == policy.start else f", because the log has no {policy.start}"
    yield evidence.reason("start", f"the clock starts{instead}", index)
    before_s = evidence.timeline.clock_us[index] / 1e6
    if before_s:
        text = f"left out: {before_s:.3f} s before the clock's start"
        yield evidence.reason("left out", text, index, seconds=before_s)


def _evaluations(
    evidence: _Evidence, readings: list[Reading], result: TimeToAccuracy
) -> Iterator[Reason]:
    kind, metric = metric_named(result.metric), result.metric
    window = evaluations_in(result.window, evidence.timeline.evaluations_per_epoch)
    middles = [None] * (window - 1) + list(
        medians([reading.value for reading in readings], window, kind.worst)
    )
    for reading, median in zip(readings, middles, strict=False):
        text = f"epoch {reading.epoch}: {_label(metric)} {_value(metric, reading.value)}"
        if reading.scored is not None and reading.scored != reading.index:
            line = evidence.line(reading.scored)
            text += f" (event {reading.scored})" if line is None else f" (line {line})"
        if median is None:
            text += f", too early for the median of {window}"
        else:
            ruling = f"median of {window} is {_value(metric, median)}, " if window > 1 else ""
            met = kind.met(median, result.target)
            text += f", {ruling}{'meets' if met else 'misses'} {_value(metric, result.target)}"
        yield evidence.reason("evaluation", text, reading.index)


def _lost_evaluations(evidence: _Evidence, metric: str) -> Iterator[Reason]:
    line = evidence.timeline
    for index in line.of("tracked_stats"):
        value = line.events[index].get("value")
        if not line.useful[index] and isinstance(value, dict) and metric in value:
            epoch = evaluated_epoch(line.metadata[index])
            text = f"left out: the evaluation of epoch {epoch}, lost work that was repeated"
            yield evidence.reason("left out", text, index)


def _left_out(evidence: _Evidence, until: int | None) -> Iterator[Reason]:
    line, policy = evidence.timeline, evidence.policy
    if until is None:
        return
    for session in line.sessions[1:]:
        if session.start <= until:
            first, last = line.events[session.start], line.events[session.start - 1]
            apart_s = (first["time_ms"] - last["time_ms"]) / 1e3
            counted_s = (line.clock_us[session.start] - line.clock_us[session.start - 1]) / 1e6
            text = f"left out: {max(0.0, apart_s - counted_s):.3f} s of downtime before a session"
            yield evidence.reason("left out", text, session.start)
    start = policy.start_index(line)
    start_us = 0 if start is None else line.clock_us[start]
    stop_us, within = line.clock_us[until], policy.counts_evaluation
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
        last = "which ends here" if pieces == 1 else f"{pieces} pieces, the last one ends here"
        text = f"left out, because {policy.name} doesn't count it: {seconds:.3f} s of {name}{where}"
        text += f", {last}"
        yield evidence.reason("left out", text, index, seconds=seconds)


def _conclusion(
    evidence: _Evidence,
    readings: list[Reading],
    hit: int | None,
    limits: Bracket,
    result: TimeToAccuracy,
) -> Iterator[Reason]:
    def at(seconds: float) -> int | None:
        read = (r.index for r in readings if evidence.times_s[r.index] <= seconds)
        return max(read, default=None)

    about = f", by the median of the {result.window} around it" if result.window > 1 else ""
    miss = at(limits.last_miss_s) if limits.last_miss_s > 0 else None
    if miss is not None:
        yield evidence.reason("bracket", f"the last evaluation that misses{about}", miss)
    if hit is None:
        reason = f"longer than {limits.read_s:.3f} s" if readings else "no evaluation counts"
        yield evidence.reason(
            "result", f"never: {reason}", readings[-1].index if readings else None
        )
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
    rule = f"{_CLOCK_TEXT(result.seconds or 0.0)} s by the policy {evidence.policy.name}"
    yield evidence.reason("result", f"{rule}, at epoch {result.epoch}{ignored}", index)


def _label(metric: str) -> str:
    return metric_named(metric).label or metric


def _value(metric: str, value: float) -> str:
    return f"{100 * value:.4g} %" if metric_named(metric).rate else f"{value:.5g}"
