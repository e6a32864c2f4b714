"""Finds and analyses a report's runs, and groups those that differ only in their seeds.

`load_report` turns paths into a `tfasr.reports.numbers.Report`: it finds the logs,
reads the targets that the runs set, and analyses each run, in several processes if there
are many. `group_results` then compares the groups: the first one named is the baseline,
with which all others are compared. `finding` says in words what came out.
"""

import gc
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tfasr.display.table import REFUSED
from tfasr.errors import UsageError
from tfasr.kit.files import (
    EVENTS_FILE,
    EXPERIMENT_FILE,
    RECORDER_FILE,
    read_object,
    read_text,
)
from tfasr.kit.process import end_with, usable_cores
from tfasr.kit.registry import load_plugin, loaded_plugins
from tfasr.ledger.declared import (
    declared_plan,
    experiment_folders,
    sealed_folder,
    study_sentences,
)
from tfasr.ledger.schema import Cluster
from tfasr.reports.charges import Machines, charges_of
from tfasr.reports.numbers import (
    Differences,
    Question,
    Report,
    RunAnalysis,
    analyse_run,
    difference_text,
    distinct_names,
    make_report,
    merged_targets,
    target_label,
)
from tfasr.tta.comparison import (
    TEST_NAMES,
    GroupComparison,
    adjusted,
    compare,
    decide,
)
from tfasr.tta.decomposition import FACTORS, Decomposition, decompose
from tfasr.tta.groups import GroupStatistics, group_statistics
from tfasr.tta.metrics import Metrics, Target, check_target, hardest
from tfasr.tta.policies import PAPER, Bracket
from tfasr.tta.published import find_logs, load_log
from tfasr.tta.ranks import PAIRS
from tfasr.tta.run import Run, read_metrics, read_targets

# Left out at the end of run names' common start, such as "-seed_1" of an4-seed_10 and
# an4-seed_11.
_TAIL = re.compile(r"[-_./ ]+((seed|run|result|study|s|r)[-_]?\d*)?$")
# What to do about a damaged file of settings.
_ALONE = "Delete the file; the run is then a separate group."
# Config lines that don't separate groups: seeds, and defaults that an older tfasr did
# not write.
_PASSED_OVER = re.compile(
    r'^[\w./@]*seed\s*=|^"seed":|.*\b(evaluations_per_epoch = 1|evaluation_utterances = 0)$'
)


@dataclass(frozen=True)
class GroupResult:
    """A group of runs at one target, compared with the report's first group.

    It has many fields because tables, figures and JSON each show other ones.

    Attributes:
        group: the group's name.
        target: metric and value.
        label: the target as text, such as "CER 10 %".
        members: indices of the group's runs in the report.
        brackets: one for each of these runs.
        statistics: of the times of these runs.
        comparison: with the first group, p adjusted for all comparisons of the report.
            None for the first group, and for a group that can't be compared with it.
        decomposition: factors of its geometric mean time over the first group's, for
            the runs that met the target.
        disturbed: runs from which the machine took much, each with the part, such as
            "seed_2 (40 %)".
        differs: what differs from the first group's runs, if that makes a comparison
            doubtful.
    """

    group: str
    target: Target
    label: str
    members: list[int]
    brackets: list[Bracket]
    statistics: GroupStatistics
    comparison: GroupComparison | None
    decomposition: Decomposition | None
    disturbed: tuple[str, ...] = ()
    differs: Differences = field(default_factory=dict)


# For each target, the result of each group, the first group first.
Results = Sequence[Sequence[GroupResult]]


