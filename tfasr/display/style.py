"""How the report's figures look, and how they become files."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# About 3:1 against white and against near-black; told apart by the colour-blind in this order.
RUN_COLOURS = (
    "#2f7fd0",
    "#d9660d",
    "#1f9e6e",
    "#c2569b",
    "#8a8418",
    "#7a63d4",
    "#1596a8",
    "#cf4747",
)
INTERVAL_COLOURS = {
    "init": "#7d8794",
    "compile": "#7a63d4",
    "input_wait": "#e0a526",
    "train": "#2f7fd0",
    "eval_forward": "#1f9e6e",
    "decode": "#6fbf73",
    "checkpoint": "#a0683c",
    "sentences": "#c2569b",
    "logging": "#8a8418",
    "overhead": "#b4bac2",
    "lost_work": "#cf4747",
}
# Replaced by the page's own text colour, so that one drawing serves light and dark.
INK = "#22262b"
# The intervals beneath have taken the other colours.
DEVICE_COLOURS = {"CPU": INK, "GPU": "#d9660d"}
LINES = ("-", "--", "-.", ":")
LEGEND_ENTRIES = 17

_PAPER = '<rect width="100%" height="100%" fill="#ffffff"/>'
_SIZE_IN = (5.4, 3.7)
_SLIDE_IN = (9.6, 4.6)
_FONT_PT = 10.5
_PNG_DPI = 160


def run_colour(index: int) -> str:
    """Returns the colour of the run of that index."""
    return RUN_COLOURS[index % len(RUN_COLOURS)]


def run_line(index: int) -> str:
    """Returns the line style of the run of that index: another one for each round of colours."""
    return LINES[index // len(RUN_COLOURS) % len(LINES)]


def new_figure(
    *, height_in: float = _SIZE_IN[1], width_in: float = _SIZE_IN[0]
) -> tuple[Figure, Axes]:
    """Returns an empty figure of one set of axes, which belongs to no window and no pyplot."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _style_axes(axes)
    return figure, axes


def new_stack(
    heights_in: Sequence[float], *, width_in: float = _SIZE_IN[0], share: bool = True
) -> tuple[Figure, list[Axes]]:
    """Returns an empty figure and its axes one above the other, by default with one time axis."""
    figure = Figure(figsize=(width_in, sum(heights_in) + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(heights_in), 1, sharex=share, squeeze=False, height_ratios=list(heights_in)
    )[:, 0]
    figure.get_layout_engine().set(hspace=0.02)
    for one in axes:
        _style_axes(one)
    return figure, list(axes)


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


def shortened(name: str, most: int = 30) -> str:
    """Returns a name cut in its middle where it is longer than ``most`` characters."""
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[-half:]}"


def write_png(figure: Figure, path: Path) -> None:
    """Writes a figure on white."""
    with _quietly():
        figure.savefig(path, format="png", dpi=_PNG_DPI, facecolor="white")


def svg_text(figure: Figure, name: str) -> str:
    """Returns a figure as an SVG document on white, its text as text.

    Args:
        figure: the figure.
        name: distinct among figures of one page; keeps their internal references apart.
    """
    drawn = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": name}
    with matplotlib.rc_context(settings), _quietly():
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return re.sub(r"(<svg [^>]*>)", rf"\1{_PAPER}", drawn.getvalue(), count=1)


def embedded_svg(svg: str) -> str:
    """Returns an SVG document of `svg_text` as an element for an HTML page.

    It has no namespace, no address and no background, and its ink is the page's text colour.
    """
    svg = svg[svg.index("<svg") :].replace(_PAPER, "", 1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    # HTML knows these elements without namespaces, and groups need no names.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    svg = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", svg)
    svg = svg.replace(INK, "currentColor")
    return re.sub(r"\s*\n\s*", " ", svg)


@contextmanager
def _quietly() -> Iterator[None]:
    """A name in a script that the font lacks is drawn as boxes; that is no reason to warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield
