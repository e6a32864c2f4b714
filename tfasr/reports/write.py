"""Writes the report on runs: as text, and as tables, figures and a page in a folder.

This is where a report ends. `report` is what ``tfasr report`` calls: it asks a
`tfasr.reports.numbers.Question`, reads the runs (`tfasr.reports.groups`), and writes the
tables that `_tables` puts in order. `compare` gives the same numbers to notebooks and
programs. Figures and the page are imported late, as they are slow to load and text
does without them.
"""

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tfasr.display.table import (
    JSON,
    PREAMBLE,
    WRITERS,
    Column,
    Row,
    Table,
    at,
    check_format,
    dataframe,
    html_table,
    markdown_text,
    table_names,
    table_to_csv,
    table_to_latex,
    to_json_text,
    to_markdown,
    to_text,
    values_of,
)
from tfasr.kit.files import check_owned, write_whole
from tfasr.ledger.intervals import INTERVALS
from tfasr.reports.charges import Machines
from tfasr.reports.groups import (
    GroupResult,
    Results,
    colours,
    finding,
    group_members,
    group_results,
    load_report,
)
from tfasr.reports.numbers import (
    Report,
    RunAnalysis,
    ask,
    eval_s,
    holds_report,
    report_written_to,
    target_label,
    train_s,
)
from tfasr.reports.summary import headline_target, summary
from tfasr.reports.tables.machines import charges_json, cost_tables, worker_tables
from tfasr.reports.tables.paper import paper_tables, published_tables
from tfasr.reports.tables.runs import (
    RunAtTarget,
    accuracy_columns,
    at_targets,
    factor_tables,
    group_columns,
    group_tables,
    policy_tables,
    tables,
    throughput_columns,
    time_columns,
)
from tfasr.scoring.errors import read_transcripts, score
from tfasr.scoring.summary import summarise_scored
from tfasr.tta.metrics import Metrics, Target
from tfasr.tta.policies import PAPER, POLICIES, Policy
from tfasr.tta.published.results import PublishedSource, published
from tfasr.tta.run import Run, to_plot

if TYPE_CHECKING:
    import pandas as pd

    from tfasr.display.chart import Chart
    from tfasr.display.vega import Drawing
    from tfasr.reports.page import Section

# Formats for a training-time card, in addition to those of tables.
CARD = "card"
CARD_JSON = "card_json"
# The error rates on a card.
_RATES = ("wer", "cer")


def card(report: Report) -> dict[str, Any]:
    """Returns a training-time card: what training took, for a model's documentation.

    Runs are grouped by configuration. ``docs/card.schema.json`` describes it.
    """
    return {
        "card": 1,
        "targets": [
            {"metric": metric, "value": value} for metric, value in report.targets
        ],
        "groups": [
            {"name": group, "runs": [_run(report, index) for index in indices]}
            for group, indices in group_members(report.runs).items()
        ],
        "notes": report.notes,
    }


def _run(report: Report, index: int) -> dict[str, Any]:
    """Returns a run's part of a card; unknown values are None."""
    run = report.runs[index]
    clocks = report.question.beside
    targets = []

    for place in at_targets(report, index):
        by_policy_s = place.result.by_policy_s
        bracket = place.result.bracket
        targets.append(
            {
                "seconds": {
                    clock.name: by_policy_s.get(clock.name) for clock in clocks
                },
                "bracket_s": [bracket.last_miss_s, bracket.first_hit_s],
                "usd": at("charge.cost.usd")(place),
                "kwh": at("charge.cost.kwh")(place),
                "kwh_is": at("charge.cost.kwh_is")(place),
            }
        )

    device = ("processor", "cores", "gpus", "packages")

    return {
        "name": run.name,
        "seed": run.facts["seed"],
        "status": run.status,
        "sessions": run.sessions,
        "wall_s": run.wall_s,
        "machine_share": at("host.share")(run),
        "undisturbed_steps_s": at("host.undisturbed_s")(run),
        "error_rates": _best_rates(run),
        "targets": targets,
        "device": {name: run.facts["system"].get(name) for name in device},
        "utterances": run.facts["train_samples"],
        "batch_size": run.facts["global_batch_size"],
        "decoder": run.facts["decoder"],
    }


