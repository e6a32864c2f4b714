"""The roofline as tables: ceilings, points, kernels."""

import math

from tfasr.bench.roofline.kernels import Kernels
from tfasr.bench.roofline.points import ModelPoints, Point, RooflineAnalysis
from tfasr.display.table import UNKNOWN, Table, milliseconds
from tfasr.precision import PRECISIONS

_MOST_KERNELS = 12
_LONGEST_NAME = 60
_OF_MODEL = [
    "From TensorFlow's profiler, whose recording slows a step; seconds are summed over what runs "
    "at the same time. On a processor TfasrRecurrence is the LSTM's compiled loop. Average kernel: "
    "the seconds of all over their number."
]
_OF_SPOTTER = [
    "A training step of the network of 8504 parameters from the framework's own profiler: "
    "forward, backward, Adam. The most used kernel is the first, the average kernel has the "
    "seconds of all over their number. GFLOP/s: where PyTorch's profiler tells the operations."
]


def roofline_tables(analysis: RooflineAnalysis) -> list[Table]:
    """Returns ceilings, ERT's sweep, points and kernels of each model, the spotter's kernels."""
    found = [_ceilings(analysis)]
    if analysis.highest.sweep:
        found.append(_sweep(analysis))
    for model in analysis.models:
        found += [_points(analysis, model), _kernels(model.name, model.kernels, _OF_MODEL)]
    for framework, kernels in analysis.spotter.items():
        name = f"keyword spotter, batch {analysis.spotter_batch}, {framework}"
        found.append(_kernels(name, kernels, _OF_SPOTTER))
    return found


def _ceilings(analysis: RooflineAnalysis) -> Table:
    precisions = list(analysis.highest.flops_per_s)
    places = list(analysis.highest.bytes_per_s)
    columns = ["threads", *(f"{PRECISIONS[name].label}\nGFLOP/s" for name in precisions)]
    columns += [f"{place} {kind}\nGB/s" for place in places for kind in ("copy", "triad")]
    rows = [
        [
            str(found.threads) if found.device == "CPU" else "GPU",
            *(_giga(found.flops_per_s[name]) for name in precisions),
            *(_giga(found.bytes_per_s[p][kind]) for p in places for kind in ("copy", "triad")),
        ]
        for found in analysis.ceilings
    ]
    specified = analysis.specified
    rows.append(
        [
            "specified",
            *(_giga(specified.flops_per_s.get(name)) for name in precisions),
            *(
                _giga(specified.bytes_per_s if place == "memory" else None)
                for place in places
                for _ in range(2)
            ),
        ]
    )
    ridge = analysis.peak / analysis.memory
    notes = [
        "The fastest of all repetitions; each row a process of its own. GFLOP/s: large square "
        "matmuls. GB/s: arrays far beyond the last cache (memory), or within a cache.",
        f"Specified: {specified.source}.",
        f"Ridge point of {PRECISIONS[analysis.precision].label} and memory: {ridge:.1f} operations "
        "per byte.",
    ]
    return Table("Ceilings of this machine", columns, rows, notes)


def _sweep(analysis: RooflineAnalysis) -> Table:
    operations = list(dict.fromkeys(p.flops_per_element for p in analysis.highest.sweep))
    rows = []
    for ceilings in analysis.ceilings:
        threads = str(ceilings.threads) if ceilings.device == "CPU" else "GPU"
        for kind in dict.fromkeys((p.precision, p.place) for p in ceilings.sweep):
            own = [p for p in ceilings.sweep if (p.precision, p.place) == kind]
            label = PRECISIONS[kind[0]].label
            fastest = max(point.bytes_per_s for point in own)
            rows.append(
                [
                    f"{label}, {kind[1]}",
                    threads,
                    *(_giga(point.flops_per_s) for point in own),
                    _giga(fastest),
                ]
            )
    return Table(
        "GFLOP/s over operations for each element",
        ["element, array in", "threads", *map(str, operations), "most\nGB/s"],
        rows,
        [
            "ERT's sweep: an array read, worked through and written in place, with so many "
            "operations (multiplications and additions) for each element; the fastest call. "
            f"Intensity: operations over {2 * 4} bytes of float32, {2 * 8} of float64."
        ],
    )


