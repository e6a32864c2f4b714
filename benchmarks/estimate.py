"""Tests ``tfasr estimate`` on kept runs: holds out a machine or a seed at a time.

    python benchmarks/estimate.py [--machines] [--format markdown|json]

Needs no training: it reads the runs by seed in ``benchmarks/results`` and the shipped
catalogue.

*A machine held out*: a run's time is estimated from the utterances that runs on other
machines needed, and from the speed, start and evaluations of one other run on its
machine, which stands for the minute that ``tfasr estimate`` takes there. *From its
step*: the speed comes instead from that of another machine, scaled by both machines'
training step of ``an4.gin``'s size, which stands for ``--machine FILE``. *A seed held
out*: a run's utterances are estimated from those of the others. Coverage is the share
of runs within the 80 % interval; the error that of its middle. ``SPEED_ERROR`` and
``MACHINE_ERROR`` were chosen on these runs, the spread between seeds was not.

``--machines`` prints instead how long AN4 took to CER 15 % on each machine, beside the
same recipe in PyTorch, with the same seeds and in turns: the table of docs/estimate.md.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tfasr.display.table import Table, to_markdown
from tfasr.estimates.entries import CatalogueEntry, read_catalogue
from tfasr.estimates.interval import (
    MACHINE_ERROR,
    drawn_speeds,
    drawn_utterances,
    range_of,
)

RESULTS = Path(__file__).parent / "results"
GPU = "NVIDIA H200 (JAX)"
AN4_UTTERANCES = 845
# The files with runs by seed, their machine, and the milliseconds of tfasr's step of
# an4.gin's size (16 x 300 frames, float32) there, from the second file.
RUNS = {
    "2026-11-21-time_to_accuracy.json": (
        "AMD EPYC (Zen 4)",
        "2026-11-21-training_step_an4.json",
    ),
    "2026-11-22-time_to_accuracy_fast_an4.json": (
        "AMD EPYC (Zen 3)",
        "2026-11-22-training_step_an4.json",
    ),
    "2026-11-22-time_to_accuracy_fast_an4_intel.json": (
        "Intel Xeon (AVX-512), 22 Nov",
        "2026-11-22-training_step_intel_avx512.json",
    ),
    "2026-11-23-time_to_accuracy_fast_an4_intel.json": (
        "Intel Xeon (AVX-512), 23 Nov",
        "2026-11-22-training_step_intel_avx512.json",
    ),
    "2026-11-24-time_to_accuracy.json": (
        "AMD EPYC (Zen 4)",
        "2026-11-21-training_step_an4.json",
    ),
}
# The recipe of each system in these files; the other fast runs trained another model.
FAST_PARAMETERS = 533_662
AN4_PARAMETERS = 1_849_886
# Seconds and epochs by seed where only the page was kept: Zen 5 and AMX, the code of
# that evening.
PAGES = {
    "AMD EPYC (Zen 5)": (
        [10.6, 9.9, 13.2, 11.0, 10.6, 8.9, 10.1, 9.2],
        [7, 6, 8, 7, 7, 6, 7, 6],
    ),
    "Intel Xeon (AMX)": (
        [13.7, 14.2, 11.6, 12.1, 15.3, 11.9, 11.6, 11.5],
        [7, 7, 6, 6, 8, 6, 6, 6],
    ),
}


@dataclass(frozen=True)
class Kept:
    recipe: str
    machine: str
    seed: int | None
    epochs: int
    seconds: float
    start_s: float  # what doesn't grow with the epochs
    epoch_s: float  # everything that does
    step_ms: float | None  # of the reference step on its machine


def kept_runs() -> Iterator[Kept]:
    """Yields the runs that met CER 15 %, from tables, pages and the H200's record."""
    for name, (machine, step_file) in RUNS.items():
        step_ms = _step_ms(step_file)
        for row in _runs_by_seed(name):
            recipe = _recipe(row)
            if recipe is None or row["minutes"] is None:
                continue

            seconds = 60 * row["minutes"]
            start_s = seconds * row["startup_pct"] / 100
            epoch_s = (seconds - start_s) / row["epoch"]

            yield Kept(
                recipe,
                machine,
                row["seed"],
                row["epoch"],
                seconds,
                start_s,
                epoch_s,
                step_ms,
            )

    for machine, (times, epochs) in PAGES.items():
        # A straight line through the page's times gives the part that doesn't grow.
        epoch_s, start_s = np.polyfit(epochs, times, 1)
        for seconds, count in zip(times, epochs, strict=True):
            own_s = (seconds - start_s) / count
            yield Kept(
                "fast/an4.gin",
                machine,
                None,
                count,
                seconds,
                float(start_s),
                own_s,
                None,
            )

    yield from _gpu_runs()


