"""Decides whether runs of one configuration reach a target sooner than those of another.

Choose one of two tests before the runs: ``pairs`` if the two runs of each seed were
trained one after the other on one machine, else ``groups``. A test may be repeated as
runs come in; each time is called a look.

The tests themselves are in `tfasr.tta.ranks`. This module applies them to runs
(`compare`), allows for several comparisons in one report (`adjusted`) and for several
looks (`decide`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tfasr.tta.policies import Bracket
from tfasr.tta.ranks import GROUPS, PAIRS, compare_ends, least_p, log_ends

LEVEL = 0.05  # the probability of calling one of two equal groups faster
LOOKS = (5, 8, 12)  # runs per group at which a comparison may be looked at
TESTS = (GROUPS, PAIRS)
TEST_NAMES = {GROUPS: "Mann-Whitney test", PAIRS: "signed-rank test"}
ESTIMAND = {
    GROUPS: (
        "The ratio is the median over all pairs of a run of one group and a run of the "
        "other: in half of these pairs, the second run's error curve crosses the target "
        "at least that many times as late as the first run's."
    ),
    PAIRS: (
        "The ratio is the median over the pairs of equal seeds, each averaged with every "
        "other: how many times as late the second run's error curve crosses the target."
    ),
}
"""What each test's ratio is, in words for reports."""

_OTHER = {"first": "second", "second": "first"}

# Points at which `levels` computes a density, over 8 standard deviations to both sides.
_GRID_STEPS = 1001


def decimals(low: float, high: float) -> int:
    """Returns how many decimals show an interval's width with two digits: 2 to 6.

    Example:
        >>> decimals(1.2, 1.45), decimals(1.2341, 1.2352)
        (2, 4)
    """
    if high <= low:
        return 2

    return max(2, min(6, 1 - math.floor(math.log10(high - low))))


def interval_text(low: float, high: float) -> str:
    """Returns an interval as text.

    Example:
        >>> interval_text(1.2, 1.45)
        '1.20 to 1.45'
    """
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

    # "first" or "second": the group with more runs that are surely later.
    later: str | None = None

    adjusted_p: float | None = None  # by Holm's method, for all comparisons of a report
    comparisons: int = 1  # how many comparisons of the report were tested
    least_p: float | None = None  # the smallest p-value that so many runs can give

    # The p-value must be below this; at a look, less than 1 - confidence.
    level: float = LEVEL

    # The p-value of the times as they were measured, if what the machine took from the
    # runs (`Bracket.undisturbed`) may explain the difference that they show; else None.
    measured_p: float | None = None

    @property
    def decidable(self) -> bool:
        """Whether the p-value could be below the level, adjusted for all comparisons."""
        return self.least_p is not None and self.least_p * self.comparisons < self.level

    @property
    def sooner(self) -> str | None:
        """The faster group if ``adjusted_p`` is below the level."""
        if self.adjusted_p is None or self.adjusted_p >= self.level:
            return None

        return _OTHER.get(self.later)

    def takes(self, first: str) -> str:
        """Returns the ratio with its interval as text.

        Args:
            first: the first group's name; the text is "1.20 times as long as NAME".
        """
        if self.ratio is None:
            return (
                f"an unknown number of times as long as {first}: too many runs have no "
                "time"
            )

        text = f"{self.ratio:.{self.digits}f} times as long as {first}"
        if self.interval is not None:
            low, high = self.interval
            interval = interval_text(low, high)
            text += f" ({100 * self.confidence:.3g} % interval {interval})"

        return text

    @property
    def verdict(self) -> str:
        """The comparison in a sentence, without its full stop."""
        text = f"the second group takes {self.takes('the first group')}"
        if self.adjusted_p is None:
            return f"{text}; no test: too few runs"

        if not self.decidable:
            text += f" (so few runs cannot decide {self.comparisons} comparisons)"

        text += self.explained
        decided = "undecided"
        if self.sooner is not None:
            decided = f"the {self.sooner} group is faster"

        return f"{text}; {decided}, p = {self.adjusted_p:.2g}"

    @property
    def explained(self) -> str:
        """A clause if disturbances may explain the measured difference, else ""."""
        if self.measured_p is None:
            return ""

        return (
            "; what the machine took from the runs may explain the difference, although "
            f"the times as measured give p = {self.measured_p:.2g}"
        )

    @property
    def digits(self) -> int:
        """With how many decimals the ratio is shown."""
        low, high = self.interval or (0.0, 0.0)
        return decimals(low, high)


