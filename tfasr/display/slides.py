"""Figures in a slide's proportions that are drawn by Matplotlib, and how they become files."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tfasr.display.style import INK, LEGEND_ENTRIES, shortened
from tfasr.durable import whole_file

_SLIDE_IN = (9.6, 4.6)
_FONT_PT = 10.5
_PNG_DPI = 160


def new_slide(*, panels: int) -> tuple[Figure, list[Axes]]:
    """Returns an empty figure in a slide's proportions, its panels side by side."""
    figure = Figure(figsize=_SLIDE_IN, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for panel in axes:
        _style_axes(panel)
    return figure, axes


def _style_axes(axes: Axes) -> None:
    axes.grid(True, color=INK, alpha=0.14, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=_FONT_PT, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=INK, alpha=0.4)


def label_axes(axes: Axes, *, x: str, y: str) -> None:
    """Names the axes."""
    axes.set_xlabel(x, color=INK, fontsize=_FONT_PT)
    axes.set_ylabel(y, color=INK, fontsize=_FONT_PT)


def add_legend(figure: Figure, handles: list, labels: list[str], *, columns: int) -> None:
    """Puts a legend above the axes; labels are taken literally, whatever they hold."""
    if len(handles) > LEGEND_ENTRIES:
        hidden = len(handles) - LEGEND_ENTRIES
        handles, labels = handles[:LEGEND_ENTRIES], labels[:LEGEND_ENTRIES]
        labels = [*labels[:-1], f"{labels[-1]} and {hidden} more"]
    # Placeholders first: the library would leave out a label that begins with an underscore.
    legend = figure.legend(
        handles,
        [f"entry {index}" for index in range(len(labels))],
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=_FONT_PT - 1,
        handlelength=1.6,
        columnspacing=1.2,
        borderaxespad=0,
    )
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set(text=shortened(label, 42), parse_math=False, color=INK)


def write_png(figure: Figure, path: Path) -> None:
    """Writes a figure on white."""
    with _quietly(), whole_file(path) as file:
        figure.savefig(file, format="png", dpi=_PNG_DPI, facecolor="white")


@contextmanager
def _quietly() -> Iterator[None]:
    """A name in a script that the font lacks is drawn as boxes; that is no reason to warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield
