"""The report's tables on runs and groups of runs; each column is written once, for all formats.

Values are in SI units and fractions; what is not known, and the time of a target never reached, is
None.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.display.chart import INTERVAL_LABELS
from tfasr.display.table import (
    NEVER,
    REFUSED,
    UNKNOWN,
    Column,
    Table,
    fixed,
    for_readers,
    percent,
    records,
    table_of,
    three_digits,
)
from tfasr.ledger.intervals import INTERVALS
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
    sentence,
    target_label,
    train_s,
)
from tfasr.tta.groups import runs_to_detect
from tfasr.tta.metrics import Target
from tfasr.tta.policies import Bracket

_TIME = (
    "Wall: the whole run, from its first event to its last. Train: input wait, compilation and "
    "steps. Eval: forward passes, decoding, swaps of models, and waiting for another process to "
    "evaluate. The shares are of wall and add up to it."
)
_THROUGHPUT = (
    "Of steady steps over their own seconds: of the whole run, and of the steps until a target was "
    "met. Input wait: of those seconds and the waiting together, the share of waiting. Padding "
    "efficiency: real over padded frames, of all steps. Batch: the nominal one, and the mean "
    "utterances of all steps, smaller where an epoch ends in a rest. "
    f"{UNKNOWN}: nothing was left to measure, or not said."
)

# The first columns of a table with a row for each run
RUN: list[Column[RunAnalysis]] = [
    Column("Run", "run", lambda run: run.name),
    Column("", "group", lambda run: run.group),
]


def fact(name: str) -> Callable[[RunAnalysis], Any]:
    return lambda run: getattr(run.facts, name)


def speed(name: str) -> Callable[[RunAnalysis], Any]:
    return lambda run: getattr(run.throughput, name)


@dataclass(frozen=True)
class RunAtTarget:
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
    def refused(self) -> bool:
        return self.report.refused(self.index)


def tables(report: Report) -> list[Table]:
    return [
        _accuracy_table(report),
        table_of("Where the time went", time_columns(report), report.runs, [_TIME]),
        table_of("Steady throughput", throughput_columns(report), report.runs, [_THROUGHPUT]),
    ]


def rule_text(report: Report) -> str:
    rule = report.policy.rule
    if report.window != report.policy.window:
        rule += f"; here, by request, the median of the last {report.window}"
    return (
        f"Time to accuracy, policy {report.policy.name}: minutes {rule}. Downtime between sessions "
        f"is not counted. {NEVER}: never reached. Between: the last evaluation at which the rule "
        "was not met and the first at which it was."
    )


def minutes_of(report: Report) -> Callable[[float], str]:
    """Returns a formatter of seconds as minutes, with the decimals that the longest run allows."""
    longest = report.longest_s / 60
    decimals = 3 if longest < 1 else 2 if longest < 100 else 1
    return lambda seconds: f"{seconds / 60:.{decimals}f}"


def target_name(target: Target) -> str:
    return f"{target[0]}_{target[1]:g}"


def accuracy_columns(report: Report, label: str = "") -> list[Column[RunAtTarget]]:
    minutes = minutes_of(report)

    def between(bracket: Bracket) -> str:
        if bracket.first_hit_s is None:
            return f"> {minutes(bracket.last_miss_s)}"
        return f"{minutes(bracket.last_miss_s)}–{minutes(bracket.first_hit_s)}"

    return [
        Column("", "run", lambda at: at.run.name),
        Column("", "group", lambda at: at.run.group),
        Column("", "metric", lambda at: at.result.tta.metric),
        Column("", "target", lambda at: at.result.tta.target),
        Column("", "policy", lambda at: report.policy.name),
        Column("", "window", lambda at: at.result.tta.window),
        Column(
            f"{label}\nmin", "time_to_accuracy_s", lambda at: at.result.tta.seconds, minutes, NEVER
        ),
        Column(
            "between",
            "last_miss_s",
            lambda at: at.result.bracket.last_miss_s,
            shown=lambda at: between(at.result.bracket),
        ),
        Column("", "first_hit_s", lambda at: at.result.bracket.first_hit_s),
        Column("", "interpolated_s", lambda at: at.result.bracket.interpolated_s),
        Column("epoch", "epoch", lambda at: at.result.tta.epoch, missing=NEVER),
        Column("", "value", lambda at: at.result.tta.value),
        Column(
            "",
            "utterances_per_s_until_then",
            lambda at: at.result.parts and at.result.parts.utterances_per_s,
        ),
        Column(
            "relative" if len(report.runs) > 1 else "",
            "relative_to_first",
            lambda at: report.relative(at.index, at.target),
            lambda ratio: f"{100 * ratio:.0f} %",
            missing=lambda at: REFUSED if at.refused else NEVER,
        ),
        Column("", "comparison_refused", lambda at: at.refused),
        Column("", "epochs", lambda at: at.run.epochs),
    ]


def _accuracy_table(report: Report) -> Table:
    indices = range(len(report.runs))
    columns: list[Column[int]] = [Column("Run", "", lambda index: report.runs[index].name)]
    for target, (metric, value) in enumerate(report.targets):
        columns += for_readers(
            accuracy_columns(report, target_label(metric, value)),
            lambda index, target=target: RunAtTarget(report, index, target),
        )
    columns.append(Column("epochs\nrun", "", lambda index: report.runs[index].epochs))
    several = len(report.runs) > 1
    notes = [rule_text(report), *([_relative_note(report)] if several else []), *report.notes]
    notes += [f"{run.name}: {note}." for run in report.runs for note in run.notes]
    rows = [
        RunAtTarget(report, i, target) for target in range(len(report.targets)) for i in indices
    ]
    epochs: Column[RunAnalysis] = Column("", "epochs", lambda run: run.epochs)
    of_all = (
        records(accuracy_columns(report), rows) if rows else records([*RUN, epochs], report.runs)
    )
    return table_of("Time to accuracy", columns, indices, notes, records=of_all)


def _relative_note(report: Report) -> str:
    note = f"Relative: the time as a share of that of {report.runs[0].name}"
    if len({run.group for run in report.runs}) < len(report.runs):
        return f"{note}, run by run; what groups of runs say together stands below."
    return f"{note}, of one run each (n = 1): {one_run_each()}."


def time_columns(report: Report) -> list[Column[RunAnalysis]]:
    """Returns the columns of a run's seconds; those of the intervals add up to ``wall_s``."""
    minutes = minutes_of(report)

    def share(name: str) -> Callable[[RunAnalysis], str]:
        return lambda run: (
            percent(run.intervals_s[name] / run.wall_s) if run.wall_s > 0 else UNKNOWN
        )

    def seconds(heading: str, name: str, of_run: Callable[[RunAnalysis], float]) -> Column:
        return Column(
            f"{heading}\nmin",
            name,
            lambda run: round(of_run(run), 6),
            shown=lambda run: minutes(of_run(run)),
        )

    spent = {name for run in report.runs for name in INTERVALS if run.intervals_s[name]}
    return [
        *RUN,
        seconds("wall", "wall_s", lambda run: run.wall_s),
        seconds("train", "training_total_s", lambda run: train_s(run.intervals_s)),
        seconds("eval", "evaluation_total_s", lambda run: eval_s(run.intervals_s)),
        *(
            Column(
                f"{INTERVAL_LABELS[name]} %" if name in spent else "",
                f"{name}_s",
                lambda run, name=name: run.intervals_s[name],
                shown=share(name),
            )
            for name in INTERVALS
        ),
    ]


