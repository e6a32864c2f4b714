"""The report's tables on runs and groups of runs; each column is defined once, for all
formats.

A `Column` has a heading for readers and a name for programs, and either may be "": so
the same list of columns makes the table of ``report.md``, the CSV, the JSON and the data
frame of `tfasr.compare`. Values are in SI units and fractions; unknown values and times
of targets never reached are None.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from tfasr.display.chart import INTERVAL_LABELS
from tfasr.display.table import (
    NEVER,
    REFUSED,
    UNKNOWN,
    Column,
    Table,
    column_records,
    fixed,
    for_readers,
    percent,
    table_of,
    three_digits,
    whole_percent,
)
from tfasr.ledger.intervals import INTERVALS
from tfasr.reports.charges import TargetCharge
from tfasr.reports.groups import (
    GroupResult,
    Results,
    finding,
    of_single_runs,
    one_run_each,
    spread_at_hand,
)
from tfasr.reports.numbers import (
    Report,
    RunAnalysis,
    TargetResult,
    eval_s,
    rule_of,
    sentence,
    target_label,
    train_s,
    variation,
)
from tfasr.tta.comparison import ESTIMAND
from tfasr.tta.groups import runs_to_detect
from tfasr.tta.metrics import Target

_TIME = (
    "Wall: the whole run, from the start of its process (from the first event, if the "
    "ledger doesn't state that start) to the last event, without downtime between "
    "sessions. Train: input wait, compilation and steps. Eval: forward passes, decoding, "
    "swaps of models, and waiting for another process to evaluate. The shares are of wall "
    "and add up to it."
)
_THROUGHPUT = (
    "Rates: utterances or audio of steady steps (not warm-up, tracing or lost work) per "
    "second of these steps; for the whole run, or until a target was met. Input wait: "
    "waiting as a share of waiting and steady steps. Padding efficiency: real frames as a "
    "share of all frames, over all steps. Of the machine: the processor time that the "
    "steps got, as a share of what they could have used (docs/quiet_machine.md). Batch: "
    "the nominal size; mean batch: utterances per step, fewer if an epoch ends in a "
    f"smaller batch. {UNKNOWN}: nothing left to measure, or not recorded."
)

# The first columns of a table with a row for each run; only programs get the group.
RUN: list[Column[RunAnalysis]] = [
    Column("Run", "run", "name"),
    Column("", "group", "group"),
]
# Columns of the steady speed, in tables of runs and in the paper's tables.
SPEEDS: list[Column[RunAnalysis]] = [
    Column(
        "utterances/s", "utterances_per_s", "throughput.utterances_per_s", three_digits
    ),
    Column("audio s/s", "audio_s_per_s", "throughput.audio_s_per_s", three_digits),
]


# The first columns of a table with a row for each group; only programs get the target,
# which readers find in the title.
GROUP_AT_TARGET: list[Column[GroupResult]] = [
    Column("Run", "group", "group"),
    Column("", "metric", "target.0"),
    Column("", "target", "target.1"),
]


@dataclass(frozen=True)
class RunAtTarget:
    """A row of tables with one line per run and target.

    Attributes:
        report: the runs, all analysed for the same targets.
        index: the run's place in the report.
        target: the target's place in the report.
    """

    report: Report
    index: int
    target: int

    @property
    def run(self) -> RunAnalysis:
        """The run itself."""
        return self.report.runs[self.index]

    @property
    def result(self) -> TargetResult:
        """The run's time to the target."""
        return self.run.results[self.target]

    @property
    def charge(self) -> TargetCharge | None:
        """Cost and energy to the target; None if it was never met, or if unknown."""
        return self.run.charges and self.run.charges.targets[self.target]

    @property
    def refused(self) -> bool:
        """Whether the run can't be compared with the first one."""
        return self.report.refused(self.index)

    def or_refused(self, otherwise: str) -> str:
        """Returns why a comparison with the first run is missing."""
        if self.refused:
            return REFUSED

        return otherwise


def at_targets(report: Report, index: int) -> list[RunAtTarget]:
    """Returns a run's rows, one for each target of the report."""
    return [RunAtTarget(report, index, target) for target in range(len(report.targets))]


