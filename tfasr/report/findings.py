"""What a comparison of two groups of runs comes to, in a sentence."""

import math

from tfasr.report.grouping import GroupResult
from tfasr.report.naming import target_label
from tfasr.report.tables import REFUSED
from tfasr.tta.decomposition import FACTORS, Decomposition
from tfasr.tta.groups import FEWEST_FOR_INTERVAL

_WORTH_NAMING = math.log(1.02)


def finding(first: GroupResult, other: GroupResult) -> str:
    """Returns which of two groups reaches a target sooner, how surely, and why.

    Args:
        first: the group that is compared with.
        other: one of the other groups; what it says of the first is in it.

    Returns:
        A sentence such as "CER 10 %: batch_8 is faster: batch_64 takes 1.63 times as long (95 %
        interval 1.20 to 2.21; Welch's t on logarithms, n = 3 and 3). Of the runs with the median
        times, batch_64 needs 3.14 times the utterances, against which it has 1.69 times the steady
        throughput."
    """
    label = target_label(*other.target)
    compared = other.comparison
    if compared is None:
        return f"{label}: {other.group} against {first.group}: {REFUSED}."
    said = f"{label}: {_answer(first, other)}."
    if other.decomposition is not None and compared.ratio is not None:
        said += _why(first, other, other.decomposition)
    return said


def _answer(first: GroupResult, other: GroupResult) -> str:
    compared = other.comparison
    never = [
        f"{group.statistics.n - group.statistics.reached} of {group.statistics.n} runs of "
        f"{group.group} never reached it"
        for group in (first, other)
        if group.statistics.reached < group.statistics.n
    ]
    if compared.ratio is None:
        return "; ".join([f"{other.group} against {first.group}: no ratio", *never])
    times = f"{other.group} takes {compared.ratio:.2f} times as long as {first.group}"
    faster = f"{(first if compared.ratio > 1 else other).group} is faster"
    numbers = f"n = {first.statistics.n} and {other.statistics.n}"
    if compared.interval is None:
        few = min(first.statistics.n, other.statistics.n) < FEWEST_FOR_INTERVAL
        doubt = (
            f"no significance possible: fewer than {FEWEST_FOR_INTERVAL} runs in a group"
            if few
            else f"by restricted means, without an interval; {numbers}"
        )
        parts = [f"{times} ({doubt})", *never]
    else:
        low, high = compared.interval
        interval = (
            f"{times} (95 % interval {low:.2f} to {high:.2f}; Welch's t on logarithms, {numbers})"
        )
        decided = low > 1 or high < 1
        parts = [f"{faster}: {interval}" if decided else f"undecided: {interval}", *never]
    if compared.p_value is not None:
        parts.append(f"permutation test p = {compared.p_value:.2g}")
    return "; ".join(parts)


def _why(first: GroupResult, other: GroupResult, product: Decomposition) -> str:
    """Names the factor that does most to the ratio, and what does most against it."""
    logs = {name: math.log(factor) for name, factor in product.factors.items()}
    direction = 1 if product.ratio >= 1 else -1
    for_it = max(logs, key=lambda name: direction * logs[name])
    against = min(logs, key=lambda name: direction * logs[name])
    parts = [
        _reason(name, product)
        for name, sign in ((for_it, 1), (against, -1))
        if sign * direction * logs[name] > _WORTH_NAMING
    ]
    if not parts:
        return ""
    groups = max(first.statistics.n, other.statistics.n) > 1
    where = "Of the runs with the median times, " if groups else "The reason: "
    return f" {where}{other.group} {', against which it '.join(parts)}."


def _reason(name: str, product: Decomposition) -> str:
    if name == "statistical_efficiency":
        return f"needs {product.utterances_ratio:.2f} times the utterances"
    if name == "hardware_throughput":
        return f"has {product.throughput_ratio:.2f} times the steady throughput"
    share = product.factors[name]
    return f"has a factor of {share:.2f} from {FACTORS[name]}"
