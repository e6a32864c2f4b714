"""The page's curves, as data for its plotting library.

A plot is a dict: ``views``, lists of Plotly's traces by horizontal axis; ``x``, those axes' titles;
``layout``, Plotly's; ``height`` in pixels, and ``narrow``, what a phone's legend adds to it; for
curves also ``targets``, ``limits``, ``log_x``, ``log_y`` and ``choose_y``. Colours that belong to
the page are written ``@ink`` and filled in by its script, as is everything that depends on light
or dark.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from tfasr.analysis.bands import EVERYTHING, Band
from tfasr.display.style import run_colour
from tfasr.report.figures.chart import Chart, Mark, Point, Rug, labelled_together

Plot = dict[str, Any]

INK = "@ink"
_GREY = "#7d8794"
_DASHES = ("solid", "dash", "dashdot", "dot")
_COLOURS = 8
_HEIGHT = 400
_LEGEND_ROW = 14
_RUG_SHARE = 0.035


def chart_plot(chart: Chart) -> Plot:
    """Returns a chart over every axis that its curves have."""
    titles = {
        "minutes": chart.clock,
        "epochs": "epochs",
        "utterances": "utterances trained on",
    }
    rug = _RUG_SHARE * len(chart.rugs)
    layout: dict[str, Any] = {
        "hovermode": "closest",
        "yaxis": {"title": {"text": chart.y_label}, "domain": [rug and rug + 0.03, 1]},
    }
    if chart.rugs:
        layout["yaxis2"] = {
            "domain": [0, rug],
            "range": [len(chart.rugs) - 0.5, -0.5],
            "fixedrange": True,
            "tickvals": [(len(chart.rugs) - 1) / 2],
            "ticktext": ["eval"],
            "showgrid": False,
            "zeroline": False,
        }
        layout["xaxis"] = {"anchor": "y2"}
        layout["barmode"] = "overlay"
    return {
        "views": {axis: _view(chart, axis, bands) for axis, bands in chart.bands.items()},
        "x": {axis: titles[axis] for axis in chart.bands},
        "layout": layout,
        "height": _HEIGHT + 16 * len(chart.rugs),
        "narrow": _LEGEND_ROW * len(chart.bands["minutes"]),
        "targets": _targets(chart),
        "limits": numbers(chart.limits),
        "log_x": chart.log_time,
        "log_y": chart.log_y,
        # Throughput is read from zero, and zero is not on a logarithmic axis.
        "choose_y": chart.log_y and not chart.rugs,
    }


def numbers(values: Iterable[float]) -> list[float | None]:
    """Returns figures of five digits, which no eye can tell from more; None for what is none."""
    return [
        None if not np.isfinite(value) else float(f"{value:.5g}")
        for value in np.asarray(values, dtype=float)
    ]


def as_text(name: str) -> str:
    """Returns a name as the plotting library shows it literally: it reads some HTML."""
    return escape(name, quote=False)


def tinted(colour: str, alpha: float) -> str:
    """Returns a colour such as ``#2f7fd0`` with an opacity."""
    parts = [str(int(colour[start : start + 2], 16)) for start in (1, 3, 5)]
    return f"rgba({','.join(parts)},{alpha})"


def _view(chart: Chart, axis: str, bands: Sequence[Band]) -> list[dict]:
    traces: list[dict] = []
    pointed = {point.number for point in chart.points}
    for band in bands:
        traces += _band_traces(band, chart.unit, axis, hover=band.number not in pointed)
    for number in sorted(pointed):
        traces.append(_points([one for one in chart.points if one.number == number], chart, axis))
    for mark in chart.marks:
        if axis in mark.at:
            traces.append(_mark(mark, chart, axis))
    for row, rug in enumerate(chart.rugs):
        traces += _rug_traces(row, rug, axis)
    return traces


