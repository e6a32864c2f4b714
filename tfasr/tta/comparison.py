"""Decides whether runs of one configuration reach a target sooner than those of another.

Choose one of three tests before the runs: ``groups`` compares the groups as a whole, ``pairs`` and
``always_valid`` compare runs of equal seeds. Tests may be repeated as runs come in (each time is a
look): after 3, 5, 8 and 12 runs per group, with ``always_valid`` after every pair.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from tfasr.tta.groups import (
    FEWEST_FOR_INTERVAL,
    FEWEST_FOR_TEST,
    bracketed_mean,
    longest_seen_s,
    mean_difference,
    restricted_mean_s,
)
from tfasr.tta.pairs import (
    FEWEST_FOR_ORDER,
    evidence,
    evidence_interval,
    least_signed_rank_p,
    pair_scores,
    paired_difference,
    signed_rank_p,
)
from tfasr.tta.policies import Bracket

_RESAMPLES = 19_999
LEVEL = 0.05
_OTHER = {"first": "second", "second": "first"}
LOOKS = (3, 5, 8, 12)  # runs per group at which a comparison is looked at
MOST_PAIRS = 24  # "always_valid" looks after each of them
# `levels` assumes normal statistics, but t tests of few pairs are less correlated between looks.
# Levels for pairs, computed for this error probability, give one of just under 5 %.
_LEVEL_OF_PAIRS = 0.042
TESTS = ("groups", "pairs", "always_valid")
TEST_NAMES = {
    "welch": "Welch's t",
    "gehan": "Gehan's permutation test",
    "paired_t": "paired t",
    "signed_rank": "signed-rank test",
    "evidence": "always-valid test",
}
_GRID_STEPS = 1001


@dataclass(frozen=True)
class OrderTest:
    # two-sided, over the ways to reassign the runs to the groups: all, or 19 999 random ones
    p_value: float
    # pairs in which the second group's run is certainly later, minus those in which the first's is
    excess: float


def order_scores(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Scores each run: how many others are certainly earlier minus how many are certainly later.

    ``low`` and ``high``: brackets of all runs, ``(..., runs)``. A run is certainly later than
    another if its bracket begins at or after the other's end. If a run never reached the target,
    its bracket begins at its last evaluation and has no end, so stopping early isn't being late.
    Source: Gehan 1965 (doi 10.1093/biomet/52.1-2.203).
    """
    later = low[..., :, None] >= high[..., None, :]
    return later.sum(axis=-1) - later.sum(axis=-2).astype(float)


