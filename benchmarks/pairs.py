"""Simulates finer grids of evaluations, comparisons by pairs and the always-valid test.

    python benchmarks/pairs.py [--seed 1] [--draws 4000] [--quick] [--out FILE.json]

A run crosses the target after some epochs, which vary over seeds; partners share a part of that.
Its pace varies from run to run by 0.3 %, and a drifting machine slows down by 15 % over a study,
with a noise of 3 % that lasts for some ten runs. The rule reads evaluations, 1 to 8 an epoch.
Groups are compared by tfasr's own code. Five tables: what more looks do to the time that is read,
how often intervals cover the truth, how often equal groups get a verdict (of four looks, or after
each of 24 pairs), and how many seeds it takes to decide a slowdown of 5 %.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from enough_seeds import Ends, Row, looked_at
from interval_coverage import of_logarithms, share, spread_of
from tfasr.tta.pairs import (
    FEWEST_FOR_ORDER,
    evidence,
    pair_scores,
    paired_difference,
    signed_rank_p,
)

from tfasr.tta.comparison import LEVEL, LOOKS, MOST_PAIRS, levels_of
from tfasr.tta.groups import bracketed_mean
from tfasr.tta.policies import WINDOW, evaluations_in

EPOCHS = 14  # to the target
JITTER = 0.003
DRIFT, UNREST, LASTS = 0.15, 0.03, 0.9
POWER = 80
LAST_LOOKS = (12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 120)


def noise_of(times: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Returns noise with a standard deviation of 1."""
    if times == "t3":
        return rng.standard_t(3, shape) / math.sqrt(3)
    return rng.standard_normal(shape)