def _best_rates(run: RunAnalysis) -> dict[str, dict[str, Any] | None]:
    """Returns the error rates of the best checkpoint, the one that the report names.

    The 95 % interval, over utterances, needs that evaluation's hypotheses; it is None
    if they were not saved.
    """
    from tfasr.reports.errors import hypotheses_of_best

    hypotheses = hypotheses_of_best(run)
    scored = None
    if hypotheses is not None:
        scored = summarise_scored(score(read_transcripts(hypotheses)))

    rates: dict[str, dict[str, Any] | None] = {}
    for name in _RATES:
        value = run.value_at_best(name)
        if scored is not None:
            rates[name] = {
                "value": at(f"counts.{name}")(scored),
                "interval": at(f"{name}_interval")(scored),
            }
        elif value is not None:
            rates[name] = {"value": value, "interval": None}
        else:
            rates[name] = None

    return rates


def card_to_markdown(values: dict[str, Any], metrics: Metrics) -> str:
    """Returns a card as Markdown: a table for each group of runs.

    Args:
        values: of `card`.
        metrics: the report's, which name the targets.
    """
    lines = ["# Training-time card", ""]
    for group in values["groups"]:
        lines += [
            f"## {markdown_text(group['name'])}",
            "",
            "| what | value |",
            "|---|---|",
        ]
        for what, value in _card_rows(group["runs"], values["targets"], metrics):
            lines.append(f"| {what} | {value} |")

        lines.append("")

    lines.append("NA: unknown, or never reached.")
    lines += map(markdown_text, values["notes"])

    return "\n".join(lines) + "\n"


def _card_rows(
    runs: Sequence[dict[str, Any]], targets: Sequence[dict[str, Any]], metrics: Metrics
) -> Iterator[tuple[str, str]]:
    """Yields what a card shows of a group, and its values of all runs, as Markdown.

    The device is that of the first run.
    """
    device = runs[0]["device"]
    machine = [*(device["gpus"] or ()), str(device["processor"] or "n/a")]
    cores = device["cores"] or "n/a"
    yield "device", markdown_text(f"{', '.join(machine)}, {cores} cores")

    packages = device["packages"] or {}
    software = [
        f"{name} {packages[name]}"
        for name in ("tfasr", "tensorflow", "keras")
        if name in packages
    ]
    yield "software", markdown_text(", ".join(software) or "n/a")

    seeds = ", ".join(str(run["seed"]) for run in runs)
    yield "runs, seeds", markdown_text(f"{len(runs)}: {seeds}")

    for name in _RATES:
        rates = [run["error_rates"][name] for run in runs]
        what = f"best {name.upper()} % of each run, 95 % interval"
        yield what, _rates([rate for rate in rates if rate])

    for place, target in enumerate(targets):
        label = target_label(target["metric"], target["value"], metrics)
        reached = markdown_text(label)
        of_runs = [run["targets"][place] for run in runs]

        for policy in of_runs[0]["seconds"]:
            seconds = [of_run["seconds"][policy] for of_run in of_runs]
            yield f"seconds to {reached}, {markdown_text(policy)}", _numbers(seconds)

        for unit in ("usd", "kwh"):
            yield f"{unit} to {reached}", _numbers([of_run[unit] for of_run in of_runs])

    shares = [run["machine_share"] for run in runs]
    texts = [_or_na(share, "{:.0f}", scale=100) for share in shares]
    yield "of the processors that steps wanted, %", ", ".join(texts)


def _rates(rates: Sequence[dict[str, Any]]) -> str:
    """Formats error rates in percent, each with its interval if that is known."""
    texts = []
    for rate in rates:
        text = f"{100 * rate['value']:.1f}"
        if rate["interval"]:
            low, high = rate["interval"]
            text += f" ({100 * low:.1f} to {100 * high:.1f})"

        texts.append(text)

    return ", ".join(texts) or "NA"


def _or_na(value: float | None, text: str, scale: float = 1) -> str:
    """Formats a value, times a factor; "NA" for a missing one."""
    if value is None:
        return "NA"

    return text.format(scale * value)


