"""The roofline as tables: ceilings, points, kernels."""

import math

from tfasr.bench.roofline.points import ModelPoints, Point, RooflineAnalysis
from tfasr.display.table import UNKNOWN, Table, milliseconds

_MOST_KERNELS = 12
_PRECISIONS = {
    "float32": "float32",
    "mixed_bfloat16": "bfloat16",
    "mixed_float16": "float16",
}


def precision_name(policy: str) -> str:
    """Returns what matmuls compute in under a dtype policy."""
    return _PRECISIONS[policy]


def roofline_tables(analysis: RooflineAnalysis) -> list[Table]:
    """Returns ceilings, then points and kernels of each model."""
    found = [_ceilings(analysis)]
    for model in analysis.models:
        found += [_points(analysis, model), _kernels(model)]
    return found


def _ceilings(analysis: RooflineAnalysis) -> Table:
    precisions = list(analysis.highest["flops_per_s"])
    places = list(analysis.highest["bytes_per_s"])
    columns = ["threads", *(f"{precision_name(name)}\nGFLOP/s" for name in precisions)]
    columns += [f"{place} {kind}\nGB/s" for place in places for kind in ("copy", "triad")]
    rows = [
        [
            str(found["threads"]) if found["device"] == "CPU" else "GPU",
            *(_giga(found["flops_per_s"][name]) for name in precisions),
            *(_giga(found["bytes_per_s"][p][kind]) for p in places for kind in ("copy", "triad")),
        ]
        for found in analysis.ceilings
    ]
    ridge = analysis.peak / analysis.memory
    notes = [
        "The fastest of all repetitions; each row a process of its own. GFLOP/s: large square "
        "matmuls. GB/s: arrays far beyond the last cache (memory), or within a cache.",
        f"Ridge point of {precision_name(analysis.precision)} and memory: {ridge:.1f} operations "
        "per byte.",
    ]
    return Table("Ceilings of this machine", columns, rows, notes)


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
        f"{precision_name(analysis.precision)}, recurrence by "
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


def _kernels(model: ModelPoints) -> Table:
    title = f"Kernels by time: {model.name}"
    columns = ["kernel", "kind", "calls\nper step", "ms\nper step", "share\n%"]
    if not model.kernels:
        row = [UNKNOWN] * len(columns)
        return Table(title, columns, [row], [f"{UNKNOWN}: {model.no_kernels}."])
    whole_s = sum(kernel["seconds"] for kernel in model.kernels)
    rows = [
        [
            kernel["name"],
            kernel["kind"],
            f"{kernel['calls']:.0f}",
            milliseconds(kernel["seconds"]),
            f"{100 * kernel['seconds'] / whole_s:.1f}",
        ]
        for kernel in model.kernels[:_MOST_KERNELS]
    ]
    rest = model.kernels[_MOST_KERNELS:]
    if rest:
        rest_s = sum(kernel["seconds"] for kernel in rest)
        calls = sum(kernel["calls"] for kernel in rest)
        share = f"{100 * rest_s / whole_s:.1f}"
        rows.append([f"{len(rest)} others", "", f"{calls:.0f}", milliseconds(rest_s), share])
    notes = [
        "From TensorFlow's profiler, whose recording slows a step; seconds are summed over what "
        "runs at the same time. On a processor PyFuncStateless is the LSTM's compiled loop."
    ]
    return Table(title, columns, rows, notes)


def _giga(value: float) -> str:
    return f"{value / 1e9:.4g}"
