"""Writes ``report.html``, a page in a single file, and the figures as files."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tfasr._version import __version__
from tfasr.display.chart import INK, Chart, run_colour
from tfasr.display.table import Table
from tfasr.display.vega import (
    config_of,
    embedded_svg,
    page_legend,
    page_library,
    page_panels,
    write_chart,
)
from tfasr.kit.files import whole_file
from tfasr.reports.groups import Results, colours, finding, group_members, one_run_each
from tfasr.reports.numbers import (
    Report,
    RunAnalysis,
    difference_text,
    rule_of,
    sentence,
    target_label,
)

_WIDE = ' class="wide"'
_TIP = '<div id="tip" role="status" hidden></div>\n'  # shows values at the pointer
_CONTROLS = (
    ("x", "Horizontal axis:", ("minutes", "epochs", "utterances")),
    ("x-scale", "scale:", ("linear", "log")),
    ("y-scale", "Vertical axis:", ("linear", "log")),
)


def write_document(
    path: Path, title: str, body: Iterable[str], charts: Sequence[Chart] | None = None
) -> None:
    """Writes a page part by part: as a whole, its megabytes would be in memory several
    times.
    """
    script, hashes = ("", []) if charts is None else _scripts(charts)
    allowed = " ".join(f"'{digest}'" for digest in hashes)
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; script-src '
        f"{allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action "
        "'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_own_file('page.css')}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n"
    )
    foot = f"<footer>tfasr {escape(__version__)}</footer>\n"
    with whole_file(path) as file:
        for part in chain([head], body, [foot, script, "</body>\n</html>\n"]):
            file.write(part.encode(errors="backslashreplace"))


def _scripts(charts: Sequence[Chart]) -> tuple[str, list[str]]:
    # One chart after the other: all objects at once would need ten times the memory of
    # the text.
    texts = []
    for chart in charts:
        views = chart.views or {"": chart.panels}
        described = {"columns": chart.columns, "legend": page_legend(chart)}
        described["views"] = {
            view: page_panels(panels) for view, panels in views.items()
        }
        texts.append(f"{_json(chart.name)}:{_json(described)}")

    text = f'{{"ink":{_json(INK)},"config":{_json(config_of(INK))},"charts":{{{",".join(texts)}}}}}'
    # Within a script element only "</" and "<!--" are special; in JSON "<" can be
    # escaped.
    data = text.replace("<", "\\u003c")
    scripts = [page_library(), _own_file("page.js")]
    elements = "".join(f"<script>{code}</script>\n" for code in scripts)
    # A browser converts line ends to "\n" before it computes these hashes.
    plain = (
        code.replace("\r\n", "\n").replace("\r", "\n").encode() for code in scripts
    )
    digests = (
        base64.b64encode(hashlib.sha256(code).digest()).decode() for code in plain
    )
    return (
        f'<script type="application/json" id="charts">{data}</script>\n{elements}',
        [f"sha256-{digest}" for digest in digests],
    )


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def controls() -> str:
    fields = []
    for name, label, values in _CONTROLS:
        choices = "".join(
            f'<label><input type="radio" name="{name}" value="{value}"'
            f"{'' if index else ' checked'}>{value}</label>"
            for index, value in enumerate(values)
        )
        fields.append(f"<fieldset><legend>{label}</legend>{choices}</fieldset>")

    return f'<form class="controls" id="controls" hidden>{"".join(fields)}</form>\n'


def pictures(charts: Sequence[Chart], folder: Path) -> str:
    """Writes charts as files, and returns HTML with a still drawing of each."""
    # Before drawing: its process and the drawings together need the most memory.
    page_library()
    return "".join(
        f'<figure id="{escape(chart.name)}"{_WIDE if chart.wide else ""}>'
        f"<figcaption>{escape(chart.caption)}. "
        '<button type="button" class="save" hidden>Save as SVG</button></figcaption>'
        '<div class="legend"></div><div class="plot"></div>'
        f'<div class="still">{embedded_svg(write_chart(chart, folder))}</div></figure>\n'
        for chart in charts
    )


def table_element(table: Table, of_runs: Sequence[int] | None = None) -> str:
    """Returns a table and its notes as HTML; ``of_runs`` has the number of each run's
    colour.
    """
    hidden = {place for places in table.details.values() for place in places}
    shown = [place for place in range(len(table.columns)) if place not in hidden]
    later = "".join(
        f"<details><summary>{escape(name)}</summary>"
        f"{_columns_element(table, of_runs, [0, *places])}</details>\n"
        for name, places in table.details.items()
    )
    return f"{_columns_element(table, of_runs, shown)}{later}{list_element(table.notes, 'notes')}"


def _columns_element(
    table: Table, of_runs: Sequence[int] | None, places: Sequence[int]
) -> str:
    groups = table.groups or [""] * len(table.columns)
    above = ""
    for group, members in groupby(groups[place] for place in places):
        above += (
            f'<th scope="colgroup" colspan="{len(list(members))}">{escape(group)}</th>'
        )

    headings = [
        table.columns[place].removeprefix(f"{groups[place]}\n") for place in places
    ]
    head = "".join(
        f'<th scope="col">{escape(heading.strip())}</th>' for heading in headings
    )
    head = f"<tr>{head}</tr>"
    if table.groups:
        head = f'<tr class="groups">{above}</tr>{head}'
    rows = []
    runs = range(len(table.rows)) if table.colours is None else table.colours
    for run, row in zip(runs, table.rows, strict=True):
        name, *others = (escape(row[place]) for place in places)
        first = f"<td>{name}</td>"
        if of_runs is not None:
            colour = "" if run is None else f"background:{run_colour(of_runs[run])}"
            first = f'<td title="{name}"><span class="swatch" style="{colour}"></span>{name}</td>'

        rows.append(
            f"<tr>{first}{''.join(f'<td>{cell}</td>' for cell in others)}</tr>\n"
        )

    return (
        f'<div class="scroll" tabindex="0"><table aria-label="{escape(table.title)}">'
        f"<thead>{head}</thead>\n<tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def list_element(items: Iterable[str], kind: str) -> str:
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{entries}</ul>\n' if entries else ""


def _own_file(name: str) -> str:
    return resources.files("tfasr.reports").joinpath(name).read_text(encoding="utf-8")


_MOST_CONFIGURATIONS = 50


def write_page(
    report: Report,
    folder: Path,
    shown: Sequence[Table],
    appendix: str = "",
    *,
    results: Results,
    charts: Sequence[Chart],
    left_out: Sequence[str],
) -> None:
    """Writes ``report.html``, which refers to no other file, and each figure as a PNG
    and an SVG.

    The page's content policy stops browsers from fetching anything; text from runs is
    escaped. The arguments are the parts of the page, from top to bottom.
    """
    drawn = pictures(charts, folder)

    def body() -> Iterator[str]:
        first, *others = shown
        of_runs = colours(report)
        yield list_element(answers(report, results), "answers")
        yield list_element(comparisons(report, results), "answers compared")
        yield table_element(first, of_runs)
        yield f'{controls()}<div class="figures first">\n{drawn}{_TIP}</div>\n'
        yield list_element(left_out, "notes")
        for table in others:
            yield f"<h2>{escape(table.title)}</h2>{table_element(table, of_runs)}"
        yield appendix
        yield _comparability(report)
        yield _configurations(report)

    write_document(folder / "report.html", "Time to accuracy", body(), charts)


def answers(report: Report, results: Results) -> list[str]:
    """Returns a sentence for each target (who met it first, by how much) and one on the
    rule.
    """
    if not report.targets:
        return []
    rule = f"Minutes {rule_of(report)}."
    if all(len(members) < 2 for members in group_members(report.runs).values()):
        if len(report.runs) > 1:
            single = f" Of one run each (n = 1): {one_run_each()}."
        else:
            single = ""

        return [
            *(_answer(report, index) for index in range(len(report.targets))),
            rule + single,
        ]

    sentences = []
    for of_target in results:
        parts = []
        for result in of_target[:4]:
            of = result.statistics
            if of.median_s is None:
                times = "never"
            else:
                times = f"median {of.median_s / 60:.3g} min"

            parts.append(
                f"{result.group}: {times} ({of.reached} of {of.n} runs reached it)"
            )

        if len(of_target) > 4:
            more = [result.statistics for result in of_target[4:]]
            reached = (
                f"{sum(of.reached for of in more)} of {sum(of.n for of in more)} runs"
            )
            parts.append(f"{len(more)} more groups ({reached} reached it)")

        label = sentence(of_target[0].label)
        sentences.append(f"{label}: {'; '.join(parts)}.")

    return [*sentences, rule]


def comparisons(report: Report, results: Results) -> list[str]:
    """Returns how the groups differ, a sentence for each target and group; [] for
    single runs.
    """
    if all(len(members) < 2 for members in group_members(report.runs).values()):
        return []
    sentences = []
    for first, *others in results:
        for other in others[:3]:
            differing = [
                report.differences[run] for run in other.members if report.refused(run)
            ]
            text = finding(first, other)
            if differing:
                text = f"{text.rstrip('.')}: they differ in {difference_text(differing[0])}."
            sentences.append(text)

    return sentences


def _answer(report: Report, target: int) -> str:
    label = sentence(target_label(*report.targets[target], report.metrics))
    times = [(run.name, run.results[target].tta) for run in report.runs]
    # if refused
    reached: dict[bool, list[tuple[float, str, int]]] = {False: [], True: []}
    for index, (name, tta) in enumerate(times):
        if tta.reached:
            reached[report.refused(index)].append((tta.minutes, name, tta.epoch))

    compared, refused = (sorted(runs, key=itemgetter(0)) for runs in reached.values())
    if not compared and not refused:
        return f"{label}: no run has reached it."
    parts = [
        f"{name} in {took:.3g} min (epoch {epoch})"
        for took, name, epoch in compared[:1]
    ]
    slower = compared[1:]
    for took, other, _ in slower[:3]:
        parts.append(
            f"{other} in {took:.3g} min, {took / compared[0][0]:.2f} times as long"
        )

    if slower:
        parts.append("n = 1 each")
    if len(slower) > 3:
        parts.append(f"{len(slower) - 3} more runs after them")
    for took, other, epoch in refused[:3]:
        parts.append(f"{other}, not comparable, in {took:.3g} min (epoch {epoch})")
    if len(refused) > 3:
        parts.append(f"{len(refused) - 3} more runs that are not comparable")
    never = [name for name, tta in times if not tta.reached]
    if never:
        more = f" and {len(never) - 3} more" if len(never) > 3 else ""
        parts.append(f"never: {', '.join(never[:3])}{more}")

    return f"{label}: {'; '.join(parts)}."


def _comparability(report: Report) -> str:
    refused = [
        run
        for run, differs in zip(report.runs, report.differences, strict=True)
        if differs
    ]
    shown = [report.runs[0], *refused][:_MOST_CONFIGURATIONS] if refused else []
    texts = [
        json.dumps(run.comparability, indent=1, ensure_ascii=False) for run in shown
    ]
    return _details("What makes results comparable", shown, texts)


def _configurations(report: Report) -> str:
    saved = [run for run in report.runs if run.config is not None]
    shown = saved[:_MOST_CONFIGURATIONS]
    notes = []
    if len(saved) > len(shown):
        notes = [
            f"Only the first {len(shown)} of {len(saved)} configurations are shown."
        ]

    return _details("Configurations", shown, [run.config for run in shown], notes)


def _details(
    title: str,
    runs: Sequence[RunAnalysis],
    texts: Sequence[str],
    notes: Sequence[str] = (),
) -> str:
    shown = "".join(
        f"<details><summary>{escape(run.name)}</summary><pre>{escape(text)}</pre></details>\n"
        for run, text in zip(runs, texts, strict=True)
    )
    return f"<h2>{title}</h2>\n{shown}{list_element(notes, 'notes')}" if shown else ""


@dataclass(frozen=True)
class Section:
    title: str  # its heading
    answers: Sequence[str] = ()  # sentences below the heading
    tables: Sequence[Table] = ()  # in their order
    of_runs: Sequence[int] = ()  # the numbers of the runs' colours
    # Below the tables; their names are distinct within the page.
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()  # below the figures


def write_sections(title: str, sections: Sequence[Section], folder: Path) -> Path:
    charts = [chart for section in sections for chart in section.charts]
    body = f"{controls()}{''.join(_section(section, folder) for section in sections)}{_TIP}"
    write_document(folder / "report.html", title, [body], charts)
    return folder / "report.html"


def _section(section: Section, folder: Path) -> str:
    tables = "".join(
        f"<h3>{escape(table.title)}</h3>{table_element(table, section.of_runs)}"
        for table in section.tables
    )
    figures = ""
    if section.charts:
        figures = f'<div class="figures">\n{pictures(section.charts, folder)}</div>\n'
    above = list_element(section.answers, "answers")
    below = list_element(section.notes, "notes")
    return f"<h2>{escape(section.title)}</h2>\n{above}{tables}{figures}{below}"
