"""Finds and analyses a report's runs, and groups those that differ only in their seeds."""

import gc
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tfasr.display.table import REFUSED
from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE, EXPERIMENT_FILE, RECORDER_FILE, read_object, read_text
from tfasr.kit.process import end_with, usable_cores
from tfasr.kit.registry import load_plugin, loaded_plugins
from tfasr.ledger.declared import experiment_folders, sealed_folder, study_sentence
from tfasr.reports.charges import Machines, charges_of
from tfasr.reports.numbers import (
    Question,
    Report,
    RunAnalysis,
    analyse_run,
    distinct_names,
    make_report,
    merged_targets,
    target_label,
)
from tfasr.tta.comparison import (
    TEST_NAMES,
    GroupComparison,
    adjusted,
    compare_groups,
    compare_pairs,
    interval_text,
)
from tfasr.tta.decomposition import FACTORS, Decomposition, decompose
from tfasr.tta.groups import FEWEST_FOR_INTERVAL, FEWEST_FOR_TEST, GroupStatistics, group_statistics
from tfasr.tta.metrics import Target, check_target, declare, declared
from tfasr.tta.policies import Bracket
from tfasr.tta.published import find_logs, load_log
from tfasr.tta.run import Run, read_metrics, read_targets

# Left out at the end of run names' common start, such as "-seed_1" of an4-seed_10 and an4-seed_11.
_TAIL = re.compile(r"[-_./ ]+((seed|run|result|study|s|r)[-_]?\d*)?$")
_ALONE = "Delete the file; the run is then a group of its own."
# Config lines that don't separate groups: seeds, and defaults that an older tfasr did not write.
_PASSED_OVER = re.compile(
    r'^[\w./@]*seed\s*=|^"seed":|.*\b(evaluations_per_epoch = 1|evaluation_utterances = 0)$'
)


@dataclass(frozen=True)
class GroupResult:
    group: str  # the group's name
    target: Target  # metric and value
    members: list[int]  # indices of the group's runs in the report
    brackets: list[Bracket]  # one for each of these runs
    statistics: GroupStatistics
    # With the first group, p adjusted for all comparisons of the report. None for the first group,
    # and for a group that can't be compared with it
    comparison: GroupComparison | None
    # Factors of its geometric mean time over the first group's, for the runs that met the target
    decomposition: Decomposition | None


Results = Sequence[Sequence[GroupResult]]  # for each target, the result of each group


def configuration(run: Run) -> str | None:
    """Returns the settings shared by the runs of a group, without seeds, or None if unknown."""
    text = run.operative_config or run.config or _settings(run.path)
    if text is None:
        return None
    lines = [line for line in text.splitlines() if not _PASSED_OVER.match(line.strip())]
    facts = [run.fact(key) for key in ("global_batch_size", "opt_name", "opt_base_learning_rate")]
    if units := run.fact("units"):  # other sub-word units: another group, but comparable
        facts.append(units)
    cluster = run.fact("cluster")
    if isinstance(cluster, dict):  # flags set the workers, so no gin file states them
        facts.append({name: cluster.get(name) for name in ("gradient_bytes", "workers")})
    return json.dumps([lines, facts, run.comparability], sort_keys=True, default=str)


def _settings(path: Path) -> str | None:
    experiment, recorder = path / EXPERIMENT_FILE, path / RECORDER_FILE
    if experiment.is_file():
        return read_text(experiment, _ALONE)
    # A recorder's facts are the same for any model: only the user's config tells runs apart.
    if recorder.is_file() and read_object(recorder, "Leave the run out.").get("config"):
        return read_text(recorder, _ALONE)
    return None