def _band_traces(band: Band, unit: str, axis: str, *, hover: bool) -> list[dict]:
    everything = band.number == EVERYTHING
    colour = _GREY if everything else run_colour(band.number)
    dash = "solid" if everything else _DASHES[band.number // _COLOURS % len(_DASHES)]
    common = {"x": numbers(band.x), "mode": "lines", "legendgroup": f"group{band.number}"}
    traces = []
    if band.low is not None:
        edge = {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        traces.append({**common, **edge, "y": numbers(band.low)})
        fill = {"fill": "tonexty", "fillcolor": tinted(colour, 0.2)}
        traces.append({**common, **edge, **fill, "y": numbers(band.high)})
    line = {
        **common,
        "y": numbers(band.middle),
        "name": as_text(band.label),
        "line": {"color": colour, "width": 2, "dash": dash},
    }
    if hover or band.runs > 1:
        line["meta"] = as_text(band.name)
        what = "median, " if band.runs > 1 else ""
        line["hovertemplate"] = (
            f"%{{meta}}<br>{what}{axis}: %{{x:.4~g}}<br>%{{y:.4~g}}{unit}<extra></extra>"
        )
    else:
        line["hoverinfo"] = "skip"
    return [*traces, line]


def _points(points: Sequence[Point], chart: Chart, axis: str) -> dict:
    runs = {point.run for point in points}
    return {
        "x": numbers([point.x.get(axis, np.nan) for point in points]),
        "y": numbers([point.y for point in points]),
        "mode": "markers",
        "text": [as_text(point.run) for point in points],
        "customdata": [[p.epoch, float(f"{p.x['minutes']:.5g}")] for p in points],
        "legendgroup": f"group{points[0].number}",
        "showlegend": False,
        "marker": {
            "color": run_colour(points[0].number),
            "size": 5 if len(runs) == 1 else 4,
            "opacity": 1 if len(runs) == 1 else 0.6,
        },
        "hovertemplate": (
            "%{text}<br>epoch %{customdata[0]}, %{customdata[1]:.4~g} min<br>"
            f"%{{y:.4~g}}{chart.unit}<extra></extra>"
        ),
    }


def _mark(mark: Mark, chart: Chart, axis: str) -> dict:
    x, y = mark.at[axis]
    target = mark.target * (100 if chart.unit == " %" else 1)
    return {
        "x": numbers([x]),
        "y": numbers([y]),
        "mode": "markers",
        "meta": as_text(mark.group),
        "legendgroup": f"group{mark.number}",
        "showlegend": False,
        "marker": {
            "symbol": "circle-open",
            "size": 13,
            "color": run_colour(mark.number),
            "line": {"width": 2},
        },
        "hovertemplate": (
            f"%{{meta}}<br>target {target:.4g}{chart.unit} met at {axis}: %{{x:.4~g}}"
            "<extra></extra>"
        ),
    }


def _rug_traces(row: int, rug: Rug, axis: str) -> list[dict]:
    minutes = [one.stop_min - one.start_min for one in rug.evaluations]
    colour = run_colour(rug.number)
    if axis == "minutes":
        shape: dict[str, Any] = {
            "type": "bar",
            "orientation": "h",
            "base": numbers([one.start_min for one in rug.evaluations]),
            "x": numbers(minutes),
            "width": 0.7,
            # The outline keeps an evaluation of seconds visible in a run of hours.
            "marker": {"color": colour, "line": {"color": colour, "width": 1}},
        }
    elif axis in rug.at:
        symbol = {"symbol": "line-ns-open", "size": 9, "color": colour, "line": {"width": 1.5}}
        shape = {"x": numbers(rug.at[axis]), "mode": "markers", "marker": symbol}
    else:
        return []
    return [
        {
            **shape,
            "y": [row] * len(minutes),
            "yaxis": "y2",
            "meta": as_text(rug.run),
            "customdata": [
                [one.epoch, float(f"{60 * took:.3g}")]
                for one, took in zip(rug.evaluations, minutes, strict=True)
            ],
            "legendgroup": f"group{rug.number}",
            "showlegend": False,
            "hovertemplate": (
                "%{meta}<br>evaluation of epoch %{customdata[0]}: %{customdata[1]} s<extra></extra>"
            ),
        }
    ]


def _targets(chart: Chart) -> list[dict[str, Any]]:
    """Returns the targets' lines; the label stands at the middle one of those that share it."""
    return [
        {
            "y": target,
            "label": ", ".join(f"{one:.4g}" for one in close) if at == len(close) // 2 else "",
        }
        for close in labelled_together(chart)
        for at, target in enumerate(close)
    ]
