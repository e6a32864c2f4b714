"""DAWNBench's entries: a TSV of epoch, hours and accuracies, and a JSON that describes it.

Source: github.com/stanford-futuredata/dawn-bench-entries, README.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError
from tfasr.kit.files import write_whole
from tfasr.tta.published.results import TableEvents
from tfasr.tta.run import Run

# For each accuracy column: the name of its error rate, and the value that means 100 %.
COLUMNS = {
    "top1Accuracy": ("top1_error", 100.0),
    "top5Accuracy": ("top5_error", 100.0),
    "f1Score": ("f1_error", 1.0),
    "wordAccuracy": ("wer", 100.0),
    "characterAccuracy": ("cer", 100.0),
}


def recognises(path: Path) -> bool:
    if path.suffix != ".tsv":
        return False
    with path.open("rb") as file:
        return file.readline().split()[:2] == [b"epoch", b"hours"]


def read(path: Path, name: str | None = None) -> Run:
    """Reads an entry's table, converting accuracies to error rates and hours to training time.

    The run is named after model and hardware if the JSON file next to the table has them.
    """
    header, *rows = (line.split() for line in path.read_text("utf-8").splitlines() if line.strip())
    accuracies = [column for column in header if column in COLUMNS]
    if not accuracies:
        raise UsageError(
            f"A DAWNBench table must have one of the columns {sorted(COLUMNS)}. "
            f"Received: {path} with {header}."
        )
    table = TableEvents()
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
        stats = {COLUMNS[c][0]: 1 - row[c] / COLUMNS[c][1] for c in accuracies}
        table.evaluate(0.0, number, stats)
        table.end_epoch(number)
    entry = path.with_suffix(".json")
    described = json.loads(entry.read_text("utf-8")) if entry.is_file() else {}
    title = " on ".join(str(described[key]) for key in ("model", "hardware") if key in described)
    return Run(path, name or title or path.stem, table.end())


def write(run: Run, path: Path, **described: Any) -> None:
    """Writes a run as a TSV at ``path`` with the hours of DAWNBench's policy, and a JSON file.

    ``described``: the JSON's fields, such as ``author`` and ``costPerHour``.
    """
    words = run.accuracy_curve("wer", "dawnbench")
    characters = {p.epoch: p.value for p in run.accuracy_curve("cer", "dawnbench")}
    file = io.StringIO()
    writer = csv.writer(file, delimiter="\t", lineterminator="\n")
    writer.writerow(["epoch", "hours", "wordAccuracy", "characterAccuracy"])
    for point in words:
        rates = [point.value, characters.get(point.epoch, 1.0)]
        hours = point.elapsed_s / 3600
        writer.writerow([point.epoch, hours, *(100 * (1 - rate) for rate in rates)])
    write_whole(path, file.getvalue())
    entry = {"version": "v1.0", "framework": "TensorFlow", "model": run.name, **described}
    write_whole(path.with_suffix(".json"), json.dumps(entry, indent=2) + "\n")
