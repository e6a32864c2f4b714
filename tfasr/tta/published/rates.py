"""Checks that a log's scores are error rates, as fractions."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfasr.errors import UsageError

# Recognisers that learn nothing can make more errors than there are words: of
# AlgoPerf's 952 published speech logs, 25 have only rates above 1, up to 4.2.
_MOST = 5.0


def check_error_rates(path: Path, scores: Sequence[tuple[str, Any]], name: str) -> None:
    """Raises UsageError, naming the place, unless all scores can be error rates as fractions.

    ``scores`` has a place in the file and a value for each. NaN and None are scores of
    evaluations that failed.
    """
    for place, value in scores:
        if value is None:
            continue

        if type(value) not in (int, float) or value < 0:
            raise UsageError(
                f"{place} of {path}: {name} must be an error rate of at least 0. Received: "
                f"{value!r}. Correct the log, or leave it out."
            )

    known_scores = [
        (value, place)
        for place, value in scores
        if value is not None and not math.isnan(value)
    ]
    if known_scores and min(known_scores)[0] > 1 and max(known_scores)[0] > _MOST:
        value, place = max(known_scores)
        raise UsageError(
            f"{place} of {path}: {name} must be a fraction, such as 0.058. Received: "
            f"{value:g}, and no value up to 1, so these seem to be percent. Divide them "
            "by 100."
        )
