"""Reads other benchmarks' published logs as runs, and writes our runs in their formats.

Sources: github.com/mlcommons/logging, mllog, for MLPerf Training's ``result_*.txt``, lines with
``:::MLLOG`` and an event; github.com/mlcommons/algorithmic-efficiency, submission_runner.py, for
AlgoPerf's ``eval_measurements.csv``, a row per evaluation with accumulated clocks;
github.com/stanford-futuredata/dawn-bench-entries, README, for DAWNBench's entries, a TSV of epoch,
hours and accuracies, and a JSON that describes it.
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError, explained
from tfasr.kit.files import EVENTS_FILE, write_whole
from tfasr.ledger.intervals import Event, evaluated_epoch, metadata
from tfasr.tta.policies import POLICIES
from tfasr.tta.run import Run, load_run

_HEAD_BYTES = 65536  # within which a log shows its format
PREFIX = ":::MLLOG"
# eval_accuracy is an error rate in these benchmarks only.
ERROR_RATE_BENCHMARKS = ("rnnt", "tfasr")
_KEYS = {
    "init_start", "init_stop", "run_start", "run_stop", "epoch_start", "epoch_stop",
    "eval_start", "eval_stop", "eval_accuracy", "tracked_stats", "global_batch_size", "seed",
    "train_samples", "eval_samples", "opt_name", "opt_base_learning_rate",
    "gradient_accumulation_steps",
}  # fmt: skip
CLOCKS = ("accumulated_submission_time", "accumulated_eval_time", "total_duration")
# AlgoPerf's columns, and the names of their metrics.
COLUMNS = {"validation/wer": "wer", "validation/ctc_loss": "loss"}
# For each accuracy column of DAWNBench: the name of its error rate, and the value for 100 %.
ACCURACIES = {
    "top1Accuracy": ("top1_error", 100.0),
    "top5Accuracy": ("top5_error", 100.0),
    "f1Score": ("f1_error", 1.0),
    "wordAccuracy": ("wer", 100.0),
    "characterAccuracy": ("cer", 100.0),
}


def find_logs(path: str | Path) -> list[Path]:
    """Lists the runs at a path: a run's folder, a published log, or a folder with any of these.

    Raises UsageError if it finds none.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(
            f"A run must be a folder that tfasr train wrote, or a published log. Received: {path}, "
            "which does not exist."
        )
    if _is_run(path):
        return [path]
    runs = filter(_is_run, path.iterdir()) if path.is_dir() else []
    if not (logs := sorted(runs, key=lambda run: (len(run.name), run.name))):
        raise UsageError(
            f"A run must be a folder with {EVENTS_FILE}, or a log in one of the formats "
            f"{sorted(READERS)}. Received: {path}, which has neither."
        )
    return logs


def load_log(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's folder or a published log; raises UsageError if it is invalid."""
    path = Path(path)
    if not path.is_file():
        return load_run(path, name)
    kind = f"one of {sorted(READERS)}"
    try:
        for program, reader in READERS.items():
            if reader.recognises(path):
                kind = f"as {program} writes it"
                run = reader.read(path, name)
                _ = run.timeline.clock_us  # raises if an event has no usable time
                return run
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(explained(error)[0]) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, csv.Error,
            RecursionError) as error:  # fmt: skip
        raise UsageError(
            f"A log must be {kind}. {path} is not, or is damaged: {error!r}. Leave it out, or "
            "download it again."
        ) from error
    raise UsageError(f"A log must be {kind}. Received: {path}.")


def _is_run(path: Path) -> bool:
    try:
        if path.is_dir():
            return (path / EVENTS_FILE).is_file()
        return any(reader.recognises(path) for reader in READERS.values())
    except OSError:
        return True  # reading it will report the error with its path


def _read_mlperf(path: Path, name: str | None = None) -> Run:
    """Reads a log, dropping an incomplete last line; events are sorted by time."""
    events: list[Event] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    cut = False
    for number, line in enumerate(lines, start=1):
        _, prefix, text = line.partition(PREFIX)
        if not prefix:
            continue
        try:
            event = json.loads(text)
            _check(event)
            events.append(event)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number < len(lines):
                raise UsageError(
                    f"Line {number} of {path} is not a valid {PREFIX} event: {error!r}. Leave the "
                    "log out, or download it again."
                ) from None
            cut = True
    benchmark = next((e.get("value") for e in events if e["key"] == "submission_benchmark"), None)
    if benchmark is not None and benchmark not in ERROR_RATE_BENCHMARKS:
        raise UsageError(
            "A log's eval_accuracy must be a word error rate, as in one of "
            f"{ERROR_RATE_BENCHMARKS}. Received: {path}, of the benchmark {benchmark!r}."
        )
    if not events:
        raise UsageError(f"A log must have {PREFIX} events. {path} has no complete one.")
    events.sort(key=lambda event: event["time_ms"])
    return Run(path, name or path.stem, _with_parts(events), cut=cut)


