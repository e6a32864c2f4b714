"""How far an error rate would have differed on other utterances: the bootstrap."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
FEWEST_SPEAKERS = 5
"""Speakers below which resampling them says too little: five have 126 different resamples."""

_MOST_AT_ONCE = 2_000_000
"""Numbers drawn at once; more would only need more memory."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class DifferenceInterval:
    """What the bootstrap says of the difference of two error rates, second minus first."""

    interval: Interval  # the two ends, fractions
    # The share of resamples in which the second one is better; those in which both are equal count
    # half
    probability_of_improvement: float


def rate_interval(
    edits: Sequence[int],
    lengths: Sequence[int],
    *,
    blocks: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Returns the interval of an error rate, sum of edits over sum of lengths.

    Utterances are drawn with replacement, as many as there are, and the rate is taken of their
    sums; the interval is between percentiles of ``resamples`` such rates, the further out the fewer
    there are to draw from.

    Args:
        edits: of each utterance, such as word errors.
        lengths: of each utterance, such as words of the reference.
        blocks: of each utterance what it shares with others, such as its speaker; blocks are
            drawn as a whole, which allows for what their utterances have in common.
        resamples: how many.
        seed: of the random numbers.

    Returns:
        Its lower and upper end, fractions; None for fewer than two utterances or blocks.

    Raises:
        ValueError: if the sequences differ in length.

    Source: Bisani and Ney 2004 (doi 10.1109/ICASSP.2004.1326009); with blocks: Liu
    and Peng 2020 (arXiv 1912.09508).
    """
    sums = _block_sums([edits, lengths], blocks)
    if sums.shape[1] < 2:
        return None
    return _percentiles(sums, _rate, resamples, seed).interval


def difference_interval(
    first_edits: Sequence[int],
    second_edits: Sequence[int],
    lengths: Sequence[int],
    *,
    blocks: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> DifferenceInterval | None:
    """Returns the interval of the difference of two systems' rates on the same utterances.

    Both systems are rated on the same resamples: what makes an utterance hard for both cancels.

    Returns:
        None for fewer than two utterances or blocks.

    Raises:
        ValueError: if the sequences differ in length.

    Source: Bisani and Ney 2004 (doi 10.1109/ICASSP.2004.1326009): the probability of
    improvement.
    """
    sums = _block_sums([first_edits, second_edits, lengths], blocks)
    if sums.shape[1] < 2:
        return None

    def difference(first: np.ndarray, second: np.ndarray, lengths: np.ndarray, axis: int):
        return _rate(second, lengths, axis) - _rate(first, lengths, axis)

    resampled = _percentiles(sums, difference, resamples, seed)
    better, equal = np.mean(resampled.rates < 0), np.mean(resampled.rates == 0)
    return DifferenceInterval(resampled.interval, float(better + equal / 2))


@dataclass(frozen=True)
class _Resampled:
    interval: Interval
    rates: np.ndarray


def _percentiles(sums: np.ndarray, statistic, resamples: int, seed: int) -> _Resampled:
    # Imported here: a report without error statistics answers without SciPy.
    from scipy.stats import bootstrap

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
    return _Resampled((float(ends.low), float(ends.high)), result.bootstrap_distribution)


def _widened(drawn: int) -> float:
    """Returns between which percentiles of resamples an interval of 95 % lies.

    Resamples of few spread too little, by ``sqrt((n - 1) / n)``, and their percentiles are those of
    a normal distribution where Student's t is due. Both are made up for by percentiles further out.

    Source: Hesterberg 2015 (doi 10.1080/00031305.2015.1089789), section 5.3, the expanded
    percentile interval.
    """
    from scipy.stats import norm, t

    quantile = t.ppf((1 + CONFIDENCE) / 2, drawn - 1) * math.sqrt(drawn / (drawn - 1))
    return float(1 - 2 * norm.sf(quantile))


def _rate(edits: np.ndarray, lengths: np.ndarray, axis: int) -> np.ndarray:
    total, length = edits.sum(axis=axis), lengths.sum(axis=axis)
    # What is written where nothing was said is wholly wrong, as in tfasr.scoring.errors.
    return np.where(length > 0, total / np.maximum(length, 1), np.sign(total))


def _block_sums(columns: Sequence[Sequence[int]], blocks: Sequence[Hashable] | None) -> np.ndarray:
    # ``(columns, blocks)``: each column summed over the utterances of a block.
    if len({len(column) for column in (*columns, blocks or columns[0])}) > 1:
        raise ValueError(
            "Every utterance must have its edits, its length and its block. Received: "
            f"{[len(column) for column in columns]}, blocks: {blocks and len(blocks)}."
        )
    values = np.array(columns, dtype=float).reshape(len(columns), -1)
    if blocks is None:
        return values
    numbers: dict[Hashable, int] = {}
    of_utterance = [numbers.setdefault(block, len(numbers)) for block in blocks]
    return np.array([np.bincount(of_utterance, column, len(numbers)) for column in values])
