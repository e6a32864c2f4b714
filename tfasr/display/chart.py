"""What a figure shows, described once: marks in panels, whoever draws them.

A chart is drawn as a PNG and an SVG by `tfasr.display.pictures` and on a page by its script; both
read the one specification that `tfasr.display.vega` makes of it. Panels stand one above the other,
or in several columns. Coordinates are the data's own; rows of bars are numbered 0, 1, 2 and named
by their axis, see `rows_axis`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfasr.display.style import INK

Numbers = Sequence[float]

SYMBOLS = ("circle", "ring", "square", "diamond", "triangle", "arrow", "tick", "star")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What all marks have.

    Attributes:
        series: the entry of the legend that it belongs to; marks of one series are hidden and
            shown together. "" stands in no legend.
        colour: "#rrggbb"; `INK` is the page's own text colour.
        texts: what is said of each place to whoever points at it; None says x and y.
    """

    series: str = ""
    colour: str = INK
    texts: Sequence[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Line(Mark):
    """A line through places; a value that is not finite breaks it. ``dash``: one of `DASHES`."""

    x: Numbers
    y: Numbers
    dash: str = "solid"
    width: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Area(Mark):
    """The area between two lines."""

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
    """A dashed line across the whole panel at a value of ``axis``, "x" or "y", and its label.

    The label of a value of y stands on the right of the panel.
    """

    value: float
    axis: str = "y"
    label: str = ""
    dash: str = "dashed"


@dataclass(frozen=True, kw_only=True)
class Labels(Mark):
    """Words beside places. ``align``: "left" begins there, "right" ends there, or "center".

    ``size`` is the font's and ``dy`` how much lower than the place they stand, both in pixels.
    """

    x: Numbers
    y: Numbers
    words: Sequence[str]
    align: str = "left"
    size: float = 12.0
    dy: float = 0.0


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        label: with its unit.
        log: whether it is logarithmic; what is not positive has no place on it then.
        limits: the ends, the first at the left or at the bottom; None covers what is drawn.
        ticks: values that are labelled; None leaves it to the drawing.
        tick_labels: of ``ticks``, where they are not numbers.
        grid: whether lines go through the panel at ticks.
        choose: whether a reader may choose between a linear and a logarithmic scale.
        label_angle: degrees by which the labels of ticks are turned.
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
    """Marks between two axes; later ones are drawn over earlier ones. ``height`` is in pixels."""

    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    height: float = 280.0
    title: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure.

    Attributes:
        name: of its files: lower case, digits, "_", "-" and ".".
        caption: a sentence without its full stop.
        panels: what is drawn, from the top.
        views: the same over other horizontal axes, by what they are over; a reader of the page
            chooses, and ``panels`` are the first choice.
        wide: whether it takes a page's whole width.
        columns: how many panels stand side by side.
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
        """Returns the legend's entries in order, each with the first mark of its series."""
        found: dict[str, Mark] = {}
        for panel in self.panels:
            for mark in panel.marks:
                # An area shows how far a line spreads: the line is the better sample.
                if mark.series and (
                    mark.series not in found or isinstance(found[mark.series], Area)
                ):
                    found[mark.series] = mark
        return found


def rows_axis(names: Sequence[str]) -> Axis:
    """Returns a vertical axis of named rows, the first at the top; names may be equal."""
    return Axis(
        limits=(len(names) - 0.4, -0.6),
        ticks=list(range(len(names))),
        tick_labels=list(names),
        grid=False,
    )
