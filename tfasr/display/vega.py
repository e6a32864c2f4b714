"""Charts as Vega-Lite specifications: one for pictures, and one per panel for HTML pages.

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

Spec = dict[str, Any]
DASHES = {"solid": [1, 0], "dashed": [6, 4], "dash-dot": [7, 3, 2, 3], "dotted": [2, 3]}
_SHAPES = {
    "circle": "circle", "ring": "circle", "square": "square", "diamond": "diamond",
    "triangle": "triangle-up", "arrow": "triangle-right", "tick": "stroke",
    "star": "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z",
}  # fmt: skip
_HOLLOW = ("ring", "tick")
_TICKS = 6
_FONT_PX = 12
_CHARACTER_PX = 7
_ENTRY_PX = 40
_NAME_CHARACTERS = 42
_TOOLTIPS = 120
_PLACES = {"x": ("x", "x0", "x1"), "y": ("y", "y0", "y1", "low", "high")}
_NOTHING: Spec = {"data": {"values": []}, "mark": "point"}
_VEGA_LITE = "6.4"
_PNG_SCALE = 2
_PAPER = '<rect width="100%" height="100%" fill="#ffffff"/>'


def picture_spec(chart: Chart) -> Spec:
    """Returns the Vega-Lite specification of a chart with its legend, for PNG and SVG files.

    All panels share one legend, which stands above the first one.
    """
    panels = [
        {
            "width": chart.width,
            "height": panel.height,
            **_frame(panel),
            "layer": [layer for mark in panel.marks for layer in _still(mark, panel)]
            or [_NOTHING],
        }
        for panel in chart.panels
    ]
    panels[0]["layer"] += _legends(chart)
    return {
        "concat": panels,
        "columns": chart.columns,
        "spacing": {"row": 8, "column": 30},
        "resolve": {"scale": dict.fromkeys(("stroke", "fill", "color"), "shared")},
        "config": {**config_of(charts.INK), "aria": False},
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
            "layers": [
                {"series": mark.series, "layer": layer}
                | ({"at": [mark.axis, mark.value]} if isinstance(mark, Rule) else {})
                for mark in panel.marks
                for layer in [*_layers(mark), *_tooltips(mark, panel)]
            ],
            "choose": {"x": panel.x.choose, "y": panel.y.choose},
            "lowest": {"x": _lowest(panel, "x"), "y": _lowest(panel, "y")},
        }
        for panel in panels
    ]


def page_legend(chart: Chart) -> list[Spec]:
    """Returns the legend's entries: ``name``, ``colour`` and ``dash`` (None except for
    lines).
    """
    entries = []
    for name, mark in chart.series().items():
        dash = DASHES[mark.dash] if isinstance(mark, Line | Segments) else None
        entries.append({"name": name, "colour": mark.colour, "dash": dash})

    return entries


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
    """Rounds numbers to five digits, enough for drawing; None if not finite."""
    plain = np.asarray(values, dtype=float).tolist()
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in plain]


def _frame(panel: Panel) -> Spec:
    title = {"title": panel.title} if panel.title else {}
    return {**title, "encoding": {"x": _axis("x", panel.x), "y": _axis("y", panel.y)}}


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
        look |= {
            "labelAngle": axis.label_angle,
            "labelAlign": "right",
            "labelBaseline": "middle",
        }

    return {"field": channel, "type": "quantitative", "scale": scale, "axis": look}


def _layers(mark: Mark) -> list[Spec]:
    """Returns the layers of a mark, most often one; a rule with a label has two.

    The line of a rule and its label are separate layers because Vega-Lite draws one
    kind of mark per layer.
    """
    colour = {"value": mark.colour}
    if isinstance(mark, Line | Segments | Rule):
        dash = {"value": DASHES[mark.dash]}
    else:
        dash = None

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

    if isinstance(mark, Points):
        size = (mark.size / 2) ** 2 if mark.symbol == "star" else mark.size**2
        look = {"type": "point", "filled": mark.symbol not in _HOLLOW, "opacity": 1, "clip": True,
                "strokeWidth": 1.8, "size": size, "shape": _SHAPES[mark.symbol]}  # fmt: skip
        look |= {"angle": 90} if mark.symbol == "tick" else {}
        return [_layer(look, {"color": colour}, mark.texts, x=mark.x, y=mark.y)]

    if isinstance(mark, Rule):
        return _rule(mark, colour, dash)
    if isinstance(mark, charts.Labels):
        shift = {"left": 5, "right": -5, "center": 0}[mark.align]
        look = {
            "type": "text",
            "align": mark.align,
            "dx": shift,
            "dy": mark.dy,
            "tooltip": None,
        }
        look |= {"baseline": "middle", "fontSize": mark.size}
        encoding = {"text": {"field": "words", "type": "nominal"}, "color": colour}
        return [_layer(look, encoding, x=mark.x, y=mark.y, words=mark.words)]

    if isinstance(mark, Rects | Segments):
        encoding = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
        if isinstance(mark, Segments):
            look = {"type": "rule", "clip": True, "strokeWidth": mark.width}
            encoding |= {"color": colour, "strokeDash": dash}
        else:
            look = {"type": "rect", "clip": True, "strokeWidth": mark.outline}
            look |= {"opacity": mark.opacity}
            outline = colour if mark.outline else {"value": None}
            encoding |= {"fill": colour, "stroke": outline}

        places = {"x": mark.x0, "x2": mark.x1, "y": mark.y0, "y2": mark.y1}
        return [_layer(look, encoding, mark.texts, **places)]

    raise TypeError(
        f"A mark must be of tfasr.display.chart. Received: {type(mark).__name__}."
    )


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
    cells = [list(c) if name == "words" else numbers(c) for name, c in columns.items()]
    names = list(columns)
    if texts is not None:
        cells.append(list(texts))
        names.append("t")
        encoding = {**encoding, "tooltip": {"field": "t", "type": "nominal"}}

    rows = [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]
    return {"data": {"values": rows}, "mark": look, "encoding": encoding}


def _rule(mark: Rule, colour: Spec, dash: Spec) -> list[Spec]:
    """Returns a line across the panel, and its label at the right or the upper end."""
    other, end = ("y", "height") if mark.axis == "x" else ("x", "width")
    at = {mark.axis: [mark.value]}
    look = {
        "type": "rule",
        "strokeWidth": 1.1,
        "opacity": 0.65,
        "clip": True,
        "tooltip": None,
    }
    across = {other: {"value": 0}, f"{other}2": {"value": end}}
    layers = [_layer(look, {**across, "strokeDash": dash, "color": colour}, **at)]
    if mark.label:
        look = {
            "type": "text",
            "align": "left",
            "dx": 5,
            "baseline": "middle",
            "tooltip": None,
        }
        place = {other: {"value": end if other == "x" else 0}}
        encoding = {**place, "text": {"value": mark.label}, "color": colour}
        layers.append(_layer({**look, "fontSize": _FONT_PX}, encoding, **at))

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
    if isinstance(mark, Rule):
        columns = [[mark.value]] if mark.axis == channel else []
    else:
        columns = [getattr(mark, name, ()) for name in _PLACES[channel]]

    values = np.concatenate([np.asarray(column, float) for column in columns] or [[]])
    values = values[np.isfinite(values)]  # NaN and infinity are not drawn
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
    names = {"x": panel.x.label or "x", "y": panel.y.label or "y"}
    shown = [
        {"field": name, "type": "quantitative", "title": label, "format": ".4~g"}
        for name, label in names.items()
    ]
    look = {"type": "point", "filled": True, "size": 90, "opacity": 0, "clip": True}
    encoding = {"tooltip": [{"field": "s", "type": "nominal", "title": "_"}, *shown]}
    layer = _layer(
        look, encoding, x=np.asarray(mark.x)[index], y=np.asarray(mark.y)[index]
    )
    return [{**layer, "transform": [{"calculate": json.dumps(mark.series), "as": "s"}]}]


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
    return numbers([min(values)])[0] if values else None


def _legends(chart: Chart) -> list[Spec]:
    """Returns invisible layers that make the legend of a picture.

    Lines, points and areas have separate legends, as their symbols differ; rows are
    added until all entries fit into the chart's width.
    """
    entries = list(chart.series().items())
    hidden = len(entries) - charts.LEGEND_ENTRIES
    kinds: dict[str, list[tuple[str, Mark]]] = {}
    for number, (name, mark) in enumerate(entries[: charts.LEGEND_ENTRIES]):
        label = charts.shortened(name, _NAME_CHARACTERS)
        if number == charts.LEGEND_ENTRIES - 1 and hidden > 0:
            label += f" and {hidden} more"
        kind = {Line: "stroke", Segments: "stroke", Points: "color"}.get(
            type(mark), "fill"
        )
        kinds.setdefault(kind, []).append((label, mark))

    widths = {kind: _ENTRY_PX + _CHARACTER_PX * max(len(label) for label, _ in group)
              for kind, group in kinds.items()}  # fmt: skip
    room = chart.width * chart.columns + 60
    total = sum(widths[kind] * len(group) for kind, group in kinds.items())
    rows = math.ceil(total / room) if kinds else 1
    # A legend's columns are as wide as its longest entry, so add rows until they fit.
    while rows < len(entries) and room < sum(
        widths[kind] * math.ceil(len(group) / rows) for kind, group in kinds.items()
    ):
        rows += 1

    return [
        _legend(kind, group, math.ceil(len(group) / rows))
        for kind, group in kinds.items()
    ]


def _legend(kind: str, entries: Sequence[tuple[str, Mark]], columns: int) -> Spec:
    # Legends with the same domain would be merged.
    names = [f"{kind} {number}" for number in range(len(entries))]
    marks = [mark for _, mark in entries]
    labels = json.dumps([label for label, _ in entries])
    label = f"{labels}[indexof({json.dumps(names)}, datum.value)]"
    legend: Spec = {"labelExpr": label, "columns": columns, "symbolOpacity": 1}
    field: Spec = {"field": "s", "type": "nominal", "legend": legend}
    colours = {"domain": names, "range": [mark.colour for mark in marks]}
    encoding: Spec = {
        "x": {"value": 0},
        "y": {"value": 0},
        kind: {**field, "scale": colours},
    }
    look: Spec = {
        "type": "point",
        "size": 0,
        "opacity": 0,
        "filled": True,
        "tooltip": None,
    }
    if kind == "stroke":
        legend |= {"symbolType": "stroke", "symbolSize": 250}
        dashes = [DASHES[getattr(mark, "dash", "solid")] for mark in marks]
        encoding["strokeDash"] = {**field, "scale": {"domain": names, "range": dashes}}
    elif kind == "fill":
        legend |= {"symbolType": "square", "symbolStrokeWidth": 0, "symbolSize": 130}
    else:
        symbols = [mark.symbol for mark in marks if isinstance(mark, Points)]
        look["filled"] = not all(symbol in _HOLLOW for symbol in symbols)
        legend |= {"symbolStrokeWidth": 1.8}
        shapes = {"domain": names, "range": [_SHAPES[symbol] for symbol in symbols]}
        encoding["shape"] = {**field, "scale": shapes}

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
        is_svg = Path(path).suffix == ".svg"
        write_whole(Path(path), svg_text(self.chart) if is_svg else self._repr_png_())

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
    return vl_convert.javascript_bundle(
        "window.vegaEmbed = vegaEmbed;", vl_version=_VEGA_LITE
    )