def _numbers(values: Sequence[float | None]) -> str:
    """Formats the values of runs, with their median if several are known, and all."""
    texts = ", ".join(_or_na(value, "{:.4g}") for value in values)
    if len(values) > 1 and None not in values:
        return f"{texts}; median {median(values):.4g}"

    return texts


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs and their times to accuracy, each group of runs compared with the first one.

    Notebooks show it as tables.

    Attributes:
        report: everything that is known about the runs.
        results: for each target, a list with one result per group: statistics over its
            runs; for each run, the times between which it crossed the target; the ratio
            to the first group's time with its confidence interval; and the factors that
            explain this ratio.
    """

    report: Report
    results: list[list[GroupResult]]

    @property
    def targets(self) -> list[Target]:
        """Metrics and values, in the order of ``results``."""
        return self.report.targets

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The names of the runs of each group, the first group first."""
        runs = self.report.runs

        return {
            group: [runs[run].name for run in indices]
            for group, indices in group_members(runs).items()
        }

    def result(self, group: str, **target: float) -> GroupResult:
        """Returns a group's result for a target, as in ``result("batch_64", cer=0.10)``.

        Raises:
            ValueError: if there is no such group, or the runs were not compared at that
                target.
        """
        wanted = list(target.items())
        for of_target in self.results:
            for result in of_target:
                if result.group == group and wanted == [result.target]:
                    return result

        raise ValueError(
            f"A result must be of one of the groups {list(self.groups)} and one of the "
            f"targets {self.targets}. Received: {group!r}, {target}."
        )

    @property
    def findings(self) -> list[str]:
        """A sentence for each target and each group but the first.

        It says which of the two is faster, how sure that is, and why.
        """
        return [finding(row[0], other) for row in self.results for other in row[1:]]

    @property
    def tables(self) -> list[Table]:
        """The tables of the report: of all runs, of groups, of factors, of intervals."""
        first, *others = tables(self.report)
        groups = group_tables(self.report, self.results)
        factors = factor_tables(self.report, self.results)

        return [first, *groups, *factors, *others]

    def to_dataframe(self) -> "pd.DataFrame":
        """Returns a row for each run and target: times in seconds, rates as fractions.

        The columns are those of the table's CSV; unknown values and unreached targets
        are missing. Raises `UsageError` if pandas is not installed.
        """
        report = self.report
        of_target = accuracy_columns(report)
        of_run = [*time_columns(report), *throughput_columns(report)]
        rows = []

        for index, run in enumerate(report.runs):
            about = values_of(of_run, run)
            places = at_targets(report, index)
            of_targets = [values_of(of_target, place) for place in places]
            # Without targets a run still has a row.
            rows += [row | about for row in of_targets or [{}]]

        return dataframe(rows, ["run", "group"])

    def groups_to_dataframe(self) -> "pd.DataFrame":
        """Returns a row for each group and target; raises `UsageError` without pandas."""
        columns = group_columns(self.report)
        rows = [
            values_of(columns, result)
            for of_target in self.results
            for result in of_target
        ]

        return dataframe(rows, ["group"])

    def __repr__(self) -> str:
        findings = "".join(f"{sentence}\n" for sentence in self.findings)
        if findings:
            findings += "\n"

        return f"{findings}{to_text(self.tables)}".rstrip("\n")

    def _repr_markdown_(self) -> str:
        findings = "".join(f"- {sentence}\n" for sentence in self.findings)
        return f"{findings}\n{to_markdown(self.tables)}"

    def plot(self, metric: str = "") -> "Drawing":
        """Draws a metric over time, by default that of the first target.

        Notebooks show the result. Raises `UsageError` if no evaluation has the metric.
        """
        # Imported here: drawing is slow to load, and text does without.
        from tfasr.display.vega import Drawing
        from tfasr.reports.figures.curves import error_rate_chart

        evaluated = dict.fromkeys(
            name for run in self.report.runs for name in run.curves
        )
        plotted = to_plot(metric, self.targets, list(evaluated))

        return Drawing(error_rate_chart(self.report, plotted))

    def _repr_html_(self) -> str:
        # Notebooks align cells right, unless told otherwise.
        align_left = ' style="text-align:left"'
        shown = []
        findings = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.findings)

        if findings:
            shown.append(f"<p{align_left}>Findings</p><ul{align_left}>{findings}</ul>")

        for table in self.tables:
            headings = [" ".join(heading.split()) for heading in table.columns]
            shown.append(html_table(headings, table.rows, table.title))

        # The first note explains what "never" in the tables means.
        rule = self.tables[0].notes[0]
        return f"{''.join(shown)}<p{align_left}>{escape(rule)}</p>"