def tables(report: Report) -> list[Table]:
    """Returns the tables of every report: times to accuracy, intervals, throughput."""
    return [
        _accuracy_table(report),
        table_of("Where the time went", time_columns(report), report.runs, [_TIME]),
        table_of(
            "Steady throughput", throughput_columns(report), report.runs, [_THROUGHPUT]
        ),
    ]


def rule_text(report: Report) -> str:
    """Returns the note that says what a time to accuracy is in this report."""
    late = ""
    if report.window > 1:
        late = ", by medians centred on them; the rule is met later"

    return (
        f"Time to accuracy, policy {report.policy.name}: minutes {rule_of(report)}. "
        f"Downtime between sessions is not counted. {NEVER}: never reached. Between: the "
        f"evaluations between which the error curve crossed the target{late}."
    )


def minutes_of(report: Report) -> Callable[[float], str]:
    """Returns a formatter of seconds as minutes.

    The longer the longest run, the fewer decimals: three if it takes less than a
    minute, two if less than 100 minutes, otherwise one.
    """
    decimals = 1
    if report.longest_s < 60:
        decimals = 3
    elif report.longest_s < 100 * 60:
        decimals = 2

    return lambda seconds: f"{seconds / 60:.{decimals}f}"


def target_name(target: Target) -> str:
    """Returns a target's name in columns and files, such as "cer_0.1"."""
    return f"{target[0]}_{target[1]:g}"


def accuracy_columns(report: Report, label: str = "") -> list[Column[RunAtTarget]]:
    """Returns the columns of a run's time to a target, for all formats.

    Columns without a heading are for programs only: the table has a group of columns for
    each target, where repeating the metric would tell readers nothing.

    Args:
        report: the runs.
        label: the target's, for the heading.
    """
    minutes = minutes_of(report)

    def between(at: RunAtTarget) -> str:
        bracket = at.result.bracket
        if bracket.first_hit_s is None:
            return f"> {minutes(bracket.last_miss_s)}"

        return f"{minutes(bracket.last_miss_s)}–{minutes(bracket.first_hit_s)}"

    def with_start(at: RunAtTarget) -> float | None:
        return at.run.with_start_s(at.result.tta.seconds)

    def no_time(at: RunAtTarget) -> str:
        if at.result.tta.reached:
            return UNKNOWN

        return NEVER

    relative = "relative" if len(report.runs) > 1 else ""

    columns = [
        Column("", "run", "run.name"),
        Column("", "group", "run.group"),
        Column("", "metric", "result.tta.metric"),
        Column("", "target", "result.tta.target"),
        Column("", "policy", "report.policy.name"),
        Column("", "window", "result.tta.window"),
        Column(
            f"{label}\nmin", "time_to_accuracy_s", "result.tta.seconds", minutes, NEVER
        ),
        Column("between", "last_miss_s", "result.bracket.last_miss_s", shown=between),
        Column("", "first_hit_s", "result.bracket.first_hit_s"),
        Column("", "interpolated_s", "result.bracket.interpolated_s"),
        Column("epoch", "epoch", "result.tta.epoch", missing=NEVER),
        Column("", "value", "result.tta.value"),
        Column("", "utterances_per_s_until_then", "result.parts.utterances_per_s"),
        Column(
            relative,
            "relative_to_first",
            lambda at: report.relative(at.index, at.target),
            whole_percent,
            lambda at: at.or_refused(NEVER),
        ),
        Column("", "comparison_refused", "refused"),
        Column("", "epochs", "run.epochs"),
    ]

    # Runs that began with trained weights get a second time, which includes theirs.
    if any(run.start for run in report.runs):
        place = [column.name for column in columns].index("last_miss_s")
        columns.insert(
            place,
            Column("with start\nmin", "with_start_s", with_start, minutes, no_time),
        )

    return columns