def configuration(run: Run) -> str | None:
    """Returns the settings shared by the runs of a group, without seeds.

    Runs whose settings are equal as text are one group. None if unknown, as for most
    logs of other programs.
    """
    text = run.operative_config or run.config or _settings(run.path)
    if text is None:
        return None

    lines = [line for line in text.splitlines() if not _PASSED_OVER.match(line.strip())]
    facts = [
        run.fact("global_batch_size"),
        run.fact("opt_name"),
        run.fact("opt_base_learning_rate"),
    ]

    # Other sub-word units: another group, but comparable.
    units = run.fact("units")
    if units:
        facts.append(units)

    # Flags set the workers, so no gin file states them.
    cluster = run.timeline.last(Cluster)
    if cluster is not None:
        facts.append(
            {"gradient_bytes": cluster.gradient_bytes, "workers": cluster.workers}
        )

    return json.dumps([lines, facts, run.comparability], sort_keys=True, default=str)


def _settings(path: Path) -> str | None:
    """Returns the configuration of a run that saved no gin.

    It is the run's experiment, or else the config that its recorder was given; None if
    it has neither.
    """
    experiment = path / EXPERIMENT_FILE
    if experiment.is_file():
        return read_text(experiment, _ALONE)

    # A recorder's facts are the same for any model: only the user's config
    # distinguishes runs.
    recorder = path / RECORDER_FILE
    if recorder.is_file() and read_object(recorder, "Leave the run out.").get("config"):
        return read_text(recorder, _ALONE)

    return None


def group_name(names: Sequence[str]) -> str:
    """Returns the common start of the names of a group's runs.

    >>> group_name(["an4-seed_10", "an4-seed_11"]), group_name(["fast", "slow"])
    ('an4', 'fast and 1 more')
    """
    if len(names) == 1:
        return names[0]

    common = os.path.commonprefix(list(names)).rstrip("-_./ ")
    common = _TAIL.sub("", common) or common

    return common or f"{names[0]} and {len(names) - 1} more"


def named_groups(
    runs: Sequence[RunAnalysis], configurations: Sequence[str | None]
) -> list[RunAnalysis]:
    """Returns the runs with their groups' names.

    Runs of equal configurations are a group; a run whose configuration is None stands
    alone. Groups whose names would be equal get apostrophes.
    """
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
    """Returns for each run the number of its colour, which its group shares.

    Numbers begin at 0, in the order of the groups; `run_colour` makes a colour of them.
    """
    numbers: dict[str, int] = {}
    return [numbers.setdefault(run.group, len(numbers)) for run in report.runs]


def group_results(report: Report) -> list[list[GroupResult]]:
    """Returns a result per group for each target of a report, in the order of the groups.

    p-values are adjusted for all comparisons of the report. It takes long for many
    runs: pass the results on instead of computing them again.
    """
    members = group_members(report.runs)
    results = [
        _results(report, members, place, target)
        for place, target in enumerate(report.targets)
    ]

    compared = [
        result.comparison
        for row in results
        for result in row
        if result.comparison is not None
    ]
    tests = iter(adjusted(compared))

    for row in results:
        for place, result in enumerate(row):
            if result.comparison is not None:
                row[place] = replace(result, comparison=next(tests))

    return results


def _results(
    report: Report, members: dict[str, list[int]], index: int, target: Target
) -> list[GroupResult]:
    """Returns the groups' results for one target, without adjusted p-values.

    Args:
        report: the runs.
        members: the indices of each group's runs; the first group is the baseline.
        index: the target's place in the report.
        target: metric and value.
    """
    first: list[int] = next(iter(members.values()))
    results: list[GroupResult] = []

    for group, runs in members.items():
        brackets = [report.runs[run].results[index].bracket for run in runs]
        differing = (report.differences[run] for run in runs)

        comparison = None
        factors = None
        if runs is not first and not any(map(report.refused, runs)):
            comparison = _compared(report, first, runs, index)
            factors = _decomposition(report, first, runs, index)

        results.append(
            GroupResult(
                group=group,
                target=target,
                label=target_label(*target, report.metrics),
                members=runs,
                brackets=brackets,
                statistics=group_statistics(brackets),
                comparison=comparison,
                decomposition=factors,
                disturbed=_disturbed(report, runs),
                differs=next(filter(None, differing), {}),
            )
        )

    return results


