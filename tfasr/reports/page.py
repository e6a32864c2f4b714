"""Writes ``report.html``, a page in a single file, and the figures as files.

The page must open anywhere, also from a disk without a network: styles, scripts, data and
still drawings are inside it, and its content policy forbids everything else. A browser
with JavaScript replaces each still drawing by one with tooltips and axes to choose
(``page.js``). A `Section` is a folded part of the page; `write_page` writes them in
order.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from itertools import chain, groupby
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
from tfasr.reports.numbers import Report, RunAnalysis
from tfasr.reports.summary import Summary

# The attribute of figures as wide as the page.
_WIDE = ' class="wide"'
# Shows values at the pointer.
_TIP = '<div id="tip" role="status" hidden></div>\n'
# What readers may choose for all curves: the name of the field, its label, its values;
# the first value is chosen.
_CONTROLS = (
    ("x", "Curves over", ("time", "epochs", "utterances")),
    ("x-scale", "scale", ("linear", "log")),
    ("y-scale", "values", ("linear", "log")),
)


def write_document(
    path: Path, title: str, body: Iterable[str], charts: Sequence[Chart] | None = None
) -> None:
    """Writes a page part by part: as a whole, its megabytes would be in memory several
    times.

    Args:
        path: the file.
        title: of the page, also its first heading.
        body: parts of HTML, already escaped.
        charts: for the page's script; None for a page without scripts.
    """
    script = ""
    hashes: list[str] = []
    if charts is not None:
        script, hashes = _scripts(charts)

    allowed = " ".join(f"'{digest}'" for digest in hashes)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    style = _own_file("page.css")
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n"
    )
    foot = f"<footer>tfasr {escape(__version__)}</footer>\n"

    with whole_file(path) as file:
        for part in chain([head], body, [foot, script, "</body>\n</html>\n"]):
            file.write(part.encode(errors="backslashreplace"))


def _scripts(charts: Sequence[Chart]) -> tuple[str, list[str]]:
    """Returns the page's scripts with the data of its charts, and the scripts' hashes.

    The page's content policy allows scripts by their hashes.
    """
    # One chart after the other: all objects at once would need ten times the memory of
    # the text.
    texts = []
    for chart in charts:
        views = chart.views or {"": chart.panels}
        described = {
            "columns": chart.columns,
            "legend": page_legend(chart),
            "views": {view: page_panels(panels) for view, panels in views.items()},
        }
        texts.append(f"{_json(chart.name)}:{_json(described)}")

    look = f'"ink":{_json(INK)},"config":{_json(config_of(INK))}'
    text = f'{{{look},"charts":{{{",".join(texts)}}}}}'
    # Within a script element only "</" and "<!--" are special; in JSON "<" can be
    # escaped.
    data = text.replace("<", "\\u003c")
    elements = f'<script type="application/json" id="charts">{data}</script>\n'

    hashes = []
    for code in (page_library(), _own_file("page.js")):
        elements += f"<script>{code}</script>\n"
        # A browser converts line ends to "\n" before it computes these hashes.
        plain = code.replace("\r\n", "\n").replace("\r", "\n").encode()
        digest = base64.b64encode(hashlib.sha256(plain).digest()).decode()
        hashes.append(f"sha256-{digest}")

    return elements, hashes


def _json(value: Any) -> str:
    """Returns a value as the shortest JSON; NaN and infinity are errors."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def controls() -> str:
    """Returns the form with which readers choose the axes of all curves.

    It is hidden until the page's script runs, as nothing else answers it.
    """
    fields = []
    for name, label, values in _CONTROLS:
        choices = ""
        for value in values:
            checked = " checked" if value == values[0] else ""
            choices += (
                f'<label><input type="radio" name="{name}" value="{value}"{checked}>'
                f"{value}</label>"
            )

        fields.append(f"<fieldset><legend>{label}</legend>{choices}</fieldset>")

    return (
        '<details class="axes"><summary>Axes of the curves</summary>'
        f'<form class="controls" id="controls" hidden>{"".join(fields)}</form></details>\n'
    )


def pictures(charts: Sequence[Chart], folder: Path) -> str:
    """Writes charts as files, and returns HTML with a still drawing of each.

    The script replaces the still drawing by one with tooltips; without scripts, the
    page is complete too.
    """
    figures = ""
    for chart in charts:
        wide = _WIDE if chart.wide else ""
        figures += (
            f'<figure id="{escape(chart.name)}"{wide}>'
            f"<figcaption>{escape(chart.caption)}. "
            '<button type="button" class="save" hidden>Save as SVG</button></figcaption>'
            '<div class="legend"></div><div class="plot"></div>'
            f'<div class="still">{embedded_svg(write_chart(chart, folder))}</div>'
            "</figure>\n"
        )

    return figures


