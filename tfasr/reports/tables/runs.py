"""The report's tables on runs and groups of runs; each column is defined once, for all
formats.

Values are in SI units and fractions; unknown values and times of targets never reached
are None.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

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
    "Wall: the whole run, from the start of its process (from the first event, if the ledger "
    "doesn't state that start) to the last event, without downtime between sessions. Train: input "
    "wait, compilation and steps. Eval: forward passes, decoding, swaps of models, and waiting for "
    "another process to evaluate. The shares are of wall and add up to it."
)
_THROUGHPUT = (
    "Rates: utterances or audio of steady steps (not warm-up, tracing or lost work) per second of "
    "these steps; for the whole run, or until a target was met. Input wait: waiting as a share of "
    "waiting and steady steps. Padding efficiency: real frames as a share of all frames, over all "
    "steps. Of the machine: the processor time that the steps got, as a share of what they could "
    "have used (docs/quiet_machine.md). Batch: the nominal size; mean batch: utterances per step, "
    "fewer if an epoch ends in a "
    f"smaller batch. {UNKNOWN}: nothing left to measure, or not recorded."
)

# The first columns of a table with a row for each run
RUN: list[Column[RunAnalysis]] = [
    Column("Run", "run", "name"),
    Column("", "group", "group"),
]
# Columns of the steady speed, for runs and their tables
SPEEDS: list[Column[RunAnalysis]] = [
    Column(
        "utterances/s", "utterances_per_s", "throughput.utterances_per_s", three_digits
    ),
    Column("audio s/s", "audio_s_per_s", "throughput.audio_s_per_s", three_digits),
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
        return self.report.runs[self.index]

    @property
    def result(self) -> TargetResult:
        return self.run.results[self.target]

    @property
    def charge(self) -> TargetCharge | None:
        return self.run.charges and self.run.charges.targets[self.target]

    @property
    def refused(self) -> bool:
        return self.report.refused(self.index)


def at_targets(report: Report, index: int) -> list[RunAtTarget]:
    return [RunAtTarget(report, index, target) for target in range(len(report.targets))]


def tables(report: Report) -> list[Table]:
    return [
        _accuracy_table(report),
        table_of("Where the time went", time_columns(report), report.runs, [_TIME]),
        table_of(
            "Steady throughput", throughput_columns(report), report.runs, [_THROUGHPUT]
        ),
    ]


def rule_text(report: Report) -> str:
    if report.window > 1:
        late = ", by medians centred on them; the rule is met later"
    else:
        late = ""

    return (
        f"Time to accuracy, policy {report.policy.name}: minutes {rule_of(report)}. Downtime "
        f"between sessions is not counted. {NEVER}: never reached. Between: the evaluations "
        f"between which the error curve crossed the target{late}."
    )


def minutes_of(report: Report) -> Callable[[float], str]:
    """Returns a formatter of seconds as minutes; the longer the longest run, the fewer
    decimals.
    """
    longest = max(run.wall_s for run in report.runs) / 60
    decimals = 3 if longest < 1 else 2 if longest < 100 else 1
    return lambda seconds: f"{seconds / 60:.{decimals}f}"


def target_name(target: Target) -> str:
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
        return UNKNOWN if at.result.tta.reached else NEVER

    warm = any(run.start for run in report.runs)
    start = Column("with start\nmin", "with_start_s", with_start, minutes, no_time)
    return [
        Column("", "run", "run.name"),
        Column("", "group", "run.group"),
        Column("", "metric", "result.tta.metric"),
        Column("", "target", "result.tta.target"),
        Column("", "policy", "report.policy.name"),
        Column("", "window", "result.tta.window"),
        Column(
            f"{label}\nmin", "time_to_accuracy_s", "result.tta.seconds", minutes, NEVER
        ),
        *([start] if warm else []),
        Column("between", "last_miss_s", "result.bracket.last_miss_s", shown=between),
        Column("", "first_hit_s", "result.bracket.first_hit_s"),
        Column("", "interpolated_s", "result.bracket.interpolated_s"),
        Column("epoch", "epoch", "result.tta.epoch", missing=NEVER),
        Column("", "value", "result.tta.value"),
        Column("", "utterances_per_s_until_then", "result.parts.utterances_per_s"),
        Column(
            "relative" if len(report.runs) > 1 else "",
            "relative_to_first",
            lambda at: report.relative(at.index, at.target),
            lambda ratio: f"{100 * ratio:.0f} %",
            missing=lambda at: REFUSED if at.refused else NEVER,
        ),
        Column("", "comparison_refused", "refused"),
        Column("", "epochs", "run.epochs"),
    ]


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
    above = [""]
    for target, (metric, value) in enumerate(report.targets):
        rows += [RunAtTarget(report, index, target) for index in indices]
        columns += for_readers(
            accuracy_columns(report, target_label(metric, value, report.metrics)),
            lambda index, target=target: RunAtTarget(report, index, target),
        )
        above += [target_label(metric, value, report.metrics)] * (
            len(columns) - len(above)
        )

    columns.append(Column("epochs\nrun", "", lambda index: report.runs[index].epochs))
    notes = [rule_text(report)]
    if len(report.runs) > 1:
        note = f"Relative: the time as a share of that of {report.runs[0].name}, "
        alone = len({run.group for run in report.runs}) == len(report.runs)
        groups = "run by run; for groups of runs, see below"
        notes.append(
            note
            + (f"of one run each (n = 1): {one_run_each()}" if alone else groups)
            + "."
        )

    notes += [
        *report.notes,
        *(f"{r.name}: {note}." for r in report.runs for note in r.notes),
    ]
    of_runs = [*RUN, Column("", "epochs", "epochs")]
    for_all = (accuracy_columns(report), rows) if rows else (of_runs, report.runs)
    for_programs = column_records(*for_all)
    table = table_of("Time to accuracy", columns, indices, notes, records=for_programs)
    between = [
        place for place, column in enumerate(columns) if column.heading == "between"
    ]
    details = {"Between which evaluations the error curve crossed the target": between}
    return replace(table, groups=[*above, ""], details=details if between else {})


def time_columns(report: Report) -> list[Column[RunAnalysis]]:
    """Returns the columns of a run's seconds; those of the intervals add up to ``wall_s``.

    Readers see minutes and shares of the run; an interval that no run spent time on has no
    column for them.
    """
    minutes = minutes_of(report)

    def seconds(
        heading: str, name: str, of_run: Callable[[RunAnalysis], float]
    ) -> Column:
        return Column(
            f"{heading}\nmin", name, lambda run: round(of_run(run), 6), minutes
        )

    def interval(name: str) -> Column[RunAnalysis]:
        def share(run: RunAnalysis) -> str:
            if run.wall_s > 0:
                return percent(run.intervals_s[name] / run.wall_s)

            return UNKNOWN

        spent = any(run.intervals_s[name] for run in report.runs)
        heading = f"{INTERVAL_LABELS[name]} %" if spent else ""
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
        return str(size) if isinstance(size, int) else UNKNOWN

    until = "results.{}.parts.utterances_per_s"
    padding = "padding\nefficiency %"
    return [
        *RUN,
        SPEEDS[0],
        *(
            Column(
                f"until\n{target_label(*target, report.metrics)}",
                "",
                until.format(index),
                three_digits,
            )
            for index, target in enumerate(report.targets)
        ),
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

    return [
        table_of(
            f"{sentence(target_label(*target, report.metrics))} under each clock policy, minutes",
            [
                *RUN,
                Column("", "metric", lambda run, metric=target[0]: metric),
                Column("", "target", lambda run, value=target[1]: value),
                *(time(index, clock.name) for clock in clocks),
            ],
            report.runs,
            rules if index == len(report.targets) - 1 else [],
            name=f"policies_{target_name(target)}",
        )
        for index, target in enumerate(report.targets)
    ]


def group_tables(
    report: Report, results: Results, *, power: bool = False
) -> list[Table]:
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

    def interval(result: GroupResult) -> str:
        ends = result.statistics.interval_s
        if ends is None:
            return UNKNOWN
        return " to ".join(map(minutes, ends))

    return [
        Column("Runs", "group", "group"),
        Column("", "metric", "target.0"),
        Column("", "target", "target.1"),
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
        Column(
            "CV %",
            "coefficient_of_variation",
            "statistics.coefficient_of_variation",
            percent,
        ),
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
        "A run that never reaches the target counts as longer than any time. Without extremes: the "
        "mean without the fastest and the slowest of 5 runs or more. 95 % of median: confidence "
        "interval of the median over seeds. CV: standard deviation divided by mean, of times "
        "interpolated between evaluations where possible. Between evaluations: the mean time "
        "between the two evaluations around a crossing. "
        f"{UNKNOWN}: too few runs, or too many that never reach the target."
    ]
    for result in results:
        why = result.statistics.no_interval
        runs = result.statistics.n
        notes += [f"{result.group}: no interval, {why}."] if why and runs > 1 else []
        notes += [finding(results[0], result)] if result is not results[0] else []
        notes += [_power(result)] if power else []
        notes += _spread(report, result)

    notes += _verdicts(results, report.question.test)
    title = f"{results[0].label} over the runs of each configuration"
    return table_of(
        title, group_columns(report), results, notes, **_of_groups("groups", results)
    )


def _of_groups(kind: str, results: Sequence[GroupResult]) -> dict[str, Any]:
    colours = [result.members[0] for result in results]
    return {"colours": colours, "name": f"{kind}_{target_name(results[0].target)}"}


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
            "probability of any false verdict is at most 5 %. Each interval is a 95 % interval by "
            "itself, so a comparison may be undecided although its interval excludes 1"
        )

    return [f"{text}."]


def _spread(report: Report, result: GroupResult) -> list[str]:
    """Describes how much of a group's spread comes from the host, and how much from the seeds.

    A run's time is the number of utterances to the target times the seconds per
    utterance. The variance of the time's logarithm is the sum of its covariances with
    both factors' logarithms.
    """
    target = report.targets.index(result.target)
    runs = [report.runs[run] for run in result.members]
    parts = [
        run.results[target].parts for run in runs if run.results[target].tta.reached
    ]
    if len(parts) < 3 or None in parts or min(p.total_s for p in parts) <= 0:
        return []
    utterances = [p.utterances for p in parts]
    each_s = [p.total_s / p.utterances for p in parts]
    amounts = ([p.total_s for p in parts], each_s, utterances)
    times, host, seeds = (f"{100 * variation(values):.2g} %" for values in amounts)
    logs = np.log([utterances, each_s])
    total = logs.sum(axis=0)
    variance = float(np.var(total, ddof=1))
    # Differences below this are rounding of clocks
    if variance < 1e-8:
        return []
    of_host = float(np.cov(logs[1], total)[0, 1]) / variance
    if 1 / 3 <= of_host <= 2 / 3:
        whose = "both"
    elif of_host > 0.5:
        whose = "the host"
    else:
        whose = "the seeds"

    within = [v for run in runs if (v := run.facts["epoch_variation"]) is not None]
    epochs = f", epochs within a run by {100 * fmean(within):.2g} %" if within else ""
    return [
        f"{result.group}: the {len(parts)} times vary by {times} (CV). Host: seconds per utterance "
        f"vary by {host}{epochs}. Seeds: the utterances to the target vary by {seeds}. The spread "
        f"is mostly due to {whose}."
    ]


def _power(result: GroupResult) -> str:
    """Returns how many runs per group would show a gap of 10 % at the group's own spread.

    The rarer a run evaluates, the wider its bracket: then no number may suffice.
    """
    variation = result.statistics.coefficient_of_variation
    ends = result.brackets
    met = [b for b in ends if b.first_hit_s is not None and b.last_miss_s > 0]
    if variation is None or not met:
        return f"{result.group}: two runs must reach the target to tell how many would show a gap."
    bracket = sum(b.first_hit_s / b.last_miss_s - 1 for b in met) / len(met)
    spread = f"{result.group}: at its CV of {100 * variation:.1f} % and with evaluations every "
    spread += f"{100 * bracket:.2g} % of its time, "
    needed = runs_to_detect(variation, bracket=bracket)
    if needed is None:
        return (
            f"{spread}no number of runs would show a gap of 10 %: evaluate more often."
        )

    return f"{spread}{needed} runs per group would show a gap of 10 % (5 % level, 80 % power)."


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
    Column("Run", "group", "group"),
    Column("", "metric", "target.0"),
    Column("", "target", "target.1"),
    Column("time", "ratio", "decomposition.ratio", fixed(3)),
    *(
        Column(heading, f"factor_{name}", f"decomposition.factors.{name}", fixed(3))
        for name, heading in _FACTOR_HEADINGS.items()
    ),
    *(
        Column("", name, f"decomposition.{name}")
        for name in ("utterances_ratio", "throughput_ratio", "evaluations_ratio")
    ),
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
        sizes = [result.statistics.n for result in of_target]
        single = of_single_runs(sizes, spread_at_hand(of_target))
        notes = [
            "The factors multiply to the ratio of times from the creation of the model (for "
            "groups, of their geometric means); a factor above 1 makes runs slower. Each is "
            "weighted by its part of the time (logarithmic mean Divisia index), so it isn't a "
            "ratio of amounts; those ratios follow. Statistical efficiency: how many utterances, "
            "evaluations and epochs it takes. Other factors: their cost, start-up and lost work.",
            *(_amounts(result, first) for result in decomposed),
        ]
        if single:
            notes.append(
                f"Of these times {single}, above all in statistical efficiency."
            )

        title = f"Why: {decomposed[0].label}, factors of the time of {first}"
        look = _of_groups("why", decomposed)
        tables.append(table_of(title, _FACTORS, decomposed, notes, **look))

    return tables


def _amounts(result: GroupResult, first: str) -> str:
    """Returns the ratios of amounts behind the factors: utterances, throughput, evaluations.

    The factors are weighted by their part of the time and are not these ratios.
    """
    product = result.decomposition
    text = (
        f"{result.group}: {product.utterances_ratio:.2f} times the utterances of {first} to the "
        f"target, at {product.throughput_ratio:.2f} times its steady throughput until then"
    )
    if product.evaluations_ratio is not None:
        text += f", and {product.evaluations_ratio:.2f} times its evaluations"
    if any(product.never):
        text += (
            f". This covers the {product.runs[0]} and {product.runs[1]} runs that reached it; "
            f"{product.never[0]} and {product.never[1]} never did, and the factors leave them out"
        )

    return f"{text}."
