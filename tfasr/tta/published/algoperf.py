"""AlgoPerf's ``eval_measurements.csv``: one row per evaluation, with accumulated clocks.

Source: github.com/mlcommons/algorithmic-efficiency, submission_runner.py.
"""

import csv
import io
import math
from pathlib import Path

from tfasr.errors import UsageError
from tfasr.kit.files import write_whole
from tfasr.ledger.intervals import evaluated_epoch
from tfasr.tta.policies import POLICIES
from tfasr.tta.published.results import TableEvents
from tfasr.tta.run import Run

CLOCKS = ("accumulated_submission_time", "accumulated_eval_time", "total_duration")
COLUMNS = {"validation/wer": "wer", "validation/ctc_loss": "loss"}


def recognises(path: Path) -> bool:
    if path.suffix != ".csv":
        return False
    with path.open("rb") as file:
        return b"accumulated_submission_time" in file.readline()


def read(path: Path, name: str | None = None) -> Run:
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
    table = TableEvents()
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
        table.save(clocks[total])
        table.end_epoch(epoch)
        before = clocks
    return Run(path, name or path.stem, table.end())


def write(run: Run, path: Path) -> None:
    points = run.accuracy_curve("wer", "algoperf")
    total = {p.epoch: p.elapsed_s for p in run.accuracy_curve("wer", "mlperf")}
    evaluated = _evaluation_s(run)
    losses = {p.epoch: p.value for p in run.accuracy_curve("loss")}
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*CLOCKS, "validation/wer", "validation/ctc_loss"])
    for point in points:
        epoch = point.epoch
        clocks = [point.elapsed_s, evaluated.get(epoch, 0.0), total[epoch]]
        writer.writerow([*clocks, point.value, losses.get(epoch, "")])
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