def host(draws: int, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns the slowness of a drifting machine in each group's runs, which take turns."""
    steps = rng.standard_normal((draws, 2 * n)) * math.sqrt(1 - LASTS**2)
    unrest = np.empty_like(steps)
    unrest[:, 0] = rng.standard_normal(draws)
    for turn in range(1, 2 * n):
        unrest[:, turn] = LASTS * unrest[:, turn - 1] + steps[:, turn]
    slow = np.exp(UNREST * unrest + DRIFT * np.arange(2 * n) / (2 * n))
    pairs = slow.reshape(draws, n, 2)
    pairs[:, 1::2] = pairs[:, 1::2, ::-1]  # the second group goes first at every other seed
    return pairs[..., 0], pairs[..., 1]


def world(
    draws: int,
    n: int,
    rng: np.random.Generator,
    *,
    ratio: float = 1.0,
    slower: str = "pace",
    variation: float = 0.10,
    shared: float = 0.5,
    per_epoch: int = 1,
    times: str = "log-normal",
    drifting: bool = False,
    never: float = 0.0,
    epochs: float = EPOCHS,
) -> tuple[Ends, Ends]:
    """Returns brackets ``(draws, n)`` of two groups.

    The second takes ``ratio`` times as long, by its "pace", which stretches its grid too, or by its
    "learning". Partners have the share ``shared`` of their variance in common.
    """
    centre = epochs + rng.uniform(-0.5, 0.5, (draws, 1))
    common = noise_of(times, (draws, n), rng)
    slow = host(draws, n, rng) if drifting else (1.0, 1.0)
    groups = []
    for group in range(2):
        own = noise_of(times, (draws, n), rng)
        mixed = math.sqrt(shared) * common + math.sqrt(1 - shared) * own
        crossed = centre * np.exp(spread_of(variation) * mixed)
        crossed = np.clip(crossed, 0.1 * epochs, 8 * epochs)
        pace = slow[group] * (1 + JITTER * rng.standard_normal((draws, n)))
        if group and slower == "pace":
            pace = pace * ratio
        elif group:
            crossed = crossed * ratio
        hits = np.ceil(crossed * per_epoch)
        low, high = (hits - 1) * pace / per_epoch, hits * pace / per_epoch
        lost = rng.uniform(size=low.shape) < never
        groups.append((np.where(lost, 2 * centre * pace, low), np.where(lost, np.inf, high)))
    return groups[0], groups[1]


def first_of(groups: tuple[Ends, Ends], n: int) -> tuple[Ends, Ends]:
    return tuple((low[:, :n], high[:, :n]) for low, high in groups)


def logs_of(ends: Ends) -> Ends:
    return np.log(np.where(ends[0] > 0, ends[0], np.nan)), np.log(ends[1])


def by_pairs(groups: tuple[Ends, Ends], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns p-values of n pairs, whether they may decide, and signs, like `compare_pairs`."""
    first, second = first_of(groups, n)
    arrived = np.isfinite(first[1]).all(axis=1) & np.isfinite(second[1]).all(axis=1)
    p_value, shown, sign = np.ones(arrived.size), arrived.copy(), np.zeros(arrived.size)
    logs = [logs_of((low[arrived], high[arrived])) for low, high in (first, second)]
    if arrived.any():
        result = paired_difference(*logs)
        width = np.maximum(*(bracketed_mean(*ends).width for ends in logs))
        p_value[arrived] = np.nan_to_num(result.p_value, nan=1.0)
        shown[arrived] = np.abs(result.shift) > width
        sign[arrived] = np.sign(result.shift)
    if n >= FEWEST_FOR_ORDER and not arrived.all():
        scores = pair_scores(*((low[~arrived], high[~arrived]) for low, high in (first, second)))
        p_value[~arrived] = [signed_rank_p(row) for row in scores]
        sign[~arrived] = np.sign(scores.sum(axis=1))
        shown[~arrived] = True
    return p_value, shown, sign


def with_looks(
    groups: tuple[Ends, Ends], test: str, looks: tuple[int, ...] = LOOKS
) -> tuple[np.ndarray, np.ndarray]:
    """Returns each study's verdict, 1 where the second group is slower, and the runs it took."""
    draws = len(groups[0][0])
    verdict, spent = np.zeros(draws), np.full(draws, looks[-1])
    for n, level in zip(looks, levels_of(test, looks), strict=True):
        if test == "pairs":
            p_value, shown, sign = by_pairs(groups, n)
        else:
            p_value, shown, sign = looked_at(*groups, n)
        now = (verdict == 0) & (p_value < level) & shown
        verdict[now], spent[now] = sign[now], n
    return verdict, spent


def always(groups: tuple[Ends, Ends]) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `with_looks` does, by the always-valid test, looked at after each pair."""
    first, second = groups
    sides = evidence(pair_scores(first, second))
    known = np.maximum.accumulate(sides.mean(axis=0), axis=-1) >= 1 / LEVEL
    middles, widths = [], []
    with np.errstate(invalid="ignore", divide="ignore"):
        for ends in groups:
            low, high = logs_of(ends)
            middles.append((low + high) / 2)
            widths.append(high - low)
        count = np.arange(1, first[0].shape[1] + 1)
        shift = np.cumsum(middles[1] - middles[0], axis=1) / count
        width = np.maximum(*(np.cumsum(each, axis=1) / count for each in widths))
    shown = ~np.isfinite(shift) | (np.abs(shift) > width)
    now = known & shown
    decided = now.any(axis=1)
    at = np.where(decided, now.argmax(axis=1), count[-1] - 1)
    sign = np.sign(sides[0] - sides[1])[np.arange(len(at)), at]
    return np.where(decided, sign, 0), at + 1


def looks_rows(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields what more looks do to the times that a rule reads from noisy evaluations.

    Errors fall by 1 an epoch. Noise is independent from one evaluation to the next, or lasts for a
    quarter of an epoch. Times are relative to the true crossing, in epochs.
    """
    runs, noisy = 5, (0.5, 1.0, 2.0)
    for per_epoch, noise, lasting in itertools.product((1, 4, 8), noisy, (False, True)):
        median = EPOCHS + rng.uniform(-0.5, 0.5, draws)
        crossed = np.exp(spread_of(0.10) * rng.standard_normal((draws, runs))) * median[:, None]
        number = np.arange(1, 2 * EPOCHS * per_epoch + 1)
        walk = rng.standard_normal((draws, runs, number.size))
        if lasting:
            kept = math.exp(-4 / per_epoch)
            for at in range(1, number.size):
                walk[..., at] *= math.sqrt(1 - kept**2)
                walk[..., at] += kept * walk[..., at - 1]
        errors = crossed[..., None] - number / per_epoch + noise * walk
        for window in sorted({WINDOW, evaluations_in(WINDOW, per_epoch)}):
            met = np.cumsum(errors <= 0, axis=-1)
            before = np.concatenate([np.zeros((draws, runs, window)), met[..., :-window]], -1)
            rule = ((met - before > window // 2) & (number >= window)).argmax(axis=-1) + 1
            high = (rule - window // 2) / per_epoch
            ends = (high - 1 / per_epoch, high)
            mean = of_logarithms(ends)
            good = ~mean.uneven & (ends[0] > 0).all(axis=1)
            missed = np.abs(mean.mean - np.log(median)) > mean.reach()
            yield {
                "per_epoch": per_epoch, "window": window, "noise": noise,
                "noise_lasts": lasting, "draws": draws,
                "middle_late": round(float(np.mean(high - 0.5 / per_epoch - crossed)), 3),
                "rule_late": round(float(np.mean(rule / per_epoch - crossed)), 3),
                "coverage": share(~missed[good]),
            }  # fmt: skip


def coverage_rows(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how often intervals of a ratio of 1.05 hold it, by pairs and by groups."""
    cells = itertools.product(
        ("log-normal", "t3"), (0.03, 0.10), (0.0, 0.5, 0.9, 1.0), (1, 4), ("pace", "learning")
    )
    for times, variation, shared, per_epoch, slower in cells:
        facts = {"variation": variation, "shared": shared, "per_epoch": per_epoch}
        groups = world(draws, 12, rng, ratio=1.05, times=times, slower=slower, **facts)
        for n in LOOKS:
            logs = [logs_of(ends) for ends in first_of(groups, n)]
            pairs = paired_difference(*logs)
            p_value, _, _ = looked_at(*groups, n)
            whole = np.isfinite(p_value)
            means = [bracketed_mean(*ends) for ends in logs]
            coarse = np.logical_or(*(mean.coarse for mean in means))
            held = np.abs(pairs.shift - math.log(1.05)) <= pairs.reach
            yield {
                "times": times, "slower": slower, "n": n, **facts, "draws": draws,
                "pairs": share(held[whole]), "groups": share(_held(means)[whole]),
                "coarse": share(coarse),
            }  # fmt: skip


def _held(means: list) -> np.ndarray:
    from tfasr.tta.groups import mean_difference

    result = mean_difference(*means)
    return np.abs(result.shift - math.log(1.05)) <= result.reach


WORLDS = {
    "log-normal": {},
    "t3": {"times": "t3"},
    "drifting": {"drifting": True},
    "never 20 %": {"never": 0.2},
    "drifting, t3, never 20 %": {"drifting": True, "times": "t3", "never": 0.2},
}


def false_rows(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how often one of two equal groups is called faster."""
    for name, shared, per_epoch in itertools.product(WORLDS, (0.0, 0.5, 0.9), (1, 4, 16)):
        facts = {"shared": shared, "per_epoch": per_epoch}
        groups = world(draws, MOST_PAIRS, rng, **WORLDS[name], **facts)
        row: Row = {"times": name, **facts, "draws": draws}
        verdict, _ = with_looks(groups, "pairs")
        row["pairs"] = share(verdict != 0)
        verdict, _ = always(groups)
        yield row | {"always": share(verdict != 0)}


def seeds_needed(test: str, draws: int, rng: np.random.Generator, **facts: Any) -> Row:
    """Returns within how many seeds a group 80 % of studies decide a slowdown of 5 % rightly."""
    for last in LAST_LOOKS:
        looks = tuple(sorted({max(3, round(last * look / LOOKS[-1])) for look in LOOKS}))
        groups = world(draws, last, rng, ratio=1.05, **facts)
        verdict, spent = with_looks(groups, test, looks)
        right = 100 * np.mean(verdict == 1)
        if last == LOOKS[-1]:
            within, mean = share(verdict == 1), round(float(spent.mean()), 1)
        if right < POWER:
            continue
        enough = [n for n in looks if 100 * np.mean((verdict == 1) & (spent <= n)) >= POWER]
        return {"needed": enough[0], "right_in_12": within, "mean_of_12": mean}
    return {"needed": None, "right_in_12": within, "mean_of_12": mean}


def seeds_rows(draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields the seeds that a slowdown of 5 % takes, today's way and with a finer grid or pairs."""
    for epochs, variation, shared in itertools.product(
        (14, 40), (0.03, 0.06, 0.10), (0.0, 0.5, 0.9, 1.0)
    ):
        facts = {"epochs": epochs, "variation": variation, "shared": shared}
        row: Row = {**facts, "draws": draws}
        for name, test, per_epoch in (
            ("today", "groups", 1), ("grid", "groups", 8), ("pairs", "pairs", 1),
            ("both", "pairs", 8),
        ):  # fmt: skip
            found = seeds_needed(test, draws, rng, per_epoch=per_epoch, **facts)
            row |= {f"{name}_{key}": value for key, value in found.items()}
        groups = world(draws, MOST_PAIRS, rng, ratio=1.05, per_epoch=8, **facts)
        verdict, spent = always(groups)
        right = np.sort(np.where(verdict == 1, spent, MOST_PAIRS + 1))
        at = int(right[math.ceil(POWER / 100 * draws) - 1])
        row["always_needed"] = at if at <= MOST_PAIRS else None
        row["always_mean"] = round(float(spent.mean()), 1)
        yield row


TABLES = {
    "looks": (looks_rows, "More looks: what the rule reads, in epochs after the crossing"),
    "coverage": (coverage_rows, "Coverage of 95 % intervals of a ratio of 1.05, percent"),
    "false": (false_rows, "Verdicts on equal groups, percent"),
    "seeds": (seeds_rows, "Seeds a group that decide a slowdown of 5 % in 80 % of studies"),
}


def simulate(seed: int, draws: int) -> dict[str, list[Row]]:
    rng = np.random.default_rng(seed)
    return {name: list(rows(draws, rng)) for name, (rows, _) in TABLES.items()}


def to_markdown(tables: dict[str, list[Row]]) -> str:
    lines: list[str] = []
    for name, rows in tables.items():
        draws = rows[0]["draws"]
        error = 100 * math.sqrt(0.05 * 0.95 / draws)
        title = f"{TABLES[name][1]} ({draws} draws; Monte Carlo error {error:.2f} at 5 or 95 %)"
        names = [key for key in rows[0] if key != "draws"]
        lines += [f"### {title}", "", f"| {' | '.join(names)} |", "|---:" * len(names) + "|"]
        cells = (["" if row[key] is None else f"{row[key]}" for key in names] for row in rows)
        lines += [f"| {' | '.join(row)} |" for row in cells] + [""]
    return "\n".join(lines)


def main() -> None:
    """Simulates and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="few draws, for a test")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tables = simulate(args.seed, 100 if args.quick else args.draws)
    text = to_markdown(tables)
    print(text, end="")
    if args.out is not None:
        content = {"seed": args.seed, "draws": args.draws, "tables": tables}
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