def _check(event: Any) -> None:
    event["time_ms"] + 0
    about = event.get("metadata") or {}
    if not isinstance(event["key"], str) or not isinstance(about, dict):
        raise TypeError("its key must be text, its metadata an object")
    if not isinstance(about.get("epoch_num"), int | float | None):
        raise TypeError("its epoch_num must be a number")


def _with_parts(events: list[Event]) -> list[Event]:
    """Adds events that mllog lacks: one step per epoch, and the forward pass of evaluations."""
    samples = next((e.get("value") for e in events if e["key"] == "train_samples"), None)
    parts: list[Event] = []
    began_ms = None
    for event in events:
        key = event["key"]
        if key == "epoch_start":
            began_ms = event["time_ms"]
        elif key == "epoch_stop" and began_ms is not None:
            seconds = (event["time_ms"] - began_ms) / 1000
            value = {"train_s": seconds, "input_wait_s": 0.0, "compile_s": 0.0}
            value |= {} if samples is None else {"utterances": samples}
            parts.append({**event, "key": "train_step", "value": value})
            began_ms = None
        if key == "eval_stop":
            parts.append({**event, "key": "eval_forward_stop"})
        parts.append(event)
        if key == "eval_start":
            parts.append({**event, "key": "eval_forward_start"})
    return parts


def _write_mlperf(run: Run, path: Path, **submission: str) -> None:
    """Writes a run as an MLPerf log in wall-clock time, which includes a resumed run's downtime.

    MLPerf's clock may not pause, so its checker rejects resumed runs. The header states an open
    division and no cleared caches; ``submission`` replaces its values, such as ``submission_org``.
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
    began = {"time_ms": run.events[0]["time_ms"]}
    lines = [_line(1, began, key, value) for key, value in header.items()]
    for number, event in enumerate(run.events, start=1):
        if event["key"] in _KEYS:
            lines.append(_line(number, event, event["key"], event.get("value")))
    write_whole(path, "".join(lines))


def _line(number: int, event: Event, key: str, value: object) -> str:
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


class _TableEvents:
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

    def end_epoch(self, epoch: int, saved_s: float | None = None) -> None:
        """Ends an epoch, after a checkpoint that lasts until ``saved_s``."""
        if saved_s is not None:
            self._event("checkpoint_start")
            self._now_s = max(self._now_s, saved_s)
            self._event("checkpoint_stop")
        self._event("epoch_stop", epoch_num=epoch)

    def end(self) -> list[Event]:
        self._event("run_stop", status="success")
        return self.events

    def _event(self, key: str, value: Any = None, **metadata: Any) -> None:
        metadata = {**metadata, "session": 0, "mono_s": self._now_s}
        self.events.append(
            {"time_ms": round(self._now_s * 1000), "key": key, "value": value, "metadata": metadata}
        )


def _read_algoperf(path: Path, name: str | None = None) -> Run:
    """Reads a table. Each row becomes an epoch of training, evaluation and a checkpoint.

    The checkpoint lasts for the part of the total duration that is not submission or evaluation.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missing = [column for column in (*CLOCKS, "validation/wer") if rows and column not in rows[0]]
    if missing or not rows:
        raise UsageError(
            f"An AlgoPerf table must have rows with the columns {CLOCKS} and validation/wer. "
            f"Received: {path}, without {missing or 'rows'}."
        )
    table = _TableEvents()
    before = dict.fromkeys(CLOCKS, 0.0)
    for epoch, row in enumerate(rows, start=1):
        clocks = {column: _number(row, column, path, epoch) for column in CLOCKS}
        submission, evaluation, total = CLOCKS
        table.train(clocks[submission] - before[submission], epoch)
        stats = {
            metric: _number(row, column, path, epoch)
            for column, metric in COLUMNS.items()
            if row.get(column)
        }
        table.evaluate(clocks[evaluation] - before[evaluation], epoch, stats)
        table.end_epoch(epoch, clocks[total])
        before = clocks
    return Run(path, name or path.stem, table.end())


def _number(row: dict[str, str], column: str, path: Path, line: int) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = math.nan
    if math.isnan(value) and column in CLOCKS:
        raise UsageError(
            f"{column} must be a number of seconds. Received: {row[column]!r} in row {line} of "
            f"{path}."
        )
    return value


