"""Figures as data: marks in panels, independent of how they are drawn.

`tfasr.display.vega` turns a chart into Vega-Lite specifications for PNG, SVG and the
HTML page. Panels are stacked, or arranged in columns. Coordinates are in the units of
the data; rows of bars are numbered 0, 1, 2 and named by their axis, see `rows_axis`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Contrast about 3:1 on white and near-black. Colour-blind people can tell the first
# ones apart.
RUN_COLOURS = (
    "#2f7fd0", "#d9660d", "#1f9e6e", "#c2569b", "#8a8418", "#7a63d4", "#1596a8", "#cf4747",
)  # fmt: skip
INTERVAL_COLOURS = {
    "init": "#7d8794", "compile": "#7a63d4", "input_wait": "#e0a526", "train": "#2f7fd0",
    "exchange": "#59367a", "wait": "#c9b3dd",
    "averaging": "#1596a8", "swap": "#14614a", "eval_forward": "#1f9e6e", "decode": "#6fbf73",
    "eval_wait": "#a9d8a0", "checkpoint": "#a0683c", "sentences": "#c2569b", "logging": "#8a8418",
    "overhead": "#b4bac2", "lost_work": "#cf4747",
}  # fmt: skip
# Line breaks keep columns narrow.
INTERVAL_LABELS = {name: name.replace("_", "\n") for name in INTERVAL_COLOURS}
# On HTML pages, light or dark, the page's text colour replaces it.
INK = "#22262b"
OTHER_COLOUR = "#7d8794"
CLIFF_COLOUR = "#cf4747"
DASHES = ("solid", "dashed", "dash-dot", "dotted")
LEGEND_ENTRIES = 17
FONTS = "DejaVu Sans, Verdana, Arial, sans-serif"
Numbers = Sequence[float]
SYMBOLS = ("circle", "ring", "square", "diamond", "triangle", "arrow", "tick", "star")


def run_colour(index: int) -> str:
    """Returns the colour of the run or group with a number; eight colours are repeated.

    With `run_dash`, 32 lines are distinct.
    """
    return RUN_COLOURS[index % len(RUN_COLOURS)]


def run_dash(index: int) -> str:
    """Returns the dash pattern of a number: solid for the first eight, then others."""
    return DASHES[index // len(RUN_COLOURS) % len(DASHES)]


def device_colour(index: int) -> str:
    return RUN_COLOURS[(1, 5, 3, 6, 4, 7, 0, 2)[index % len(RUN_COLOURS)]]


def shortened(name: str, most: int = 30) -> str:
    """Shortens a name to ``most`` characters by cutting its middle."""
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[-half:]}"


@dataclass(frozen=True, kw_only=True)
class Mark:
    series: str = ""  # its entry in the legend, which toggles all marks of the series
    colour: str = INK  # "#rrggbb"; `INK` is the page's text colour
    # The tooltip of each point; None for tooltips of x and y.
    texts: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Line(Mark):
    """A line through points, broken at values that are not finite.

    ``dash`` is in `DASHES`, ``width`` in pixels, ``opacity`` from 0 to 1.
    """

    x: Numbers
    y: Numbers
    dash: str = "solid"
    width: float = 2.0
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Area(Mark):
    """A filled band between two lines, which shows the spread around a line of its series.

    ``low`` and ``high`` have a value for each place in ``x``.
    """

    x: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True, kw_only=True)
class Points(Mark):
    """Symbols from `SYMBOLS`, ``size`` pixels wide."""

    x: Numbers
    y: Numbers
    symbol: str = "circle"
    size: float = 6.0


@dataclass(frozen=True, kw_only=True)
class Rects(Mark):
    """Bars, spans of time or cells. An ``outline``, in pixels, keeps narrow ones visible."""

    x0: Numbers
    x1: Numbers
    y0: Numbers
    y1: Numbers
    outline: float = 0.0
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Segments(Mark):
    """Straight lines from (x0, y0) to (x1, y1), such as brackets between two evaluations.

    ``dash`` is in `DASHES`, ``width`` in pixels.
    """

    x0: Numbers
    x1: Numbers
    y0: Numbers
    y1: Numbers
    dash: str = "solid"
    width: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Rule(Mark):
    """A line across the entire panel at a value of ``axis``, "x" or "y"."""

    value: float
    axis: str = "y"
    label: str = ""
    dash: str = "dashed"


@dataclass(frozen=True, kw_only=True)
class Labels(Mark):
    """Text at points; ``align`` is the part of the text at the point: "left", "right"
    or "center".

    ``size``: the font's, in pixels. ``dy``: how many pixels below its point the text
    is.
    """

    x: Numbers
    y: Numbers
    words: Sequence[str]
    align: str = "left"
    size: float = 12.0
    dy: float = 0.0


@dataclass(frozen=True)
class Axis:
    label: str = ""  # with its unit
    log: bool = False  # whether it is logarithmic, and can't show values of 0 or less
    # Left or lower end first; None fits the data.
    limits: tuple[float, float] | None = None
    ticks: Numbers | None = None  # labelled values; None for an automatic choice
    # Labels of ``ticks``; None for the numbers.
    tick_labels: Sequence[str] | None = None
    grid: bool = True  # whether ticks have lines across the panel
    # Whether readers of the page can switch to a logarithmic scale.
    choose: bool = False
    label_angle: float = 0.0  # rotation of tick labels in degrees


@dataclass(frozen=True)
class Panel:
    """Marks between two axes, drawn in order. ``height`` is in pixels."""

    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    height: float = 280.0
    title: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure: panels with a caption, independent of how it is drawn.

    Attributes are described where they stand; a user's own figure returns one, see
    `tfasr.reports.figures.registry.FIGURES`.
    """

    name: str  # the name of its files: lower case, digits, "_", "-" and "."
    caption: str  # a sentence without its full stop
    panels: Sequence[Panel]  # from the top, row by row
    # the same panels over several horizontal axes, by names such as "minutes". Readers
    # of the page can switch between them; ``panels`` are those of the view shown first
    views: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    wide: bool = False  # whether it takes the page's full width
    columns: int = 1  # panels side by side
    width: float = 470.0  # of each panel, in pixels

    def series(self) -> dict[str, Mark]:
        """Returns the legend's entries in order, each with a mark of its series."""
        entries: dict[str, Mark] = {}
        for panel in self.panels:
            for mark in panel.marks:
                # An area shows the spread of a line; the legend shows the line.
                if mark.series and isinstance(entries.get(mark.series), Area | None):
                    entries[mark.series] = mark

        return entries


