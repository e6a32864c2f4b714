"""Intervals for a new run, from the spread of a few finished ones and of timed steps.

`estimate` draws thousands of new runs: how many utterances each needs, and by what
factor its seconds differ. An interval is between two quantiles of the products.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# The share of new runs whose time lies in the interval.
SHARE = 0.8

# With so many, the ends of an interval vary by about 1 % from seed to seed.
DRAWS = 4000

# The spread of utterances to a target between seeds that is assumed before any was
# seen: a standard deviation of logarithms, which counts as much as that many further
# runs. The kept runs' recipes vary by 8 to 20 %, and MLPerf's RNN-T by 3 to 10 %.
ASSUMED_SPREAD = 0.15
ASSUMED_RUNS = 2

# How far a whole run's speed lies from that of a minute of its steps, on a machine that
# nobody else seems to use, and how far a step's time lies from that of another machine,
# scaled by probes. Both were chosen so that intervals hold on the kept runs:
# benchmarks/estimate.py.
SPEED_ERROR = 0.08
MACHINE_ERROR = 0.35


@dataclass(frozen=True)
class Range:
    """The middle and the ends of the interval that contains `SHARE` of new values."""

    low: float
    middle: float
    high: float


def range_of(draws: np.ndarray) -> Range:
    """Returns the interval between the quantiles that contain `SHARE` of the draws."""
    outside = (1 - SHARE) / 2
    low, middle, high = np.quantile(draws, [outside, 0.5, 1 - outside])
    return Range(float(low), float(middle), float(high))


def drawn_utterances(
    reached: Sequence[float],
    *,
    step: float,
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> np.ndarray:
    """Draws how many utterances a new run trains on until its target, ``(draws,)``.

    Logarithms of ``reached`` are taken as normal with an unknown mean and an unknown
    spread, so a new run's differ from their mean as Student's t does.

    Args:
        reached: the utterances of finished runs, at least one.
        step: how many utterances lie between two evaluations. A target is only met at one,
            so draws are rounded to them.
        rng: makes the draws.
        draws: how many.

    Source: A. Gelman et al., Bayesian Data Analysis, 3rd edition, 2013, sections 3.2
    and 3.3.
    """
    logs = np.log(np.asarray(reached, float))
    count = len(logs)
    squares = float(np.square(logs - logs.mean()).sum())

    # The assumed spread counts as if it had been seen in further runs.
    freedom = ASSUMED_RUNS + count - 1
    variance = (ASSUMED_RUNS * ASSUMED_SPREAD**2 + squares) / freedom

    spread = math.sqrt(variance * (1 + 1 / count))
    drawn = np.exp(logs.mean() + spread * rng.standard_t(freedom, draws))
    # Beyond hundreds of times the seen values only the tails of t are left.
    evaluations = np.round(np.minimum(drawn, 100 * np.exp(logs.mean())) / step)

    return np.maximum(evaluations, 1) * step


def drawn_speeds(
    relative_error: float, rng: np.random.Generator, draws: int = DRAWS
) -> np.ndarray:
    """Draws by what factor a run's seconds differ from those predicted, ``(draws,)``.

    Args:
        relative_error: of the mean step in the trial.
        rng: makes the draws.
        draws: how many.
    """
    return np.exp(math.hypot(relative_error, SPEED_ERROR) * rng.standard_normal(draws))
