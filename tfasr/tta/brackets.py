"""Brackets: the two evaluations between which a target was met, all that is known of the time."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tfasr.tta.metrics import metric_named
from tfasr.tta.time_to_accuracy import AccuracyPoint, medians


@dataclass(frozen=True)
class Bracket:
    """The interval in which a rule was first met.

    Attributes:
        last_miss_s: the last evaluation before that at which the rule was not met, 0 where there
            is none. Of a run that never met it: the last evaluation of all, at which the
            observation is censored.
        first_hit_s: the evaluation at which the rule was met, or None where never.
        interpolated_s: where the straight line between the two crosses the target; None where
            never, or where the rule had nothing to decide on before.
    """

    last_miss_s: float
    first_hit_s: float | None
    interpolated_s: float | None

    @property
    def censored(self) -> bool:
        """Whether all that is known is that it took longer than ``last_miss_s``."""
        return self.first_hit_s is None


def bracket(
    points: Sequence[AccuracyPoint], target: float, *, window: int, metric: str = "cer"
) -> Bracket:
    """Returns the bracket of the first time that the median of ``window`` points met a target."""
    return brackets_at(points, [target], window=window, metric=metric)[0]


def brackets_at(
    points: Sequence[AccuracyPoint],
    targets: Iterable[float],
    *,
    window: int,
    metric: str = "cer",
) -> list[Bracket]:
    """Returns the bracket of each of many targets, from one look at the curve."""
    kind = metric_named(metric)
    found = list(medians([point.value for point in points], window, kind.worst))
    # Where the best so far first meets a target, the median of that moment does.
    best = list(accumulate(map(kind.hardness, found), max))
    brackets = []
    for target in targets:
        index = bisect_left(best, kind.hardness(target))
        if index == len(found):
            brackets.append(Bracket(points[-1].elapsed_s if points else 0.0, None, None))
            continue
        last = index + window - 1
        before = points[last - 1].elapsed_s if last else 0.0
        previous = found[index - 1] if index else None
        now = points[last].elapsed_s
        brackets.append(
            Bracket(before, now, _crossing(before, previous, now, found[index], target))
        )
    return brackets


def _crossing(
    before: float, previous: float | None, now: float, median: float, target: float
) -> float | None:
    if previous is None or math.isinf(previous):
        return None
    crossed = before + (now - before) * (previous - target) / (previous - median)
    # Rounding must not carry it out of the bracket.
    return min(max(crossed, before), now)
