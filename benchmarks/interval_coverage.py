"""How often the report's intervals and verdicts on groups of runs are right, by simulation.

    python benchmarks/interval_coverage.py [--seed 1] [--draws 10000] [--quick] [--out FILE.json]

Times to a target are log-normal over seeds and rounded up to an evaluation grid, whose pace differs
by 0.3 % from run to run. Where the true time lies between two evaluations is random, except in the
columns that say otherwise. What is simulated is tfasr's own code, of groups (`tfasr.tta`) and of
word errors (`tfasr.scoring`); "first hits" is the same without regard to brackets.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from tfasr.scoring.bootstrap import rate_interval
from tfasr.scoring.summary import exchange_p
from tfasr.tta.comparison import order_scores
from tfasr.tta.groups import BracketedMean, bracketed_mean, mean_difference

RATIOS = (1.0, 1.06, 1.2, 1.5)
QUARTERS = 4
LEVEL = 0.05
JITTER = 0.003


@dataclass(frozen=True)
class Design:
    """What is simulated.

    Attributes:
        sizes: runs a group.
        variations: CVs of the times.
        epochs: evaluations to the target.
        grids: time between the second group's evaluations over that of the first.
        others: how many groups are compared with the first.
        speakers: how many, and how many utterances each.
    """

    sizes: tuple[int, ...] = (3, 5, 8)
    variations: tuple[float, ...] = (0.02, 0.05, 0.10, 0.20)
    epochs: tuple[int, ...] = (5, 10, 20, 40)
    grids: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0)
    others: tuple[int, ...] = (1, 3, 5)
    speakers: tuple[tuple[int, int], ...] = ((5, 20), (10, 13), (20, 20), (40, 68))


QUICK = Design((3, 5), (0.02, 0.20), (5, 20), (1.0, 2.0), (3,), ((6, 8),))

Brackets = tuple[np.ndarray, np.ndarray]
Row = dict[str, Any]


def spread_of(variation: float) -> float:
    """Returns the standard deviation of the logarithm of times with a CV."""
    return float(np.sqrt(np.log1p(variation**2)))


def rounded_up(times: np.ndarray, grid: float, rng: np.random.Generator) -> Brackets:
    """Returns the brackets of times that are read at evaluations, a grid apart."""
    widths = grid * (1 + JITTER * rng.standard_normal(times.shape))
    number = np.ceil(times / widths)
    return (number - 1) * widths, number * widths


def phases(draws: int, coarsest: float) -> np.ndarray:
    """Returns where each draw's time lies in the grid: evenly over one interval.

    Draws ``[q * draws / 4, (q + 1) * draws / 4)`` are those of quarter ``q``.
    """
    return (np.arange(draws) + 0.5) / draws * coarsest - coarsest / 2


def group(
    centre: np.ndarray, variation: float, grid: float, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, Brackets]:
    """Returns true times ``(draws, n)`` about a median, and their brackets."""
    noise = rng.standard_normal((centre.size, n))
    times = centre[:, None] * np.exp(spread_of(variation) * noise)
    return times, rounded_up(times, grid, rng)


def of_logarithms(brackets: Brackets) -> BracketedMean:
    """Returns the library's estimate on the scale that ratios are compared on."""
    # A run that hit at its first evaluation has no lower end; such draws are left out.
    low = np.where(brackets[0] > 0, brackets[0], np.nan)
    return bracketed_mean(np.log(low), np.log(brackets[1]))


def of_first_hits(brackets: Brackets) -> BracketedMean:
    """Returns the estimate that takes the first hit for the time."""
    return bracketed_mean(np.log(brackets[1]), np.log(brackets[1]))


def share(hits: np.ndarray) -> float:
    """Returns percent of true ones among those that are known."""
    return round(100 * float(np.mean(hits)), 1)