def _accuracy_table(report: Report) -> Table:
    """Returns the table of all runs, with a group of columns for each target.

    Programs get a row per run and target instead, so that a new target changes no column.
    Notes on single runs are below this table only.
    """
    indices = range(len(report.runs))
    columns: list[Column[int]] = [
        Column("Run", "", lambda index: report.runs[index].name)
    ]
    rows = []
    # What stands above each column: the target, or nothing.
    above = [""]

    for target, (metric, value) in enumerate(report.targets):
        label = target_label(metric, value, report.metrics)
        of_target = for_readers(
            accuracy_columns(report, label),
            lambda index, target=target: RunAtTarget(report, index, target),
        )
        columns += of_target
        above += [label] * len(of_target)
        rows += [RunAtTarget(report, index, target) for index in indices]

    columns.append(Column("epochs\nrun", "", lambda index: report.runs[index].epochs))
    above.append("")

    if rows:
        for_programs = column_records(accuracy_columns(report), rows)
    else:
        for_programs = column_records(
            [*RUN, Column("", "epochs", "epochs")], report.runs
        )

    details = {}
    headings = [column.heading for column in columns]
    between = [place for place, text in enumerate(headings) if text == "between"]

    if between:
        details[_BETWEEN] = between

    table = table_of(
        "Time to accuracy",
        columns,
        indices,
        _accuracy_notes(report),
        records=for_programs,
    )
    return replace(table, groups=above, details=details)


# The label that unfolds the columns "between" on the page.
_BETWEEN = "Between which evaluations the error curve crossed the target"


def _accuracy_notes(report: Report) -> list[str]:
    """Returns the rule, what "relative" means, and all caveats about the runs."""
    notes = [rule_text(report)]
    if len(report.runs) > 1:
        groups = "run by run; for groups of runs, see below"
        if len({run.group for run in report.runs}) == len(report.runs):
            groups = f"of one run each (n = 1): {one_run_each()}"

        notes.append(
            f"Relative: the time as a share of that of {report.runs[0].name}, {groups}."
        )

    notes += report.notes
    notes += [f"{run.name}: {note}." for run in report.runs for note in run.notes]

    return notes


def time_columns(report: Report) -> list[Column[RunAnalysis]]:
    """Returns the columns of a run's seconds; those of the intervals add up to ``wall_s``.

    Readers see minutes and shares of the run; an interval that no run spent time on has no
    column for them.
    """
    minutes = minutes_of(report)

    def seconds(
        heading: str, name: str, of_run: Callable[[RunAnalysis], float]
    ) -> Column:
        # The ledger's clock has microseconds; more digits are rounding of sums.
        return Column(
            f"{heading}\nmin", name, lambda run: round(of_run(run), 6), minutes
        )

    def interval(name: str) -> Column[RunAnalysis]:
        def share(run: RunAnalysis) -> str:
            if run.wall_s > 0:
                return percent(run.intervals_s[name] / run.wall_s)

            return UNKNOWN

        heading = ""
        if any(run.intervals_s[name] for run in report.runs):
            heading = f"{INTERVAL_LABELS[name]} %"

        return Column(
            heading, f"{name}_s", lambda run: run.intervals_s[name], shown=share
        )

    return [
        *RUN,
        seconds("wall", "wall_s", lambda run: run.wall_s),
        seconds("train", "training_total_s", lambda run: train_s(run.intervals_s)),
        seconds("eval", "evaluation_total_s", lambda run: eval_s(run.intervals_s)),
        *map(interval, INTERVALS),
    ]


def throughput_columns(report: Report) -> list[Column[RunAnalysis]]:
    """Returns the columns of a run's steady speed and of what held it back.

    Steady steps leave out warm-up, tracing and lost work, which the last columns count, so
    that speeds of long and short runs are comparable.
    """

    def batch(size: object) -> str:
        # A log of another program may state a text.
        if isinstance(size, int):
            return str(size)

        return UNKNOWN

    padding = "padding\nefficiency %"
    until_targets = [
        Column(
            f"until\n{target_label(*target, report.metrics)}",
            "",
            f"results.{index}.parts.utterances_per_s",
            three_digits,
        )
        for index, target in enumerate(report.targets)
    ]

    return [
        *RUN,
        SPEEDS[0],
        *until_targets,
        SPEEDS[1],
        Column(
            "input\nwait %", "input_wait_share", "throughput.input_wait_share", percent
        ),
        Column(padding, "padding_efficiency", "throughput.padding_efficiency", percent),
        Column("of the\nmachine %", "host_share", "host.share", percent),
        Column("", "host_stolen_s", "host.stolen_s"),
        Column("", "host_throttled_s", "host.throttled_s"),
        Column("", "host_competed_s", "host.competed_s"),
        Column("", "host_stopped_s", "host.stopped_s"),
        Column("", "undisturbed_steps_s", "host.undisturbed_s"),
        Column("batch", "global_batch_size", "facts.global_batch_size", batch),
        Column("mean\nbatch", "mean_batch", "throughput.mean_batch", fixed(1)),
        Column("steps\nmeasured", "steps_measured", "throughput.steps"),
        Column(
            "warm-up steps\nleft out",
            "warmup_steps_left_out",
            "throughput.warmup_steps",
        ),
        Column(
            "tracing steps\nleft out",
            "tracing_steps_left_out",
            "throughput.traced_steps",
        ),
    ]


