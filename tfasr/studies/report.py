"""The report on a study: its parts one after the other, next to published results."""

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
from tfasr.ledger.declared import sealed_folder, study_sentences
from tfasr.reports.charges import Machines
from tfasr.reports.figures.registry import report_charts
from tfasr.reports.groups import (
    Results,
    colours,
    finding,
    group_results,
    load_report,
)
from tfasr.reports.numbers import Report, RunAnalysis, ask, make_report, sentence
from tfasr.reports.page import FirstScreen, Section, write_page
from tfasr.reports.summary import Summary, headline_target, summary
from tfasr.reports.tables.paper import (
    Measured,
    published_table,
    scores_table,
    time_to_accuracy_table,
)
from tfasr.reports.write import write_tables
from tfasr.studies.plan import (
    Plan,
    PlannedRun,
    grown_from,
    rows_of,
    scores_path,
    widths_path,
    widths_run,
)
from tfasr.studies.quiet import first_tries
from tfasr.tta.policies import POLICIES, TimeToAccuracy
from tfasr.tta.published.results import PublishedSource, published
from tfasr.tta.run import Run, load_run

_SHOWN = (
    "train_loss",
    "cer",
    "wer",
    "utilisation",
    "throughput_wall",
    "brackets",
    "why",
)
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


def figures_of_section(
    charts: Sequence[Chart], part: str, paper: Mapping[str, str]
) -> list[Chart]:
    (prefix,) = file_names([part])
    order = {name: number for number, name in enumerate(_SHOWN)}
    shown = [
        chart for chart in charts if chart.name in order or chart.name.startswith("why")
    ]
    figures = []
    for chart in sorted(shown, key=lambda chart: order.get(chart.name, len(order))):
        if chart.name in paper:
            as_paper = f"As {paper[chart.name]} of the paper: "
        else:
            as_paper = ""

        names = {
            "name": f"{prefix}_{chart.name}",
            "caption": f"{as_paper}{chart.caption}",
        }
        figures.append(dataclasses.replace(chart, **names))

    return figures


def _run_name(plan: Plan, run: PlannedRun) -> str:
    several = sum(other.experiment == run.experiment for other in plan.runs) > 1
    return plan.label(run.experiment) + (f", seed {run.seed}" if several else "")


def _picked(row: dict[str, Cell], *names: str) -> dict[str, Cell]:
    return {name: row[name] for name in (*names, "wer", "cer")}


def scores_of(plan: Plan, folder: Path) -> list[dict[str, Cell]]:
    return [
        {"run": _run_name(plan, run)} | _picked(row, "split", "decoder", "beam_width")
        for run in plan.runs
        for row in rows_of(scores_path(folder, run), "split", "decoder", "beam_width")
    ]


def widths_of(plan: Plan, folder: Path) -> list[dict[str, Cell]]:
    run = {"run": plan.label(widths_run(plan).experiment)}
    rows = rows_of(widths_path(folder), "beam_width", "evaluation_s")
    rows = [row for row in rows if row["beam_width"] is not None]
    return [run | _picked(row, "beam_width", "evaluation_s") for row in rows]


def widths_table(widths: Sequence[dict[str, Cell]]) -> Table:
    columns = [
        Column(heading, name, name, text)
        for heading, name, text in (
            ("", "run", str),
            ("beam width", "beam_width", str),
            ("seconds", "evaluation_s", "{:.3g}".format),
            ("WER %", "wer", fixed(2, 100)),
            ("CER %", "cer", fixed(3, 100)),
        )
    ]
    title = f"A whole evaluation of {widths[0]['run']} over beam widths"
    notes = ["Seconds: forward passes and decoding, one after the other."]
    return table_of(
        title, columns, widths, notes, colours=[None] * len(widths), name="beam_widths"
    )


@dataclasses.dataclass(frozen=True)
class Chapter:
    name: str  # of the part (`ExperimentConfig.part`)
    report: Report  # on the part's runs, each experiment a group named by its label
    published_table: str  # the published table to show with its times; "" for none


def write_report(plan: Plan, folder: Path) -> Path:
    """Writes the report on a study's runs, finished or not, and returns the page."""
    parts = chapters(plan, folder)
    if not parts:
        raise RunError(
            f"A study's report needs at least one run with an evaluation. {folder} has none; the "
            f"logs in {folder / 'logs'} show what went wrong."
        )

    source = published(plan.config.published) if plan.config.published else None
    measured = Measured(widths_of(plan, folder), scores_of(plan, folder))
    results = [group_results(part.report) for part in parts]
    first = summary(parts[0].report, results[0])
    sections = _sections(plan, parts, results, source, measured)
    caveats = list(filter(None, [grown_from(folder)]))
    if sealed_folder(folder):
        caveats += study_sentences(folder)

    caveats += first_tries(folder)
    if caveats:
        about = Section("How the study was run", answers=caveats, opened=True)
        sections.insert(0, about)

    shown = [first.table, *(t for section in sections for t in section.tables)]
    out = folder / "report"
    try:
        out.mkdir(parents=True, exist_ok=True)
        screen, folded = _first_screen(plan, parts[0], results[0], first, sections)
        page = write_page(plan.config.title, screen, folded, out)
        write_whole(out / "report.txt", _text(plan, first, sections))
        write_whole(out / "report.md", f"# {plan.config.title}\n\n{to_markdown(shown)}")
        write_whole(
            out / "report.json",
            json.dumps(study_values(parts, measured), indent=1) + "\n",
        )
        write_tables(shown, out)
    except OSError as error:
        raise RunError(
            f"The study's report could not be written to {out}: {error}."
        ) from error

    return page