def throughput_columns(report: Report) -> list[Column[RunAnalysis]]:
    until = [
        Column(
            f"until\n{target_label(*target)}",
            "",
            lambda run, index=index: (parts := run.results[index].parts) and parts.utterances_per_s,
            three_digits,
        )
        for index, target in enumerate(report.targets)
    ]

    def batch(size: object) -> str:
        return str(size) if isinstance(size, int) else UNKNOWN

    return [
        *RUN,
        Column("utterances/s", "utterances_per_s", speed("utterances_per_s"), three_digits),
        *until,
        Column("audio s/s", "audio_s_per_s", speed("audio_s_per_s"), three_digits),
        Column("input\nwait %", "input_wait_share", speed("input_wait_share"), percent),
        Column("padding\nefficiency %", "padding_efficiency", speed("padding_efficiency"), percent),
        Column("batch", "global_batch_size", fact("global_batch_size"), batch),
        Column("mean\nbatch", "mean_batch", speed("mean_batch"), fixed(1)),
        Column("steps\nmeasured", "steps_measured", speed("steps")),
        Column("warm-up steps\nleft out", "warmup_steps_left_out", speed("warmup_steps")),
        Column("tracing steps\nleft out", "tracing_steps_left_out", speed("traced_steps")),
    ]


def policy_tables(report: Report) -> list[Table]:
    clocks, minutes = report.question.beside, minutes_of(report)
    rules = [f"{clock.name}: {clock.rule} ({clock.source})." for clock in clocks]
    return [
        table_of(
            f"{sentence(target_label(*target))} under each clock policy, minutes",
            [
                *RUN,
                Column("", "metric", lambda run, metric=target[0]: metric),
                Column("", "target", lambda run, value=target[1]: value),
                *(
                    Column(
                        clock.name,
                        f"{clock.name}_s",
                        lambda run, i=index, name=clock.name: run.results[i].by_policy_s[name],
                        minutes,
                        NEVER,
                    )
                    for clock in clocks
                ),
            ],
            report.runs,
            rules if index == len(report.targets) - 1 else [],
            name=f"policies_{target_name(target)}",
        )
        for index, target in enumerate(report.targets)
    ]


