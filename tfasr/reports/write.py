"""Writes the report on runs: as text, and as tables, figures and a page in a folder."""

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Sequence
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
from tfasr.tta.metrics import Target
from tfasr.tta.policies import PAPER, POLICIES, Policy
from tfasr.tta.published.results import PublishedSource, published
from tfasr.tta.run import Run, to_plot

if TYPE_CHECKING:
    import pandas as pd

    from tfasr.display.chart import Chart
    from tfasr.display.vega import Drawing
    from tfasr.reports.page import Section

CARD = "card"
CARD_JSON = "card_json"
_RATES = ("wer", "cer")


def card(report: Report) -> dict[str, Any]:
    """Returns a training-time card, see `docs/card.schema.json`: runs grouped by
    configuration.
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
    targets = [
        {
            "seconds": {
                p.name: of.result.by_policy_s.get(p.name)
                for p in report.question.beside
            },
            "bracket_s": [of.result.bracket.last_miss_s, of.result.bracket.first_hit_s],
            **{
                name: at(f"charge.cost.{name}")(of) for name in ("usd", "kwh", "kwh_is")
            },
        }
        for of in at_targets(report, index)
    ]
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
            interval = at(f"{name}_interval")(scored)
            rates[name] = {"value": at(f"counts.{name}")(scored), "interval": interval}
        elif value is not None:
            rates[name] = {"value": value, "interval": None}
        else:
            rates[name] = None

    return rates


def card_to_markdown(values: dict[str, Any]) -> str:
    lines = ["# Training-time card", ""]
    for group in values["groups"]:
        runs = group["runs"]
        device = runs[0]["device"]
        machine = ", ".join(
            [*(device["gpus"] or ()), f"{device['processor'] or 'n/a'}"]
        )
        packages = device["packages"] or {}
        software = ", ".join(f"{name} {packages[name]}" for name in ("tfasr", "tensorflow", "keras")
                             if name in packages)  # fmt: skip
        seeds = ", ".join(str(run["seed"]) for run in runs)
        lines += [
            f"## {markdown_text(group['name'])}",
            "",
            "| what | value |",
            "|---|---|",
        ]
        rows = {
            "device": f"{machine}, {device['cores'] or 'n/a'} cores",
            "software": software or "n/a",
            "runs, seeds": f"{len(runs)}: {seeds}",
        }
        lines += [f"| {what} | {markdown_text(text)} |" for what, text in rows.items()]
        for name in _RATES:
            rates = [rate for run in runs if (rate := run["error_rates"][name])]
            lines += [
                f"| best {name.upper()} % of each run, 95 % interval | {_rates(rates)} |"
            ]

        for number, target in enumerate(values["targets"]):
            reached = markdown_text(target_label(target["metric"], target["value"]))
            of_runs = [run["targets"][number] for run in runs]
            for policy in of_runs[0]["seconds"]:
                label = f"seconds to {reached}, {markdown_text(policy)}"
                lines.append(
                    f"| {label} | {_numbers([t['seconds'][policy] for t in of_runs])} |"
                )

            for unit in ("usd", "kwh"):
                label = f"{unit} to {reached}"
                lines.append(f"| {label} | {_numbers([t[unit] for t in of_runs])} |")

        shares = [run["machine_share"] for run in runs]
        lines.append(
            f"| of the processors that steps wanted, % | {_percents(shares)} |"
        )
        lines.append("")

    lines += ["NA: unknown, or never reached.", *map(markdown_text, values["notes"])]
    return "\n".join(lines) + "\n"


def _rates(rates: list[dict[str, Any]]) -> str:
    texts = []
    for rate in rates:
        interval = rate["interval"]
        if interval:
            ends = f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"
        else:
            ends = ""

        texts.append(f"{100 * rate['value']:.1f}{ends}")

    return ", ".join(texts) or "NA"


def _percents(shares: list[float | None]) -> str:
    return ", ".join(
        "NA" if share is None else f"{100 * share:.0f}" for share in shares
    )


def _numbers(values: list[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    texts = ", ".join("NA" if value is None else f"{value:.4g}" for value in values)
    if len(numbers) == len(values) > 1:
        return f"{texts}; median {median(numbers):.4g}"

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
        members = group_members(self.report.runs)
        return {
            group: [runs[run].name for run in indices]
            for group, indices in members.items()
        }

    def result(self, group: str, **target: float) -> GroupResult:
        """Returns a group's result for a target, as in ``result("batch_64", cer=0.10)``.

        Raises:
            ValueError: if there is no such group, or the runs were not compared at that
                target.
        """
        wanted = [*target.items()]
        for of_target in self.results:
            for result in of_target:
                if result.group == group and wanted == [result.target]:
                    return result

        raise ValueError(
            f"A result must be of one of the groups {list(self.groups)} and one of the targets "
            f"{self.targets}. Received: {group!r}, {target}."
        )

    @property
    def findings(self) -> list[str]:
        """A sentence for each target and each group but the first: which is faster, and
        why.
        """
        return [finding(row[0], other) for row in self.results for other in row[1:]]

    @property
    def tables(self) -> list[Table]:
        first, *others = tables(self.report)
        more = group_tables(self.report, self.results) + factor_tables(
            self.report, self.results
        )
        return [first, *more, *others]

    def to_dataframe(self) -> "pd.DataFrame":
        """Returns a row for each run and target: times in seconds, rates as fractions.

        The columns are those of the table's CSV; unknown values and unreached targets
        are missing. Raises `UsageError` if pandas is not installed.
        """
        report = self.report
        rows = []
        of_target = accuracy_columns(report)
        of_run = [*time_columns(report), *throughput_columns(report)]
        for index, run in enumerate(report.runs):
            of_targets = [
                values_of(of_target, place) for place in at_targets(report, index)
            ]
            about = values_of(of_run, run)
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
        findings = [*self.findings, ""] if self.findings else []
        return "\n".join([*findings, to_text(self.tables)]).rstrip("\n")

    def _repr_markdown_(self) -> str:
        findings = "".join(f"- {sentence}\n" for sentence in self.findings)
        return f"{findings}\n{to_markdown(self.tables)}"

    def plot(self, metric: str = "") -> "Drawing":
        """Draws a metric over time, by default that of the first target; notebooks show
        the result.

        Raises UsageError if no evaluation has the metric.
        """
        # Imported here: drawing is slow to load, and text does without.
        from tfasr.display.vega import Drawing
        from tfasr.reports.figures.curves import error_rate_chart

        evaluated = list(
            dict.fromkeys(name for run in self.report.runs for name in run.curves)
        )
        return Drawing(
            error_rate_chart(self.report, to_plot(metric, self.targets, evaluated))
        )

    def _repr_html_(self) -> str:
        findings = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.findings)
        align_left = ' style="text-align:left"'  # notebooks align cells right
        if findings:
            shown = [f"<p{align_left}>Findings</p><ul{align_left}>{findings}</ul>"]
        else:
            shown = []

        for table in self.tables:
            headings = [" ".join(heading.split()) for heading in table.columns]
            shown.append(html_table(headings, table.rows, table.title))

        rule = self.tables[0].notes[0]  # explains what "never" in the tables means
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
    first = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    sources = [*first, *others]
    report = load_report(sources, ask(targets, policy, window, force=force, test=test))
    return Comparison(report, group_results(report))


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    for name, table in zip(table_names(tables), tables, strict=True):
        write_whole(folder / f"{name}.csv", table_to_csv(table))
        write_whole(folder / f"{name}.tex", PREAMBLE + table_to_latex(table, name))


def to_json(report: Report) -> str:
    """Returns JSON with an object for each run and target, times in seconds.

    Without targets there is one object for each run.
    """
    objects = []
    of_target = accuracy_columns(report)
    charges = charges_json(report)
    of_run = [*time_columns(report), *throughput_columns(report)]
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
        places = at_targets(report, index)
        rows = [
            _result(place, values_of(of_target, place)) | charges(place)
            for place in places
        ]
        empty = {
            "metric": None,
            "target": None,
            "time_to_accuracy_s": None,
            "epoch": None,
        }
        objects.extend({"run": run.name, **row, **about} for row in rows or [empty])

    return to_json_text(objects)


def groups_to_json(report: Report, results: Results) -> str:
    """Returns an object for each group of runs and target, with lists over the group's
    ``runs``.
    """
    charges = charges_json(report)
    objects = [
        _group(report, result, charges) for of_target in results for result in of_target
    ]
    return to_json_text(objects)


# Columns of tables that JSON has under another name or within another object.
_TIMES = {"run", "group", "wall_s", "training_total_s", "evaluation_total_s"}
_TIMES |= {f"{name}_s" for name in INTERVALS}
_AGAINST_FIRST = {"ratio_to_first", "ratio_95_low", "ratio_95_high", "ratio_by_rule"}
_AGAINST_FIRST |= {"p_value", "p_adjusted"}
_INTERVAL = {"median_95_low_s", "median_95_high_s"}


def _others(
    columns: Sequence[Column[Row]], row: Row, stated: Container[str]
) -> dict[str, Any]:
    return {
        name: v for name, v in values_of(columns, row).items() if name not in stated
    }


def _group(
    report: Report,
    result: GroupResult,
    charges: Callable[[RunAtTarget], dict[str, Any]],
) -> dict[str, Any]:
    target = report.targets.index(result.target)
    ttas = [report.runs[run].results[target].tta for run in result.members]
    comparison = result.comparison
    product = result.decomposition
    against_first = None
    if comparison is not None:
        derived = ("sooner", "verdict")
        against_first = dataclasses.asdict(comparison)
        against_first |= {name: getattr(comparison, name) for name in derived}

    record = {
        "group": result.group,
        "policy": report.policy.name,
        "window": report.window,
        "metric": result.target[0],
        "target": result.target[1],
        "runs": [report.runs[run].name for run in result.members],
        "time_to_accuracy_s": [tta.seconds for tta in ttas],
        "epoch": [tta.epoch for tta in ttas],
        "bracket": [
            [bracket.last_miss_s, bracket.first_hit_s] for bracket in result.brackets
        ],
        "interpolated_s": [bracket.interpolated_s for bracket in result.brackets],
        **dataclasses.asdict(result.statistics),
        "against_first": against_first,
        "factors": None if product is None else dataclasses.asdict(product),
        "charges": [
            charges(RunAtTarget(report, run, target)) for run in result.members
        ],
    }
    stated = record.keys() | _AGAINST_FIRST | _INTERVAL
    return record | _others(group_columns(report), result, stated)


def _result(at: RunAtTarget, values: dict[str, Any]) -> dict[str, Any]:
    for elsewhere in ("run", "group", "comparison_refused", "epochs"):
        del values[elsewhere]
    first = (
        "metric",
        "target",
        "policy",
        "window",
        "time_to_accuracy_s",
        "epoch",
        "value",
    )
    until_s = at.result.until_s
    return {
        **{name: values.pop(name) for name in first},
        "relative": values.pop("relative_to_first"),
        "bracket": [values.pop("last_miss_s"), values.pop("first_hit_s")],
        **values,
        "until_target": None if until_s is None else _times(until_s),
    }


def _times(intervals_s: dict[str, float]) -> dict[str, Any]:
    return {
        # Microseconds are the clock's resolution; smaller differences are rounding of
        # sums.
        "train_s": round(train_s(intervals_s), 6),
        "eval_s": round(eval_s(intervals_s), 6),
        "wall_s": round(math.fsum(intervals_s.values()), 6),
        "lost_work_s": intervals_s["lost_work"],
        "intervals_s": intervals_s,
    }


_OWN = ("--out", "report of tfasr")  # for messages on a folder that holds other files
# Files of every report, and of reports on errors; those of tables and figures are added
# later.
_FILES = (
    *("report.html", "report.json", "report.md", "groups.json", "card.md", "card.json"),
    *("errors.txt", "errors.md", "errors.json", "errors.csv"),
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
    # Before errors_text writes there.
    owned = out is not None and holds_report(Path(out))
    if out is not None:
        check_owned(Path(out), *_OWN, _FILES, owned=owned)
    source = None if beside is None else published(beside)
    full = policy is not None or output_format in ("latex", "csv", CARD, CARD_JSON)
    policies = POLICIES.values() if full or out is not None else ()
    use = source is not None and any(
        table.kind == "use" for table in source.tables.values()
    )
    options = {"over_time": out is not None, "force": force, "utilisation": use}
    question = ask(targets, policy or PAPER, window, beside=policies, **options)
    logs = run_dirs
    if errors:
        from tfasr.reports.errors import TextRule, errors_text, is_hypotheses

        rule = TextRule(normalise, language)
        logs = [path for path in run_dirs if not is_hypotheses(path)]
        if not logs:
            wrong, section = errors_text(run_dirs, [], worst, output_format, out, rule)
            if out is not None:
                from tfasr.reports.page import write_document  # drawing is slow to load

                write_document(Path(out) / "report.html", "Errors", [section])

            return wrong

    machines = Machines(hardware, price_usd_per_hour)
    analysed = load_report(logs, question, machines=machines, many=many)
    by_run = cards or (output_format == JSON and policy is None)
    grouped = out is not None or not (errors or by_run)
    results = group_results(analysed) if grouped else []
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

        return card_to_markdown(values)

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
    """Returns the page's folded parts: each with its tables, its figures or both."""
    from tfasr.reports.page import Section

    tables: dict[str, list[Table]] = {}
    for name, table in zip(table_names(shown), shown, strict=True):
        tables.setdefault(_section_of(name), []).append(table)

    figures: dict[str, list[Chart]] = {}
    for chart in charts:
        figures.setdefault(_section_of(chart.name), []).append(chart)

    sections = []
    last = list(_SECTIONS)[-1]
    for title in _SECTIONS:
        notes = left_out if title == last else ()
        if title in tables or title in figures or notes:
            section = Section(
                title,
                _SHORT.get(title, ""),
                tables=tables.get(title, ()),
                of_runs=colours(report),
                charts=figures.get(title, ()),
                notes=notes,
            )
            sections.append(section)

    return sections


