"""Simulates how often a comparison with several looks errs, and how many seeds it saves.

    python benchmarks/enough_seeds.py [--seed 1] [--draws 10000] [--quick] [--out FILE.json]

Two groups' times are log-normal over seeds and rounded up to an evaluation grid; the second group's
median is 1 to 1.5 times the first's. Groups are compared after 3, 5, 8 and 12 runs each, by
tfasr's own code. "Fixed" is one look at 12 runs. If runs may never arrive, each does so with the
stated probability, last seen at twice the median.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from interval_coverage import exchanges, of_logarithms, read, share, spread_of

from tfasr.tta.comparison import LEVEL, LOOKS, levels, order_scores
from tfasr.tta.groups import FEWEST_FOR_TEST, mean_difference

RATIOS = (1.0, 1.05, 1.1, 1.2, 1.5)
VARIATIONS = (0.03, 0.10, 0.20)
EPOCHS = (10, 40)
NEVER = (0.1, 0.3)
RESAMPLES = 2000

Row = dict[str, Any]
Ends = tuple[np.ndarray, np.ndarray]


def draw(draws: int, median: np.ndarray, variation: float, rng: np.random.Generator) -> Ends:
    """Returns brackets ``(draws, 12)`` of times around a median, one evaluation wide."""
    noise = rng.standard_normal((draws, LOOKS[-1]))
    return read(median[:, None] * np.exp(spread_of(variation) * noise), 1.0, 3, rng)[0]


def looked_at(first: Ends, second: Ends, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns p-values of n runs each, whether gaps exceed a bracket, and their signs."""
    first_means, second_means = (
        of_logarithms((low[:, :n], high[:, :n])) for low, high in (first, second)
    )
    result = mean_difference(first_means, second_means)
    longer = np.abs(result.shift) > np.maximum(first_means.width, second_means.width)
    return np.nan_to_num(result.p_value, nan=1.0), longer, np.sign(result.shift)


def arriving_rows(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields the decisions on groups of runs that all arrive."""
    for variation, epochs, ratio in itertools.product(VARIATIONS, EPOCHS, RATIOS):
        median = epochs + rng.uniform(-0.5, 0.5, draws)
        groups = draw(draws, median, variation, rng), draw(draws, median * ratio, variation, rng)
        spent = np.full(draws, LOOKS[-1])
        sign = np.zeros(draws)
        for n, level in zip(LOOKS, levels(), strict=True):
            p_value, longer, direction = looked_at(*groups, n)
            now = (sign == 0) & (p_value < level) & longer
            sign[now], spent[now] = direction[now], n
        p_value, longer, direction = looked_at(*groups, LOOKS[-1])
        fixed = (p_value < LEVEL) & longer
        yield {
            "cv": variation, "epochs": epochs, "ratio": ratio, "never": 0.0, "draws": draws,
            "right": share(sign == (1 if ratio > 1 else 2)), "wrong": share(_wrong(sign, ratio)),
            "undecided": share(sign == 0), "runs": round(float(spent.mean()), 2),
            "saved": round(LOOKS[-1] - float(spent.mean()), 2),
            "fixed_right": share(fixed & (direction > 0) & (ratio > 1)),
            "fixed_wrong": share(fixed & _wrong(direction, ratio)),
        }  # fmt: skip


def _wrong(sign: np.ndarray, ratio: float) -> np.ndarray:
    return sign != 0 if ratio == 1 else sign < 0


def never_rows(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields the decisions on groups in which some runs never arrive."""
    for never, ratio in itertools.product(NEVER, (1.0, 1.2, 1.5)):
        median = 20 + rng.uniform(-0.5, 0.5, draws)
        first, second = (_with_never(median, factor, never, rng) for factor in (1.0, ratio))
        spent = np.full(draws, LOOKS[-1])
        sign = np.zeros(draws)
        for n, level in zip(LOOKS, levels(), strict=True):
            p_value, shown, direction = _looked_at_with_never(first, second, n, rng)
            now = (sign == 0) & (p_value < level) & shown
            sign[now], spent[now] = direction[now], n
        yield {
            "cv": 0.10, "epochs": 20, "ratio": ratio, "never": never, "draws": draws,
            "right": share(sign == (1 if ratio > 1 else 2)), "wrong": share(_wrong(sign, ratio)),
            "undecided": share(sign == 0), "runs": round(float(spent.mean()), 2),
            "saved": round(LOOKS[-1] - float(spent.mean()), 2),
        }  # fmt: skip


def _with_never(median: np.ndarray, factor: float, never: float, rng: np.random.Generator) -> Ends:
    """Returns brackets, some of them open from twice the first group's median on."""
    low, high = draw(median.size, median * factor, 0.10, rng)
    lost = rng.uniform(size=low.shape) < never
    seen = np.broadcast_to(2 * median[:, None], low.shape)
    return np.where(lost, seen, low), np.where(lost, np.inf, high)


def _looked_at_with_never(
    first: Ends, second: Ends, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns p-values, whether they may decide, and signs, like `compare_groups`.

    Welch's if all arrived; otherwise, from 5 runs per group on, Gehan's over all exchanges, or over
    `RESAMPLES` of them.
    """
    arrived = np.isfinite(first[1][:, :n]).all(axis=1) & np.isfinite(second[1][:, :n]).all(axis=1)
    p_value, shown, direction = np.ones(arrived.size), arrived.copy(), np.zeros(arrived.size)
    ends = [(low[arrived], high[arrived]) for low, high in (first, second)]
    if arrived.any():
        p_value[arrived], shown[arrived], direction[arrived] = looked_at(*ends, n)
    if n < FEWEST_FOR_TEST or arrived.all():
        return p_value, shown, direction
    low, high = (
        np.concatenate([a[~arrived, :n], b[~arrived, :n]], axis=1)
        for a, b in zip(first, second, strict=True)
    )
    scores = order_scores(low, high)
    p_value[~arrived] = _exchanged(scores, n, rng)
    direction[~arrived] = np.sign(scores[:, n:].sum(axis=1))
    return p_value, shown | ~arrived, direction


def _exchanged(scores: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Returns two-sided p-values over exchanges of runs between the groups."""
    if math.comb(2 * n, n) <= RESAMPLES:
        return exchanges(scores, n)
    dealt = np.argsort(rng.uniform(size=(RESAMPLES, 2 * n)), axis=1) < n
    observed = np.zeros(2 * n)
    observed[:n] = 1
    sums = scores @ np.vstack([observed, dealt]).T
    return np.mean(np.abs(sums) >= np.abs(sums[:, :1]) - 1e-9, axis=1)


def tables(rows: list[Row]) -> str:
    """Returns the rows as Markdown."""
    names = ("cv", "epochs", "ratio", "never", "right", "wrong", "undecided", "runs", "saved",
             "fixed_right", "fixed_wrong")  # fmt: skip
    headings = ("CV", "epochs to the target", "true ratio", "never arrive", "right", "wrong",
                "undecided", "runs a group", "saved of 12", "fixed: right",
                "fixed: wrong")  # fmt: skip
    lines = [f"| {' | '.join(headings)} |", f"|{'---:|' * len(headings)}"]
    for row in rows:
        cells = ["" if row.get(name) is None else f"{row[name]:g}" for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulates and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="few draws, for a test")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    draws = 1000 if args.quick else args.draws
    rows = list(arriving_rows(draws, rng))
    rows += never_rows(draws, rng)
    text = tables(rows)
    print(text, end="")
    if args.out is not None:
        result = {"seed": args.seed, "looks": LOOKS, "levels": levels(), "rows": rows}
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
