"""Tables for readers and for programs: columns, rows, notes.

A table is made once and written in any format. `Column` says how a row's value becomes
text for readers, and under which name programs get it unrounded; `table_of` makes a
`Table` of columns and rows; `WRITERS` are the formats. Reports, benchmarks and studies
all make their tables here.
"""

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

# A value for programs; None if unknown.
Cell = str | int | float | bool | None
# What readers see in place of a missing value: never reached, not known, not comparable.
NEVER = "NA"
UNKNOWN = "n/a"
REFUSED = "refused"
Row = TypeVar("Row")
Other = TypeVar("Other")
# How text begins that spreadsheets run as a formula, see `harmless`.
_FORMULA = ("=", "+", "-", "@", "\t", "\n")
# The first line of each LaTeX file.
PREAMBLE = "% Needs \\usepackage{booktabs} in the preamble.\n"
# What LaTeX would not print as it is.
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}",
    # Non-ASCII characters of the report itself, for LaTeX engines of any age.
    "–": "--", "—": "---", "−": "$-$", "…": r"\dots{}", "×": r"$\times$", "±": r"$\pm$",
    "µ": r"$\mu$", "\u00a0": "~",
}  # fmt: skip
# Characters of a line; keeps rich from wrapping titles, which a terminal may wrap.
_WIDTH = 400
# Characters of a note's line.
_NOTE_WIDTH = 100
# The name of the format that is written from values, not from tables.
JSON = "json"


def table_names(tables: Sequence["Table"]) -> list[str]:
    """Returns a distinct file name without suffix for each table."""
    return file_names([table.name or table.title for table in tables])


def file_names(titles: Sequence[str]) -> list[str]:
    """Returns a distinct file name without suffix for each title, in lower-case ASCII.

    >>> file_names(["Time to accuracy", "Time to accuracy"])
    ['time_to_accuracy', 'time_to_accuracy-2']
    """
    names: list[str] = []
    for title in titles:
        plain = re.sub(r"[^a-z0-9.-]+", "_", title.lower()).strip("_.-")[:80] or "table"
        name = plain
        number = 2

        while name in names:
            name = f"{plain}-{number}"
            number += 1

        names.append(name)

    return names


@dataclass(frozen=True)
class Records:
    """A table for programs: unrounded values in SI units, None if unknown.

    Attributes:
        columns: headings with units, such as ``wall_s``.
        rows: as many cells as columns.
    """

    columns: list[str]
    rows: list[list[Cell]]


def records_of(rows: Sequence[dict[str, Cell]]) -> Records:
    """Converts rows given as dicts into records; missing values become None.

    Columns are in the order in which rows first name them.
    """
    columns = list(dict.fromkeys(heading for row in rows for heading in row))
    return Records(columns, [[row.get(heading) for heading in columns] for row in rows])


