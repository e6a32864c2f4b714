"""The first screen of a report: the verdict, what was measured, and a table in seconds.

The table of `summary` is shown first in every format. Its title is the verdict, in a sentence
without a p-value; its notes say what would decide an undecided comparison, on which
machine and corpus the runs were trained, and how seconds are counted. Tests, intervals
and reasons are in the tables that follow.
"""

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tfasr.display.table import NEVER, Column, Table, at, percent, plural, table_of
from tfasr.kit.files import GIN_GIVEN_FILE
from tfasr.kit.process import own_command
from tfasr.ledger.declared import sealed_folder
from tfasr.reports.groups import (
    GroupResult,
    Results,
    group_members,
    one_run_each,
    spread_at_hand,
)
from tfasr.reports.numbers import (
    Report,
    RunAnalysis,
    difference_text,
    median_of,
    metric_label,
    rule_of,
    target_label,
    time_unit,
    with_counts,
)
from tfasr.tta.comparison import GroupComparison
from tfasr.tta.groups import runs_to_detect
from tfasr.tta.metrics import Metrics, Target, hardest, metric_named
from tfasr.tta.ranks import least_p

# Wall clocks before 2001 are clocks that began at zero, as in logs without dates;
# milliseconds since 1970.
_EARLIEST_MS = 1e12
# More runs than this per group are not worth recommending to anyone.
_MOST_RUNS = 40
# Names of machines, corpora or groups in a sentence; the others are counted.
_NAMED = 2


@dataclass(frozen=True)
class Verdict:
    """Which group is faster, in words.

    Attributes:
        text: one sentence with both times and their ratio, or what is missing.
        why: for an undecided comparison, why it is; "" for all others.
        command: a shell command that would decide it; "" if no command would.
    """

    text: str
    why: str = ""
    command: str = ""


def verdict(report: Report, results: Results) -> Verdict:
    """Returns the report's answer about the hardest target that some run has reached.

    With two groups it compares them; with more, the fastest with the first, or the first
    with the runner-up if it is the fastest itself, because only comparisons with the first
    group are tested. Groups that can't be compared with the first are left out.

    Args:
        report: the runs.
        results: of `group_results`, with p-values adjusted for the whole report.

    Returns:
        A verdict whose text has no p-value. Its ratio is that of the two times in it.
    """
    target = headline_target(results, report.metrics)
    if target is None:
        return _without_times(report)

    (row,) = (row for row in results if row[0].target == target)
    first, *others = row
    if not others:
        return Verdict(f"{_alone(report, first)}.")

    comparable = [of for of in others if of.comparison is not None]
    if not comparable:
        different = difference_text(others[0].differs)
        times = _times(report, first, others[0])

        return Verdict(f"{times}: not comparable, as they differ in {different}.")

    fastest = min([first, *comparable], key=_median_or_never)
    if fastest is first:
        other = min(comparable, key=_median_or_never)
    else:
        other = fastest

    return _of_two(report, first, other, len(others) + 1)


def headline_target(results: Results, metrics: Metrics) -> Target | None:
    """Returns the hardest target that some run has reached, or None.

    The verdict and the first curve are about it. A harder target says more: an easy one
    may be met in the first epoch by every group.
    """
    reached = [row for row in results if any(of.statistics.reached for of in row)]
    if not reached:
        return None

    return hardest((row[0].target for row in reached), metrics)


def _median_or_never(result: GroupResult) -> float:
    """Returns a group's median time, or infinity if half of its runs never arrived.

    Groups can then be sorted by it.
    """
    if result.statistics.median_s is None:
        return math.inf

    return result.statistics.median_s


def _without_times(report: Report) -> Verdict:
    """Returns the verdict of a report in which no run has reached a target.

    It names the best evaluation instead, so that a reader can choose a target that the
    runs can reach.
    """
    text = "No target was named"
    why = "Name one, such as --target cer=0.10."
    if report.targets:
        target = hardest(report.targets, report.metrics)
        label = target_label(*target, report.metrics)
        text = f"No run reached {label} by the rule"
        why = "Train longer, or name an easier target with --target."

    metric = _common_metric(report)
    runs = [run for run in report.runs if run.value_at_best(metric) is not None]
    values = [run.value_at_best(metric) for run in runs]
    value = metric_named(metric, report.metrics).best(values)

    if value is None:
        return Verdict(f"{text}.", why)

    name = runs[values.index(value)].name
    reached = target_label(metric, value, report.metrics)

    return Verdict(f"{text}: the best single evaluation has {reached}, by {name}.", why)


