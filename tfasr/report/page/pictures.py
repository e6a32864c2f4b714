"""Still figures: as PNG and SVG files, and as elements of the page."""

from collections.abc import Sequence
from pathlib import Path

from tfasr.display.style import embedded_svg, svg_text, write_png
from tfasr.report.figures.catalogue import Drawing


def write_pictures(drawn: Sequence[Drawing], folder: Path) -> dict[str, str]:
    """Writes each figure as a PNG and an SVG on white; returns their elements for the page.

    Args:
        drawn: figures with distinct names.
        folder: where to write; it must exist.

    Returns:
        By name, SVG elements in the page's own text colour.
    """
    still = {}
    for one in drawn:
        write_png(one.figure, folder / f"{one.name}.png")
        svg = svg_text(one.figure, one.name)
        (folder / f"{one.name}.svg").write_text(svg, encoding="utf-8")
        still[one.name] = embedded_svg(svg)
    return still
