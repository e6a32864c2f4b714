"""The page's bars, brackets and utilisation, as data for its plotting library."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from tfasr.analysis.groups import GroupResult
from tfasr.analysis.names import target_label
from tfasr.analysis.report import Report
from tfasr.analysis.utilisation import UtilisationWindow
from tfasr.display.intervals_look import INTERVAL_LABELS
from tfasr.display.style import DEVICE_COLOURS, INTERVAL_COLOURS, run_colour, shortened
from tfasr.report.figures.brackets_still import (
    Span,
    arrow_place,
    bracket_range,
    bracket_rows,
    crowding,
    row_offsets,
)
from tfasr.report.figures.curves_plot import INK, Plot, as_text, numbers
from tfasr.report.figures.utilisation_still import moment
from tfasr.report.figures.waterfall_still import FASTER, SLOWER, WHOLE, factor_text, waterfall_range
from tfasr.tta.decomposition import FACTORS, Decomposition
from tfasr.tta.intervals import INTERVALS

_ONLY = "minutes"
_ROOM = 0.72


def intervals_plot(report: Report, most: int) -> Plot:
    """Returns one bar a run, made of the minutes of its intervals."""
    runs = report.runs[:most]
    traces = []
    for name in INTERVALS:
        minutes = [run.intervals_s[name] / 60 for run in runs]
        if any(minutes):
            label = INTERVAL_LABELS[name].replace("\n", " ")
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": label,
                    "x": numbers(minutes),
                    "y": list(range(len(runs))),
                    "text": [as_text(run.name) for run in runs],
                    "textposition": "none",
                    "marker": {"color": INTERVAL_COLOURS[name]},
                    "hovertemplate": f"%{{text}}<br>{label}: %{{x:.3~g}} min<extra></extra>",
                }
            )
    rows = _rows([as_text(shortened(run.name, 20)) for run in runs])
    layout = {
        "barmode": "stack",
        "legend": {"traceorder": "normal"},
        "bargap": 0.32,
        "hovermode": "closest",
        "yaxis": rows,
    }
    return _plot(traces, layout, "minutes", 170 + 30 * len(runs))


def waterfall_plot(found: Decomposition) -> Plot:
    """Returns a bar for each factor on an axis of logarithms, under which ratios are written."""
    factors = [*found.factors.values(), found.ratio]
    bases, reached = [], 0.0
    for factor in found.factors.values():
        bases.append(reached)
        reached += math.log(factor)
    bases.append(0.0)
    colours = [SLOWER if factor > 1 else FASTER for factor in found.factors.values()]
    names = [*FACTORS.values(), "together"]
    texts = [factor_text(factor) for factor in factors]
    low, high, ticks = waterfall_range(found)
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": numbers([math.log(factor) for factor in factors]),
        "base": numbers(bases),
        "y": list(range(len(names))),
        "text": texts,
        "customdata": names,
        "textposition": "none",
        "marker": {"color": [*colours, WHOLE]},
        "hovertemplate": "%{customdata}: %{text}<extra></extra>",
        "showlegend": False,
    }
    ends = [base + max(0.0, math.log(factor)) for base, factor in zip(bases, factors, strict=True)]
    layout = {
        "bargap": 0.38,
        "hovermode": "closest",
        "yaxis": _rows(["<br>".join(textwrap.wrap(name, 20)) for name in names]),
        "xaxis": {
            "range": [math.log(low), math.log(high)],
            "tickvals": numbers([math.log(tick) for tick in ticks]),
            "ticktext": [f"{tick:g}" for tick in ticks],
            "tickangle": 0,
        },
    }
    return _plot([trace, _texts_beside(ends, texts)], layout, "times as long", 400)


def _texts_beside(ends: Sequence[float], texts: Sequence[str]) -> dict[str, Any]:
    """Returns texts on the right of bars; the library has those of negative ones on the left."""
    return {
        "x": numbers(ends),
        "y": list(range(len(texts))),
        "text": [f" {text}" for text in texts],
        "mode": "text",
        "textposition": "middle right",
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def bracket_plot(report: Report, results: Sequence[Sequence[GroupResult]], *, clock: str) -> Plot:
    """Returns a row for each target and group, and in it each run's bracket."""
    rows = bracket_rows(results)
    begin, end, log = bracket_range(rows)
    traces: list[dict] = []
    for row, (number, result) in enumerate(rows):
        names = [report.runs[run].name for run in result.members]
        traces += _bracket_traces(row, number, result, names, (begin, end))
    labels = [
        f"{target_label(*one.target)}<br>{as_text(shortened(one.group, 20))}" for _, one in rows
    ]
    layout = {
        "hovermode": "closest",
        "yaxis": {**_rows(labels), "range": [len(rows) - 0.4, -0.6]},
        "xaxis": {
            "type": "log" if log else "linear",
            "range": [math.log10(begin), math.log10(end)] if log else [begin, end],
        },
    }
    return _plot(traces, layout, clock, 110 + 46 * len(rows))


