"""A benchmark's results as one JSON object, and its tables as text and Markdown.

A result is ``{"benchmark", "date", "command", "machine", "notes", "tables"}``; a table
is ``{"title", "columns", "rows"}``. Rows are flat objects, possibly with hidden values;
``columns`` are pairs of key and heading for those that are shown.
"""

import datetime
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfasr.telemetry.system import describe_system

Result = dict[str, Any]
Table = dict[str, Any]


def result(
    benchmark: str, tables: list[Table], notes: list[str], versions: dict
) -> Result:
    """Returns a result with today's date, this machine and this process's command."""
    machine = describe_system()
    del machine["host"]  # a name says nothing about speed
    machine["packages"] |= versions
    script = Path(sys.argv[0])
    # Paths on this machine are not part of the measurement.
    words = [Path(w).name if Path(w).is_absolute() else w for w in sys.argv[1:]]

    return {
        "benchmark": benchmark,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": shlex.join(
            ["python", f"{script.parent.name}/{script.name}", *words]
        ),
        "machine": machine,
        "notes": notes,
        "tables": tables,
    }


def write(outcome: Result, out: Path) -> list[Path]:
    """Writes a result as JSON, and as Markdown in the same folder.

    Args:
        outcome: the result.
        out: a file; or a folder, in which the files are named after date and benchmark.

    Returns:
        The two files.
    """
    if out.is_dir() or not out.suffix:
        out.mkdir(parents=True, exist_ok=True)
        out = out / f"{outcome['date']}-{outcome['benchmark']}.json"

    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
    table = out.with_suffix(".md")
    table.write_text(to_markdown(outcome), encoding="utf-8")

    return [out, table]


def publish(outcome: Result, out: Path | None, output_format: str) -> None:
    """Prints a result as "json" or as text; if `out` isn't None, also writes it
    there."""
    if out is not None:
        write(outcome, out)

    if output_format == "json":
        print(json.dumps(outcome, indent=1))
    else:
        print(to_text(outcome))


def to_markdown(outcome: Result) -> str:
    """Returns the entire result as Markdown."""
    machine = outcome["machine"]
    packages = ", ".join(
        f"{name} {version}" for name, version in machine["packages"].items()
    )
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    hardware = [
        f"{machine['cores']} cores of {machine['processor']}",
        memory,
        *machine["gpus"],
    ]
    lines = [
        f"# {outcome['benchmark']}, {outcome['date']}",
        "",
        f"- `{outcome['command']}`",
        f"- {', '.join(hardware)}; Python {machine['python']}; {packages}",
        *(f"- {note}" for note in outcome["notes"]),
    ]

    for table in outcome["tables"]:
        headings, *rows = cells(table)
        lines += ["", f"## {table['title']}", "", _row(headings)]
        lines += [_row(["---", *["---:"] * (len(headings) - 1)]), *map(_row, rows)]

    return "\n".join(lines) + "\n"


def to_text(outcome: Result) -> str:
    """Returns a result's tables and notes as text."""
    blocks = []
    for table in outcome["tables"]:
        lines = cells(table)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        blocks.append("\n".join([table["title"], *aligned]))

    return "\n\n".join([*blocks, "\n".join(outcome["notes"])]).rstrip() + "\n"


def cells(table: Table) -> list[list[str]]:
    """Returns a table's headings and rows as text, with "n/a" for missing values."""
    keys = [key for key, _ in table["columns"]]
    headings = [heading for _, heading in table["columns"]]
    return [headings, *([_cell(row.get(key)) for key in keys] for row in table["rows"])]


def _cell(value: Any) -> str:
    if value is None:
        return "n/a"

    if isinstance(value, list):
        return ", ".join(map(_cell, value))

    if not isinstance(value, float):
        return str(value)

    # Three digits, and no exponent.
    if abs(value) >= 100:
        return f"{value:.0f}"

    return f"{value:#.3g}"


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
