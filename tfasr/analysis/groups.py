"""Which runs belong together: runs of one configuration, whatever their seeds."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfasr.analysis.report import Report, RunAnalysis
from tfasr.checked_files import read_object, read_text
from tfasr.run_files import EXPERIMENT_FILE, RECORDER_FILE
from tfasr.tta.brackets import Bracket
from tfasr.tta.decomposition import Decomposition, decompose
from tfasr.tta.group_comparison import GroupComparison, adjusted, compare_groups
from tfasr.tta.groups import GroupStatistics, group_statistics
from tfasr.tta.run import Run
from tfasr.tta.targets import Target

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
    """Returns what runs of one group have in common, or None where the run does not say.

    That is the configuration as used without its seeds, what makes results comparable, and the
    batch size, optimizer and workers that the ledger states. A run that was started from Python
    has no gin text: its experiment's values serve, or what a recorder was told.
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
    """Returns what a group of runs is called: what its runs' names begin with."""
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
    """Returns for each run the number of its colour: one for each group."""
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