def order_test(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> OrderTest:
    """Returns Gehan's test of two groups, given as lower and upper ends of brackets."""
    low, high = (np.concatenate(ends) for ends in zip(first, second, strict=True))
    scores, n = order_scores(low, high), first[0].size
    excess = float(scores[n:].sum())
    if np.array_equal(np.sort(scores), np.arange(1 - scores.size, scores.size, 2)):
        from scipy.stats import mannwhitneyu  # imported late: reports without groups don't need it

        # All runs are ordered, so scores are ranks, and the exact distribution is known.
        p_value = mannwhitneyu(scores[:n], scores[n:], method="exact").pvalue
    else:
        p_value = _over_exchanges(scores, n)
    return OrderTest(min(1.0, float(p_value)), excess)


def _over_exchanges(scores: np.ndarray, n: int) -> float:
    """Returns the two-sided p-value over exchanges: ways to reassign the runs to the groups.

    Equals ``scipy.stats.permutation_test`` on the difference of means, with
    ``np.random.default_rng(0)``, but draws once for all comparisons of groups of these sizes. All
    scores add up to 0, so the first group's sum suffices.
    """
    observed = scores[:n].sum()
    # Sums of whole numbers are exact, so ties compare as equal.
    sums = scores[_exchanges(scores.size, n)].sum(axis=1)
    drawn = math.comb(scores.size, n) > _RESAMPLES
    tails = [np.count_nonzero(sums <= observed), np.count_nonzero(sums >= observed)]
    return 2 * (min(tails) + drawn) / (sums.size + drawn)


@lru_cache(maxsize=4)
def _exchanges(size: int, n: int) -> np.ndarray:
    if math.comb(size, n) <= _RESAMPLES:
        return np.array(list(itertools.combinations(range(size), n)), dtype=np.int32)
    rng = np.random.default_rng(0)
    exchanges = np.empty((_RESAMPLES, n), dtype=np.int32)
    for row in exchanges:
        row[:] = rng.permutation(size)[:n]
    return exchanges


def least_order_p(first: int, second: int) -> float:
    """Returns the smallest p-value possible in Gehan's test of two groups of these sizes."""
    return 2 / min(math.comb(first + second, first), _RESAMPLES + 1)


def decimals(low: float, high: float) -> int:
    """Returns the number of decimals, 2 to 6, that show an interval's width with two digits."""
    return max(2, min(6, 1 - math.floor(math.log10(high - low)))) if high > low else 2


def interval_text(low: float, high: float) -> str:
    return f"{low:.{decimals(low, high)}f} to {high:.{decimals(low, high)}f}"


@dataclass(frozen=True)
class GroupComparison:
    """How much longer the second group takes than the first.

    None marks values that can't be computed, most of them if a run never reached the target.
    """

    # of geometric means of the times to accuracy; of restricted means if a run missed the target
    ratio: float | None
    restricted_to_s: float | None = None  # the longest time that both groups observed
    # of geometric means of the brackets' middles, which estimate when curves cross the target
    ratio_of_middles: float | None = None
    # 95 % interval of `ratio_of_middles`, by Welch's t on logarithms; needs 3 runs in each group
    interval: tuple[float, float] | None = None
    at_least: bool = False  # whether rare evaluations raise the interval's coverage above 95 %
    # time between evaluations as a share of the time to the target; the larger of the two means
    bracket: float | None = None
    interpolated_ratio: float | None = None  # of geometric means of interpolated times
    # its 95 % interval by Welch's t, as if interpolated times were exact
    interpolated_interval: tuple[float, float] | None = None
    p_value: float | None = None  # two-sided
    # "welch", or "gehan" if a run never met the target or met it at its first evaluation; for pairs
    # "paired_t", "signed_rank" or "evidence"; None if there are too few runs
    test: str | None = None
    permutation_p: float | None = None  # of Gehan's test; needs 5 runs in each group
    later: str | None = None  # "first" or "second", the group that takes longer by the test
    adjusted_p: float | None = None  # by Holm's method, for all comparisons of a report
    comparisons: int = 1  # how many comparisons of the report were tested
    least_p: float | None = None  # the smallest possible p-value of an exact test with these runs
    pairs: int | None = None  # how many pairs of equal seeds were tested, if the test is of pairs
    by_pairs: "GroupComparison | None" = None  # a second test by pairs, if the verdict is by groups

    @property
    def decidable(self) -> bool:
        """Whether the p-value could be below 5 % after adjustment for the report's comparisons."""
        return self.least_p is None or self.least_p * self.comparisons < LEVEL

    @property
    def below_bracket(self) -> bool:
        if self.ratio_of_middles is None:
            return False
        return abs(math.log(self.ratio_of_middles)) <= math.log1p(self.bracket)

    @property
    def sooner(self) -> str | None:
        """The faster group if ``adjusted_p`` is below 5 % and the gap exceeds `bracket`."""
        if self.adjusted_p is None or self.adjusted_p >= LEVEL or self.below_bracket:
            return None
        return _OTHER.get(self.later)

    @property
    def verdict(self) -> str:
        text = "no ratio: a group never reached the target"
        if self.ratio is not None:
            text = f"{self.ratio:.{self.digits}f} times as long{self.crossing_text}"
        if self.restricted_to_s is not None:
            observed = f"{self.restricted_to_s:.3g} s, which both ran for"
            text += f" within the first {observed}, because a run never reached the target"
        if self.interval is not None:
            text += f" ({self.interval_text})"
        if self.adjusted_p is None:
            return f"{text}; no test: too few runs"
        if not self.decidable:
            text += f" (so few runs cannot decide {self.comparisons} comparisons)"
        decided = "undecided" if self.sooner is None else f"the {self.sooner} group is faster"
        return f"{text}; {decided}, p = {self.adjusted_p:.2g}"

    @property
    def interval_text(self) -> str:
        share = "at least 95 %" if self.at_least else "95 %"
        return f"{share} interval {interval_text(*self.interval)}"

    @property
    def crossing_text(self) -> str:
        """States `ratio_of_middles` if it differs from `ratio` by 2 % or more, else ""."""
        if self.reading_bias is None or abs(math.log(self.reading_bias)) < math.log(1.02):
            return ""
        return f" by the rule, {self.ratio_of_middles:.{self.digits}f} times at the crossings"

    @property
    def digits(self) -> int:
        return decimals(*self.interval) if self.interval else 2

    @property
    def reading_bias(self) -> float | None:
        """The factor by which `ratio` is biased, since the rule is met after the crossing."""
        return None if self.ratio_of_middles is None else self.ratio / self.ratio_of_middles


def compare_groups(
    first: Sequence[Bracket], second: Sequence[Bracket], *, by_order: bool = True
) -> GroupComparison:
    """Compares the times of two groups; ``by_order`` adds Gehan's test, slow with many runs."""
    fewest = min(len(first), len(second))
    tested = by_order and fewest >= FEWEST_FOR_TEST
    order = order_test(_ends(first), _ends(second)) if tested else None
    ratio, restricted_to_s = _ratio_by_rule(first, second)
    comparison = GroupComparison(ratio, restricted_to_s)
    if order:
        comparison = replace(
            comparison, p_value=order.p_value, permutation_p=order.p_value, test="gehan",
            later=_later(order.excess), adjusted_p=order.p_value,
            least_p=least_order_p(len(first), len(second)),
        )  # fmt: skip
    # If the first evaluation met the target, the bracket begins at 0, which has no logarithm.
    if not all(b.first_hit_s is not None and b.last_miss_s > 0 for b in (*first, *second)):
        return comparison
    lows, highs = zip(*(np.log(_ends(group)) for group in (first, second)), strict=True)
    shift = float(np.mean(lows[1] + highs[1]) - np.mean(lows[0] + highs[0])) / 2
    width = max(float(np.mean(high - low)) for low, high in zip(lows, highs, strict=True))
    ratio, interval = _interpolated(first, second)
    comparison = replace(
        comparison, ratio_of_middles=math.exp(shift), bracket=math.expm1(width),
        interpolated_ratio=ratio, interpolated_interval=interval,
    )  # fmt: skip
    if fewest < FEWEST_FOR_INTERVAL:
        return comparison
    means = [bracketed_mean(*ends) for ends in zip(lows, highs, strict=True)]
    welch = mean_difference(*means)
    if not welch.reach > 0:
        return comparison  # runs are identical, brackets have no width: no scale to judge a gap by
    p_value = float(welch.p_value)
    return replace(
        comparison, interval=_exponentials(shift, float(welch.reach)), p_value=p_value,
        test="welch", later=_later(shift), adjusted_p=p_value, least_p=None,
        at_least=any(bool(mean.coarse) for mean in means),
    )  # fmt: skip


def compare_pairs(
    first: Sequence[Bracket], second: Sequence[Bracket], test: str = "pairs"
) -> GroupComparison:
    """Compares the times of two groups pair by pair: the first runs of both form a pair, and so on.

    ``test`` "pairs" is the paired t test on logarithms; if a run missed the target or met it at its
    first evaluation, the signed-rank test, which needs 6 pairs. If you repeat it as runs come in,
    compare p with `levels_of`. "always_valid" may be repeated at will (`tfasr.tta.pairs.evidence`).
    """
    if not first:
        return GroupComparison(None, pairs=0)
    comparison = compare_groups(first, second, by_order=False)
    comparison = replace(
        comparison, interval=None, at_least=False, p_value=None, test=None, later=None,
        adjusted_p=None, pairs=len(first),
    )  # fmt: skip
    ends = _ends(first), _ends(second)
    scores = pair_scores(*ends)
    # All reached the target, none at its first evaluation.
    all_reached = comparison.ratio_of_middles is not None
    if test == "always_valid":
        sides = evidence(scores)
        most = sides.mean(axis=0).argmax()
        p_value = min(1.0, 2 / float(sides[:, most].sum()))
        verdict = {"test": "evidence", "later": _later(float(sides[0, most] - sides[1, most]))}
        interval = evidence_interval(scores, LEVEL) if all_reached else None
        if interval is not None:
            verdict["interval"] = tuple(map(math.exp, interval))
    elif all_reached and len(first) >= FEWEST_FOR_INTERVAL:
        logs = [(np.log(low), np.log(high)) for low, high in ends]
        result = paired_difference(*logs)
        if not result.reach > 0:
            return comparison
        shift, p_value = float(result.shift), float(result.p_value)
        interval = _exponentials(shift, float(result.reach))
        verdict = {"test": "paired_t", "interval": interval, "later": _later(shift)}
    elif not all_reached and len(first) >= FEWEST_FOR_ORDER:
        p_value, least_p = signed_rank_p(scores), least_signed_rank_p(scores)
        later = _later(float(scores.sum()))
        verdict = {"test": "signed_rank", "later": later, "least_p": least_p}
    else:
        return comparison
    return replace(comparison, p_value=p_value, adjusted_p=p_value, **verdict)


def compare(
    first: Sequence[Bracket], second: Sequence[Bracket], test: str = "groups"
) -> GroupComparison:
    """Compares two groups by one of `TESTS`; for pairs, both must be in the order of seeds."""
    if test == "groups":
        return compare_groups(first, second)
    n = min(len(first), len(second))
    return compare_pairs(first[:n], second[:n], test)


def adjusted(comparisons: Sequence[GroupComparison]) -> list[GroupComparison]:
    """Adjusts the p-values of one report for the number of its comparisons.

    The probability of any false verdict in the report is then at most 5 %, however the
    comparisons depend on each other. Comparisons without a p-value don't count.
    """
    result, largest = list(comparisons), 0.0
    tested = [index for index, item in enumerate(comparisons) if item.p_value is not None]
    tested.sort(key=lambda index: comparisons[index].p_value)
    for passed, index in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - passed) * result[index].p_value))
        result[index] = replace(result[index], adjusted_p=largest, comparisons=len(tested))
    return result


