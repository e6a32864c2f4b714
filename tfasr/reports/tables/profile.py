"""Table of the winner by target: the ratio of two groups' times at targets of a whole range."""

from collections.abc import Sequence

from tfasr.analysis.names import metric_label, target_label
from tfasr.analysis.profiles import GroupProfile, profile_finding, profiles_of_groups
from tfasr.analysis.report import Report
from tfasr.display.table import UNKNOWN, Cell, Table, records_of
from tfasr.reports.tables.runs import minutes_text
from tfasr.tta.target_profile import VERDICT_TARGETS

_METHOD = (
    f"Targets: {VERDICT_TARGETS} in equal ratios, over the range that every run of both groups "
    "missed once and then reached. Times: geometric means at the middles of the brackets. 95 % "
    "interval: at that target by itself. Together: intervals that hold at all targets and for all "
    "groups of the table at once with 95 % (Bonferroni); between the targets nothing is claimed. "
    "Faster: p < 0.05 after Holm's method over the same, and a gap larger than the time between "
    "evaluations."
)


def profile_tables(report: Report, profiles: Sequence[GroupProfile]) -> list[Table]:
    """Returns for each metric a row for each group and target."""
    return [_table(report, metric, own) for metric, own in profiles_of_groups(profiles).items()]


def _table(report: Report, metric: str, profiles: Sequence[GroupProfile]) -> Table:
    rows: list[list[str]] = []
    records: list[dict[str, Cell]] = []
    colours = []
    runs = {run.group: index for index, run in reversed(list(enumerate(report.runs)))}
    for profile in profiles:
        if profile.found is None:
            continue
        for number, target in enumerate(profile.found.verdict_targets):
            record = _record(profile, number, float(target))
            records.append(record)
            rows.append(_cells(report, record))
            colours.append(runs[profile.group])
    return Table(
        f"Winner by target: {metric_label(metric)}, times of {profiles[0].first} = 1",
        ["Runs", "target", "first\nmin", "times\nas long", "95 %\ninterval", "95 %\ntogether",
         "p,\nadjusted", "faster"],
        rows,
        [*(profile_finding(one) for one in profiles), _METHOD],
        colours=colours,
        name=f"profile_{metric}",
        records=records_of(records),
    )  # fmt: skip


def _record(profile: GroupProfile, number: int, target: float) -> dict[str, Cell]:
    found = profile.found
    index = number * (len(found.targets) - 1) // (VERDICT_TARGETS - 1)
    verdict = found.verdicts[number]

    def at(values, place: int) -> float | None:
        return None if values is None else float(values[place])

    return {
        "group": profile.group,
        "first": profile.first,
        "metric": profile.metric,
        "target": target,
        "first_s": float(found.first_s[index]),
        "ratio": float(found.ratio[index]),
        "ratio_95_low": at(found.low, index),
        "ratio_95_high": at(found.high, index),
        "together_95_low": at(found.together_low, number),
        "together_95_high": at(found.together_high, number),
        "adjusted_p": verdict.adjusted_p,
        "comparisons": verdict.comparisons,
        "faster": None if verdict.sooner is None else profile.name(verdict.sooner),
    }


def _cells(report: Report, record: dict[str, Cell]) -> list[str]:
    def interval(name: str) -> str:
        low, high = record[f"{name}_low"], record[f"{name}_high"]
        return UNKNOWN if low is None else f"{low:.2f} to {high:.2f}"

    p_value = record["adjusted_p"]
    return [
        record["group"],
        target_label(record["metric"], record["target"]),
        minutes_text(report, record["first_s"]),
        f"{record['ratio']:.2f}",
        interval("ratio_95"),
        interval("together_95"),
        UNKNOWN if p_value is None else f"{p_value:.2g}",
        record["faster"] or ("no test" if p_value is None else "undecided"),
    ]