def group_tables(report: Report, results: Results, *, power: bool = False) -> list[Table]:
    return [
        _group_table(report, of_target, power)
        for of_target in results
        if any(result.statistics.n > 1 for result in of_target)
    ]


def group_columns(report: Report) -> list[Column[GroupResult]]:
    minutes = minutes_of(report)

    def interval(result: GroupResult) -> str:
        # So few runs so far apart may put the interval's end where no time can be.
        ends = result.statistics.interval_s
        return " to ".join(minutes(max(0.0, end)) for end in ends) if ends else UNKNOWN

    def statistic(heading: str, name: str, text=str, missing=UNKNOWN) -> Column[GroupResult]:
        return Column(heading, name, lambda r: getattr(r.statistics, name), text, missing)

    def compared(name: str, attribute: str) -> Column[GroupResult]:
        return Column("", name, lambda r: r.comparison and getattr(r.comparison, attribute))

    def end(pair, index: int):
        return pair[index] if pair else None

    return [
        Column("Runs", "group", lambda r: r.group),
        Column("", "metric", lambda r: r.target[0]),
        Column("", "target", lambda r: r.target[1]),
        statistic("n", "n"),
        statistic("reached", "reached"),
        statistic("", "failure_probability"),
        statistic("median\nmin", "median_s", minutes, NEVER),
        statistic("without\nextremes", "mean_without_extremes_s", minutes),
        Column(
            "95 % of mean",
            "mean_95_low_s",
            lambda r: end(r.statistics.interval_s, 0),
            shown=interval,
        ),
        Column("", "mean_95_high_s", lambda r: end(r.statistics.interval_s, 1)),
        statistic("CV %", "coefficient_of_variation", percent),
        statistic("between\nevaluations", "bracket_s", minutes),
        statistic("restricted\nmean", "restricted_mean_s", minutes),
        statistic("", "restriction_s"),
        compared("ratio_to_first", "ratio"),
        Column("", "ratio_95_low", lambda r: r.comparison and end(r.comparison.interval, 0)),
        Column("", "ratio_95_high", lambda r: r.comparison and end(r.comparison.interval, 1)),
        compared("ratio_of_middles", "ratio_of_middles"),
        compared("interpolated_ratio", "interpolated_ratio"),
        compared("p_value", "p_value"),
        compared("p_adjusted", "adjusted_p"),
        compared("permutation_p", "permutation_p"),
    ]


def _group_table(report: Report, results: Sequence[GroupResult], power: bool) -> Table:
    notes = [
        "Never is longer than any time. Without extremes: without the fastest and the slowest of "
        "5 or more. 95 % of mean: of the times at which the target was truly crossed, somewhere "
        "between the last miss and the first hit, so that first hits lie late in it. CV: standard "
        "deviation over mean, of times interpolated between evaluations where there are such. "
        "Between evaluations: the mean width of the brackets, up to which a time is known. "
        "Restricted mean: from the Kaplan-Meier curve, up to the longest time observed. "
        f"{UNKNOWN}: too few runs, or too many never. An interval's end below 0 is written as 0."
    ]
    for index, result in enumerate(results):
        if index:
            notes.append(finding(results[0], result))
        if power:
            notes.append(_power(result))
    return table_of(
        f"{target_label(*results[0].target)} over the runs of each configuration",
        group_columns(report),
        results,
        [*notes, *_verdicts(results)],
        colours=[result.members[0] for result in results],
        name=f"groups_{target_name(results[0].target)}",
    )


def _verdicts(results: Sequence[GroupResult]) -> list[str]:
    tests = [result.comparison.comparisons for result in results if result.comparison]
    if not any(result.comparison and result.comparison.p_value is not None for result in results):
        return []
    said = (
        "A verdict needs p < 0.05 and a gap larger than the time between evaluations. Intervals "
        "allow for the brackets of the times"
    )
    if max(tests) > 1:
        said += (
            f", and are 95 % each; p is adjusted for the report's {max(tests)} comparisons by "
            "Holm's method, so that any false verdict at all has a probability of at most 5 %. An "
            "interval without 1 may therefore be undecided"
        )
    return [f"{said}."]