def _ends(brackets: Sequence[Bracket]) -> tuple[np.ndarray, np.ndarray]:
    low = np.array([b.last_miss_s for b in brackets], float)
    high = [math.inf if b.first_hit_s is None else b.first_hit_s for b in brackets]
    return low, np.array(high, float)


def _later(excess: float) -> str | None:
    return ("second" if excess > 0 else "first") if excess else None


def _exponentials(centre: float, reach: float) -> tuple[float, float]:
    return math.exp(centre - reach), math.exp(centre + reach)


def _ratio_by_rule(
    first: Sequence[Bracket], second: Sequence[Bracket]
) -> tuple[float | None, float | None]:
    hits = [[b.read_s for b in group] for group in (first, second)]
    if not any(b.censored or b.read_s <= 0 for b in (*first, *second)):
        return math.exp(_log_mean(hits[1]) - _log_mean(hits[0])), None
    common = min(longest_seen_s(first), longest_seen_s(second))
    means = [restricted_mean_s(group, common) for group in (first, second)]
    if None in means or not means[0] > 0:
        return None, None
    return means[1] / means[0], common


def _interpolated(
    first: Sequence[Bracket], second: Sequence[Bracket]
) -> tuple[float | None, tuple[float, float] | None]:
    times = [[b.interpolated_s for b in group] for group in (first, second)]
    if not all(time is not None and time > 0 for group in times for time in group):
        return None, None
    shift = _log_mean(times[1]) - _log_mean(times[0])
    logs = [np.log(group) for group in times]
    if min(map(len, logs)) < FEWEST_FOR_INTERVAL or not any(map(np.ptp, logs)):
        return math.exp(shift), None
    # Brackets of zero width: the interval takes the times as exact.
    welch = mean_difference(*(bracketed_mean(times, times) for times in logs))
    return math.exp(shift), _exponentials(shift, float(welch.reach))


