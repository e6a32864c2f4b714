"""Simulates how often the report's intervals and verdicts on groups of runs are right.

    python benchmarks/interval_coverage.py [--seed 1] [--draws 10000] [--quick] [--out FILE.json]

Each run's error curve falls and crosses the target at its own time. It is evaluated on a grid whose
pace differs by 0.3 % between runs, and the rule (the first crossing, or a median of 3 or 5) reads
the evaluations. The median time's place in the grid is random. The simulation uses tfasr's own code
for groups (`tfasr.tta`) and word errors (`tfasr.scoring`). "At the rule's end" uses brackets that
end where the rule is met, as in earlier versions.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import gamma, norm, rankdata

from tfasr.scoring.summary import exchange_p, rate_interval
from tfasr.tta.comparison import order_scores
from tfasr.tta.groups import bracketed_mean, mean_difference

RATIOS = (1.0, 1.2)
LEVEL = 0.05
JITTER = 0.003
SLOW, SLOW_SHARE = 1.6, 1 / 6
LONGEST = 8.0  # no time is longer than so many medians


@dataclass(frozen=True)
class Design:
    """Settings of the simulation.

    Attributes:
        sizes: runs per group.
        variations: CVs of the times.
        evaluations: to the target, on the first group's grid.
        grids: time between the second group's evaluations, relative to the first's.
        windows: evaluations whose median meets the target.
        noises: of an evaluation, relative to the fall of the error between two.
        others: groups compared with the first.
        speakers: numbers of speakers, and utterances of each.
    """

    sizes: tuple[int, ...] = (2, 3, 4, 5, 8, 10)
    variations: tuple[float, ...] = (0.003, 0.02, 0.05, 0.10, 0.20, 0.50)
    evaluations: tuple[int, ...] = (10, 40)
    grids: tuple[float, ...] = (1.0, 3.0)
    windows: tuple[int, ...] = (1, 3, 5)
    noises: tuple[float, ...] = (0.5, 1.0, 2.0)
    others: tuple[int, ...] = (1, 3, 5)
    speakers: tuple[tuple[int, int], ...] = ((5, 20), (10, 20), (15, 20), (20, 20), (40, 20))


QUICK = Design((3, 5), (0.003, 0.10, 0.50), (10,), noises=(1.0,), others=(3,), speakers=((6, 8),))

Ends = tuple[np.ndarray, np.ndarray]
Row = dict[str, Any]


def spread_of(variation: float) -> float:
    """Returns the standard deviation of the logarithm of times with a CV."""
    return float(np.sqrt(np.log1p(variation**2)))


def log_normal(variation: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.exp(spread_of(variation) * rng.standard_normal(shape))


def gamma_times(variation: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    alpha = variation**-2
    return rng.gamma(alpha, size=shape) / gamma(alpha).median()


def log_t3(variation: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.exp(spread_of(variation) / np.sqrt(3) * rng.standard_t(3, shape))


def some_slow(variation: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """One run in six takes 1.6 times as long; the CV is that of the others."""
    spread, slower = spread_of(variation), math.log(SLOW)

    def excess(log: float) -> float:
        of_slow = SLOW_SHARE * norm.cdf((log - slower) / spread)
        return (1 - SLOW_SHARE) * norm.cdf(log / spread) + of_slow - 0.5

    times = log_normal(variation, shape, rng)
    times *= np.where(rng.random(shape) < SLOW_SHARE, SLOW, 1.0)
    return times / math.exp(brentq(excess, -1, 2))


DISTRIBUTIONS = {
    "log-normal": log_normal,
    "gamma": gamma_times,
    "t3": log_t3,
    "one in six slower": some_slow,
}
"""Times over seeds with a median of 1: of a CV, in a shape."""


def read(
    times: np.ndarray, grid: float, window: int, rng: np.random.Generator, noise: float = 0.0
) -> tuple[Ends, np.ndarray]:
    """Returns brackets of times that a rule reads from evaluations, and its delay.

    The error falls by 1 between evaluations and has that ``noise``. The delay is the time from the
    bracket's end until the rule is met.
    """
    paces = grid * (1 + JITTER * rng.standard_normal(times.shape))
    half = window // 2
    if not noise:
        # The median of a falling curve is its middle evaluation.
        hits = np.ceil(times / paces)
        return ((hits - 1) * paces, hits * paces), (
            np.maximum(hits, half + 1) + half - hits
        ) * paces
    crossings = times / paces
    last = int(crossings.max() + 8 * noise) + window + 1
    number = np.arange(1, last + 1)
    errors = crossings[..., None] - number + noise * rng.standard_normal((*times.shape, last))
    total = np.cumsum(errors <= 0, axis=-1)
    before = np.concatenate([np.zeros((*times.shape, window)), total[..., :-window]], axis=-1)
    met = (total - before > half) & (number >= window)
    rule = met.argmax(axis=-1) + 1
    hits = rule - half
    # If the first window meets the target, smaller windows before it decide.
    for size in range(window - 2, 0, -2):
        middle = size // 2 + 1
        meets = total[..., size - 1] > size // 2
        hits = np.where((rule == window) & (hits == middle + 1) & meets, middle, hits)
    return ((hits - 1) * paces, hits * paces), (rule - hits) * paces


def draw(
    distribution: str, centre: np.ndarray, variation: float, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns times ``(draws, n)`` about medians."""
    times = DISTRIBUTIONS[distribution](variation, (centre.size, n), rng)
    return centre[:, None] * np.minimum(times, LONGEST)


