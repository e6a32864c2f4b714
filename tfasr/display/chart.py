"""A figure described as data: marks in panels, independent of what draws them.

A chart is drawn as a PNG and an SVG by `tfasr.display.vega` and on a page by its script; both
read the one specification that `tfasr.display.vega` makes of it. Panels stand one above the other,
or in several columns. Coordinates are in the units of the data; rows of bars are numbered 0, 1, 2
and named by their axis, see `rows_axis`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# How figures look: colours, dashes, fonts.

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
# Replaced by the page's own text colour, so that one drawing serves light and dark.
INK = "#22262b"
OTHER_COLOUR = "#7d8794"
CLIFF_COLOUR = "#cf4747"
DASHES = ("solid", "dashed", "dash-dot", "dotted")
LEGEND_ENTRIES = 17
FONTS = "DejaVu Sans, Verdana, Arial, sans-serif"


def run_colour(index: int) -> str:
    return RUN_COLOURS[index % len(RUN_COLOURS)]


def run_dash(index: int) -> str:
    """Returns the dash of the run of that index: another one for each round of colours."""
    return DASHES[index // len(RUN_COLOURS) % len(DASHES)]


def device_colour(index: int) -> str:
    """Returns the colour of the processor of that index; the first are unlike the phases'."""
    return RUN_COLOURS[(1, 5, 3, 6, 4, 7, 0, 2)[index % len(RUN_COLOURS)]]


def shortened(name: str, most: int = 30) -> str:
    """Returns a name cut in its middle where it is longer than ``most`` characters."""
    if len(name) <= most:
        return name
    half = (most - 1) // 2
    return f"{name[: most - 1 - half]}…{name[-half:]}"


Numbers = Sequence[float]

SYMBOLS = ("circle", "ring", "square", "diamond", "triangle", "arrow", "tick", "star")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What all kinds of marks have in common."""

    # Its entry in the legend, by which all marks of the series are hidden and shown together; ""
    # for none
    series: str = ""
    colour: str = INK  # "#rrggbb"; `INK` is the page's own text colour
    texts: Sequence[str] | None = None  # the tooltip of each point; None for tooltips of x and y


@dataclass(frozen=True, kw_only=True)
class Line(Mark):
    """A line through points; a value that is not finite breaks it. ``dash``: one of `DASHES`."""

    x: Numbers
    y: Numbers
    dash: str = "solid"
    width: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Area(Mark):
    x: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True, kw_only=True)
class Points(Mark):
    """Symbols, one of `SYMBOLS`, ``size`` pixels wide."""

    x: Numbers
    y: Numbers
    symbol: str = "circle"
    size: float = 6.0


@dataclass(frozen=True, kw_only=True)
class Rects(Mark):
    """Rectangles: bars, spans of time, cells. ``outline`` keeps narrow ones visible, in pixels."""

    x0: Numbers
    x1: Numbers
    y0: Numbers
    y1: Numbers
    outline: float = 0.0
    opacity: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Segments(Mark):
    """Straight lines from (x0, y0) to (x1, y1)."""

    x0: Numbers
    x1: Numbers
    y0: Numbers
    y1: Numbers
    dash: str = "solid"
    width: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Rule(Mark):
    """A line across the whole panel at a value of ``axis``, "x" or "y", with a label.

    The label of a value of y is at the right end of the line.
    """

    value: float
    axis: str = "y"
    label: str = ""
    dash: str = "dashed"


@dataclass(frozen=True, kw_only=True)
class Labels(Mark):
    """Text at points. ``align``: the point is at the text's "left", "right" or "center".

    ``size`` is the font's, ``dy`` the distance of the text below its point, both in pixels.
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
    log: bool = False  # whether it is logarithmic; values that are not positive are then not drawn
    limits: tuple[float, float] | None = None  # left or lower end first; None fits the data
    ticks: Numbers | None = None  # the values with a label; None for an automatic choice
    tick_labels: Sequence[str] | None = None  # texts for ``ticks``; None for the numbers themselves
    grid: bool = True  # whether a line crosses the panel at each tick
    choose: bool = False  # whether a reader of the page can choose a logarithmic scale
    label_angle: float = 0.0  # degrees by which the labels of ticks are turned


@dataclass(frozen=True)
class Panel:
    """Marks between two axes; later ones are drawn over earlier ones. ``height`` is in pixels."""

    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    height: float = 280.0
    title: str = ""


@dataclass(frozen=True)
class Chart:
    name: str  # of its files: lower case, digits, "_", "-" and "."
    caption: str  # a sentence without its full stop
    panels: Sequence[Panel]  # what is drawn, from the top
    # The same panels over each of several horizontal axes, by the axis's name, such as "minutes"; a
    # reader of the page switches between them. ``panels`` is one of them and shown first. {}
    # without a choice
    views: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    wide: bool = False  # whether it takes the page's whole width
    columns: int = 1  # how many panels stand side by side
    width: float = 470.0  # of each panel, in pixels

    def series(self) -> dict[str, Mark]:
        """Returns the legend's entries in order, each with the first mark of its series."""
        entries: dict[str, Mark] = {}
        for panel in self.panels:
            for mark in panel.marks:
                # An area is the spread around a line, and the legend shows the line.
                if mark.series and (
                    mark.series not in entries or isinstance(entries[mark.series], Area)
                ):
                    entries[mark.series] = mark
        return entries


def rows_axis(names: Sequence[str]) -> Axis:
    """Returns a vertical axis of named rows, the first at the top; names may be equal."""
    return Axis(
        limits=(len(names) - 0.4, -0.6),
        ticks=list(range(len(names))),
        tick_labels=list(names),
        grid=False,
    )


def curve(
    x: Sequence[float],
    y: Sequence[float],
    colour: str,
    series: str = "",
    *,
    dash: str = "solid",
    symbol: str = "circle",
) -> list[Mark]:
    """Returns a line and a point at each of its places."""
    line = Line(x=x, y=y, colour=colour, dash=dash, series=series)
    return [line, Points(x=x, y=y, colour=colour, symbol=symbol)]


def counts_axis(label: str, counts: Sequence[float], margin: float = 1.15) -> Axis:
    """Returns a logarithmic axis with a tick at each of several growing numbers."""
    limits = (counts[0] / margin, counts[-1] * margin)
    return Axis(label, log=True, limits=limits, ticks=counts)


# How the ledger's intervals are called in tables and figures.

# With line breaks where a narrow column needs them.
INTERVAL_LABELS = {
    "init": "init",
    "compile": "compile",
    "input_wait": "input\nwait",
    "train": "train",
    "averaging": "averaging",
    "swap": "swap",
    "eval_forward": "eval\nforward",
    "decode": "decode",
    "eval_wait": "eval\nwait",
    "checkpoint": "checkpoint",
    "sentences": "sentences",
    "logging": "logging",
    "overhead": "overhead",
    "lost_work": "lost\nwork",
}
