"""Lengths to which utterances are padded, chosen so that little is padded."""

from collections.abc import Sequence

import numpy as np

_CANDIDATES = 128


def bucket_boundaries(lengths: Sequence[int], num_buckets: int) -> list[int]:
    """Returns the padded lengths that pad a split least, chosen among at most 128 lengths.

    Returns:
        Ascending frames; the last is the longest utterance's. An utterance belongs to the first
        boundary that is not below it.

    Raises:
        ValueError: if there are no utterances.
    """
    if not len(lengths):
        raise ValueError("A split must hold utterances to be bucketed. Received: lengths=[].")
    ordered = np.sort(np.asarray(lengths))
    candidates = np.unique(ordered)
    if len(candidates) > _CANDIDATES:
        # Quantiles, because the choice is quadratic in the number of candidates.
        quantiles = np.linspace(0, 1, _CANDIDATES)
        candidates = np.unique(np.quantile(ordered, quantiles, method="higher"))
    counts = np.searchsorted(ordered, candidates, side="right")
    # cost[j] = fewest padded frames when candidate j is the last boundary so far.
    cost = candidates * counts
    choice = []
    for _ in range(min(num_buckets, len(candidates)) - 1):
        alternatives = cost[:, None] + candidates[None, :] * (counts[None, :] - counts[:, None])
        alternatives[np.tril_indices(len(candidates), -1)] = np.iinfo(np.int64).max
        choice.append(alternatives.argmin(axis=0))
        cost = alternatives.min(axis=0)
    boundaries = [len(candidates) - 1]
    for previous in reversed(choice):
        boundaries.append(int(previous[boundaries[-1]]))
    return sorted({int(candidates[index]) for index in boundaries})