def ratio_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how the interval of the ratio covers, and how often equal groups are told apart."""
    for grid, n, variation, epochs in itertools.product(
        design.grids, design.sizes, design.variations, design.epochs
    ):
        row: Row = {"grid": grid, "n": n, "cv": variation, "epochs": epochs}
        centre = epochs + phases(draws, grid)
        covered, by_quarter, naive = [], [], []
        for ratio in RATIOS:
            _, one = group(centre, variation, 1.0, n, rng)
            _, two = group(centre * ratio, variation, grid, n, rng)
            first, second = of_logarithms(one), of_logarithms(two)
            found = mean_difference(first, second)
            known = ~np.isnan(found.shift)
            right = np.abs(found.shift - np.log(ratio)) <= found.reach
            covered.append(share(right[known]))
            quarters = zip(np.split(right, QUARTERS), np.split(known, QUARTERS), strict=True)
            by_quarter += [share(hits[kept]) for hits, kept in quarters]
            hits = mean_difference(of_first_hits(one), of_first_hits(two))
            naive.append(share(np.abs(hits.shift - np.log(ratio)) <= hits.reach))
            if ratio == 1:
                longer = np.abs(found.shift) > np.maximum(first.width, second.width)
                row["false_faster"] = share(((found.p_value < LEVEL) & longer)[known])
                row["false_faster_first_hits"] = share(hits.p_value < LEVEL)
        yield row | {
            "coverage": dict(zip(map(str, RATIOS), covered, strict=True)),
            "worst_quarter": min(by_quarter),
            "coverage_first_hits": dict(zip(map(str, RATIOS), naive, strict=True)),
        }


def mean_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how the interval of a group's mean covers the mean of the true times."""
    for n, variation, epochs in itertools.product(design.sizes, design.variations, design.epochs):
        centre = epochs + phases(draws, 1.0)
        _, (low, high) = group(centre, variation, 1.0, n, rng)
        true = centre * np.exp(spread_of(variation) ** 2 / 2)
        found, hits = bracketed_mean(low, high), bracketed_mean(high, high)
        right = np.abs(found.mean - true) <= found.reach()
        yield {
            "n": n,
            "cv": variation,
            "epochs": epochs,
            "coverage": share(right),
            "worst_quarter": min(share(part) for part in np.split(right, QUARTERS)),
            "coverage_first_hits": share(np.abs(hits.mean - true) <= hits.reach()),
        }


def familywise_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how often a report on equal groups holds any verdict, with Holm and without."""
    targets = 6
    for n, others, correlation in itertools.product((3, 5), design.others, (0.5, 0.8)):
        row: Row = {"n": n, "targets": targets, "others": others, "correlation": correlation}
        common = rng.standard_normal((draws, 1, others + 1, n))
        own = rng.standard_normal((draws, targets, others + 1, n))
        noise = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        centres = np.linspace(15, 40, targets)[:, None, None]
        low, high = rounded_up(centres * np.exp(spread_of(0.10) * noise), 1.0, rng)
        groups = bracketed_mean(np.log(low), np.log(high))
        first, second = (
            BracketedMean(
                *(value[:, :, part] for value in vars(groups).values() if value is not n), n
            )
            for part in (slice(0, 1), slice(1, None))
        )
        found = mean_difference(first, second)
        longer = (np.abs(found.shift) > np.maximum(first.width, second.width)).reshape(draws, -1)
        p_values = found.p_value.reshape(draws, -1)
        row["any_false_unadjusted"] = share(((p_values < LEVEL) & longer).any(axis=1))
        # Holm rejects anything at all only if the smallest p-value passes the strictest level.
        strictest = p_values == p_values.min(axis=1, keepdims=True)
        passed = strictest & (p_values < LEVEL / p_values.shape[1]) & longer
        row["any_false_holm"] = share(passed.any(axis=1))
        yield row


def censoring_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how often equal groups are told apart where one was stopped earlier."""
    sizes = [n for n in design.sizes if n >= 5]
    for n, variation, stopped in itertools.product(sizes, design.variations, (0.8, 0.9, 1.0)):
        centre = 15 + phases(draws, 1.0)
        ends = []
        for budget in (np.inf, np.floor(stopped * 15)):
            _, (low, high) = group(centre, variation, 1.0, n, rng)
            late = high > budget
            # A run is last seen at its last evaluation before it stops, not when it stops.
            seen = np.floor(stopped * 15 / (high - low)) * (high - low)
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
    """Returns two-sided p-values over all ways to deal the runs into two groups."""
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
    systems, equal on average, suits them (``interaction``, likewise).
    """
    words = 1 + rng.poisson(9, (speakers, utterances))
    hard = 0.5 * rng.standard_normal((speakers, utterances)) + 0.5 * rng.standard_normal(
        (speakers, 1)
    )
    suits = interaction * rng.standard_normal((2, speakers, 1))
    return words, rng.binomial(words, np.minimum(0.12 * np.exp(hard + suits), 0.95))


def speaker_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields how word error rates' intervals by speaker cover, and how often equals differ."""
    truth_words, truth = spoken(20_000, 20, 0.0, rng)
    true = truth[0].sum() / truth_words.sum()
    for speakers, utterances in design.speakers:
        blocks = np.repeat(np.arange(speakers), utterances).tolist()
        covered, alone, by_speaker, by_utterance = [], [], [], []
        for number in range(draws):
            words, errors = spoken(speakers, utterances, 0.0, rng)
            data = errors[0].ravel(), words.ravel()
            for found, kept in ((blocks, covered), (None, alone)):
                low, high = rate_interval(*data, blocks=found, resamples=1000, seed=number)
                kept.append(low <= true <= high)
            words, errors = spoken(speakers, utterances, 0.2, rng)
            unlike = (errors[1] - errors[0]).astype(float)
            by_speaker.append(exchange_p(unlike.sum(axis=1)) < LEVEL)
            # Of so many utterances the exchanges' distribution is the normal one.
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
    "ratio": (ratio_rows, 1),
    "mean": (mean_rows, 1),
    "familywise": (familywise_rows, 1),
    "censoring": (censoring_rows, 2),
    "speakers": (speaker_rows, 10),
}
"""The simulations, and by what number each divides the draws that it would take too long over."""