def phases(draws: int, coarsest: float) -> np.ndarray:
    """Returns each draw's place in the grid, uniform over one interval."""
    return (np.arange(draws) + 0.5) / draws * coarsest - coarsest / 2


def of_logarithms(ends: Ends):
    """Returns the library's estimate; a run that hits at its first evaluation has no lower end."""
    low = np.where(ends[0] > 0, ends[0], np.nan)
    return bracketed_mean(np.log(low), np.log(ends[1]))


def shifted(ends: Ends, late: np.ndarray) -> Ends:
    return ends[0] + late, ends[1] + late


def share(hits: np.ndarray, fewest: int = 1) -> float | None:
    """Returns the percentage of true values; None for fewer than ``fewest``."""
    return round(100 * float(np.mean(hits)), 1) if hits.size >= fewest else None


def interval_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields the coverage of intervals for a group's median and for two groups' ratio.

    ``printed``: percent of draws with an interval. ``plain``: percent of these called "95 %", not
    "at least 95 %". ``spread``: of the times, relative to the longest time between evaluations, in
    logarithms.
    """
    cells = itertools.product(
        DISTRIBUTIONS, design.variations, design.sizes, design.evaluations, design.windows
    )
    for distribution, variation, n, evaluations, window in cells:
        cell: Row = {"distribution": distribution, "cv": variation, "n": n}
        cell |= {"evaluations": evaluations, "window": window}
        for grid in (None, *design.grids):
            centre = evaluations + phases(draws, grid or 1.0)
            first = read(draw(distribution, centre, variation, n, rng), 1.0, window, rng)
            if grid is None:
                yield cell | {"kind": "median"} | _median(*first, centre, variation)
                continue
            result = []
            for ratio in RATIOS:
                times = draw(distribution, centre * ratio, variation, n, rng)
                second = read(times, grid, window, rng)
                result.append(_ratio(first, second, ratio))
            spread = spread_of(variation) / math.log1p(grid / evaluations)
            row = {"kind": "ratio", "grid": grid, "spread": round(spread, 3)}
            merged = {name: _worst([item[name] for item in result]) for name in result[0]}
            yield cell | row | merged | {"false_faster": result[0]["false_faster"]}


def _worst(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return min(present) if present else None


def _median(ends: Ends, late: np.ndarray, centre: np.ndarray, variation: float) -> Row:
    result, before = of_logarithms(ends), bracketed_mean(*shifted(ends, late))
    right = np.abs(result.mean - np.log(centre)) <= result.reach()
    printed = ~np.isnan(result.mean) & ~result.uneven
    mean = centre * math.exp(
        spread_of(variation) ** 2 / 2
    )  # which the interval was of, of log-normal times
    return {
        "spread": round(spread_of(variation) / float(np.mean(np.log1p(1 / centre))), 3),
        "coverage": share(right[printed], 100),
        "printed": share(printed),
        "plain": share(~result.coarse[printed], 100),
        "plain_coverage": share(right[printed & ~result.coarse], 100),
        "at_rules_end": share(np.abs(before.mean - mean) <= before.reach()),
    }


def _ratio(first: tuple[Ends, np.ndarray], second: tuple[Ends, np.ndarray], ratio: float) -> Row:
    first_means, second_means = of_logarithms(first[0]), of_logarithms(second[0])
    result, printed = (
        mean_difference(first_means, second_means),
        ~np.isnan(first_means.mean + second_means.mean),
    )
    coarse = first_means.coarse | second_means.coarse
    right = np.abs(result.shift - np.log(ratio)) <= result.reach
    longer = np.abs(result.shift) > np.maximum(first_means.width, second_means.width)
    before = mean_difference(*(of_logarithms(shifted(*group)) for group in (first, second)))
    present = ~np.isnan(before.shift)
    return {
        "coverage": share(right[printed], 100),
        "printed": share(printed),
        "plain": share(~coarse[printed], 100),
        "plain_coverage": share(right[printed & ~coarse], 100),
        "at_rules_end": share((np.abs(before.shift - np.log(ratio)) <= before.reach)[present], 100),
        "false_faster": share(((result.p_value < LEVEL) & longer)[printed], 100),
    }


def noise_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields effects of noisy evaluations; the second group has a coarser grid, or the same.

    A group on a grid of 3 has a third of the noise, as its error falls three times as far between
    two evaluations. ``early``: by how many evaluations the middles precede the crossings.
    """
    evaluations = 20
    sizes = [n for n in design.sizes if n in (3, 5, 10)]
    cells = itertools.product((0.02, 0.10), design.noises, design.windows, sizes)
    for variation, noise, window, n in cells:
        row: Row = {"cv": variation, "noise": noise, "window": window, "n": n}
        centre = evaluations + phases(draws, 1.0)
        times = draw("log-normal", centre, variation, n, rng)
        first = read(times, 1.0, window, rng, noise)
        row["early"] = round(float(np.mean(times - (first[0][0] + first[0][1]) / 2)), 2)
        row["median"] = _median(*first, centre, variation)["coverage"]
        for grid in design.grids:
            centre = evaluations + phases(draws, grid)
            first = read(draw("log-normal", centre, variation, n, rng), 1.0, window, rng, noise)
            times = draw("log-normal", centre, variation, n, rng)
            second = read(times, grid, window, rng, noise / grid)
            result = _ratio(first, second, 1.0)
            row |= {
                f"ratio_{grid:g}": result["coverage"],
                f"false_{grid:g}": result["false_faster"],
            }
        yield row


