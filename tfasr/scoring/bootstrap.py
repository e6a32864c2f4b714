"""Bootstrap confidence intervals: how much an error rate would differ on other utterances."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
FEWEST_SPEAKERS = 5  # needed to resample by speaker: five allow 126 resamples
_MOST_AT_ONCE = 2_000_000  # numbers drawn at once, which limits memory
Interval = tuple[float, float]


@dataclass(frozen=True)
class DifferenceInterval:
    """The difference between two error rates, second minus first, by the bootstrap."""

    interval: Interval  # fractions
    # share of resamples in which the second is better; ties count half
    probability_of_improvement: float


def rate_interval(
    edits: Sequence[int],
    lengths: Sequence[int],
    *,
    blocks: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Returns the 95 % confidence interval of an error rate, as fractions.

    The rate is the sum of ``edits`` over the sum of ``lengths``. Utterances are drawn with
    replacement, as many as there are, and the interval lies between percentiles of ``resamples``
    such rates. With ``blocks``, such as each utterance's speaker, whole blocks are drawn, which
    allows for the correlation within a block. None for fewer than two utterances or blocks.

    Source: Bisani and Ney 2004 (doi 10.1109/ICASSP.2004.1326009); with blocks: Liu and Peng 2020
    (arXiv 1912.09508).
    """
    sums = _block_sums([edits, lengths], blocks)
    if sums.shape[1] < 2:
        return None
    return _percentiles(sums, _rate, resamples, seed)[0]


def difference_interval(
    first_edits: Sequence[int],
    second_edits: Sequence[int],
    lengths: Sequence[int],
    *,
    blocks: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> DifferenceInterval | None:
    """Returns the interval of the difference between two systems' rates on the same utterances.

    Both systems are rated on the same resamples, so utterances that are hard for both cancel.
    None for fewer than two utterances or blocks; ValueError if the lengths differ.

    Source: Bisani and Ney 2004 (doi 10.1109/ICASSP.2004.1326009): the probability of improvement.
    """
    sums = _block_sums([first_edits, second_edits, lengths], blocks)
    if sums.shape[1] < 2:
        return None

    def difference(first: np.ndarray, second: np.ndarray, lengths: np.ndarray, axis: int):
        return _rate(second, lengths, axis) - _rate(first, lengths, axis)

    interval, differences = _percentiles(sums, difference, resamples, seed)
    better, equal = np.mean(differences < 0), np.mean(differences == 0)
    return DifferenceInterval(interval, float(better + equal / 2))


def _percentiles(
    sums: np.ndarray, statistic, resamples: int, seed: int
) -> tuple[Interval, np.ndarray]:
    from scipy.stats import bootstrap  # imported late: most reports don't need SciPy

    drawn = sums.shape[1]
    result = bootstrap(
        tuple(sums),
        statistic,
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=_widened(drawn),
        n_resamples=resamples,
        batch=max(1, _MOST_AT_ONCE // drawn),
        rng=np.random.default_rng(seed),
    )
    ends = result.confidence_interval
    return (float(ends.low), float(ends.high)), result.bootstrap_distribution


def _widened(drawn: int) -> float:
    """Returns the confidence level whose percentiles make a 95 % interval of few resampled items.

    Resamples of n items spread too little, by ``sqrt((n - 1) / n)``, and their percentiles follow
    a normal distribution instead of Student's t. Percentiles further out correct both.

    Source: Hesterberg 2015 (doi 10.1080/00031305.2015.1089789), section 5.3, the expanded
    percentile interval.
    """
    from scipy.stats import norm, t

    quantile = t.ppf((1 + CONFIDENCE) / 2, drawn - 1) * math.sqrt(drawn / (drawn - 1))
    return float(1 - 2 * norm.sf(quantile))


def _rate(edits: np.ndarray, lengths: np.ndarray, axis: int) -> np.ndarray:
    total, length = edits.sum(axis=axis), lengths.sum(axis=axis)
    # Any text for an empty reference is 100 % wrong, as in tfasr.scoring.errors.
    return np.where(length > 0, total / np.maximum(length, 1), np.sign(total))


def _block_sums(columns: Sequence[Sequence[int]], blocks: Sequence[Hashable] | None) -> np.ndarray:
    # Returns ``(columns, blocks)``: each column summed over the utterances of a block.
    if len({len(column) for column in (*columns, blocks or columns[0])}) > 1:
        raise ValueError(
            "Every utterance must have its edits, its length and its block. Received lengths: "
            f"{[len(column) for column in columns]}, blocks: {blocks and len(blocks)}."
        )
    values = np.array(columns, dtype=float).reshape(len(columns), -1)
    if blocks is None:
        return values
    numbers: dict[Hashable, int] = {}
    of_utterance = [numbers.setdefault(block, len(numbers)) for block in blocks]
    return np.array([np.bincount(of_utterance, column, len(numbers)) for column in values])