def _section_of(name: str) -> str:
    return next(title for title, starts in _SECTIONS.items() if name.startswith(starts))


def _tables(
    report: Report,
    results: Results,
    full: bool,
    power: bool,
    source: PublishedSource | None,
) -> list[Table]:
    first, *others = tables(report)
    return [
        summary(report, results).table,
        first,
        *group_tables(report, results, power=power),
        *factor_tables(report, results),
        *cost_tables(report),
        *worker_tables(report),
        *([*policy_tables(report), *paper_tables(report, results)] if full else []),
        *others,
        *([] if source is None else published_tables(report, source)),
    ]


def _write(
    report: Report,
    results: Results,
    out: Path,
    shown: Sequence[Table],
    appendix: str,
    *,
    owned: bool,
) -> None:
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
    details = shown[1:]
    curve = first_chart(results, charts)
    others = [chart for chart in charts if chart is not curve]
    sections = _sections(report, details, others, left_out)
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
        write_whole(out / "card.md", card_to_markdown(values))
        write_whole(out / "card.json", to_json_text(values))
        write_tables(shown, out)
        first = FirstScreen(summary(report, results), colours(report), curve)
        write_page("Time to accuracy", first, sections, out)


def first_chart(results: Results, charts: Sequence["Chart"]) -> "Chart | None":
    """Returns the chart of the metric that the verdict is about, or the first of all."""
    target = headline_target(results)
    of_target = (chart for chart in charts if target and chart.name == target[0])
    return next(of_target, charts[0] if charts else None)