def familywise_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how often a report on equal groups has any verdict, with Holm's method and without."""
    targets = 6
    for n, others, correlation in itertools.product((3, 5), design.others, (0.5, 0.8)):
        row: Row = {"n": n, "targets": targets, "others": others, "correlation": correlation}
        common = rng.standard_normal((draws, 1, others + 1, n))
        noise_of_runs = rng.standard_normal((draws, targets, others + 1, n))
        noise = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * noise_of_runs
        centres = np.linspace(15, 40, targets)[:, None, None]
        times = centres * np.exp(spread_of(0.10) * noise)
        logs = [np.log(end) for end in read(times, 1.0, 3, rng)[0]]
        first, second = (
            bracketed_mean(*(end[:, :, part] for end in logs))
            for part in (slice(0, 1), slice(1, None))
        )
        result = mean_difference(first, second)
        longer = (np.abs(result.shift) > np.maximum(first.width, second.width)).reshape(draws, -1)
        p_values = result.p_value.reshape(draws, -1)
        row["any_false_unadjusted"] = share(((p_values < LEVEL) & longer).any(axis=1))
        # Holm's method rejects anything only if the smallest p-value passes the strictest level.
        strictest = p_values == p_values.min(axis=1, keepdims=True)
        passed = strictest & (p_values < LEVEL / p_values.shape[1]) & longer
        row["any_false_holm"] = share(passed.any(axis=1))
        yield row