def _common_metric(report: Report) -> str:
    """Returns the metric that chooses the best checkpoint of most runs.

    It is "cer" for recognisers, and the declared metric for runs of other tasks.
    """
    metrics = [run.best[0] for run in report.runs if run.best is not None]
    return max(metrics, key=metrics.count, default="cer")


def _alone(report: Report, result: GroupResult) -> str:
    """Returns the time of the only group of a report.

    Such a report has nothing to decide, so neither a ratio nor a test is shown.
    """
    of = result.statistics
    if of.median_s is None:
        return f"{of.reached} of {of.n} runs of {result.group} reached {result.label}"

    time = time_unit(report).text(of.median_s)
    text = f"{result.group} needs {time} to {result.label}"
    if of.n > 1:
        text += f", the median of {of.n} runs"

    return text


def _times(
    report: Report, first: GroupResult, second: GroupResult, groups: int = 2
) -> str:
    """Returns both groups' median times to the target, the shorter one first.

    A group of which half of the runs or more never reached it has no median. It is shown
    with how many did, within the time of its longest run.
    """
    label = first.label
    sooner, later = sorted((first, second), key=_median_or_never)
    if sooner.statistics.median_s is None:
        return f"Most runs of {first.group} and {second.group} never reached {label}"

    among = f", the fastest of {groups} groups," if groups > 2 else ""

    unit = time_unit(report)
    time = unit.text(sooner.statistics.median_s)
    text = f"To {label}, {sooner.group}{among} needs {time}"

    runs = later.statistics
    if runs.median_s is not None:
        return f"{text}, {later.group} {unit.text(runs.median_s)}"

    longest_s = max(report.runs[run].wall_s for run in later.members)

    return (
        f"{text}; {runs.reached} of {runs.n} runs of {later.group} got there within "
        f"{unit.text(longest_s)}"
    )


def _of_two(
    report: Report, first: GroupResult, other: GroupResult, groups: int
) -> Verdict:
    """Returns the verdict on two groups.

    Args:
        report: the runs.
        first: the report's first group, with which others are compared.
        other: the group that is compared with it.
        groups: how many groups the report has; with more than two, the text says so.
    """
    times = _times(report, first, other, groups)
    runs = first.statistics.n
    others = other.statistics.n

    if runs != others:
        each = f"{runs} and {others} runs"
    elif runs > 1:
        each = f"{runs} runs each"
    else:
        each = "one run each"

    if other.comparison.sooner is None:
        why, command = _what_decides(report, first, other)
        return Verdict(f"{times}: undecided with {each}.", why, command)

    winner = {"first": first, "second": other}[other.comparison.sooner]
    return Verdict(f"{times}: {_by_how_much(first, other, winner)}, decided by {each}.")


def _by_how_much(first: GroupResult, other: GroupResult, winner: GroupResult) -> str:
    """Returns "1.9 times sooner", the ratio of the two times in the same sentence.

    The test compares where error curves cross the target. If the rule's times, which
    the sentence states, don't show the same order, the ratio of the crossings is named.
    """
    loser = other if winner is first else first

    sooner = winner.statistics.median_s
    later = loser.statistics.median_s
    if sooner is not None and later is None:
        return f"{winner.group} is sooner"
    if sooner is not None and later > sooner > 0:
        return f"{_times_text(later / sooner)} sooner"

    ratio = other.comparison.ratio
    if ratio is None:
        return f"{winner.group} is sooner"

    ratio = max(ratio, 1 / ratio)
    return f"{winner.group}'s error curve gets there {_times_text(ratio)} sooner"


def _times_text(ratio: float) -> str:
    """Returns a ratio as text, with as many digits as readers can use.

    >>> _times_text(1.04), _times_text(1.87), _times_text(14.8)
    ('1.04 times', '1.9 times', '15 times')
    """
    if ratio < 1.1:
        return f"{ratio:.2f} times"
    if ratio < 10:
        return f"{ratio:.1f} times"

    return f"{ratio:.0f} times"


