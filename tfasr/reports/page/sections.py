"""A page of several reports: sections with tables and figures, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from tfasr.display.chart import Chart
from tfasr.display.table import Table
from tfasr.reports.page.parts import (
    controls,
    list_element,
    pictures,
    table_element,
    tip,
    write_document,
)


@dataclass(frozen=True)
class Section:
    title: str  # its heading
    said: Sequence[str] = ()  # sentences below the heading
    tables: Sequence[Table] = ()  # in their order
    of_runs: Sequence[int] = ()  # the numbers of the runs' colours
    charts: Sequence[Chart] = ()  # below the tables; their names are distinct within the page
    notes: Sequence[str] = ()  # below the figures
    links: Sequence[tuple[str, str]] = field(default_factory=list)  # words and relative addresses


def write_sections(title: str, sections: Sequence[Section], folder: Path) -> Path:
    """Writes ``report.html`` of sections, and each figure as a PNG and an SVG; returns the page."""
    charts = [chart for section in sections for chart in section.charts]
    body = f"{controls()}{''.join(_section(section, folder) for section in sections)}{tip()}"
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
    links = "".join(
        f'<li><a href="{escape(address)}">{escape(words)}</a></li>'
        for words, address in section.links
    )
    below = f'<ul class="notes">{links}</ul>\n' if links else ""
    said = list_element(section.said, "answers")
    notes = list_element(section.notes, "notes")
    return f"<h2>{escape(section.title)}</h2>\n{said}{tables}{figures}{notes}{below}"