def compare(
    runs: Sequence[str | Path | Run] | str | Path | Run,
    *others: str | Path | Run,
    targets: Iterable[str | Target] = (),
    policy: str | Policy = PAPER,
    window: int | None = None,
    force: bool = False,
    test: str = "groups",
) -> Comparison:
    """Compares times to accuracy of runs or groups of runs.

    Args:
        runs: run folders, published logs, or runs from `tfasr.load_run`, as a list or
            as separate arguments. A folder that contains several of them is a group of
            runs of one configuration. All others are compared with the first.
        targets: metrics and values, as ``("cer", 0.10)`` or "cer=0.10"; by default
            those that the runs set themselves.
        policy: a `tfasr.tta.policies.Policy` or its name: how time counts and when a
            target is met.
        window: the evaluations whose median must meet a target; by default the
            policy's.
        force: compare runs whose results are not comparable.
        test: which test decides who is faster; choose it before you see the runs.
            "pairs" compares runs of equal seeds that were trained one after the other
            on one machine, "groups" any runs. Runs of one study that decided by looks
            are compared as it declared.

    Raises:
        UsageError: if there is no run, a path contains none, a target is wrong, there
            is no such policy or test, or the window is less than 1.
    """
    if isinstance(runs, str | Path | Run):
        runs = [runs]

    question = ask(targets, policy, window, force=force, test=test)
    report = load_report([*runs, *others], question)

    return Comparison(report, group_results(report))


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """Writes each table as a CSV, and as a LaTeX file that a document can include."""
    for name, table in zip(table_names(tables), tables, strict=True):
        write_whole(folder / f"{name}.csv", table_to_csv(table))
        write_whole(folder / f"{name}.tex", PREAMBLE + table_to_latex(table, name))


def to_json(report: Report) -> str:
    """Returns JSON with an object for each run and target, times in seconds.

    Without targets there is one object for each run.
    """
    of_target = accuracy_columns(report)
    of_run = [*time_columns(report), *throughput_columns(report)]
    charges = charges_json(report)
    # What a run has in place of a target's values.
    untimed = dict.fromkeys(("metric", "target", "time_to_accuracy_s", "epoch"))

    objects = []
    for index, run in enumerate(report.runs):
        about = {
            **_times(run.intervals_s),
            **_others(of_run, run, _TIMES),
            "epochs": run.epochs,
            "sessions": run.sessions,
            "status": run.status,
            "path": str(run.path),
            "differs_from_first": report.differences[index],
            "notes": run.notes,
        }
        rows = [
            _result(place, values_of(of_target, place)) | charges(place)
            for place in at_targets(report, index)
        ]
        objects += [{"run": run.name} | row | about for row in rows or [untimed]]

    return to_json_text(objects)


def groups_to_json(report: Report, results: Results) -> str:
    """Returns JSON with an object for each target and group of runs.

    Lists within it have an item for each of the group's ``runs``.
    """
    charges = charges_json(report)
    objects = [
        _group(report, result, charges) for of_target in results for result in of_target
    ]

    return to_json_text(objects)


# Columns of tables that JSON has under another name or within another object.
_TIMES = {
    "run",
    "group",
    "wall_s",
    "training_total_s",
    "evaluation_total_s",
    *(f"{name}_s" for name in INTERVALS),
}
_IN_GROUPS = {
    "ratio_to_first",
    "ratio_95_low",
    "ratio_95_high",
    "ratio_by_rule",
    "p_value",
    "p_adjusted",
    "median_95_low_s",
    "median_95_high_s",
}


def _others(
    columns: Sequence[Column[Row]], row: Row, stated: Container[str]
) -> dict[str, Any]:
    """Returns a row's values by name, without those that are stated elsewhere."""
    values = values_of(columns, row)
    return {name: value for name, value in values.items() if name not in stated}