def policy_tables(report: Report) -> list[Table]:
    """Returns a table for each target: times under each clock policy, side by side.

    The rules of all policies are below the last table, once.
    """
    clocks = report.question.beside
    minutes = minutes_of(report)
    rules = [f"{clock.name}: {clock.rule} ({clock.source})." for clock in clocks]

    def time(index: int, policy: str) -> Column[RunAnalysis]:
        def value(run: RunAnalysis) -> float | None:
            return run.results[index].by_policy_s[policy]

        return Column(policy, f"{policy}_s", value, minutes, NEVER)

    tables = []
    for index, target in enumerate(report.targets):
        notes = []
        if index == len(report.targets) - 1:
            notes = rules

        label = sentence(target_label(*target, report.metrics))
        tables.append(
            table_of(
                f"{label} under each clock policy, minutes",
                [
                    *RUN,
                    Column("", "metric", lambda run, metric=target[0]: metric),
                    Column("", "target", lambda run, value=target[1]: value),
                    *(time(index, clock.name) for clock in clocks),
                ],
                report.runs,
                notes,
                name=f"policies_{target_name(target)}",
            )
        )

    return tables


def group_tables(
    report: Report, results: Results, *, power: bool = False
) -> list[Table]:
    """Returns a table of groups for each target, if some group has several runs.

    Args:
        report: the runs.
        results: of `tfasr.reports.groups.group_results`.
        power: whether to say how many runs would show a gap of 10 %.
    """
    return [
        _group_table(report, of_target, power)
        for of_target in results
        if any(result.statistics.n > 1 for result in of_target)
    ]


def group_columns(report: Report) -> list[Column[GroupResult]]:
    """Returns the columns of a group's statistics; those of its comparison have no heading.

    Readers get the comparison as a sentence below the table, with its interval and test.
    """
    minutes = minutes_of(report)
    mean = "mean_without_extremes_s"
    spread = "coefficient_of_variation"

    def interval(result: GroupResult) -> str:
        ends = result.statistics.interval_s
        if ends is None:
            return UNKNOWN

        return " to ".join(map(minutes, ends))

    return [
        Column("Runs", "group", "group"),
        *GROUP_AT_TARGET[1:],
        Column("n", "n", "statistics.n"),
        Column("reached", "reached", "statistics.reached"),
        Column("", "failure_probability", "statistics.failure_probability"),
        Column("median\nmin", "median_s", "statistics.median_s", minutes, NEVER),
        Column("without\nextremes", mean, f"statistics.{mean}", minutes),
        Column(
            "95 % of\nmedian",
            "median_95_low_s",
            "statistics.interval_s.0",
            shown=interval,
        ),
        Column("", "median_95_high_s", "statistics.interval_s.1"),
        Column("CV %", spread, f"statistics.{spread}", percent),
        Column("between\nevaluations", "bracket_s", "statistics.bracket_s", minutes),
        Column("", "ratio_to_first", "comparison.ratio"),
        Column("", "ratio_95_low", "comparison.interval.0"),
        Column("", "ratio_95_high", "comparison.interval.1"),
        Column("", "ratio_by_rule", "comparison.ratio_by_rule"),
        Column("", "p_value", "comparison.p_value"),
        Column("", "p_adjusted", "comparison.adjusted_p"),
    ]


