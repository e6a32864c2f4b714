"""A table as a notebook shows it."""

from collections.abc import Sequence
from html import escape


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Returns a plain HTML table, everything in it escaped; it takes the notebook's colours."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    thead = f"<thead><tr>{head}</tr></thead>\n" if any(headings) else ""
    return (
        f'<table><caption style="text-align:left">{escape(caption)}</caption>\n{thead}'
        f"<tbody>{body}</tbody></table>\n"
    )