def _power(result: GroupResult) -> str:
    statistics = result.statistics
    variation, bracket = statistics.coefficient_of_variation, _bracket_share(result)
    if variation is None or bracket is None:
        return f"{result.group}: two runs that reach the target would tell how many show a gap."
    needed = runs_to_detect(variation, bracket=bracket)
    known = f"{result.group}: at its CV of {100 * variation:.1f} % and with evaluations every "
    known += f"{100 * bracket:.2g} % of its time, "
    if bracket >= 0.10:
        return f"{known}no number of runs would show a gap of 10 %: evaluate more often."
    return (
        f"{known}{'more than 1000' if needed is None else needed} runs per arm would show a gap of "
        "10 % (5 % level, 80 % power)."
    )


def _bracket_share(result: GroupResult) -> float | None:
    shares = [
        b.first_hit_s / b.last_miss_s - 1
        for b in result.brackets
        if b.first_hit_s is not None and b.last_miss_s > 0
    ]
    return sum(shares) / len(shares) if shares else None


_FACTOR_HEADINGS = {
    "statistical_efficiency": "statistical\nefficiency",
    "hardware_throughput": "steady\nthroughput",
    "input_wait": "input wait,\nper utterance",
    "evaluation": "cost of an\nevaluation",
    "startup": "init, compile,\nwarm-up",
    "lost_work": "lost\nwork",
    "other": "other,\nper epoch",
}
_FACTORS: list[Column[GroupResult]] = [
    Column("Run", "group", lambda r: r.group),
    Column("", "metric", lambda r: r.target[0]),
    Column("", "target", lambda r: r.target[1]),
    Column("time", "ratio", lambda r: r.decomposition.ratio, fixed(3)),
    *(
        Column(
            heading, f"factor_{name}", lambda r, name=name: r.decomposition.factors[name], fixed(3)
        )
        for name, heading in _FACTOR_HEADINGS.items()
    ),
    Column("", "utterances_ratio", lambda r: r.decomposition.utterances_ratio),
    Column("", "throughput_ratio", lambda r: r.decomposition.throughput_ratio),
    Column("", "evaluations_ratio", lambda r: r.decomposition.evaluations_ratio),
    Column("", "runs_in_first", lambda r: r.decomposition.runs[0]),
    Column("", "runs", lambda r: r.decomposition.runs[1]),
    Column("", "never_in_first", lambda r: r.decomposition.never[0]),
    Column("", "never", lambda r: r.decomposition.never[1]),
]


def factor_tables(report: Report, results: Results) -> list[Table]:
    tables = []
    for of_target in results:
        known = [result for result in of_target if result.decomposition is not None]
        if not known:
            continue
        first = of_target[0].group
        sizes = [result.statistics.n for result in of_target]
        single = of_single_runs(sizes, spread_at_hand(of_target))
        notes = [
            "The factors multiply to the ratio of times from the creation of the model, "
            "of groups of their geometric means; above 1 makes slower. Each is weighted by "
            "its part of the time (logarithmic mean Divisia index) and is no ratio of "
            "amounts: those follow. Statistical efficiency: how many utterances, "
            "evaluations and epochs it takes; the other factors are what each costs.",
            *(_amounts(result, first) for result in known),
        ]
        if single:
            notes.append(
                f"Of these times {single}, in the factor of statistical efficiency above all."
            )
        tables.append(
            table_of(
                f"Why: {target_label(*known[0].target)}, factors of the time of {first}",
                _FACTORS,
                known,
                notes,
                colours=[result.members[0] for result in known],
                name=f"why_{target_name(known[0].target)}",
            )
        )
    return tables


def _amounts(result: GroupResult, first: str) -> str:
    product = result.decomposition
    text = (
        f"{result.group}: {product.utterances_ratio:.2f} times the utterances of {first} to the "
        f"target, at {product.throughput_ratio:.2f} times its steady throughput until then"
    )
    if product.evaluations_ratio is not None:
        text += f", and {product.evaluations_ratio:.2f} times its evaluations"
    if any(product.never):
        text += (
            f". Of the {product.runs[0]} and {product.runs[1]} runs that arrived; "
            f"{product.never[0]} and {product.never[1]} never did, and the factors say nothing of "
            "those"
        )
    return f"{text}."
