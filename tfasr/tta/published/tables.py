"""Tables with a row per evaluation: AlgoPerf's measurements and DAWNBench's entries.

Sources: github.com/mlcommons/algorithmic-efficiency, submission_runner.py, for
``eval_measurements.csv``, whose clocks are accumulated; github.com/stanford-futuredata/
dawn-bench-entries, README, for a TSV of epoch, hours and accuracies, and a JSON that
describes it.
"""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import write_whole
from tfasr.ledger.intervals import Event, evaluated_epoch
from tfasr.tta.policies import POLICIES
from tfasr.tta.published.rates import check_error_rates
from tfasr.tta.run import Run

# AlgoPerf's clocks in seconds since the run's start: training, evaluation, and both with
# everything else.
CLOCKS = ("accumulated_submission_time", "accumulated_eval_time", "total_duration")
_STEP = "global_step"
_WER = "validation/wer"

# AlgoPerf's columns, and the names of their metrics.
COLUMNS = {_WER: "wer", "validation/ctc_loss": "loss"}

# For each accuracy column of DAWNBench: the name of its error rate, and the value for
# 100 %.
ACCURACIES = {
    "top1Accuracy": ("top1_error", 100.0),
    "top5Accuracy": ("top5_error", 100.0),
    "f1Score": ("f1_error", 1.0),
    "wordAccuracy": ("wer", 100.0),
    "characterAccuracy": ("cer", 100.0),
}

# Seconds by which the sum of two clocks may exceed the third, which counts both.
_MOST_EXCESS_S = 1.0
_MOST_HOURS = 8766.0  # a year
_REMEDY = "Leave the file out, or correct it."


class _TableEvents:
    """Builds a run's events from a table of evaluations.

    Example:
        ::

            table = _TableEvents()
            table.train(60.0, epoch=1)
            table.evaluate(5.0, epoch=1, stats={"wer": 0.5})
            table.end_epoch(1)
            events = table.end()
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now_s = 0.0
        self._step = 0
        for key in ("session_start", "model_creation", "run_start"):
            self._event(key)

    def train(self, seconds: float, epoch: int) -> None:
        """Adds an epoch's training as one step.

        Args:
            seconds: how long it took; less than 0 counts as 0.
            epoch: its number, from 1.
        """
        seconds = max(0.0, seconds)
        self._now_s += seconds
        self._step += 1
        value = {"train_s": seconds, "input_wait_s": 0.0, "compile_s": 0.0}
        self._event("train_step", value, epoch_num=epoch, step=self._step)

    def evaluate(self, seconds: float, epoch: int, stats: dict[str, float]) -> None:
        """Adds an evaluation and its metrics.

        Args:
            seconds: how long it took; less than 0 counts as 0.
            epoch: the epoch that it evaluates.
            stats: its metrics, error rates as fractions.
        """
        self._event("eval_start", epoch_num=epoch)
        self._event("eval_forward_start", epoch_num=epoch)
        self._now_s += max(0.0, seconds)
        self._event("eval_forward_stop", epoch_num=epoch)
        self._event("tracked_stats", stats, epoch_num=epoch)
        self._event("eval_stop", epoch_num=epoch)

    def end_epoch(self, epoch: int, saved_s: float | None = None) -> None:
        """Ends an epoch, after a checkpoint that lasts until ``saved_s``."""
        if saved_s is not None:
            self._event("checkpoint_start")
            self._now_s = max(self._now_s, saved_s)
            self._event("checkpoint_stop")

        self._event("epoch_stop", epoch_num=epoch)

    def end(self) -> list[Event]:
        """Ends the run and returns all events."""
        self._event("run_stop", status="success")
        return self.events

    def _event(self, key: str, value: Any = None, **metadata: Any) -> None:
        self.events.append(
            {
                "time_ms": round(self._now_s * 1000),
                "key": key,
                "value": value,
                "metadata": {**metadata, "session": 0, "mono_s": self._now_s},
            }
        )


_Row = tuple[int, dict[str, Any]]
"""A row's line in its file, from 1, and its cells by column."""


