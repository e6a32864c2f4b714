"""What a comparison of two groups of runs comes to, in a sentence."""

import math

from tfasr.analysis.groups import GroupResult
from tfasr.analysis.names import target_label
from tfasr.display.table import REFUSED
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
        interval 1.20 to 2.21; Welch's t on logarithms, n = 3 and 3). By geometric means,
        batch_64 needs 3.14 times the utterances, against which it has 1.69 times the steady
        throughput."
    """
    label = target_label(*other.target)
    compared = other.comparison
    if compared is None:
        return f"{label}: {other.group} against {first.group}: {REFUSED}."
    said = f"{label}: {_answer(first, other)}."
    if other.decomposition is not None:
        said += _why(first, other, other.decomposition)
    return said


def _answer(first: GroupResult, other: GroupResult) -> str:
    compared = other.comparison
    sizes = (first.statistics.n, other.statistics.n)
    numbers = f"n = {sizes[0]} and {sizes[1]}"
    few = f"no significance possible: fewer than {FEWEST_FOR_INTERVAL} runs in a group"
    times = f"{other.group} takes {_ratio(compared.ratio)} times as long as {first.group}"
    if compared.interval is not None:
        low, high = compared.interval
        decided = low > 1 or high < 1
        faster = f"{(first if low > 1 else other).group} is faster" if decided else "undecided"
        said = (
            f"{faster}: {times} (95 % interval {low:.2f} to {high:.2f}; Welch's t on logarithms, "
            f"{numbers})"
        )
    elif all(group.statistics.reached == group.statistics.n for group in (first, other)):
        said = f"{times} ({few})"
    else:
        said = f"{_arrived(first)}, {_arrived(other)}"
        if compared.ratio is not None:
            until_s = min(first.statistics.restriction_s, other.statistics.restriction_s)
            said += (
                f"; of the first {until_s / 60:.3g} min, which both were seen for, {other.group} "
                f"spends {_ratio(compared.ratio)} times as much before it arrives"
            )
        said += (
            f" ({few if min(sizes) < FEWEST_FOR_INTERVAL else 'no interval: a run never arrived'})"
        )
    return (
        said if compared.p_value is None else f"{said}; permutation test p = {compared.p_value:.2g}"
    )


def _ratio(ratio: float | None) -> str:
    return "n/a" if ratio is None else f"{ratio:.2f}"


def _arrived(group: GroupResult) -> str:
    found = group.statistics
    reached = f"{found.reached} of {found.n} runs of {group.group} reached it"
    return reached if found.median_s is None else f"{reached}, median {found.median_s / 60:.3g} min"


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
    if any(product.never):
        arrived = f"{product.runs[0]} and {product.runs[1]}"
        where = f"By the geometric means of the {arrived} runs that arrived, "
    elif max(product.runs) > 1:
        where = "By geometric means, "
    else:
        where = "The reason: "
    return f" {where}{other.group} {', against which it '.join(parts)}."


def _reason(name: str, product: Decomposition) -> str:
    if name == "statistical_efficiency":
        return f"needs {product.utterances_ratio:.2f} times the utterances"
    if name == "hardware_throughput":
        return f"has {product.throughput_ratio:.2f} times the steady throughput"
    return f"owes the time a factor of {product.factors[name]:.2f} to {FACTORS[name]}"
