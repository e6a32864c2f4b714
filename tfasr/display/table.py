"""A table as text and for programs: columns, rows, notes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Records:
    """A table for programs.

    Attributes:
        columns: headings with units, such as ``wall_s``.
        rows: as many cells as columns.
    """

    columns: list[str]
    rows: list[list[Cell]]


def records_of(rows: Sequence[dict[str, Cell]]) -> Records:
    """Returns rows given by heading; a row that lacks a heading has None there."""
    columns = list(dict.fromkeys(heading for row in rows for heading in row))
    return Records(columns, [[row.get(heading) for heading in columns] for row in rows])


NEVER = "NA"


UNKNOWN = "n/a"


REFUSED = "refused"


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        title: what it is about.
        columns: headings, which may have a line break; the first column is the run's name, all
            others are figures.
        rows: as many cells as columns, one row a run, in the report's order.
        notes: what has to be known to read it.
        colours: the index of the run whose colour each row has, None for none; by default the
            row's own.
        name: what its files are called; by default its title.
        records: the same for programs; None where the cells are all there is.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    colours: list[int | None] | None = None
    name: str = ""
    records: Records | None = None


Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table, written once for text, CSV, JSON, LaTeX, HTML and notebooks.

    Attributes:
        heading: above the column for a reader, may have a line break; "" hides it from readers.
        name: of the value for programs, with its unit, such as ``wall_s``; "" hides it from them.
        value: returns the unrounded value of a row, in SI units and fractions; None if unknown.
        text: formats a value that is not None.
        missing: what readers see for None.
    """

    heading: str
    name: str
    value: Callable[[Row], Cell]
    text: Callable[[Any], str] = str
    missing: str = UNKNOWN

    def cell(self, row: Row) -> str:
        """Returns the text of a row's value."""
        value = self.value(row)
        return self.missing if value is None else self.text(value)


def table_of(
    title: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    notes: Sequence[str] = (),
    *,
    name: str = "",
    colours: list[int | None] | None = None,
    leave_out_empty: bool = False,
) -> Table:
    """Returns a table and its records.

    Args:
        title: what the table is about.
        columns: the first one names the row.
        rows: one for each line of the table.
        notes: what a reader has to know.
        name: file name without suffix; by default the title.
        colours: see `Table`.
        leave_out_empty: whether columns without any value are left out.
    """
    if leave_out_empty:
        columns = [c for c in columns if any(c.value(row) is not None for row in rows)]
    shown = [column for column in columns if column.heading]
    recorded = [column for column in columns if column.name]
    return Table(
        title,
        [column.heading for column in shown],
        [[column.cell(row) for column in shown] for row in rows],
        list(notes),
        colours=colours,
        name=name,
        records=Records(
            [column.name for column in recorded],
            [[column.value(row) for column in recorded] for row in rows],
        )
        if recorded
        else None,
    )


def fixed(decimals: int, scale: float = 1.0) -> Callable[[float], str]:
    """Returns a formatter with a fixed number of decimals, after multiplying by ``scale``."""
    return lambda value: f"{value * scale:.{decimals}f}"


percent = fixed(1, 100.0)
"""Formats a fraction as percent with one decimal."""


gigabytes = fixed(1, 1e-9)
"""Formats bytes as gigabytes with one decimal."""


def three_digits(value: float) -> str:
    """Formats a number with three significant digits, whole numbers from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def milliseconds(seconds: float | None) -> str:
    """Returns milliseconds with sensible decimals; "n/a" for None."""
    if seconds is None:
        return UNKNOWN
    ms = 1000 * seconds
    return f"{ms:.2f}" if abs(ms) < 10 else f"{ms:.1f}" if abs(ms) < 1000 else f"{ms:.0f}"


def number(value: float | None, form: str) -> str:
    """Returns a number in a format such as ".2f"; "n/a" for None."""
    return UNKNOWN if value is None else format(value, form)
