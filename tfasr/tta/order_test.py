"""Whether one group's runs arrive later than another's, where some never do: Gehan's test."""

from dataclasses import dataclass

import numpy as np

_RESAMPLES = 19_999


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
    from scipy.stats import mannwhitneyu, permutation_test

    low, high = (np.concatenate(ends) for ends in zip(first, second, strict=True))
    scores, n = order_scores(low, high), first[0].size
    excess = float(scores[n:].sum())
    if np.array_equal(np.sort(scores), np.arange(1 - scores.size, scores.size, 2)):
        # Every pair is in order: these are ranks, whose distribution over all exchanges is known.
        found = mannwhitneyu(scores[:n], scores[n:], method="exact")
    else:
        found = permutation_test(
            (scores[:n], scores[n:]),
            lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
            vectorized=True,
            n_resamples=_RESAMPLES,
            rng=np.random.default_rng(0),
        )
    return OrderTest(min(1.0, float(found.pvalue)), excess)
