"""The report on a study: its parts one after the other, with what was published beside them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfasr.display.chart import Chart
from tfasr.display.table import (
    Cell,
    Column,
    Table,
    file_names,
    fixed,
    table_of,
    to_markdown,
    to_text,
)
from tfasr.errors import RunError, UsageError
from tfasr.kit.files import write_whole
from tfasr.reports.charges import Machines
from tfasr.reports.figures.registry import report_charts
from tfasr.reports.groups import colours, group_results
from tfasr.reports.load import load_report
from tfasr.reports.numbers import Report, RunAnalysis, ask, make_report, sentence
from tfasr.reports.page import Section, answers, write_sections
from tfasr.reports.tables.paper import Measured, beside_table, scores_table, time_to_accuracy_table
from tfasr.reports.write import write_tables
from tfasr.studies.plan import Plan
from tfasr.studies.steps import rows_of, scores_path, widths_path, widths_run
from tfasr.tta.policies import POLICIES, TimeToAccuracy
from tfasr.tta.published.results import PublishedSource, published
from tfasr.tta.run import Run, load_run

_SHOWN = ("train_loss", "cer", "wer", "utilisation", "throughput_wall", "brackets", "why")
_PAPER = {
    "Table 4": {
        "train_loss": "Figure 7a",
        "cer": "Figure 7b",
        "wer": "Figure 7c",
        "utilisation": "Figure 8",
        "throughput_wall": "Figure 9",
    },
    "Table 6": {"throughput_wall": "Figure 10"},
}


def figures_of_part(charts: Sequence[Chart], part: str, paper: Mapping[str, str]) -> list[Chart]:
    (prefix,) = file_names([part])
    order = {name: number for number, name in enumerate(_SHOWN)}
    shown = [chart for chart in charts if chart.name in order or chart.name.startswith("why")]
    shown.sort(key=lambda chart: order.get(chart.name, len(order)))
    return [
        dataclasses.replace(
            chart,
            name=f"{prefix}_{chart.name}",
            caption=f"As {paper[chart.name]} of the paper: {chart.caption}"
            if chart.name in paper
            else chart.caption,
        )
        for chart in shown
    ]


def scores_of(plan: Plan, folder: Path) -> list[dict[str, Cell]]:
    found = []
    for run in plan.runs:
        seeds = [other for other in plan.runs if other.experiment == run.experiment]
        label = plan.label(run.experiment)
        name = label if len(seeds) == 1 else f"{label}, seed {run.seed}"
        for row in rows_of(scores_path(folder, run)):
            wanted = ("split", "decoder", "beam_width", "wer", "cer")
            found.append({"run": name, **{key: row[key] for key in wanted}})
    return found


def widths_of(plan: Plan, folder: Path) -> list[dict[str, Cell]]:
    name = plan.label(widths_run(plan).experiment)
    wanted = ("beam_width", "evaluation_s", "wer", "cer")
    rows = [row for row in rows_of(widths_path(folder)) if row["beam_width"] is not None]
    return [{"run": name, **{key: row[key] for key in wanted}} for row in rows]


def widths_table(widths: Sequence[dict[str, Cell]]) -> Table:
    return table_of(
        f"A whole evaluation of {widths[0]['run']} over beam widths",
        [
            Column("", "run", lambda row: row["run"]),
            Column("beam width", "beam_width", lambda row: row["beam_width"]),
            Column("seconds", "evaluation_s", lambda row: row["evaluation_s"], "{:.3g}".format),
            Column("WER %", "wer", lambda row: row["wer"], fixed(2, 100)),
            Column("CER %", "cer", lambda row: row["cer"], fixed(3, 100)),
        ],
        widths,
        ["Seconds: forward passes and decoding, one after the other."],
        colours=[None] * len(widths),
        name="beam_widths",
    )


REPORT_FOLDER = "report"


@dataclasses.dataclass(frozen=True)
class Part:
    name: str  # the part's
    report: Report  # on its runs, groups called as the study calls its experiments
    published_table: str  # what stands beside its times, "" for nothing


def write_report(plan: Plan, folder: Path) -> Path:
    """Writes the report on a study's runs, finished or not, into its folder ``report``, and returns
    the page; raises `RunError` if no run can be reported on or the report can't be written.
    """
    parts = [part for name in plan.parts() if (part := _part(plan, folder, name)) is not None]
    if not parts:
        raise RunError(
            f"A study's report must be of at least one run with an evaluation. {folder} has none; "
            f"what went wrong is in {folder / 'logs'}."
        )
    source = published(plan.config.published) if plan.config.published else None
    measured = Measured(widths_of(plan, folder), scores_of(plan, folder))
    sections = _sections(plan, parts, source, measured)
    shown = [table for section in sections for table in section.tables]
    out = folder / REPORT_FOLDER
    try:
        out.mkdir(parents=True, exist_ok=True)
        page = write_sections(plan.config.title, sections, out)
        write_whole(out / "report.txt", _text(plan, sections))
        write_whole(out / "report.md", f"# {plan.config.title}\n\n{to_markdown(shown)}")
        write_whole(out / "report.json", json.dumps(_values(parts, measured), indent=1) + "\n")
        write_tables(shown, out)
    except OSError as error:
        raise RunError(f"The study's report could not be written to {out}: {error}.") from error
    return page


def _part(plan: Plan, folder: Path, name: str) -> Part | None:
    experiments = plan.parts()[name]
    runs = dict(_runs(plan, folder, experiments))
    if not runs:
        return None
    question = ask(beside=POLICIES.values(), over_time=True)
    loaded = load_report(list(runs), question, machines=Machines())
    labels = {run.name: label for run, label in runs.items()}
    # A group is an experiment, also where two of them have one configuration.
    grouped = [dataclasses.replace(run, group=labels[run.name]) for run in loaded.runs]
    report = make_report(grouped, loaded.question)
    tables = {plan.experiments[one].published_table for one in experiments} - {""}
    return Part(name, report, min(tables, default=""))


def _runs(plan: Plan, folder: Path, experiments: Sequence[str]) -> list[tuple[Run, str]]:
    found = []
    for experiment in experiments:
        label = plan.label(experiment)
        own = [run for run in plan.runs if run.experiment == experiment]
        for planned in own:
            name = label if len(own) == 1 else f"{label}, seed {planned.seed}"
            try:
                run = load_run(folder / planned.folder, name)
            except UsageError:  # it has not begun, or its ledger is broken: its log tells
                continue
            if run.timeline.of("tracked_stats"):
                found.append((run, label))
    return found


def _sections(
    plan: Plan, parts: Sequence[Part], source: PublishedSource | None, measured: Measured
) -> list[Section]:
    kinds = {} if source is None else {t.kind: name for name, t in source.tables.items()}
    runs = [run for part in parts for run in part.report.runs]
    everything = make_report(runs, parts[0].report.question)
    whole = [
        beside_table(report, source, kinds[kind], measured)
        for kind, report in (("systems", parts[0].report), ("parameters", everything))
        if kind in kinds
    ]
    sections = [Section("Systems", (), whole, colours(everything))] if whole else []
    for part in parts:
        results, paper = group_results(part.report), {}
        if source is not None and part.published_table:
            table = beside_table(part.report, source, part.published_table, measured)
            paper = _PAPER.get(part.published_table, {})
        else:
            table = time_to_accuracy_table(part.report, results)
            table = dataclasses.replace(table, title=f"{table.title}: {part.name}")
        charts, notes = report_charts(part.report, results)
        charts = figures_of_part(charts, part.name, paper)
        about = answers(part.report, results), [table], colours(part.report), charts, notes
        sections.append(Section(sentence(part.name), *about))
    later = []
    if measured.scores:
        later.append(("Final error rates", "final", scores_table(measured.scores)))
    if measured.widths:
        later.append(("Beam widths", "evaluation", widths_table(measured.widths)))
    for heading, kind, table in later:
        if kind in kinds:
            table = beside_table(everything, source, kinds[kind], measured)
        sections.append(Section(heading, (), [table], colours(everything)))
    return sections


def _text(plan: Plan, sections: Sequence[Section]) -> str:
    blocks = [plan.config.title]
    for section in sections:
        said = "".join(f"{sentence}\n" for sentence in section.said)
        blocks.append(f"# {section.title}\n\n{said}\n{to_text(section.tables)}")
    return "\n\n".join(blocks)


def _values(parts: Sequence[Part], measured: Measured) -> dict:
    def result(tta: TimeToAccuracy) -> dict:
        time = {"time_to_accuracy_s": tta.seconds, "epoch": tta.epoch}
        return {"metric": tta.metric, "target": tta.target, **time}

    def about(run: RunAnalysis) -> dict:
        curves = {metric: [p.value for p in points] for metric, points in run.curves.items()}
        names = ("group", "status", "epochs", "wall_s")
        facts = {"run": run.name, **{name: getattr(run, name) for name in names}}
        return {**facts, "targets": [result(one.tta) for one in run.results], "curves": curves}

    return {
        "parts": {part.name: [about(run) for run in part.report.runs] for part in parts},
        "scores": list(measured.scores),
        "beam_widths": list(measured.widths),
    }
