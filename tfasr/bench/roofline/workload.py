"""A machine's performance ceilings, and how close a model's layers, steps and kernels get.

The roofline model says that a computation takes as long as its arithmetic at the peak
rate, or as moving its bytes at the memory's bandwidth, whichever is longer.
`tfasr.bench.roofline.measure` measures both ceilings and the points below them; here are
the tables and figures of its `RooflineAnalysis`.

Source: S. Williams, A. Waterman, D. Patterson, Roofline, Communications of the ACM 52
(2009).
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from tfasr.alphabet import Alphabet
from tfasr.bench.backends import FRAMEWORKS, spotter_kernels
from tfasr.bench.devices import installed_backends, num_gpus, powers_up_to
from tfasr.bench.modules import WARMUP_CALLS
from tfasr.bench.roofline import measure
from tfasr.bench.roofline.measure import (
    ModelPoints,
    Point,
    RooflineAnalysis,
    RooflineConfig,
)
from tfasr.bench.steppers import Kernels
from tfasr.bench.workload import (
    Context,
    Result,
    Workload,
    columns_of_tuples,
    require_tensorflow,
)
from tfasr.data.features import FeatureConfig
from tfasr.display import chart
from tfasr.display.chart import (
    Axis,
    Chart,
    Labels,
    Line,
    Panel,
    Points,
    curve,
    run_colour,
)
from tfasr.display.table import (
    UNKNOWN,
    Column,
    Table,
    fixed,
    milliseconds,
    plural,
    table_of,
)
from tfasr.kit.config import PRECISIONS
from tfasr.kit.process import call, usable_cores
from tfasr.models.costs import unknown_costs
from tfasr.models.model import ModelConfig
from tfasr.training.memory import FRAMES_PER_LABEL

# Kernels in a table; the others share a line.
_MOST_KERNELS = 12
# Pixels between a point and its label.
_AWAY = 5
# Layers that share a label if they are close.
_BLOCK = "recurrent"
# Left, top, right and bottom in pixels.
Box = tuple[float, float, float, float]
# Both ends of an axis.
Ends = tuple[float, float]


def place_labels(
    named: Sequence[tuple[str, str, float, float]],
    x: Ends,
    y: Ends,
    size: Ends,
    font_px: float,
) -> list[Labels]:
    """Places names left or right of their points without overlaps, or leaves them out.

    Args:
        named: what is written after the name, the name, and the point.
        x: ends of the horizontal axis, which is logarithmic.
        y: ends of the vertical one.
        size: of the panel in pixels.
        font_px: height of the letters.
    """

    def pixel(value: float, ends: Ends, length: float) -> float:
        return length * math.log(value / ends[0]) / math.log(ends[1] / ends[0])

    entries = [
        (
            pixel(across, x, size[0]),
            size[1] - pixel(up, y, size[1]),
            group,
            name,
            across,
            up,
        )
        for group, name, across, up in named
    ]
    taken: list[Box] = [(px - 5, py - 5, px + 5, py + 5) for px, py, *_ in entries]
    placed = []

    for px, py, words, across, up in _merged(entries):
        # An estimate for sans-serif letters.
        width = 0.58 * font_px * len(words)
        half = 1.3 * font_px / 2
        # Close to the point first.
        places = product((0, -13, 13, -26, 26), ("left", "right"))

        for dy, align in places:
            begin = px + _AWAY if align == "left" else px - _AWAY - width
            box = (begin, py + dy - half, begin + width, py + dy + half)
            inside = box[0] > 0 and box[2] < size[0] and box[1] > 0 and box[3] < size[1]
            apart = (
                box[2] <= left or right <= box[0] or box[3] <= top or bottom <= box[1]
                for left, top, right, bottom in taken
            )

            if inside and all(apart):
                taken.append(box)
                placed.append(
                    Labels(
                        x=[across],
                        y=[up],
                        words=[words],
                        align=align,
                        dy=dy,
                        size=font_px,
                    )
                )
                break

    return placed


def _merged(entries: list[tuple]) -> list[tuple[float, float, str, float, float]]:
    """Merges the labels of recurrent layers that lie on each other into one, with a range."""
    labels: list[list] = []
    for px, py, group, name, across, up in entries:
        near = (
            label
            for label in labels
            if name.startswith(_BLOCK)
            and label[3].startswith(_BLOCK)
            and group == label[2]
            if math.hypot(px - label[0], py - label[1]) < 16
        )

        if (first := next(near, None)) is None:
            labels.append([px, py, group, name, across, up])
        else:
            begin = first[3].split()[-1].partition("–")[0]
            first[3] = f"{_BLOCK} {begin}–{name.split()[-1]}"

    return [
        (px, py, name + group, across, up) for px, py, group, name, across, up in labels
    ]


# Notes below tables of kernels.
_OF_MODEL = [
    "From TensorFlow's profiler, which slows a step. Seconds of parallel kernels are added up. On "
    "a CPU, TfasrRecurrence is the LSTM's compiled loop. Average kernel: all seconds divided by "
    "the number of kernels."
]
_OF_SPOTTER = [
    "A training step of the keyword spotter (8504 parameters), from the framework's profiler, with "
    "the slowest kernel first. GFLOP/s is known for convolutions and matrix products, "
    "whose operations follow from their shapes."
]


def roofline_tables(analysis: RooflineAnalysis) -> list[Table]:
    """Returns all tables, ceilings first."""
    tables = [_ceilings(analysis)]
    if analysis.highest.sweep:
        tables.append(_sweep(analysis))
    if analysis.highest.working_sets:
        tables.append(_working_sets(analysis))

    for model in analysis.models:
        tables.append(_point_table(analysis, model))
        tables.append(_kernel_table(model.name, model.kernels, _OF_MODEL))

    for framework, kernels in analysis.spotter.items():
        name = f"keyword spotter, batch {measure.SPOTTER_BATCH}, {framework}"
        tables.append(_kernel_table(name, kernels, _OF_SPOTTER))

    return tables


def _ceilings(analysis: RooflineAnalysis) -> Table:
    """Returns a line per number of threads, then data sheets and other machines."""
    precisions = list(analysis.highest.flops_per_s)
    specified = analysis.specified
    moves = [
        (p, kind) for p in analysis.highest.bytes_per_s for kind in ("copy", "triad")
    ]
    columns = [
        "threads",
        *(f"{PRECISIONS[name].label}\nGFLOP/s" for name in precisions),
    ]
    columns += [f"{place} {kind}\nGB/s" for place, kind in moves]
    rows = [
        (
            ceilings.label,
            *(ceilings.flops_per_s[name] for name in precisions),
            *(ceilings.bytes_per_s[place][kind] for place, kind in moves),
        )
        for ceilings in analysis.ceilings
    ]
    moved = [specified.bytes_per_s if place == "memory" else None for place, _ in moves]
    rows.append(("specified", *map(specified.flops_per_s.get, precisions), *moved))

    for name, precision, rate in analysis.references:
        rows.append(
            (name, *map({precision: rate}.get, precisions), *[None] * len(moves))
        )

    ridge = analysis.peak / analysis.highest.memory
    policy = measure.PRECISION
    notes = [
        "Each value is from the fastest repetition, each row from a separate process. GFLOP/s: "
        "large square matmuls. GB/s: arrays far larger than the last cache (memory), or within a "
        "cache.",
        f"Specified: {specified.source}.",
        f"Ridge point of {PRECISIONS[policy].label} and memory: {ridge:.1f} operations per byte.",
    ]

    return table_of(
        "Ceilings of this machine",
        columns_of_tuples(columns, _giga),
        rows,
        notes,
    )


def _sweep(analysis: RooflineAnalysis) -> Table:
    """Returns a line per precision and place, with a column per number of operations."""
    operations = list(
        dict.fromkeys(p.flops_per_element for p in analysis.highest.sweep)
    )
    rows = []

    for ceilings in analysis.ceilings:
        for kind in dict.fromkeys((p.precision, p.place) for p in ceilings.sweep):
            points = [p for p in ceilings.sweep if (p.precision, p.place) == kind]
            label = f"{PRECISIONS[kind[0]].label}, {kind[1]}"
            fastest = max(point.bytes_per_s for point in points)
            rows.append(
                (label, ceilings.label, *(p.flops_per_s for p in points), fastest)
            )

    columns = ["precision, array in", "threads", *map(str, operations), "most\nGB/s"]
    note = (
        "The sweep of the Empirical Roofline Toolkit (ERT): an array is read, processed and "
        "written in place; the fastest call counts. Columns: operations for each element. "
        f"Intensity: operations divided by {2 * 4} bytes for float32, {2 * 8} for float64."
    )
    title = "GFLOP/s by operations per element"

    return table_of(title, columns_of_tuples(columns, _giga), rows, [note])


def _working_sets(analysis: RooflineAnalysis) -> Table:
    """Returns a column per size of the array."""
    sizes = [working_set.size_bytes for working_set in analysis.highest.working_sets]
    rows = [
        (c.label, label, *(choose(w.bytes_per_s) for w in c.working_sets))
        for c in analysis.ceilings
        for label, choose in (("fastest", max), ("slowest", min))
    ]
    count = len(analysis.highest.working_sets[0].bytes_per_s)
    columns = [
        "threads",
        f"of {count}\nexperiments",
        *(f"{n / 1024:,g}\nKiB" for n in sizes),
    ]
    note = (
        "ERT's sweep of the working set: a float32 array, shared by all threads, is read, "
        "multiplied and written in place. For a few KiB, the loop's own overhead dominates."
    )

    return table_of(
        "GB/s over the working set",
        columns_of_tuples(columns, _giga),
        rows,
        [note],
    )


def _point_table(analysis: RooflineAnalysis, model: ModelPoints) -> Table:
    """Returns a line per module of a model: its work, seconds, and share of its roof."""

    def known(value: Callable[[Point], Any]) -> Callable:
        return lambda row: None if math.isnan(row[1].intensity) else value(row[1])

    def roof(point: Point) -> float:
        return analysis.attainable(point.intensity)

    def limit(point: Point) -> str:
        return "arithmetic" if roof(point) >= analysis.peak else "memory"

    columns = [
        Column("part", "", lambda row: row[0]),
        Column("GFLOP", "", known(lambda point: point.flops), _giga),
        Column("MB moved", "", known(lambda p: p.moved_bytes / 1e6), "{:.4g}".format),
        Column(
            "FLOP per\nbyte",
            "",
            known(lambda point: point.intensity),
            "{:.3g}".format,
        ),
        Column("ms", "", lambda row: row[1].seconds, milliseconds),
        Column("GFLOP/s", "", known(lambda point: point.flops_per_s), _giga),
        Column(
            "% of\nits roof",
            "",
            known(lambda p: 100 * p.flops_per_s / roof(p)),
            fixed(0),
        ),
        Column(
            "% of\npeak",
            "",
            known(lambda p: 100 * p.flops_per_s / analysis.peak),
            fixed(1),
        ),
        Column("limit", "", known(limit)),
    ]
    rows = [(point.name, point) for point in [*model.modules, model.step]]
    marked = [point for point in (model.most_used, model.average) if point is not None]
    rows += zip(("most used kernel", "average kernel"), marked, strict=False)
    config = analysis.config
    notes = [
        f"One training step of {config.batch} utterances of {config.frames} frames, "
        f"{PRECISIONS[measure.PRECISION].label}, recurrence by "
        f"{', '.join(model.lstm_kernels) or UNKNOWN}. Modules run alone, forward and backward. "
        "Operations and bytes are counted, not measured, as if each use of a tensor read and wrote "
        "it once; so a part whose data stays in a cache can exceed its roof. "
        f"{UNKNOWN}: the model doesn't count them."
    ]

    if marked:
        notes.append(
            f"Most used kernel: {marked[0].name} and all others of its kind. Average kernel: the "
            "step's operations divided by the seconds of all kernels, which run in parallel."
        )

    return table_of(f"How close to the roof: {model.name}", columns, rows, notes)


_KERNELS = ["kernel", "kind", "calls\nper step", "ms\nper step", "share\n%", "GFLOP/s"]


def _kernel_table(name: str, kernels: Kernels, notes: list[str]) -> Table:
    """Returns the slowest kernels of a step; the others in one line."""

    def times(calls: float, seconds: float) -> tuple[str, ...]:
        share = f"{100 * seconds / kernels.seconds:.1f}"
        return (fixed(0)(calls), milliseconds(seconds), share)

    rows: list[tuple] = []
    for kernel in kernels.kernels[:_MOST_KERNELS]:
        short = kernel.name if len(kernel.name) <= 60 else kernel.name[:59] + "…"
        rate = kernel.flops and kernel.flops / kernel.seconds
        rows.append((short, kernel.kind, *times(kernel.calls, kernel.seconds), rate))

    if others := kernels.kernels[_MOST_KERNELS:]:
        calls, seconds = (
            sum(getattr(k, n) for k in others) for n in ("calls", "seconds")
        )
        rows.append((f"{len(others)} others", "", *times(calls, seconds), None))

    if kernels.kernels:
        mean = milliseconds(kernels.seconds / len(kernels.kernels))
        rows.append(("average kernel", "", None, mean, None, None))
    else:
        rows = [(None,) * len(_KERNELS)]
        notes = [f"{UNKNOWN}: {kernels.reason}."]

    title = f"Kernels by time: {name}"

    return table_of(title, columns_of_tuples(_KERNELS, _giga), rows, notes)


def _giga(value: float) -> str:
    """Returns a number in billions."""
    return f"{value / 1e9:.4g}"


# Of a chart, and of the letters of its labels.
_WIDTH_PX = 860
_HEIGHT_PX = 470
_FONT_PX = 11
# Other caches are dotted.
_SLOPE_DASHES = {"memory": "solid", "L3": "dash-dot"}


def roofline_charts(analysis: RooflineAnalysis) -> dict[str, Callable[[], Chart]]:
    """Returns the charts by file name, each drawn when it is called."""
    charts = {"roofline": lambda: roofline_chart(analysis)}
    if analysis.highest.sweep:
        charts["roofline_sweep"] = lambda: sweep_chart(analysis)
    if analysis.highest.working_sets:
        charts["roofline_working_sets"] = lambda: working_set_chart(analysis)

    return charts


def roofline_chart(analysis: RooflineAnalysis) -> Chart:
    """Draws the roofs, and the points of models and keyword spotters below them."""
    # A model that doesn't count its operations and bytes can't be drawn.
    models = [model for model in analysis.models if math.isfinite(model.step.intensity)]
    named: list[tuple[str, Point]] = []  # with what is written after the point's name
    # points, colour, symbol, size in pixels, name of the series
    drawn: list[tuple] = []

    for number, model in enumerate(models):
        colour = run_colour(4 + number)
        symbol = "circle" if number == 0 else "diamond"
        drawn.append((model.modules, colour, symbol, 7, f"{model.name}: modules"))
        drawn.append(([model.step], colour, "square", 9, f"{model.name}: step"))
        labelled = [*model.modules, model.step, *filter(None, [model.most_used])]
        named += [(" (small)" if number else "", point) for point in labelled]

    spotters = analysis.spotter_points()
    most_used = [
        *(model.most_used for model in models),
        *(of[0] for of in spotters.values()),
    ]
    average = [
        *(model.average for model in models),
        *(of[-1] for of in spotters.values()),
    ]
    drawn.append(
        ([*filter(None, most_used)], run_colour(7), "triangle", 10, "most used kernel")
    )
    drawn.append(
        ([*filter(None, average)], run_colour(7), "star", 20, "average kernel")
    )

    for number, (name, of_framework) in enumerate(spotters.items(), len(models)):
        drawn.append(
            (of_framework[:-1], run_colour(4 + number), "circle", 7, f"{name}: kernels")
        )
        named += [
            (f" ({name.removeprefix('keyword ')})", point)
            for point in of_framework[:-1]
        ]

    points = [(point.intensity, point.flops_per_s) for of, *_ in drawn for point in of]
    x, y = _limits(analysis, points)
    marks = [*_roofs(analysis, x), *_stated(analysis, x, [measure.PRECISION])]
    marks += _one_thread(analysis, x)
    rates = np.array(list(analysis.highest.flops_per_s.values()))
    # Where memory's slope meets each rate.
    marks.append(
        Points(
            x=rates / analysis.highest.memory,
            y=rates / 1e9,
            symbol="ring",
            size=8,
            series="ridge points",
        )
    )
    marks += [_point_marks(*look) for look in drawn if look[0]]
    places = [
        (after, point.name, point.intensity, point.gflops) for after, point in named
    ]
    marks += place_labels(places, x, y, (_WIDTH_PX, _HEIGHT_PX), _FONT_PX)
    caption = (
        "The roofline of this machine, with the rates of layers, steps and kernels"
    )

    return _chart("roofline", caption, marks, x, y)


def sweep_chart(analysis: RooflineAnalysis) -> Chart:
    """Draws the intensity sweep below the roofs."""
    swept = analysis.highest.sweep
    x, y = _limits(
        analysis, [(point.flops_per_byte, point.flops_per_s) for point in swept]
    )
    precisions = list(dict.fromkeys(point.precision for point in swept))
    places = list(dict.fromkeys(point.place for point in swept))
    marks = [*_roofs(analysis, x, precisions), *_stated(analysis, x, precisions)]

    for precision, place in dict.fromkeys((p.precision, p.place) for p in swept):
        points = [
            point
            for point in swept
            if (point.precision, point.place) == (precision, place)
        ]
        xs = [point.flops_per_byte for point in points]
        ys = [point.flops_per_s / 1e9 for point in points]
        colour = run_colour(4 + 2 * precisions.index(precision) + places.index(place))
        operations = f"{points[0].flops_per_element} to {points[-1].flops_per_element}"
        name = f"{PRECISIONS[precision].label} in {place}, {operations} per element"
        marks += curve(
            xs,
            ys,
            colour,
            name,
            symbol="circle" if place == places[0] else "square",
        )

    caption = "Operations per second over operations per element: ERT's sweep"

    return _chart("roofline_sweep", caption, marks, x, y)


def working_set_chart(analysis: RooflineAnalysis) -> Chart:
    """Draws the bandwidth over the size of the array."""
    marks: list = []
    for number, ceilings in enumerate(analysis.ceilings):
        colour = run_colour(number)
        sets = ceilings.working_sets
        xs = [working_set.size_bytes / 1024 for working_set in sets]
        y0, y1 = ([choose(w.bytes_per_s) / 1e9 for w in sets] for choose in (min, max))
        marks.append(
            chart.Segments(x0=xs, x1=xs, y0=y0, y1=y1, colour=colour, width=1.4)
        )
        name = "GPU" if ceilings.device == "GPU" else f"threads: {ceilings.threads}"
        marks += curve(xs, y1, colour, name)

    across = Axis("working set of all threads, KiB", log=True)
    panel = Panel(marks, across, Axis("GB/s", log=True), height=_HEIGHT_PX)
    caption = (
        "Bandwidth over the working set, from the first cache to memory: ERT's sweep"
    )

    return Chart("roofline_working_sets", caption, [panel], width=_WIDTH_PX, wide=True)


def _chart(name: str, caption: str, marks: Sequence, x: Ends, y: Ends) -> Chart:
    """Returns a chart of operations per second over intensity."""
    across = Axis("operations per byte moved", log=True, limits=x)
    panel = Panel(marks, across, Axis("GFLOP/s", log=True, limits=y), height=_HEIGHT_PX)

    return Chart(name, caption, [panel], width=_WIDTH_PX, wide=True)


def _limits(
    analysis: RooflineAnalysis, places: Sequence[tuple[float, float]]
) -> tuple[Ends, Ends]:
    """Returns the ends of both axes, which all roofs and points fit into."""
    intensities = [analysis.peak / analysis.highest.memory, *(x for x, _ in places)]
    lowest_x = 10 ** math.floor(math.log10(min(intensities) / 1.2))
    highest_x = 10 ** math.ceil(math.log10(3 * max(intensities)))
    rates = [rate for _, rate in places]
    measured = analysis.highest.flops_per_s
    specified = analysis.specified.flops_per_s
    others = [rate for *_, rate in analysis.references]
    top = max([*rates, *measured.values(), *specified.values(), *others])
    bottom = min([*rates, analysis.attainable(lowest_x)])

    return (lowest_x, highest_x), (bottom / 2e9, 2 * top / 1e9)


def _slope(
    x: Ends, top: float, bytes_per_s: float, name: str, dash: str, width: float
) -> Line:
    """Draws a bandwidth from the left end of ``x``, up to where it meets ``top``."""
    xs = [x[0], min(x[1], top / bytes_per_s)]
    ys = [bytes_per_s * at / 1e9 for at in xs]
    series = f"{name}: {bytes_per_s / 1e9:.3g} GB/s"

    return Line(x=xs, y=ys, series=series, dash=dash, width=width)


def _flat(
    x: Ends,
    rate: float,
    policy: str,
    name: str = "",
    dash: str = "solid",
    width: float = 2.0,
) -> Line:
    """Draws a rate of operations.

    Args:
        x: where the line begins and ends.
        rate: operations per second.
        policy: the precision, which gives the line its colour.
        name: written before the precision in the legend.
        dash: of `tfasr.display.chart.DASHES`.
        width: in pixels.
    """
    return Line(
        x=x,
        y=[rate / 1e9] * 2,
        colour=run_colour(list(PRECISIONS).index(policy)),
        series=f"{name}{PRECISIONS[policy].label}: {rate / 1e9:.4g} GFLOP/s",
        dash=dash,
        width=width,
    )


def _roofs(
    analysis: RooflineAnalysis,
    x: Ends,
    precisions: Sequence[str] | None = None,
) -> list:
    """Draws the measured ceilings with the most threads.

    Only those of some ``precisions``, or all of them.
    """
    highest = analysis.highest
    slopes = {
        place: max(moved.values()) for place, moved in highest.bytes_per_s.items()
    }
    peaks = {
        name: rate
        for name, rate in highest.flops_per_s.items()
        if precisions is None or name in precisions
    }
    top = max(peaks.values(), default=analysis.peak)
    marks: list = [
        _slope(x, top, rate, place, _SLOPE_DASHES.get(place, "dotted"), 1.6)
        for place, rate in slopes.items()
    ]

    # A peak is reached from where the steepest slope meets it.
    steepest = max(slopes.values())
    for policy, rate in peaks.items():
        marks.append(_flat((max(x[0], rate / steepest), x[1]), rate, policy))

    return marks


def _stated(analysis: RooflineAnalysis, x: Ends, precisions: Sequence[str]) -> list:
    """Returns marks for the specified ceilings and for other machines' rates.

    They are at the right, where they cover nothing else.
    """
    specified = analysis.specified
    right = (x[1] / 30, x[1])
    rates = {
        name: specified.flops_per_s[name]
        for name in precisions
        if specified.flops_per_s.get(name) is not None
    }
    marks: list = [
        _flat(right, rate, policy, "specified, ", "dashed", 1.6)
        for policy, rate in rates.items()
    ]
    if specified.bytes_per_s:
        top = max(rates.values(), default=analysis.peak)
        marks.append(
            _slope(x, top, specified.bytes_per_s, "specified, memory", "dashed", 1.2)
        )

    for name, policy, rate in analysis.references:
        marks.append(_flat(right, rate, policy, f"{name}, ", "dotted", 1.6))

    return marks


def _one_thread(analysis: RooflineAnalysis, x: Ends) -> list:
    """Draws the roof with the fewest threads, if there are several numbers."""
    if len(analysis.ceilings) == 1:
        return []

    lowest = analysis.ceilings[0]
    peak = lowest.flops_per_s[measure.PRECISION]
    slope = lowest.memory
    # Up to the ridge point, and from there on.
    xs = [x[0], max(x[0], peak / slope), x[1]]
    ys = [min(peak, slope * at) / 1e9 for at in xs]
    threads = plural(lowest.threads, "thread")
    name = f"{PRECISIONS[measure.PRECISION].label} and memory, {threads}"

    return [Line(x=xs, y=ys, dash="dotted", width=1.2, series=name)]


def _point_marks(points, colour: str, symbol: str, size: float, series: str) -> Points:
    """Draws points of one look."""
    xs = [point.intensity for point in points]
    ys = [point.gflops for point in points]

    return Points(
        x=xs,
        y=ys,
        series=series,
        texts=[f"{point.name}: {point.gflops:.3g} GFLOP/s" for point in points],
        symbol=symbol,
        size=size,
        colour=colour,
    )


def run(
    config: RooflineConfig,
    model,
    features: FeatureConfig,
    context: Context,
) -> Result:
    """Measures ceilings, the model and the keyword spotter, each in its own process."""
    reason = "The roofline needs tfasr's own training step, which runs on TensorFlow."
    require_tensorflow(reason, context)
    default_counts = [usable_cores()] if num_gpus() else powers_up_to(usable_cores())
    ceilings = []

    for threads in sorted(set(config.thread_counts)) or default_counts:
        measured = call(
            measure.measure_ceilings,
            config,
            threads,
            _arrays(threads),
            backend="tensorflow",
        )
        ceilings.append(measured)

    points = [_points("model", model, config, features)]
    sheet = measure.specified(
        config.specified_gflops,
        config.specified_gigabytes_per_s,
        on_gpu=ceilings[-1].device == "GPU",
    )
    analysis = RooflineAnalysis(ceilings, points, config, sheet, _spotter())
    tables = roofline_tables(analysis)
    figures = roofline_charts(analysis)

    return Result(tables, analysis.to_json(), WARMUP_CALLS, figures)


def _spotter() -> dict[str, Kernels]:
    """Profiles the keyword spotter in each framework that is installed."""
    kernels = {}
    installed = installed_backends()

    for framework, label in FRAMEWORKS.items():
        reason = f"{framework} is not installed: pip install {framework}"
        kernels[label] = Kernels([], reason)
        if framework in installed:
            kernels[label] = call(
                spotter_kernels,
                framework,
                measure.SPOTTER_BATCH,
                measure.PROFILED_STEPS,
                backend=framework,
            )

    return kernels


def _arrays(threads: int) -> dict[str, int]:
    """Returns the bytes of arrays for memory and each cache, by place."""
    caches = measure.cache_bytes()
    last = max(caches.values(), default=0)
    # Far larger than any cache.
    arrays = {"memory": max(4 * last, 256 * 2**20)}

    if not num_gpus():
        # Three arrays share half of a cache; the rest is left to other programs.
        shared = {3: 1, 2: threads}  # number of caches by level: each thread has an L2
        arrays |= {
            f"L{n}": caches[n] // 6 * m for n, m in shared.items() if n in caches
        }

    return arrays


def _points(
    name: str,
    model,
    config: RooflineConfig,
    features: FeatureConfig,
) -> ModelPoints:
    """Measures a model and combines it with its costs, which are NaN if unknown."""
    measured = call(
        measure.measure_model,
        config,
        model,
        features,
        backend="tensorflow",
    )
    if not hasattr(model, "step_costs"):
        costs = unknown_costs([module.module for module in measured.modules])
        return ModelPoints.of(name, costs, measured)

    costs = model.step_costs(
        num_features=features.num_features,
        num_classes=Alphabet().num_classes,
        bytes_per_number=4,
        cache_bytes=0 if num_gpus() else max(measure.cache_bytes().values(), default=0),
        batch=config.batch,
        frames=config.frames,
        labels=config.frames // FRAMES_PER_LABEL,
    )

    return ModelPoints.of(name, costs, measured)


ROOFLINE = Workload(run, (RooflineConfig, ModelConfig, FeatureConfig), backends=())