def _what_decides(
    report: Report, first: GroupResult, other: GroupResult
) -> tuple[str, str]:
    """Returns why a comparison is undecided, and the command that would decide it.

    In this order: the machine may explain the difference; a study hasn't finished its own
    looks; one run each; too few runs for the test; too much spread. The command is "" if
    nothing can be typed, as for logs of other programs.
    """
    compared = other.comparison
    n = min(first.statistics.n, other.statistics.n)
    if compared.measured_p is not None:
        why = (
            "The machine took processors from some runs, which may explain the "
            "difference: repeat them when it is quiet."
        )
        return why, f"{own_command()} doctor"

    if report.question.looks_level is not None and compared.p_value is None:
        return "The study that trained these runs hasn't decided yet.", ""

    if n == 1:
        why = f"One run can't decide: {one_run_each()}."
    elif not compared.decidable:
        why = f"{n} runs of each are too few for {_comparisons(compared)}."
    else:
        why = "The runs' times overlap too much for so few runs."

    needed = _runs_needed(report, first, other)
    if needed is None:
        why += " The times are too close for any number of runs worth training."
        return why, ""

    if any(sealed_folder(report.runs[run].path) for run in first.members):
        # Runs that the sealed plan didn't declare would break it.
        return f"{why} A new study with about {needed} runs of each may decide it.", ""

    why += f" About {needed} runs of each may decide it."
    command = _more_runs(report, first, other, needed)
    if not command:
        why += " Add runs with other seeds, and make the report again."

    return why, command


def _comparisons(compared: GroupComparison) -> str:
    """Names the test or comparisons that can't be decided.

    Many comparisons need more runs each, as their p-values are adjusted; a reader may
    rather ask for fewer targets.
    """
    if compared.comparisons > 1:
        return f"{compared.comparisons} comparisons"

    return "a test"


def _runs_needed(report: Report, first: GroupResult, other: GroupResult) -> int | None:
    """Returns how many runs of each group would probably decide; None if too many.

    Enough runs for the test's smallest p-value, and, if the spread over seeds is known,
    enough for a difference as large as the one that was measured (80 % power).
    """
    compared = other.comparison
    tests = max(compared.comparisons, 1)
    test = report.question.test

    enough = 2
    while (
        enough < _MOST_RUNS and least_p(test, enough, enough) * tests >= compared.level
    ):
        enough += 1

    spread = spread_at_hand([first, other])
    ratio = compared.ratio
    if spread is not None and ratio is not None and ratio != 1:
        gap = max(ratio, 1 / ratio) - 1
        probable = runs_to_detect(spread, gap)
        if probable is None or probable > _MOST_RUNS:
            return None

        enough = max(enough, probable)

    # The estimate was too low if that many runs are there already.
    have = min(first.statistics.n, other.statistics.n)
    if have < enough:
        return enough

    return have + 2


def _more_runs(
    report: Report, first: GroupResult, other: GroupResult, needed: int
) -> str:
    """Returns a shell loop that trains more seeds of both groups in turns.

    It is "" unless `tfasr train` trained all these runs, on shards that the runs name.
    """
    members = [*first.members, *other.members]
    seeds = [report.runs[run].facts["seed"] for run in members]
    if not all(isinstance(seed, int) for seed in seeds):
        return ""

    lines = []
    for group in (first, other):
        run = report.runs[group.members[-1]]
        shards = run.facts["shard_dir"]
        config = run.path / GIN_GIVEN_FILE

        if not shards or not config.is_file():
            return ""

        # A folder of runs gets more of them; next to a single run, folders are named
        # after it.
        folder = f"{shlex.quote(str(run.path))}-seed_$seed"
        if len(group.members) > 1:
            folder = f"{shlex.quote(str(run.path.parent))}/seed_$seed"

        file_flags = shlex.join(["--gin_file", str(config), "--shard_dir", str(shards)])
        lines.append(
            f"{own_command()} train {file_flags} --run_dir {folder} --seed $seed"
        )

    have = min(len(first.members), len(other.members))
    unused = max(seeds) + 1
    new = range(unused, unused + needed - have)

    return f"for seed in {' '.join(map(str, new))}; do {'; '.join(lines)}; done"


