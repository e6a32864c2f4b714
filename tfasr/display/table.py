"""A table as text and for programs: columns, rows, notes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Generic, TypeVar

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Records:
    """A table for programs."""

    columns: list[str]  # headings with units, such as ``wall_s``
    rows: list[list[Cell]]  # as many cells as columns


def records_of(rows: Sequence[dict[str, Cell]]) -> Records:
    """Returns rows given by heading; a row that lacks a heading has None there."""
    columns = list(dict.fromkeys(heading for row in rows for heading in row))
    return Records(columns, [[row.get(heading) for heading in columns] for row in rows])


NEVER = "NA"


UNKNOWN = "n/a"


REFUSED = "refused"


@dataclass(frozen=True)
class Table:
    """A table of text."""

    title: str  # what it is about
    # headings, which may have a line break; the first column is the run's name, all others are
    # figures
    columns: list[str]
    rows: list[list[str]]  # as many cells as columns, one row a run, in the report's order
    notes: list[str] = field(default_factory=list)  # what has to be known to read it
    # The index of the run whose colour each row has, None for none; by default the row's own
    colours: list[int | None] | None = None
    name: str = ""  # what its files are called; by default its title
    records: Records | None = None  # the same for programs; None where the cells are all there is


Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table, written once for text, CSV, JSON, LaTeX, HTML and notebooks."""

    heading: str  # above the column for a reader, may have a line break; "" hides it from readers
    name: str  # of the value for programs, with its unit, such as ``wall_s``; "" hides it from them
    value: Callable[[Row], Any]  # unrounded, in SI units and fractions; None if unknown
    text: Callable[[Any], str] = str  # formats a value that is not None
    missing: str | Callable[[Row], str] = UNKNOWN  # what readers see for None
    # Returns what readers see of a row if that takes more than the value, such as an interval of
    # two columns; ``text`` and ``missing`` then have no effect
    shown: Callable[[Row], str] | None = None

    def cell(self, row: Row) -> str:
        return self._text(row, None if self.shown else self.value(row))

    def _text(self, row: Row, value: Any) -> str:
        if self.shown is not None:
            return self.shown(row)
        if value is not None:
            return self.text(value)
        return self.missing if isinstance(self.missing, str) else self.missing(row)


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
    """Returns a table and its records.

    Args:
        title: what the table is about.
        columns: the first one names the row.
        rows: one for each line of the table.
        notes: what a reader has to know.
        name: file name without suffix; by default the title.
        colours: see `Table`.
        leave_out_empty: whether columns without any value are left out.
        records: instead of the columns' own, where programs get other rows than readers.
    """
    values = [[column.value(row) for row in rows] for column in columns]
    if leave_out_empty:
        kept = [any(value is not None for value in own) for own in values]
        columns, values = (list(compress(what, kept)) for what in (columns, values))
    names = [column.name for column in columns]
    if records is None and any(names):
        # Without a row there is no header either.
        records = Records([n for n in names if n and rows], _rows(compress(values, names)))
    return Table(
        title,
        [column.heading for column in columns if column.heading],
        _rows(
            [column._text(row, value) for row, value in zip(rows, own, strict=True)]
            for column, own in zip(columns, values, strict=True)
            if column.heading
        ),
        list(notes),
        colours=colours,
        name=name,
        records=records,
    )


def _rows(columns: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(row) for row in zip(*columns, strict=True)]


def values_of(columns: Sequence[Column[Row]], row: Row) -> dict[str, Any]:
    """Returns the values of a row by name, for programs."""
    return {column.name: column.value(row) for column in columns if column.name}


def records(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Records:
    shown = [column for column in columns if column.name]
    return Records([c.name for c in shown], [[c.value(row) for c in shown] for row in rows])


Other = TypeVar("Other")


def for_readers(
    columns: Sequence[Column[Row]], row_of: Callable[[Other], Row]
) -> list[Column[Other]]:
    """Returns the columns that readers see, for a table of other rows; ``row_of`` finds theirs."""
    return [
        Column(c.heading, "", lambda row: None, shown=lambda row, c=c: c.cell(row_of(row)))
        for c in columns
        if c.heading
    ]


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
