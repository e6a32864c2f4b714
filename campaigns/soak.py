"""Checks that a long training doesn't leak memory: the demo's model, 500 epochs on little speech.

    python campaigns/soak.py [--epochs 500] [--utterances 16] [--folder DIR] [--format json]

The training process's resident memory is read from another process five times a second. Its mean
over the last ten epochs is compared with that over epochs 20 to 29. At each quarter of the run, the
size of the ledger so far and the CPU time of a report on it are measured: both should grow linearly
with the epochs. Exits with 1 if the memory grew by more than 3 %, or if the size or CPU time at the
end is more than 25 % above twice that at half of the run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tfasr.corpora.synthetic import make_synthetic_corpus
from tfasr.kit.files import EVENTS_FILE
from tfasr.reports.write import report

MOST_GROWTH = 0.03
MOST_BEYOND_LINEAR = 0.25
WARM_EPOCHS = 20
MEAN_EPOCHS = 10
_REPORTS = 15
_EVERY_S = 0.2


def main() -> None:
    """Trains, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument(
        "--utterances", type=int, default=16, help="to train on, in batches of 8"
    )
    parser.add_argument(
        "--folder", type=Path, help="gets corpus and run; default: temporary"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    if arguments.epochs < 2 * (WARM_EPOCHS + MEAN_EPOCHS):
        parser.error(f"--epochs must be {2 * (WARM_EPOCHS + MEAN_EPOCHS)} or more.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        found = soak(folder, arguments.epochs, arguments.utterances)

    print(
        json.dumps(found, indent=2) if arguments.format == "json" else in_words(found)
    )
    sys.exit(0 if found["passed"] else 1)


def soak(folder: Path, epochs: int, utterances: int) -> dict[str, Any]:
    """Trains, and returns the memory, ledger sizes and report costs, and how they grew."""
    make_synthetic_corpus(
        folder / "corpus",
        num_train=utterances,
        num_validation=8,
        num_test=1,
        num_voices=12,
    )
    prepare = ("--corpus", "synthetic", "--corpus_dir", folder / "corpus")
    subprocess.run(
        tfasr("prepare", *prepare, "--shard_dir", folder / "shards"), check=True
    )
    run_dir = folder / "run"
    bindings = (
        f"TrainingConfig.epochs = {epochs}",
        "TrainingConfig.stop_at_targets = False",
    )
    words = ["train", "--gin_file", "demo.gin", "--shard_dir", folder / "shards"]
    words += ["--run_dir", run_dir, "--no_memory_probe"]
    for binding in bindings:
        words += ["--gin_binding", binding]
    began = time.monotonic()
    resident = watched(tfasr(*words), run_dir, folder / "training.log")
    wall_s = time.monotonic() - began
    lines = (run_dir / EVENTS_FILE).read_bytes().splitlines(keepends=True)
    quarters = [round(epochs * part / 4) for part in (1, 2, 3, 4)]
    sizes = tuple(cut_after(lines, last, folder) for last in quarters)
    costs = report_costs_cpu_s([folder / f"until-{last}" for last in quarters])
    early = mean_of(resident, WARM_EPOCHS, WARM_EPOCHS + MEAN_EPOCHS)
    late = mean_of(resident, epochs - MEAN_EPOCHS, epochs)
    found = {
        "epochs": epochs,
        "utterances": utterances,
        "wall_s": wall_s,
        "load": os.getloadavg()[0],
        "resident_mb": {
            "early": early / 1e6,
            "late": late / 1e6,
            "growth": late / early - 1,
        },
        "resident_mb_by_epoch": {
            last: mean_of(resident, last - MEAN_EPOCHS, last) / 1e6
            for last in (MEAN_EPOCHS, 2 * MEAN_EPOCHS, 50, *quarters)
        },
        "ledger_bytes": dict(zip(quarters, sizes, strict=True)),
        "report_cpu_s": dict(zip(quarters, costs, strict=True)),
        "beyond_linear": {
            "ledger": beyond_linear(sizes),
            "report": beyond_linear(costs),
        },
    }
    grew = late / early - 1 > MOST_GROWTH
    linear = max(found["beyond_linear"].values()) <= MOST_BEYOND_LINEAR
    return {**found, "passed": linear and not grew}


def tfasr(*words: object) -> list[str]:
    """Returns the arguments of a process that runs a tfasr command."""
    return [sys.executable, "-m", "tfasr.cli", *map(str, words)]


def watched(command: list[str], run_dir: Path, log: Path) -> list[tuple[int, int]]:
    """Runs a training; returns samples of its current epoch and its resident bytes."""
    seen: list[tuple[int, int]] = []
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    watcher = psutil.Process(process.pid)
    ledger = LedgerEnd(run_dir / EVENTS_FILE)
    while process.poll() is None:
        try:
            seen.append((ledger.epochs_begun(), watcher.memory_info().rss))
        except psutil.NoSuchProcess:
            break

        time.sleep(_EVERY_S)

    if process.wait():
        raise SystemExit(
            f"The training failed. Its output ends: {log.read_text()[-2000:]}"
        )
    return seen


class LedgerEnd:
    """Counts the epochs begun in a growing ledger; each call reads only what is new."""

    def __init__(self, path: Path):
        self._path = path
        self._read = 0
        self._epochs = 0

    def epochs_begun(self) -> int:
        """Returns how many epochs have begun."""
        if self._path.is_file():
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()

            whole = new.rfind(b"\n") + 1
            self._read += whole
            self._epochs += new[:whole].count(b'"epoch_start"')

        return self._epochs


def mean_of(resident: list[tuple[int, int]], first: int, end: int) -> float:
    """Returns the mean resident bytes while the epochs ``first`` to ``end - 1`` were
    trained.
    """
    return statistics.fmean(size for epoch, size in resident if first <= epoch < end)


def cut_after(lines: list[bytes], epoch: int, folder: Path) -> int:
    """Writes a run whose ledger ends after an epoch; returns the ledger's size in bytes."""
    ends = [number for number, line in enumerate(lines, 1) if b'"epoch_stop"' in line]
    kept = lines[: ends[epoch - 1]]
    cut = folder / f"until-{epoch}"
    cut.mkdir(exist_ok=True)
    (cut / EVENTS_FILE).write_bytes(b"".join(kept))
    return sum(map(len, kept))


def report_costs_cpu_s(run_dirs: Sequence[Path]) -> tuple[float, ...]:
    """Returns the CPU seconds of a report on each run: the minimum of several.

    The runs are measured in turns, so that other work on the machine affects all of
    them alike.
    """
    rounds = [[report_cpu_s(run_dir) for run_dir in run_dirs] for _ in range(_REPORTS)]
    return tuple(map(min, zip(*rounds, strict=True)))


def report_cpu_s(run_dir: Path) -> float:
    """Returns the CPU seconds of a report, without those of starting Python."""
    began = time.process_time()
    report([run_dir])
    return time.process_time() - began


def beyond_linear(costs: Sequence[float]) -> float:
    """Returns how far the whole run's cost exceeds twice that of its half, as a fraction.

    Linear costs give 0.

    Args:
        costs: after each quarter of the run.
    """
    _, half, _, whole = costs
    return whole / (2 * half) - 1


def in_words(found: dict[str, Any]) -> str:
    """Returns the figures as text."""
    memory = found["resident_mb"]
    bent = found["beyond_linear"]
    lines = [
        f"{found['epochs']} epochs of {found['utterances']} utterances in {found['wall_s']:.0f} s; "
        f"load {found['load']:.1f}",
        f"resident: {memory['early']:.1f} MB in epochs {WARM_EPOCHS} to "
        f"{WARM_EPOCHS + MEAN_EPOCHS - 1}, {memory['late']:.1f} MB in the last {MEAN_EPOCHS}: "
        f"{100 * memory['growth']:+.2f} % (at most {100 * MOST_GROWTH:.0f} %)",
    ]
    for name, unit, scale in (
        ("resident_mb_by_epoch", "MB", 1),
        ("ledger_bytes", "kB", 1e-3),
        ("report_cpu_s", "CPU s", 1),
    ):
        shown = ", ".join(
            f"{scale * cost:.3g} at {at}" for at, cost in found[name].items()
        )
        lines.append(f"{name.split('_')[0]}, {unit}: {shown}")

    lines.append(
        f"beyond linear: ledger {100 * bent['ledger']:+.1f} %, report {100 * bent['report']:+.1f} %"
    )
    return "\n".join([*lines, "passed" if found["passed"] else "FAILED"])


if __name__ == "__main__":
    main()