def about_runs(report: Report) -> str:
    """Returns machine, corpus and date of a report's runs in one line.

    Of several machines or corpora, two are named and more are counted. Logs of other
    programs often record none of them, which the line says too.
    """
    parts = [
        _together(map(_machine, report.runs), "machine", "machines"),
        _together(map(_corpus, report.runs), "corpus", "corpora"),
        _dates(report.runs),
    ]
    return " · ".join(filter(None, parts))


def _together(texts: Iterable[str], one: str, many: str) -> str:
    """Returns the distinct texts of all runs, "" being unknown.

    Args:
        texts: one for each run.
        one: what a text describes, such as "machine", if none is known.
        many: its plural, if there are too many to name.
    """
    names = list(dict.fromkeys(filter(None, texts)))
    if not names:
        return f"{one} not recorded"
    if len(names) > _NAMED:
        return f"{len(names)} {many}"

    return " and ".join(names)


def _machine(run: RunAnalysis) -> str:
    """Returns a run's machine: as described with ``--hardware``, else as it was recorded.

    GPUs come first, since they decide the speed of a run that has any.
    """
    described = at("charges.hardware.name")(run)
    if described:
        return described

    parts = []
    system = run.facts["system"]
    if system.get("gpus"):
        parts.append(with_counts(system["gpus"]))
    if system.get("processor"):
        cores = "? cores"
        if system.get("cores"):
            cores = plural(system["cores"], "core")

        parts.append(f"{system['processor']}, {cores}")
    if not parts and run.facts["platform"]:
        parts.append(str(run.facts["platform"]))

    return ", ".join(parts)


def _corpus(run: RunAnalysis) -> str:
    """Returns the last two folders of a run's prepared splits, and their sizes in utterances.

    Runs of other programs name no folder; their sizes are shown if they are known.
    """
    sizes = ""
    if isinstance(run.facts["train_samples"], int):
        sizes = f"{run.facts['train_samples']} utterances"
        if isinstance(run.facts["eval_samples"], int):
            sizes += f", {run.facts['eval_samples']} to validate"

    # The whole path would name this machine's folders.
    shards = Path(str(run.facts["shard_dir"] or ""))
    name = "/".join(shards.parts[-2:]).lstrip("/")

    return ": ".join(filter(None, (name, sizes)))


def _dates(runs: Sequence[RunAnalysis]) -> str:
    """Returns the days in UTC on which the first and the last run began.

    Logs whose clocks began at zero have no date.
    """
    moments = [run.facts["began_ms"] for run in runs]
    moments = sorted(moment for moment in moments if moment and moment > _EARLIEST_MS)
    days = dict.fromkeys(map(_day, [*moments[:1], *moments[-1:]]))

    return " to ".join(days)


def _day(moment_ms: float) -> str:
    """Returns the day of a wall clock in UTC, such as "7 March 2026"."""
    day = datetime.fromtimestamp(moment_ms / 1000, tz=timezone.utc)
    return f"{day.day} {day:%B %Y}"


@dataclass(frozen=True)
class Summary:
    """The first screen of a report in any format.

    Attributes:
        verdict: which group is faster.
        about: machine, corpus and date of the runs.
        rule: how the times are counted.
        table: the groups' times, with all of the above as its title and notes.
    """

    verdict: Verdict
    about: str
    rule: str
    table: Table


def summary(report: Report, results: Results) -> Summary:
    """Returns the answer of a report, with a row for each target and group of runs.

    Without results, as the report has no targets, the rows are the groups, with the
    best evaluation and the time of training.

    Args:
        report: the runs.
        results: of `group_results`.
    """
    answer = verdict(report, results)
    if results:
        columns = _time_columns(report, results)
        rows: list[Any] = [result for row in results for result in row]
        colours = [result.members[0] for result in rows]
    else:
        columns = _untimed_columns(report)
        rows = list(group_members(report.runs).items())
        colours = [runs[0] for _, runs in rows]

    about = about_runs(report)
    rule = ""
    if report.targets:
        name = time_unit(report).name.capitalize()
        rule = f"{name} {rule_of(report)}. {_spread_note(results)}"

    notes = [note for note in (answer.why, f"{about}.", rule) if note]
    table = table_of(answer.text, columns, rows, notes, name="summary", colours=colours)

    return Summary(answer, about, rule, replace(table, command=answer.command))


