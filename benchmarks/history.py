"""How often ``tfasr history`` cries wolf, and how soon it finds a slower step, by simulation.

    python benchmarks/history.py [--seed 1] [--draws 300] [--measured FILE.json ...]
        [--out FILE.json]

A history has one run for each of 50 commits. False alarms are changes that are told where nothing
changed; a slower step (5, 10 or 20 %, from commit 20 on) is found if a slowdown is told that
begins within two commits of it, by the number of runs after it. Noise: step times measured on a
machine, resampled from the rounds of ``benchmarks/training_step.py`` (``--measured``) and from
repeated short runs; normal, of several sizes; and such that wanders from run to run.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.reports.history import changes

COMMITS, CHANGED_AT = 50, 20
SLOWER = (0.05, 0.10, 0.20)
RUNS_AFTER = (5, 8)

Noise = Callable[[np.random.Generator, int], np.ndarray]


def normal(spread: float) -> Noise:
    """Returns independent noise with that standard deviation of the logarithm."""
    return lambda rng, n: spread * rng.standard_normal(n)


def wandering(spread: float, kept: float) -> Noise:
    """Returns noise of which a share of each run's is kept by the next one's."""

    def noise(rng: np.random.Generator, n: int) -> np.ndarray:
        found = np.empty(n)
        found[0] = spread * rng.standard_normal()
        for index in range(1, n):
            new = spread * np.sqrt(1 - kept**2) * rng.standard_normal()
            found[index] = kept * found[index - 1] + new
        return found

    return noise


def resampled(deviations: np.ndarray) -> Noise:
    """Returns measured deviations in any order."""
    return lambda rng, n: rng.choice(deviations, n)


def in_order(deviations: np.ndarray) -> Noise:
    """Returns stretches of measured deviations as they came, so that neighbours stay neighbours."""

    def noise(rng: np.random.Generator, n: int) -> np.ndarray:
        found: list[float] = []
        length = min(10, deviations.size)
        while len(found) < n:
            begin = rng.integers(0, deviations.size - length + 1)
            found += list(deviations[begin : begin + length])
        return np.array(found[:n])

    return noise


def measured_deviations(paths: Sequence[Path]) -> np.ndarray:
    """Returns logarithms of times over their median, of lists of repeated times in JSON files.

    A file is a result of ``benchmarks/training_step.py``, of which tfasr's rows of three rounds or
    more count, or of ``benchmarks/time_to_accuracy.py``, whose runs of one system are repeated, or
    has a list ``step_s`` of repeated runs.
    """
    found = []
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        for times in _series(content):
            logs = np.log(times)
            # A median of few takes part of the noise with it.
            own = (logs - np.median(logs)) * np.sqrt(logs.size / (logs.size - 1))
            found.append(own)
    return np.concatenate(found)


def _series(content: dict[str, Any]) -> list[list[float]]:
    """Returns lists of times of the same thing."""
    if "step_s" in content:
        return [content["step_s"]]
    rows = [row for table in content["tables"] for row in table["rows"]]
    rounds = [
        row["rounds_ms"] for row in rows if row.get("system") == "tfasr" and "rounds_ms" in row
    ]
    by_system: dict[str, list[float]] = {}
    for row in rows:
        if "seed" in row:
            by_system.setdefault(row["system"], []).append(1 / row["utterances_per_s"])
    return [times for times in (*rounds, *by_system.values()) if len(times) >= 3]


def rows(noises: dict[str, Noise], draws: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yields for each noise the false alarms in 50 commits, and how often changes are found."""
    for name, noise in noises.items():
        rng = np.random.default_rng(seed)
        told = [len(changes(np.exp(noise(rng, COMMITS)))) for _ in range(draws)]
        row: dict[str, Any] = {
            "noise": name,
            "spread": float(np.std(noise(rng, 20_000 if "wanders" not in name else 5000))),
            "false_alarms": round(float(np.mean(told)), 3),
            "histories_with_one": round(100 * float(np.mean(np.array(told) > 0)), 1),
        }
        for size in SLOWER:
            for after in RUNS_AFTER:
                found = [_found(noise, size, after, rng) for _ in range(draws)]
                row[f"found_{round(100 * size)}_in_{after}"] = round(100 * float(np.mean(found)), 1)
        yield row


def _found(noise: Noise, size: float, after: int, rng: np.random.Generator) -> bool:
    values = np.exp(noise(rng, CHANGED_AT + after))
    values[CHANGED_AT:] *= 1 + size
    return any(c.ratio > 1 and abs(c.index - CHANGED_AT) <= 2 for c in changes(values))


def markdown(found: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as a table."""
    sizes = [(round(100 * size), after) for size in SLOWER for after in RUNS_AFTER]
    headings = ["noise of a run", "its spread, %", "false alarms in 50 commits"]
    headings += [f"{size} % slower, found in {after} runs, %" for size, after in sizes]
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    for row in found:
        cells = [row["noise"], f"{100 * row['spread']:.1f}", f"{row['false_alarms']:.2f}"]
        cells += [f"{row[f'found_{size}_in_{after}']:.0f}" for size, after in sizes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulates and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--measured", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    noises: dict[str, Noise] = {}
    for path in args.measured:
        deviations = measured_deviations([path])
        noises[f"measured, {path.stem}"] = resampled(deviations)
        if deviations.size >= 15:
            noises[f"measured, {path.stem}, in stretches"] = in_order(deviations)
    noises |= {f"normal, {100 * s:g} %": normal(s) for s in (0.01, 0.02, 0.03, 0.05)}
    noises |= {
        f"wanders, {100 * s:g} %, keeps {k:g}": wandering(s, k)
        for s, k in ((0.02, 0.5), (0.03, 0.5), (0.02, 0.8))
    }
    found = list(rows(noises, args.draws, args.seed))
    text = markdown(found)
    print(text, end="")
    if args.out is not None:
        content = {"seed": args.seed, "draws": args.draws, "rows": found}
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