def _bracket_traces(
    row: int, number: int, result: GroupResult, names: Sequence[str], span: Span
) -> list[dict]:
    line: dict[str, Any] = {"x": [], "y": [], "mode": "lines", "hoverinfo": "skip"}
    never = {**line, "x": [], "y": []}
    dots: dict[str, Any] = {"x": [], "y": [], "text": [], "mode": "markers"}
    offsets = row_offsets(len(result.brackets), _ROOM)
    for one, offset, run in zip(result.brackets, offsets, names, strict=True):
        y, low = row + offset, max(one.last_miss_s / 60, span[0])
        high = arrow_place(span) if one.censored else one.first_hit_s / 60
        into = never if one.censored else line
        into["x"] += [*numbers([low, high]), None]
        into["y"] += [*numbers([y, y]), None]
        inside = one.interpolated_s
        at = high if one.censored or inside is None else inside / 60
        said = f"after {low:.4g} min: never" if one.censored else f"{low:.4g} to {high:.4g} min"
        said += "" if inside is None else f", interpolated {inside / 60:.4g}"
        dots["x"] += numbers([at])
        dots["y"] += numbers([y])
        dots["text"].append(f"{as_text(run)}<br>{said}")
        dots.setdefault("symbols", []).append("triangle-right" if one.censored else "circle")
    colour, common = run_colour(number), {"showlegend": False, "legendgroup": f"group{number}"}
    scale = crowding(len(result.brackets))
    dots["marker"] = {"color": colour, "size": 7 * scale, "symbol": dots.pop("symbols")}
    dots["hovertemplate"] = "%{text}<extra></extra>"
    traces = [
        {**line, **common, "line": {"color": colour, "width": 3 * scale}},
        {**never, **common, "line": {"color": colour, "width": 1.5 * scale, "dash": "dot"}},
        {**dots, **common},
        *_median_traces(row, result),
    ]
    return [trace for trace in traces if trace["x"]]


def _median_traces(row: int, result: GroupResult) -> list[dict]:
    median = result.statistics.median_s
    if median is None or len(result.brackets) == 1:
        return []
    return [
        {
            "x": numbers([median / 60] * 2),
            "y": [row - 0.44, row + 0.44],
            "mode": "lines",
            "line": {"color": INK, "width": 2},
            "hovertemplate": "median: %{x:.4~g} min<extra></extra>",
            "showlegend": False,
        }
    ]


def utilisation_plot(windows: Sequence[UtilisationWindow]) -> Plot:
    """Returns for each window the devices' utilisation above the phases of the run."""
    traces: list[dict] = []
    layout: dict[str, Any] = {"hovermode": "closest", "annotations": []}
    named: set[str] = set()
    height = 1 / len(windows)
    for number, window in enumerate(windows):
        bottom = 1 - (number + 1) * height
        above, below = 2 * number + 1, 2 * number + 2
        top = bottom + 0.86 * height
        layout[_axis(above)] = {
            "domain": [bottom + 0.24 * height, top],
            "range": [0, 104],
            "tickvals": [0, 50, 100],
            "title": {"text": "busy, %"},
        }
        layout[_axis(below)] = {
            "domain": [bottom + 0.06 * height, bottom + 0.2 * height],
            "range": [0, 1],
            "tickvals": [0.5],
            "ticktext": ["doing"],
            "showgrid": False,
            "fixedrange": True,
        }
        title = f"{as_text(shortened(window.run, 40))}, from {moment(window.start_s)}"
        layout["annotations"].append(_title(title, top))
        new = _device_traces(window, above) + _phase_traces(window, below)
        for trace in new:
            trace["showlegend"] = trace["name"] not in named
            named.add(trace["name"])
        traces += new
    longest = max(window.length_s for window in windows)
    layout["xaxis"] = {"range": [0, longest], "anchor": f"y{2 * len(windows)}"}
    return _plot(traces, layout, "seconds into the window", 130 + 210 * len(windows))


def _device_traces(window: UtilisationWindow, axis: int) -> list[dict]:
    return [
        {
            "x": numbers(seconds),
            "y": numbers(percent),
            "yaxis": f"y{axis}",
            "mode": "lines",
            "name": device,
            "legendgroup": device,
            "line": {"color": INK if device == "CPU" else DEVICE_COLOURS["GPU"], "width": 2},
            "hovertemplate": f"{device}: %{{y:.3~g}} % at %{{x:.3~g}} s<extra></extra>",
        }
        for device, (seconds, percent) in window.devices.items()
    ]


def _phase_traces(window: UtilisationWindow, axis: int) -> list[dict]:
    traces = []
    for name, share in window.phases.items():
        label = INTERVAL_LABELS[name].replace("\n", " ")
        traces.append(
            {
                "x": numbers(window.edges_s),
                "y": numbers([*share, share[-1]]),
                "yaxis": f"y{axis}",
                "stackgroup": f"phases{axis}",
                "mode": "lines",
                "line": {"shape": "hv", "width": 0, "color": INTERVAL_COLOURS[name]},
                "fillcolor": INTERVAL_COLOURS[name],
                "name": label,
                "legendgroup": label,
                "hovertemplate": f"{label}: %{{y:.0%}} of 0.1 s at %{{x:.3~g}} s<extra></extra>",
            }
        )
    return traces


def _title(text: str, y: float) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": y, "xanchor": "left"}
    return {**place, "yanchor": "bottom", "text": text, "showarrow": False, "font": {"size": 12}}


def _axis(number: int) -> str:
    return "yaxis" if number == 1 else f"yaxis{number}"


def _rows(labels: Sequence[str]) -> dict[str, Any]:
    """Returns a vertical axis with the first row at the top; rows may have equal labels."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": list(labels),
        "range": [len(labels) - 0.4, -0.6],
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def _plot(traces: list[dict], layout: dict[str, Any], x: str, height: int) -> Plot:
    named = {trace["name"] for trace in traces if "name" in trace}
    return {
        "views": {_ONLY: traces},
        "x": {_ONLY: x},
        "layout": layout,
        "height": height,
        "narrow": 9 * len(named),
    }
