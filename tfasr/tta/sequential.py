"""Enough seeds? A comparison that looks several times and stops as soon as it is decided."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tfasr.tta.brackets import Bracket
from tfasr.tta.group_comparison import LEVEL, GroupComparison, compare_groups

LOOKS = (3, 5, 8, 12)
"""Runs a group at which a comparison is looked at."""

_GRID_STEPS = 1001


@dataclass(frozen=True)
class Decision:
    """What a group-sequential comparison has come to.

    Attributes:
        sooner: the group that is faster, "first" or "second"; None where that is undecided.
        runs: runs a group at the look that it rests on; 0 before the first look.
        level: what the p-value had to be below there.
        comparison: the comparison at that look; None before the first.
        next_look: runs a group that are needed for the next look; None where the comparison is
            over, decided or not.
    """

    sooner: str | None
    runs: int
    level: float | None
    comparison: GroupComparison | None
    next_look: int | None

    @property
    def over(self) -> bool:
        """Whether more runs would change nothing."""
        return self.next_look is None

    @property
    def verdict(self) -> str:
        """The decision in words."""
        if self.comparison is None:
            return f"undecided: the first look is at {self.next_look} runs a group"
        p_value = self.comparison.p_value
        tested = "no test" if p_value is None else f"p = {p_value:.2g}"
        tested += f" at {self.runs} runs a group, where it takes {self.level:.2g}"
        if self.sooner is not None:
            return f"the {self.sooner} group is faster ({tested})"
        if self.comparison.below_bracket:
            tested += "; the gap is no larger than the time between evaluations"
        if self.over:
            return f"undecided after all looks ({tested})"
        return f"undecided ({tested}); next look at {self.next_look}"


def decide(
    first: Sequence[Bracket], second: Sequence[Bracket], looks: Sequence[int] = LOOKS
) -> Decision:
    """Returns what runs in the order of their seeds decide, looked at as often as they allow.

    At each look the test is that of `tfasr.tta.group_comparison.compare_groups`; its p-value has to
    be below the look's level, see `levels`, so that the probability to call one of two equal groups
    faster at any look is at most 5 %. The first look that decides stands, whatever runs came later.

    Args:
        looks: runs a group at which to look, increasing.

    Raises:
        ValueError: if the looks do not increase from 2 on.
    """
    have = min(len(first), len(second))
    found = Decision(None, 0, None, None, looks[0])
    coming = [*looks[1:], None]
    for n, level, after in zip(looks, levels(tuple(looks)), coming, strict=True):
        if n > have:
            break
        comparison = compare_groups(first[:n], second[:n])
        shown = comparison.p_value is not None and comparison.p_value < level
        if shown and not comparison.below_bracket and comparison.later is not None:
            sooner = {"first": "second", "second": "first"}[comparison.later]
            return Decision(sooner, n, level, comparison, None)
        found = Decision(None, n, level, comparison, after)
    return found


def run_until_decided(
    train: Callable[[str, int], Bracket], looks: Sequence[int] = LOOKS
) -> Decision:
    """Returns the decision of a loop that trains two groups' runs only as long as that is needed.

    Args:
        train: trains the run of a group, "first" or "second", with a seed, counted from 1, and
            returns between which evaluations it met the target. Groups take turns, so that a
            machine that slows down slows both.
    """
    brackets: dict[str, list[Bracket]] = {"first": [], "second": []}
    decision = decide([], [], looks)
    while decision.next_look is not None:
        for seed in range(len(brackets["first"]) + 1, decision.next_look + 1):
            for group, own in brackets.items():
                own.append(train(group, seed))
        decision = decide(brackets["first"], brackets["second"], looks)
    return decision


@cache
def levels(looks: tuple[int, ...] = LOOKS, level: float = LEVEL) -> tuple[float, ...]:
    """Returns for each look what a two-sided p-value has to be below.

    Up to a look with the share ``t`` of all runs the looks may err with ``level * log(1 + (e - 1)
    t)`` altogether (Pocock's shape, that spends early, where seeds are saved). The levels follow
    from the joint normal distribution of the statistics; as significance levels they carry over to
    t tests with few runs (benchmarks/enough_seeds.py).

    Source: Lan and DeMets 1983 (doi 10.1093/biomet/70.3.659); Armitage, McPherson and Rowe 1969 for
    the recursion; Jennison and Turnbull 2000, section 3.3 for significance levels.

    Raises:
        ValueError: if the looks do not increase from 2 on.
    """
    if not looks or looks[0] < 2 or any(b <= a for a, b in zip(looks, looks[1:], strict=False)):
        raise ValueError(f"Looks must increase, from 2 runs on. Received: {looks}.")
    from scipy.stats import norm

    spent = [level * math.log1p((math.e - 1) * n / looks[-1]) for n in looks]
    found = []
    # The density of the sum so far where no look has decided, on the scale of sums: Z sqrt(n).
    points, density, before, erred = np.zeros(1), np.ones(1), 0, 0.0
    for n, until in zip(looks, spent, strict=True):
        grid = np.linspace(-8, 8, _GRID_STEPS) * math.sqrt(n)
        increments = norm.pdf(grid[:, None] - points[None, :], scale=math.sqrt(n - before))
        step = points[1] - points[0] if points.size > 1 else 1.0
        here = increments @ density * step
        bound = _bound(grid, here, until - erred)
        found.append(float(2 * norm.sf(bound / math.sqrt(n))))
        points, density = grid, np.where(np.abs(grid) < bound, here, 0.0)
        before, erred = n, until
    return tuple(found)


def _bound(grid: np.ndarray, density: np.ndarray, allowed: float) -> float:
    right = grid >= 0
    tail = 2 * np.cumsum(density[right][::-1])[::-1] * (grid[1] - grid[0])
    return float(np.interp(-allowed, -tail, grid[right]))
