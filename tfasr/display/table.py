"""Tables for readers and for programs: columns, rows, notes."""

import csv
import importlib
import io
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tfasr.errors import UsageError, extra, optional_package, printable
from tfasr.kit.registry import Registry

if TYPE_CHECKING:
    import pandas as pd

Cell = str | int | float | bool | None
# Never reached, not known, not comparable.
NEVER = "NA"
UNKNOWN = "n/a"
REFUSED = "refused"
Row = TypeVar("Row")
Other = TypeVar("Other")
_FORMULA = ("=", "+", "-", "@", "\t", "\n")
PREAMBLE = "% Needs \\usepackage{booktabs} in the preamble.\n"
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}",
    # Non-ASCII characters of the report itself, for LaTeX engines of any age.
    "–": "--", "—": "---", "−": "$-$", "…": r"\dots{}", "×": r"$\times$", "±": r"$\pm$",
    "µ": r"$\mu$", "\u00a0": "~",
}  # fmt: skip
_WIDTH = 400  # keeps rich from wrapping titles; a terminal may wrap them
_NOTE_WIDTH = 100
JSON = "json"


def table_names(tables: Sequence["Table"]) -> list[str]:
    """Returns a distinct file name without suffix for each table."""
    return file_names([table.name or table.title for table in tables])


def file_names(titles: Sequence[str]) -> list[str]:
    """Returns a distinct file name without suffix for each title, in lower-case ASCII."""
    names: list[str] = []
    for title in titles:
        plain = re.sub(r"[^a-z0-9.-]+", "_", title.lower()).strip("_.-")[:80] or "table"
        name = plain
        number = 2
        while name in names:
            name = f"{plain}-{number}"
            number = number + 1

        names.append(name)

    return names


@dataclass(frozen=True)
class Records:
    """A table for programs: unrounded values in SI units, None if unknown."""

    columns: list[str]  # headings with units, such as ``wall_s``
    rows: list[list[Cell]]  # as many cells as columns


def records_of(rows: Sequence[dict[str, Cell]]) -> Records:
    """Converts rows given as dicts into records; missing values become None.

    Columns are in the order in which rows first name them.
    """
    columns = list(dict.fromkeys(heading for row in rows for heading in row))
    return Records(columns, [[row.get(heading) for heading in columns] for row in rows])


@dataclass(frozen=True)
class Table:
    """A table of text, with one cell per column in each row."""

    title: str
    columns: list[str]  # headings, which may have a line break; the first names the row
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    # A shell command for readers to copy, shown below the notes on a separate line.
    command: str = ""
    # for each row, the index of the run whose colour it gets, or None for no colour; by
    # default the row's own index
    colours: list[int | None] | None = None
    name: str = ""  # of its files; by default its title
    records: Records | None = None  # what programs get instead of the text, if anything
    # for each column, what the HTML page writes above its heading, such as a target; or
    # ""
    groups: list[str] | None = None
    # columns that the HTML page folds away, by the label that unfolds them
    details: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table, for text, CSV, JSON, LaTeX, HTML and notebooks."""

    heading: str  # for readers, may have a line break; "" hides the column from readers
    # For programs, with unit, such as ``wall_s``; "" hides the column from programs.
    name: str
    # unrounded, in SI units and fractions; None if unknown. It may be given as a path,
    # see `at`
    value: Callable[[Row], Any] | str
    text: Callable[[Any], str] = str  # formats a value that is not None
    missing: str | Callable[[Row], str] = UNKNOWN  # shown to readers for None
    # text for readers in place of ``value``, such as an interval made of two values
    shown: Callable[[Row], str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            object.__setattr__(self, "value", at(self.value))

    def cell(self, row: Row) -> str:
        if self.shown is not None:
            return self.shown(row)
        if (value := self.value(row)) is not None:
            return self.text(value)
        return self.missing if isinstance(self.missing, str) else self.missing(row)


def at(path: str) -> Callable[[Any], Any]:
    """Returns a function for the value at a path of attributes, keys and places in tuples.

    In ``at("decomposition.runs.0")``, as elsewhere, the value is None if one on the way
    to it is.
    """

    def value(row: Any) -> Any:
        for step in path.split("."):
            if isinstance(row, dict):
                row = row.get(step)
            elif row is not None:
                row = row[int(step)] if step.isdecimal() else getattr(row, step)

        return row

    return value


def table_of(
    title: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    notes: Sequence[str] = (),
    *,
    name: str = "",
    colours: list[int | None] | None = None,
    leave_out_empty: bool = False,
    records: Records | None = None,
) -> Table:
    """Returns a table with a line per row; the first column names the row.

    ``colours`` and ``name``: see `Table`. ``leave_out_empty`` drops columns without any
    value. ``records`` replaces the columns' records if programs get other rows than
    readers. The other parameters are fields of `Table`.
    """
    if leave_out_empty:
        columns = [c for c in columns if any(c.value(row) is not None for row in rows)]
    if records is None and any(column.name for column in columns):
        # Without rows, there is no header.
        records = column_records(columns, rows) if rows else Records([], [])

    shown = [column for column in columns if column.heading]
    texts = [[column.cell(row) for column in shown] for row in rows]
    headings = [column.heading for column in shown]
    return Table(
        title,
        headings,
        texts,
        list(notes),
        colours=colours,
        name=name,
        records=records,
    )


def values_of(columns: Sequence[Column[Row]], row: Row) -> dict[str, Any]:
    """Returns a row's values by the columns' names for programs, unrounded.

    Columns without such a name are for readers only and left out.
    """
    return {column.name: column.value(row) for column in columns if column.name}


def column_records(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Records:
    shown = [column for column in columns if column.name]
    return Records(
        [c.name for c in shown], [[c.value(row) for c in shown] for row in rows]
    )


def for_readers(
    columns: Sequence[Column[Row]], row_of: Callable[[Other], Row]
) -> list[Column[Other]]:
    """Returns ``columns``, hidden from programs, for rows that ``row_of`` converts."""
    return [
        Column(
            c.heading, "", lambda row: None, shown=lambda row, c=c: c.cell(row_of(row))
        )
        for c in columns
        if c.heading
    ]


def fixed(decimals: int, scale: float = 1.0) -> Callable[[float], str]:
    """Returns a formatter with a fixed number of decimals, after multiplication by
    ``scale``.
    """
    return lambda value: f"{value * scale:.{decimals}f}"


percent = fixed(1, 100.0)  # of a fraction
gigabytes = fixed(1, 1e-9)  # of bytes


def three_digits(value: float) -> str:
    """Formats a number with three digits, or with all digits before the point.

    >>> three_digits(0.01234), three_digits(1234.5)
    ('0.0123', '1234')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def milliseconds(seconds: float | None) -> str:
    """Formats seconds as milliseconds: two decimals below 10 ms, none from a second on.

    >>> milliseconds(0.00123), milliseconds(0.1), milliseconds(2.5), milliseconds(None)
    ('1.23', '100.0', '2500', 'n/a')
    """
    if seconds is None:
        return UNKNOWN
    ms = 1000 * seconds
    if abs(ms) < 10:
        return f"{ms:.2f}"

    if abs(ms) < 1000:
        return f"{ms:.1f}"

    return f"{ms:.0f}"