def _recipe(row: dict) -> str | None:
    if row["system"] == "torch":
        return None

    return _recipe_of_size(row)


def _recipe_of_size(row: dict) -> str | None:
    return {FAST_PARAMETERS: "fast/an4.gin", AN4_PARAMETERS: "an4.gin"}.get(
        row["parameters"]
    )


def twins_seconds() -> dict[tuple[str, str], list[float]]:
    """Returns the seconds of the PyTorch twin's runs by recipe and machine, as
    `kept_runs` does.
    """
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, (machine, _) in RUNS.items():
        for row in _runs_by_seed(name):
            recipe = _recipe_of_size(row)
            if row["system"] == "torch" and recipe and row["minutes"] is not None:
                seconds[recipe, machine].append(60 * row["minutes"])

    for name, task in _gpu_tasks().items():
        if name.startswith("torch/") and not name.endswith("seed 1"):
            seconds["fast/an4.gin", GPU].append(task["answer"]["reached_s"]["cer=0.15"])

    return seconds


def _runs_by_seed(name: str) -> list[dict]:
    tables = json.loads((RESULTS / name).read_text())["tables"]
    return next(table["rows"] for table in tables if "by run" in table["title"])


def _gpu_tasks() -> dict[str, dict]:
    return json.loads((RESULTS / "2026-11-26-gpu.json").read_text())["an4"]["tasks"]


def _gpu_runs() -> Iterator[Kept]:
    for name, task in _gpu_tasks().items():
        answer = task["answer"]
        # The first run compiled its programs, which the others found in a cache.
        if not name.startswith("tfasr/jax") or name.endswith("seed 1"):
            continue

        spent = answer["intervals_s"]
        start_s = spent["init"] + spent["compile"]
        seconds = answer["reached_s"]["cer=0.15"]
        epochs = answer["epochs"]
        epoch_s = (seconds - start_s) / epochs

        yield Kept("fast/an4.gin", GPU, None, epochs, seconds, start_s, epoch_s, None)


def _step_ms(name: str) -> float:
    rows = json.loads((RESULTS / name).read_text())["tables"][0]["rows"]
    return next(
        row["step_ms"]
        for row in rows
        if row["system"] == "tfasr"
        and row["precision"] == "float32"
        and row["size"] == "an4"
    )


@dataclass(frozen=True)
class Checked:
    what: str
    machine: str
    runs: int
    covered: float  # share of the runs within their 80 % interval
    error: float  # median over the runs of the middle's absolute relative error
    bias: float  # the middle over the run, geometric mean

    @classmethod
    def of(cls, what: str, machine: str, rows: list[tuple[bool, float]]) -> "Checked":
        logs = [math.log(ratio) for _, ratio in rows]
        return cls(
            what,
            machine,
            len(rows),
            statistics.fmean(inside for inside, _ in rows),
            statistics.median(abs(ratio - 1) for _, ratio in rows),
            math.exp(statistics.fmean(logs)),
        )


def machines_held_out(kept: list[Kept]) -> Iterator[Checked]:
    """Estimates every run from the utterances of other machines and one other run's speed."""
    groups: dict[tuple[str, str], list[Kept]] = defaultdict(list)
    for run in kept:
        groups[run.recipe, run.machine].append(run)

    for (recipe, machine), runs in groups.items():
        others = [
            r.epochs for r in kept if r.recipe == recipe and _kind(r) != _kind(runs[0])
        ]
        rows = []
        for place, run in enumerate(runs):
            measured = runs[place - 1]  # another run on the machine
            if len(runs) > 1 and others:
                rows.append(
                    _compared(run, others, measured.start_s, measured.epoch_s, 0.0)
                )

        if rows:
            yield Checked.of(f"{recipe}, machine held out", machine, rows)


def steps_held_out(kept: list[Kept]) -> Iterator[Checked]:
    """Estimates each machine's runs from another machine's and the ratio of their steps."""
    of_steps = [run for run in kept if run.step_ms is not None]
    machines = dict.fromkeys((run.recipe, run.machine) for run in of_steps)
    for recipe, machine in machines:
        own = [
            run for run in of_steps if (run.recipe, run.machine) == (recipe, machine)
        ]
        others = [
            r for r in of_steps if r.recipe == recipe and _kind(r) != _kind(own[0])
        ]
        rows = []

        for run in own:
            for other in others:
                ratio = run.step_ms / other.step_ms
                epochs = [r.epochs for r in others]
                rows.append(
                    _compared(
                        run,
                        epochs,
                        other.start_s * ratio,
                        other.epoch_s * ratio,
                        MACHINE_ERROR,
                    )
                )

        if rows:
            yield Checked.of(f"{recipe}, from its step", machine, rows)


