"""Means of times that are known only up to two evaluations, and what may be said of them.

Every function takes arrays: the last axis holds the runs of a group, axes before it further groups,
so that the simulations in ``benchmarks/interval_coverage.py`` run what reports run.
"""

from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class BracketedMean:
    """What the brackets of a group say of the mean of its true times.

    Attributes:
        mean: of the brackets' middles.
        error: the standard error of that by the runs' spread; a spread below half that of times
            anywhere in their brackets, width / sqrt(48), counts as that, so that runs which all
            fall into one bracket are not taken for runs without any spread.
        bound: how far the mean of the middles may be off in the same direction for all runs,
            because they were evaluated at the same moments. Runs whose times spread by ``s`` over
            a grid of width ``w`` have middles with a mean within ``(w / 2) exp(-2 pi^2 s^2 / w^2)``
            of the true one: half a bracket where all runs fall into one, nothing where they spread
            over several.
        width: the mean width of the brackets.
        n: the number of runs.

    Source: the characteristic function of a normal distribution at the harmonics of the grid;
    Widrow and Kollar 2008, Quantization Noise, chapter 4.
    """

    mean: np.ndarray
    error: np.ndarray
    bound: np.ndarray
    width: np.ndarray
    n: int

    def reach(self) -> np.ndarray:
        """Returns half the width of the 95 % interval of the mean, by Student's t."""
        return np.hypot(_student(self.n - 1) * self.error, self.bound)


@dataclass(frozen=True)
class MeanDifference:
    """How two groups' means differ, second minus first.

    Attributes:
        shift: the difference of the means.
        reach: half the width of its interval, of 95 % unless another confidence was asked for.
        p_value: two-sided; below 5 % exactly where the interval does not hold 0.
    """

    shift: np.ndarray
    reach: np.ndarray
    p_value: np.ndarray


def bracketed_mean(low: np.ndarray, high: np.ndarray) -> BracketedMean:
    """Returns the mean of times of which each lies between two ends.

    Args:
        low: of each run, ``(..., runs)``: what its time exceeds.
        high: of each run: what its time does not exceed; two runs or more.
    """
    low, high = np.asarray(low, float), np.asarray(high, float)
    middles, n = (low + high) / 2, low.shape[-1]
    width = np.mean(high - low, axis=-1)
    variance = np.var(middles, axis=-1, ddof=1)
    with np.errstate(over="ignore"):  # the spread may be any multiple of a width near 0
        spread = np.divide(np.sqrt(variance), width, out=np.zeros_like(width), where=width > 0)
        bound = width / 2 * np.exp(-2 * (np.pi * spread) ** 2)
    error = np.sqrt(np.maximum(variance, width**2 / 48) / n)
    return BracketedMean(np.mean(middles, axis=-1), error, bound, width, n)


def mean_difference(
    first: BracketedMean, second: BracketedMean, *, confidence: float = CONFIDENCE
) -> MeanDifference:
    """Returns Welch's t test and interval of two means, widened by what both may be off.

    The interval is ``shift +- sqrt((t * error)^2 + (sum of bounds)^2)``. Simulated in
    ``benchmarks/interval_coverage.py``.
    """
    from scipy.stats import t  # here: a report on single runs answers without SciPy

    error = np.hypot(first.error, second.error)
    bound = first.bound + second.bound
    shift = second.mean - first.mean
    # Welch and Satterthwaite's degrees of freedom.
    spread = first.error**4 / (first.n - 1) + second.error**4 / (second.n - 1)
    freedom = np.divide(error**4, spread, out=np.ones_like(spread), where=spread > 0)
    reach = np.hypot(t.ppf((1 + confidence) / 2, freedom) * error, bound)
    beyond = np.sqrt(np.maximum(shift**2 - bound**2, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = np.where(beyond > 0, 2 * t.sf(beyond / error, freedom), 1.0)
    return MeanDifference(shift, reach, p_value)


def _student(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))