def _disturbed(report: Report, runs: Sequence[int]) -> tuple[str, ...]:
    """Returns the names of runs from which the machine took much, each with its part.

    The part is what the machine took of the processor time that the run's steps could
    have used.
    """
    names = []
    for index in runs:
        run = report.runs[index]
        if run.host is not None and run.host.disturbed:
            names.append(f"{run.name} ({100 * (1 - run.host.share):.0f} %)")

    return tuple(names)


def _compared(
    report: Report, first: Sequence[int], other: Sequence[int], target: int
) -> GroupComparison:
    """Returns the test of two groups, which are lists of indices of runs.

    A study that decided by looks has been tested already: its report repeats that
    verdict and tests nothing else.
    """
    question = report.question
    if question.test == PAIRS:
        first, other = _equal_seeds(report, first, other)

    groups = [
        [report.runs[run].results[target].bracket for run in runs]
        for runs in (first, other)
    ]
    if question.looks_level is None:
        return compare(*groups, question.test)

    decision = decide(*groups, test=question.test, level=question.looks_level)
    if decision.comparison is not None and report.targets[target] == question.decided:
        return decision.comparison

    # Only what the study declared is tested.
    untested = decision.comparison or compare(*groups)
    return replace(untested, p_value=None, adjusted_p=None)