def _spread_note(results: Results) -> str:
    """Explains the column "interval".

    A median has a 95 % interval from six runs on. If some group has fewer, all groups show
    their range instead, since a column must mean one thing.
    """
    if _have_intervals(results):
        return "Interval: 95 % confidence interval of the median over seeds."

    return "Interval: from the fastest to the slowest run."


def _have_intervals(results: Results) -> bool:
    """Returns whether all groups have enough runs for an interval of their median.

    A group of which no run has reached the target needs none.
    """
    statistics = [of.statistics for row in results for of in row]
    return all(of.interval_s is not None or not of.reached for of in statistics)


def _time_columns(report: Report, results: Results) -> list[Column[GroupResult]]:
    """Returns the columns of groups' times, for one target or for several.

    A group without a median has "> " and the time of its longest run: the true time is
    longer. The price is shown if a run's machine has one.
    """
    intervals = _have_intervals(results)
    unit = time_unit(report)

    def time(result: GroupResult) -> str:
        median_s = result.statistics.median_s
        if median_s is not None:
            return unit.number(median_s)

        longest_s = max(report.runs[run].wall_s for run in result.members)
        return f"> {unit.number(longest_s)}"

    def interval(result: GroupResult) -> str:
        times = [bracket.read_s for bracket in result.brackets if not bracket.censored]
        if not times:
            return NEVER

        if intervals:
            ends = result.statistics.interval_s
        elif len(times) == 1:
            return "one run"
        else:
            ends = (min(times), max(times))

        return " to ".join(map(unit.number, ends))

    def runs(result: GroupResult) -> str:
        of = result.statistics
        if of.reached == of.n:
            return str(of.n)

        return f"{of.reached} of {of.n}"

    columns: list[Column[GroupResult]] = [
        Column("Group", "group", "group"),
        Column("", "metric", "target.0"),
        Column("", "target", "target.1"),
        Column("runs", "runs", "statistics.n", shown=runs),
        Column("", "reached", "statistics.reached"),
        Column(f"time\n{unit.short}", "median_s", "statistics.median_s", shown=time),
        Column(f"interval\n{unit.short}", "", lambda result: None, shown=interval),
    ]
    if len(results) > 1:
        columns.insert(1, Column("to", "", "label"))

    prices = {id(result): _price(report, result) for row in results for result in row}
    if any(price is not None for price in prices.values()):
        columns.append(
            Column("price\nUSD", "cost_usd", lambda of: prices[id(of)], "{:.3g}".format)
        )

    return columns


def _price(report: Report, result: GroupResult) -> float | None:
    """Returns the median dollars of a group's runs to the target, or None if unknown.

    A run whose machine has no price is left out, and so is one that never met the
    target.
    """
    target = report.targets.index(result.target)
    usd = at(f"charges.targets.{target}.cost.usd")
    prices = [usd(report.runs[index]) for index in result.members]

    return median_of([price for price in prices if price is not None])


def _untimed_columns(report: Report) -> list[Column[tuple[str, list[int]]]]:
    """Returns the columns of a report without targets: best checkpoint and time of training.

    The best is that of the group's best run; `RunAnalysis.best` says which evaluation
    counts.
    """
    metric = _common_metric(report)
    kind = metric_named(metric, report.metrics)
    unit = time_unit(report)

    def best(row: tuple[str, list[int]]) -> float | None:
        values = [report.runs[run].value_at_best(metric) for run in row[1]]
        return kind.best([value for value in values if value is not None])

    def longest(row: tuple[str, list[int]]) -> float:
        return max(report.runs[run].wall_s for run in row[1])

    heading = f"best\n{metric_label(metric, report.metrics)}"
    text = "{:.3g}".format
    if kind.rate:
        heading += " %"
        text = percent

    return [
        Column("Group", "group", "0"),
        Column("runs", "runs", lambda row: len(row[1])),
        Column(heading, "best", best, text),
        Column(f"trained\n{unit.short}", "wall_s", longest, unit.number),
    ]
