"""Figures as data: marks in panels, independent of how they are drawn.

`tfasr.display.vega` turns a chart into Vega-Lite specifications for PNG, SVG and the
HTML page. Panels are stacked, or arranged in columns. Coordinates are in the units of
the data; rows of bars are numbered 0, 1, 2 and named by their axis, see `rows_axis`.

A figure with one line and a target::

    line = Line(x=epochs, y=rates, colour=run_colour(0), series="my run")
    panel = Panel([line, Rule(value=10.0, label="10")], Axis("epochs"), Axis("CER, %"))
    Chart("cer", "Character error rate", [panel])
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Contrast about 3:1 on white and near-black. Colour-blind people can tell the first
# ones apart.
RUN_COLOURS = (
    "#2f7fd0", "#d9660d", "#1f9e6e", "#c2569b", "#8a8418", "#7a63d4", "#1596a8", "#cf4747",
)  # fmt: skip
# By the kinds of intervals of a ledger, in the order in which they are stacked.
INTERVAL_COLOURS = {
    "init": "#7d8794",
    "compile": "#7a63d4",
    "input_wait": "#e0a526",
    "train": "#2f7fd0",
    "exchange": "#59367a",
    "wait": "#c9b3dd",
    "averaging": "#1596a8",
    "swap": "#14614a",
    "eval_forward": "#1f9e6e",
    "decode": "#6fbf73",
    "eval_wait": "#a9d8a0",
    "checkpoint": "#a0683c",
    "sentences": "#c2569b",
    "logging": "#8a8418",
    "overhead": "#b4bac2",
    "lost_work": "#cf4747",
}
# Line breaks keep columns narrow.
INTERVAL_LABELS = {name: name.replace("_", "\n") for name in INTERVAL_COLOURS}
# Colour of text. On HTML pages, light or dark, the page's text colour replaces it.
INK = "#22262b"
# What has no colour of its own, such as all further groups.
OTHER_COLOUR = "#7d8794"
# Marks the point from which on something gets suddenly worse.
CLIFF_COLOUR = "#cf4747"
DASHES = ("solid", "dashed", "dash-dot", "dotted")
# Further series share the last entry of a picture's legend.
LEGEND_ENTRIES = 17
# The first one that a machine has; all are wide enough for the widths in legends.
FONTS = "DejaVu Sans, Verdana, Arial, sans-serif"
# Places or values of a mark, equally long within the mark.
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
    """Returns the colour of the GPU with a number.

    The order is another one than that of runs, as both are shown in one report.
    """
    return RUN_COLOURS[(1, 5, 3, 6, 4, 7, 0, 2)[index % len(RUN_COLOURS)]]


def shortened(name: str, most: int = 30) -> str:
    """Shortens a name to ``most`` characters by cutting its middle.

    The ends of names tell runs apart, such as their seeds.

    >>> shortened("librispeech-seed_1", 11)
    'libri…eed_1'
    """
    if len(name) <= most:
        return name

    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[-half:]}"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that is drawn in a panel; one of the classes below.

    Attributes:
        series: its entry in the legend, which toggles all marks of the series.
        colour: "#rrggbb"; `INK` is the page's text colour.
        texts: the tooltip of each point; None for tooltips of x and y.
    """

    series: str = ""
    colour: str = INK
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
    """A horizontal or vertical axis of a panel.

    Attributes:
        label: with its unit.
        log: whether it is logarithmic, and can't show values of 0 or less.
        limits: left or lower end first; None fits the data.
        ticks: labelled values; None for an automatic choice.
        tick_labels: labels of ``ticks``; None for the numbers.
        grid: whether ticks have lines across the panel.
        choose: whether readers of the page can switch to a logarithmic scale.
        label_angle: rotation of tick labels in degrees.
    """

    label: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Numbers | None = None
    tick_labels: Sequence[str] | None = None
    grid: bool = True
    choose: bool = False
    label_angle: float = 0.0


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

    A user's own figure returns one, see `tfasr.reports.figures.registry.FIGURES`.

    Attributes:
        name: the name of its files: lower case, digits, "_", "-" and ".".
        caption: a sentence without its full stop.
        panels: from the top, row by row.
        views: the same panels over several horizontal axes, by names such as "minutes".
            Readers of the page can switch between them; ``panels`` are those of the view
            shown first.
        wide: whether it takes the page's full width.
        columns: panels side by side.
        width: of each panel, in pixels.
    """

    name: str
    caption: str
    panels: Sequence[Panel]
    views: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    wide: bool = False
    columns: int = 1
    width: float = 470.0

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
    """Returns a logarithmic axis with a tick at each of the increasing numbers.

    ``margin`` is the ratio of the axis's ends to the first and the last number.
    """
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

    If even the coarsest steps make more, they are returned all the same.

    >>> log_ticks(1, 30)
    [1.0, 2.0, 5.0, 10.0, 20.0]

    Args:
        low: the axis's lower end.
        high: its upper end.
        steps: for each fineness, the ticks of a decade from 1 on.
        most: ticks that an axis has room for.
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
