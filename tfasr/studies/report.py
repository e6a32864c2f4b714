"""The report on a study: its parts one after the other, next to published results.

`write_report` makes the page, tables and files of a study from its runs' ledgers and
from what scoring and timed evaluations left; a study that isn't finished gets a report
on what there is. `study_values` is what ``tfasr verify`` computes again.
"""

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

# The figures of each section, in their order. Other figures of a single report would
# repeat what the study's tables show.
_SHOWN = (
    "train_loss",
    "cer",
    "wer",
    "utilisation",
    "throughput_wall",
    "brackets",
    "why",
)

# By published table: which figure of the paper shows the same.
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
    """Returns the figures of a part's section, in the order of `_SHOWN`.

    Args:
        charts: all figures of the part's report.
        part: its name, which begins the figures' names, so that they are separate files.
        paper: the number of the paper's figure that shows the same, by a figure's name.
    """
    (prefix,) = file_names([part])
    order = {name: number for number, name in enumerate(_SHOWN)}
    shown = [
        chart for chart in charts if chart.name in order or chart.name.startswith("why")
    ]

    figures = []
    for chart in sorted(shown, key=lambda chart: order.get(chart.name, len(order))):
        caption = chart.caption
        if chart.name in paper:
            caption = f"As {paper[chart.name]} of the paper: {caption}"

        figures.append(
            dataclasses.replace(chart, name=f"{prefix}_{chart.name}", caption=caption)
        )

    return figures


def _run_name(plan: Plan, run: PlannedRun) -> str:
    """Returns a run's name in tables; it has the seed if there are several.

    Args:
        plan: the study's.
        run: one of its runs.
    """
    label = plan.label(run.experiment)
    seeds = [each.seed for each in plan.runs if each.experiment == run.experiment]
    if len(seeds) == 1:
        return label

    return f"{label}, seed {run.seed}"


def _picked(row: dict[str, Cell], *names: str) -> dict[str, Cell]:
    """Returns some cells of a row, and its error rates."""
    return {name: row[name] for name in (*names, "wer", "cer")}


def scores_of(plan: Plan, folder: Path) -> list[dict[str, Cell]]:
    """Returns the rows of all final scores that are there, each with its run's name.

    Args:
        plan: the study's.
        folder: the study's.
    """
    return [
        {"run": _run_name(plan, run)} | _picked(row, "split", "decoder", "beam_width")
        for run in plan.runs
        for row in rows_of(scores_path(folder, run), "split", "decoder", "beam_width")
    ]


def widths_of(plan: Plan, folder: Path) -> list[dict[str, Cell]]:
    """Returns the rows of the timed evaluations that are there, by beam width.

    The row without a beam width, of the greedy decoder, is left out.
    """
    run = {"run": plan.label(widths_run(plan).experiment)}
    rows = rows_of(widths_path(folder), "beam_width", "evaluation_s")

    return [
        run | _picked(row, "beam_width", "evaluation_s")
        for row in rows
        if row["beam_width"] is not None
    ]


def widths_table(widths: Sequence[dict[str, Cell]]) -> Table:
    """Returns the table of timed evaluations; ``widths`` is from `widths_of`."""
    columns = [
        Column("", "run", "run", str),
        Column("beam width", "beam_width", "beam_width", str),
        Column("seconds", "evaluation_s", "evaluation_s", "{:.3g}".format),
        Column("WER %", "wer", "wer", fixed(2, 100)),
        Column("CER %", "cer", "cer", fixed(3, 100)),
    ]
    title = f"A whole evaluation of {widths[0]['run']} over beam widths"
    notes = ["Seconds: forward passes and decoding, one after the other."]

    return table_of(
        title, columns, widths, notes, colours=[None] * len(widths), name="beam_widths"
    )


@dataclasses.dataclass(frozen=True)
class Chapter:
    """A part of a study in the report: experiments whose times one table compares.

    Attributes:
        name: of the part (`ExperimentConfig.part`).
        report: on the part's runs, each experiment a group named by its label.
        published_table: the published table to show with its times; "" for none.
    """

    name: str
    report: Report
    published_table: str


def write_report(plan: Plan, folder: Path) -> Path:
    """Writes the report on a study's runs, finished or not, and returns the page.

    Args:
        plan: the study's.
        folder: the study's; its folder ``report`` gets the page, tables and figures.

    Raises:
        RunError: if no run has an evaluation yet, or if the report can't be written.
    """
    parts = chapters(plan, folder)
    if not parts:
        raise RunError(
            f"A study's report needs at least one run with an evaluation, but {folder} "
            f"lacks one; the logs in {folder / 'logs'} show what went wrong."
        )

    source = None
    if plan.config.published:
        source = published(plan.config.published)

    measured = Measured(widths_of(plan, folder), scores_of(plan, folder))
    results = [group_results(part.report) for part in parts]
    first = summary(parts[0].report, results[0])
    sections = _sections(plan, parts, results, source, measured)
    caveats = _caveats(folder)

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
    """Returns the page's first screen, and its sections without the chart shown there.

    Args:
        plan: the study.
        part: its first part, which the verdict is about.
        results: of that part's groups, by target.
        first: the verdict, and the table of the part's times.
        sections: of the whole page, with all charts.
    """
    (prefix,) = file_names([part.name])
    target = headline_target(results, part.report.metrics)
    metric = "cer"
    if target:
        metric = target[0]

    name = f"{prefix}_{metric}"
    curve = None
    folded = []

    for section in sections:
        curve = next((c for c in section.charts if c.name == name), curve)
        others = [chart for chart in section.charts if chart.name != name]
        folded.append(dataclasses.replace(section, charts=others))

    return FirstScreen(first, colours(part.report), curve), folded