def table_element(table: Table, of_runs: Sequence[int] | None = None) -> str:
    """Returns a table and its notes as HTML.

    Args:
        table: its columns in ``details`` are folded away below it.
        of_runs: for each run, the number of its colour; None for rows without colours.
    """
    hidden = {place for places in table.details.values() for place in places}
    shown = [place for place in range(len(table.columns)) if place not in hidden]
    element = _columns_element(table, of_runs, shown)

    for name, places in table.details.items():
        # The first column names the row, here too.
        folded = _columns_element(table, of_runs, [0, *places])
        element += f"<details><summary>{escape(name)}</summary>{folded}</details>\n"

    return element + list_element(table.notes, "notes")


def _columns_element(
    table: Table, of_runs: Sequence[int] | None, places: Sequence[int]
) -> str:
    """Returns some columns of a table as HTML.

    Args:
        table: the table.
        of_runs: for each run, the number of its colour; None for rows without colours.
        places: of the columns; the first one names the row.
    """
    runs = table.colours
    if runs is None:
        runs = range(len(table.rows))

    rows = []
    for run, row in zip(runs, table.rows, strict=True):
        name, *others = (escape(row[place]) for place in places)
        first = f"<td>{name}</td>"
        if of_runs is not None:
            colour = ""
            if run is not None:
                colour = f"background:{run_colour(of_runs[run])}"

            # A no-break space keeps the dot next to its name on a phone.
            dot = f'<span class="swatch" style="{colour}"></span>&nbsp;'
            first = f'<td title="{name}">{dot}{name}</td>'

        cells = "".join(f"<td>{cell}</td>" for cell in others)
        rows.append(f"<tr>{first}{cells}</tr>\n")

    head = _head(table, places)

    return (
        f'<div class="scroll" tabindex="0"><table aria-label="{escape(table.title)}">'
        f"<thead>{head}</thead>\n<tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def _head(table: Table, places: Sequence[int]) -> str:
    """Returns the headings of some columns, below those of their groups if they have any.

    The groups' headings, such as targets, span the columns below them.
    """
    groups = table.groups or [""] * len(table.columns)
    head = ""

    for place in places:
        # What the group's heading says needs no repetition.
        heading = table.columns[place].removeprefix(f"{groups[place]}\n")
        head += f'<th scope="col">{escape(heading.strip())}</th>'

    head = f"<tr>{head}</tr>"
    if not table.groups:
        return head

    above = ""
    for group, members in groupby(groups[place] for place in places):
        span = len(list(members))
        above += f'<th scope="colgroup" colspan="{span}">{escape(group)}</th>'

    return f'<tr class="groups">{above}</tr>{head}'


def list_element(items: Iterable[str], kind: str) -> str:
    """Returns sentences as an HTML list of a CSS class; "" without any."""
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    if not entries:
        return ""

    return f'<ul class="{kind}">{entries}</ul>\n'


def _own_file(name: str) -> str:
    """Returns the text of a file next to this module."""
    return resources.files("tfasr.reports").joinpath(name).read_text(encoding="utf-8")


# More would make the page slow; the others are in the runs' folders.
_MOST_CONFIGURATIONS = 50


@dataclass(frozen=True)
class Section:
    """A part of a page, folded until a reader opens it.

    Attributes:
        title: its heading.
        short: its name in the list of contents; "" for the heading.
        answers: sentences below the heading.
        tables: in their order.
        of_runs: for each run, the number of its colour.
        charts: below the tables; their names are distinct within the page.
        notes: below the figures.
        html: more of the section, already escaped.
        opened: whether readers see it at once.
    """

    title: str
    short: str = ""
    answers: Sequence[str] = ()
    tables: Sequence[Table] = ()
    of_runs: Sequence[int] = ()
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    html: str = ""
    opened: bool = False


@dataclass(frozen=True)
class FirstScreen:
    """What a page answers before anything is unfolded.

    Attributes:
        summary: the verdict, what was measured, and the times of all groups.
        of_runs: for each run, the number of its colour.
        chart: the curve that the verdict is about; None if nothing was evaluated.
    """

    summary: Summary
    of_runs: Sequence[int]
    chart: Chart | None


def write_page(
    title: str, first: FirstScreen | None, sections: Sequence[Section], folder: Path
) -> Path:
    """Writes ``report.html``, which refers to no other file, and all figures as files.

    The page's content policy stops browsers from fetching anything; text from runs is
    escaped. Each figure is also written as a PNG and an SVG. Returns the page's path.
    """
    # Before drawing: its process and the drawings together need the most memory.
    page_library()
    charts = [chart for section in sections for chart in section.charts]
    if first is not None and first.chart is not None:
        charts.insert(0, first.chart)

    def body() -> Iterator[str]:
        if first is not None:
            yield _first_screen(first, folder)

        yield _contents(sections)
        yield controls()

        for number, section in enumerate(sections):
            yield _section(section, number, folder)

        yield _TIP

    path = folder / "report.html"
    write_document(path, title, body(), charts)

    return path


def _first_screen(first: FirstScreen, folder: Path) -> str:
    """Returns the part of the page that needs no unfolding, and writes its figure."""
    summary = first.summary
    verdict = summary.verdict
    decide = ""

    if verdict.why:
        decide = f'<p class="why">{escape(verdict.why)}</p>\n'
    if verdict.command:
        decide += f'<pre class="why">{escape(verdict.command)}</pre>\n'

    figure = ""
    if first.chart is not None:
        figure = pictures([first.chart], folder)

    table = summary.table
    shown = _columns_element(table, first.of_runs, range(len(table.columns)))

    return (
        f'<p class="about">{escape(summary.about)}</p>\n'
        f'<p class="verdict">{_unbroken(escape(verdict.text))}</p>\n{decide}'
        f'<div class="first">{shown}{figure}</div>\n'
        f'<p class="about">{escape(summary.rule)}</p>\n'
    )


def _unbroken(text: str) -> str:
    """Keeps numbers and their units, such as "9.27 s", on one line."""
    return re.sub(r"(\d) (%|s|min|h)(?![a-z])", "\\1\u00a0\\2", text)


def _contents(sections: Sequence[Section]) -> str:
    """Returns links to all sections; "" for a page with fewer than two."""
    if len(sections) < 2:
        return ""

    links = [
        f'<a href="#section-{number}">{escape(section.short or section.title)}</a>'
        for number, section in enumerate(sections)
    ]
    return f'<nav aria-label="Contents">{" ".join(links)}</nav>\n'


def _section(section: Section, number: int, folder: Path) -> str:
    """Returns a section as HTML, and writes its figures.

    ``number`` is its place on the page, to which the contents link.
    """
    parts = [list_element(section.answers, "answers")]
    for table in section.tables:
        # A section that is named after its only table needs no second heading.
        if table.title != section.title:
            parts.append(f"<h3>{escape(table.title)}</h3>")

        parts.append(table_element(table, section.of_runs or None))

    if section.charts:
        drawn = pictures(section.charts, folder)
        parts.append(f'<div class="figures">\n{drawn}</div>\n')

    parts.append(list_element(section.notes, "notes"))
    parts.append(section.html)
    shown = " open" if section.opened else ""

    return (
        f'<details class="section" id="section-{number}"{shown}>'
        f"<summary><h2>{escape(section.title)}</h2></summary>\n"
        f"{''.join(parts)}</details>\n"
    )


def comparability_section(report: Report) -> list[Section]:
    """Returns a section with what each run's results depend on, if some runs differ.

    It shows the settings of the first run and of those that differ from it, at most
    `_MOST_CONFIGURATIONS`.
    """
    refused = [
        run
        for run, differs in zip(report.runs, report.differences, strict=True)
        if differs
    ]
    if not refused:
        return []

    shown = [report.runs[0], *refused][:_MOST_CONFIGURATIONS]
    texts = [
        json.dumps(run.comparability, indent=1, ensure_ascii=False) for run in shown
    ]

    return [Section("What makes results comparable", html=_details(shown, texts))]


def configuration_section(report: Report) -> list[Section]:
    """Returns a section with the runs' gin configurations, if they were saved."""
    saved = [run for run in report.runs if run.config is not None]
    if not saved:
        return []

    notes = []
    shown = saved[:_MOST_CONFIGURATIONS]
    if len(saved) > len(shown):
        notes.append(
            f"Only the first {len(shown)} of {len(saved)} configurations are shown."
        )

    html = _details(shown, [run.config for run in shown])
    return [Section("Configurations", notes=notes, html=html)]


def _details(runs: Sequence[RunAnalysis], texts: Sequence[str]) -> str:
    """Returns a text of each run, folded below the run's name."""
    return "".join(
        f"<details><summary>{escape(run.name)}</summary><pre>{escape(text)}</pre></details>\n"
        for run, text in zip(runs, texts, strict=True)
    )
