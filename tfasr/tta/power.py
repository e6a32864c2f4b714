"""How many runs it takes to show that one group is faster than another."""

import math

from tfasr.tta.bracketed_means import CONFIDENCE
from tfasr.tta.groups import FEWEST_FOR_INTERVAL

_MOST_RUNS = 1000


def runs_to_detect(
    coefficient_of_variation: float,
    gap: float = 0.10,
    *,
    power: float = 0.8,
    bracket: float = 0.0,
) -> int | None:
    """Returns how many runs per arm would show a gap at the 5 % level with that power.

    Of the test that `tfasr.tta.group_comparison` decides by: two-sided, on logarithms of the
    middles of brackets, 3 runs or more. None where more than 1000 are needed, and where the gap is
    not larger than the bracket: then no number of runs is enough.

    Args:
        coefficient_of_variation: of the times over seeds, 0 or more.
        gap: the difference to be shown, as a share of the shorter time.
        power: the probability to show it where it is there.
        bracket: the time between two evaluations, as a share of the time to the target.

    Raises:
        ValueError: if ``gap``, ``bracket`` or ``coefficient_of_variation`` is out of range.
    """
    if not gap > 0 or not coefficient_of_variation >= 0 or not bracket >= 0:
        raise ValueError(
            "gap must be larger than 0, the coefficient of variation and the bracket not negative. "
            f"Received: gap={gap}, coefficient_of_variation={coefficient_of_variation}, "
            f"bracket={bracket}."
        )
    shift, width = math.log1p(gap), math.log1p(bracket)
    if shift <= width:
        return None
    # A time read at the middle of its bracket is off by width / sqrt(12).
    variance = math.log1p(coefficient_of_variation**2) + width**2 / 12
    if variance == 0:
        return FEWEST_FOR_INTERVAL
    bound = width * math.exp(-2 * math.pi**2 * variance / width**2) if width else 0.0
    beyond = math.sqrt(shift**2 - bound**2)
    for n in range(FEWEST_FOR_INTERVAL, _MOST_RUNS + 1):
        error = math.sqrt(2 * variance / n)
        if _shown(beyond / error, 2 * n - 2, power) and _longer(shift - width, error, power):
            return n
    return None


def _shown(noncentrality: float, freedom: int, power: float) -> bool:
    from scipy.stats import nct, t

    critical = t.ppf((1 + CONFIDENCE) / 2, freedom)
    # Beyond this the distribution's tail is all there is, and its computation overflows.
    return noncentrality > critical + 10 or nct.sf(critical, freedom, noncentrality) >= power


def _longer(margin: float, error: float, power: float) -> bool:
    from scipy.stats import norm

    return norm.cdf(margin / error) >= power