def to_csv(tables: Sequence[Table]) -> str:
    """Formats tables as CSV (RFC 4180), one after another, below lines ``# name: title``.

    Seconds and fractions are not rounded.
    """
    blocks = [
        f"# {name}: {' '.join(table.title.split())}\n{table_to_csv(table)}"
        for name, table in zip(table_names(tables), tables, strict=True)
    ]
    return "\n".join(blocks)


def table_to_csv(table: Table) -> str:
    """Formats a table's records, or else its text, with a header; empty cells are unknown."""
    records = table.records or Records(
        [" ".join(heading.split()) for heading in table.columns],
        [list(row) for row in table.rows],
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([harmless(column) for column in records.columns])
    writer.writerows([_cell(cell) for cell in row] for row in records.rows)
    return text.getvalue()


def _cell(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return harmless(cell) if isinstance(cell, str) else repr(cell)


def harmless(text: str) -> str:
    """Prefixes an apostrophe to text that spreadsheets would run as a formula.
    Source: OWASP, "CSV Injection".
    """
    # Spreadsheets end lines at carriage returns too, but the writer quotes only line
    # feeds.
    text = text.replace("\r", "\n")
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return "'" + text

    return text


def to_json_text(value: Any) -> str:
    """Returns a value as indented JSON with a final line feed; NaN and infinity become null.

    Standard JSON has no such numbers, and other programs refuse them.
    """
    # Parsed again, as JSON has no NaN and no infinity: they become null.
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    return json.dumps(finite, indent=2, ensure_ascii=False) + "\n"


def to_latex(tables: Sequence[Table]) -> str:
    """Formats tables as ``table`` environments with caption, label and notes."""
    named = zip(tables, table_names(tables), strict=True)
    return PREAMBLE + "\n".join(table_to_latex(table, name) for table, name in named)


def table_to_latex(table: Table, label: str) -> str:
    """Formats one table; its label is ``tab:LABEL``."""
    head = " & ".join(map(_heading, table.columns))
    rows = [" & ".join(map(_guarded, row)) + r" \\" for row in table.rows]
    notes = [rf"\par\smallskip\footnotesize {latex_text(note)}" for note in table.notes]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(table.title)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    """Escapes text for LaTeX, on one line.

    Letters of any script stay; XeLaTeX and LuaLaTeX print them all, pdfTeX's fonts lack
    some.
    """
    plain = "".join(
        " " if unicodedata.category(letter) == "Cc" else letter for letter in text
    )
    return "".join(_SPECIAL.get(letter, letter) for letter in plain.strip())


def _guarded(cell: str) -> str:
    text = latex_text(cell)
    # After the end of a row, a bracket would set the distance to the next row.
    return f"{{{text}}}" if text.startswith(("[", "*")) else text


def _heading(heading: str) -> str:
    first, *others = heading.split("\n")
    if not others:
        return _guarded(first)
    lines = r"\\".join(map(_guarded, [first, *others]))
    return rf"\shortstack{{{lines}}}"


def html_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str
) -> str:
    """Formats a plain, escaped HTML table, which takes the notebook's colours."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>\n" for row in cells)
    thead = f"<thead><tr>{head}</tr></thead>\n" if any(headings) else ""
    return (
        f'<table><caption style="text-align:left">{escape(caption)}</caption>\n{thead}'
        f"<tbody>{body}</tbody></table>\n"
    )


def dataframe(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> "pd.DataFrame":
    """Returns a pandas data frame with at least ``columns``, even without rows.

    Raises UsageError, with the pip command, if pandas is missing.
    """
    with optional_package("pandas", "A data frame", extra("notebook")):
        pandas = importlib.import_module("pandas")
    more = dict.fromkeys(name for row in rows for name in row)
    return pandas.DataFrame(list(rows), columns=list(dict.fromkeys([*columns, *more])))


def to_text(tables: Sequence[Table]) -> str:
    """Formats tables for a terminal: title, aligned columns, wrapped notes.

    Control characters are escaped, as names of runs come from folders. A command is never
    wrapped, so that it can be copied.
    """
    from rich.console import Console  # here: the other formats don't need it
    from rich.text import Text

    console = Console()

    def wrapped(text: str, width: int) -> list[str]:
        return [line.plain for line in Text(printable(text)).wrap(console, width)]

    lines: list[str] = []
    for table in tables:
        lines += [""] if lines else []
        lines += [*wrapped(table.title, _WIDTH), "", *_drawn(table), ""]
        for note in table.notes:
            lines += wrapped(note, _NOTE_WIDTH)

        if table.command:
            lines += ["", f"  {printable(table.command, one_line=True)}"]

    text = "\n".join([*lines, ""])
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _drawn(table: Table) -> list[str]:
    # rich's own tables take seconds for a thousand rows.
    from rich.cells import cell_len

    headings = [list(map(printable, heading.split("\n"))) for heading in table.columns]
    height = max(map(len, headings))
    head = [[""] * (height - len(lines)) + lines for lines in headings]
    rows = [[printable(cell, one_line=True) for cell in row] for row in table.rows]
    columns = [[*lines, *cells] for lines, *cells in zip(head, *rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        blanks = [
            " " * (width - cell_len(c)) for c, width in zip(cells, widths, strict=True)
        ]
        figures = (
            blank + cell for blank, cell in zip(blanks[1:], cells[1:], strict=True)
        )
        return " " + " ".join([cells[0] + blanks[0], *figures])

    lines = [line(cells) for cells in zip(*head, strict=True)]
    return [*lines, " " + "─" * (sum(widths) + len(widths) - 1), *map(line, rows)]


def to_markdown(tables: Sequence[Table]) -> str:
    """Formats tables as Markdown with a heading each; notes are lists, a command is
    code.
    """
    blocks = []
    for table in tables:
        lines = [f"## {table.title}", "", _markdown_row(table.columns)]
        lines.append("| --- |" + " ---: |" * (len(table.columns) - 1))
        lines.extend(_markdown_row(row) for row in table.rows)
        lines.append("")
        lines.extend(f"- {markdown_text(note)}" for note in table.notes)
        if table.command:
            lines += ["", f"    {table.command}"]

        blocks.append("\n".join(lines) + "\n")

    return "\n".join(blocks)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def markdown_text(text: str) -> str:
    """Returns text in one line that Markdown and HTML show as it is."""
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


WRITERS: Registry[Callable[[Sequence[Table]], str]] = Registry(
    "format",
    {"table": "tfasr.display.table:to_text", "markdown": "tfasr.display.table:to_markdown",
     "latex": "tfasr.display.table:to_latex", "csv": "tfasr.display.table:to_csv"},
)  # fmt: skip
"""Functions that write tables as text, by format; not `JSON`, which is written from values.

Register your own::

    @WRITERS.register("org")
    def to_org(tables): ...
"""


def formats() -> tuple[str, ...]:
    """Returns all names of formats: those of `WRITERS`, plug-ins' included, and "json"."""
    return (*WRITERS, JSON)


def check_format(name: str) -> None:
    if name not in formats():
        raise UsageError(f"The format must be one of {formats()}. Received: {name!r}.")
