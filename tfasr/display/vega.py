"""Charts as Vega-Lite specifications: one for pictures, and one per panel for HTML pages.

A specification is JSON that says what to draw. `picture_spec` makes one of a whole chart,
which vl-convert draws as SVG and PNG without a browser. The page gets its panels in parts
(`page_panels`), so that its script can draw those that a reader selects; vl-convert
bundles the script (`page_library`).

Source: Satyanarayan et al., Vega-Lite: A Grammar of Interactive Graphics, 2017.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.display import chart as charts
from tfasr.display.chart import (
    Axis,
    Chart,
    Line,
    Mark,
    Panel,
    Points,
    Rects,
    Rule,
    Segments,
)
from tfasr.errors import needed
from tfasr.kit.files import write_whole
from tfasr.kit.process import call

vl_convert = needed("vl_convert", "Drawing figures")

# A part of a specification, as JSON.
Spec = dict[str, Any]
# Lengths of lines and gaps in pixels.
DASHES = {"solid": [1, 0], "dashed": [6, 4], "dash-dot": [7, 3, 2, 3], "dotted": [2, 3]}
_SHAPES = {
    "circle": "circle", "ring": "circle", "square": "square", "diamond": "diamond",
    "triangle": "triangle-up", "arrow": "triangle-right", "tick": "stroke",
    "star": "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z",
}  # fmt: skip
# Symbols that are outlines.
_HOLLOW = ("ring", "tick")
# About how many ticks a linear axis gets.
_TICKS = 6
# The height of text, and the widths of a character and of a legend's symbol with its
# margins.
_FONT_PX = 12
_CHARACTER_PX = 7
_ENTRY_PX = 40
# Longer names in legends are shortened.
_NAME_CHARACTERS = 42
# Points of a line that show their values; see `_tooltips`.
_TOOLTIPS = 120
# The fields of marks that have places on an axis.
_PLACES = {"x": ("x", "x0", "x1"), "y": ("y", "y0", "y1", "low", "high")}
# A layer for a panel without marks, as Vega-Lite needs one.
_NOTHING: Spec = {"data": {"values": []}, "mark": "point"}
# The version of Vega-Lite that vl-convert draws with.
_VEGA_LITE = "6.4"
# Pixels of a PNG for each pixel of the chart, for sharp text in print.
_PNG_SCALE = 2
# The first element of SVG files, which pages leave out.
_PAPER = '<rect width="100%" height="100%" fill="#ffffff"/>'


def picture_spec(chart: Chart) -> Spec:
    """Returns the Vega-Lite specification of a chart with its legend, for PNG and SVG files.

    All panels share one legend, which stands above the first one.
    """
    panels = []
    for panel in chart.panels:
        layers = [layer for mark in panel.marks for layer in _still(mark, panel)]
        size = {"width": chart.width, "height": panel.height}
        panels.append(size | _frame(panel) | {"layer": layers or [_NOTHING]})

    panels[0]["layer"] += _legends(chart)

    return {
        "concat": panels,
        "columns": chart.columns,
        "spacing": {"row": 8, "column": 30},
        "resolve": {"scale": dict.fromkeys(("stroke", "fill", "color"), "shared")},
        "config": config_of(charts.INK) | {"aria": False},
    }


def page_panels(panels: Sequence[Panel]) -> list[Spec]:
    """Returns panels in parts, from which the page's script draws the series that a
    reader selects.

    Each has ``spec``, a specification without layers; ``layers`` with their ``series``,
    and for rules ``at``, their axis and value; ``choose``, whether readers may choose
    the scales of x and y; and ``lowest``, the smallest positive values, where
    logarithmic axes start.
    """
    return [
        {
            "spec": {"height": panel.height, **_frame(panel)},
            "layers": [part for mark in panel.marks for part in _parts(mark, panel)],
            "choose": {"x": panel.x.choose, "y": panel.y.choose},
            "lowest": {"x": _lowest(panel, "x"), "y": _lowest(panel, "y")},
        }
        for panel in panels
    ]


def _parts(mark: Mark, panel: Panel) -> list[Spec]:
    """Returns the layers of a mark for the page, each with its series."""
    parts = []
    for layer in [*_layers(mark), *_tooltips(mark, panel)]:
        part = {"series": mark.series, "layer": layer}
        # The script hides a rule that is outside of the axis.
        if isinstance(mark, Rule):
            part["at"] = [mark.axis, mark.value]

        parts.append(part)

    return parts


def page_legend(chart: Chart) -> list[Spec]:
    """Returns the entries of a page's legend.

    They have ``name``, ``colour`` and ``dash``, which is None except for lines.
    """
    return [
        {"name": name, "colour": mark.colour, "dash": _dash(mark)}
        for name, mark in chart.series().items()
    ]


def _dash(mark: Mark) -> list[int] | None:
    """Returns the lengths of a line's dashes and gaps; None for marks other than lines."""
    if isinstance(mark, Line | Segments):
        return DASHES[mark.dash]

    return None


