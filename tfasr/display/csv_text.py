"""Tables for programs: comma-separated values as in RFC 4180, seconds and fractions unrounded."""

import csv
import io
import math
from collections.abc import Sequence

from tfasr.display.files import file_names
from tfasr.display.table import Cell, Records, Table

_FORMULA = ("=", "+", "-", "@", "\t", "\n")


def to_csv(tables: Sequence[Table]) -> str:
    """Returns tables one below the other: a line ``# name: title``, the table, an empty line.

    `table_to_csv` of one table alone has no such line.
    """
    names = file_names([table.name or table.title for table in tables])
    blocks = [
        f"# {name}: {' '.join(table.title.split())}\n{table_to_csv(table)}"
        for name, table in zip(names, tables, strict=True)
    ]
    return "\n".join(blocks)


def table_to_csv(table: Table) -> str:
    """Returns a table's records, with a header line; empty cells are what is not known.

    A table without records gives the text of its cells.
    """
    records = table.records or Records(
        [" ".join(heading.split()) for heading in table.columns], [list(row) for row in table.rows]
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
    """Returns a text that no spreadsheet takes for a formula: an apostrophe goes before such.

    Numbers stay as they are.

    Source: OWASP, "CSV Injection".
    """
    # A line feed is quoted by the writer, a carriage return is not, and readers end a line at both.
    text = text.replace("\r", "\n")
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return "'" + text
    return text