def _caveats(folder: Path) -> list[str]:
    """Returns the caveats that a reader must know before the verdicts."""
    caveats = []
    grown = grown_from(folder)
    if grown:
        caveats.append(grown)
    if sealed_folder(folder):
        caveats += study_sentences(folder)

    return caveats + first_tries(folder)


def chapters(plan: Plan, folder: Path) -> list[Chapter]:
    """Returns the study's parts that have a run with an evaluation, in their order."""
    parts = (_chapter(plan, folder, name) for name in plan.parts())
    return [part for part in parts if part is not None]


def _chapter(plan: Plan, folder: Path, name: str) -> Chapter | None:
    """Reads a part's runs and compares them; None if no run has an evaluation.

    The runs' own rule for targets counts if all have the same one.

    Args:
        plan: the study's.
        folder: the study's.
        name: the part's.
    """
    experiments = plan.parts()[name]
    runs = dict(_runs(plan, folder, experiments))
    if not runs:
        return None

    windows = {run.target_window for run in runs}
    window = None
    if len(windows) == 1:
        window = windows.pop()

    question = ask(
        window=window,
        beside=POLICIES.values(),
        over_time=True,
        test=plan.config.test,
    )
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
    """Loads the runs of some experiments that have an evaluation.

    Returns:
        The runs by experiment, in the order of ``experiments``, each with the label of
        its experiment.
    """
    runs = []
    of_part = [run for run in plan.runs if run.experiment in experiments]

    for planned in sorted(of_part, key=lambda run: experiments.index(run.experiment)):
        try:
            run = load_run(folder / planned.folder, _run_name(plan, planned))
        # The run hasn't started, or its ledger is damaged.
        except UsageError:
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
    """Returns the report's sections: tables of all parts, each part, scores and widths.

    Args:
        plan: the study's.
        parts: those with runs.
        source: published results to show next to the study's; None for none.
        measured: final scores and timed evaluations, as far as they are there.
    """
    # By kind of table, the name of the published one of that kind.
    kinds = {}
    if source is not None:
        kinds = {table.kind: name for name, table in source.tables.items()}

    runs = [run for part in parts for run in part.report.runs]
    everything = make_report(runs, parts[0].report.question)
    reports = {
        "systems": parts[0].report,
        "parameters": everything,
        "use": everything,
    }
    of_everything = [
        published_table(report, source, kinds[kind], measured)
        for kind, report in reports.items()
        if kind in kinds
    ]
    sections = []

    if of_everything:
        of_runs = colours(everything)
        sections.append(Section("Systems", tables=of_everything, of_runs=of_runs))

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
    """Returns the report as plain text, for report.txt and the terminal.

    Args:
        plan: the study's.
        first: the verdict, and the table of the first part's times.
        sections: of the page.
    """
    blocks = [plan.config.title, to_text([first.table])]
    for section in sections:
        answers = "".join(f"{sentence}\n" for sentence in section.answers)
        blocks.append(f"# {section.title}\n\n{answers}\n{to_text(section.tables)}")

    return "\n\n".join(blocks)


def study_values(parts: Sequence[Chapter], measured: Measured) -> dict:
    """Returns the numbers of report.json, from the same parts as the page.

    Args:
        parts: those with runs.
        measured: final scores and timed evaluations, as far as they are there.
    """

    def result(tta: TimeToAccuracy) -> dict:
        """Returns when a run met a target; the time is None if it didn't."""
        return {
            "metric": tta.metric,
            "target": tta.target,
            "time_to_accuracy_s": tta.seconds,
            "epoch": tta.epoch,
        }

    def about(run: RunAnalysis) -> dict:
        """Returns a run's numbers: its targets and the values of its curves."""
        return {
            "run": run.name,
            "group": run.group,
            "status": run.status,
            "epochs": run.epochs,
            "wall_s": run.wall_s,
            "targets": [result(reading.tta) for reading in run.results],
            "curves": {
                metric: [point.value for point in points]
                for metric, points in run.curves.items()
            },
        }

    return {
        "parts": {
            part.name: [about(run) for run in part.report.runs] for part in parts
        },
        "scores": list(measured.scores),
        "beam_widths": list(measured.widths),
    }