def _group(
    report: Report,
    result: GroupResult,
    charges: Callable[[RunAtTarget], dict[str, Any]],
) -> dict[str, Any]:
    """Returns a group's result for programs: its runs, statistics, test and factors."""
    target = report.targets.index(result.target)
    places = [RunAtTarget(report, run, target) for run in result.members]
    brackets = result.brackets

    comparison = result.comparison
    against_first = None
    if comparison is not None:
        against_first = dataclasses.asdict(comparison)
        against_first["sooner"] = comparison.sooner
        against_first["verdict"] = comparison.verdict

    factors = None
    if result.decomposition is not None:
        factors = dataclasses.asdict(result.decomposition)

    record = {
        "group": result.group,
        "policy": report.policy.name,
        "window": report.window,
        "metric": result.target[0],
        "target": result.target[1],
        "runs": [place.run.name for place in places],
        "time_to_accuracy_s": [place.result.tta.seconds for place in places],
        "epoch": [place.result.tta.epoch for place in places],
        "bracket": [[ends.last_miss_s, ends.first_hit_s] for ends in brackets],
        "interpolated_s": [bracket.interpolated_s for bracket in brackets],
        **dataclasses.asdict(result.statistics),
        "against_first": against_first,
        "factors": factors,
        "charges": [charges(place) for place in places],
    }
    stated = record.keys() | _IN_GROUPS

    return record | _others(group_columns(report), result, stated)


def _result(at: RunAtTarget, values: dict[str, Any]) -> dict[str, Any]:
    """Returns a run's time to a target for programs.

    ``values`` has the values of `accuracy_columns` and is used up: what it still holds
    stands between the bracket and the seconds by interval.
    """
    for elsewhere in ("run", "group", "comparison_refused", "epochs"):
        del values[elsewhere]

    first = {
        name: values.pop(name)
        for name in (
            "metric",
            "target",
            "policy",
            "window",
            "time_to_accuracy_s",
            "epoch",
            "value",
        )
    }
    until_target = None
    if at.result.until_s is not None:
        until_target = _times(at.result.until_s)

    return {
        **first,
        "relative": values.pop("relative_to_first"),
        "bracket": [values.pop("last_miss_s"), values.pop("first_hit_s")],
        **values,
        "until_target": until_target,
    }


def _times(intervals_s: dict[str, float]) -> dict[str, Any]:
    """Returns sums of a run's seconds by interval, and the seconds themselves.

    Sums are rounded to microseconds, the clock's resolution.
    """
    return {
        "train_s": round(train_s(intervals_s), 6),
        "eval_s": round(eval_s(intervals_s), 6),
        "wall_s": round(math.fsum(intervals_s.values()), 6),
        "lost_work_s": intervals_s["lost_work"],
        "intervals_s": intervals_s,
    }


# For messages on a folder that holds other files.
_OWN = ("--out", "report of tfasr")
# Files of every report, and of reports on errors; those of tables and figures are added
# later.
_FILES = (
    "report.html",
    "report.json",
    "report.md",
    "groups.json",
    "card.md",
    "card.json",
    "errors.txt",
    "errors.md",
    "errors.json",
    "errors.csv",
)


