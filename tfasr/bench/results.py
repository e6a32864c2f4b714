"""What a workload leaves behind: tables for a person, JSON for a program, figures for a slide."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfasr.display.json_text import to_json_text
from tfasr.display.table import Table
from tfasr.display.writers import JSON, WRITERS
from tfasr.durable import whole_file, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tfasr.display.chart import Chart


@dataclass(frozen=True)
class Measured:
    """The tables of a workload, and its values beside what they were measured on.

    Attributes:
        tables: to be read by a person.
        values: all of ``results.json``, as JSON values.
    """

    tables: list[Table]
    values: dict[str, Any]

    def to_format(self, output_format: str) -> str:
        """Returns all of it in one of `tfasr.display.writers.formats`."""
        if output_format == JSON:
            return to_json_text(self.values)
        return WRITERS[output_format](self.tables)

    def write(self, out: Path) -> None:
        """Writes ``results.json`` and ``table.md`` to a folder, or the first alone to a file.

        Args:
            out: a file ``*.json``, or a folder, which is made where missing.

        Raises:
            OSError: if it cannot be written.
        """
        if is_file(out):
            write_whole(out, self.to_format(JSON))
            return
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "results.json", self.to_format(JSON))
        write_whole(out / "table.md", self.to_format("markdown"))


def is_file(out: Path) -> bool:
    """Returns whether results go to one file of JSON instead of a folder."""
    return out.suffix == ".json"


def draw(figures: Mapping[str, Callable[[], "Chart | Figure"]], folder: Path) -> None:
    """Writes each figure as a PNG, charts as an SVG too; makes the folder where missing.

    Args:
        figures: what draws them, by file name without its suffix.
        folder: gets the files.

    Raises:
        OSError: if they cannot be written.
    """
    # Imported here: drawing is the slowest thing to load, and text does without.
    from tfasr.display.chart import Chart
    from tfasr.display.pictures import write_chart

    folder.mkdir(parents=True, exist_ok=True)
    for name, make in figures.items():
        figure = make()
        if isinstance(figure, Chart):
            write_chart(dataclasses.replace(figure, name=name), folder)
        else:
            with whole_file(folder / f"{name}.png") as file:
                figure.savefig(file, format="png", dpi=160, facecolor="white")
