"""MLPerf Training's logs, ``result_*.txt``: lines with ``:::MLLOG`` and an event.

Source: github.com/mlcommons/logging, mllog and its compliance checker.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import write_whole
from tfasr.ledger import schema
from tfasr.ledger.intervals import Event, evaluated_epoch, metadata
from tfasr.tta.published.rates import check_error_rates
from tfasr.tta.run import Run

PREFIX = ":::MLLOG"

# eval_accuracy is an error rate in these benchmarks only.
ERROR_RATE_BENCHMARKS = ("rnnt", "tfasr")

# What `write` copies from a ledger.
_KEYS = {
    "init_start", "init_stop", "run_start", "run_stop", "epoch_start", "epoch_stop",
    "eval_start", "eval_stop", "eval_accuracy", "tracked_stats", "global_batch_size", "seed",
    "train_samples", "eval_samples", "opt_name", "opt_base_learning_rate",
    "gradient_accumulation_steps",
}  # fmt: skip
_EVALUATION = ("eval_start", "eval_accuracy", "eval_stop")
_EPOCH = ("epoch_start", "epoch_stop")
_ONCE = ("run_start", "run_stop")

# Processes that write one log get in each other's way: in the 260 RNN-T logs of MLPerf
# Training v3.1, a line is dated up to 57 ms before an earlier one.
_MOST_DISORDER_MS = 1000.0

# Times since 1970 in seconds, and in microseconds, if they were read as milliseconds.
_SECONDS = (9e8, 1e11)
_MICROSECONDS = 1e14
_REMEDY = "Leave the log out, or correct it."


@dataclass(frozen=True)
class _LogLine:
    """A line of a log with an event."""

    number: int  # in the file, from 1
    event: Event

    @property
    def key(self) -> str:
        """What happened, such as "eval_stop"."""
        return self.event["key"]

    @property
    def epoch(self) -> Any:
        """The epoch that an evaluation's event names; None if it names none."""
        return evaluated_epoch(metadata(self.event))


def read(path: Path, name: str | None = None) -> Run:
    """Reads a log, dropping an incomplete last line; events are sorted by time.

    A score that arrives after its ``eval_stop`` counts from its own time. Evaluations
    that start after ``run_stop`` are left out. If the run says that it didn't end with
    success, its scores count as missing, so that it never meets a target.

    Raises:
        UsageError: naming the line, if an event is malformed, the clock falls, the log
            holds more than one run, or a score can't be assigned to one evaluation or
            is no error rate.
    """
    lines, cut = _lines(path)
    if not lines:
        raise UsageError(
            f"A log must have {PREFIX} events. {path} has no complete one."
        )

    _check_benchmark(path, lines)
    _check_clock(path, lines)
    _check_one_run(path, lines)
    lines = sorted(lines, key=lambda line: line.event["time_ms"])
    lines = list(_before_the_end(lines))
    _check_evaluations(path, lines)
    events = [line.event for line in _with_late_ends(lines)]
    if _failed(lines):
        events = [_without_scores(event) for event in events]

    return Run(path, name or path.stem, _with_parts(events), cut=cut)


def _lines(path: Path) -> tuple[list[_LogLine], bool]:
    """Returns a log's events, and whether its last line was cut off."""
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    filled = [number for number, text in enumerate(texts, start=1) if text.strip()]
    lines: list[_LogLine] = []
    for number, text in enumerate(texts, start=1):
        _, prefix, content = text.partition(PREFIX)
        if not prefix:
            continue

        try:
            event = json.loads(content)
            _check_event(event)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number == filled[-1]:
                return lines, True

            raise UsageError(
                f"Line {number} of {path} is not a valid {PREFIX} event: {error!r}. "
                "Leave the log out, or download it again."
            ) from None

        lines.append(_LogLine(number, event))

    return lines, False


def _check_event(event: Any) -> None:
    """Raises ValueError, TypeError or KeyError for an event that can't be used."""
    time_ms = event["time_ms"]
    if type(time_ms) not in (int, float) or not math.isfinite(time_ms):
        raise TypeError("its time_ms must be a finite number")

    if _SECONDS[0] <= time_ms < _SECONDS[1] or time_ms >= _MICROSECONDS:
        raise ValueError(
            "its time_ms must be milliseconds, not seconds or microseconds"
        )

    about = event.get("metadata") or {}
    if not isinstance(event["key"], str) or not isinstance(about, dict):
        raise TypeError("its key must be text, its metadata an object")

    if not isinstance(about.get("epoch_num"), int | float | None):
        raise TypeError("its epoch_num must be a number")

    is_score = event["key"] == "eval_accuracy"
    if not is_score and schema.wrong(event["key"], event.get("value")):
        event["value"] = None  # other programs may mean something else by the key