def _write_algoperf(run: Run, path: Path) -> None:
    total = {p.epoch: p.elapsed_s for p in run.accuracy_curve("wer", "mlperf")}
    evaluated = _evaluation_s(run)
    losses = {p.epoch: p.value for p in run.accuracy_curve("loss")}
    rows = [[*CLOCKS, *COLUMNS]]
    for point in run.accuracy_curve("wer", "algoperf"):
        epoch = point.epoch
        clocks = [point.elapsed_s, evaluated.get(epoch, 0.0), total[epoch]]
        rows.append([*clocks, point.value, losses.get(epoch, "")])
    _write_rows(path, rows, ",")


def _write_rows(path: Path, rows: list[list[Any]], delimiter: str) -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    write_whole(path, file.getvalue())


def _evaluation_s(run: Run) -> dict[int, float]:
    line = run.timeline
    times = POLICIES["mlperf"].times_s(line)
    spent, began = 0.0, None
    by_epoch = {}
    for index in line.of("eval_start", "eval_stop"):
        if line.keys[index] == "eval_start":
            began = times[index]
        elif began is not None:
            spent += times[index] - began
            began = None
            by_epoch[evaluated_epoch(line.metadata[index])] = spent
    return by_epoch


def _read_dawnbench(path: Path, name: str | None = None) -> Run:
    """Reads an entry's table, converting accuracies to error rates and hours to training time.

    The run is named after model and hardware if the JSON file next to the table has them.
    """
    header, *rows = (line.split() for line in path.read_text("utf-8").splitlines() if line.strip())
    accuracies = [column for column in header if column in ACCURACIES]
    if not accuracies:
        raise UsageError(
            f"A DAWNBench table must have one of the columns {sorted(ACCURACIES)}. "
            f"Received: {path} with {header}."
        )
    table = _TableEvents()
    before_s = 0.0
    for number, cells in enumerate(rows, start=1):
        try:
            row = {column: float(cell) for column, cell in zip(header, cells, strict=True)}
        except ValueError as error:
            raise UsageError(
                f"Row {number} of {path} must have numbers for {header}. Received: {cells}."
            ) from error
        # Some entries count epochs from 0 and some skip epochs: only the order is used.
        table.train(3600 * row["hours"] - before_s, number)
        before_s = max(before_s, 3600 * row["hours"])
        stats = {ACCURACIES[c][0]: 1 - row[c] / ACCURACIES[c][1] for c in accuracies}
        table.evaluate(0.0, number, stats)
        table.end_epoch(number)
    entry = path.with_suffix(".json")
    described = json.loads(entry.read_text("utf-8")) if entry.is_file() else {}
    title = " on ".join(str(described[key]) for key in ("model", "hardware") if key in described)
    return Run(path, name or title or path.stem, table.end())


def _write_dawnbench(run: Run, path: Path, **described: Any) -> None:
    """Writes a run as a TSV at ``path`` with the hours of DAWNBench's policy, and a JSON file.

    ``described``: the JSON's fields, such as ``author`` and ``costPerHour``.
    """
    characters = {p.epoch: p.value for p in run.accuracy_curve("cer", "dawnbench")}
    rows: list[list[Any]] = [["epoch", "hours", "wordAccuracy", "characterAccuracy"]]
    for point in run.accuracy_curve("wer", "dawnbench"):
        rates = [point.value, characters.get(point.epoch, 1.0)]
        hours = point.elapsed_s / 3600
        rows.append([point.epoch, hours, *(100 * (1 - rate) for rate in rates)])
    _write_rows(path, rows, "\t")
    entry = {"version": "v1.0", "framework": "TensorFlow", "model": run.name, **described}
    write_whole(path.with_suffix(".json"), json.dumps(entry, indent=2) + "\n")


@dataclass(frozen=True)
class LogFormat:
    """A benchmark's format: ``read(path, name)`` returns a run, ``write(run, path)`` writes one."""

    suffixes: tuple[str, ...]  # of its files
    mark: bytes  # a pattern that its files have near their beginning
    read: Callable[[Path, str | None], Run]
    write: Callable[..., None]

    def recognises(self, path: Path) -> bool:
        if path.suffix not in self.suffixes:
            return False
        with path.open("rb") as file:
            return re.search(self.mark, file.read(_HEAD_BYTES)) is not None


mlperf = LogFormat((".txt", ".log"), PREFIX.encode(), _read_mlperf, _write_mlperf)
algoperf = LogFormat(
    (".csv",), rb"\A.*accumulated_submission_time", _read_algoperf, _write_algoperf
)
dawnbench = LogFormat((".tsv",), rb"\A[ \t]*epoch[ \t]+hours\b", _read_dawnbench, _write_dawnbench)
READERS = {"mlperf": mlperf, "algoperf": algoperf, "dawnbench": dawnbench}
