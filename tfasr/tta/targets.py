"""Targets: which metric has to come down to which value."""

import math

from tfasr.errors import UsageError

# Rates of error as fractions; the last three are what DAWNBench's accuracies leave.
RATES = ("cer", "wer", "cer_reference", "top1_error", "top5_error", "f1_error")
METRICS = (*RATES, "loss")

Target = tuple[str, float]


def parse_target(text: str) -> Target:
    """Returns metric and value of a target written as ``cer=0.10``.

    Raises:
        UsageError: if it is written otherwise, or an error rate is no fraction.
    """
    metric, separator, value = text.partition("=")
    try:
        target = (metric.strip(), float(value))
    except ValueError:
        separator = ""
    if not separator:
        raise UsageError(f"A target must be written like cer=0.10. Received: {text!r}.")
    return check_target(*target)


def check_target(metric: str, value: float) -> Target:
    """Returns a target whose metric is known and whose value can be reached.

    Raises:
        UsageError: if the metric is unknown, or an error rate is no fraction.
    """
    if metric not in METRICS:
        raise UsageError(f"A target's metric must be one of {METRICS}. Received: {metric!r}.")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (metric in RATES and value > 1):
        raise UsageError(
            f"A target must be a fraction between 0 and 1, such as {metric}=0.10 for 10 %"
            f"{', unless it is a loss' if metric == 'loss' else ''}. "
            f"Received: {metric}={value!r}."
        )
    return metric, value