def _points(analysis: RooflineAnalysis, model: ModelPoints) -> Table:
    columns = ["part", "GFLOP", "MB moved", "FLOP per\nbyte", "ms", "GFLOP/s"]
    columns += ["% of\nits roof", "% of\npeak", "limit"]
    rows = [_cells(analysis, point) for point in [*model.modules, model.step]]
    marked = [point for point in (model.most_used, model.average) if point is not None]
    names = ("most used kernel", "average kernel")
    for point, name in zip(marked, names, strict=False):
        rows.append([name, *_cells(analysis, point)[1:]])
    notes = [
        f"One training step of {analysis.batch} utterances of {analysis.frames} frames, "
        f"{PRECISIONS[analysis.precision].label}, recurrence by "
        f"{', '.join(model.lstm_kernels) or UNKNOWN}. "
        "Modules alone, forward and backward; operations and bytes are counted, not measured: "
        "every tensor read and written once wherever it is used, so that a part whose data stays "
        f"in a cache can exceed its roof. {UNKNOWN}: the model does not tell them.",
    ]
    if marked:
        notes.append(
            f"Most used kernel: {marked[0].name} with all of its kind; average kernel: the whole "
            "step's operations over the seconds of all kernels, which run beside each other."
        )
    return Table(f"Below the roof: {model.name}", columns, rows, notes)


def _cells(analysis: RooflineAnalysis, point: Point) -> list[str]:
    if math.isnan(point.intensity):
        unknown = [UNKNOWN] * 3
        return [point.name, *unknown, milliseconds(point.seconds), *unknown, UNKNOWN]
    roof = analysis.attainable(point.intensity)
    return [
        point.name,
        f"{point.flops / 1e9:.4g}",
        f"{point.moved_bytes / 1e6:.4g}",
        f"{point.intensity:.3g}",
        milliseconds(point.seconds),
        _giga(point.flops_per_s),
        f"{100 * point.flops_per_s / roof:.0f}",
        f"{100 * point.flops_per_s / analysis.peak:.1f}",
        "arithmetic" if roof >= analysis.peak else "memory",
    ]


def _kernels(name: str, found: Kernels, notes: list[str]) -> Table:
    title = f"Kernels by time: {name}"
    columns = ["kernel", "kind", "calls\nper step", "ms\nper step", "share\n%", "GFLOP/s"]
    if not found.kernels:
        return Table(title, columns, [[UNKNOWN] * len(columns)], [f"{UNKNOWN}: {found.reason}."])
    rows = [
        [
            _shortened(kernel.name),
            kernel.kind,
            f"{kernel.calls:.0f}",
            milliseconds(kernel.seconds),
            f"{100 * kernel.seconds / found.seconds:.1f}",
            _giga(kernel.flops and kernel.flops / kernel.seconds),
        ]
        for kernel in found.kernels[:_MOST_KERNELS]
    ]
    rest = found.kernels[_MOST_KERNELS:]
    if rest:
        rest_s = sum(kernel.seconds for kernel in rest)
        calls = sum(kernel.calls for kernel in rest)
        share = f"{100 * rest_s / found.seconds:.1f}"
        others = f"{len(rest)} others"
        rows.append([others, "", f"{calls:.0f}", milliseconds(rest_s), share, UNKNOWN])
    mean_s = found.seconds / len(found.kernels)
    average = ["average kernel", "", UNKNOWN, milliseconds(mean_s), UNKNOWN, UNKNOWN]
    return Table(title, columns, [*rows, average], notes)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _giga(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value / 1e9:.4g}"