def _check_benchmark(path: Path, lines: Sequence[_LogLine]) -> None:
    """Checks that a log is of a benchmark whose scores are error rates.

    Raises:
        UsageError: naming another benchmark. A log may leave its benchmark out.
    """
    for line in lines:
        benchmark = line.event.get("value")
        known = benchmark in ERROR_RATE_BENCHMARKS
        if line.key == "submission_benchmark" and not known:
            raise UsageError(
                "A log's eval_accuracy must be a word error rate, as in one of "
                f"{ERROR_RATE_BENCHMARKS}. Received: {path}, of the benchmark "
                f"{benchmark!r}."
            )


def _check_clock(path: Path, lines: Sequence[_LogLine]) -> None:
    """Checks that no line is dated long before an earlier one.

    Raises:
        UsageError: naming both lines.
    """
    latest = lines[0]
    for line in lines:
        behind_ms = latest.event["time_ms"] - line.event["time_ms"]
        if behind_ms > _MOST_DISORDER_MS:
            raise UsageError(
                f"Line {line.number} of {path} is dated {behind_ms / 1000:.1f} s before "
                f"line {latest.number}: the clock was set back, lines were moved, or "
                "the file holds several runs, so its times can't be trusted. "
                f"{_REMEDY}"
            )

        if behind_ms < 0:
            latest = line


def _check_one_run(path: Path, lines: Sequence[_LogLine]) -> None:
    """Checks that a log holds one run from its start.

    Raises:
        UsageError: if it starts or stops twice, or has scores without a start.
    """
    for key in _ONCE:
        line_numbers = [line.number for line in lines if line.key == key]
        if len(line_numbers) > 1:
            raise UsageError(
                f"Line {line_numbers[1]} of {path} has a second {key}, after line "
                f"{line_numbers[0]}: the file holds more than one run, or one that was "
                "restarted. Give each run a file of its own; MLPerf's clock can't be "
                "paused."
            )

    keys = {line.key for line in lines}
    if "eval_accuracy" in keys and "run_start" not in keys:
        raise UsageError(
            f"{path} has scores, but no run_start: its beginning is missing, and with it "
            f"the start of the clock. {_REMEDY}"
        )


def _before_the_end(lines: Sequence[_LogLine]) -> Iterator[_LogLine]:
    """Yields a log's lines without the evaluations that start after ``run_stop``.

    A published log of an aborted run evaluates its last epoch once more.
    """
    ended = False
    left_out = False
    for line in lines:
        if line.key == "run_stop":
            ended = True
        elif line.key == "eval_start":
            left_out = ended

        if not (left_out and line.key in _EVALUATION):
            yield line


def _check_evaluations(path: Path, lines: Sequence[_LogLine]) -> None:
    """Checks that each score belongs to one evaluation, in order of epochs.

    Raises:
        UsageError: naming the line, also if a score is no error rate.
    """
    scores = [line for line in lines if line.key == "eval_accuracy"]
    for line in lines:
        if line.key in _EVALUATION and line.epoch is None:
            raise UsageError(
                f"Line {line.number} of {path} must state the epoch_num of its "
                f"{line.key}: without it, scores can't be assigned to evaluations. "
                f"{_REMEDY}"
            )

    for before, line in zip(scores, scores[1:], strict=False):
        if not line.epoch > before.epoch:
            raise UsageError(
                f"Line {line.number} of {path} scores epoch {line.epoch} after line "
                f"{before.number} scored epoch {before.epoch}: each epoch must have one "
                "score, in order. The run was restarted, or its epochs are wrong. "
                f"{_REMEDY}"
            )

    # Some logs have no events around their evaluations, but around their epochs.
    evaluated = {
        line.epoch for line in lines if line.key in ("eval_start", "eval_stop")
    }
    evaluated = evaluated or {line.epoch for line in lines if line.key in _EPOCH}
    for line in scores:
        if evaluated and line.epoch not in evaluated:
            raise UsageError(
                f"Line {line.number} of {path} scores epoch {line.epoch}, which the log "
                f"doesn't evaluate, so the score can't be assigned. {_REMEDY}"
            )

    _check_scored(path, lines)
    rates = [(f"Line {line.number}", line.event.get("value")) for line in scores]
    check_error_rates(path, rates, "eval_accuracy")