def _group_table(report: Report, results: Sequence[GroupResult], power: bool) -> Table:
    """Returns the table of groups for one target, with the verdicts below it.

    ``power`` adds how many runs would show a difference of 10 %.
    """
    notes = [
        "A run that never reaches the target counts as longer than any time. Without "
        "extremes: the mean without the fastest and the slowest of 5 runs or more. 95 % of "
        "median: confidence interval of the median over seeds. CV: standard deviation "
        "divided by mean, of times interpolated between evaluations where possible. "
        "Between evaluations: the mean time between the two evaluations around a crossing. "
        f"{UNKNOWN}: too few runs, or too many that never reach the target."
    ]

    for result in results:
        why = result.statistics.no_interval
        if why and result.statistics.n > 1:
            notes.append(f"{result.group}: no interval, {why}.")
        if result is not results[0]:
            notes.append(finding(results[0], result))
        if power:
            notes.append(_power(result))

        notes += _spread(report, result)

    notes += _verdicts(results, report.question.test)

    return _of_groups(
        "groups",
        f"{results[0].label} over the runs of each configuration",
        group_columns(report),
        results,
        notes,
    )


def _of_groups(
    kind: str,
    title: str,
    columns: Sequence[Column[GroupResult]],
    results: Sequence[GroupResult],
    notes: Sequence[str],
) -> Table:
    """Returns a table with a row for each group, in the colours of the groups' runs."""
    return table_of(
        title,
        columns,
        results,
        notes,
        colours=[result.members[0] for result in results],
        name=f"{kind}_{target_name(results[0].target)}",
    )


def _verdicts(results: Sequence[GroupResult], test: str) -> list[str]:
    """Explains the ratio and when it counts as decided, once for all comparisons.

    Returns [] if no ratio could be computed.
    """
    compared = [result.comparison for result in results if result.comparison]
    if all(comparison.ratio is None for comparison in compared):
        return []

    text = ESTIMAND[test]
    if all(comparison.p_value is None for comparison in compared):
        return [text]

    text += " A verdict needs a p-value below 0.05"
    tests = max(comparison.comparisons for comparison in compared)
    if tests > 1:
        text += (
            f", adjusted for the report's {tests} comparisons by Holm's method, so that the "
            "probability of any false verdict is at most 5 %. Each interval is a 95 % "
            "interval by itself, so a comparison may be undecided although its interval "
            "excludes 1"
        )

    return [f"{text}."]


def _spread(report: Report, result: GroupResult) -> list[str]:
    """Describes how much of a group's spread comes from the host, and how much from the seeds.

    A run's time is the number of utterances to the target times the seconds per
    utterance. The variance of the time's logarithm is the sum of its covariances with
    both factors' logarithms. [] if fewer than three runs reached the target, or if
    their times don't differ.
    """
    target = report.targets.index(result.target)
    runs = [report.runs[run] for run in result.members]
    parts = [
        run.results[target].parts for run in runs if run.results[target].tta.reached
    ]

    if len(parts) < 3 or None in parts or min(p.total_s for p in parts) <= 0:
        return []

    total_s = [p.total_s for p in parts]
    utterances = [p.utterances for p in parts]
    each_s = [p.total_s / p.utterances for p in parts]
    logs = np.log([utterances, each_s])
    total = logs.sum(axis=0)
    variance = float(np.var(total, ddof=1))

    # Differences below this are rounding of clocks.
    if variance < 1e-8:
        return []

    whose = "both"
    of_host = float(np.cov(logs[1], total)[0, 1]) / variance
    if of_host > 2 / 3:
        whose = "the host"
    elif of_host < 1 / 3:
        whose = "the seeds"

    epochs = ""
    within = [run.facts["epoch_variation"] for run in runs]
    within = [share for share in within if share is not None]

    if within:
        epochs = f", epochs within a run by {100 * fmean(within):.2g} %"

    return [
        f"{result.group}: the {len(parts)} times vary by {_varies(total_s)} (CV). Host: "
        f"seconds per utterance vary by {_varies(each_s)}{epochs}. Seeds: the utterances "
        f"to the target vary by {_varies(utterances)}. The spread is mostly due to {whose}."
    ]


def _varies(values: Sequence[float]) -> str:
    """Formats the coefficient of variation of values in percent."""
    return f"{100 * variation(values):.2g} %"