def group_name(names: Sequence[str]) -> str:
    """Returns the common start of the names of a group's runs."""
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
    for indices in members.values():
        name = group_name([runs[index].name for index in indices])
        while name in names.values():
            name += "'"
        names |= dict.fromkeys(indices, name)
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
    # A page asks for these several times, so they are cached in the report.
    cache = vars(report)
    if "_group_results" not in cache:
        members = group_members(report.runs)
        results = [_results(report, members, n, target) for n, target in enumerate(report.targets)]
        compared = [result for row in results for result in row if result.comparison is not None]
        tests = iter(adjusted([result.comparison for result in compared]))
        cache["_group_results"] = [
            [
                result if result.comparison is None else replace(result, comparison=next(tests))
                for result in row
            ]
            for row in results
        ]
    return cache["_group_results"]


def _results(
    report: Report, members: dict[str, list[int]], index: int, target: Target
) -> list[GroupResult]:
    first: list[int] = next(iter(members.values()))
    results: list[GroupResult] = []
    for group, runs in members.items():
        brackets = [report.runs[run].results[index].bracket for run in runs]
        statistics, comparison, factors = group_statistics(brackets), None, None
        if runs is not first and not any(map(report.refused, runs)):
            comparison = _compared(report, first, runs, index)
            factors = _decomposition(report, first, runs, index)
        results.append(GroupResult(group, target, runs, brackets, statistics, comparison, factors))
    return results


def _compared(
    report: Report, first: Sequence[int], other: Sequence[int], target: int
) -> GroupComparison:
    def brackets(runs: Sequence[int]) -> list[Bracket]:
        return [report.runs[run].results[target].bracket for run in runs]

    partners, test = map(brackets, _equal_seeds(report, first, other)), report.question.test
    if test != "groups":
        return compare_pairs(*partners, test)
    compared, by_pairs = compare_groups(brackets(first), brackets(other)), compare_pairs(*partners)
    return compared if by_pairs.p_value is None else replace(compared, by_pairs=by_pairs)