def config_of(ink: str) -> Spec:
    """Returns the look of all charts: fonts, faint grids, no ticks, legends above.

    Args:
        ink: colour of text and axes. In files it is dark; the page's script replaces it by
            the text's colour in light or dark mode.
    """
    axis = {
        "labelColor": ink, "titleColor": ink, "domainColor": ink, "gridColor": ink,
        "domainOpacity": 0.4, "gridOpacity": 0.14, "ticks": False, "labelPadding": 5,
        "labelFontSize": _FONT_PX, "titleFontSize": _FONT_PX, "titleFontWeight": "normal",
        "labelOverlap": True, "labelLimit": 280,
    }  # fmt: skip

    return {
        "background": None,
        "font": charts.FONTS,
        "view": {"stroke": None},
        "axis": axis,
        "title": {
            "color": ink, "anchor": "start", "fontSize": _FONT_PX, "fontWeight": "normal",
            "offset": 4,
        },
        "legend": {
            "labelColor": ink, "labelFontSize": _FONT_PX, "title": None, "labelLimit": 320,
            "orient": "top", "direction": "horizontal", "symbolStrokeWidth": 2.5,
            "columnPadding": 18, "rowPadding": 4, "offset": 12,
        },
    }  # fmt: skip


def numbers(values: Iterable[float]) -> list[float | None]:
    """Rounds numbers to five digits, enough for drawing; None if not finite.

    >>> numbers([1 / 3, float("nan")])
    [0.33333, None]
    """
    plain = np.asarray(values, dtype=float).tolist()
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in plain]


def _frame(panel: Panel) -> Spec:
    """Returns a panel without its marks: its title and axes."""
    frame: Spec = {}
    if panel.title:
        frame["title"] = panel.title

    frame["encoding"] = {"x": _axis("x", panel.x), "y": _axis("y", panel.y)}
    return frame


def _axis(channel: str, axis: Axis) -> Spec:
    """Returns an axis as Vega-Lite encodes it, with its scale and labels.

    Limits are rounded to six digits, and not extended to round numbers ("nice"), so that
    panels with the same limits stay aligned.
    """
    scale: Spec = {"type": "log" if axis.log else "linear", "nice": False}
    if axis.limits is not None:
        scale["domain"] = [float(f"{end:.6g}") for end in axis.limits]

    look: Spec = {"title": axis.label or None, "grid": axis.grid, "format": ",.6~g"}
    ticks = axis.ticks
    if ticks is None and axis.log and axis.limits is not None:
        ticks = charts.log_ticks(*axis.limits) or None

    if ticks is not None:
        look["values"] = numbers(ticks)
    elif not axis.log:
        look["tickCount"] = _TICKS

    if axis.tick_labels is not None:
        # Vega passes a tick's value; the label is found by the value's index among the
        # ticks.
        values = json.dumps(numbers(ticks))
        names = json.dumps(list(axis.tick_labels))
        look["labelExpr"] = f"{names}[indexof({values}, datum.value)]"
        look["labelOverlap"] = False

    if axis.label_angle:
        look["labelAngle"] = axis.label_angle
        look["labelAlign"] = "right"
        look["labelBaseline"] = "middle"

    return {"field": channel, "type": "quantitative", "scale": scale, "axis": look}


