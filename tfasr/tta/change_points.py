"""Where a series of repeated measurements changed its level: sooner or later, but not on noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_BEFORE = 8
"""Measurements before a change that the noise is known from."""

FEWEST_AFTER = 4
"""Measurements after it."""

LEAST_CHANGE = math.log(1.03)
"""The least shift of medians that is told, as a logarithm: 3 %."""

_Z = 2.5
"""What the standardised rank sum has to reach; chosen by benchmarks/history.py."""

_SPREADS = 3.0
"""How many standard errors of the median difference the shift has to reach."""


@dataclass(frozen=True)
class Change:
    """A lasting change of level.

    Attributes:
        index: of the first measurement after it.
        found_at: of the measurement with which it was found.
        before: the median of the level before, since the last change.
        after: the median from it to the measurement with which it was found.
        z: the standardised rank sum.
    """

    index: int
    found_at: int
    before: float
    after: float
    z: float

    @property
    def ratio(self) -> float:
        """The level after over the level before."""
        return self.after / self.before


def changes(values: Sequence[float], starts: Sequence[bool] | None = None) -> list[Change]:
    """Returns where a series changed, as it would have been found while it grew.

    With each measurement, every place since the last change is tried at which the level may have
    changed: those after it are compared with those before by the sum of their ranks, so that
    neither a single slow run nor the shape of the noise matters. A change is told if the ranks
    differ by `_Z` standard deviations and the medians by 3 % and by `_SPREADS` standard errors of
    their difference; then it stands, and what comes later is compared with the level after it.

    Args:
        values: positive measurements in the order of time; NaN where one is missing.
        starts: of each, whether a change may begin there: the first run of a commit; by default
            anywhere.
    """
    known = [i for i, value in enumerate(values) if value > 0 and math.isfinite(value)]
    logs = np.log(np.asarray(values, float)[known]) if known else np.zeros(0)
    may = np.array([starts is None or starts[i] for i in known], bool)
    # A missing run that began a commit leaves its start to the next one.
    if starts is not None:
        may = _passed_on(starts, known)
    found: list[Change] = []
    begin = 0
    for end in range(1, len(known) + 1):
        split = _best_split(logs[begin:end], may[begin:end])
        if split is None:
            continue
        at, z = split
        before, after = np.median(logs[begin : begin + at]), np.median(logs[begin + at : end])
        found.append(
            Change(known[begin + at], known[end - 1], math.exp(before), math.exp(after), z)
        )
        begin += at
    return found


def _passed_on(starts: Sequence[bool], known: Sequence[int]) -> np.ndarray:
    places, last = [], -1
    for index in known:
        places.append(any(starts[last + 1 : index + 1]))
        last = index
    return np.array(places, bool)


def _best_split(logs: np.ndarray, may: np.ndarray) -> tuple[int, float] | None:
    count = logs.size
    splits = np.arange(FEWEST_BEFORE, count - FEWEST_AFTER + 1)
    splits = splits[may[splits]] if splits.size else splits
    if not splits.size:
        return None
    ranks = _ranks(logs)
    sums = ranks.sum() - np.cumsum(ranks)[splits - 1]
    after = count - splits
    # Ties make ranks vary less.
    variance = ranks.var(ddof=1) * splits * after / count
    if not variance.all():
        return None
    z = (sums - after * (count + 1) / 2) / np.sqrt(variance)
    for place in np.argsort(-np.abs(z)):
        if abs(z[place]) < _Z:
            return None
        at = int(splits[place])
        shift = np.median(logs[at:]) - np.median(logs[:at])
        enough = max(LEAST_CHANGE, _SPREADS * _error(logs[:at], logs[at:]))
        if abs(shift) >= enough and shift * z[place] > 0:
            return _place(logs, may), float(z[place])
    return None


def _place(logs: np.ndarray, may: np.ndarray) -> int:
    splits = np.arange(FEWEST_BEFORE, logs.size)
    rests = [
        sum(np.abs(side - np.median(side)).sum() for side in (logs[:at], logs[at:]))
        for at in splits[may[splits]]
    ]
    return int(splits[may[splits]][int(np.argmin(rests))])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def _error(before: np.ndarray, after: np.ndarray) -> float:
    """Returns the standard error of the difference of medians, from both sides' own spread.

    A machine that wanders makes neighbours alike: their correlation, where it is positive, makes
    medians err more.
    """
    sides = [side - np.median(side) for side in (before, after)]
    spreads = [1.4826 * np.median(np.abs(side)) for side in sides]
    spread = math.sqrt(
        (spreads[0] ** 2 * before.size + spreads[1] ** 2 * after.size) / (before.size + after.size)
    )
    products = sum(float(side[1:] @ side[:-1]) for side in sides)
    squares = sum(float(side @ side) for side in sides)
    alike = min(max(products / squares, 0.0), 0.9) if squares else 0.0
    inflated = spread * math.sqrt((1 + alike) / (1 - alike))
    return 1.2533 * inflated * math.sqrt(1 / before.size + 1 / after.size)
