"""Simulates how often the report's intervals and verdicts on groups of runs are right.

    python benchmarks/interval_coverage.py [--seed 1] [--draws 4000] [--quick] [--out FILE.json]

Each run's error curve falls and crosses the target at its own time. It is evaluated on
a grid whose pace differs by 0.3 % between runs, and the rule (the first crossing, or a
median of 3 or 5) reads the evaluations. The median time's place in the grid is random.
The simulation uses tfasr's own code for groups (`tfasr.tta`) and word errors
(`tfasr.scoring`).
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import gamma

from tfasr.scoring.summary import exchange_p, rate_interval
from tfasr.tta.comparison import LEVEL
from tfasr.tta.groups import median_interval
from tfasr.tta.policies import evaluations_in
from tfasr.tta.ranks import GROUPS, PAIRS, Ratios, compare_ends

RATIO = 1.2
JITTER = 0.003
SLOWER = 1.6  # how many times as long the slow runs take
LONGEST = 8.0  # no time is longer than so many medians
LARGE = 500_000  # pairs of runs, for a ratio that counts as the true one

Ends = tuple[np.ndarray, np.ndarray]
Row = dict[str, Any]


@dataclass(frozen=True)
class Design:
    """Settings of the simulation.

    Attributes:
        sizes: runs per group.
        variations: CVs of the times.
        evaluations: to the target, on the first group's grid.
        slow: shares of slow runs.
        noises: of an evaluation, relative to the fall of the error between two.
        others: groups compared with the first.
        speakers: numbers of speakers, and utterances of each.
    """

    sizes: tuple[int, ...] = (5, 8, 12, 20)
    variations: tuple[float, ...] = (0.02, 0.10, 0.30)
    evaluations: tuple[int, ...] = (10, 160)
    slow: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
    noises: tuple[float, ...] = (0.5, 1.0, 2.0)
    others: tuple[int, ...] = (1, 3, 5)
    speakers: tuple[tuple[int, int], ...] = (
        (5, 20),
        (10, 20),
        (15, 20),
        (20, 20),
        (40, 20),
    )


QUICK = Design(
    (6,), (0.10,), (10, 160), (0.3,), noises=(1.0,), others=(3,), speakers=((6, 8),)
)


def spread_of(variation: float) -> float:
    """Returns the standard deviation of the logarithm of times with a CV."""
    return float(np.sqrt(np.log1p(variation**2)))


def log_normal(
    variation: float, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    return np.exp(spread_of(variation) * rng.standard_normal(shape))


def gamma_times(
    variation: float, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    alpha = variation**-2
    return rng.gamma(alpha, size=shape) / gamma(alpha).median()


def log_t3(
    variation: float, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    return np.exp(spread_of(variation) / np.sqrt(3) * rng.standard_t(3, shape))


SHAPES = {"log-normal": log_normal, "gamma": gamma_times, "t3": log_t3}
"""Times over seeds with a median of 1: of a CV, in a shape."""


def slowed(times: np.ndarray, slow: float, rng: np.random.Generator) -> np.ndarray:
    """Returns times of which a share is `SLOWER` times as long."""
    return times * np.where(rng.random(times.shape) < slow, SLOWER, 1.0)


def read(
    times: np.ndarray,
    grid: float,
    window: int,
    rng: np.random.Generator,
    noise: float = 0.0,
) -> tuple[Ends, np.ndarray]:
    """Returns brackets of times that a rule reads from evaluations, and its delay.

    The error falls by 1 between evaluations and has that ``noise``. The delay is the
    time from the bracket's end until the rule is met.
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
    errors = (
        crossings[..., None]
        - number
        + noise * rng.standard_normal((*times.shape, last))
    )
    total = np.cumsum(errors <= 0, axis=-1)
    before = np.concatenate(
        [np.zeros((*times.shape, window)), total[..., :-window]], axis=-1
    )
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
    shape: str, centre: np.ndarray, variation: float, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns times ``(draws, n)`` about medians."""
    times = SHAPES[shape](variation, (centre.size, n), rng)
    return centre[:, None] * np.minimum(times, LONGEST)


def phases(draws: int, coarsest: float) -> np.ndarray:
    """Returns each draw's place in the grid, uniform over one interval."""
    return (np.arange(draws) + 0.5) / draws * coarsest - coarsest / 2