def _layers(mark: Mark) -> list[Spec]:
    """Returns the layers of a mark, most often one; a rule with a label has two.

    The line of a rule and its label are separate layers because Vega-Lite draws one
    kind of mark per layer.
    """
    if isinstance(mark, Rule):
        return _rule(mark)
    if isinstance(mark, charts.Labels):
        return [_labels(mark)]
    if isinstance(mark, Points):
        return [_points(mark)]

    colour = {"value": mark.colour}
    dash = {"value": _dash(mark)}
    if isinstance(mark, Line):
        look = {
            "type": "line",
            "clip": True,
            "strokeWidth": mark.width,
            "opacity": mark.opacity,
            "tooltip": None,
        }
        # Connects points in their order, not sorted by x.
        encoding = {"color": colour, "strokeDash": dash, "order": {"value": None}}

        return [_layer(look, encoding, x=mark.x, y=mark.y)]

    if isinstance(mark, charts.Area):
        look = {"type": "area", "opacity": 0.22, "clip": True, "tooltip": None}
        encoding = {"y2": {"field": "y2"}, "fill": colour}

        return [_layer(look, encoding, x=mark.x, y=mark.low, y2=mark.high)]

    encoding = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
    if isinstance(mark, Segments):
        look = {"type": "rule", "clip": True, "strokeWidth": mark.width}
        encoding |= {"color": colour, "strokeDash": dash}
    elif isinstance(mark, Rects):
        look = {
            "type": "rect",
            "clip": True,
            "strokeWidth": mark.outline,
            "opacity": mark.opacity,
        }
        outline = colour if mark.outline else {"value": None}
        encoding |= {"fill": colour, "stroke": outline}
    else:
        raise TypeError(
            f"A mark must be of tfasr.display.chart. Received: {type(mark).__name__}."
        )

    return [
        _layer(look, encoding, mark.texts, x=mark.x0, x2=mark.x1, y=mark.y0, y2=mark.y1)
    ]


def _points(mark: Points) -> Spec:
    """Returns the layer of symbols; Vega-Lite wants their area in square pixels."""
    # A star's path is four times as large as the other shapes.
    width = mark.size / 2 if mark.symbol == "star" else mark.size
    look = {
        "type": "point",
        "filled": mark.symbol not in _HOLLOW,
        "opacity": 1,
        "clip": True,
        "strokeWidth": 1.8,
        "size": width**2,
        "shape": _SHAPES[mark.symbol],
    }
    if mark.symbol == "tick":
        look["angle"] = 90

    encoding = {"color": {"value": mark.colour}}
    return _layer(look, encoding, mark.texts, x=mark.x, y=mark.y)


def _labels(mark: charts.Labels) -> Spec:
    """Returns the layer of text at points, a little beside them."""
    look = {
        "type": "text",
        "align": mark.align,
        "dx": {"left": 5, "right": -5, "center": 0}[mark.align],
        "dy": mark.dy,
        "tooltip": None,
        "baseline": "middle",
        "fontSize": mark.size,
    }
    encoding = {
        "text": {"field": "words", "type": "nominal"},
        "color": {"value": mark.colour},
    }

    return _layer(look, encoding, x=mark.x, y=mark.y, words=mark.words)


def _layer(
    look: Spec,
    encoding: Spec,
    texts: Sequence[str] | None = None,
    **columns: Sequence[Any],
) -> Spec:
    """Returns one Vega-Lite layer with its data in rows.

    Args:
        look: the mark and its constant properties.
        encoding: which columns are the places, and constant colours.
        texts: a tooltip for each row; None for none.
        **columns: places of the rows, such as x and y, equally long. They are rounded,
            except for ``words``, which is text.
    """
    cells = {}
    for name, column in columns.items():
        cells[name] = column if name == "words" else numbers(column)

    if texts is not None:
        cells["t"] = texts
        encoding = encoding | {"tooltip": {"field": "t", "type": "nominal"}}

    rows = [
        dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)
    ]
    return {"data": {"values": rows}, "mark": look, "encoding": encoding}


def _rule(mark: Rule) -> list[Spec]:
    """Returns a line across the panel, and its label at the right or the upper end."""
    colour = {"value": mark.colour}
    dash = {"value": DASHES[mark.dash]}
    # A line at a value of x runs along y, from the top of the panel.
    other = "x"
    end = "width"
    label_at = "width"

    if mark.axis == "x":
        other = "y"
        end = "height"
        label_at = 0

    at = {mark.axis: [mark.value]}
    look = {
        "type": "rule",
        "strokeWidth": 1.1,
        "opacity": 0.65,
        "clip": True,
        "tooltip": None,
    }
    across = {other: {"value": 0}, f"{other}2": {"value": end}}
    layers = [_layer(look, across | {"strokeDash": dash, "color": colour}, **at)]

    if mark.label:
        look = {
            "type": "text",
            "align": "left",
            "dx": 5,
            "baseline": "middle",
            "tooltip": None,
            "fontSize": _FONT_PX,
        }

        encoding = {
            other: {"value": label_at},
            "text": {"value": mark.label},
            "color": colour,
        }
        layers.append(_layer(look, encoding, **at))

    return layers


