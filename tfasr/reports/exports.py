"""Each of a report's tables as files of its own, beside the page."""

from collections.abc import Sequence
from pathlib import Path

from tfasr.display.csv_text import table_to_csv
from tfasr.display.files import file_names
from tfasr.display.latex import PREAMBLE, table_to_latex
from tfasr.display.table import Table
from tfasr.durable import write_whole


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Writes every table as ``NAME.csv`` and ``NAME.tex``; returns the paths."""
    paths = []
    names = file_names([table.name or table.title for table in tables])
    for name, table in zip(names, tables, strict=True):
        for suffix, text in (
            ("csv", table_to_csv(table)),
            ("tex", PREAMBLE + table_to_latex(table, name)),
        ):
            path = folder / f"{name}.{suffix}"
            write_whole(path, text)
            paths.append(path)
    return paths