def report(
    run_dirs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    output_format: str = "table",
    targets: Iterable[str | Target] = (),
    policy: str | Policy | None = None,
    window: int | None = None,
    power: bool = False,
    force: bool = False,
    hardware: Iterable[str] = (),
    price_usd_per_hour: float | None = None,
    errors: bool = False,
    worst: int = 10,
    normalise: str = "",
    language: str = "",
    many: bool = False,
    beside: str | None = None,
) -> str:
    """Returns the report on runs as text; with ``out`` also writes figures and
    ``report.html``.

    Args:
        run_dirs: run folders, published logs, or folders of them. Such a folder is a
            group of runs of one configuration. All others are compared with the first.
        out: a folder for ``report.html``, ``report.md``, ``report.json``, a CSV and a
            LaTeX file of each table and a PNG and an SVG of each figure; it is created
            if missing.
        output_format: "table", "markdown", "latex", "csv", "json" or another of
            `WRITERS`. LaTeX and CSV hold all tables; CSV holds seconds and fractions,
            unrounded. "card" and "card_json": see `docs/card.schema.json`.
        targets: as ``("cer", 0.10)`` or "cer=0.10"; by default those that the runs set
            themselves.
        policy: how time is counted and when a target is met: a
            `tfasr.tta.policies.Policy` or its name; "paper" by default. If given, the
            tables show all policies, and JSON has an object for each group instead of
            each run.
        window: the evaluations whose median must meet a target; by default the
            policy's.
        power: also say how many runs would show a gap of 10 %.
        force: compare runs whose results are not comparable, and say what differs.
        hardware: machines, "FILE" for all runs or "NAME=FILE" for the run or folder of
            that name; by default what a run's own ledger says.
        price_usd_per_hour: the machines' rent, instead of what their descriptions
            state.
        errors: return a report on the errors in the runs' hypotheses instead;
            ``run_dirs`` may then include files of hypotheses too.
        worst: how many of the worst utterances a report on errors aligns.
        normalise: a name in `tfasr.normalisers.NORMALISERS`: what a report on errors
            does to references and hypotheses first; "" for lower case alone.
        language: a BCP 47 tag whose rules for case hold in a report on errors.
        many: read many runs in several processes.
        beside: whose published results to show too, such as "paper".

    Raises:
        UsageError: if there is no run, a folder contains none, an argument is wrong, or
            the report would overwrite files in ``out`` that no report has written.
        RunError: if ``out`` cannot be written.
    """
    cards = output_format in (CARD, CARD_JSON)
    if not cards:
        check_format(output_format)

    # Looked at before anything is written there.
    owned = False
    if out is not None:
        owned = holds_report(Path(out))
        check_owned(Path(out), *_OWN, _FILES, owned=owned)

    source = None
    use = False
    if beside is not None:
        source = published(beside)
        use = any(table.kind == "use" for table in source.tables.values())

    policies = ()
    full = cards or policy is not None or output_format in ("latex", "csv")
    if full or out is not None:
        policies = POLICIES.values()

    question = ask(
        targets,
        policy or PAPER,
        window,
        beside=policies,
        over_time=out is not None,
        force=force,
        utilisation=use,
    )
    logs = run_dirs
    if errors:
        from tfasr.reports.errors import TextRule, errors_text, is_hypotheses

        rule = TextRule(normalise, language)
        logs = [path for path in run_dirs if not is_hypotheses(path)]
        if not logs:
            wrong, section = errors_text(run_dirs, [], worst, output_format, out, rule)
            if out is not None:
                # Imported here: drawing is slow to load.
                from tfasr.reports.page import write_document

                write_document(Path(out) / "report.html", "Errors", [section])

            return wrong

    machines = Machines(hardware, price_usd_per_hour)
    analysed = load_report(logs, question, machines=machines, many=many)

    # Comparing groups takes long for many runs, and some formats show none of it.
    results = []
    by_run = cards or (output_format == JSON and policy is None)
    if out is not None or not (errors or by_run):
        results = group_results(analysed)

    wrong = ""
    appendix = ""
    if errors:
        wrong, appendix = errors_text(
            run_dirs, analysed.runs, worst, output_format, out, rule
        )

    if out is not None:
        shown = _tables(analysed, results, True, power, source)
        _write(analysed, results, Path(out), shown, appendix, owned=owned)

    if errors:
        return wrong

    if cards:
        values = card(analysed)
        if output_format == CARD_JSON:
            return to_json_text(values)

        return card_to_markdown(values, analysed.metrics)

    if output_format == JSON:
        if policy is None:
            return to_json(analysed)

        return groups_to_json(analysed, results)

    return WRITERS.call(output_format, _tables(analysed, results, full, power, source))


# The page's sections, and how the names of their tables and figures begin. What begins
# otherwise, such as a user's own figure, is among the curves.
_SECTIONS = {
    "Every run": ("time_to_accuracy", "brackets"),
    "How sure the comparison is": ("groups_",),
    "Why one takes longer": ("why",),
    "Where the time went": ("where_the_time_went", "steady", "intervals", "host"),
    "Cost and energy": ("cost",),
    "Workers of a cluster": ("worker", "exchange"),
    "Other clocks and rules": ("policies_",),
    "Published results": ("beside_",),
    "Machines and evaluations": ("systems", "epochs", "evaluation", "utilisation"),
    "Curves of errors, loss and speed": ("",),
}
# Titles of sections in the page's list of contents, if the whole one is too long.
_SHORT = {
    "How sure the comparison is": "How sure",
    "Why one takes longer": "Why",
    "Curves of errors, loss and speed": "Curves",
    "Workers of a cluster": "Workers",
    "Machines and evaluations": "Machines",
}