def compare(
    first: Sequence[Bracket],
    second: Sequence[Bracket],
    test: str = GROUPS,
    level: float = LEVEL,
) -> GroupComparison:
    """Compares the times of two groups of runs.

    Args:
        first: the runs' brackets of one group. For "pairs", the first runs of both
            groups form a pair, and so on; surplus runs are left out.
        second: those of the other.
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
    low = float(result.low)
    high = float(result.high)
    if any(bracket.undisturbed != 1 for bracket in (*first, *second)):
        other = compare_ends(
            log_ends([bracket.without_disturbance() for bracket in first]),
            log_ends([bracket.without_disturbance() for bracket in second]),
            test,
            1 - level,
        )
        low = min(low, float(other.low))
        high = max(high, float(other.high))
        p_value = max(p_value, float(other.p_value))
        if other.sign != result.sign:
            # Opposite verdicts cancel out: the comparison is undecided.
            p_value = 1.0

    interval = None
    if comparison.ratio is not None and math.isfinite(low) and math.isfinite(high):
        interval = (math.exp(low), math.exp(high))

    explainable = measured_p < level <= p_value
    return replace(
        comparison,
        interval=interval,
        test=test,
        p_value=p_value,
        adjusted_p=p_value,
        measured_p=measured_p if explainable else None,
        later={1: "second", -1: "first"}.get(int(result.sign)),
    )


def _ratio(log_ratio: float) -> float | None:
    if not math.isfinite(log_ratio):
        return None

    return math.exp(log_ratio)


def _ratio_by_rule(
    first: Sequence[Bracket], second: Sequence[Bracket], test: str
) -> float | None:
    """Returns the ratio of the times at which the rule was met."""
    ends = log_ends(list(map(_by_rule, first)))
    other_ends = log_ends(list(map(_by_rule, second)))
    return _ratio(float(compare_ends(ends, other_ends, test, 1 - LEVEL).estimate))


def _by_rule(bracket: Bracket) -> Bracket:
    """Returns a bracket without a width, at the time at which the rule was met."""
    hit_s = None if bracket.censored else bracket.read_s
    return Bracket(bracket.read_s, hit_s, None)


def adjusted(comparisons: Sequence[GroupComparison]) -> list[GroupComparison]:
    """Adjusts the p-values of one report for the number of its comparisons, by Holm's method.

    The probability of any false verdict in the report is then at most 5 %, however the
    comparisons depend on each other. Comparisons without a p-value don't count.
    """
    result = list(comparisons)
    tested = [n for n, item in enumerate(comparisons) if item.p_value is not None]
    tested.sort(key=lambda index: comparisons[index].p_value)
    largest = 0.0
    for passed, index in enumerate(tested):
        adjusted_p = (len(tested) - passed) * result[index].p_value
        largest = max(largest, min(1.0, adjusted_p))
        result[index] = replace(
            result[index], adjusted_p=largest, comparisons=len(tested)
        )

    return result


@dataclass(frozen=True)
class Decision:
    """What the looks at a comparison have decided so far."""

    sooner: str | None  # the faster group, "first" or "second"; None if undecided
    runs: int  # runs per group at the look it is based on; 0 before the first look
    level: float | None  # the p-value of that look must be below this

    # The comparison at that look; None before the first.
    comparison: GroupComparison | None

    # Runs per group for the next look; None if decided, or after the last look.
    next_look: int | None

    @property
    def over(self) -> bool:
        """Whether no further runs are needed."""
        return self.next_look is None

    @property
    def verdict(self) -> str:
        """The decision in a sentence, without its full stop."""
        if self.comparison is None:
            return f"undecided: the first look is at {self.next_look} runs a group"

        tested = "no test"
        if self.comparison.p_value is not None:
            tested = f"p = {self.comparison.p_value:.2g}"

        tested += f" at {self.runs} runs a group, which must be below {self.level:.2g}"
        if self.sooner is not None:
            text = f"the {self.sooner} group is faster"
        elif self.over:
            text = "undecided after all looks"
        else:
            text = "undecided"

        takes = self.comparison.takes("the first group")
        text += f" ({tested}): the second group takes {takes}"
        text += self.comparison.explained
        if not self.over:
            text += f"; next look at {self.next_look}"

        return text


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
    if looks is None:
        looks = looks_of(test, level)

    have = min(len(first), len(second))
    decision = Decision(None, 0, None, None, looks[0])
    coming = [*looks[1:], None]
    plan = zip(looks, levels(tuple(looks), level), coming, strict=True)
    for n, allowed, after in plan:
        if n > have:
            break

        comparison = compare(first[:n], second[:n], test, allowed)
        comparison = replace(comparison, confidence=1 - level)
        if comparison.sooner is not None:
            return Decision(comparison.sooner, n, allowed, comparison, None)

        decision = Decision(None, n, allowed, comparison, after)

    return decision


def looks_of(test: str, level: float = LEVEL) -> tuple[int, ...]:
    """Returns the `LOOKS` at which so few runs can decide by the test.

    Args:
        test: one of `TESTS`.
        level: the probability of calling one of two equal groups faster.

    Raises:
        ValueError: if none of them can.
    """
    allowed = _spent(LOOKS, level)
    able = [
        n for n, most in zip(LOOKS, allowed, strict=True) if least_p(test, n, n) < most
    ]
    if not able:
        last = LOOKS[-1]
        raise ValueError(
            f"{last} runs a group can't give p < {level}: the smallest possible p is "
            f"{least_p(test, last, last):.2g}. Choose a higher level."
        )

    return tuple(able)


def run_until_decided(
    train: Callable[[str, int], Bracket],
    looks: Sequence[int] | None = None,
    test: str = GROUPS,
) -> Decision:
    """Trains runs of two groups until a decision is reached, and returns it.

    Groups take turns, so a machine that slows down affects both.

    Args:
        train: takes a group, "first" or "second", and a seed from 1; trains that run
            and returns its bracket.
        looks: see `decide`.
        test: one of `TESTS`.
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
    """Returns how probable a wrong decision may be by each look, see `levels`.

    The last look has the level itself.
    """
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
    increasing = all(a < b for a, b in zip(looks, looks[1:], strict=False))
    if not looks or looks[0] < 2 or not increasing:
        raise ValueError(f"Looks must increase, from 2 runs on. Received: {looks}.")

    from scipy.stats import norm

    thresholds = []
    # The density of the sum over runs, Z sqrt(n), where no look so far has decided.
    points = np.zeros(1)
    density = np.ones(1)
    before = 0
    erred = 0.0
    for n, until in zip(looks, _spent(looks, level), strict=True):
        step = 1.0  # between points
        if points.size > 1:
            step = points[1] - points[0]

        grid = np.linspace(-8, 8, _GRID_STEPS) * math.sqrt(n)
        increments = norm.pdf(
            grid[:, None] - points[None, :], scale=math.sqrt(n - before)
        )
        here = increments @ density * step
        bound = _bound(grid, here, until - erred)
        thresholds.append(float(2 * norm.sf(bound / math.sqrt(n))))
        points = grid
        density = np.where(np.abs(grid) < bound, here, 0.0)
        before = n
        erred = until

    return tuple(thresholds)


def _bound(grid: np.ndarray, density: np.ndarray, allowed: float) -> float:
    """Returns beyond which value, to both sides, a density has a probability.

    Args:
        grid: values, evenly spaced around 0.
        density: at each of them, symmetric.
        allowed: the probability.
    """
    right = grid >= 0
    tail = 2 * np.cumsum(density[right][::-1])[::-1] * (grid[1] - grid[0])
    return float(np.interp(-allowed, -tail, grid[right]))
