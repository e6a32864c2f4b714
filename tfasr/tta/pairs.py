"""Compares two groups by pairs of runs with the same seed, trained in turn on one machine.

What slows both runs of a pair, such as their order of the data or a busy hour of the machine,
cancels in the difference of the logarithms of their times. Arrays are ``(..., pairs)``, with the
pairs in the order in which they were trained.
"""

import math

import numpy as np

from tfasr.tta.groups import CONFIDENCE, MeanDifference, bracketed_mean

FEWEST_FOR_ORDER = 6  # with 5 pairs the smallest p of the signed-rank test is 2 / 2**5
_BETS = np.array([1.0, 2.0, 4.0])  # the bets ``b`` of `evidence`
_SHIFTS = 801  # how many shifts `evidence_interval` tries
Ends = tuple[np.ndarray, np.ndarray]


def paired_difference(first: Ends, second: Ends) -> MeanDifference:
    """Returns the mean of second minus first, on logarithms, with its paired t test and interval.

    ``first`` and ``second`` are logarithms of the brackets' ends. The spread is at least what
    brackets of this width can hide (`bracketed_mean`). The interval is widened by the largest bias
    that evaluating only now and then can cause: the sum of both groups' biases, or a bracket's
    width if all pairs differ by equally many evaluations, so that fractions of one are unknown.
    """
    means = [bracketed_mean(*ends) for ends in (first, second)]
    middles = [(low + high) / 2 for low, high in (first, second)]
    apart, n = middles[1] - middles[0], first[0].shape[-1]
    shift, spread = np.mean(apart, axis=-1), np.std(apart, axis=-1, ddof=1)
    width, hidden = np.maximum(*(mean.width for mean in means)), sum(m.width**2 for m in means) / 48
    error = np.sqrt(np.maximum(spread**2, hidden) / n)
    share = np.divide(spread, width, out=np.full_like(width, np.inf), where=width > 0)
    bound = np.maximum(sum(m.bound for m in means), width * np.exp(-2 * (np.pi * share) ** 2))
    return MeanDifference.of(shift, error, bound, n - 1, CONFIDENCE)


def pair_scores(first: Ends, second: Ends) -> np.ndarray:
    """Returns each pair's score: the logarithm of the second run's time over the first one's.

    If one run never met the target, the score is the smallest in size that is possible, given when
    it ended; 0 if that was before the other met the target, or if neither did. Exchanging the two
    runs of a pair only changes the score's sign, which makes tests of these scores exact.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [
            np.where(low > 0, (np.log(low) + np.log(high)) / 2, np.log(high / 2))
            for low, high in (first, second)
        ]
        seen = [np.log(low) for low, _ in (first, second)]
        arrived = [np.isfinite(high) for _, high in (first, second)]
        both, later = arrived[0] & arrived[1], np.maximum(seen[1] - logs[0], 0)
        earlier = np.minimum(logs[1] - seen[0], 0)
        scores = np.where(arrived[0] & ~arrived[1], later, np.where(~arrived[0], earlier, 0.0))
        return np.where(both, logs[1] - logs[0], np.where(arrived[0] | arrived[1], scores, 0.0))


def signed_rank_p(scores: np.ndarray) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test, exact also with ties.

    Scores of 0 are left out: it is unknown which of the two runs was faster.

    Source: Wilcoxon 1945 (doi 10.2307/3001968).
    """
    from scipy.stats import rankdata

    scores = scores[scores != 0]
    ranks = np.rint(2 * rankdata(np.abs(scores))).astype(int)  # doubled: ties have halves
    shares = np.ones(1)
    for rank in ranks:
        shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    observed = ranks[scores > 0].sum()
    tails = shares[: observed + 1].sum(), shares[observed:].sum()
    return min(1.0, 2 * float(min(tails)))


def least_signed_rank_p(scores: np.ndarray) -> float:
    return min(1.0, 2.0 ** (1 - np.count_nonzero(scores)))


def evidence(scores: np.ndarray) -> np.ndarray:
    """Returns the evidence that second runs are later, and that they are earlier, after each pair.

    The shape is ``(2, ..., pairs)``. The mean of the two is an e-process: the winnings of someone
    who knows the size of each score and bets on its sign. If the two runs of a pair are
    exchangeable, the sign is a fair coin toss, whatever the distribution of sizes, and whatever
    came before; each factor ``exp(b x) / cosh(b x)`` then has mean 1. The probability that the mean
    of the two is ever 20 or more is at most 1 / 20, however often you look. ``x`` is a score
    divided by the median size so far; the evidence is averaged over the bets ``b``.

    Source: V. Vovk and R. Wang, Nonparametric e-tests of symmetry, 2024 (arXiv 2208.08925);
    J. Ville, Etude critique de la notion de collectif, 1939.
    """
    sizes = np.abs(scores)
    usual = np.stack(
        [_usual(sizes[..., : number + 1]) for number in range(scores.shape[-1])], axis=-1
    )
    with np.errstate(over="ignore"):
        x = np.divide(scores, usual, out=np.zeros_like(scores), where=usual > 0)
    x = np.clip(x, -1e99, 1e99)  # where the factors have reached their limits, 2 and 0
    signed = np.stack([x, -x])[..., None] * _BETS
    # exp(b x) / cosh(b x) is 2 / (1 + exp(-2 b x)).
    logs = math.log(2) - np.logaddexp(0, -2 * signed)
    return np.exp(np.cumsum(logs, axis=-2)).mean(axis=-1)


def _usual(sizes: np.ndarray) -> np.ndarray:
    """Returns the median of sizes above 0; 0 without any."""
    positive = np.where(sizes > 0, sizes, np.inf)
    count = np.count_nonzero(sizes > 0, axis=-1)
    ordered = np.sort(positive, axis=-1)
    at = np.maximum(count - 1, 0)[..., None] // 2
    middle = np.take_along_axis(ordered, at, axis=-1)[..., 0]
    return np.where(count > 0, middle, 0.0)


def evidence_interval(scores: np.ndarray, level: float) -> tuple[float, float] | None:
    """Returns the lowest and highest shift of scores ``(pairs,)`` that no look has rejected so far.

    A shift is a log ratio that is subtracted from all scores before they are tested. None if every
    shift is rejected, or none in one direction. With a probability of ``1 - level``, the interval
    contains the true shift at all looks, if scores are symmetric around it.
    """
    least, most = float(scores.min()), float(scores.max())
    room = 2 * (most - least) or 1e-6 + abs(most)
    shifts = np.linspace(least - room, most + room, _SHIFTS)
    within = evidence(scores - shifts[:, None]).mean(axis=0).max(axis=-1) < 1 / level
    accepted = shifts[within]
    if within[0] or within[-1] or not accepted.size:
        return None
    step = shifts[1] - shifts[0]
    return float(accepted[0] - step), float(accepted[-1] + step)