def _log_mean(times: Sequence[float]) -> float:
    return statistics.fmean(map(math.log, times))


@dataclass(frozen=True)
class Decision:
    sooner: str | None  # the faster group, "first" or "second"; None if undecided
    runs: int  # runs per group at the look it is based on; 0 before the first look
    level: float | None  # the p-value of that look must be below this
    comparison: GroupComparison | None  # the comparison at that look; None before the first
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
            return f"the {self.sooner} group is faster ({tested})"
        if self.comparison.below_bracket:
            tested += "; the gap is no larger than the time between evaluations"
        if self.over:
            return f"undecided after all looks ({tested})"
        return f"undecided ({tested}); next look at {self.next_look}"


def decide(
    first: Sequence[Bracket],
    second: Sequence[Bracket],
    looks: Sequence[int] | None = None,
    test: str = "groups",
    level: float = LEVEL,
) -> Decision:
    """Decides which group is faster by testing repeatedly (looks) as runs come in.

    Runs are in the order of their seeds; ``looks`` are numbers of runs per group, increasing, by
    default those of `looks_of`. At each look the p-value of `compare` must be below the look's
    level (`levels_of`). If the groups are equally fast, the probability that any look calls one
    faster is at most ``level``. The first look that decides is final, whatever later runs show.
    """
    have, looks = min(len(first), len(second)), looks_of(test) if looks is None else looks
    decision = Decision(None, 0, None, None, looks[0])
    coming = [*looks[1:], None]
    of_looks = levels_of(test, looks, level)
    for n, allowed, after in zip(looks, of_looks, coming, strict=True):
        if n > have:
            break
        comparison = compare(first[:n], second[:n], test)
        shown = comparison.p_value is not None and comparison.p_value < allowed
        if shown and not comparison.below_bracket and comparison.later is not None:
            return Decision(_OTHER[comparison.later], n, allowed, comparison, None)
        decision = Decision(None, n, allowed, comparison, after)
    return decision


