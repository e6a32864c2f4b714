"""Tables as text for a terminal and as Markdown."""

import io
from collections.abc import Sequence

from tfasr.display.table import Table

# Wide enough that no table is ever cut or wrapped by the library; a terminal may wrap it.
_WIDTH = 400


_NOTE_WIDTH = 100


def to_text(tables: Sequence[Table]) -> str:
    """Returns tables drawn for a terminal, with their notes below them."""
    # Imported here: the other formats do without.
    from rich.console import Console
    from rich.text import Text

    # In a notebook the library would show what it prints, and leave nothing to return.
    console = Console(
        file=io.StringIO(), width=_WIDTH, color_system=None, highlight=False, force_jupyter=False
    )
    for index, table in enumerate(tables):
        if index:
            console.print()
        # Text, not str: a run's name may hold what would pass for markup.
        console.print(Text(table.title))
        console.file.write(_drawn(table))
        for note in table.notes:
            console.print(Text(note), width=_NOTE_WIDTH)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _drawn(table: Table) -> str:
    # rich's own tables take seconds for a thousand rows.
    from rich.cells import cell_len

    headings = [heading.split("\n") for heading in table.columns]
    height = max(map(len, headings))
    head = [[""] * (height - len(lines)) + lines for lines in headings]
    rows = [[_printable(cell) for cell in row] for row in table.rows]
    columns = [[*lines, *cells] for lines, *cells in zip(head, *rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        blanks = [" " * (width - cell_len(c)) for c, width in zip(cells, widths, strict=True)]
        figures = (blank + cell for blank, cell in zip(blanks[1:], cells[1:], strict=True))
        return " " + " ".join([cells[0] + blanks[0], *figures])

    lines = [line(cells) for cells in zip(*head, strict=True)]
    lines.append(" " + "─" * (sum(widths) + len(widths) - 1))
    return "\n".join(["", *lines, *map(line, rows), "", ""])


def _printable(cell: str) -> str:
    return cell if cell.isprintable() else "".join(c if c.isprintable() else "�" for c in cell)


def to_markdown(tables: Sequence[Table]) -> str:
    """Returns tables in GitHub's Markdown, with their notes below them."""
    blocks = []
    for table in tables:
        lines = [f"## {table.title}", "", _markdown_row(table.columns)]
        lines.append(_markdown_row(["---", *["---:"] * (len(table.columns) - 1)], escape=False))
        lines.extend(_markdown_row(row) for row in table.rows)
        lines.append("")
        lines.extend(f"- {_markdown(note)}" for note in table.notes)
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _markdown_row(cells: Sequence[str], *, escape: bool = True) -> str:
    return "| " + " | ".join(_markdown(cell) if escape else cell for cell in cells) + " |"


def _markdown(text: str) -> str:
    for character in "\\`*_[]<>|#":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
