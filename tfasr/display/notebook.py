"""Tables as HTML and as data frames, for notebooks."""

import importlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tfasr.errors import UsageError


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


if TYPE_CHECKING:
    import pandas as pd


def dataframe(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> "pd.DataFrame":
    """Returns rows as a pandas data frame; ``columns`` are there even if there is no row.

    Raises:
        UsageError: if pandas is not installed; it says how to get it.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise UsageError(
            "Data frames need pandas, which is not installed. Install it with: "
            "pip install 'tfasr[notebook]'."
        ) from error
    more = dict.fromkeys(name for row in rows for name in row)
    return pandas.DataFrame(list(rows), columns=list(dict.fromkeys([*columns, *more])))
