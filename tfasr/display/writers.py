"""The formats of what commands print: tables as text by name, and JSON beside them."""

from collections.abc import Callable, Sequence

from tfasr.display.table import Table
from tfasr.errors import UsageError
from tfasr.registry import Registry

JSON = "json"
WRITERS: Registry[Callable[[Sequence[Table]], str]] = Registry(
    "format",
    {
        "table": "tfasr.display.text:to_text",
        "markdown": "tfasr.display.text:to_markdown",
        "latex": "tfasr.display.latex:to_latex",
        "csv": "tfasr.display.csv_text:to_csv",
    },
)
"""The formats by name: functions that write tables as text. JSON is another, beside them.

A format of one's own is registered where it is written::

    @WRITERS.register("org")
    def to_org(tables): ...
"""


def formats() -> tuple[str, ...]:
    return (*WRITERS, JSON)


def check_format(name: str) -> None:
    """Raises UsageError for a name that is none of `formats`."""
    if name not in formats():
        raise UsageError(f"The format must be one of {formats()}. Received: {name!r}.")
