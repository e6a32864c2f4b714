"""The roofline as figures: ceilings with layers, steps and kernels below them, and ERT's sweep."""

import math
from collections.abc import Callable, Sequence

from tfasr.bench.roofline.labels import Ends, Placed, place_labels
from tfasr.bench.roofline.points import ModelPoints, Point, RooflineAnalysis
from tfasr.display.chart import Axis, Chart, Labels, Line, Mark, Panel, Points
from tfasr.display.style import INK, run_colour
from tfasr.precision import PRECISIONS

_WIDTH_PX, _HEIGHT_PX = 860, 470
_FONT_PX = 11
_SLOPE_DASHES = {"memory": "solid", "L3": "dash-dot"}


def roofline_charts(analysis: RooflineAnalysis) -> dict[str, Callable[[], Chart]]:
    """Returns what makes each figure, by its name."""
    charts = {"roofline": lambda: roofline_chart(analysis)}
    if analysis.highest.sweep:
        charts["roofline_sweep"] = lambda: sweep_chart(analysis)
    return charts


def roofline_chart(analysis: RooflineAnalysis) -> Chart:
    """Returns operations per second over operations per byte, both logarithmic."""
    # A model that does not tell its operations and bytes has no place in the figure.
    models = [model for model in analysis.models if math.isfinite(model.step.intensity)]
    points = [point for model in models for point in [*model.modules, model.step]]
    points += [p for model in models for p in (model.most_used, model.average) if p]
    x, y = _limits(analysis, [(point.intensity, point.flops_per_s) for point in points])
    marks = [*_roofs(analysis, x), *_specified(analysis, x, [analysis.precision])]
    marks += [*_one_thread(analysis, x), _ridges(analysis)]
    for number, model in enumerate(models):
        marks += _model_marks(model, number)
    marks += _kernel_marks(models)
    for placed in place_labels(_named(models), x, y, (_WIDTH_PX, _HEIGHT_PX), _FONT_PX):
        marks.append(_label(placed))
    caption = "The roofline of this machine, and what of it layers, steps and kernels reach"
    return _chart("roofline", caption, marks, x, y)


def sweep_chart(analysis: RooflineAnalysis) -> Chart:
    """Returns ERT's sweep of the intensity below the measured and the specified ceilings."""
    swept = analysis.highest.sweep
    x, y = _limits(analysis, [(point.flops_per_byte, point.flops_per_s) for point in swept])
    precisions = list(dict.fromkeys(point.precision for point in swept))
    places = list(dict.fromkeys(point.place for point in swept))
    marks = [*_roofs(analysis, x, precisions), *_specified(analysis, x, precisions)]
    for precision, place in dict.fromkeys((p.precision, p.place) for p in swept):
        own = [point for point in swept if (point.precision, point.place) == (precision, place)]
        at = {
            "x": [point.flops_per_byte for point in own],
            "y": [point.flops_per_s / 1e9 for point in own],
        }
        colour = run_colour(4 + 2 * precisions.index(precision) + places.index(place))
        operations = f"{own[0].flops_per_element} to {own[-1].flops_per_element}"
        name = f"{PRECISIONS[precision].label} in {place}, {operations} per element"
        marks.append(Line(**at, colour=colour, series=name))
        symbol = "circle" if place == places[0] else "square"
        marks.append(Points(**at, colour=colour, symbol=symbol))
    caption = "Operations per second over operations for each element: ERT's sweep"
    return _chart("roofline_sweep", caption, marks, x, y)


def _chart(name: str, caption: str, marks: Sequence[Mark], x: Ends, y: Ends) -> Chart:
    across = Axis("operations per byte moved", log=True, limits=x)
    panel = Panel(marks, across, Axis("GFLOP/s", log=True, limits=y), height=_HEIGHT_PX)
    return Chart(name, caption, [panel], width=_WIDTH_PX, wide=True)


def _limits(analysis: RooflineAnalysis, places: Sequence[tuple[float, float]]) -> tuple[Ends, Ends]:
    """Returns the ends of both axes around intensities and operations per second."""
    intensities = [analysis.peak / analysis.memory, *(x for x, _ in places)]
    left = 10 ** math.floor(math.log10(min(intensities) / 1.2))
    right = 10 ** math.ceil(math.log10(3 * max(intensities)))
    rates = [rate for _, rate in places]
    ceilings = [analysis.highest.flops_per_s, analysis.specified.flops_per_s]
    top = max([*rates, *(rate for own in ceilings for rate in own.values())])
    bottom = min([*rates, analysis.attainable(left)])
    return (left, right), (bottom / 2e9, 2 * top / 1e9)