def _equal_seeds(
    report: Report, first: Sequence[int], second: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Pairs two groups' runs by seed; returns the paired runs of each group."""
    by_seed: tuple[dict[int, list[int]], ...] = ({}, {})
    for of_seed, runs in zip(by_seed, (first, second), strict=True):
        for run in runs:
            if isinstance(seed := report.runs[run].facts["seed"], int):
                of_seed.setdefault(seed, []).append(run)
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    pairs = [p for seed in seeds for p in zip(*(runs[seed] for runs in by_seed), strict=False)]
    return [run for run, _ in pairs], [run for _, run in pairs]


def _decomposition(
    report: Report, first: Sequence[int], other: Sequence[int], target: int
) -> Decomposition | None:
    parts, never = [], []
    for group in (first, other):
        results = [report.runs[run].results[target] for run in group]
        parts.append([result.parts for result in results if result.tta.reached])
        never.append(len(group) - len(parts[-1]))
    complete = all(parts) and all(part and part.total_s > 0 for part in [*parts[0], *parts[1]])
    return decompose(*parts, never=tuple(never)) if complete else None


# Range of coefficients of variation of times to accuracy over seeds, in published logs
SEEDS_ALONE = (0.03, 0.20)
_WORTH_NAMING = math.log(1.02)
_OTHER_CLOCK = math.log(1.005)


def finding(first: GroupResult, other: GroupResult) -> str:
    """Returns which of two groups reaches a target sooner, how surely, and why."""
    label = target_label(*other.target)
    if other.comparison is None:
        return f"{label}: the comparison of {other.group} with {first.group} is {REFUSED}."
    text = f"{label}: {_answer(first, other)}."
    ratio, product = other.comparison.ratio, other.decomposition
    return text + ("" if product is None else _why(other.group, product, ratio))


def one_run_each(variation: float | None = None) -> str:
    if variation is None:
        low, high = (round(100 * share) for share in SEEDS_ALONE)
        return f"seeds alone make such a time vary by {low} to {high} % (CV in published logs)"
    return f"seeds alone make such a time vary by {100 * variation:.2g} % here (CV)"


def of_single_runs(sizes: Sequence[int], variation: float | None = None) -> str:
    """Returns a caveat for ratios that rest on a single run, or "" if no ratio does."""
    if min(sizes, default=0) != 1 or len(sizes) < 2:
        return ""
    which = "each is of one run (n = 1)" if max(sizes) == 1 else "some are of one run (n = 1)"
    return f"{which}: {one_run_each(variation)}"


def spread_at_hand(results: Iterable[GroupResult]) -> float | None:
    """Returns the largest coefficient of variation over seeds of these groups, or None."""
    variations = [result.statistics.coefficient_of_variation for result in results]
    return max((variation for variation in variations if variation), default=None)


def _answer(first: GroupResult, other: GroupResult) -> str:
    compared = other.comparison
    ratio = _ratio(compared.ratio, compared.digits)
    times = f"{other.group} takes {ratio} times as long as {first.group}{compared.crossing_text}"
    arrived = all(group.statistics.reached == group.statistics.n for group in (first, other))
    if compared.p_value is None and arrived:
        return f"{times} ({_few(first, other)})"
    verdict = ""
    if compared.adjusted_p is not None:
        winners = {"first": f"{first.group} is faster: ", "second": f"{other.group} is faster: "}
        verdict = winners.get(compared.sooner, "undecided: ")
    return f"{verdict}{_measured(first, other, times)}"


def _measured(first: GroupResult, other: GroupResult, times: str) -> str:
    compared = other.comparison
    if compared.interval is not None:
        name = TEST_NAMES[compared.test]
        text = f"{times} ({compared.interval_text}; {name} on logarithms, "
    elif compared.pairs is not None and compared.ratio_of_middles is not None:
        text = f"{times} ("
    else:
        text = f"{_arrived(first)}, {_arrived(other)}"
        if compared.ratio is not None:
            until_s = min(first.statistics.restriction_s, other.statistics.restriction_s)
            text += (
                f"; counting only the first {until_s / 60:.3g} min, which both groups ran for, "
                f"{other.group} takes on average {_ratio(compared.ratio)} times as long"
            )
        text += " ("
    if compared.p_value is None:
        return f"{text}{_few(first, other)})"
    sizes = f"n = {first.statistics.n} and {other.statistics.n}"
    sizes += "" if compared.pairs is None else f", {compared.pairs} pairs of equal seeds"
    return f"{text}{sizes}); {_tested(compared)}"


def _tested(compared: GroupComparison) -> str:
    named = "" if compared.test in ("welch", "paired_t") else f"{TEST_NAMES[compared.test]} "
    text = f"{named}p = {compared.p_value:.2g}"
    if compared.comparisons > 1:
        text += f", {compared.adjusted_p:.2g} adjusted for {compared.comparisons} comparisons"
    if not compared.decidable:
        text += f"; so few runs can't decide, as p can't be below {compared.least_p:.2g}: "
        text += "take more runs or fewer comparisons"
    if compared.test == "welch" and compared.permutation_p is not None:
        text += f"; permutation test p = {compared.permutation_p:.2g}"
    if (pairs := compared.by_pairs) is not None:
        text += f"; by {pairs.pairs} pairs of equal seeds, {TEST_NAMES[pairs.test]}, "
        text += "" if pairs.interval is None else f"{interval_text(*pairs.interval)}, "
        text += f"p = {pairs.p_value:.2g}"
    if compared.below_bracket:
        share = f"{100 * compared.bracket:.2g} % of the time to the target"
        text += f"; the gap is no larger than the time between evaluations, {share}"
    if compared.interpolated_interval is not None:
        ratio = _ratio(compared.interpolated_ratio, compared.digits)
        text += f"; second reading, interpolated between evaluations: {ratio} "
        text += f"({interval_text(*compared.interpolated_interval)})"
    return text


def _few(first: GroupResult, other: GroupResult) -> str:
    if other.comparison.pairs is not None:
        return f"too few pairs of equal seeds for a test: {other.comparison.pairs}"
    sizes = (first.statistics.n, other.statistics.n)
    if min(sizes) < FEWEST_FOR_INTERVAL:
        few = f"no significance possible: fewer than {FEWEST_FOR_INTERVAL} runs in a group"
        if min(sizes) > 1:
            return few
        seeds = one_run_each(spread_at_hand([first, other]))
        return f"{few}; n = {sizes[0]} and {sizes[1]}: {seeds}"
    if first.statistics.reached + other.statistics.reached < sum(sizes):
        return f"no test: a run never reached it, and fewer than {FEWEST_FOR_TEST} runs in a group"
    return "no interval: a run met the target at its first evaluation"


def _ratio(ratio: float | None, digits: int = 2) -> str:
    return "n/a" if ratio is None else f"{ratio:.{digits}f}"


def _arrived(group: GroupResult) -> str:
    of = group.statistics
    reached = f"{of.reached} of {of.n} runs of {group.group} reached it"
    return reached if of.median_s is None else f"{reached}, median {of.median_s / 60:.3g} min"


def _why(group: str, product: Decomposition, ratio: float | None) -> str:
    direction = 1 if product.ratio >= 1 else -1
    logs = {name: direction * math.log(factor) for name, factor in product.factors.items()}
    parts = [
        _reason(name, product)
        for name, sign in ((max(logs, key=logs.get), 1), (min(logs, key=logs.get), -1))
        if sign * logs[name] > _WORTH_NAMING
    ]
    if not parts:
        return ""
    where = "By geometric means, " if max(product.runs) > 1 else "The reason: "
    if any(product.never):
        arrived = f"{product.runs[0]} and {product.runs[1]}"
        where = f"By the geometric means of the {arrived} runs that reached it, "
    elif ratio is not None and abs(math.log(product.ratio / ratio)) >= _OTHER_CLOCK:
        where += f"counted from the model's creation (ratio {_ratio(product.ratio)}), "
    return f" {where}{group} {', but '.join(parts)}."


def _reason(name: str, product: Decomposition) -> str:
    if name == "statistical_efficiency":
        return f"needs {product.utterances_ratio:.2f} times the utterances"
    if name == "hardware_throughput":
        return f"has {product.throughput_ratio:.2f} times the steady throughput"
    return f"takes {product.factors[name]:.2f} times as long because of {FACTORS[name]}"


DEEPEST = 3  # how many folders deep runs are looked for


def run_folders(folder: Path, deepest: int = DEEPEST) -> Iterator[Path]:
    """Yields the run folders in a folder, sorted by name; links to folders are not followed."""
    if (folder / EVENTS_FILE).is_file():
        yield folder
    elif deepest:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield from run_folders(path, deepest - 1)


_FEWEST_FOR_PROCESSES = 64
_MOST_PROCESSES = 8
_RUNS_AT_ONCE = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    path: Path  # the log
    name: str  # how the report calls the run
    folder: str  # the name of the path given to the report: the log, or a folder of logs
    machines: Machines | None  # how to compute cost and energy; None to leave both out
    question: Question  # the targets, and how to measure the times to them
    optional: bool  # whether a log that cannot be read is left out, rather than ending the report
    loaded: Run | None = None  # the run, if it is already loaded


def analyse(task: Task) -> tuple[RunAnalysis, str | None] | str:
    """Returns a log's analysis and `configuration`, or why an optional log can't be read."""
    try:
        run = task.loaded or load_log(task.path, task.name)
        analysis = analyse_run(run, task.question)
        charges = None
        if task.machines is not None:
            machine = task.machines.of(run, task.folder)
            charges = charges_of(run, machine, [result.until_s for result in analysis.results])
        return replace(analysis, name=task.name, charges=charges), configuration(run)
    except UsageError as error:
        if not task.optional:
            raise
        return str(error)


def analyse_all(tasks: Sequence[Task], processes: int = 1) -> list[Any]:
    """Returns each task's result; if ``processes`` > 1, each imports the main module again."""
    if processes > 1:
        try:
            context = get_context("spawn")  # a fork would inherit the locks of the parent's threads
            arguments = os.getpid(), loaded_plugins(), declared()
            with ProcessPoolExecutor(processes, context, _begin, arguments) as pool:
                return list(pool.map(analyse, tasks, chunksize=_RUNS_AT_ONCE))
        except BrokenExecutor:
            _log.warning("The processes that read the runs died; this one reads all runs itself.")
    return [analyse(task) for task in tasks]


def _begin(parent: int, plugin_names: Sequence[str], metrics: dict[str, dict[str, Any]]) -> None:
    end_with(parent)  # its queue won't show if it died, as these processes hold both ends of it
    for name in plugin_names:  # a plug-in may register the policy that a task uses
        load_plugin(name)
    declare(metrics, "another run of the report")
    # A ledger has a hundred thousand objects and no cycles, so look for cycles rarely.
    gc.set_threshold(200_000, 20, 20)


def load_report(
    sources: Sequence[str | Path | Run],
    question: Question,
    *,
    machines: Machines | None = None,
    many: bool = False,
) -> Report:
    """Returns the report on runs; a run given as a path is freed as soon as it is analysed."""
    loaded = {source.path.resolve(): source for source in sources if isinstance(source, Run)}
    logs, notes = _logs(sources)
    # Targets must be known before any run is analysed, and their metrics before that.
    for log, _ in logs:
        declare(read_metrics(log), log)
    wanted = [check_target(*target) for target in question.targets] or merged_targets(
        loaded[log.resolve()].targets if log.resolve() in loaded else read_targets(log)
        for log, _ in logs
    )
    question = replace(question, targets=tuple(dict.fromkeys(wanted)))
    tasks = [
        Task(
            *(log, name, source.resolve().name, machines, question),
            optional=log != source,
            loaded=loaded.get(log.resolve()),
        )
        for (log, source), name in zip(logs, _names(logs, loaded), strict=True)
    ]
    if machines is not None:
        machines.check_all_used([name for task in tasks for name in (task.name, task.folder)])
    runs, configurations = [], []
    several = many and len(tasks) >= _FEWEST_FOR_PROCESSES
    results = analyse_all(tasks, min(_MOST_PROCESSES, usable_cores()) if several else 1)
    for (log, source), result in zip(logs, results, strict=True):
        if isinstance(result, str):
            notes.append(f"{log} is left out. {result}")
            continue
        runs.append(result[0])
        # A folder of runs is a group; single runs are grouped by their configuration.
        configurations.append(str(source.resolve()) if log != source else result[1])
    if not runs:
        raise UsageError(" ".join(notes))
    return make_report(named_groups(runs, configurations), question, notes=notes)


def _logs(sources: Sequence[str | Path | Run]) -> tuple[list[tuple[Path, Path]], list[str]]:
    named = []
    for source in sources:
        if isinstance(source, Run):
            named.append((source.path, source.path))
            continue
        folders = experiment_folders(Path(source)) or [Path(source)]  # a study has several
        named += [(log, path) for path in folders for log in find_logs(path)]
    logs = list({log.resolve(): (log, path) for log, path in reversed(named)}.values())[::-1]
    if not logs:
        raise UsageError("A report must be given at least one run folder. Received: none.")
    studies = dict.fromkeys(filter(None, (sealed_folder(path) for _, path in logs)))
    notes = [study_sentence(folder) for folder in studies]
    if len(logs) < len(named):
        notes.append(f"{len(named) - len(logs)} run folders were named twice and are shown once.")
        _log.warning(notes[-1])
    return logs, notes


def _names(logs: Sequence[tuple[Path, Path]], loaded: dict[Path, Run]) -> list[str]:
    paths = [log.with_suffix("") if log.is_file() else log for log, _ in logs]
    names = []
    for path, (log, source) in zip(paths, logs, strict=True):
        if log.resolve() in loaded:
            names.append(loaded[log.resolve()].name)
        else:
            group = "" if log == source else f"{source.resolve().name}/"
            names.append(group + (path.name if group else path.resolve().name))
    return names if len(set(names)) == len(names) else distinct_names(paths)