def _still(mark: Mark, panel: Panel) -> list[Spec]:
    """Returns a mark's layers for a picture, clipped only if they leave the panel.

    Clipping is slow, because a renderer masks the entire panel for each mark.
    """
    layers = _layers(mark)
    if _within(mark, "x", panel.x) and _within(mark, "y", panel.y):
        for layer in layers:
            layer["mark"].pop("clip", None)

    return layers


def _within(mark: Mark, channel: str, axis: Axis) -> bool:
    """Whether all of a mark lies inside the limits of an axis, so that it needs no clipping.

    Missing values and infinities count as inside, because they are not drawn.
    """
    if axis.limits is None:
        return True

    columns = [getattr(mark, name, ()) for name in _PLACES[channel]]
    if isinstance(mark, Rule) and mark.axis == channel:
        columns = [[mark.value]]

    values = np.concatenate([np.asarray(column, float) for column in columns])
    values = values[np.isfinite(values)]

    return bool(((values >= min(axis.limits)) & (values <= max(axis.limits))).all())


def _tooltips(mark: Mark, panel: Panel) -> list[Spec]:
    """Returns invisible points along a line, which show its values at the pointer.

    At most `_TOOLTIPS`: each is an element of the page, and neighbours closer than that
    can't be pointed at separately with a mouse.
    """
    if not isinstance(mark, Line):
        return []

    count = len(mark.x)
    places = np.unique(np.linspace(0, max(0, count - 1), min(count, _TOOLTIPS)).round())
    index = places.astype(int)

    shown = [{"field": "s", "type": "nominal", "title": "_"}]
    for name, label in (("x", panel.x.label), ("y", panel.y.label)):
        shown.append(
            {
                "field": name,
                "type": "quantitative",
                "title": label or name,
                "format": ".4~g",
            }
        )

    look = {"type": "point", "filled": True, "size": 90, "opacity": 0, "clip": True}
    layer = _layer(
        look,
        {"tooltip": shown},
        x=np.asarray(mark.x)[index],
        y=np.asarray(mark.y)[index],
    )
    # The series is the same in all rows, so the page computes it.
    layer["transform"] = [{"calculate": json.dumps(mark.series), "as": "s"}]

    return [layer]


def _lowest(panel: Panel, channel: str) -> float | None:
    """Returns the smallest positive value of a panel in x or y, or None.

    It is where the axis begins if a reader switches to a logarithmic scale.
    """
    values = [
        value
        for mark in panel.marks
        for name in (channel, f"{channel}0", f"{channel}1", "middle")
        for value in getattr(mark, name, ())
        if value > 0
    ]
    return next(iter(numbers(sorted(values)[:1])), None)


def _legends(chart: Chart) -> list[Spec]:
    """Returns invisible layers that make the legend of a picture.

    Lines, points and areas have separate legends, as their symbols differ; rows are
    added until all entries fit into the chart's width.
    """
    entries = list(chart.series().items())
    hidden = len(entries) - charts.LEGEND_ENTRIES
    kinds: dict[str, list[tuple[str, Mark]]] = {}

    for number, (name, mark) in enumerate(entries[: charts.LEGEND_ENTRIES], 1):
        label = charts.shortened(name, _NAME_CHARACTERS)
        if number == charts.LEGEND_ENTRIES and hidden > 0:
            label += f" and {hidden} more"

        kinds.setdefault(_kind(mark), []).append((label, mark))

    # A legend's columns are as wide as its longest entry.
    widths = {}
    for kind, group in kinds.items():
        longest = max(len(label) for label, _ in group)
        widths[kind] = _ENTRY_PX + _CHARACTER_PX * longest

    def width_with(rows: int) -> int:
        return sum(
            widths[kind] * math.ceil(len(group) / rows) for kind, group in kinds.items()
        )

    room = chart.width * chart.columns + 60
    rows = max(1, math.ceil(width_with(1) / room))

    while rows < len(entries) and room < width_with(rows):
        rows += 1

    return [
        _legend(kind, group, math.ceil(len(group) / rows))
        for kind, group in kinds.items()
    ]


def _kind(mark: Mark) -> str:
    """Returns the channel of a mark's colour, by which Vega-Lite groups legends."""
    if isinstance(mark, Line | Segments):
        return "stroke"
    if isinstance(mark, Points):
        return "color"

    return "fill"