def log_of(ends: Ends) -> Ends:
    """Returns logarithms; a run that hits at its first evaluation has no lower end."""
    with np.errstate(divide="ignore"):
        return np.log(ends[0]), np.log(ends[1])


def compared(first: Ends, second: Ends, test: str = GROUPS) -> Ratios:
    return compare_ends(log_of(first), log_of(second), test, 1 - LEVEL)


def share(hits: np.ndarray) -> float:
    """Returns the percentage of true values."""
    return round(100 * float(np.mean(hits)), 1)


def contains(found: Ratios, ratio: float) -> float:
    log_ratio = math.log(ratio)
    return share((found.low <= log_ratio) & (log_ratio <= found.high))


def width_of(found: Ratios) -> float:
    """Returns by how many percent the upper end exceeds the ratio, in the median draw."""
    return round(100 * float(np.median(np.expm1(found.high - found.estimate))), 1)


def shape_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields coverage of a ratio of 1.2, and verdicts on equal groups, by times' shape.

    Of both groups, a share of runs is slow, as on a host with two speeds.
    """
    cells = itertools.product(
        (GROUPS, PAIRS),
        SHAPES,
        (0.0, 0.5),
        design.variations,
        design.evaluations,
        design.sizes,
    )
    for test, shape, slow, variation, evaluations, n in cells:
        if test == PAIRS and n < 6:
            continue

        centre = evaluations + phases(draws, 1.0)
        groups = [
            slowed(draw(shape, centre, variation, n, rng), slow, rng) for _ in range(2)
        ]
        first = read(groups[0], 1.0, 3, rng)[0]
        equal = compared(first, read(groups[1], 1.0, 3, rng)[0], test)
        result = compared(first, read(RATIO * groups[1], 1.0, 3, rng)[0], test)

        yield {
            "test": test, "shape": shape, "slow": slow, "cv": variation,
            "evaluations": evaluations, "n": n, "coverage": contains(result, RATIO),
            "decided": share((result.p_value < LEVEL) & (result.sign > 0)),
            "width": width_of(result), "false": share(equal.p_value < LEVEL),
        }  # fmt: skip


def kinds_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields coverage if only the second group has slow runs.

    The true ratio is that of `LARGE` pairs of runs. It is also given how often one
    group is called faster, and how often the interval contains the ratio of the groups'
    own medians.
    """
    for slow, test, n in itertools.product(design.slow, (GROUPS, PAIRS), design.sizes):
        if test == PAIRS and n < 6:
            continue

        many = [np.log(log_normal(0.05, (LARGE, 2), rng)) for _ in range(2)]
        many[1] = np.log(slowed(np.exp(many[1]), slow, rng))

        ratios = many[1] - many[0]
        if test == PAIRS:
            ratios = ratios.mean(axis=1)

        true = math.exp(float(np.median(ratios)))
        of_medians = math.exp(float(np.median(many[1]) - np.median(many[0])))
        centre = 160 + phases(draws, 1.0)
        first = draw("log-normal", centre, 0.05, n, rng)
        second = slowed(draw("log-normal", centre, 0.05, n, rng), slow, rng)
        result = compared(
            read(first, 1.0, 3, rng)[0], read(second, 1.0, 3, rng)[0], test
        )

        yield {
            "test": test, "slow": slow, "n": n, "true": round(true, 3),
            "coverage": contains(result, true),
            "of_medians": contains(result, of_medians),
            "first": share((result.p_value < LEVEL) & (result.sign > 0)),
            "second": share((result.p_value < LEVEL) & (result.sign < 0)),
        }  # fmt: skip


