"""A table as text and for programs: columns, rows, notes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

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


def milliseconds(seconds: float | None) -> str:
    """Returns milliseconds with sensible decimals; "n/a" for None."""
    if seconds is None:
        return UNKNOWN
    ms = 1000 * seconds
    return f"{ms:.2f}" if abs(ms) < 10 else f"{ms:.1f}" if abs(ms) < 1000 else f"{ms:.0f}"


def number(value: float | None, form: str) -> str:
    """Returns a number in a format such as ".2f"; "n/a" for None."""
    return UNKNOWN if value is None else format(value, form)