def _equal_seeds(
    report: Report, first: Sequence[int], second: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Pairs two groups' runs by seed; returns the paired runs of each group.

    Runs without a seed, and those whose seed the other group lacks, are left out.
    """
    firsts = _by_seed(report, first)
    seconds = _by_seed(report, second)
    pairs = [
        pair
        for seed in sorted(firsts.keys() & seconds.keys())
        for pair in zip(firsts[seed], seconds[seed], strict=False)
    ]

    return [run for run, _ in pairs], [run for _, run in pairs]


def _by_seed(report: Report, runs: Sequence[int]) -> dict[int, list[int]]:
    """Returns the runs of each seed, in their order."""
    by_seed: dict[int, list[int]] = {}
    for run in runs:
        seed = report.runs[run].facts["seed"]
        if isinstance(seed, int):
            by_seed.setdefault(seed, []).append(run)

    return by_seed


def _decomposition(
    report: Report, first: Sequence[int], other: Sequence[int], target: int
) -> Decomposition | None:
    """Returns the factors of the second group's time over the first's.

    None if a group has no run that reached the target, or a log without steps.
    """
    parts = []
    never = []

    for group in (first, other):
        results = [report.runs[run].results[target] for run in group]
        reached = [result.parts for result in results if result.tta.reached]
        if not reached or not all(part and part.total_s > 0 for part in reached):
            return None

        parts.append(reached)
        never.append(len(group) - len(reached))

    return decompose(*parts, never=tuple(never))


# Range of coefficients of variation of times to accuracy over seeds, in published logs.
SEEDS_ALONE = (0.03, 0.20)
# A ratio within 2 % of another one, as a logarithm, is not mentioned in a sentence.
_WORTH_NAMING = math.log(1.02)
# Two clocks whose ratios differ by 0.5 % or more need a word, or the numbers of a
# sentence would seem to contradict each other.
_OTHER_CLOCK = math.log(1.005)
# The most disturbed runs that a verdict names; the others are counted.
_NAMED = 4


def finding(first: GroupResult, other: GroupResult) -> str:
    """Returns which of two groups reaches a target sooner, how surely, and why.

    The verdict has one ratio, with the interval that belongs to it. Ratios of other
    times are details, in separate sentences.
    """
    unlike = ""
    if other.differs:
        unlike = f": they differ in {difference_text(other.differs)}"

    if other.comparison is None:
        return (
            f"{other.label}: the comparison of {other.group} with {first.group} is "
            f"{REFUSED}{unlike}."
        )

    text = f"{other.label}: {_answer(first, other)}{unlike}.{_by_rule(other)}"
    if other.decomposition is None:
        return text

    return text + _why(other.group, other.decomposition, other.comparison.ratio_by_rule)


def one_run_each(variation: float | None = None) -> str:
    """Returns how much seeds alone make a time vary.

    Args:
        variation: the coefficient of variation of the runs at hand; None for the range
            that published logs show.
    """
    if variation is None:
        low, high = (round(100 * share) for share in SEEDS_ALONE)

        return (
            f"seeds alone make such a time vary by {low} to {high} % "
            "(CV in published logs)"
        )

    return f"seeds alone make such a time vary by {100 * variation:.2g} % here (CV)"


def of_single_runs(sizes: Sequence[int], variation: float | None = None) -> str:
    """Returns a caveat for ratios that rest on a single run, or "" if no ratio does.

    Args:
        sizes: the number of runs of each group that is compared.
        variation: see `one_run_each`.
    """
    if min(sizes, default=0) != 1 or len(sizes) < 2:
        return ""

    which = "some are of one run (n = 1)"
    if max(sizes) == 1:
        which = "each is of one run (n = 1)"

    return f"{which}: {one_run_each(variation)}"


def spread_at_hand(results: Iterable[GroupResult]) -> float | None:
    """Returns the largest coefficient of variation over seeds of these groups, or None.

    None if no group has several runs that reached the target.
    """
    variations = [result.statistics.coefficient_of_variation for result in results]
    return max(filter(None, variations), default=None)


def _answer(first: GroupResult, other: GroupResult) -> str:
    """Returns which group is faster, by what ratio, and how it was tested.

    Without a test there is no winner, only how long each takes; without a ratio, only
    how many runs of each reached the target.
    """
    compared = other.comparison
    text = ""
    if compared.adjusted_p is not None:
        winners = {
            "first": f"{first.group} is faster: ",
            "second": f"{other.group} is faster: ",
        }
        text = winners.get(compared.sooner, "undecided: ")

    if compared.ratio is None:
        text += f"{_arrived(first)}, {_arrived(other)}"
    else:
        text += f"{other.group} takes {compared.takes(first.group)}"

    return f"{text}; {_tested(first, other)}{_cautions(first, other)}"


def _tested(first: GroupResult, other: GroupResult) -> str:
    """Returns the test with its p-value and the numbers of runs, or why there was none.

    With several comparisons, p is also given as adjusted for all of them. If even the
    clearest outcome of so few runs could not decide, the text says so.
    """
    compared = other.comparison
    sizes = f"n = {first.statistics.n} and {other.statistics.n}"
    if compared.pairs is not None:
        sizes += f", {compared.pairs} pairs of equal seeds"

    if compared.test is None:
        return f"too few runs for an interval or a test ({sizes})"
    if compared.p_value is None:
        return f"not tested again, as the study decided by looks ({sizes})"

    text = f"{TEST_NAMES[compared.test]} p = {compared.p_value:.2g} ({sizes})"
    if compared.comparisons > 1:
        text += f", {compared.adjusted_p:.2g} adjusted for {compared.comparisons} comparisons"

    if not compared.decidable:
        text += (
            f"; so few runs can't decide, as p can't be below {compared.least_p:.2g}: "
            "take more runs or fewer comparisons"
        )

    return text


def _cautions(first: GroupResult, other: GroupResult) -> str:
    """Returns warnings about the ratio for its readers, or "".

    They name a single run per group, groups whose runs are of two kinds, and runs from
    which the machine took processors.
    """
    compared = other.comparison
    text = ""
    if compared.test is None and min(first.statistics.n, other.statistics.n) == 1:
        text += f"; {one_run_each(spread_at_hand([first, other]))}"

    for group in (first, other):
        if group.statistics.two_kinds:
            text += f"; some runs of {group.group} are far slower than its others"

    text += compared.explained
    disturbed = [*first.disturbed, *other.disturbed]
    if disturbed:
        text += (
            f"; the machine took processors from {some_of(disturbed, _NAMED)}: "
            "tfasr doctor shows what takes them now"
        )

    return text


def some_of(names: Sequence[str], most: int) -> str:
    """Returns the first names of many in one phrase, and how many more there are.

    >>> some_of(["a", "b", "c"], 2), some_of(["a"], 2)
    ('a, b and 1 more', 'a')
    """
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"

    return text


def _by_rule(other: GroupResult) -> str:
    """Returns a sentence with the ratio of the rule's times, or "" if it is about the same."""
    compared = other.comparison
    if compared.ratio is None or compared.ratio_by_rule is None:
        return ""
    if abs(math.log(compared.ratio_by_rule / compared.ratio)) < _WORTH_NAMING:
        return ""

    ratio = f"{compared.ratio_by_rule:.{compared.digits}f}"
    return f" In detail: of the times at which the rule was met, the ratio is {ratio}."


def _arrived(group: GroupResult) -> str:
    """Returns how many runs of a group reached the target, and their median."""
    of = group.statistics
    reached = f"{of.reached} of {of.n} runs of {group.group} reached it"
    if of.median_s is None:
        return reached

    return f"{reached}, median {of.median_s / 60:.3g} min"


def _why(group: str, product: Decomposition, ratio: float | None) -> str:
    """Returns the two factors that explain most of a ratio: one for, one against it.

    Factors below 2 % are not named. The factors are of times from the model's
    creation; if ``ratio``, by the report's rule, is another one, the text says so.
    """
    # Positive logarithms make the slower group slower, whichever it is.
    direction = 1 if product.ratio >= 1 else -1
    logs = {
        name: direction * math.log(factor) for name, factor in product.factors.items()
    }
    most = max(logs, key=logs.get)
    least = min(logs, key=logs.get)

    reasons = []
    if logs[most] > _WORTH_NAMING:
        reasons.append(_reason(most, product))
    if -logs[least] > _WORTH_NAMING:
        reasons.append(_reason(least, product))
    if not reasons:
        return ""

    where = "The reason: "
    if any(product.never):
        where = (
            f"By the geometric means of the {product.runs[0]} and {product.runs[1]} runs "
            "that reached it, "
        )
    elif max(product.runs) > 1:
        where = (
            "By geometric means of times since the model's creation "
            f"({product.ratio:.2f}), "
        )
    elif ratio is not None and abs(math.log(product.ratio / ratio)) >= _OTHER_CLOCK:
        where += f"counted from the model's creation (ratio {product.ratio:.2f}), "

    return f" {where}{group} {', but '.join(reasons)}."


def _reason(name: str, product: Decomposition) -> str:
    """Returns a factor in words; amounts say more than the factor where known."""
    if name == "statistical_efficiency":
        return f"needs {product.utterances_ratio:.2f} times the utterances"

    disturbed = abs(math.log(product.factors["host"])) > _WORTH_NAMING
    if name == "hardware_throughput" and not disturbed:
        return f"has {product.throughput_ratio:.2f} times the steady throughput"

    return f"takes {product.factors[name]:.2f} times as long because of {FACTORS[name]}"


# How many folders deep runs are looked for.
DEEPEST = 3


def run_folders(folder: Path, deepest: int = DEEPEST) -> Iterator[Path]:
    """Yields the run folders in a folder, sorted by name.

    Links to folders are not followed, since they may lead back to a folder above.
    """
    if (folder / EVENTS_FILE).is_file():
        yield folder
    elif deepest:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield from run_folders(path, deepest - 1)


# Runs from which on several processes are faster, although each takes a second to start.
_FEWEST_FOR_PROCESSES = 64
# More would wait for the disk.
_MOST_PROCESSES = 8
# Runs that a process takes at a time, so that the last ones don't all wait for one.
_RUNS_AT_ONCE = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A run to read and analyse, as it is sent to another process.

    Attributes:
        path: the log.
        name: how the report calls the run.
        folder: the name of the path given to the report: the log, or a folder of logs.
        machines: how to compute cost and energy; None to leave both out.
        question: the targets, and how to measure the times to them.
        optional: whether a log that can't be read is left out, rather than ending the
            report.
        loaded: the run, if it is already loaded.
    """

    path: Path
    name: str
    folder: str
    machines: Machines | None
    question: Question
    optional: bool
    loaded: Run | None = None


def analyse(task: Task) -> tuple[RunAnalysis, str | None] | str:
    """Returns a log's analysis and `configuration`, or why an optional log can't be read.

    It runs in the processes of `analyse_all`, so its argument and result are pickled.

    Raises: UsageError: if a log that was named itself can't be read.
    """
    try:
        run = task.loaded or load_log(task.path, task.name)
        analysis = analyse_run(run, task.question)
        charges = None

        if task.machines is not None:
            machine = task.machines.of(run, task.folder)
            until_s = [result.until_s for result in analysis.results]
            charges = charges_of(run, machine, until_s)

        return replace(analysis, name=task.name, charges=charges), configuration(run)
    except UsageError as error:
        if not task.optional:
            raise

        return str(error)


def analyse_all(tasks: Sequence[Task], processes: int = 1) -> list[Any]:
    """Returns what `analyse` returns for each task, in their order.

    If ``processes`` > 1, each imports the main module again.
    """
    if processes > 1:
        try:
            # A fork would inherit the locks of the parent's threads.
            context = get_context("spawn")
            arguments = (os.getpid(), loaded_plugins())

            with ProcessPoolExecutor(processes, context, _begin, arguments) as pool:
                return list(pool.map(analyse, tasks, chunksize=_RUNS_AT_ONCE))
        except BrokenExecutor:
            _log.warning(
                "The processes that read the runs died; this one reads all runs itself."
            )

    return [analyse(task) for task in tasks]


def _begin(parent: int, plugin_names: Sequence[str]) -> None:
    """Prepares a process that reads runs, which ends with the process ``parent``.

    Its queue won't show that the parent died, as these processes hold both ends of it.
    """
    end_with(parent)
    # A plug-in may register the policy that a task uses.
    for name in plugin_names:
        load_plugin(name)

    # A ledger has a hundred thousand objects and no cycles, so look for cycles rarely.
    gc.set_threshold(200_000, 20, 20)


def load_report(
    sources: Sequence[str | Path | Run],
    question: Question,
    *,
    machines: Machines | None = None,
    many: bool = False,
) -> Report:
    """Returns the report on runs; a run given as a path is freed as soon as it is analysed.

    Args:
        sources: run folders, published logs, folders of them, or loaded runs.
        question: without targets, those that the runs set themselves are taken.
        machines: how to compute cost and energy; None to leave both out.
        many: whether many runs may be read by several processes.

    Raises:
        UsageError: if there is no run, or a run that was named itself can't be read.
            Runs of a folder are then left out, and a note says why.
    """
    loaded = {
        source.path.resolve(): source for source in sources if isinstance(source, Run)
    }
    logs, notes = _logs(sources)
    question = _with_targets(question, [log for log, _ in logs], loaded)
    question = _as_declared(question, [source for _, source in logs])
    tasks = [
        Task(
            path=log,
            name=name,
            folder=source.resolve().name,
            machines=machines,
            question=question,
            optional=log != source,
            loaded=loaded.get(log.resolve()),
        )
        for (log, source), name in zip(logs, _names(logs, loaded), strict=True)
    ]

    if machines is not None:
        machines.check_all_used(
            [name for task in tasks for name in (task.name, task.folder)]
        )

    processes = 1
    if many and len(tasks) >= _FEWEST_FOR_PROCESSES:
        processes = min(_MOST_PROCESSES, usable_cores())

    runs = []
    configurations = []
    results = analyse_all(tasks, processes)

    for (log, source), result in zip(logs, results, strict=True):
        if isinstance(result, str):
            notes.append(f"{log} is left out. {result}")
            continue

        analysis, settings = result
        runs.append(analysis)
        # A folder of runs is a group; single runs are grouped by their configuration.
        if log != source:
            settings = str(source.resolve())

        configurations.append(settings)

    if not runs:
        raise UsageError(" ".join(notes))

    return make_report(named_groups(runs, configurations), question, notes=notes)


def _with_targets(
    question: Question, logs: Sequence[Path], loaded: dict[Path, Run]
) -> Question:
    """Returns the question with targets, and with the metrics that the runs declare.

    Targets must be known before any run is analysed, and their metrics before that.
    """
    metrics = Metrics()
    for log in logs:
        metrics.declare(read_metrics(log), log)

    wanted = [check_target(*target, metrics) for target in question.targets]
    if not wanted:
        of_runs = []
        for log in logs:
            run = loaded.get(log.resolve())
            if run is None:
                of_runs.append(read_targets(log))
            else:
                of_runs.append(run.targets)

        wanted = merged_targets(of_runs, metrics)

    return replace(question, targets=tuple(dict.fromkeys(wanted)), metrics=metrics)


def _as_declared(question: Question, sources: Sequence[Path]) -> Question:
    """Returns the question with the test and the looks that the runs' study declared.

    It stays as it is if the runs are of several studies or of none, or if their study
    declared no looks.
    """
    plan = {}
    folders = {sealed_folder(source) for source in sources}
    if len(folders) == 1 and None not in folders:
        plan = declared_plan(folders.pop())

    if not plan.get("until") or not question.targets:
        return question

    # The study's verdict holds only for the times that it measured itself.
    study = plan["study"]
    windows = {
        trained["target_window"] or PAPER.window for trained in plan["trained"].values()
    }
    decided = None

    if question.policy.name == study["policy"] and windows == {question.own_window}:
        decided = hardest(question.targets, question.metrics)

    return replace(
        question, test=study["test"], looks_level=study["level"], decided=decided
    )


def _logs(
    sources: Sequence[str | Path | Run],
) -> tuple[list[tuple[Path, Path]], list[str]]:
    """Returns each log once, with the path that named it, and notes for readers.

    The notes say what a study declared, and how many runs were named twice.
    """
    named = []
    for source in sources:
        if isinstance(source, Run):
            named.append((source.path, source.path))
            continue

        # A study has several.
        for path in experiment_folders(Path(source)) or [Path(source)]:
            named += [(log, path) for log in find_logs(path)]

    once: dict[Path, tuple[Path, Path]] = {}
    for log, path in named:
        once.setdefault(log.resolve(), (log, path))

    logs = list(once.values())
    if not logs:
        raise UsageError(
            "A report must be given at least one run folder. Received: none."
        )

    studies = dict.fromkeys(filter(None, (sealed_folder(path) for _, path in logs)))
    notes = [sentence for folder in studies for sentence in study_sentences(folder)]
    if len(logs) < len(named):
        notes.append(
            f"{len(named) - len(logs)} run folders were named twice and are shown once."
        )
        _log.warning(notes[-1])

    return logs, notes


def _names(logs: Sequence[tuple[Path, Path]], loaded: dict[Path, Run]) -> list[str]:
    """Returns a distinct name for each log, with its group's folder if it has one.

    Args:
        logs: each log, and the path that named it.
        loaded: the runs that are loaded already, by their resolved paths.
    """
    paths = []
    names = []

    for log, source in logs:
        path = log
        if log.is_file():
            path = log.with_suffix("")

        paths.append(path)
        run = loaded.get(log.resolve())
        if run is not None:
            names.append(run.name)
        elif log == source:
            names.append(path.resolve().name)
        else:
            names.append(f"{source.resolve().name}/{path.name}")

    if len(set(names)) == len(names):
        return names

    return distinct_names(paths)