def _sections(
    report: Report,
    shown: Sequence[Table],
    charts: Sequence["Chart"],
    left_out: Sequence[str],
) -> list["Section"]:
    """Returns the page's folded parts: each with its tables, its figures or both.

    Args:
        report: the runs, for their colours.
        shown: the tables.
        charts: the figures.
        left_out: why other figures are missing, for the last section.
    """
    from tfasr.reports.page import Section

    tables: dict[str, list[Table]] = {}
    for name, table in zip(table_names(shown), shown, strict=True):
        tables.setdefault(_section_of(name), []).append(table)

    figures: dict[str, list[Chart]] = {}
    for chart in charts:
        figures.setdefault(_section_of(chart.name), []).append(chart)

    notes = {}
    if left_out:
        notes[list(_SECTIONS)[-1]] = left_out

    return [
        Section(
            title,
            _SHORT.get(title, ""),
            tables=tables.get(title, ()),
            of_runs=colours(report),
            charts=figures.get(title, ()),
            notes=notes.get(title, ()),
        )
        for title in _SECTIONS
        if title in tables or title in figures or title in notes
    ]


def _section_of(name: str) -> str:
    """Returns the section of the table or figure with a file name."""
    return next(title for title, starts in _SECTIONS.items() if name.startswith(starts))


def _tables(
    report: Report,
    results: Results,
    full: bool,
    power: bool,
    source: PublishedSource | None,
) -> list[Table]:
    """Returns the report's tables in the order of all formats.

    Args:
        report: the runs.
        results: of `group_results`.
        full: whether to include all clock policies and the paper's tables.
        power: whether to say how many runs would show a gap of 10 %.
        source: whose published results to add; None for none.
    """
    first, *others = tables(report)
    shown = [
        summary(report, results).table,
        first,
        *group_tables(report, results, power=power),
        *factor_tables(report, results),
        *cost_tables(report),
        *worker_tables(report),
    ]
    if full:
        shown += policy_tables(report)
        shown += paper_tables(report, results)

    shown += others
    if source is not None:
        shown += published_tables(report, source)

    return shown


def _write(
    report: Report,
    results: Results,
    out: Path,
    shown: Sequence[Table],
    appendix: str,
    *,
    owned: bool,
) -> None:
    """Writes a report's files into a folder: page, tables, figures, JSON, card.

    Args:
        report: the runs.
        results: of `group_results`.
        out: the folder.
        shown: all tables, the summary first.
        appendix: the report on errors as HTML; "" for none.
        owned: whether an earlier report wrote the files in the folder.
    """
    # Imported here: drawing is the slowest thing to load, and text does without.
    from tfasr.reports.figures.registry import report_charts
    from tfasr.reports.page import (
        FirstScreen,
        Section,
        comparability_section,
        configuration_section,
        write_page,
    )

    charts, left_out = report_charts(report, results)
    names = [f"{name}.{kind}" for name in table_names(shown) for kind in ("csv", "tex")]
    names += [f"{chart.name}.{kind}" for chart in charts for kind in ("svg", "png")]
    check_owned(out, *_OWN, names, owned=owned)

    # The summary and one curve are on the first screen, all else is folded below it.
    curve = first_chart(results, charts, report.metrics)
    others = [chart for chart in charts if chart is not curve]
    sections = _sections(report, shown[1:], others, left_out)

    if appendix:
        sections.append(Section("Errors", html=appendix))

    sections += comparability_section(report)
    sections += configuration_section(report)

    with report_written_to(out):
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "report.json", to_json(report))
        write_whole(out / "groups.json", groups_to_json(report, results))
        write_whole(out / "report.md", to_markdown(shown))
        values = card(report)
        write_whole(out / "card.md", card_to_markdown(values, report.metrics))
        write_whole(out / "card.json", to_json_text(values))
        write_tables(shown, out)
        first = FirstScreen(summary(report, results), colours(report), curve)
        write_page("Time to accuracy", first, sections, out)


def first_chart(
    results: Results, charts: Sequence["Chart"], metrics: Metrics
) -> "Chart | None":
    """Returns the chart of the metric that the verdict is about, or the first of all.

    None if there is no chart.
    """
    target = headline_target(results, metrics)
    if target is not None:
        for chart in charts:
            if chart.name == target[0]:
                return chart

    return next(iter(charts), None)