def _check_scored(path: Path, lines: Sequence[_LogLine]) -> None:
    """Checks that all evaluations have scores if some have.

    Raises:
        UsageError: naming one without a score.
    """
    scored = {line.epoch for line in lines if line.key == "eval_accuracy"}
    for line in lines:
        if scored and line.key == "eval_stop" and line.epoch not in scored:
            raise UsageError(
                f"Line {line.number} of {path} ends the evaluation of epoch "
                f"{line.epoch}, which has no eval_accuracy: it may have met a target. "
                f"{_REMEDY}"
            )


def _with_late_ends(lines: Sequence[_LogLine]) -> Iterator[_LogLine]:
    """Ends an evaluation again if its score comes late, or if it has no end."""
    ends = {
        line.epoch: place
        for place, line in enumerate(lines)
        if line.key in ("eval_stop", "epoch_stop")
    }
    for place, line in enumerate(lines):
        yield line
        if line.key == "eval_accuracy" and ends.get(line.epoch, -1) < place:
            yield _LogLine(
                line.number, {**line.event, "key": "eval_stop", "value": None}
            )


def _failed(lines: Sequence[_LogLine]) -> bool:
    """Whether a run ended without success, according to its log."""
    ends = [
        metadata(line.event).get("status") for line in lines if line.key == "run_stop"
    ]
    return bool(ends) and ends[-1] not in (None, "success")


def _without_scores(event: Event) -> Event:
    """Returns an event with NaN instead of its scores.

    NaN meets no target. An event without scores is returned as it is.
    """
    if event["key"] == "eval_accuracy":
        return {**event, "value": math.nan}

    if event["key"] == "tracked_stats" and isinstance(event.get("value"), dict):
        return {**event, "value": dict.fromkeys(event["value"], math.nan)}

    return event


def _with_parts(events: list[Event]) -> list[Event]:
    """Adds what mllog lacks: a step for each epoch, and evaluations' forward passes.

    So the seconds of both count towards the right interval.
    """
    samples = next(
        (e.get("value") for e in events if e["key"] == "train_samples"), None
    )
    parts: list[Event] = []
    began_ms = None
    for event in events:
        key = event["key"]
        if key == "epoch_start":
            began_ms = event["time_ms"]
        elif key == "epoch_stop" and began_ms is not None:
            seconds = (event["time_ms"] - began_ms) / 1000
            value = {"train_s": seconds, "input_wait_s": 0.0, "compile_s": 0.0}
            if samples is not None:
                value["utterances"] = samples

            parts.append({**event, "key": "train_step", "value": value})
            began_ms = None

        if key == "eval_stop":
            parts.append({**event, "key": "eval_forward_stop"})

        parts.append(event)
        if key == "eval_start":
            parts.append({**event, "key": "eval_forward_start"})

    return parts


def write(run: Run, path: Path, **submission: str) -> None:
    """Writes a run as an MLPerf log in wall-clock time.

    That includes a resumed run's downtime. MLPerf's clock may not pause, so its checker
    rejects resumed runs. The header states an open division and no cleared caches.

    Args:
        run: the run.
        path: the log to write.
        **submission: replaces values of the header, such as ``submission_org``.
    """
    header = {
        "submission_benchmark": "tfasr",
        "submission_org": "n/a",
        "submission_platform": (run.system.get("system") or {}).get("processor", "n/a"),
        "submission_division": "open",
        "submission_status": "research",
        "cache_clear": False,
        **submission,
    }
    if run.fact("gradient_accumulation_steps") is None:
        header["gradient_accumulation_steps"] = 1

    # The header is dated like the run's first event.
    began = {"time_ms": run.events[0]["time_ms"]}
    lines = [_logged(1, began, key, value) for key, value in header.items()]
    for number, event in enumerate(run.events, start=1):
        if event["key"] in _KEYS:
            lines.append(_logged(number, event, event["key"], event.get("value")))

    write_whole(path, "".join(lines))


def _logged(number: int, event: Event, key: str, value: object) -> str:
    """Returns a line of a log.

    Args:
        number: the line that it names as its origin.
        event: gives the time and the metadata.
        key: the key of the line.
        value: its value.
    """
    about = {k: v for k, v in metadata(event).items() if k not in ("mono_s", "session")}
    logged = {
        "namespace": "",
        "time_ms": event["time_ms"],
        "event_type": event.get("event_type", "POINT_IN_TIME"),
        "key": key,
        "value": value,
        "metadata": {"file": "events.jsonl", "lineno": number, **about},
    }
    return f"{PREFIX} {json.dumps(logged)}\n"
