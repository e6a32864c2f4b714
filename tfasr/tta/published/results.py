"""Results that others published, as data with their source, to stand beside one's own.

Each source is a JSON file of this folder: its tables by the name that the source gives them, with
what they were measured on, their rows in SI units and fractions, and notes where the source
contradicts itself.
"""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tfasr.errors import UsageError

SOURCES = ("paper", "mlperf", "algoperf", "deepmark")
"""What `published` knows, by name."""


@dataclass(frozen=True)
class PublishedTable:
    """A table as it was published.

    Attributes:
        name: in its source, such as "Table 4".
        kind: "systems", "parameters", "evaluation", "time_to_accuracy", "final" or "steps".
        what: what it shows.
        conditions: what has to be known of how it was measured.
        rows: by heading; times in seconds, rates as fractions, None for what was never reached or
            is not stated. A row's ``note`` says where the source contradicts itself.
        notes: about the table as a whole.
    """

    name: str
    kind: str
    what: str
    conditions: str
    rows: list[dict[str, Any]]
    notes: list[str]

    def all_notes(self) -> list[str]:
        """Returns the table's notes and those of its rows, each with its row."""
        of_rows = [f"{row.get('system', '')}: {row['note']}" for row in self.rows if "note" in row]
        return [*self.notes, *of_rows]


@dataclass(frozen=True)
class PublishedSource:
    """Who published tables, and where.

    Attributes:
        name: for readers.
        source: the publication.
        tables: by name.
    """

    name: str
    source: str
    tables: dict[str, PublishedTable]


def published(name: str) -> PublishedSource:
    """Returns the results of a source.

    Raises:
        UsageError: if there is no such source; it lists those that there are.
    """
    if name not in SOURCES:
        raise UsageError(f"Published results must be of {', '.join(SOURCES)}. Received: {name!r}.")
    text = resources.files("tfasr.tta.published").joinpath(f"{name}.json").read_text("utf-8")
    content = json.loads(text)
    tables = {key: PublishedTable(key, **table) for key, table in content["tables"].items()}
    return PublishedSource(content["name"], content["source"], tables)