def _legend(kind: str, entries: Sequence[tuple[str, Mark]], columns: int) -> Spec:
    """Returns the invisible layer whose legend has the entries of one kind.

    Args:
        kind: of `_kind`.
        entries: labels and marks.
        columns: of the legend.
    """
    # Legends with the same domain would be merged, so each kind has names of its own.
    names = [f"{kind} {number}" for number in range(len(entries))]
    marks = [mark for _, mark in entries]
    labels = json.dumps([label for label, _ in entries])
    legend: Spec = {
        "labelExpr": f"{labels}[indexof({json.dumps(names)}, datum.value)]",
        "columns": columns,
        "symbolOpacity": 1,
    }

    look: Spec = {
        "type": "point",
        "size": 0,
        "opacity": 0,
        "filled": True,
        "tooltip": None,
    }

    def field(shown: Sequence[Any]) -> Spec:
        scale = {"domain": names, "range": shown}
        return {"field": "s", "type": "nominal", "legend": legend, "scale": scale}

    encoding: Spec = {
        "x": {"value": 0},
        "y": {"value": 0},
        kind: field([mark.colour for mark in marks]),
    }

    if kind == "stroke":
        legend |= {"symbolType": "stroke", "symbolSize": 250}
        encoding["strokeDash"] = field([_dash(mark) for mark in marks])
    elif kind == "fill":
        legend |= {"symbolType": "square", "symbolStrokeWidth": 0, "symbolSize": 130}
    else:
        legend["symbolStrokeWidth"] = 1.8
        encoding["shape"] = field([_SHAPES[mark.symbol] for mark in marks])
        look["filled"] = not all(mark.symbol in _HOLLOW for mark in marks)

    return {
        "data": {"values": [{"s": name} for name in names]},
        "mark": look,
        "encoding": encoding,
    }


def write_chart(chart: Chart, folder: Path) -> str:
    """Writes a chart as ``NAME.png`` and ``NAME.svg`` on white; returns the SVG document."""
    svg = svg_text(chart)
    write_whole(folder / f"{chart.name}.svg", svg)
    write_whole(
        folder / f"{chart.name}.png", vl_convert.svg_to_png(svg, scale=_PNG_SCALE)
    )

    return svg


def svg_text(chart: Chart) -> str:
    """Returns a chart as an SVG document on white, with selectable text."""
    # The renderer rejects bytes that aren't valid UTF-8, as in some file names.
    spec = (
        json.dumps(picture_spec(chart), ensure_ascii=False)
        .encode(errors="replace")
        .decode()
    )
    svg = vl_convert.vegalite_to_svg(spec, vl_version=_VEGA_LITE)
    # Hundredths of a pixel are precise enough and take a third of the space.
    svg = re.sub(
        r' (?:d|transform|[xy][12]?|width|height)="[^"]*\.\d{3}[^"]*"',
        lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]),
        svg,
    )

    return re.sub(r"(<svg [^>]*>)", rf"\1{_PAPER}", svg, count=1)


@dataclass(frozen=True)
class Drawing:
    """A chart that notebooks show as a picture."""

    chart: Chart

    def __repr__(self) -> str:
        return f"<Drawing of {self.chart.name}: notebooks show it, save('plot.png') writes it>"

    def save(self, path: str | Path) -> None:
        """Writes an SVG if the path ends in .svg, otherwise a PNG."""
        path = Path(path)
        if path.suffix == ".svg":
            write_whole(path, svg_text(self.chart))
        else:
            write_whole(path, self._repr_png_())

    def _repr_png_(self) -> bytes:
        return vl_convert.svg_to_png(svg_text(self.chart), scale=_PNG_SCALE)


def embedded_svg(svg: str) -> str:
    """Returns the SVG of `svg_text` as an HTML element, in the page's text colour."""
    svg = svg.replace(_PAPER, "", 1)
    svg = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', svg
    )
    svg = re.sub(r' (?:class|id|font-family)="[^"]*"', "", svg)

    return svg.replace(charts.INK, "currentColor")


@cache
def page_library() -> str:
    """Returns the script that draws a page's charts (``vegaEmbed`` with dependencies).

    Another process generates it, because that takes 100 MB, which this process would
    keep.
    """
    return call(
        _bundled, plugins=(), show_messages=False, task="Bundling the page's script"
    )


def _bundled() -> str:
    """Returns what `page_library` does, in this process."""
    return vl_convert.javascript_bundle(
        "window.vegaEmbed = vegaEmbed;", vl_version=_VEGA_LITE
    )
