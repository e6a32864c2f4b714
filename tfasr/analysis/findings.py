"""The verdict of a comparison of two groups of runs, as a sentence."""

import math
from collections.abc import Iterable, Sequence

from tfasr.analysis.groups import GroupResult
from tfasr.analysis.names import target_label
from tfasr.display.table import REFUSED
from tfasr.tta.decomposition import FACTORS, Decomposition
from tfasr.tta.group_comparison import GroupComparison
from tfasr.tta.groups import FEWEST_FOR_INTERVAL, FEWEST_FOR_TEST

SEEDS_ALONE = (0.03, 0.20)
"""The range of coefficients of variation of times to accuracy over seeds, in published logs."""

_WORTH_NAMING = math.log(1.02)


def finding(first: GroupResult, other: GroupResult) -> str:
    """Returns which of two groups reaches a target sooner, how surely, and why.

    Such as "CER 10 %: batch_8 is faster: batch_64 takes 1.63 times as long (95 % interval 1.20 to
    2.21; Welch's t on logarithms, n = 3 and 3); p = 0.01. By geometric means, batch_64 needs 3.14
    times the utterances, against which it has 1.69 times the steady throughput."
    """
    label = target_label(*other.target)
    compared = other.comparison
    if compared is None:
        return f"{label}: {other.group} against {first.group}: {REFUSED}."
    said = f"{label}: {_answer(first, other)}."
    warning = reading_warning(first, other)
    if warning is not None:
        said += f" {warning}."
    if other.decomposition is not None:
        said += _why(first, other, other.decomposition)
    return said


def one_run_each(variation: float | None = None) -> str:
    """Returns what seeds alone do to the time of a single run, here if ``variation`` is known."""
    if variation is None:
        low, high = (round(100 * share) for share in SEEDS_ALONE)
        return f"seeds alone make such a time vary by {low} to {high} % (CV in published logs)"
    return f"seeds alone make such a time vary by {100 * variation:.2g} % here (CV)"


def of_single_runs(sizes: Sequence[int], variation: float | None = None) -> str:
    """Returns a caveat for ratios of which some rest on a single run, or "" if there are none."""
    if min(sizes, default=0) != 1 or len(sizes) < 2:
        return ""
    which = "each is of one run (n = 1)" if max(sizes) == 1 else "some are of one run (n = 1)"
    return f"{which}: {one_run_each(variation)}"


def spread_at_hand(results: Iterable[GroupResult]) -> float | None:
    """Returns the largest coefficient of variation over seeds of groups at hand, or None."""
    known = [one.statistics.coefficient_of_variation for one in results]
    return max((one for one in known if one), default=None)


def reading_warning(first: GroupResult, other: GroupResult) -> str | None:
    """Returns what first hits do to a ratio, in numbers; None where that is less than 2 %."""
    compared = other.comparison
    bias = compared and compared.reading_bias
    if bias is None or abs(math.log(bias)) < _WORTH_NAMING:
        return None
    late = [f"{group.statistics.bracket_s / 120:.2g} min" for group in (first, other)]
    return (
        f"First hits are late by half the time between evaluations, {late[0]} in {first.group} and "
        f"{late[1]} in {other.group}: that alone makes the ratio {_ratio(compared.ratio)}, which "
        f"is {_ratio(compared.ratio_of_middles)} at the middles of the brackets"
    )


def _answer(first: GroupResult, other: GroupResult) -> str:
    compared = other.comparison
    times = f"{other.group} takes {_ratio(compared.ratio)} times as long as {first.group}"
    arrived = all(group.statistics.reached == group.statistics.n for group in (first, other))
    if compared.p_value is None and arrived:
        return f"{times} ({_few(first, other)})"
    return f"{_verdict(first, other)}{_measured(first, other, times)}"


def _verdict(first: GroupResult, other: GroupResult) -> str:
    compared = other.comparison
    if compared.adjusted_p is None:
        return ""
    if compared.sooner is not None:
        return f"{(first if compared.sooner == 'first' else other).group} is faster: "
    return "undecided: "


def _measured(first: GroupResult, other: GroupResult, times: str) -> str:
    compared = other.comparison
    if compared.interval is not None:
        low, high = compared.interval
        said = f"{times} (95 % interval {low:.2f} to {high:.2f}; Welch's t on logarithms, "
    else:
        said = f"{_arrived(first)}, {_arrived(other)}"
        if compared.ratio is not None:
            until_s = min(first.statistics.restriction_s, other.statistics.restriction_s)
            said += (
                f"; of the first {until_s / 60:.3g} min, which both were seen for, {other.group} "
                f"spends {_ratio(compared.ratio)} times as much before it arrives"
            )
        said += " ("
    if compared.p_value is None:
        return f"{said}{_few(first, other)})"
    return f"{said}n = {first.statistics.n} and {other.statistics.n}); {_tested(compared)}"


def _tested(compared: GroupComparison) -> str:
    said = f"p = {compared.p_value:.2g}"
    if compared.test == "gehan":
        said = f"Gehan's permutation test {said}"
    if compared.comparisons > 1:
        said += f", {compared.adjusted_p:.2g} adjusted for {compared.comparisons} comparisons"
    if compared.test == "welch" and compared.permutation_p is not None:
        said += f"; permutation test p = {compared.permutation_p:.2g}"
    if compared.below_bracket:
        share = f"{100 * compared.bracket:.2g} % of the time to the target"
        said += f"; the gap is no larger than the time between evaluations, {share}"
    if compared.interpolated_interval is not None:
        low, high = compared.interpolated_interval
        said += (
            f"; second reading, interpolated between evaluations: "
            f"{_ratio(compared.interpolated_ratio)} ({low:.2f} to {high:.2f})"
        )
    return said


def _few(first: GroupResult, other: GroupResult) -> str:
    sizes = (first.statistics.n, other.statistics.n)
    if min(sizes) < FEWEST_FOR_INTERVAL:
        few = f"no significance possible: fewer than {FEWEST_FOR_INTERVAL} runs in a group"
        if min(sizes) > 1:
            return few
        known = [group.statistics.coefficient_of_variation for group in (first, other)]
        variation = max((one for one in known if one), default=None)
        return f"{few}; n = {sizes[0]} and {sizes[1]}: {one_run_each(variation)}"
    if first.statistics.reached + other.statistics.reached < sum(sizes):
        return f"no test: a run never arrived, and fewer than {FEWEST_FOR_TEST} runs in a group"
    return "no interval: a run met the target at its first evaluation"


def _ratio(ratio: float | None) -> str:
    return "n/a" if ratio is None else f"{ratio:.2f}"


def _arrived(group: GroupResult) -> str:
    found = group.statistics
    reached = f"{found.reached} of {found.n} runs of {group.group} reached it"
    return reached if found.median_s is None else f"{reached}, median {found.median_s / 60:.3g} min"


def _why(first: GroupResult, other: GroupResult, product: Decomposition) -> str:
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
