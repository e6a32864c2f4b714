"""Which runs belong together: runs of one configuration, whatever their seeds."""

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfasr.display.table import REFUSED
from tfasr.kit.files import EXPERIMENT_FILE, RECORDER_FILE, read_object, read_text
from tfasr.reports.numbers import Report, RunAnalysis, target_label
from tfasr.tta.comparison import GroupComparison, adjusted, compare_groups
from tfasr.tta.decomposition import FACTORS, Decomposition, decompose
from tfasr.tta.groups import FEWEST_FOR_INTERVAL, FEWEST_FOR_TEST, GroupStatistics, group_statistics
from tfasr.tta.metrics import Target
from tfasr.tta.policies import Bracket
from tfasr.tta.run import Run

# What names of runs end in before their number.
_TAIL = re.compile(r"[-_./ ]+((seed|run|result|study|s|r)[-_]?\d*)?$")
_ALONE = "Delete the file: the run then stands alone."
_SEED = re.compile(r'^[\w./@]*seed\s*=|^"seed":')


@dataclass(frozen=True)
class GroupResult:
    group: str  # the group's name
    target: Target  # metric and value
    members: list[int]  # indices of the group's runs in the report
    brackets: list[Bracket]  # one for each of them
    statistics: GroupStatistics  # what they say together
    # With the first group, its p-value adjusted for all comparisons of the report; None for the
    # first, and where that is refused
    comparison: GroupComparison | None
    # Of the ratio of geometric means to the first group, over the runs that reached the target;
    # None as above, where none did, and where a log has no steps
    decomposition: Decomposition | None


def configuration(run: Run) -> str | None:
    """Returns what runs of one group have in common, or None if the run does not say: its
    configuration without seeds, what makes results comparable, and facts of the ledger.
    """
    text = run.operative_config or run.config or _settings(run.path)
    if text is None:
        return None
    lines = [line for line in text.splitlines() if not _SEED.match(line.strip())]
    facts = [run.fact(key) for key in ("global_batch_size", "opt_name", "opt_base_learning_rate")]
    cluster = run.fact("cluster")
    if isinstance(cluster, dict):  # flags name the workers, and no gin file
        facts.append({name: cluster.get(name) for name in ("gradient_bytes", "workers")})
    return json.dumps([lines, facts, run.comparability], sort_keys=True, default=str)


def _settings(path: Path) -> str | None:
    experiment, recorder = path / EXPERIMENT_FILE, path / RECORDER_FILE
    if experiment.is_file():
        return read_text(experiment, _ALONE)
    # What a recorder knows of itself is the same for any model: the user's own words decide.
    if recorder.is_file() and read_object(recorder, "Leave the run out.").get("config"):
        return read_text(recorder, _ALONE)
    return None


def group_name(names: Sequence[str]) -> str:
    """Returns what the names of a group's runs begin with."""
    if len(names) == 1:
        return names[0]
    common = os.path.commonprefix(list(names)).rstrip("-_./ ")
    common = _TAIL.sub("", common) or common
    return common or f"{names[0]} and {len(names) - 1} more"


def named_groups(
    runs: Sequence[RunAnalysis], configurations: Sequence[str | None]
) -> list[RunAnalysis]:
    """Returns the runs with their groups' names; a run whose configuration is None stands alone."""
    members: dict[str, list[int]] = {}
    for index, shared in enumerate(configurations):
        members.setdefault(shared or f"alone {index}", []).append(index)
    names: dict[int, str] = {}
    taken: set[str] = set()
    for own in members.values():
        name = group_name([runs[index].name for index in own])
        while name in taken:
            name += "'"
        taken.add(name)
        names |= dict.fromkeys(own, name)
    return [replace(run, group=names[index]) for index, run in enumerate(runs)]


def group_members(runs: Sequence[RunAnalysis]) -> dict[str, list[int]]:
    """Returns the indices of each group's runs, groups in the order of their first runs."""
    members: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        members.setdefault(run.group, []).append(index)
    return members


def colours(report: Report) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(run.group, len(numbers)) for run in report.runs]


def group_results(report: Report) -> list[list[GroupResult]]:
    """Returns for each target what each group says of it, groups in the report's order."""
    # A page asks several times; kept with the report, as a cached property would be.
    kept = vars(report)
    if "_group_results" not in kept:
        members = group_members(report.runs)
        kept["_group_results"] = _adjusted(
            [
                _results(report, members, index, target)
                for index, target in enumerate(report.targets)
            ]
        )
    return kept["_group_results"]


def _results(
    report: Report, members: dict[str, list[int]], index: int, target: Target
) -> list[GroupResult]:
    results: list[GroupResult] = []
    first: list[int] = next(iter(members.values()))
    for group, own in members.items():
        brackets = [report.runs[run].results[index].bracket for run in own]
        comparable = own is not first and not any(report.refused(run) for run in own)
        reference = [report.runs[run].results[index].bracket for run in first]
        results.append(
            GroupResult(
                group,
                target,
                own,
                brackets,
                group_statistics(brackets),
                compare_groups(reference, brackets) if comparable else None,
                _decomposition(report, first, own, index) if comparable else None,
            )
        )
    return results


def _adjusted(results: list[list[GroupResult]]) -> list[list[GroupResult]]:
    compared = [one for of_target in results for one in of_target if one.comparison is not None]
    found = iter(adjusted([one.comparison for one in compared]))
    return [
        [one if one.comparison is None else replace(one, comparison=next(found)) for one in row]
        for row in results
    ]


def _decomposition(
    report: Report, first: Sequence[int], own: Sequence[int], target: int
) -> Decomposition | None:
    reached = [
        [found for run in group if (found := report.runs[run].results[target]).tta.reached]
        for group in (first, own)
    ]
    parts = [[one.parts for one in group] for group in reached]
    if not all(parts) or any(one is None or one.total_s <= 0 for one in [*parts[0], *parts[1]]):
        return None
    never = (len(first) - len(reached[0]), len(own) - len(reached[1]))
    return decompose(*parts, never=never)


# Range of coefficients of variation of times to accuracy over seeds, in published logs
SEEDS_ALONE = (0.03, 0.20)
_WORTH_NAMING = math.log(1.02)


def finding(first: GroupResult, other: GroupResult) -> str:
    """Returns which of two groups reaches a target sooner, how surely, and why, such as "CER 10 %:
    batch_8 is faster: batch_64 takes 1.63 times as long (95 % interval 1.20 to 2.21; ...".
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
    if variation is None:
        low, high = (round(100 * share) for share in SEEDS_ALONE)
        return f"seeds alone make such a time vary by {low} to {high} % (CV in published logs)"
    return f"seeds alone make such a time vary by {100 * variation:.2g} % here (CV)"


def of_single_runs(sizes: Sequence[int], variation: float | None = None) -> str:
    """Returns a caveat for ratios that rest on a single run, or "" if there are none."""
    if min(sizes, default=0) != 1 or len(sizes) < 2:
        return ""
    which = "each is of one run (n = 1)" if max(sizes) == 1 else "some are of one run (n = 1)"
    return f"{which}: {one_run_each(variation)}"


def spread_at_hand(results: Iterable[GroupResult]) -> float | None:
    """Returns the largest coefficient of variation over seeds of these groups, or None."""
    known = [one.statistics.coefficient_of_variation for one in results]
    return max((one for one in known if one), default=None)


def reading_warning(first: GroupResult, other: GroupResult) -> str | None:
    """Returns a warning if late evaluations bias the ratio by 2 % or more, else None."""
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