def _power(result: GroupResult) -> str:
    """Returns how many runs per group would show a gap of 10 % at the group's own spread.

    The rarer a run evaluates, the wider its bracket: then no number may suffice.
    """
    variation = result.statistics.coefficient_of_variation
    met = [
        bracket
        for bracket in result.brackets
        if bracket.first_hit_s is not None and bracket.last_miss_s > 0
    ]

    if variation is None or not met:
        return (
            f"{result.group}: two runs must reach the target to tell how many would show "
            "a gap."
        )

    bracket = sum(b.first_hit_s / b.last_miss_s - 1 for b in met) / len(met)
    spread = (
        f"{result.group}: at its CV of {100 * variation:.1f} % and with evaluations every "
        f"{100 * bracket:.2g} % of its time, "
    )
    needed = runs_to_detect(variation, bracket=bracket)

    if needed is None:
        return (
            f"{spread}no number of runs would show a gap of 10 %: evaluate more often."
        )

    return f"{spread}{needed} runs per group would show a gap of 10 % (5 % level, 80 % power)."


# The factors of `tfasr.tta.decomposition.FACTORS`, in the order of their columns.
_FACTOR_HEADINGS = {
    "statistical_efficiency": "statistical\nefficiency",
    "hardware_throughput": "steady\nthroughput",
    "host": "the\nmachine",
    "input_wait": "input wait,\nper utterance",
    "evaluation": "evaluation,\nper utterance",
    "workers": "other workers,\nper utterance",
    "startup": "init, compile,\nwarm-up",
    "lost_work": "lost\nwork",
    "other": "other,\nper utterance",
}


_FACTORS: list[Column[GroupResult]] = [
    *GROUP_AT_TARGET,
    Column("time", "ratio", "decomposition.ratio", fixed(3)),
    *(
        Column(heading, f"factor_{name}", f"decomposition.factors.{name}", fixed(3))
        for name, heading in _FACTOR_HEADINGS.items()
    ),
    Column("", "utterances_ratio", "decomposition.utterances_ratio"),
    Column("", "throughput_ratio", "decomposition.throughput_ratio"),
    Column("", "evaluations_ratio", "decomposition.evaluations_ratio"),
    Column("", "runs_in_first", "decomposition.runs.0"),
    Column("", "runs", "decomposition.runs.1"),
    Column("", "never_in_first", "decomposition.never.0"),
    Column("", "never", "decomposition.never.1"),
]


def factor_tables(report: Report, results: Results) -> list[Table]:
    """Returns the factors that explain each ratio, a table for each target.

    Groups without a run that reached the target, or whose logs have no steps, are left
    out. Factors multiply to the ratio, so they say what a change would gain.
    """
    tables = []
    for of_target in results:
        decomposed = [
            result for result in of_target if result.decomposition is not None
        ]
        if not decomposed:
            continue

        first = of_target[0].group
        notes = [
            "The factors multiply to the ratio of times from the creation of the model (for "
            "groups, of their geometric means); a factor above 1 makes runs slower. Each is "
            "weighted by its part of the time (logarithmic mean Divisia index), so it isn't "
            "a ratio of amounts; those ratios follow. Statistical efficiency: how many "
            "utterances, evaluations and epochs it takes. Other factors: their cost, "
            "start-up and lost work.",
        ]
        notes += [_amounts(result, first) for result in decomposed]

        sizes = [result.statistics.n for result in of_target]
        single = of_single_runs(sizes, spread_at_hand(of_target))
        if single:
            notes.append(
                f"Of these times {single}, above all in statistical efficiency."
            )

        title = f"Why: {decomposed[0].label}, factors of the time of {first}"
        tables.append(_of_groups("why", title, _FACTORS, decomposed, notes))

    return tables


def _amounts(result: GroupResult, first: str) -> str:
    """Returns the ratios of amounts behind the factors: utterances, throughput, evaluations.

    The factors are weighted by their part of the time and are not these ratios.
    """
    product = result.decomposition
    text = (
        f"{result.group}: {product.utterances_ratio:.2f} times the utterances of {first} to "
        f"the target, at {product.throughput_ratio:.2f} times its steady throughput until "
        "then"
    )
    if product.evaluations_ratio is not None:
        text += f", and {product.evaluations_ratio:.2f} times its evaluations"

    if any(product.never):
        text += (
            f". This covers the {product.runs[0]} and {product.runs[1]} runs that reached "
            f"it; {product.never[0]} and {product.never[1]} never did, and the factors "
            "leave them out"
        )

    return f"{text}."
