"""Decides whether runs of one configuration reach a target sooner than those of another.

Choose one of two tests before the runs: ``pairs`` if the two runs of each seed were
trained one after the other on one machine, else ``groups``. A test may be repeated as
runs come in; each time is called a look.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tfasr.tta.policies import Bracket
from tfasr.tta.ranks import GROUPS, PAIRS, compare_ends, least_p, log_ends

LEVEL = 0.05
LOOKS = (5, 8, 12)  # runs per group at which a comparison may be looked at
TESTS = (GROUPS, PAIRS)
TEST_NAMES = {GROUPS: "Mann-Whitney test", PAIRS: "signed-rank test"}
ESTIMAND = {
    GROUPS: (
        "The ratio is the median over all pairs of a run of one group and a run of the other: in "
        "half of these pairs, the second run's error curve crosses the target at least that many "
        "times as late as the first run's."
    ),
    PAIRS: (
        "The ratio is the median over the pairs of equal seeds, each averaged with every other: "
        "how many times as late the second run's error curve crosses the target."
    ),
}
_OTHER = {"first": "second", "second": "first"}
_GRID_STEPS = 1001


def decimals(low: float, high: float) -> int:
    """Returns the number of decimals, 2 to 6, that show an interval's width with two
    digits.
    """
    return max(2, min(6, 1 - math.floor(math.log10(high - low)))) if high > low else 2


def interval_text(low: float, high: float) -> str:
    return f"{low:.{decimals(low, high)}f} to {high:.{decimals(low, high)}f}"


@dataclass(frozen=True)
class GroupComparison:
    """How many times as long the second group takes as the first, see `ESTIMAND`.

    ``None`` marks what so few runs, or runs without a time, leave unknown. It has many
    fields because reports show each of them as a column or in the verdict's sentence.
    """

    ratio: float | None
    interval: tuple[float, float] | None = None
    # The interval contains the true ratio with this probability.
    confidence: float = 1 - LEVEL
    # The same median of the times at which the target's rule was met, which is later
    # than the crossing: the rarer the evaluations, the later. For details only.
    ratio_by_rule: float | None = None
    test: str | None = None  # one of `TESTS`; None if so few runs can't decide
    pairs: int | None = None  # how many pairs of equal seeds, if the test is of pairs
    p_value: float | None = None  # two-sided
    # "first" or "second": the group with more runs that are surely later
    later: str | None = None
    adjusted_p: float | None = None  # by Holm's method, for all comparisons of a report
    comparisons: int = 1  # how many comparisons of the report were tested
    least_p: float | None = None  # the smallest p-value that so many runs can give
    # The p-value must be below this; at a look, less than 1 - confidence.
    level: float = LEVEL
    # The p-value of the times as they were measured, if what the machine took from the
    # runs (`Bracket.undisturbed`) may explain the difference that they show; else None
    measured_p: float | None = None

    @property
    def decidable(self) -> bool:
        """Whether the p-value could be below the level after adjustment for all
        comparisons.
        """
        return self.least_p is not None and self.least_p * self.comparisons < self.level

    @property
    def sooner(self) -> str | None:
        """The faster group if ``adjusted_p`` is below the level."""
        if self.adjusted_p is None or self.adjusted_p >= self.level:
            return None
        return _OTHER.get(self.later)

    def takes(self, first: str) -> str:
        """Returns the ratio with its interval as text, such as "1.20 times as long as ..."."""
        if self.ratio is None:
            return f"an unknown number of times as long as {first}: too many runs have no time"
        text = f"{self.ratio:.{self.digits}f} times as long as {first}"
        if self.interval is not None:
            text += f" ({100 * self.confidence:.3g} % interval {interval_text(*self.interval)})"
        return text

    @property
    def verdict(self) -> str:
        text = f"the second group takes {self.takes('the first group')}"
        if self.adjusted_p is None:
            return f"{text}; no test: too few runs"
        if not self.decidable:
            text += f" (so few runs cannot decide {self.comparisons} comparisons)"
        text += self.explained
        if self.sooner is None:
            decided = "undecided"
        else:
            decided = f"the {self.sooner} group is faster"

        return f"{text}; {decided}, p = {self.adjusted_p:.2g}"

    @property
    def explained(self) -> str:
        """A clause if disturbances of the machine may explain the measured difference,
        or "".
        """
        if self.measured_p is None:
            return ""
        return (
            f"; what the machine took from the runs may explain the difference, although the times "
            f"as measured give p = {self.measured_p:.2g}"
        )

    @property
    def digits(self) -> int:
        return decimals(*self.interval) if self.interval else 2


def compare(
    first: Sequence[Bracket],
    second: Sequence[Bracket],
    test: str = GROUPS,
    level: float = LEVEL,
) -> GroupComparison:
    """Compares the times of two groups of runs.

    Args:
        first, second: the runs' brackets. For "pairs", the first runs of both form a
            pair, and so on; surplus runs are left out.
        test: one of `TESTS`.
        level: the p-value must be below this; the interval excludes 1 exactly if it is.

    A run that never met the target counts as later than another only if it was still
    running when that one met it, and never as sooner. So stopping runs early can't make
    either group faster.

    If the machine took processors from runs (`Bracket.undisturbed`), a verdict must
    hold both for the times as measured and for those without what it took: the p-value
    is the larger of the two, and the interval contains both intervals. So a machine
    that disturbs one group more than the other can't make either group faster
    (benchmarks/quiet_rule.py).
    """
    pairs = None
    if test == PAIRS:
        pairs = min(len(first), len(second))
        first = first[:pairs]
        second = second[:pairs]

    if not first or not second:
        return GroupComparison(None, pairs=pairs, level=level)

    result = compare_ends(log_ends(first), log_ends(second), test, 1 - level)
    comparison = GroupComparison(
        ratio=_ratio(float(result.estimate)),
        ratio_by_rule=_ratio_by_rule(first, second, test),
        pairs=pairs,
        least_p=least_p(test, len(first), len(second)),
        level=level,
    )
    if not comparison.decidable:
        return comparison

    measured_p = float(result.p_value)
    p_value = measured_p
    ends = (float(result.low), float(result.high))
    if any(bracket.undisturbed != 1 for bracket in (*first, *second)):
        groups = [
            [bracket.without_disturbance() for bracket in group]
            for group in (first, second)
        ]
        other = compare_ends(*map(log_ends, groups), test, 1 - level)
        # Opposite verdicts cancel out: the comparison is undecided.
        if other.sign == result.sign:
            p_value = max(p_value, float(other.p_value))
        else:
            p_value = 1.0

        ends = (min(ends[0], float(other.low)), max(ends[1], float(other.high)))

    bounded = comparison.ratio is not None and all(map(math.isfinite, ends))
    return replace(
        comparison,
        interval=(math.exp(ends[0]), math.exp(ends[1])) if bounded else None,
        test=test,
        p_value=p_value,
        adjusted_p=p_value,
        measured_p=measured_p if measured_p < level <= p_value else None,
        later={1: "second", -1: "first"}.get(int(result.sign)),
    )


def _ratio(log_ratio: float) -> float | None:
    return math.exp(log_ratio) if math.isfinite(log_ratio) else None


def _ratio_by_rule(
    first: Sequence[Bracket], second: Sequence[Bracket], test: str
) -> float | None:
    groups = [
        log_ends(
            [Bracket(b.read_s, None if b.censored else b.read_s, None) for b in group]
        )
        for group in (first, second)
    ]
    return _ratio(float(compare_ends(*groups, test, 1 - LEVEL).estimate))


def adjusted(comparisons: Sequence[GroupComparison]) -> list[GroupComparison]:
    """Adjusts the p-values of one report for the number of its comparisons, by Holm's method.

    The probability of any false verdict in the report is then at most 5 %, however the
    comparisons depend on each other. Comparisons without a p-value don't count.
    """
    result = list(comparisons)
    largest = 0.0
    tested = [
        index for index, item in enumerate(comparisons) if item.p_value is not None
    ]
    tested.sort(key=lambda index: comparisons[index].p_value)
    for passed, index in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - passed) * result[index].p_value))
        result[index] = replace(
            result[index], adjusted_p=largest, comparisons=len(tested)
        )

    return result


@dataclass(frozen=True)
class Decision:
    sooner: str | None  # the faster group, "first" or "second"; None if undecided
    runs: int  # runs per group at the look it is based on; 0 before the first look
    level: float | None  # the p-value of that look must be below this
    # The comparison at that look; None before the first.
    comparison: GroupComparison | None
    # runs per group for the next look; None if decided, or after the last look
    next_look: int | None

    @property
    def over(self) -> bool:
        return self.next_look is None

    @property
    def verdict(self) -> str:
        if self.comparison is None:
            return f"undecided: the first look is at {self.next_look} runs a group"
        p_value = self.comparison.p_value
        tested = "no test" if p_value is None else f"p = {p_value:.2g}"
        tested += f" at {self.runs} runs a group, which must be below {self.level:.2g}"
        if self.sooner is not None:
            text = f"the {self.sooner} group is faster"
        elif self.over:
            text = "undecided after all looks"
        else:
            text = "undecided"

        text += f" ({tested}): the second group takes {self.comparison.takes('the first group')}"
        text += self.comparison.explained
        return text if self.over else f"{text}; next look at {self.next_look}"


def decide(
    first: Sequence[Bracket],
    second: Sequence[Bracket],
    looks: Sequence[int] | None = None,
    test: str = GROUPS,
    level: float = LEVEL,
) -> Decision:
    """Decides which group is faster by testing repeatedly (looks) as runs come in.

    Runs are in the order of their seeds; ``looks`` are numbers of runs per group,
    increasing, by default those of `looks_of`. At each look the p-value of `compare`
    must be below the look's level (`levels`). If the groups are equally fast, the
    probability that any look calls one faster is at most ``level``. The first look that
    decides is final, whatever later runs show.

    The interval of each look is the one whose error probability is the look's level, a
    repeated confidence interval: with a probability of ``1 - level`` or more, the
    intervals of all looks contain the true ratio, so the interval holds whenever and
    why ever the looks ended.

    Source: Jennison and Turnbull 1989 (doi 10.1111/j.2517-6161.1989.tb01433.x).
    """
    have = min(len(first), len(second))
    looks = looks_of(test, level) if looks is None else looks
    decision = Decision(None, 0, None, None, looks[0])
    coming = [*looks[1:], None]
    for n, allowed, after in zip(
        looks, levels(tuple(looks), level), coming, strict=True
    ):
        if n > have:
            break
        comparison = compare(first[:n], second[:n], test, allowed)
        comparison = replace(comparison, confidence=1 - level)
        if comparison.sooner is not None:
            return Decision(comparison.sooner, n, allowed, comparison, None)
        decision = Decision(None, n, allowed, comparison, after)

    return decision


def looks_of(test: str, level: float = LEVEL) -> tuple[int, ...]:
    """Returns the `LOOKS` at which so few runs can decide by the test."""
    allowed = _spent(LOOKS, level)
    able = [
        n for n, most in zip(LOOKS, allowed, strict=True) if least_p(test, n, n) < most
    ]
    if not able:
        raise ValueError(
            f"{LOOKS[-1]} runs a group can't give p < {level}: the smallest possible p is "
            f"{least_p(test, LOOKS[-1], LOOKS[-1]):.2g}. Choose a higher level."
        )

    return tuple(able)


def run_until_decided(
    train: Callable[[str, int], Bracket],
    looks: Sequence[int] | None = None,
    test: str = GROUPS,
) -> Decision:
    """Trains runs of two groups until a decision is reached, and returns it.

    ``train`` takes a group, "first" or "second", and a seed from 1; it trains that run
    and returns its bracket. Groups take turns, so a machine that slows down affects
    both.
    """
    brackets: dict[str, list[Bracket]] = {"first": [], "second": []}
    decision = decide([], [], looks, test)
    while decision.next_look is not None:
        for seed in range(len(brackets["first"]) + 1, decision.next_look + 1):
            # The second group goes first for every other seed.
            for group in sorted(brackets, reverse=seed % 2 == 0):
                brackets[group].append(train(group, seed))

        decision = decide(brackets["first"], brackets["second"], looks, test)

    return decision


def _spent(looks: Sequence[int], level: float) -> list[float]:
    return [level * math.log1p((math.e - 1) * n / looks[-1]) for n in looks]


@cache
def levels(looks: tuple[int, ...] = LOOKS, level: float = LEVEL) -> tuple[float, ...]:
    """Returns the two-sided significance level of each look.

    By the look after a share ``t`` of all runs, the probability of having decided
    wrongly is ``level * log(1 + (e - 1) t)`` (Pocock's shape: it allows early
    decisions, which save the most runs). The levels follow from the joint normal
    distribution of the statistics, and also hold for rank tests of few runs
    (benchmarks/enough_seeds.py). Raises ValueError unless looks increase, from at least
    2 runs on.

    Source: Lan and DeMets 1983 (doi 10.1093/biomet/70.3.659); Armitage, McPherson and
    Rowe 1969 for the recursion; Jennison and Turnbull 2000, section 3.3 for
    significance levels.
    """
    if (
        not looks
        or looks[0] < 2
        or any(b <= a for a, b in zip(looks, looks[1:], strict=False))
    ):
        raise ValueError(f"Looks must increase, from 2 runs on. Received: {looks}.")

    from scipy.stats import norm

    thresholds = []
    # The density of the sum over runs, Z sqrt(n), where no look so far has decided.
    points = np.zeros(1)
    density = np.ones(1)
    before = 0
    erred = 0.0
    for n, until in zip(looks, _spent(looks, level), strict=True):
        grid = np.linspace(-8, 8, _GRID_STEPS) * math.sqrt(n)
        increments = norm.pdf(
            grid[:, None] - points[None, :], scale=math.sqrt(n - before)
        )
        step = points[1] - points[0] if points.size > 1 else 1.0
        here = increments @ density * step
        bound = _bound(grid, here, until - erred)
        thresholds.append(float(2 * norm.sf(bound / math.sqrt(n))))
        points = grid
        density = np.where(np.abs(grid) < bound, here, 0.0)
        before = n
        erred = until

    return tuple(thresholds)


def _bound(grid: np.ndarray, density: np.ndarray, allowed: float) -> float:
    right = grid >= 0
    tail = 2 * np.cumsum(density[right][::-1])[::-1] * (grid[1] - grid[0])
    return float(np.interp(-allowed, -tail, grid[right]))