def read_algoperf(path: Path, name: str | None = None) -> Run:
    """Reads a table. Each row becomes an epoch of training, evaluation and a checkpoint.

    The checkpoint lasts for the part of the total duration that is not submission or
    evaluation.

    Raises:
        UsageError: naming the line, if a clock falls or stands still, as after a
            restart, rows are missing before the first, or an error rate is invalid.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        rows: list[_Row] = [(reader.line_num, row) for row in reader]

    missing: list[str] | str = "rows"
    if rows:
        _, header = rows[0]
        missing = [column for column in (*CLOCKS, _WER) if column not in header]
    if missing:
        raise UsageError(
            f"An AlgoPerf table must have rows with the columns {CLOCKS} and {_WER}. "
            f"Received: {path}, without {missing}."
        )

    submission, evaluation, total = CLOCKS
    submission_s = _rising(path, rows, submission)
    evaluation_s = _rising(path, rows, evaluation, strictly=False)
    total_s = _rising(path, rows, total, strictly=False)
    if _STEP in header:
        _check_beginning(path, rows[0][0], _rising(path, rows, _STEP))

    # Each clock may be right for itself, but of another run.
    clocks = list(zip(rows, submission_s, evaluation_s, total_s, strict=True))
    for (line, _), submission_now, evaluation_now, now in clocks:
        parts = submission_now + evaluation_now
        if parts > now + _MOST_EXCESS_S:
            raise UsageError(
                f"{total} must be at least {submission} plus {evaluation}, all in "
                f"seconds. Received: {now:g} for {parts:g} s in line {line} of {path}. "
                f"{_REMEDY}"
            )

    rates = [(f"Line {line}", _measured(row, _WER, path, line)) for line, row in rows]
    check_error_rates(path, rates, _WER)

    table = _TableEvents()
    submission_before = 0.0
    evaluation_before = 0.0
    for epoch, ((line, row), submission_now, evaluation_now, now) in enumerate(
        clocks, 1
    ):
        stats = {
            metric: _measured(row, column, path, line)
            for column, metric in COLUMNS.items()
            if row.get(column)
        }
        table.train(submission_now - submission_before, epoch)
        table.evaluate(evaluation_now - evaluation_before, epoch, stats)
        table.end_epoch(epoch, now)
        submission_before = submission_now
        evaluation_before = evaluation_now

    return Run(path, name or path.stem, table.end())


def _clock(row: dict[str, Any], column: str, path: Path, line: int) -> float:
    """Returns a time or a count.

    Args:
        row: the cells of a line, by column.
        column: the time's or count's column.
        path: the table, for the message.
        line: the line, the same.

    Raises:
        UsageError: unless it is a finite number of at least 0.
    """
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = math.nan

    if not 0 <= value < math.inf:
        raise UsageError(
            f"{column} must be a finite number of at least 0. Received: "
            f"{row[column]!r} in line {line} of {path}. {_REMEDY}"
        )

    return value


def _measured(row: dict[str, Any], column: str, path: Path, line: int) -> float:
    """Returns a metric, NaN for an empty cell.

    Args are those of `_clock`.

    Raises:
        UsageError: if it is no number.
    """
    text = row[column]
    try:
        return float(text or math.nan)
    except (TypeError, ValueError):
        raise UsageError(
            f"{column} must be a number, or empty. Received: {text!r} in line {line} of "
            f"{path}. {_REMEDY}"
        ) from None


def _rising(
    path: Path, rows: Sequence[_Row], column: str, *, strictly: bool = True
) -> list[float]:
    """Returns a column of times or counts; raises UsageError unless it rises.

    Without ``strictly``, it may also stand still.
    """
    values: list[float] = []
    before = -1.0
    line_before = 0
    for line, row in rows:
        value = _clock(row, column, path, line)
        if value < before or (strictly and value == before):
            how = "falls" if value < before else "stands still"
            raise UsageError(
                f"{column} {how} from {before:g} in line {line_before} of {path} to "
                f"{value:g} in line {line}: rows were repeated or moved, or the run was "
                f"restarted, so its times can't be trusted. {_REMEDY}"
            )

        values.append(value)
        before = value
        line_before = line

    return values


def _check_beginning(path: Path, line: int, steps: Sequence[float]) -> None:
    """Checks that a table's first row is no further from 0 than rows are from each other.

    Args:
        path: the table, for the message.
        line: that of the first row.
        steps: the step of each row.
    """
    apart = [after - before for before, after in zip(steps, steps[1:], strict=False)]
    most = max(apart, default=0)
    if most and steps[0] > most:
        raise UsageError(
            f"Line {line} of {path} is of {_STEP} {steps[0]:g}, although rows are at "
            f"most {most:g} steps apart: rows before it are missing, in which a target "
            f"may have been met. {_REMEDY}"
        )


def write_algoperf(run: Run, path: Path) -> None:
    """Writes a run as a table of AlgoPerf, in which every evaluation is a row.

    Only evaluations that the policy ``algoperf`` counts have one.

    Args:
        run: the run.
        path: the table to write.
    """
    total = {p.epoch: p.elapsed_s for p in run.accuracy_curve("wer", "mlperf")}
    evaluated = _evaluation_s(run)
    losses = {p.epoch: p.value for p in run.accuracy_curve("loss")}
    rows = [[*CLOCKS, *COLUMNS]]
    for point in run.accuracy_curve("wer", "algoperf"):
        epoch = point.epoch
        rows.append(
            [
                point.elapsed_s,
                evaluated.get(epoch, 0.0),
                total[epoch],
                point.value,
                losses.get(epoch, ""),
            ]
        )

    _write_rows(path, rows, ",")


def _write_rows(path: Path, rows: list[list[Any]], delimiter: str) -> None:
    """Writes a table at once, so that a crash leaves no half of it."""
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    write_whole(path, file.getvalue())


def _evaluation_s(run: Run) -> dict[int, float]:
    """Returns the seconds of all evaluations up to the end of each, by epoch."""
    line = run.timeline
    times = POLICIES["mlperf"].times_s(line)
    spent = 0.0
    began = None
    by_epoch = {}
    for index in line.of("eval_start", "eval_stop"):
        if line.keys[index] == "eval_start":
            began = times[index]
        elif began is not None:
            spent += times[index] - began
            began = None
            by_epoch[evaluated_epoch(line.metadata[index])] = spent

    return by_epoch


def read_dawnbench(path: Path, name: str | None = None) -> Run:
    """Reads an entry's table, converting accuracies to error rates and hours to training time.

    The run is named after model and hardware if the JSON file next to the table has
    them. Some entries count epochs from 0 and some skip epochs: only their order is
    used.

    Raises:
        UsageError: naming the line, if epochs or hours fall, as after a restart, or an
            accuracy is not in the unit of its column.
    """
    numbered = enumerate(path.read_text("utf-8-sig").split("\n"), start=1)
    (_, header), *lines = (
        (line, text.split()) for line, text in numbered if text.strip()
    )
    accuracies = [column for column in header if column in ACCURACIES]
    if not accuracies:
        raise UsageError(
            f"A DAWNBench table must have one of the columns {sorted(ACCURACIES)}. "
            f"Received: {path} with {header}."
        )

    rows = [(line, _numbers(path, line, header, cells)) for line, cells in lines]
    _rising(path, rows, "epoch", strictly=False)
    hours = _rising(path, rows, "hours")
    for (line, _), value in zip(rows, hours, strict=True):
        if value > _MOST_HOURS:
            raise UsageError(
                f"Line {line} of {path}: hours must be at most {_MOST_HOURS:g}, a year. "
                f"Received: {value:g}; other units must be converted."
            )

    for column in accuracies:
        _check_accuracies(path, rows, column)

    table = _TableEvents()
    before_s = 0.0
    for number, (_, row) in enumerate(rows, start=1):
        now_s = 3600 * row["hours"]
        table.train(now_s - before_s, number)
        before_s = now_s

        stats = {}
        for column in accuracies:
            metric, whole = ACCURACIES[column]
            stats[metric] = 1 - row[column] / whole

        table.evaluate(0.0, number, stats)
        table.end_epoch(number)

    title = ""
    entry = path.with_suffix(".json")
    if entry.is_file():
        described = json.loads(entry.read_text("utf-8"))
        title = " on ".join(
            str(described[key]) for key in ("model", "hardware") if key in described
        )

    return Run(path, name or title or path.stem, table.end())


def _numbers(
    path: Path, line: int, header: Sequence[str], cells: Sequence[str]
) -> dict[str, Any]:
    """Returns a row's cells as numbers, by column.

    Args:
        path: the table, for the message.
        line: the row's line, the same.
        header: the columns.
        cells: the row's cells as text.
    """
    try:
        return {column: float(cell) for column, cell in zip(header, cells, strict=True)}
    except ValueError as error:
        raise UsageError(
            f"Line {line} of {path} must have numbers for {header}. Received: {cells}."
        ) from error


def _check_accuracies(path: Path, rows: Sequence[_Row], column: str) -> None:
    """Raises UsageError unless a column's accuracies are in its unit, NaN left out."""
    _, whole = ACCURACIES[column]
    known_accuracies = [
        (row[column], line) for line, row in rows if not math.isnan(row[column])
    ]
    for accuracy, line in known_accuracies:
        if not 0 <= accuracy <= whole:
            raise UsageError(
                f"Line {line} of {path}: {column} must be from 0 to {whole:g}. "
                f"Received: {accuracy:g}. {_REMEDY}"
            )

    # Fractions in a column of percent would look like a run that learned nothing.
    if whole == 1 or not known_accuracies:
        return

    highest, line = max(known_accuracies)
    if 0 < highest <= 1:
        raise UsageError(
            f"Line {line} of {path}: {column} must be in percent. Received: "
            f"{highest:g} as the highest value, so these seem to be fractions. Multiply "
            "them by 100."
        )


def write_dawnbench(run: Run, path: Path, **described: Any) -> None:
    """Writes a run as a TSV at ``path`` with the hours of DAWNBench's policy, and a JSON file.

    Args:
        run: the run.
        path: the table to write; the JSON file has the same name otherwise.
        **described: the JSON's fields, such as ``author`` and ``costPerHour``.
    """
    characters = {p.epoch: p.value for p in run.accuracy_curve("cer", "dawnbench")}
    rows: list[list[Any]] = [["epoch", "hours", "wordAccuracy", "characterAccuracy"]]
    for point in run.accuracy_curve("wer", "dawnbench"):
        cer = characters.get(point.epoch, 1.0)
        rows.append(
            [
                point.epoch,
                point.elapsed_s / 3600,
                100 * (1 - point.value),
                100 * (1 - cer),
            ]
        )

    _write_rows(path, rows, "\t")
    entry = {
        "version": "v1.0",
        "framework": "TensorFlow",
        "model": run.name,
        **described,
    }
    write_whole(path.with_suffix(".json"), json.dumps(entry, indent=2) + "\n")
