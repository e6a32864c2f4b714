"""Results that others published, with their sources, for comparison with yours.

Each source is a JSON file in this folder. It has the source's tables under their
original names, how they were measured, rows in SI units and fractions, and notes on
contradictions in the source.
"""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tfasr.errors import UsageError

SOURCES = ("paper", "mlperf", "algoperf", "deepmark")
"""The valid arguments of `published`."""


@dataclass(frozen=True)
class PublishedTable:
    """A table of a source, in SI units and fractions."""

    name: str  # in its source, such as "Table 4"
    kind: str  # such as "systems", "machines", "evaluation" or "time_to_accuracy"
    what: str  # what it shows
    conditions: str  # how it was measured

    # By heading; times in seconds, rates as fractions, None if never reached or not
    # stated.
    rows: list[dict[str, Any]]

    notes: list[str]  # about the entire table

    def all_notes(self) -> list[str]:
        """Returns the notes about the table and those about its rows."""
        of_rows = [
            f"{row.get('system', '')}: {row['note']}"
            for row in self.rows
            if "note" in row
        ]
        return [*self.notes, *of_rows]


@dataclass(frozen=True)
class PublishedSource:
    """What one source published.

    Example:
        ::

            table = published("paper").tables["Table 4"]
            for row in table.rows:
                print(row)
    """

    name: str
    source: str
    tables: dict[str, PublishedTable]


def published(name: str) -> PublishedSource:
    """Returns the results of a source; raises UsageError for an unknown name."""
    if name not in SOURCES:
        raise UsageError(
            f"Published results must be one of {', '.join(SOURCES)}. Received: "
            f"{name!r}."
        )

    folder = resources.files("tfasr.tta.published")
    content = json.loads(folder.joinpath(f"{name}.json").read_text("utf-8"))
    tables = {
        key: PublishedTable(key, **table) for key, table in content["tables"].items()
    }
    return PublishedSource(content["name"], content["source"], tables)
