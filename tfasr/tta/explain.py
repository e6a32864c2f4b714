"""How a time to accuracy came about, event by event: what `tfasr.tta.run.Run.explain` shows.

The numbers are those of `tfasr.tta.policies`; this module only says where each of them
comes from, so that a reader can check it in ``events.jsonl``.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tfasr.display.table import (
    Column,
    Table,
    fixed,
    html_table,
    table_of,
    to_text,
    values_of,
)
from tfasr.kit import files
from tfasr.ledger.intervals import evaluated_epoch
from tfasr.ledger.timeline import Timeline
from tfasr.tta import policies
from tfasr.tta.metrics import Metric
from tfasr.tta.policies import Bracket, EvaluationReading, Policy, TimeToAccuracy

_CLOCK_TEXT = fixed(3)

# How far a policy's clock may be from the sum of its intervals: by rounding. A policy
# whose clock is its own code is further away.
_ROUNDING_S = 1e-3


@dataclass(frozen=True)
class Reason:
    """One line of an explanation, and the event behind it."""

    kind: str  # "start", "left out", "evaluation", "bracket" or "result"
    text: str

    # The policy's clock at the event; None for time left out.
    clock_s: float | None = None

    # The event's index among the run's events, from 0.
    event: int | None = None

    # Its line in ``events.jsonl``, from 1; None for other programs' logs.
    line: int | None = None

    key: str | None = None
    time_ms: float | None = None  # wall clock of the event, since 1970
    seconds: float | None = None  # time left out


_COLUMNS: list[Column[Reason]] = [
    Column("how the time came about", "text", "text"),
    Column("clock\ns", "clock_s", "clock_s", _CLOCK_TEXT, missing=""),
    Column("line", "line", "line", missing=""),
    Column("event", "key", "key", missing=""),
    Column("at\nms since 1970", "time_ms", "time_ms", fixed(0), missing=""),
    Column("", "kind", "kind"),
    Column("", "left_out_s", "seconds"),
]


def line_numbers(path: Path) -> list[int] | None:
    """Returns the line of each event in a run's ledger, from 1.

    Empty lines hold no event. The result is None if ``path`` is another program's log.
    """
    ledger = path / files.EVENTS_FILE
    if not ledger.is_file():
        return None

    lines = files.read_bytes(ledger).split(b"\n")
    return [number for number, line in enumerate(lines, start=1) if line.strip()]


def value_text(kind: Metric, value: float) -> str:
    """Returns a metric's value for readers.

    Example:
        >>> value_text(Metric(rate=True), 0.105)
        '10.5 %'
    """
    if kind.rate:
        return f"{100 * value:.4g} %"

    return f"{value:.5g}"


@dataclass(frozen=True)
class Explanation:
    """A run's time to a target, and the evaluations and rules behind it.

    Shown by ``print``; notebooks show a table.

    Attributes:
        run: the run's name.
        timeline: its events.
        lines: the line of each event in ``events.jsonl``, see `line_numbers`.
        policy: the clock and the rule.
        kind: the target's metric.
        readings: the evaluations that the policy counts.
        result: when the target was met.
        bracket: between which times the curve crossed it.
    """

    run: str
    timeline: Timeline
    lines: list[int] | None
    policy: Policy
    kind: Metric
    readings: list[EvaluationReading]
    result: TimeToAccuracy
    bracket: Bracket

    def table(self) -> Table:
        """Returns the reasons as a table, with the policy's rule below it."""
        target = value_text(self.kind, self.result.target)
        name = self.kind.label or self.result.metric
        notes = [f"The rule: {self.policy.rule}. Source: {self.policy.source}."]
        window = self.result.window
        if window != self.policy.window:
            notes.append(
                f"The window was set to {window} instead of {self.policy.window}."
            )

        title = f"{self.run}: time to {name} {target}, policy {self.policy.name}"
        return table_of(title, _COLUMNS, self.reasons, notes)

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as a JSON value, for ``tfasr report --format json``.

        Times are in seconds on the policy's clock.
        """
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

    @cached_property
    def reasons(self) -> list[Reason]:
        """How the time came about, line by line."""
        until = None
        if self._decisive:
            until = self._decisive[-1].index

        return [
            *self._start(),
            *self._evaluations(),
            *self._lost_evaluations(),
            *self._downtime(until),
            *self._pauses(until),
            *self._crossing(),
            self._conclusion(),
        ]

    @cached_property
    def _times_s(self) -> list[float]:
        """The policy's clock at each event."""
        return self.policy.times_s(self.timeline)

    @cached_property
    def _decisive(self) -> list[EvaluationReading]:
        """The evaluations up to the one at which the rule was met; all if it never was."""
        for number, reading in enumerate(self.readings, 1):
            if reading.epoch == self.result.epoch:
                return self.readings[:number]

        return self.readings

    def _reason(
        self, kind: str, text: str, index: int | None, *, seconds: float | None = None
    ) -> Reason:
        """Makes a line about an event, or about none.

        Args:
            kind: see `Reason`.
            text: the line without its columns.
            index: the event's index.
            seconds: time that the policy's clock leaves out.
        """
        if index is None:
            return Reason(kind, text, seconds=seconds)

        event = self.timeline.events[index]
        clock_s = None
        if seconds is None:
            clock_s = self._times_s[index]

        return Reason(
            kind=kind,
            text=text,
            clock_s=clock_s,
            event=index,
            line=self._line(index),
            key=event["key"],
            time_ms=event["time_ms"],
            seconds=seconds,
        )

    def _line(self, index: int) -> int | None:
        """Returns an event's line in ``events.jsonl``; None if there is no such file."""
        if self.lines and index < len(self.lines):
            return self.lines[index]

        return None

    def _start(self) -> Iterator[Reason]:
        """Yields where the policy's clock starts, and what came before."""
        line = self.timeline
        if not line.events:
            yield self._reason("start", "the ledger is empty", None)
            return

        index = self.policy.start_index(line)
        if index is None:
            began = "at the first event (its creation time is unknown)"
            if self._times_s[0]:
                began = f"{self._times_s[0]:.3f} s before this event"

            text = f"the clock starts: the process began {began}"
            yield self._reason("start", text, 0)
            return

        text = "the clock starts"
        if line.keys[index] != self.policy.start:
            text += f", because the log has no {self.policy.start}"

        yield self._reason("start", text, index)
        before_s = line.clock_us[index] / 1e6
        if before_s:
            text = f"left out: {before_s:.3f} s before the clock's start"
            yield self._reason("left out", text, index, seconds=before_s)

    def _evaluations(self) -> Iterator[Reason]:
        """Yields each evaluation up to the decisive one, and whether it meets the target."""
        kind = self.kind
        target = self.result.target
        label = kind.label or self.result.metric
        per_epoch = self.timeline.evaluations_per_epoch
        window = policies.evaluations_in(self.result.window, per_epoch)

        # The first ones have no median yet.
        values = [reading.value for reading in self._decisive]
        medians = [None] * (window - 1)
        medians += policies.medians(values, window, kind.worst)
        for reading, median in zip(self._decisive, medians, strict=False):
            text = f"epoch {reading.epoch}: {label} {value_text(kind, reading.value)}"
            # The value may have been written earlier than the time is read.
            if reading.scored is not None and reading.scored != reading.index:
                line = self._line(reading.scored)
                if line is None:
                    text += f" (event {reading.scored})"
                else:
                    text += f" (line {line})"

            if median is None:
                text += f", too early for the median of {window}"
            else:
                if window > 1:
                    text += f", median of {window} is {value_text(kind, median)}"

                ruling = "meets" if kind.met(median, target) else "misses"
                text += f", {ruling} {value_text(kind, target)}"

            yield self._reason("evaluation", text, reading.index)

    def _lost_evaluations(self) -> Iterator[Reason]:
        """Yields evaluations that don't count, as a later session repeated them."""
        line = self.timeline
        for index in line.of("tracked_stats"):
            scored = self.result.metric in policies.scores_at(line, index)
            if scored and not line.useful[index]:
                epoch = evaluated_epoch(line.metadata[index])
                text = f"left out: the evaluation of epoch {epoch}, lost work that was repeated"
                yield self._reason("left out", text, index)

    def _downtime(self, until: int | None) -> Iterator[Reason]:
        """Yields the time between sessions, which no policy counts.

        Args:
            until: the event of the decisive evaluation; later sessions don't matter.
        """
        line = self.timeline
        for session in line.sessions[1:]:
            if until is None or session.start > until:
                return

            # Downtime is time on the wall clock that the run's clock left out.
            before = session.start - 1
            passed_ms = (
                line.events[session.start]["time_ms"] - line.events[before]["time_ms"]
            )
            counted_s = (line.clock_us[session.start] - line.clock_us[before]) / 1e6
            down_s = max(0.0, passed_ms / 1e3 - counted_s)
            text = f"left out: {down_s:.3f} s of downtime before a session"
            yield self._reason("left out", text, session.start)

    def _pauses(self, until: int | None) -> Iterator[Reason]:
        """Yields the intervals in which the policy's clock stood still, with their time.

        Args:
            until: the event of the decisive evaluation.
        """
        if until is None:
            return

        line = self.timeline
        policy = self.policy
        stop_us = line.clock_us[until]
        start_us = 0
        start = policy.start_index(line)
        if start is not None:
            start_us = line.clock_us[start]

        pauses = line.stood_still(
            policy.excluded,
            within_evaluation=policy.counts_evaluation,
            start_us=start_us,
            stop_us=stop_us,
        )
        paused_s = math.fsum(pause.seconds for pause in pauses.values())
        passed_s = (stop_us - start_us) / 1e6 - paused_s
        if abs(passed_s - self._times_s[until]) > _ROUNDING_S:
            text = "this policy computes its clock with its own code; intervals can't be listed"
            yield self._reason("left out", text, until)
            return

        for name, pause in pauses.items():
            text = f"left out, because {policy.name} doesn't count it: "
            text += f"{pause.seconds:.3f} s of {name}"
            if name == "overhead":
                text += " within evaluations"

            if pause.pieces == 1:
                text += ", which ends here"
            else:
                text += f", {pause.pieces} pieces, the last one ends here"

            yield self._reason("left out", text, pause.last, seconds=pause.seconds)

    def _crossing(self) -> Iterator[Reason]:
        """Yields between which evaluations the curve crossed the target.

        A run that never met it has only the last evaluation that misses.
        """
        bracket = self.bracket

        # A curve whose first evaluation meets the target has no miss.
        miss = None
        if bracket.last_miss_s > 0:
            miss = self._latest_reading(bracket.last_miss_s)
        if miss is not None:
            text = "the last evaluation that misses"
            if self.result.window > 1:
                text += f", by the median of the {self.result.window} around it"

            yield self._reason("bracket", text, miss)

        if not self.result.reached:
            return

        text = "the curve crosses the target between "
        text += f"{bracket.last_miss_s:.3f} and {bracket.first_hit_s:.3f} s"
        if bracket.interpolated_s is not None:
            text += f"; a straight line crosses it at {bracket.interpolated_s:.3f} s"

        if bracket.read_s > bracket.first_hit_s:
            late_s = bracket.read_s - bracket.first_hit_s
            text += f"; the rule is met {late_s:.3f} s later"

        yield self._reason("bracket", text, self._latest_reading(bracket.first_hit_s))

    def _latest_reading(self, seconds: float) -> int | None:
        """Returns the last event at which a time was read by then on the policy's clock."""
        indices = [reading.index for reading in self.readings]
        return max((i for i in indices if self._times_s[i] <= seconds), default=None)

    def _conclusion(self) -> Reason:
        """Returns the time itself, or why the run has no time."""
        if not self.readings:
            return self._reason("result", "never: no evaluation counts", None)

        index = self._decisive[-1].index
        if not self.result.reached:
            text = f"never: longer than {self.bracket.read_s:.3f} s"
            return self._reason("result", text, index)

        text = f"{_CLOCK_TEXT(self.result.seconds)} s by the policy {self.policy.name}"
        text += f", at epoch {self.result.epoch}"
        later = len(self.readings) - len(self._decisive)
        if later:
            text += f"; {later} later evaluations change nothing"

        return self._reason("result", text, index)
