"""The report's tables on runs, independent of the format in which they are written."""

from collections.abc import Iterable, Sequence

from tfasr.analysis.findings import one_run_each
from tfasr.analysis.names import target_label
from tfasr.analysis.report import Report, eval_s, train_s
from tfasr.display.intervals_look import INTERVAL_LABELS
from tfasr.display.table import NEVER, REFUSED, UNKNOWN, Records, Table
from tfasr.reports.tables.records import accuracy_records, throughput_records, time_records
from tfasr.tta.brackets import Bracket
from tfasr.tta.intervals import INTERVALS


def tables(report: Report) -> list[Table]:
    """Returns the report's tables: time to accuracy, where the time went, throughput."""
    return [_accuracy_table(report), _time_table(report), _throughput_table(report)]


def rule_text(report: Report) -> str:
    """Returns the sentence that says what a time to accuracy is."""
    rule = report.policy.rule
    if report.window != report.policy.window:
        rule += f"; here, by request, the median of the last {report.window}"
    return (
        f"Time to accuracy, policy {report.policy.name}: minutes {rule}. Downtime between sessions "
        f"is not counted. {NEVER}: never reached. Between: the last evaluation at which the rule "
        "was not met and the first at which it was."
    )


def minutes_text(report: Report, seconds: float | None, absent: str = UNKNOWN) -> str:
    """Returns minutes, with as many decimals in all tables as the longest run makes sensible."""
    if seconds is None:
        return absent
    longest = report.longest_s / 60
    return f"{seconds / 60:.{3 if longest < 1 else 2 if longest < 100 else 1}f}"


def _accuracy_table(report: Report) -> Table:
    names = [run.name for run in report.runs]
    columns: list[list[str]] = [["Run", *names]]
    for index, target in enumerate(report.targets):
        label = target_label(*target)
        ttas = [run.results[index].tta for run in report.runs]
        columns.append([f"{label}\nmin", *_minutes(report, [tta.seconds for tta in ttas], NEVER)])
        brackets = [run.results[index].bracket for run in report.runs]
        columns.append(["between", *(_between(report, bracket) for bracket in brackets)])
        columns.append(["epoch", *(str(tta.epoch) if tta.reached else NEVER for tta in ttas)])
        if len(report.runs) > 1:
            columns.append(
                ["relative", *(_relative(report, row, index) for row in range(len(names)))]
            )
    columns.append(["epochs\nrun", *(str(run.epochs) for run in report.runs)])
    relative = [_relative_note(report)] if len(names) > 1 else []
    run_notes = [f"{run.name}: {note}." for run in report.runs for note in run.notes]
    return _table(
        "Time to accuracy",
        columns,
        [rule_text(report), *relative, *report.notes, *run_notes],
        accuracy_records(report),
    )


def _relative_note(report: Report) -> str:
    said = f"Relative: the time as a share of that of {report.runs[0].name}"
    if len({run.group for run in report.runs}) < len(report.runs):
        return f"{said}, run by run; what groups of runs say together stands below."
    return f"{said}, of one run each (n = 1): {one_run_each()}."


def _time_table(report: Report) -> Table:
    spent = [run.intervals_s for run in report.runs]
    columns = [
        ["Run", *(run.name for run in report.runs)],
        ["wall\nmin", *_minutes(report, [run.wall_s for run in report.runs])],
        ["train\nmin", *_minutes(report, [train_s(intervals_s) for intervals_s in spent])],
        ["eval\nmin", *_minutes(report, [eval_s(intervals_s) for intervals_s in spent])],
    ]
    for name in INTERVALS:
        shares = [
            _share(intervals_s[name], run.wall_s)
            for intervals_s, run in zip(spent, report.runs, strict=True)
        ]
        if any(intervals_s[name] for intervals_s in spent):
            columns.append([f"{INTERVAL_LABELS[name]} %", *map(_percent, shares)])
    return _table(
        "Where the time went",
        columns,
        [
            "Wall: the whole run, from its first event to its last. Train: input wait, compilation "
            "and steps. Eval: forward passes, decoding, swaps of models, and waiting for another "
            "process to evaluate. The shares are of wall and add up to it."
        ],
        time_records(report),
    )


def _throughput_table(report: Report) -> Table:
    speeds = [run.throughput for run in report.runs]
    columns = [
        ["Run", *(run.name for run in report.runs)],
        ["utterances/s", *(_figure(speed.utterances_per_s) for speed in speeds)],
        *_until_targets(report),
        ["audio s/s", *(_figure(speed.audio_s_per_s) for speed in speeds)],
        ["input\nwait %", *(_percent(speed.input_wait_share) for speed in speeds)],
        ["padding\nefficiency %", *(_percent(speed.padding_efficiency) for speed in speeds)],
        ["batch", *(_count(run.facts.global_batch_size) for run in report.runs)],
        ["mean\nbatch", *(_batch(speed.mean_batch) for speed in speeds)],
        ["steps\nmeasured", *(str(speed.steps) for speed in speeds)],
        ["warm-up steps\nleft out", *(str(speed.warmup_steps) for speed in speeds)],
        ["tracing steps\nleft out", *(str(speed.traced_steps) for speed in speeds)],
    ]
    return _table(
        "Steady throughput",
        columns,
        [
            "Of steady steps over their own seconds: of the whole run, and of the steps until a "
            "target was met. Input wait: of those seconds and the waiting together, the share of "
            "waiting. Padding efficiency: real over padded frames, of all steps. Batch: the "
            "nominal one, and the mean utterances of all steps, smaller where an epoch ends in a "
            f"rest. {UNKNOWN}: nothing was left to measure, or not said."
        ],
        throughput_records(report),
    )


def _until_targets(report: Report) -> list[list[str]]:
    columns = []
    for index, target in enumerate(report.targets):
        parts = [run.results[index].parts for run in report.runs]
        rates = [_figure(of_run and of_run.utterances_per_s) for of_run in parts]
        columns.append([f"until\n{target_label(*target)}", *rates])
    return columns


def _count(number: object) -> str:
    return str(number) if isinstance(number, int) else UNKNOWN


def _batch(mean: float | None) -> str:
    return UNKNOWN if mean is None else f"{mean:.1f}"


def _table(
    title: str, columns: Sequence[Sequence[str]], notes: list[str], records: Records
) -> Table:
    headings = [column[0] for column in columns]
    rows = [list(row) for row in zip(*(column[1:] for column in columns), strict=True)]
    return Table(title, headings, rows, notes, records=records)


def _relative(report: Report, row: int, target: int) -> str:
    if report.refused(row):
        return REFUSED
    ratio = report.relative(row, target)
    return NEVER if ratio is None else f"{100 * ratio:.0f} %"


def _minutes(report: Report, seconds: Iterable[float | None], absent: str = UNKNOWN) -> list[str]:
    return [minutes_text(report, value, absent) for value in seconds]


def _between(report: Report, bracket: Bracket) -> str:
    if bracket.first_hit_s is None:
        return f"> {minutes_text(report, bracket.last_miss_s)}"
    ends = (bracket.last_miss_s, bracket.first_hit_s)
    return "–".join(minutes_text(report, end) for end in ends)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f}"


def _figure(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
