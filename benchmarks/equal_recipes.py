"""How often a recipe wins a race against itself, by chance or by its author's habit.

``python benchmarks/equal_recipes.py`` simulates races of equal recipes with the looks
and levels of ``tfasr record`` and the rules of ``tfasr verify``: on a quiet machine, on
hosts on which some runs are slower, with load in the other side's turns, with work
moved before the clock, and with many races of which one is published. Needs about a
minute; docs/records.md quotes the figures.
"""

import argparse
import math

import numpy as np

from tfasr.studies.records import SHARE_OF_GAP, TrackConfig
from tfasr.tta.comparison import levels, looks_of
from tfasr.tta.ranks import GROUPS

LEVEL = TrackConfig.level
LOOKS = looks_of(GROUPS, LEVEL)
# Standard deviation of the logarithm of a run's time, as of the demo's runs.
NOISE = 0.07


def exact_p(n: int) -> np.ndarray:
    """Returns the two-sided p-value of each Mann-Whitney statistic of n against n, 0 to
    n * n.
    """
    ways = [[None] * (n + 1) for _ in range(n + 1)]
    for first in range(n + 1):
        for second in range(n + 1):
            counts = np.zeros(n * n + 1)
            if first == 0 or second == 0:
                counts[0] = 1
            else:
                counts[second:] += ways[first - 1][second][: n * n + 1 - second]
                counts += ways[first][second - 1]

            ways[first][second] = counts

    share = ways[n][n] / ways[n][n].sum()
    below = np.cumsum(share)
    return np.minimum(1, 2 * np.minimum(below, 1 - below + share))


def wins(
    reigning: np.ndarray, challenger: np.ndarray, explained: float = 0.0
) -> np.ndarray:
    """Returns for each race whether the challenger wins it.

    Args:
        reigning, challenger: logarithms of times, ``(races, runs)``.
        explained: how much of the challenger's lead, as a logarithm, verify sees
            explained by load or by work before the clock; more than `SHARE_OF_GAP` of
            the lead is refused.
    """
    decided = np.zeros(len(reigning), dtype=bool)
    won = np.zeros(len(reigning), dtype=bool)
    for n, level in zip(LOOKS, levels(LOOKS, LEVEL), strict=True):
        first = reigning[:, :n]
        second = challenger[:, :n]
        later = (first[:, :, None] > second[:, None, :]).sum(axis=(1, 2))
        below = (exact_p(n)[later] < level) & ~decided
        lead = first.mean(axis=1) - second.mean(axis=1)
        won |= below & (later * 2 > n * n) & (explained <= SHARE_OF_GAP * lead)
        decided |= below

    return won


def shown(name: str, won: np.ndarray) -> None:
    rate = won.mean()
    error = math.sqrt(rate * (1 - rate) / won.size)
    print(f"{name:<60}{100 * rate:6.2f} % (+- {100 * error:.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--races", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    rng = np.random.default_rng(arguments.seed)
    shape = arguments.races, LOOKS[-1]

    def times(slower: float = 1.0, share: float = 0.0) -> np.ndarray:
        noise = NOISE * rng.standard_normal(shape)
        return noise + math.log(slower) * (rng.random(shape) < share)

    print(f"looks at {LOOKS} runs a side; the level of all looks is {LEVEL}")
    shown("quiet machine", wins(times(), times()))
    for share, slower in ((0.3, 1.6), (0.5, 1.6), (0.5, 1.3), (0.1, 3.0)):
        name = f"{100 * share:.0f} % of runs {slower} times as long"
        shown(name, wins(times(slower, share), times(slower, share)))

    for load in (0.02, 0.05, 0.1, 0.2):
        slow = times() + math.log1p(load)
        shown(
            f"{100 * load:.0f} % more load in the other's turns",
            wins(slow, times(), load),
        )
        shown("  the same, if verify looked away", wins(slow, times()))

    for moved in (0.02, 0.05, 0.1):
        fast = times() + math.log1p(-moved)
        shown(
            f"{100 * moved:.0f} % of the work before the clock",
            wins(times(), fast, moved),
        )

    for races in (3, 10):
        several = [wins(times(), times()) for _ in range(races)]
        shown(
            f"the best of {races} races, the others not published",
            np.any(several, axis=0),
        )


if __name__ == "__main__":
    main()
