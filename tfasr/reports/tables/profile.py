"""Table of the winner by target: the ratio of two groups' times at targets of a whole range."""

from collections.abc import Callable, Sequence

from tfasr.analysis.names import metric_label, target_label
from tfasr.analysis.profiles import GroupProfile, profile_finding, profiles_of_groups
from tfasr.analysis.report import Report
from tfasr.display.table import UNKNOWN, Column, Table, fixed, table_of
from tfasr.reports.tables.runs import minutes_of
from tfasr.tta.target_profile import VERDICT_TARGETS

_METHOD = (
    f"Targets: {VERDICT_TARGETS} in equal ratios, over the range that every run of both groups "
    "missed once and then reached. Times: geometric means at the middles of the brackets. 95 % "
    "interval: at that target by itself. Together: intervals that hold at all targets and for all "
    "groups of the table at once with 95 % (Bonferroni); between the targets nothing is claimed. "
    "Faster: p < 0.05 after Holm's method over the same, and a gap larger than the time between "
    "evaluations."
)

Row = tuple[GroupProfile, int]
"""A group, and the number of a target of its verdicts."""


def profile_tables(report: Report, profiles: Sequence[GroupProfile]) -> list[Table]:
    """Returns for each metric a row for each group and target."""
    return [_table(report, metric, own) for metric, own in profiles_of_groups(profiles).items()]


def _table(report: Report, metric: str, profiles: Sequence[GroupProfile]) -> Table:
    rows = [
        (profile, number)
        for profile in profiles
        if profile.found is not None
        for number in range(len(profile.found.verdict_targets))
    ]
    runs = {run.group: index for index, run in reversed(list(enumerate(report.runs)))}
    return table_of(
        f"Winner by target: {metric_label(metric)}, times of {profiles[0].first} = 1",
        _columns(report),
        rows,
        [*(profile_finding(one) for one in profiles), _METHOD],
        colours=[runs[profile.group] for profile, _ in rows],
        name=f"profile_{metric}",
    )


def _columns(report: Report) -> list[Column[Row]]:
    def target(row: Row) -> float:
        return float(row[0].found.verdict_targets[row[1]])

    def along(name: str) -> Callable[[Row], float | None]:
        """Returns what finds a value at the row's target on the line through all targets."""

        def value(row: Row) -> float | None:
            values = getattr(row[0].found, name)
            place = row[1] * (len(row[0].found.targets) - 1) // (VERDICT_TARGETS - 1)
            return None if values is None else float(values[place])

        return value

    def at(name: str) -> Callable[[Row], float | None]:
        def value(row: Row) -> float | None:
            values = getattr(row[0].found, name)
            return None if values is None else float(values[row[1]])

        return value

    def interval(low: Callable, high: Callable) -> Callable[[Row], str]:
        return lambda row: UNKNOWN if low(row) is None else f"{low(row):.2f} to {high(row):.2f}"

    def adjusted_p(row: Row) -> float | None:
        return row[0].found.verdicts[row[1]].adjusted_p

    def faster(row: Row) -> str | None:
        sooner = row[0].found.verdicts[row[1]].sooner
        return None if sooner is None else row[0].name(sooner)

    return [
        Column("Runs", "group", lambda row: row[0].group),
        Column("", "first", lambda row: row[0].first),
        Column("", "metric", lambda row: row[0].metric),
        Column("target", "target", target, shown=lambda r: target_label(r[0].metric, target(r))),
        Column("first\nmin", "first_s", along("first_s"), minutes_of(report)),
        Column("times\nas long", "ratio", along("ratio"), fixed(2)),
        Column(
            "95 %\ninterval",
            "ratio_95_low",
            along("low"),
            shown=interval(along("low"), along("high")),
        ),
        Column("", "ratio_95_high", along("high")),
        Column(
            "95 %\ntogether",
            "together_95_low",
            at("together_low"),
            shown=interval(at("together_low"), at("together_high")),
        ),
        Column("", "together_95_high", at("together_high")),
        Column("p,\nadjusted", "adjusted_p", adjusted_p, lambda p: f"{p:.2g}"),
        Column("", "comparisons", lambda row: row[0].found.verdicts[row[1]].comparisons),
        Column(
            "faster",
            "faster",
            faster,
            missing=lambda row: "no test" if adjusted_p(row) is None else "undecided",
        ),
    ]
