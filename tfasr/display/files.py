"""File names of tables and figures."""

import re
from collections.abc import Sequence


def file_names(titles: Sequence[str]) -> list[str]:
    """Returns a distinct file name without suffix for each title: ASCII, lower case."""
    names: list[str] = []
    for title in titles:
        plain = re.sub(r"[^a-z0-9.-]+", "_", title.lower()).strip("_.-")[:80] or "table"
        name, number = plain, 2
        while name in names:
            name, number = f"{plain}-{number}", number + 1
        names.append(name)
    return names