def _first_screen(
    plan: Plan,
    part: Chapter,
    results: Results,
    first: Summary,
    sections: Sequence[Section],
) -> tuple[FirstScreen, list[Section]]:
    """Returns the page's first screen, and its sections without the chart shown there."""
    (prefix,) = file_names([part.name])
    target = headline_target(results)
    name = f"{prefix}_{target[0] if target else 'cer'}"
    curve = None
    folded = []
    for section in sections:
        curve = next((c for c in section.charts if c.name == name), curve)
        others = [chart for chart in section.charts if chart.name != name]
        folded.append(dataclasses.replace(section, charts=others))

    return FirstScreen(first, colours(part.report), curve), folded


def chapters(plan: Plan, folder: Path) -> list[Chapter]:
    return [
        part
        for name in plan.parts()
        if (part := _chapter(plan, folder, name)) is not None
    ]


def _chapter(plan: Plan, folder: Path, name: str) -> Chapter | None:
    experiments = plan.parts()[name]
    runs = dict(_runs(plan, folder, experiments))
    if not runs:
        return None
    windows = {run.target_window for run in runs}
    window = windows.pop() if len(windows) == 1 else None
    options = {"over_time": True, "test": plan.config.test}
    question = ask(window=window, beside=POLICIES.values(), **options)
    loaded = load_report(list(runs), question, machines=Machines())
    labels = {run.name: label for run, label in runs.items()}
    # Each experiment is a group, even if two of them have the same configuration.
    grouped = [dataclasses.replace(run, group=labels[run.name]) for run in loaded.runs]
    report = make_report(grouped, loaded.question)
    tables = {plan.experiments[name].published_table for name in experiments} - {""}
    return Chapter(name, report, min(tables, default=""))


def _runs(
    plan: Plan, folder: Path, experiments: Sequence[str]
) -> list[tuple[Run, str]]:
    runs = []
    planned_runs = (
        run for name in experiments for run in plan.runs if run.experiment == name
    )
    for planned in planned_runs:
        try:
            run = load_run(folder / planned.folder, _run_name(plan, planned))
        except UsageError:  # the run has not begun, or its ledger is damaged
            continue

        if run.timeline.of("tracked_stats"):
            runs.append((run, plan.label(planned.experiment)))

    return runs


def _sections(
    plan: Plan,
    parts: Sequence[Chapter],
    results: Sequence[Results],
    source: PublishedSource | None,
    measured: Measured,
) -> list[Section]:
    if source is None:
        kinds = {}
    else:
        kinds = {t.kind: name for name, t in source.tables.items()}

    runs = [run for part in parts for run in part.report.runs]
    everything = make_report(runs, parts[0].report.question)
    of_everything = [
        published_table(report, source, kinds[kind], measured)
        for kind, report in (
            ("systems", parts[0].report),
            ("parameters", everything),
            ("use", everything),
        )
        if kind in kinds
    ]
    if of_everything:
        of_runs = colours(everything)
        sections = [Section("Systems", tables=of_everything, of_runs=of_runs)]
    else:
        sections = []

    for part, of_part in zip(parts, results, strict=True):
        paper = {}
        if source is not None and part.published_table:
            table = published_table(part.report, source, part.published_table, measured)
            paper = _PAPER.get(part.published_table, {})
        else:
            table = time_to_accuracy_table(part.report, of_part)
            table = dataclasses.replace(table, title=f"{table.title}: {part.name}")

        charts, notes = report_charts(part.report, of_part)
        section = Section(
            sentence(part.name),
            answers=[finding(row[0], other) for row in of_part for other in row[1:]],
            tables=[table],
            of_runs=colours(part.report),
            charts=figures_of_section(charts, part.name, paper),
            notes=notes,
        )
        sections.append(section)

    later = []
    if measured.scores:
        later.append(("Final error rates", "final", scores_table(measured.scores)))
    if measured.widths:
        later.append(("Beam widths", "evaluation", widths_table(measured.widths)))
    for heading, kind, table in later:
        if kind in kinds:
            table = published_table(everything, source, kinds[kind], measured)
        of_runs = colours(everything)
        sections.append(Section(heading, tables=[table], of_runs=of_runs))

    return sections


def _text(plan: Plan, first: Summary, sections: Sequence[Section]) -> str:
    blocks = [plan.config.title, to_text([first.table])]
    for section in sections:
        answers = "".join(f"{sentence}\n" for sentence in section.answers)
        blocks.append(f"# {section.title}\n\n{answers}\n{to_text(section.tables)}")

    return "\n\n".join(blocks)


def study_values(parts: Sequence[Chapter], measured: Measured) -> dict:
    def result(tta: TimeToAccuracy) -> dict:
        time = {"time_to_accuracy_s": tta.seconds, "epoch": tta.epoch}
        return {"metric": tta.metric, "target": tta.target, **time}

    def about(run: RunAnalysis) -> dict:
        curves = {
            metric: [p.value for p in points] for metric, points in run.curves.items()
        }
        names = ("group", "status", "epochs", "wall_s")
        facts = {"run": run.name, **{name: getattr(run, name) for name in names}}
        return {
            **facts,
            "targets": [result(reading.tta) for reading in run.results],
            "curves": curves,
        }

    return {
        "parts": {
            part.name: [about(run) for run in part.report.runs] for part in parts
        },
        "scores": list(measured.scores),
        "beam_widths": list(measured.widths),
    }
