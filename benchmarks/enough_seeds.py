"""Simulates how often a comparison with looks errs, and how many seeds it saves.

    python benchmarks/enough_seeds.py [--seed 1] [--draws 4000] [--quick] [--out FILE.json]

Two groups' times vary over seeds and over the host's speed, and are rounded up to
evaluations. The second group takes 1 to 1.5 times as long. Groups are compared after
some of 5, 8 and 12 runs, by tfasr's own code; "at once" is one test of 12 runs at 5 %.
Hosts: "even" has one speed; on "one in six" and "two speeds" one run in six, or in two,
takes 1.6 times as long, independently; "real" resamples stretches of times that one
piece of work took on a busy host (benchmarks/results/2026-11-28-host.json). The two
groups take turns on it.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from interval_coverage import Ends, read, share, slowed, spread_of

from tfasr.tta.comparison import LEVEL, LOOKS, levels, looks_of
from tfasr.tta.ranks import GROUPS, PAIRS, compare_ends

RATIOS = (1.0, 1.05, 1.1, 1.2, 1.5)
VARIATIONS = (0.03, 0.10)
SHARED = (0.0, 0.9)  # of the variance over seeds, by runs of equal seeds
EVALUATIONS = 160  # to the target
HOSTS = ("even", "one in six", "two speeds", "real")
HOST_FILE = Path(__file__).parent / "results" / "2026-11-28-host.json"

Row = dict[str, Any]


def host_times(host: str, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Returns how slow the host is in each run, ``(draws, 2 groups, 12 runs)``."""
    runs = LOOKS[-1]
    even = np.ones((draws, 2, runs))
    if host == "even":
        return even

    if host != "real":
        return slowed(even, {"one in six": 1 / 6, "two speeds": 1 / 2}[host], rng)

    measured = np.array(json.loads(HOST_FILE.read_text())["seconds"])
    begin = rng.integers(0, measured.size, (draws, 1))
    turns = measured[(begin + np.arange(2 * runs)) % measured.size]
    pairs = turns.reshape(draws, runs, 2) / np.median(measured)
    # The second group goes first at every other seed.
    pairs[:, 1::2] = pairs[:, 1::2, ::-1]

    return pairs.transpose(0, 2, 1)


def groups_of(
    draws: int,
    ratio: float,
    variation: float,
    shared: float,
    host: str,
    rng: np.random.Generator,
) -> tuple[Ends, Ends]:
    """Returns brackets ``(draws, 12)`` of two groups."""
    runs = LOOKS[-1]
    common = rng.standard_normal((draws, 1, runs))
    own = rng.standard_normal((draws, 2, runs))
    noise = math.sqrt(shared) * common + math.sqrt(1 - shared) * own

    centre = EVALUATIONS + rng.uniform(-0.5, 0.5, (draws, 1, 1))
    pace = host_times(host, draws, rng)
    # A slow host stretches the time between evaluations as well.
    low, high = read(centre * np.exp(spread_of(variation) * noise), 1.0, 3, rng)[0]
    low = np.log(low * pace)
    high = np.log(high * pace)
    second = math.log(ratio)

    return (low[:, 0], high[:, 0]), (low[:, 1] + second, high[:, 1] + second)


def of_looks(groups: tuple[Ends, Ends], ratio: float, test: str, level: float) -> Row:
    """Returns in how many percent of studies the looks decide, and how far their ratio
    is off.
    """
    draws = len(groups[0][0])
    sign = np.zeros(draws)
    spent = np.full(draws, LOOKS[-1])
    estimate = np.zeros(draws)
    held = np.zeros(draws, bool)
    looks = looks_of(test, level)

    for n, allowed in zip(looks, levels(looks, level), strict=True):
        first, second = ((low[:, :n], high[:, :n]) for low, high in groups)
        comparison = compare_ends(first, second, test, 1 - allowed)

        # A study that is decided keeps its estimate and interval.
        open_still = sign == 0
        estimate[open_still] = comparison.estimate[open_still]
        covers = (comparison.low <= math.log(ratio)) & (
            math.log(ratio) <= comparison.high
        )
        held[open_still] = covers[open_still]

        now = open_still & (comparison.p_value < allowed)
        sign[now] = comparison.sign[now]
        spent[now] = n

    decided = sign > 0
    if decided.any():
        exaggerated = np.exp(estimate[decided]).mean() / ratio
    else:
        exaggerated = math.nan

    return {
        "later": share(decided),
        "sooner": share(sign < 0),
        "runs": round(float(spent.mean()), 1),
        "covers": share(held),
        "exaggerates": round(100 * float(exaggerated - 1), 1),
    }


def rows_of(draws: int, rng: np.random.Generator, quick: bool) -> Iterator[Row]:
    variations = VARIATIONS
    ratios = RATIOS
    if quick:
        variations = VARIATIONS[1:]
        ratios = (1.0, 1.2)

    for variation, host, ratio, shared in itertools.product(
        variations, HOSTS, ratios, SHARED
    ):
        groups = groups_of(draws, ratio, variation, shared, host, rng)
        for test, level in ((GROUPS, 0.05), (PAIRS, 0.05), (GROUPS, 0.01)):
            row: Row = {"cv": variation, "host": host, "ratio": ratio, "shared": shared}
            row |= {"test": test, "level": level} | of_looks(groups, ratio, test, level)
            once = compare_ends(*groups, test, 1 - LEVEL)
            row["at_once"] = share((once.p_value < LEVEL) & (once.sign > 0))

            yield row


def table(rows: list[Row], draws: int) -> str:
    """Returns the rows as Markdown."""
    error = 100 * math.sqrt(0.05 * 0.95 / draws)
    lines = [
        f"Percent of {draws} studies each (Monte Carlo error {error:.2f} at 5 or 95 %)",
        "",
    ]
    lines += [f"| {' | '.join(rows[0])} |", f"|{'---:|' * len(rows[0])}"]
    lines += [f"| {' | '.join(map(str, row.values()))} |" for row in rows]

    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulates and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument(
        "--quick", action="store_true", help="few draws and cells, for a test"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json", help="also write all figures"
    )
    args = parser.parse_args()

    draws = 400 if args.quick else args.draws
    rows = list(rows_of(draws, np.random.default_rng(args.seed), args.quick))
    text = table(rows, draws)
    print(text, end="")

    if args.out is not None:
        result = {"seed": args.seed, "looks": LOOKS, "levels": levels(), "rows": rows}
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