def _kind(run: Kept) -> str:
    return run.machine.partition(",")[0]


def _compared(
    run: Kept, others: list[int], start_s: float, epoch_s: float, error: float
) -> tuple[bool, float]:
    rng = np.random.default_rng(0)
    epochs = drawn_utterances(others, step=1, rng=rng)
    speed = drawn_speeds(error, np.random.default_rng(1))
    times = range_of(start_s + epochs * epoch_s * speed)

    return times.low <= run.seconds <= times.high, times.middle / run.seconds


def seeds_held_out(entries: list[CatalogueEntry]) -> Iterator[Checked]:
    """Estimates each run's utterances from the other runs of its entry, for each target."""
    for entry in entries:
        for name in entry.targets() or ["cer=0.05", "cer=0.1"]:
            metric, _, value = name.partition("=")
            target = metric, float(value)
            met = [
                n for n in entry.utterances_to(target, entry.window) if n is not None
            ]
            rows = []

            for place, run in enumerate(met):
                others = [*met[:place], *met[place + 1 :]]
                if others:
                    rng = np.random.default_rng(0)
                    drawn = drawn_utterances(
                        others, step=entry.train_utterances, rng=rng
                    )
                    seen = range_of(drawn)
                    rows.append((seen.low <= run <= seen.high, seen.middle / run))

            if rows:
                yield Checked.of(f"{entry.recipe}, {name}, seed held out", "all", rows)


def table_of(rows: list[Checked]) -> Table:
    cells = [
        [
            row.what,
            row.machine,
            str(row.runs),
            f"{row.covered:.0%}",
            f"{row.error:.0%}",
            f"{row.bias:.2f}",
        ]
        for row in rows
    ]
    headings = [
        "what",
        "machine",
        "estimates",
        "in the 80 % interval",
        "median error",
        "over run",
    ]
    return Table("Estimates against kept runs", headings, cells, [])


@dataclass(frozen=True)
class MachineRow:
    """How long one machine took from the creation of the model to CER 15 % on AN4."""

    machine: str
    recipe: str
    seconds: list[float]  # by run
    # Of the same recipe in PyTorch; empty: not run in turns with these.
    twin_seconds: list[float]


def machine_rows(kept: list[Kept]) -> list[MachineRow]:
    """Returns a row for each recipe and machine, the shortest median first."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in kept:
        seconds[run.recipe, run.machine].append(run.seconds)

    twins = twins_seconds()
    rows = [
        MachineRow(machine, recipe, taken, twins.get((recipe, machine), []))
        for (recipe, machine), taken in seconds.items()
    ]

    return sorted(
        rows, key=lambda row: (row.recipe != "fast/an4.gin", np.median(row.seconds))
    )


def table_of_machines(rows: list[MachineRow]) -> Table:
    """Returns the rows as a table of seconds: medians, fastest and slowest run, number
    of runs.
    """
    cells = [
        [row.recipe, row.machine, _spread(row.seconds), _spread(row.twin_seconds)]
        for row in rows
    ]
    headings = ["recipe", "machine", "tfasr, seconds", "PyTorch twin, seconds"]
    return Table("AN4 to CER 15 %, by machine", headings, cells, [])


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "—"

    runs = f"{len(seconds)} runs"
    if len(seconds) == 1:
        runs = "1 run"

    median = statistics.median(seconds)
    return f"{median:.0f} ({min(seconds):.0f} to {max(seconds):.0f}, {runs})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--machines", action="store_true", help="the table of machines instead"
    )
    parser.add_argument("--format", choices=("markdown", "json"), default="markdown")
    arguments = parser.parse_args()

    kept = list(kept_runs())

    if arguments.machines:
        machines = machine_rows(kept)
        if arguments.format == "json":
            print(json.dumps([asdict(row) for row in machines], indent=1))
        else:
            print(to_markdown([table_of_machines(machines)]))

        return

    rows = [
        *machines_held_out(kept),
        *steps_held_out(kept),
        *seeds_held_out(read_catalogue()),
    ]
    for end in ("machine held out", "from its step", "seed held out"):
        of_kind = [row for row in rows if row.what.endswith(end)]
        runs = sum(row.runs for row in of_kind)
        rows.append(
            Checked(
                f"all, {end}",
                "all",
                runs,
                sum(row.covered * row.runs for row in of_kind) / runs,
                statistics.median(row.error for row in of_kind),
                math.exp(sum(math.log(row.bias) * row.runs for row in of_kind) / runs),
            )
        )

    if arguments.format == "json":
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(to_markdown([table_of(rows)]))


if __name__ == "__main__":
    main()