def looks_of(test: str) -> tuple[int, ...]:
    return tuple(range(1, MOST_PAIRS + 1)) if test == "always_valid" else LOOKS


def levels_of(test: str, looks: Sequence[int], level: float = LEVEL) -> tuple[float, ...]:
    if test == "always_valid":
        return (level,) * len(looks)
    spent = level if test == "groups" else level * _LEVEL_OF_PAIRS / LEVEL
    return levels(tuple(looks), spent)


def run_until_decided(
    train: Callable[[str, int], Bracket], looks: Sequence[int] | None = None, test: str = "groups"
) -> Decision:
    """Trains runs of two groups until a decision is reached, and returns it.

    ``train`` takes a group, "first" or "second", and a seed from 1; it trains that run and returns
    its bracket. Groups take turns, so a machine that slows down affects both.
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


@cache
def levels(looks: tuple[int, ...] = LOOKS, level: float = LEVEL) -> tuple[float, ...]:
    """Returns the two-sided significance level of each look.

    By the look after a share ``t`` of all runs, the probability of having decided wrongly is
    ``level * log(1 + (e - 1) t)`` (Pocock's shape: it allows early decisions, which save the most
    runs). The levels follow from the joint normal distribution of the statistics, and also hold for
    t tests with few runs (benchmarks/enough_seeds.py). Raises ValueError unless looks increase,
    from at least 2 runs on.

    Source: Lan and DeMets 1983 (doi 10.1093/biomet/70.3.659); Armitage, McPherson and Rowe 1969 for
    the recursion; Jennison and Turnbull 2000, section 3.3 for significance levels.
    """
    if not looks or looks[0] < 2 or any(b <= a for a, b in zip(looks, looks[1:], strict=False)):
        raise ValueError(f"Looks must increase, from 2 runs on. Received: {looks}.")
    from scipy.stats import norm

    spent = [level * math.log1p((math.e - 1) * n / looks[-1]) for n in looks]
    thresholds = []
    # The density of the sum over runs, Z sqrt(n), where no look so far has decided.
    points, density, before, erred = np.zeros(1), np.ones(1), 0, 0.0
    for n, until in zip(looks, spent, strict=True):
        grid = np.linspace(-8, 8, _GRID_STEPS) * math.sqrt(n)
        increments = norm.pdf(grid[:, None] - points[None, :], scale=math.sqrt(n - before))
        step = points[1] - points[0] if points.size > 1 else 1.0
        here = increments @ density * step
        bound = _bound(grid, here, until - erred)
        thresholds.append(float(2 * norm.sf(bound / math.sqrt(n))))
        points, density = grid, np.where(np.abs(grid) < bound, here, 0.0)
        before, erred = n, until
    return tuple(thresholds)


def _bound(grid: np.ndarray, density: np.ndarray, allowed: float) -> float:
    right = grid >= 0
    tail = 2 * np.cumsum(density[right][::-1])[::-1] * (grid[1] - grid[0])
    return float(np.interp(-allowed, -tail, grid[right]))
