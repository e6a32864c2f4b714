"""Tables of what lies behind a time to accuracy: policies, seeds, and why it differs."""

from collections.abc import Sequence

from tfasr.analysis.findings import finding, of_single_runs, spread_at_hand
from tfasr.analysis.groups import GroupResult
from tfasr.analysis.names import sentence, target_label
from tfasr.analysis.report import Report
from tfasr.display.table import NEVER, UNKNOWN, Table
from tfasr.reports.tables.records import factor_records, group_records, policy_records
from tfasr.reports.tables.runs import minutes_text
from tfasr.tta.power import runs_to_detect
from tfasr.tta.targets import Target

_FACTOR_HEADINGS = {
    "statistical_efficiency": "statistical\nefficiency",
    "hardware_throughput": "steady\nthroughput",
    "input_wait": "input wait,\nper utterance",
    "evaluation": "cost of an\nevaluation",
    "startup": "init, compile,\nwarm-up",
    "lost_work": "lost\nwork",
    "other": "other,\nper epoch",
}


def policy_tables(report: Report) -> list[Table]:
    """Returns for each target a table of the runs' times under all policies."""
    clocks = report.question.beside
    rules = [f"{clock.name}: {clock.rule} ({clock.source})." for clock in clocks]
    tables = []
    for index, target in enumerate(report.targets):
        rows = []
        for run in report.runs:
            result = run.results[index]
            times = [
                minutes_text(report, seconds, NEVER) for seconds in result.by_policy_s.values()
            ]
            rows.append([run.name, *times])
        tables.append(
            Table(
                f"{sentence(target_label(*target))} under each clock policy, minutes",
                ["Run", *(clock.name for clock in clocks)],
                rows,
                rules if index == len(report.targets) - 1 else [],
                name=f"policies_{target_name(target)}",
                records=policy_records(report, index),
            )
        )
    return tables


def group_tables(
    report: Report, results: Sequence[Sequence[GroupResult]], *, power: bool = False
) -> list[Table]:
    """Returns for each target a table of groups of runs; none where no group has two runs."""
    return [
        _group_table(report, of_target, power)
        for of_target in results
        if any(result.statistics.n > 1 for result in of_target)
    ]


def factor_tables(report: Report, results: Sequence[Sequence[GroupResult]]) -> list[Table]:
    """Returns for each target why groups take longer than the first, where that is known."""
    tables = []
    for of_target in results:
        known = [result for result in of_target if result.decomposition is not None]
        if not known:
            continue
        rows = []
        for result in known:
            product = result.decomposition
            factors = [f"{factor:.3f}" for factor in product.factors.values()]
            rows.append([result.group, f"{product.ratio:.3f}", *factors])
        label = target_label(*known[0].target)
        first = of_target[0].group
        tables.append(
            Table(
                f"Why: {label}, factors of the time of {first}",
                ["Run", "time", *_FACTOR_HEADINGS.values()],
                rows,
                [
                    "The factors multiply to the ratio of times from the creation of the model, "
                    "of groups of their geometric means; above 1 makes slower. Each is weighted by "
                    "its part of the time (logarithmic mean Divisia index) and is no ratio of "
                    "amounts: those follow. Statistical efficiency: how many utterances, "
                    "evaluations and epochs it takes; the other factors are what each costs.",
                    *(_raw(result, first) for result in known),
                    *_single(of_target),
                ],
                colours=[result.members[0] for result in known],
                name=f"why_{target_name(known[0].target)}",
                records=factor_records(known),
            )
        )
    return tables


def _single(of_target: Sequence[GroupResult]) -> list[str]:
    """Returns a sentence where a time that is taken apart is one run's."""
    sizes = [result.statistics.n for result in of_target]
    said = of_single_runs(sizes, spread_at_hand(of_target))
    return [f"Of these times {said}, in the factor of statistical efficiency above all."] * bool(
        said
    )


def target_name(target: Target) -> str:
    """Returns a target for the name of a file: "cer_0.1"."""
    return f"{target[0]}_{target[1]:g}"


def _raw(result: GroupResult, first: str) -> str:
    product = result.decomposition
    said = (
        f"{result.group}: {product.utterances_ratio:.2f} times the utterances of {first} to the "
        f"target, at {product.throughput_ratio:.2f} times its steady throughput until then"
    )
    if product.evaluations_ratio is not None:
        said += f", and {product.evaluations_ratio:.2f} times its evaluations"
    if any(product.never):
        said += (
            f". Of the {product.runs[0]} and {product.runs[1]} runs that arrived; "
            f"{product.never[0]} and {product.never[1]} never did, and the factors say nothing of "
            "those"
        )
    return f"{said}."


def _group_table(report: Report, results: Sequence[GroupResult], power: bool) -> Table:
    rows = []
    notes = [
        "Never is longer than any time. Without extremes: without the fastest and the slowest of "
        "5 or more. 95 % of mean: of the times at which the target was truly crossed, somewhere "
        "between the last miss and the first hit, so that first hits lie late in it. CV: standard "
        "deviation over mean, of times interpolated between evaluations where there are such. "
        "Between evaluations: the mean width of the brackets, up to which a time is known. "
        "Restricted mean: from the Kaplan-Meier curve, up to the longest time observed. "
        f"{UNKNOWN}: too few runs, or too many never. An interval's end below 0 is written as 0.",
    ]
    for index, result in enumerate(results):
        statistics = result.statistics
        interval = statistics.interval_s
        rows.append(
            [
                result.group,
                str(statistics.n),
                str(statistics.reached),
                minutes_text(report, statistics.median_s, NEVER),
                minutes_text(report, statistics.mean_without_extremes_s),
                _range(report, interval),
                _percent(statistics.coefficient_of_variation),
                minutes_text(report, statistics.bracket_s),
                minutes_text(report, statistics.restricted_mean_s),
            ]
        )
        if index:
            notes.append(finding(results[0], result))
        if power:
            notes.append(_power(result))
    notes += _verdicts(results)
    return Table(
        f"{target_label(*results[0].target)} over the runs of each configuration",
        ["Runs", "n", "reached", "median\nmin", "without\nextremes", "95 % of mean", "CV %",
         "between\nevaluations", "restricted\nmean"],
        rows,
        notes,
        colours=[result.members[0] for result in results],
        name=f"groups_{target_name(results[0].target)}",
        records=group_records(results),
    )  # fmt: skip


def _verdicts(results: Sequence[GroupResult]) -> list[str]:
    """Says what the report's verdicts go by; nothing where it has none."""
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
    """Returns the time between evaluations as a share of the time to the target."""
    shares = [
        b.first_hit_s / b.last_miss_s - 1
        for b in result.brackets
        if b.first_hit_s is not None and b.last_miss_s > 0
    ]
    return sum(shares) / len(shares) if shares else None


def _range(report: Report, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return UNKNOWN
    # So few runs so far apart may put the interval's end where no time can be.
    return " to ".join(minutes_text(report, max(0.0, end)) for end in interval)


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f}"