def simulate(seed: int, draws: int, design: Design = Design()) -> dict[str, Any]:
    """Returns all parts' rows, each with random numbers of its own."""
    found: dict[str, Any] = {"seed": seed, "draws": draws}
    for number, (name, (rows, fewer)) in enumerate(PARTS.items()):
        rng = np.random.default_rng([seed, number])
        of_part = max(QUARTERS, draws // fewer // QUARTERS * QUARTERS)
        found[name] = list(rows(design, of_part, rng))
    return found


def to_markdown(found: dict[str, Any]) -> str:
    """Returns the tables of a simulation, percent in every cell."""
    return "\n".join(
        [
            _ratio_table(found["ratio"]),
            _mean_table(found["mean"]),
            _table(
                "Any false verdict in a report on equal groups (6 targets, CV 10 %)",
                {"n": "n", "others": "other groups", "correlation": "correlation of targets",
                 "any_false_unadjusted": "p < 0.05 each", "any_false_holm": "Holm"},
                found["familywise"],
            ),
            _table(
                "Equal groups told apart, one of them stopped at a share of the median time",
                {"n": "n", "cv": "CV", "stopped_at": "stopped at",
                 "false_never_last": "ranks, never last", "false_gehan": "Gehan"},
                found["censoring"],
            ),
            _table(
                "Word error rates: intervals for other speakers, and equal systems told apart",
                {"speakers": "speakers", "utterances_each": "utterances each",
                 "coverage_by_speaker": "covers, by speaker",
                 "coverage_by_utterance": "covers, by utterance",
                 "false_by_speaker": "false, by speaker",
                 "false_by_utterance": "false, by utterance"},
                found["speakers"],
            ),
        ]
    )  # fmt: skip


def _ratio_table(rows: list[Row]) -> str:
    shown = []
    for key, cells in itertools.groupby(rows, key=lambda row: (row["grid"], row["n"], row["cv"])):
        cells = list(cells)
        shown.append(
            dict(zip(("grid", "n", "cv"), key, strict=True))
            | {str(cell["epochs"]): _range(cell["coverage"].values()) for cell in cells}
            | {"quarter": min(cell["worst_quarter"] for cell in cells)}
            | {"hits": _range(v for cell in cells for v in cell["coverage_first_hits"].values())}
            | {"false": max(cell["false_faster"] for cell in cells)}
            | {"false_hits": max(cell["false_faster_first_hits"] for cell in cells)}
        )
    headings = {"grid": "second group's grid", "n": "n", "cv": "CV"}
    headings |= {str(row["epochs"]): f"{row['epochs']} epochs" for row in rows}
    headings |= {
        "quarter": "worst quarter of the grid",
        "hits": "first hits",
        "false": "false faster",
        "false_hits": "first hits: false faster",
    }
    title = f"95 % interval of a ratio of {', '.join(f'{ratio:g}' for ratio in RATIOS)}"
    return _table(title, headings, shown)


def _mean_table(rows: list[Row]) -> str:
    shown = []
    for key, cells in itertools.groupby(rows, key=lambda row: (row["n"], row["cv"])):
        cells = list(cells)
        shown.append(
            dict(zip(("n", "cv"), key, strict=True))
            | {str(cell["epochs"]): cell["coverage"] for cell in cells}
            | {"quarter": min(cell["worst_quarter"] for cell in cells)}
            | {"hits": _range(cell["coverage_first_hits"] for cell in cells)}
        )
    headings = {"n": "n", "cv": "CV"}
    headings |= {str(row["epochs"]): f"{row['epochs']} epochs" for row in rows}
    headings |= {"quarter": "worst quarter of the grid", "hits": "first hits"}
    return _table("95 % interval of the mean", headings, shown)


def _table(title: str, headings: dict[str, str], rows: list[Row]) -> str:
    lines = [
        f"### {title}",
        "",
        f"| {' | '.join(headings.values())} |",
        "|---:" * len(headings) + "|",
    ]
    for row in rows:
        cells = [f"{100 * row[key]:.0f} %" if key == "cv" else f"{row[key]}" for key in headings]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _range(values: Any) -> str:
    low, *_, high = sorted(values)
    return f"{low}" if low == high else f"{low}-{high}"


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
        found = simulate(arguments.seed, min(arguments.draws, 400), QUICK)
    else:
        found = simulate(arguments.seed, arguments.draws)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(to_markdown(found), end="")


if __name__ == "__main__":
    main()