def median_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields the coverage of the interval of one group's median time."""
    for shape, slow, n in itertools.product(SHAPES, (0.0, 0.3), (6, 8, 12, 20)):
        times = slowed(SHAPES[shape](0.10, (draws, n), rng), slow, rng)
        many = slowed(SHAPES[shape](0.10, (200_000,), rng), slow, rng)
        low, high = np.transpose([median_interval(row) for row in times.tolist()])
        true = np.median(many)

        yield {"shape": shape, "slow": slow, "n": n,
               "coverage": share((low <= true) & (true <= high))}  # fmt: skip


def noise_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields effects of noisy evaluations on equal groups, also where grids differ.

    A group on a grid of 3 has a third of the noise, as its error falls three times as
    far between two evaluations. ``early``: by how many evaluations the middles precede
    the crossings.
    """
    evaluations = 20
    for noise, window, n in itertools.product(design.noises, (1, 3, 5), (5, 12)):
        row: Row = {"noise": noise, "window": window, "n": n}
        for grid in (1.0, 3.0):
            centre = evaluations + phases(draws, grid)
            times = [draw("log-normal", centre, 0.05, n, rng) for _ in range(2)]
            first = read(times[0], 1.0, window, rng, noise)[0]
            second = read(times[1], grid, window, rng, noise / grid)[0]
            row["early"] = round(
                float(np.mean(times[0] - (first[0] + first[1]) / 2)), 2
            )
            result = compared(first, second)
            row[f"coverage_{grid:g}"] = contains(result, 1.0)
            row[f"false_{grid:g}"] = share(result.p_value < LEVEL)

        yield row


def often_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields what several evaluations an epoch do to the times that a rule reads.

    Errors fall by 1 an epoch. Noise is independent from one evaluation to the next, or
    lasts for a quarter of an epoch. Times are relative to the true crossing, in epochs.
    """
    epochs = 14
    for per_epoch, noise, lasting in itertools.product(
        (1, 4, 8), design.noises, (False, True)
    ):
        median = epochs + rng.uniform(-0.5, 0.5, draws)
        crossed = median[:, None] * log_normal(0.10, (draws, 5), rng)
        number = np.arange(1, 2 * epochs * per_epoch + 1)
        walk = rng.standard_normal((draws, 5, number.size))

        if lasting:
            kept = math.exp(-4 / per_epoch)
            for at in range(1, number.size):
                walk[..., at] *= math.sqrt(1 - kept**2)
                walk[..., at] += kept * walk[..., at - 1]

        errors = crossed[..., None] - number / per_epoch + noise * walk
        for window in sorted({3, evaluations_in(3, per_epoch)}):
            met = np.cumsum(errors <= 0, axis=-1)
            before = np.concatenate(
                [np.zeros((draws, 5, window)), met[..., :-window]], -1
            )
            rule = ((met - before > window // 2) & (number >= window)).argmax(
                axis=-1
            ) + 1
            high = (rule - window // 2) / per_epoch
            middle_late = float(np.mean(high - 0.5 / per_epoch - crossed))
            rule_late = float(np.mean(rule / per_epoch - crossed))

            yield {
                "per_epoch": per_epoch,
                "window": window,
                "noise": noise,
                "noise_lasts": lasting,
                "middle_late": round(middle_late, 2),
                "rule_late": round(rule_late, 2),
            }


def familywise_rows(
    design: Design, draws: int, rng: np.random.Generator
) -> Iterator[Row]:
    """Yields how often a report on equal groups has any verdict, with Holm's method and
    without.
    """
    targets = 6
    for n, others, correlation in itertools.product((5, 8), design.others, (0.5, 0.8)):
        common = rng.standard_normal((draws, 1, others + 1, n))
        own = rng.standard_normal((draws, targets, others + 1, n))
        noise = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        centres = np.linspace(150, 400, targets)[:, None, None]
        low, high = read(centres * np.exp(spread_of(0.10) * noise), 1.0, 3, rng)[0]
        of_others = compared(
            (low[:, :, :1], high[:, :, :1]), (low[:, :, 1:], high[:, :, 1:])
        ).p_value.reshape(draws, -1)

        # Holm's method rejects anything only if the smallest p-value passes the
        # strictest level.
        yield {
            "n": n, "targets": targets, "others": others, "correlation": correlation,
            "any_false_unadjusted": share((of_others < LEVEL).any(axis=1)),
            "any_false_holm": share((of_others < LEVEL / of_others.shape[1]).any(axis=1)),
        }  # fmt: skip


def stopped(ends: Ends, at: float) -> Ends:
    """Returns what is known of runs that were stopped at a time."""
    late = ends[1] > at
    return np.where(late, np.minimum(ends[0], at), ends[0]), np.where(
        late, np.inf, ends[1]
    )


def stopping_rows(
    design: Design, draws: int, rng: np.random.Generator
) -> Iterator[Row]:
    """Yields verdicts for a challenger of two kinds of runs, by when one group gives up.

    The first group needs 10. A share of the second group's seeds needs 8, the others
    16.
    """
    for quick, stop, n in itertools.product(
        (0.4, 0.5, 0.6, 1.0), (np.inf, 11.5, 9.0), (8, 12)
    ):
        shape = (draws, n)
        first = 10 * log_normal(0.05, shape, rng)
        kinds = np.where(rng.random(shape) < quick, 8.0, 16.0)
        second = kinds * log_normal(0.05, shape, rng)
        groups = [read(times * 16, 1.0, 1, rng)[0] for times in (first, second)]
        row: Row = {"quick": quick, "stop": stop, "n": n}

        if math.isinf(stop):
            row["stop"] = "never"

        for name, changed in (
            ("challenger", (groups[0], stopped(groups[1], 16 * stop))),
            ("reigning", (stopped(groups[0], 16 * stop), groups[1])),
            ("both", tuple(stopped(ends, 16 * stop) for ends in groups)),
        ):
            result = compared(*changed)
            row[f"{name}_stopped"] = share((result.p_value < LEVEL) & (result.sign < 0))

        yield row


def subset_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields by how much evaluating a part of the validation set moves a ratio of times.

    Two recipes err equally often on all utterances, in 15 % of words at the target and
    in proportion to 1 / time, but differ in which utterances suit them (``suits``, the
    standard deviation of the logarithm of their rates). Both are evaluated on the same
    part.
    """
    sizes = ((40, 100), (80, 100), (400, 1000))
    for (part, whole), suits in itertools.product(sizes, (0.1, 0.3)):
        words = 1 + rng.poisson(9, (draws, 1, whole))
        hard = 0.5 * rng.standard_normal((draws, 1, whole))
        rates = np.exp(hard + suits * rng.standard_normal((draws, 2, whole)))
        rates /= (rates * words).sum(axis=-1, keepdims=True)
        errors = rng.poisson(0.15 * words.sum(axis=-1, keepdims=True) * rates * words)
        of_all = np.log(errors.sum(axis=-1))
        of_part = np.log(np.maximum(errors[..., :part].sum(axis=-1), 1))
        moved = np.diff(of_part, axis=-1) - np.diff(of_all, axis=-1)

        yield {
            "evaluated": part,
            "of": whole,
            "suits": suits,
            "moves": round(100 * float(np.std(moved)), 1),
        }


def spoken(
    speakers: int, utterances: int, interaction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns words and two systems' errors, ``(speakers, utterances)`` and ``(2, ...)``.

    Speakers differ in difficulty (standard deviation 0.5 of the logarithm) and in which
    of the two systems, equal on average, suits them (``interaction``, also a standard
    deviation).
    """
    words = 1 + rng.poisson(9, (speakers, utterances))
    hard = 0.5 * rng.standard_normal(
        (speakers, utterances)
    ) + 0.5 * rng.standard_normal((speakers, 1))
    suits = interaction * rng.standard_normal((2, speakers, 1))

    return words, rng.binomial(words, np.minimum(0.12 * np.exp(hard + suits), 0.95))


def speaker_rows(design: Design, draws: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yields the coverage of WER intervals by speaker, and how often equals differ."""
    truth_words, truth = spoken(20_000, 20, 0.0, rng)
    true = truth[0].sum() / truth_words.sum()
    for speakers, utterances in design.speakers:
        blocks = np.repeat(np.arange(speakers), utterances).tolist()
        covered = []
        alone = []
        by_speaker = []
        by_utterance = []

        for number in range(draws):
            words, errors = spoken(speakers, utterances, 0.0, rng)
            data = errors[0].ravel(), words.ravel()
            for result, counts in ((blocks, covered), (None, alone)):
                low, high = rate_interval(
                    *data, blocks=result, resamples=1000, seed=number
                )
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


Rows = Callable[[Design, int, np.random.Generator], Iterator[Row]]
PARTS: dict[str, tuple[str, Rows, int]] = {
    "shapes": (
        "Two groups: coverage of a ratio of 1.2, verdicts on equal groups",
        shape_rows,
        1,
    ),
    "kinds": ("Only the second group has slow runs", kinds_rows, 1),
    "median": ("Coverage of the interval of a group's median", median_rows, 1),
    "noise": ("Noisy evaluations, 20 of them to the target, CV 5 %", noise_rows, 4),
    "often": (
        "Several evaluations an epoch: times after the crossing, in epochs",
        often_rows,
        2,
    ),
    "familywise": ("Any false verdict in a report on equal groups", familywise_rows, 1),
    "stopping": (
        "The second group called faster, by who gives up when",
        stopping_rows,
        1,
    ),
    "subset": (
        "Evaluating a part of the utterances moves ratios by (SD, %)",
        subset_rows,
        4,
    ),
    "speakers": ("Word error rates: intervals for other speakers", speaker_rows, 10),
}
"""The simulations: title, rows, and by what the number of draws is divided."""


def simulate(seed: int, draws: int, design: Design = Design()) -> dict[str, Any]:
    """Returns all parts' rows, with independent random numbers."""
    result: dict[str, Any] = {"seed": seed, "draws": draws}
    for number, (name, (_, rows, fewer)) in enumerate(PARTS.items()):
        rng = np.random.default_rng([seed, number])
        result[name] = list(rows(design, draws // fewer, rng))

    return result


def to_markdown(result: dict[str, Any]) -> str:
    """Returns the tables of a simulation, percent in most cells."""
    lines = []
    for name, (title, _, fewer) in PARTS.items():
        draws = result["draws"] // fewer
        error = 100 * math.sqrt(0.95 * 0.05 / draws)
        rows = result[name]
        lines += [
            f"### {title} ({draws} draws, Monte Carlo error {error:.1f} at 5 or 95 %)",
            "",
        ]
        lines += [f"| {' | '.join(rows[0])} |", "|---:" * len(rows[0]) + "|"]
        lines += [f"| {' | '.join(str(row[key]) for key in rows[0])} |" for row in rows]
        lines.append("")

    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=4000, help="of every cell")
    parser.add_argument(
        "--quick", action="store_true", help="few cells and draws, to see that it works"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.json", help="also write all figures"
    )
    arguments = parser.parse_args()

    if arguments.quick:
        result = simulate(arguments.seed, min(arguments.draws, 400), QUICK)
    else:
        result = simulate(arguments.seed, arguments.draws)

    text = to_markdown(result)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        arguments.out.with_suffix(".md").write_text(text, encoding="utf-8")

    print(text, end="")


if __name__ == "__main__":
    main()