def censoring_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how often equal groups are called different if one was stopped earlier."""
    sizes = [n for n in design.sizes if 5 <= n <= 8]  # of 10 there are 184 756 exchanges
    for n, variation, stopped in itertools.product(sizes, design.variations, (0.8, 0.9, 1.0)):
        centre = 15 + phases(draws, 1.0)
        ends = []
        for budget in (np.inf, np.floor(stopped * 15)):
            times = draw("log-normal", centre, variation, n, rng)
            (low, high), behind = read(times, 1.0, 3, rng)
            late = high + behind > budget
            # The last full window before a run stops has its middle one evaluation earlier.
            seen = (np.floor(stopped * 15 / (high - low)) - 1) * (high - low)
            ends.append((np.where(late, seen, low), np.where(late, np.inf, high)))
        low, high = (np.concatenate(pair, axis=1) for pair in zip(*ends, strict=True))
        yield {
            "n": n,
            "cv": variation,
            "stopped_at": stopped,
            "false_never_last": share(exchanges(rankdata(high, axis=1), n) < LEVEL),
            "false_gehan": share(exchanges(order_scores(low, high), n) < LEVEL),
        }


def exchanges(scores: np.ndarray, n: int) -> np.ndarray:
    """Returns two-sided p-values over all assignments of runs to two groups."""
    dealt = np.array(list(itertools.combinations(range(scores.shape[1]), n)))
    chosen = np.zeros((len(dealt), scores.shape[1]))
    chosen[np.arange(len(dealt))[:, None], dealt] = 1
    sums = (scores - scores.mean(axis=1, keepdims=True)) @ chosen.T
    return np.mean(np.abs(sums) >= np.abs(sums[:, :1]) - 1e-9, axis=1)


def spoken(
    speakers: int, utterances: int, interaction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns words and two systems' errors, ``(speakers, utterances)`` and ``(2, ...)``.

    Speakers differ in difficulty (standard deviation 0.5 of the logarithm) and in which of the two
    systems, equal on average, suits them (``interaction``, also a standard deviation).
    """
    words = 1 + rng.poisson(9, (speakers, utterances))
    hard = 0.5 * rng.standard_normal((speakers, utterances)) + 0.5 * rng.standard_normal(
        (speakers, 1)
    )
    suits = interaction * rng.standard_normal((2, speakers, 1))
    return words, rng.binomial(words, np.minimum(0.12 * np.exp(hard + suits), 0.95))