@dataclass(frozen=True)
class Table:
    """A table of text, with one cell per column in each row.

    Attributes:
        title: above the table.
        columns: headings, which may have a line break; the first names the row.
        rows: as many cells as columns.
        notes: sentences below the table.
        command: a shell command for readers to copy, shown below the notes on a
            separate line.
        colours: for each row, the index of the run whose colour it gets, or None for no
            colour; by default the row's own index.
        name: of its files; by default its title.
        records: what programs get instead of the text, if anything.
        groups: for each column, what the HTML page writes above its heading, such as a
            target; or "".
        details: columns that the HTML page folds away, by the label that unfolds them.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    command: str = ""
    colours: list[int | None] | None = None
    name: str = ""
    records: Records | None = None
    groups: list[str] | None = None
    details: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Column(Generic[Row]):
    r"""One column of a table, for text, CSV, JSON, LaTeX, HTML and notebooks.

    ``Column("time\nmin", "time_s", "tta.seconds", minutes, NEVER)`` shows minutes to
    readers, and "NA" if the time is None; programs get seconds as ``time_s``.

    Attributes:
        heading: for readers, may have a line break; "" hides the column from readers.
        name: for programs, with unit, such as ``wall_s``; "" hides the column from
            programs.
        value: unrounded, in SI units and fractions; None if unknown. It may be given as
            a path, see `at`.
        text: formats a value that is not None.
        missing: shown to readers for None.
        shown: text for readers in place of ``value``, such as an interval made of two
            values.
    """

    heading: str
    name: str
    value: Callable[[Row], Any] | str
    text: Callable[[Any], str] = str
    missing: str | Callable[[Row], str] = UNKNOWN
    shown: Callable[[Row], str] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.value, str):
            object.__setattr__(self, "value", at(self.value))

    def cell(self, row: Row) -> str:
        """Returns what readers see in a row."""
        if self.shown is not None:
            return self.shown(row)

        value = self.value(row)
        if value is not None:
            return self.text(value)
        if isinstance(self.missing, str):
            return self.missing

        return self.missing(row)


def at(path: str) -> Callable[[Any], Any]:
    """Returns a function for the value at a path of attributes, keys and places in tuples.

    In ``at("decomposition.runs.0")``, as elsewhere, the value is None if one on the way
    to it is.

    >>> at("counts.1")({"counts": (3, 5)}), at("counts.1")({})
    (5, None)
    """

    def value(row: Any) -> Any:
        for step in path.split("."):
            if row is None:
                return None

            if isinstance(row, dict):
                row = row.get(step)
            elif step.isdecimal():
                row = row[int(step)]
            else:
                row = getattr(row, step)

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

    Args:
        title: see `Table`, as for ``notes``, ``name`` and ``colours``.
        columns: those without a heading are for programs only.
        rows: what the columns' values are read from.
        notes: sentences below the table.
        name: of its files.
        colours: for each row, the index of its run.
        leave_out_empty: drops columns without any value.
        records: replaces the columns' records if programs get other rows than readers.
    """
    if leave_out_empty:
        columns = [c for c in columns if any(c.value(row) is not None for row in rows)]

    if records is None and any(column.name for column in columns):
        # Without rows, there is no header.
        records = column_records(columns, rows) if rows else Records([], [])

    shown = [column for column in columns if column.heading]

    return Table(
        title,
        [column.heading for column in shown],
        [[column.cell(row) for column in shown] for row in rows],
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
    """Returns what programs get of rows; columns without a name are left out."""
    shown = [column for column in columns if column.name]

    return Records(
        [column.name for column in shown],
        [[column.value(row) for column in shown] for row in rows],
    )


def for_readers(
    columns: Sequence[Column[Row]], row_of: Callable[[Other], Row]
) -> list[Column[Other]]:
    """Returns ``columns``, hidden from programs, for rows that ``row_of`` converts."""

    def for_reader(column: Column[Row]) -> Column[Other]:
        return Column(
            column.heading,
            "",
            lambda row: None,
            shown=lambda row: column.cell(row_of(row)),
        )

    return [for_reader(column) for column in columns if column.heading]


def fixed(decimals: int, scale: float = 1.0) -> Callable[[float], str]:
    """Returns a formatter with a fixed number of decimals.

    Values are multiplied by ``scale`` first.

    >>> fixed(1, 1000.0)(0.0125)
    '12.5'
    """
    return lambda value: f"{value * scale:.{decimals}f}"


# Formats a fraction in percent, and bytes in gigabytes.


percent = fixed(1, 100.0)
gigabytes = fixed(1, 1e-9)


def three_digits(value: float) -> str:
    """Formats a number with three digits, or with all digits before the point.

    >>> three_digits(0.01234), three_digits(1234.5)
    ('0.0123', '1234')
    """
    if value >= 100:
        return f"{value:.0f}"

    return f"{value:.3g}"


def plural(count: int, noun: str) -> str:
    """Returns a number with its noun, in the plural unless it is 1.

    >>> plural(1, "thread"), plural(8, "thread")
    ('1 thread', '8 threads')
    """
    if count == 1:
        return f"1 {noun}"

    return f"{count} {noun}s"


def whole_percent(share: float) -> str:
    """Formats a fraction in percent without decimals, with its sign.

    >>> whole_percent(0.856)
    '86 %'
    """
    return f"{100 * share:.0f} %"


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
    records = table.records
    if records is None:
        headings = [" ".join(heading.split()) for heading in table.columns]
        records = Records(headings, table.rows)

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([harmless(column) for column in records.columns])
    writer.writerows([_cell(cell) for cell in row] for row in records.rows)

    return text.getvalue()


def _cell(cell: Cell) -> str:
    """Returns a value as CSV has it; "" for None, NaN and infinity."""
    if isinstance(cell, str):
        return harmless(cell)
    if isinstance(cell, bool):
        return str(cell).lower()
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""

    return repr(cell)


def harmless(text: str) -> str:
    """Prefixes an apostrophe to text that spreadsheets would run as a formula.

    Source: OWASP, "CSV Injection".

    >>> harmless("=1+1"), harmless("-1.5")
    ("'=1+1", '-1.5')
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
    # Only the parser can replace them.
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
        # The first column names the row, all others are numbers.
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
    """Escapes a cell.

    After the end of a row, a bracket would set the distance to the next row.
    """
    text = latex_text(cell)
    if text.startswith(("[", "*")):
        return f"{{{text}}}"

    return text


def _heading(heading: str) -> str:
    """Escapes a heading, which LaTeX breaks only within a box of its own."""
    lines = [_guarded(line) for line in heading.split("\n")]
    if len(lines) == 1:
        return lines[0]

    text = r"\\".join(lines)
    return rf"\shortstack{{{text}}}"


def html_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str
) -> str:
    """Formats a plain, escaped HTML table, which takes the notebook's colours."""
    head = ""
    if any(headings):
        cells = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
        head = f"<thead><tr>{cells}</tr></thead>\n"

    body = ""
    for row in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        body += f"<tr>{cells}</tr>\n"

    return (
        f'<table><caption style="text-align:left">{escape(caption)}</caption>\n{head}'
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

    named = dict.fromkeys([*columns, *(name for row in rows for name in row)])
    return pandas.DataFrame(list(rows), columns=list(named))


def to_text(tables: Sequence[Table]) -> str:
    """Formats tables for a terminal: title, aligned columns, wrapped notes.

    Control characters are escaped, as names of runs come from folders. A command is never
    wrapped, so that it can be copied.
    """
    # Imported here: the other formats don't need it.
    from rich.console import Console
    from rich.text import Text

    console = Console()

    def wrapped(text: str, width: int) -> list[str]:
        return [line.plain for line in Text(printable(text)).wrap(console, width)]

    lines: list[str] = []
    for table in tables:
        if lines:
            lines.append("")

        lines += wrapped(table.title, _WIDTH)
        lines += ["", *_drawn(table), ""]

        for note in table.notes:
            lines += wrapped(note, _NOTE_WIDTH)

        if table.command:
            lines += ["", f"  {printable(table.command, one_line=True)}"]

    text = "\n".join([*lines, ""])
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _drawn(table: Table) -> list[str]:
    """Returns a table's lines: headings, a rule, rows; numbers are aligned right.

    rich's own tables take seconds for a thousand rows.
    """
    from rich.cells import cell_len

    # Headings stand on the rule, whatever their number of lines.
    headings = [list(map(printable, heading.split("\n"))) for heading in table.columns]
    height = max(map(len, headings))
    head = [[""] * (height - len(lines)) + lines for lines in headings]

    rows = [[printable(cell, one_line=True) for cell in row] for row in table.rows]
    columns = [[*lines, *cells] for lines, *cells in zip(head, *rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = []
        for cell, width in zip(cells, widths, strict=True):
            # Not str.rjust: letters of some scripts are two columns wide.
            blanks = " " * (width - cell_len(cell))
            padded.append(blanks + cell if padded else cell + blanks)

        return " " + " ".join(padded)

    rule = " " + "─" * (sum(widths) + len(widths) - 1)
    above = [line(cells) for cells in zip(*head, strict=True)]

    return [*above, rule, *map(line, rows)]


def to_markdown(tables: Sequence[Table]) -> str:
    """Formats tables as Markdown, each below a heading.

    Notes are lists, a command is code.
    """
    blocks = []
    for table in tables:
        lines = [f"## {table.title}", "", _markdown_row(table.columns)]
        lines.append("| --- |" + " ---: |" * (len(table.columns) - 1))
        lines += [_markdown_row(row) for row in table.rows]
        lines.append("")
        lines += [f"- {markdown_text(note)}" for note in table.notes]

        if table.command:
            lines += ["", f"    {table.command}"]

        blocks.append("\n".join(lines) + "\n")

    return "\n".join(blocks)


def _markdown_row(cells: Sequence[str]) -> str:
    """Returns a line of a Markdown table."""
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def markdown_text(text: str) -> str:
    """Returns text in one line that Markdown and HTML show as it is."""
    # The backslash first, as it escapes the others.
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
    """Raises `UsageError` for a name that is no format of tables."""
    if name not in formats():
        raise UsageError(f"The format must be one of {formats()}. Received: {name!r}.")
