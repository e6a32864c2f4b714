"""Simulates false alarms of ``tfasr report --history`` and how soon it finds changes.

    python benchmarks/history.py [--seed 1] [--draws 40] [--measured FILE.json ...]
        [--out FILE.json]

A history has one run for each of 50 commits. A run takes about 12 epochs to the target
(varying by 10 % over seeds), each with 60 s of steps and 12 s of other work, after 30 s
of start-up; the four series of `tfasr report --history` are monitored. The noise is
either the run's (all its epochs vary together: a busy or different machine) or each
epoch's own. A false alarm is a reported change, or the exit code 3, in a history
without any change. A step that is 5, 10 or 20 % slower from run 20 on is found if a
slowdown is reported that starts within two runs of it; the second table has columns for
5 to 30 runs after it. The first also shows how often the exit code is 3 if steps only
became faster, or 15 runs after a step that was 30 % slower became 4 or 10 % faster, or
as fast as before.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.reports.history import History, PastRun, followed

COMMITS = 50
CHANGED_AT = 20
SLOWER = (0.05, 0.10, 0.20)
RUNS_AFTER = (5, 8, 16, 30)
EPOCHS = 12
EPOCHS_SPREAD = 0.10
STEPS_S = 60.0
REST_S = 12.0
START_S = 30.0
SPREADS = (0.03, 0.08, 0.15)

Noise = Callable[[np.random.Generator, int], np.ndarray]


def normal(spread: float) -> Noise:
    """Returns independent noise with that standard deviation of the logarithm."""
    return lambda rng, n: spread * rng.standard_normal(n)


def wandering(spread: float, share: float) -> Noise:
    """Returns noise in which each run keeps a share of the previous run's."""

    def noise(rng: np.random.Generator, n: int) -> np.ndarray:
        result = np.empty(n)
        result[0] = spread * rng.standard_normal()
        for index in range(1, n):
            new = spread * np.sqrt(1 - share**2) * rng.standard_normal()
            result[index] = share * result[index - 1] + new

        return result

    return noise


def resampled(deviations: np.ndarray) -> Noise:
    """Returns noise that draws from measured deviations, with replacement."""
    return lambda rng, n: rng.choice(deviations, n)


def in_order(deviations: np.ndarray) -> Noise:
    """Returns noise made of stretches of measured deviations, so that neighbours stay
    together.
    """

    def noise(rng: np.random.Generator, n: int) -> np.ndarray:
        result: list[float] = []
        length = min(10, deviations.size)
        while len(result) < n:
            begin = rng.integers(0, deviations.size - length + 1)
            result += list(deviations[begin : begin + length])

        return np.array(result[:n])

    return noise


def measured_deviations(paths: Sequence[Path]) -> np.ndarray:
    """Returns logarithms of times over their median, from lists of repeated times in
    JSON files.

    A file is a result of ``benchmarks/training_step.py`` (tfasr's rows with three or
    more rounds), of ``benchmarks/time_to_accuracy.py`` (each system's runs), or has a
    list ``step_s`` of repeated runs.
    """
    result = []
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        for times in _series(content):
            logs = np.log(times)
            # The factor: a few values lie too close to their own median, which shares
            # their noise.
            centred = (logs - np.median(logs)) * np.sqrt(logs.size / (logs.size - 1))
            result.append(centred)

    return np.concatenate(result)


def _series(content: dict[str, Any]) -> list[list[float]]:
    """Returns lists of times of the same thing."""
    if "step_s" in content:
        return [content["step_s"]]

    rows = [row for table in content["tables"] for row in table["rows"]]
    rounds = [
        row["rounds_ms"]
        for row in rows
        if row.get("system") == "tfasr" and "rounds_ms" in row
    ]
    by_system: dict[str, list[float]] = {}

    for row in rows:
        if "seed" in row:
            by_system.setdefault(row["system"], []).append(1 / row["utterances_per_s"])

    return [times for times in (*rounds, *by_system.values()) if len(times) >= 3]


def busy(rng: np.random.Generator, n: int) -> np.ndarray:
    """Returns noise of 3 %, with one run in six 1.6 times as slow."""
    return 0.03 * rng.standard_normal(n) + np.log(1.6) * (rng.random(n) < 1 / 6)