def speaker_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields the coverage of WER intervals by speaker, and how often equals differ."""
    truth_words, truth = spoken(20_000, 20, 0.0, rng)
    true = truth[0].sum() / truth_words.sum()
    for speakers, utterances in design.speakers:
        blocks = np.repeat(np.arange(speakers), utterances).tolist()
        covered, alone, by_speaker, by_utterance = [], [], [], []
        for number in range(draws):
            words, errors = spoken(speakers, utterances, 0.0, rng)
            data = errors[0].ravel(), words.ravel()
            for result, counts in ((blocks, covered), (None, alone)):
                low, high = rate_interval(*data, blocks=result, resamples=1000, seed=number)
                counts.append(low <= true <= high)
            words, errors = spoken(speakers, utterances, 0.2, rng)
            unlike = (errors[1] - errors[0]).astype(float)
            by_speaker.append(exchange_p(unlike.sum(axis=1)) < LEVEL)
            # For so many utterances, the exchanges' distribution is normal.
            by_utterance.append(abs(unlike.sum()) > 1.96 * np.sqrt((unlike**2).sum()))
        yield {
            "speakers": speakers,
            "utterances_each": utterances,
            "coverage_by_speaker": share(np.array(covered)),
            "coverage_by_utterance": share(np.array(alone)),
            "false_by_speaker": share(np.array(by_speaker)),
            "false_by_utterance": share(np.array(by_utterance)),
        }


PARTS = {
    "intervals": (interval_rows, 2),
    "noise": (noise_rows, 4),
    "familywise": (familywise_rows, 1),
    "censoring": (censoring_rows, 2),
    "speakers": (speaker_rows, 10),
}
"""The simulations, and by what number each divides the draws that it would take too long over."""


def simulate(seed: int, draws: int, design: Design = Design()) -> dict[str, Any]:
    """Returns all parts' rows, with independent random numbers."""
    result: dict[str, Any] = {"seed": seed, "draws": draws}
    for number, (name, (rows, fewer)) in enumerate(PARTS.items()):
        rng = np.random.default_rng([seed, number])
        result[name] = list(rows(design, draws // fewer, rng))
    return result


def to_markdown(result: dict[str, Any]) -> str:
    """Returns the tables of a simulation, percent in every cell."""
    parts = {name: result["draws"] // fewer for name, (_, fewer) in PARTS.items()}
    return "\n".join(
        [
            _classes_table(result["intervals"], parts["intervals"]),
            _sizes_table(result["intervals"], parts["intervals"]),
            _coverage_table("median", result["intervals"], parts["intervals"]),
            _coverage_table("ratio", result["intervals"], parts["intervals"]),
            _before_table(result["intervals"], parts["intervals"]),
            _table(
                f"Noise of evaluations, 20 of them to the target ({_error(parts['noise'])})",
                {"cv": "CV", "noise": "noise", "window": "window",
                 "early": "early by", "median": "median",
                 **{f"{kind}_{grid:g}": f"{heading}, grid {grid:g}" for grid in DESIGN_GRIDS
                    for kind, heading in (("ratio", "ratio of 1"), ("false", "false faster"))}},
                _over_sizes(result["noise"]),
            ),
            _table(
                "Any false verdict in a report on equal groups (6 targets, CV 10 %; "
                f"{_error(parts['familywise'])})",
                {"n": "n", "others": "other groups", "correlation": "correlation of targets",
                 "any_false_unadjusted": "p < 0.05 each", "any_false_holm": "Holm"},
                result["familywise"],
            ),
            _table(
                "Equal groups called different, one of them stopped at a share of the median time "
                f"({_error(parts['censoring'])})",
                {"n": "n", "cv": "CV", "stopped_at": "stopped at",
                 "false_never_last": "ranks, never last", "false_gehan": "Gehan"},
                result["censoring"],
            ),
            _table(
                "Word error rates: intervals for other speakers, and equal systems called "
                f"different ({_error(parts['speakers'])})",
                {"speakers": "speakers", "utterances_each": "utterances each",
                 "coverage_by_speaker": "covers, by speaker",
                 "coverage_by_utterance": "covers, by utterance",
                 "false_by_speaker": "false, by speaker",
                 "false_by_utterance": "false, by utterance"},
                result["speakers"],
            ),
        ]
    )  # fmt: skip


DESIGN_GRIDS = Design().grids
CLASSES = {"below 0.5": (0, 0.5), "0.5 to 1": (0.5, 1), "1 or more": (1, math.inf)}


def _error(draws: int) -> str:
    return f"{draws} draws, Monte Carlo error {100 * math.sqrt(0.95 * 0.05 / draws):.1f} at 95 %"


def _classes_table(rows: list[Row], draws: int) -> str:
    shown = []
    kinds = itertools.product(("median", "ratio"), DISTRIBUTIONS, CLASSES.items())
    for kind, distribution, (label, (low, high)) in kinds:
        cells = [
            row
            for row in rows
            if (row["kind"], row["distribution"]) == (kind, distribution)
            and low <= row["spread"] < high
            and row["n"] >= 3
        ]
        if not cells:
            continue
        of_plain = [row for row in cells if row["plain"] is not None and row["plain"] >= 50]
        shown.append(
            {"kind": kind, "distribution": distribution, "spread": label, "cells": len(cells)}
            | {"coverage": _range(row["coverage"] for row in cells)}
            | {"none": _range(round(100 - row["printed"], 1) for row in cells)}
            | {"plain": _range(row["plain"] for row in cells)}
            | {"coverage_plain": _range(row["coverage"] for row in of_plain)}
        )
    headings = {
        "kind": "interval of", "distribution": "times",
        "spread": "spread / time between evaluations",
        "cells": "cells", "coverage": "covers", "none": "no interval", "plain": 'called "95 %"',
        "coverage_plain": 'covers, cells mostly called "95 %"',
    }  # fmt: skip
    return _table(f"All cells with 3 runs or more ({_error(draws)})", headings, shown)


def _sizes_table(rows: list[Row], draws: int) -> str:
    sizes = sorted({row["n"] for row in rows})
    shown = [
        {"kind": kind, "distribution": distribution}
        | {
            str(n): _range(
                row["coverage"]
                for row in rows
                if (row["kind"], row["distribution"], row["n"]) == (kind, distribution, n)
            )
            for n in sizes
        }
        for kind, distribution in itertools.product(("median", "ratio"), DISTRIBUTIONS)
    ]
    headings = {"kind": "interval of", "distribution": "times"}
    headings |= {str(n): f"n = {n}" + (", not printed" if n < 3 else "") for n in sizes}
    return _table(f"By the number of runs, all cells ({_error(draws)})", headings, shown)


def _over_sizes(rows: list[Row]) -> list[Row]:
    shown: dict[tuple, list[Row]] = {}
    for row in rows:
        shown.setdefault((row["cv"], row["noise"], row["window"]), []).append(row)
    return [
        {name: _range(row[name] for row in cells) for name in cells[0]}
        | dict(zip(("cv", "noise", "window"), key, strict=True))
        for key, cells in shown.items()
    ]


def _coverage_table(kind: str, rows: list[Row], draws: int) -> str:
    rows = [row for row in rows if row["kind"] == kind]
    shown, sizes = [], sorted({row["n"] for row in rows})
    keys = sorted(
        {(list(DISTRIBUTIONS).index(r["distribution"]), r.get("grid", 1), r["cv"]) for r in rows}
    )
    for number, grid, variation in keys:
        distribution = list(DISTRIBUTIONS)[number]
        line: Row = {"distribution": distribution, "grid": grid, "cv": variation}
        for n in sizes:
            cells = [
                row["coverage"]
                for row in rows
                if (row["distribution"], row.get("grid", 1), row["cv"], row["n"])
                == (distribution, grid, variation, n)
            ]
            line[str(n)] = _range(cells)
        shown.append(line)
    headings = {"distribution": "times", "grid": "second grid", "cv": "CV"}
    if kind == "median":
        del headings["grid"]
    headings |= {str(n): f"n = {n}" + (", not printed" if n < 3 else "") for n in sizes}
    return _table(f"Interval of the {kind} ({_error(draws)})", headings, shown)


def _before_table(rows: list[Row], draws: int) -> str:
    shown = []
    log_normal_rows = [row for row in rows if row["distribution"] == "log-normal" and row["n"] >= 3]
    for key in sorted({(row["window"], row["cv"]) for row in log_normal_rows}):
        line: Row = dict(zip(("window", "cv"), key, strict=True))
        for kind, grid in (("median", 1), *(("ratio", grid) for grid in DESIGN_GRIDS)):
            cells = [
                row
                for row in log_normal_rows
                if (row["window"], row["cv"]) == key
                and (row["kind"], row.get("grid", 1)) == (kind, grid)
            ]
            for name in ("coverage", "at_rules_end"):
                line[f"{kind}{grid}{name}"] = _range(row[name] for row in cells)
        shown.append(line)
    headings = {"window": "window", "cv": "CV"}
    for kind, grid in (("median", 1), *(("ratio", grid) for grid in DESIGN_GRIDS)):
        label = kind if kind == "median" else f"ratio, grid {grid:g}"
        headings |= {
            f"{kind}{grid}coverage": label,
            f"{kind}{grid}at_rules_end": f"{label}: at the rule's end",
        }
    return _table(f"By window, log-normal times ({_error(draws)})", headings, shown)


def _table(title: str, headings: dict[str, str], rows: list[Row]) -> str:
    lines = [
        f"### {title}",
        "",
        f"| {' | '.join(headings.values())} |",
        "|---:" * len(headings) + "|",
    ]
    for row in rows:
        cells = [f"{100 * row[key]:g} %" if key == "cv" else f"{row[key]}" for key in headings]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _range(values: Any) -> str:
    present = sorted(value for value in values if value is not None)
    if not present:
        return "n/a"
    return f"{present[0]}" if present[0] == present[-1] else f"{present[0]}-{present[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=10_000, help="of every cell")
    parser.add_argument(
        "--quick", action="store_true", help="few cells and draws, to see that it works"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="also write all figures")
    arguments = parser.parse_args()
    if arguments.quick:
        result = simulate(arguments.seed, min(arguments.draws, 500), QUICK)
    else:
        result = simulate(arguments.seed, arguments.draws)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(to_markdown(result), end="")


if __name__ == "__main__":
    main()
