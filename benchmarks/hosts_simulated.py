"""Simulates what blocks do for a study whose hosts have different speeds.

    python benchmarks/hosts_simulated.py [--seed 1] [--draws 4000] [--out FILE.json]

Two groups of 12 runs vary over seeds (CV 3 %), and the second takes 1 to 1.2 times as
long. Twelve hosts are alike, or their speeds lie evenly between 1 and 1.3. In *blocks*,
a host trains both runs of a seed, as ``tfasr study --scheduler`` does. *Scattered*,
each run goes to any host. *By group*, each group has hosts of its own, and all of the
first group's are the faster ones. Verdicts are those of tfasr's own code at 5 %, with
160 evaluations to the target.
"""

import argparse
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from interval_coverage import Ends, log_normal, read, share

from tfasr.tta.comparison import LEVEL
from tfasr.tta.ranks import GROUPS, PAIRS, compare_ends

RUNS = 12
VARIATION = 0.03
RATIOS = (1.0, 1.05, 1.1, 1.2)
WIDTHS = (0.0, 0.3)  # by how much the slowest host is slower than the fastest
EVALUATIONS = 160  # to the target
LAYOUTS = ("blocks", "scattered", "by group")


def host_times(
    width: float, layout: str, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns how slow the host of each run is, ``(draws, 2 groups, 12 runs)``."""
    speeds = 1 + width * np.linspace(0, 1, RUNS)
    if layout == "blocks":
        of_seeds = rng.permuted(np.tile(speeds, (draws, 1)), axis=1)
        return np.stack([of_seeds, of_seeds], axis=1)

    if layout == "scattered":
        return rng.choice(speeds, (draws, 2, RUNS))

    halves = np.stack(
        [np.repeat(speeds[: RUNS // 2], 2), np.repeat(speeds[RUNS // 2 :], 2)]
    )
    return rng.permuted(np.tile(halves, (draws, 1, 1)), axis=2)


def groups_of(
    draws: int, ratio: float, width: float, layout: str, rng: np.random.Generator
) -> tuple[Ends, Ends]:
    """Returns brackets ``(draws, 12)`` of two groups."""
    centre = EVALUATIONS + rng.uniform(-0.5, 0.5, (draws, 1, 1))
    times = centre * log_normal(VARIATION, (draws, 2, RUNS), rng)
    low, high = read(times, 1.0, 3, rng)[0]
    # A slow host stretches the time between evaluations as well.
    pace = host_times(width, layout, draws, rng)
    low = np.log(low * pace)
    high = np.log(high * pace)
    later = math.log(ratio)

    return (low[:, 0], high[:, 0]), (low[:, 1] + later, high[:, 1] + later)


def rows_of(draws: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Returns in how many percent of studies a test finds a difference, for each true
    ratio.
    """
    rows = []
    for width, layout in itertools.product(WIDTHS, LAYOUTS):
        result = {
            ratio: groups_of(draws, ratio, width, layout, rng) for ratio in RATIOS
        }
        for test in (GROUPS, PAIRS):
            row: dict[str, Any] = {
                "hosts_differ": width,
                "layout": layout,
                "test": test,
            }
            for ratio, groups in result.items():
                compared = compare_ends(*groups, test, 1 - LEVEL)
                row[f"verdict at {ratio:g}"] = share(compared.p_value < LEVEL)

            rows.append(row)

    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the rows as Markdown."""
    lines = [f"| {' | '.join(rows[0])} |", f"|{'---|' * len(rows[0])}"]
    lines += [f"| {' | '.join(map(str, row.values()))} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    rows = rows_of(arguments.draws, np.random.default_rng(arguments.seed))
    print(table(rows))

    if arguments.out:
        about = {"seed": arguments.seed, "draws": arguments.draws, "rows": rows}
        arguments.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
