"""Whether one group's runs arrive later than another's, where some never do: Gehan's test."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_RESAMPLES = 19_999
_ROWS_AT_ONCE = 2000
_MOST_KEPT = 2**22


@dataclass(frozen=True)
class OrderTest:
    """Gehan's generalised Wilcoxon test of two groups.

    Attributes:
        p_value: two-sided, over exchanges of runs between the groups; exact up to 19 999 of them.
        excess: pairs in which the second group's run is surely the later one, less those in which
            the first group's is.
    """

    p_value: float
    excess: float


def order_scores(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns of each run how many others it is surely later than, less those surely later.

    A run is surely later than another one if its bracket begins where the other's has ended. One
    that never arrived has a bracket without end, from where it was last seen: it is later than all
    that had arrived by then, and nothing is known of the others. So a run that was stopped early
    counts as early stopped, not as late.

    Args:
        low: of each run, ``(..., runs)``, of both groups together: what its time exceeds.
        high: what it does not exceed; infinity where it never arrived.

    Source: Gehan 1965 (doi 10.1093/biomet/52.1-2.203).
    """
    later = low[..., :, None] >= high[..., None, :]
    return later.sum(axis=-1) - later.sum(axis=-2).astype(float)


def order_test(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> OrderTest:
    """Returns Gehan's test of two groups, each as the lower and upper ends of its brackets."""
    low, high = (np.concatenate(ends) for ends in zip(first, second, strict=True))
    scores, n = order_scores(low, high), first[0].size
    excess = float(scores[n:].sum())
    if np.array_equal(np.sort(scores), np.arange(1 - scores.size, scores.size, 2)):
        # Imported here: a report without groups answers without SciPy.
        from scipy.stats import mannwhitneyu

        # Every pair is in order: these are ranks, whose distribution over all exchanges is known.
        p_value = mannwhitneyu(scores[:n], scores[n:], method="exact").pvalue
    else:
        p_value = _over_exchanges(scores, n)
    return OrderTest(min(1.0, float(p_value)), excess)


def _over_exchanges(scores: np.ndarray, n: int) -> float:
    """Returns twice the smaller share of exchanges whose first group's scores are as extreme.

    The same number as ``scipy.stats.permutation_test`` on the difference of means, with
    ``np.random.default_rng(0)``, which draws anew for each of a report's hundreds of comparisons.
    The scores of both groups add up to 0, so that the first's sum orders as that difference does.
    """
    observed = scores[:n].sum()
    # Sums of whole numbers are exact: equal is equal.
    sums = np.concatenate([scores[rows].sum(axis=1) for rows in _blocks(scores.size, n)])
    drawn = math.comb(scores.size, n) > _RESAMPLES
    tails = [np.count_nonzero(sums <= observed), np.count_nonzero(sums >= observed)]
    return 2 * (min(tails) + drawn) / (sums.size + drawn)


def _blocks(size: int, n: int) -> Iterator[np.ndarray]:
    kept = n * min(_RESAMPLES, math.comb(size, n)) <= _MOST_KEPT
    yield from _kept_exchanges(size, n) if kept else _exchanges(size, n)


@lru_cache(maxsize=4)
def _kept_exchanges(size: int, n: int) -> list[np.ndarray]:
    return list(_exchanges(size, n))


def _exchanges(size: int, n: int) -> Iterator[np.ndarray]:
    if math.comb(size, n) <= _RESAMPLES:
        yield np.array(list(itertools.combinations(range(size), n)), dtype=np.int32)
        return
    rng = np.random.default_rng(0)
    for first in range(0, _RESAMPLES, _ROWS_AT_ONCE):
        rows = range(min(_ROWS_AT_ONCE, _RESAMPLES - first))
        yield np.array([rng.permutation(size)[:n] for _ in rows], dtype=np.int32)
