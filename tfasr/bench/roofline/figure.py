"""The roofline as a figure: ceilings, ridge points, layers, steps and kernels, for a slide."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, NullLocator

from tfasr.bench.roofline.points import ModelPoints, Point, RooflineAnalysis
from tfasr.bench.roofline.tables import precision_name
from tfasr.display.slides import add_legend, label_axes, new_slide
from tfasr.display.style import INK, run_colour

_FONT_PT = 9
# A label's room in points, and how far it may step aside from its point.
_LINE_PT, _CHARACTER_PT = 11.5, 5.2
_SIDES = ((9, -3), (9, 9), (9, -15), (-9, -3), (-9, 9), (-9, -15), (9, 22), (9, -28), (-9, 22))


def roofline_figure(analysis: RooflineAnalysis) -> Figure:
    """Returns operations per second over operations per byte, both logarithmic."""
    figure, (axes,) = new_slide(panels=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    # A model that does not tell its operations and bytes has no place in the figure.
    models = [model for model in analysis.models if math.isfinite(model.step.intensity)]
    left, right = _limits(analysis, models, axes)
    handles, names = _roofs(axes, analysis, left, right)
    for number, model in enumerate(models):
        _scatter(axes, [model.step], number, "s")
        handles.append(_scatter(axes, model.modules, number, "oD"[number % 2]))
        names.append(f"{model.name}: modules, {'■□'[number % 2]} step")
    _kernel_marks(axes, models, handles, names)
    label_axes(axes, x="operations per byte moved", y="GFLOP/s")
    add_legend(figure, handles, names, columns=4)
    figure.canvas.draw()  # labels are placed in the final axes
    _label(axes, models)
    return figure


def _limits(
    analysis: RooflineAnalysis, models: Sequence[ModelPoints], axes: Axes
) -> tuple[float, float]:
    points = [point for model in models for point in [*model.modules, model.step]]
    points += [p for model in models for p in (model.most_used, model.average) if p]
    ridge = analysis.peak / analysis.memory
    intensities = [ridge, *(point.intensity for point in points)]
    left = 10 ** math.floor(math.log10(min(intensities) / 1.2))
    right = 10 ** math.ceil(math.log10(3 * max(intensities)))
    top = max(analysis.highest["flops_per_s"].values())
    bottom = min([point.flops_per_s for point in points] + [analysis.attainable(left)])
    axes.set_xlim(left, right)
    axes.set_ylim(bottom / 2e9, 3 * top / 1e9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    return left, right


def _roofs(axes: Axes, analysis: RooflineAnalysis, left: float, right: float):
    """Draws the ceilings of the most threads, and of one thread thinly; returns a legend."""
    handles, names = [], []
    highest = analysis.highest
    slopes = {place: max(moved.values()) for place, moved in highest["bytes_per_s"].items()}
    top = max(highest["flops_per_s"].values())
    for place, bytes_per_s in slopes.items():
        end = min(right, top / bytes_per_s)
        style = {"memory": "-", "L3": "-."}.get(place, ":")
        xs = [left, end]
        (line,) = axes.plot(xs, [bytes_per_s * x / 1e9 for x in xs], style, color=INK, alpha=0.75)
        handles.append(line)
        names.append(f"{place}: {bytes_per_s / 1e9:.3g} GB/s")
    for number, (policy, flops_per_s) in enumerate(highest["flops_per_s"].items()):
        ridge, colour = flops_per_s / slopes["memory"], run_colour(number)
        begin = min(ridge, *(flops_per_s / slope for slope in slopes.values()))
        xs, ys = [max(begin, left), right], [flops_per_s / 1e9] * 2
        (line,) = axes.plot(xs, ys, "-", color=colour, linewidth=2.2)
        ring = {"markersize": 8, "markerfacecolor": "white", "markeredgewidth": 2}
        (mark,) = axes.plot([ridge], [flops_per_s / 1e9], "o", color=colour, **ring)
        handles.append(line)
        names.append(f"{precision_name(policy)}: {flops_per_s / 1e9:.4g} GFLOP/s")
    handles.append(mark)
    names.append("ridge points")
    if len(analysis.ceilings) > 1:
        lowest = analysis.ceilings[0]
        peak = lowest["flops_per_s"][analysis.precision]
        slope = max(lowest["bytes_per_s"]["memory"].values())
        xs = [left, max(left, peak / slope), right]
        ys = [min(peak, slope * x) / 1e9 for x in xs]
        handles += axes.plot(xs, ys, "--", color=INK, alpha=0.45, linewidth=1.2)
        threads = "1 thread" if lowest["threads"] == 1 else f"{lowest['threads']} threads"
        names.append(f"{precision_name(analysis.precision)} and memory, {threads}")
    return handles, names


def _scatter(axes: Axes, points: Sequence[Point], number: int, marker: str):
    colour = run_colour(4 + number)
    (handle,) = axes.plot(
        [point.intensity for point in points],
        [point.flops_per_s / 1e9 for point in points],
        marker,
        color=colour,
        markersize=7 if number == 0 else 6,
        markerfacecolor=colour if number == 0 else "white",
        markeredgewidth=1.6,
        zorder=4,
    )
    return handle


def _kernel_marks(axes: Axes, models: Sequence[ModelPoints], handles: list, names: list) -> None:
    for attribute, marker, name in (
        ("most_used", "^", "most used kernel"),
        ("average", "*", "average kernel"),
    ):
        found = [getattr(model, attribute) for model in models]
        points = [point for point in found if point is not None]
        if points:
            handles += axes.plot(
                [point.intensity for point in points],
                [point.flops_per_s / 1e9 for point in points],
                marker,
                color=run_colour(7),
                markersize=10,
                zorder=5,
            )
            names.append(name)


def _label(axes: Axes, models: Sequence[ModelPoints]) -> None:
    """Writes names beside points, no two over each other and none over another point."""
    to_pt = 72 / axes.figure.dpi
    entries: list[tuple[float, float, str, Point]] = []
    for model in models:
        suffix = "" if model is models[0] else " (small)"
        marks = [point for point in (model.most_used,) if point is not None]
        for point in [*model.modules, model.step, *marks]:
            x, y = axes.transData.transform((point.intensity, point.flops_per_s / 1e9)) * to_pt
            entries.append((x, y, point.name + suffix, point))
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y, _, _ in entries]
    box = [edge * to_pt for edge in axes.get_window_extent().extents]
    for x, y, name, point in _merged(entries):
        width = _CHARACTER_PT * len(name)
        for dx, dy in _SIDES:
            x0 = x + dx if dx > 0 else x + dx - width
            room = (x0, y + dy, x0 + width, y + dy + _LINE_PT)
            inside = box[0] < room[0] and room[2] < box[2] and box[1] < room[1] < box[3]
            if inside and not any(_overlap(room, other) for other in taken):
                taken.append(room)
                _write(axes, point, name, (dx, dy))
                break


def _merged(entries: list[tuple]) -> list[tuple]:
    """Gives recurrent blocks of one model that stand in one place one label, such as "2-5"."""
    kept: list[tuple] = []
    for x, y, name, point in entries:
        near = next(
            (
                index
                for index, other in enumerate(kept)
                if point.name.startswith("recurrent")
                and other[3].name.startswith("recurrent")
                and point.model == other[3].model
                and math.hypot(x - other[0], y - other[1]) < 14
            ),
            None,
        )
        if near is None:
            kept.append((x, y, name, point))
            continue
        first = kept[near]
        begin = first[3].name.split()[-1]
        merged = name.replace(point.name, f"recurrent {begin}–{point.name.split()[-1]}")
        kept[near] = (first[0], first[1], merged, first[3])
    return kept


def _overlap(one: tuple, other: tuple) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _write(axes: Axes, point: Point, name: str, offset: tuple[int, int]) -> None:
    axes.annotate(
        name,
        (point.intensity, point.flops_per_s / 1e9),
        xytext=offset,
        textcoords="offset points",
        ha="left" if offset[0] > 0 else "right",
        va="bottom",
        color=INK,
        fontsize=_FONT_PT,
        zorder=6,
        path_effects=[withStroke(linewidth=3, foreground="white", alpha=0.85)],
        parse_math=False,
    )