def rows_axis(names: Sequence[str]) -> Axis:
    """Returns a vertical axis of named rows, from the top; names may repeat."""
    ticks = list(range(len(names)))
    limits = (len(names) - 0.4, -0.6)
    return Axis(limits=limits, ticks=ticks, tick_labels=list(names), grid=False)


def curve(
    x: Numbers,
    y: Numbers,
    colour: str,
    series: str = "",
    *,
    dash="solid",
    symbol="circle",
) -> list[Mark]:
    """Returns a line and a point at each of its values, in one colour.

    Benchmarks use it for a few measured values; curves of runs have too many for points.
    """
    line = Line(x=x, y=y, colour=colour, dash=dash, series=series)
    return [line, Points(x=x, y=y, colour=colour, symbol=symbol)]


def counts_axis(label: str, counts: Sequence[float], margin: float = 1.15) -> Axis:
    """Returns a logarithmic axis with a tick at each of the increasing numbers."""
    limits = (counts[0] / margin, counts[-1] * margin)
    return Axis(label, log=True, limits=limits, ticks=counts)


def log_ticks(
    low: float,
    high: float,
    steps: Sequence[Numbers] = (range(1, 10), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)),
    most: int = 8,
) -> list[float]:
    """Returns ticks of a logarithmic axis: those of the finest steps that make at most
    ``most``.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for of_decade in steps:
        ticks = [
            float(f"{step * 10.0**decade:.6g}")
            for decade in decades
            for step in of_decade
        ]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break

    return ticks