def each_epoch(spread: float) -> Noise:
    """Returns the noise of runs whose epochs vary independently: each run's mean over
    epochs.
    """

    def noise(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.log(np.exp(spread * rng.standard_normal((n, EPOCHS))).mean(axis=1))

    return noise


def simulated(noise: Noise, levels: np.ndarray, rng: np.random.Generator) -> History:
    """Returns a history of runs whose steps take ``levels`` times as long."""
    count = levels.size
    epochs = np.maximum(
        3, np.round(EPOCHS * np.exp(EPOCHS_SPREAD * rng.standard_normal(count)))
    )
    slower = np.exp(noise(rng, count))
    steps_s = STEPS_S * levels * slower * epochs
    times_s = steps_s + slower * (START_S + REST_S * epochs)
    entries = []

    for run in range(count):
        utterances = 1000 * epochs[run]
        values = {
            "time_s": times_s[run], "utterances": utterances,
            "step_s": steps_s[run] / utterances, "rest_s": None,
        }  # fmt: skip
        spent = (int(epochs[run]), START_S * slower[run])
        entries.append(
            PastRun(
                Path(str(run)), str(run), float(run), str(run), values, *spent, {}, ""
            )
        )

    return followed(("cer", 0.1), entries)


def _levels(*parts: tuple[int, float]) -> np.ndarray:
    return np.concatenate([np.full(count, level) for count, level in parts])


def row_of(name: str, draws: int, seed: int) -> dict[str, Any]:
    """Returns how often changes are reported with one kind of noise, in percent of
    histories.
    """
    noise = NOISES[name]
    rng = np.random.default_rng(seed)

    def histories(*parts: tuple[int, float], times: int = 1) -> list[History]:
        return [simulated(noise, _levels(*parts), rng) for _ in range(times * draws)]

    row: dict[str, Any] = {"noise": name, "draws": draws}
    row["spread"] = float(np.std(noise(rng, 5000)))
    unchanged = histories((COMMITS, 1.0), times=7)
    row["any_change"] = _percent(any(history.changes.values()) for history in unchanged)
    row["exit_3"] = _percent(history.slower for history in unchanged)

    for size in SLOWER:
        after = [_found_after(h) for h in histories((CHANGED_AT, 1.0), (30, 1 + size))]
        for runs in RUNS_AFTER:
            result = _percent(number <= runs for number in after)
            row[f"found_{round(100 * size)}_in_{runs}"] = result

    faster = [
        h for by in (0.9, 0.8, 0.7) for h in histories((CHANGED_AT, 1.0), (30, by))
    ]
    row["speed_up_exit_3"] = _percent(history.slower for history in faster)
    for by in (4, 10):
        repaired = histories((CHANGED_AT, 1.0), (15, 1.3), (15, 1.3 * (1 - by / 100)))
        row[f"repaired_by_{by}_exit_3"] = _percent(h.slower for h in repaired)

    good = histories((CHANGED_AT, 1.0), (15, 1.3), (15, 1.0))
    row["made_good_exit_3"] = _percent(history.slower for history in good)
    return row


def _percent(outcomes: Iterable[Any]) -> float:
    return round(100 * float(np.mean([bool(outcome) for outcome in outcomes])), 1)


def _found_after(history: History) -> float:
    """Returns after how many runs the slower step was first reported; infinity for never."""
    slower = [
        change.found_at + 1 - CHANGED_AT
        for changes in history.changes.values()
        for change in changes
        if change.z > 0 and abs(change.index - CHANGED_AT) <= 2
    ]
    return min(slower, default=np.inf)


NOISES: dict[str, Noise] = {
    **{f"each epoch's own, {100 * s:g} %": each_epoch(s) for s in SPREADS},
    **{f"the run's, {100 * s:g} %": normal(s) for s in SPREADS},
    "the run's, 5 %": normal(0.05),
    "the run's, 3 %, keeps half of the last one's": wandering(0.03, 0.5),
    "the run's, 3 %, one in six 1.6 times as slow": busy,
}


def _table(result: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    lines = [
        f"| noise | its spread, % | {' | '.join(columns)} |",
        f"|---|{'---:|' * (len(columns) + 1)}",
    ]
    for row in result:
        cells = [row["noise"], f"{100 * row['spread']:.1f}"]
        for name in columns.values():
            digits = int(row[name] < 10)
            cells.append(f"{row[name]:.{digits}f}")

        lines.append(f"| {' | '.join(cells)} |")

    return "\n".join(lines) + "\n"


def markdown(result: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as tables."""
    alarms = {
        "any change reported": "any_change",
        "exit 3": "exit_3",
        "exit 3, steps only faster": "speed_up_exit_3",
        "exit 3, 30 % slower then 4 % faster": "repaired_by_4_exit_3",
        "then 10 % faster": "repaired_by_10_exit_3",
        "then made good": "made_good_exit_3",
    }
    power = {
        f"{size} % in {runs}": f"found_{size}_in_{runs}"
        for size, all_runs in ((5, (8, 30)), (10, RUNS_AFTER), (20, (5, 8)))
        for runs in all_runs
    }
    return f"{_table(result, alarms)}\n{_table(result, power)}"


def main() -> None:
    """Simulates and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--measured", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    for path in args.measured:
        deviations = measured_deviations([path])
        NOISES[f"measured, {path.stem}"] = resampled(deviations)
        if deviations.size >= 15:
            NOISES[f"measured, {path.stem}, in stretches"] = in_order(deviations)

    # Forked, so that workers inherit `NOISES`, whose functions can't be pickled.
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        row = partial(row_of, draws=args.draws, seed=args.seed)
        result = list(pool.map(row, NOISES))

    text = markdown(result)
    print(text, end="")
    if args.out is not None:
        content = {"seed": args.seed, "draws": args.draws, "rows": result}
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
