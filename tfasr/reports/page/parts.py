"""The page's parts that belong to its charts, and what keeps it from the network."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

from tfasr._version import __version__
from tfasr.display.chart import Chart
from tfasr.display.pictures import embedded_svg, page_library, write_chart
from tfasr.display.style import INK, run_colour
from tfasr.display.table import Table
from tfasr.display.vega import config_of, page_legend, page_panels
from tfasr.durable import whole_file

_WIDE = ' class="wide"'
_CONTROLS = (
    (
        "x",
        "Horizontal axis:",
        (("minutes", "minutes"), ("epochs", "epochs"), ("utterances", "utterances")),
    ),
    ("x-scale", "scale:", (("linear", "linear"), ("log", "log"))),
    ("y-scale", "Vertical axis:", (("linear", "linear"), ("log", "log"))),
)


def write_document(
    path: Path, title: str, body: Iterable[str], charts: Sequence[Chart] | None = None
) -> None:
    """Writes a whole page: its head, its heading, a body and the version at its foot.

    It goes to the file part by part: a page of megabytes would be held several times, as text and
    as bytes.

    Raises:
        OSError: if it cannot be written; the file is then as it was before.
    """
    script, hashes = ("", []) if charts is None else _scripts(charts)
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{_content_policy(hashes)}\n"
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
    # One chart after the other: the objects of all at once would take ten times the text's room.
    texts = ",".join(f"{_json(one.name)}:{_json(_described(one))}" for one in charts)
    text = f'{{"ink":{_json(INK)},"config":{_json(config_of(INK))},"charts":{{{texts}}}}}'
    # Within a script element only "</" and "<!--" mean anything, and JSON can do without "<".
    data = text.replace("<", "\\u003c")
    run = [page_library(), _own_file("page.js")]
    elements = "".join(f"<script>{code}</script>\n" for code in run)
    return (
        f'<script type="application/json" id="charts">{data}</script>\n{elements}',
        [_hash(code) for code in run],
    )


def _described(one: Chart) -> dict[str, Any]:
    return {
        "columns": one.columns,
        "legend": page_legend(one),
        "views": {
            view: page_panels(panels) for view, panels in (one.views or {"": one.panels}).items()
        },
    }


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _content_policy(hashes: Sequence[str]) -> str:
    allowed = " ".join(f"'{one}'" for one in hashes)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def controls() -> str:
    """Returns the choices of axes, hidden until the script can obey them."""
    fields = "".join(
        f"<fieldset><legend>{label}</legend>{_choices(name, values)}</fieldset>"
        for name, label, values in _CONTROLS
    )
    return f'<form class="controls" id="controls" hidden>{fields}</form>\n'


def pictures(charts: Sequence[Chart], folder: Path) -> str:
    """Writes charts into a folder as files, and returns them as figures of the page.

    A figure has places for what the script draws, and a still drawing until there is any.
    """
    page_library()  # first: beside the process that makes it, drawing would take the most memory
    return "".join(
        f'<figure id="{escape(one.name)}"{_WIDE if one.wide else ""}>'
        f"<figcaption>{escape(one.caption)}. "
        '<button type="button" class="save" hidden>Save as SVG</button></figcaption>'
        '<div class="legend"></div><div class="plot"></div>'
        f'<div class="still">{embedded_svg(write_chart(one, folder))}</div></figure>\n'
        for one in charts
    )


def tip() -> str:
    """Returns what tells of the place that a reader points at; a page has one."""
    return '<div id="tip" role="status" hidden></div>\n'


def table_element(table: Table, of_runs: Sequence[int]) -> str:
    """Returns a table and its notes; ``of_runs`` has the number of each run's colour."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.columns)
    rows = []
    runs = range(len(table.rows)) if table.colours is None else table.colours
    for run, (name, *cells) in zip(runs, table.rows, strict=True):
        colour = "" if run is None else f"background:{run_colour(of_runs[run])}"
        swatch = f'<span class="swatch" style="{colour}"></span>'
        tail = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr><td title="{escape(name)}">{swatch}{escape(name)}</td>{tail}</tr>\n')
    return (
        f'<div class="scroll" tabindex="0"><table aria-label="{escape(table.title)}">'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table></div>\n"
        f"{list_element(table.notes, 'notes')}"
    )


def list_element(items: Iterable[str], kind: str) -> str:
    """Returns a list of a kind that the style sheet knows; nothing where it is empty."""
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{entries}</ul>\n' if entries else ""


def _choices(name: str, values: Sequence[tuple[str, str]]) -> str:
    checked = " checked"
    return "".join(
        f'<label><input type="radio" name="{name}" value="{value}"'
        f"{checked if not index else ''}>{label}</label>"
        for index, (value, label) in enumerate(values)
    )


def _own_file(name: str) -> str:
    return resources.files("tfasr.reports.page").joinpath(name).read_text(encoding="utf-8")


def _hash(code: str) -> str:
    # A parser hands on line ends as "\n", and hashes what it hands on.
    digest = hashlib.sha256(code.replace("\r\n", "\n").replace("\r", "\n").encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