def _roofs(
    analysis: RooflineAnalysis, x: Ends, precisions: Sequence[str] | None = None
) -> list[Mark]:
    """Returns the measured ceilings of the most threads, of all precisions or of some."""
    left, right = x
    highest, marks = analysis.highest, []
    slopes = {place: max(moved.values()) for place, moved in highest.bytes_per_s.items()}
    peaks = {
        name: rate
        for name, rate in highest.flops_per_s.items()
        if precisions is None or name in precisions
    }
    top = max(peaks.values(), default=analysis.peak)
    for place, bytes_per_s in slopes.items():
        xs = [left, min(right, top / bytes_per_s)]
        ys = [bytes_per_s * at / 1e9 for at in xs]
        dash, name = _SLOPE_DASHES.get(place, "dotted"), f"{place}: {bytes_per_s / 1e9:.3g} GB/s"
        marks.append(Line(x=xs, y=ys, dash=dash, width=1.6, series=name))
    for policy, flops_per_s in peaks.items():
        begin = max(left, min(flops_per_s / slope for slope in slopes.values()))
        name = f"{PRECISIONS[policy].label}: {flops_per_s / 1e9:.4g} GFLOP/s"
        ys = [flops_per_s / 1e9] * 2
        marks.append(Line(x=[begin, right], y=ys, colour=_colour(policy), series=name))
    return marks


def _colour(policy: str) -> str:
    return run_colour(list(PRECISIONS).index(policy))


def _specified(analysis: RooflineAnalysis, x: Ends, precisions: Sequence[str]) -> list[Mark]:
    """Returns the ceilings of the specification, as far as it is known."""
    (left, right), specified, marks = x, analysis.specified, []
    rates = [(name, specified.flops_per_s.get(name)) for name in precisions]
    top = max((rate for _, rate in rates if rate), default=analysis.peak)
    for policy, rate in rates:
        if rate is not None:
            # Towards the right, where nothing else is.
            name = f"specified, {PRECISIONS[policy].label}: {rate / 1e9:.4g} GFLOP/s"
            xs, ys = [right / 30, right], [rate / 1e9] * 2
            look = {"dash": "dashed", "width": 1.6, "colour": _colour(policy)}
            marks.append(Line(x=xs, y=ys, **look, series=name))
    if specified.bytes_per_s:
        xs = [left, min(right, top / specified.bytes_per_s)]
        ys = [specified.bytes_per_s * at / 1e9 for at in xs]
        name = f"specified, memory: {specified.bytes_per_s / 1e9:.3g} GB/s"
        marks.append(Line(x=xs, y=ys, dash="dashed", width=1.2, series=name))
    return marks


def _one_thread(analysis: RooflineAnalysis, x: Ends) -> list[Mark]:
    """Returns the roof of the fewest threads, where there are several numbers of them."""
    if len(analysis.ceilings) == 1:
        return []
    (left, right), lowest = x, analysis.ceilings[0]
    peak, slope = lowest.flops_per_s[analysis.precision], lowest.memory
    xs = [left, max(left, peak / slope), right]
    threads = "1 thread" if lowest.threads == 1 else f"{lowest.threads} threads"
    name = f"{PRECISIONS[analysis.precision].label} and memory, {threads}"
    ys = [min(peak, slope * at) / 1e9 for at in xs]
    return [Line(x=xs, y=ys, dash="dotted", width=1.2, series=name)]


def _ridges(analysis: RooflineAnalysis) -> Mark:
    rates = list(analysis.highest.flops_per_s.values())
    xs, ys = [rate / analysis.memory for rate in rates], [rate / 1e9 for rate in rates]
    return Points(x=xs, y=ys, symbol="ring", size=8, series="ridge points")


def _model_marks(model: ModelPoints, number: int) -> list[Mark]:
    colour = run_colour(4 + number)
    return [
        _points(model.modules, colour, "circle" if number == 0 else "diamond", 7,
                f"{model.name}: modules"),
        _points([model.step], colour, "square", 9, f"{model.name}: step"),
    ]  # fmt: skip


def _kernel_marks(models: Sequence[ModelPoints]) -> list[Mark]:
    marks: list[Mark] = []
    for attribute, symbol, name, size in (
        ("most_used", "triangle", "most used kernel", 10),
        ("average", "star", "average kernel", 20),
    ):
        points = [getattr(model, attribute) for model in models]
        points = [point for point in points if point is not None]
        if points:
            marks.append(_points(points, run_colour(7), symbol, size, name))
    return marks


def _points(points: Sequence[Point], colour: str, symbol: str, size: float, series: str) -> Points:
    return Points(
        x=[point.intensity for point in points],
        y=[point.flops_per_s / 1e9 for point in points],
        symbol=symbol,
        size=size,
        colour=colour,
        series=series,
        texts=[f"{point.name}: {point.flops_per_s / 1e9:.3g} GFLOP/s" for point in points],
    )


def _named(models: Sequence[ModelPoints]) -> list[tuple[str, str, float, float]]:
    """Returns group, name, intensity and GFLOP/s of all that is to be named."""
    named = []
    for model in models:
        suffix = "" if model is models[0] else " (small)"
        marks = [point for point in (model.most_used,) if point is not None]
        for point in [*model.modules, model.step, *marks]:
            named.append((suffix, point.name, point.intensity, point.flops_per_s / 1e9))
    return named


def _label(placed: Placed) -> Labels:
    return Labels(
        x=[placed.x], y=[placed.y], words=[placed.words], align=placed.align, size=_FONT_PX,
        dy=placed.dy, colour=INK,
    )  # fmt: skip
