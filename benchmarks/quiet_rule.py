"""Simulates how often a study errs on a machine that takes processors from its runs.

    python benchmarks/quiet_rule.py [--seed 1] [--draws 4000] [--quick] [--out FILE.md]

Two recipes are compared by tfasr's own looks. The machine takes a part of some runs'
processors, and a run that loses a part t takes 1 / (1 - t) times as long. The part is
measured with an error. Columns:

- "as measured": every run counts as it is.
- "again": a run that lost more than `StudyConfig.most_taken` is trained again with the
  same seed. The second try counts, whatever its time.
- "again, both": as in tfasr, the verdict must also hold for times without what the
  machine took.
- "slowest again" is what a study must not do: the slowest quarter of the second
  recipe's runs is trained again, and the faster try counts.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.studies.plan import StudyConfig
from tfasr.tta.comparison import LOOKS, levels, looks_of
from tfasr.tta.ranks import GROUPS, PAIRS, compare_ends

MOST_TAKEN = StudyConfig.most_taken
OF_SEEDS = 0.10  # the coefficient of variation over seeds
OF_REPEATS = 0.03  # of tries with the same seed
OF_MEASUREMENT = 0.03  # standard deviation of the measured part; docs/quiet_machine.md
RATIOS = (1.0, 1.2)  # how many times as long the second recipe takes
STAYS = 0.5  # how often a machine is as busy at the second try as it was at the first

Part = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def sometimes(probability: float, least: float = 0.0, most: float = 0.6) -> Part:
    """Returns a machine that takes an evenly distributed part of some runs, nothing of
    others.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        taken = rng.uniform(least, most, shape)
        return np.where(rng.random(shape) < probability, taken, 0.0)

    return draw


@dataclass(frozen=True)
class Machine:
    first: Part  # what the machine takes of the first recipe's runs
    second: Part

    def taken(self, rng: np.random.Generator, draws: int) -> np.ndarray:
        """Returns the part taken of each run, ``(draws, 2 recipes, runs)``."""
        shape = (draws, LOOKS[-1])
        return np.stack([self.first(rng, shape), self.second(rng, shape)], axis=1)


MACHINES = {
    "quiet": Machine(sometimes(0.0), sometimes(0.0)),
    "disturbs 1 run in 6": Machine(sometimes(1 / 6), sometimes(1 / 6)),
    "disturbs every other run": Machine(sometimes(0.5), sometimes(0.5)),
    "disturbs the second recipe more: 1 in 3, not 1 in 20": Machine(
        sometimes(1 / 20), sometimes(1 / 3)
    ),
    "disturbs the second recipe alone: 1 in 2": Machine(sometimes(0.0), sometimes(0.5)),
    "takes 8 % of the second recipe's runs": Machine(
        sometimes(0.0), sometimes(1.0, least=0.08, most=0.08)
    ),
    "takes 40 % of the second recipe's runs": Machine(
        sometimes(0.0), sometimes(1.0, least=0.4, most=0.4)
    ),
}


@dataclass(frozen=True)
class Study:
    times: np.ndarray  # logarithms, (draws, 2 recipes, runs)
    # The part of each run that the machine took, as far as measured.
    measured: np.ndarray
    tries: float  # per run

    @property
    def undisturbed(self) -> np.ndarray:
        """Returns the logarithms of the times without what the machine took."""
        return self.times + np.log1p(-np.clip(self.measured, 0.0, 0.95))


def studied(
    machine: Machine, ratio: float, rule: str, draws: int, rng: np.random.Generator
) -> Study:
    """Trains the runs of many studies by a rule: "", "again" or "slowest again"."""
    shape = (draws, 2, LOOKS[-1])
    recipes = np.array([0.0, math.log(ratio)])[None, :, None]
    seeds = recipes + OF_SEEDS * rng.standard_normal(shape)

    def tried(taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        times = seeds + OF_REPEATS * rng.standard_normal(shape) - np.log1p(-taken)
        measured = taken + OF_MEASUREMENT * rng.standard_normal(shape)
        return times, measured

    taken = machine.taken(rng, draws)
    times, measured = tried(taken)
    if not rule:
        return Study(times, measured, 1.0)

    stays = rng.random(shape) < STAYS
    second_times, second_measured = tried(
        np.where(stays, taken, machine.taken(rng, draws))
    )
    if rule == "again":
        repeated = measured > MOST_TAKEN
    else:
        repeated = times > np.quantile(times[:, 1], 0.75, axis=-1)[:, None, None]
        repeated[:, 0] = False
        repeated &= second_times < times

    return Study(
        np.where(repeated, second_times, times),
        np.where(repeated, second_measured, measured),
        1 + float(repeated.mean()),
    )


def decided(times: np.ndarray, others: np.ndarray | None, test: str) -> np.ndarray:
    """Returns which recipe each study calls later: 1 the second, -1 the first, 0 undecided.

    If ``others`` are given, a look decides only if both kinds of times do.
    """
    sign = np.zeros(len(times))
    looks = looks_of(test)
    for runs, allowed in zip(looks, levels(looks), strict=True):
        now = _look(times[..., :runs], test, allowed)
        if others is not None:
            now = np.where(now == _look(others[..., :runs], test, allowed), now, 0)

        sign = np.where(sign == 0, now, sign)

    return sign


def _look(times: np.ndarray, test: str, allowed: float) -> np.ndarray:
    first = times[:, 0]
    second = times[:, 1]
    result = compare_ends((first, first), (second, second), test, 1 - allowed)

    return np.where(result.p_value < allowed, result.sign, 0)


def rows_of(draws: int, rng: np.random.Generator) -> Iterator[list[str]]:
    """Yields the table's rows: in percent of studies, those that call the second recipe
    later.
    """
    for (name, machine), ratio, test in itertools.product(
        MACHINES.items(), RATIOS, (GROUPS, PAIRS)
    ):
        plain = studied(machine, ratio, "", draws, rng)
        again = studied(machine, ratio, "again", draws, rng)
        slowest = studied(machine, ratio, "slowest again", draws, rng)
        signs = [
            decided(plain.times, None, test),
            decided(again.times, None, test),
            decided(again.times, again.undisturbed, test),
            decided(slowest.times, None, test),
        ]
        shown = [
            f"{100 * np.mean(sign > 0):.1f}, {100 * np.mean(sign < 0):.1f}"
            for sign in signs
        ]

        yield [name, f"{ratio:g}", test, *shown, f"{again.tries:.2f}"]


HEADINGS = (
    *(
        "the machine",
        "ratio",
        "test",
        "as measured",
        "again",
        "again, both",
        "slowest again",
    ),
    "tries a run",
)


def table(rows: Iterable[Sequence[str]], draws: int) -> str:
    """Returns the rows as Markdown."""
    error = 100 * math.sqrt(0.05 * 0.95 / draws)
    lines = [
        f"Percent of {draws} studies that call the second recipe slower, then faster "
        f"(Monte Carlo error {error:.2f} at 5 %). With the ratio 1, each verdict is "
        "false.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|---|{'---:|' * (len(HEADINGS) - 1)}",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows]

    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulates and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="few draws, for a test")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.md", help="also write the table here"
    )
    arguments = parser.parse_args()

    draws = 200 if arguments.quick else arguments.draws
    text = table(rows_of(draws, np.random.default_rng(arguments.seed)), draws)
    print(text, end="")

    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
