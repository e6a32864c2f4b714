"""Targets: which metric has to come to which value."""

import math

from tfasr.errors import UsageError
from tfasr.tta.metrics import METRICS

Target = tuple[str, float]


def parse_target(text: str) -> Target:
    """Returns metric and value of a target written as ``cer=0.10``.

    Raises:
        UsageError: if it is written otherwise, or `check_target` refuses it.
    """
    return check_target(*written_target(text))


def written_target(text: str) -> Target:
    """Returns metric and value as written, of a metric that a run may yet declare.

    Raises:
        UsageError: if it is not written like ``cer=0.10``.
    """
    metric, separator, value = text.partition("=")
    try:
        target = (metric.strip(), float(value))
    except ValueError:
        separator = ""
    if not separator:
        raise UsageError(f"A target must be written like cer=0.10. Received: {text!r}.")
    return target


def check_target(metric: str, value: float) -> Target:
    """Returns a target whose metric is known and whose value can be reached.

    Raises:
        UsageError: if the metric is unknown, or what is a rate gets no fraction.
    """
    if metric not in METRICS:
        raise UsageError(
            f"A target's metric must be one of {METRICS.listed()}, or one that a run declares. "
            f"Received: {metric!r}."
        )
    number = isinstance(value, int | float) and not isinstance(value, bool)
    rate = METRICS[metric].rate
    if not number or not math.isfinite(value) or (rate and not 0 <= value <= 1):
        must_be = (
            f"a fraction between 0 and 1, such as {metric}=0.10 for 10 %"
            if rate
            else "a finite number"
        )
        raise UsageError(f"A target must be {must_be}. Received: {metric}={value!r}.")
    return metric, value
