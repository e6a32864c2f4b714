"""The roofline: ceilings, kernels of a trace, points below the roof, the figure."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.bench.backends import counted, spotter_kernels
from tfasr.bench.devices import installed_backends
from tfasr.bench.modules import ModuleSeconds
from tfasr.bench.perform import load_bench
from tfasr.bench.roofline.measure import (
    Ceilings,
    IntensityPoint,
    ModelMeasured,
    ModelPoints,
    RooflineAnalysis,
    RooflineConfig,
    Specified,
    WorkingSet,
    cache_bytes,
    cpu_bandwidth,
    intensity_sweep,
    measure_model,
    specified,
    working_set_sweep,
)
from tfasr.bench.roofline.workload import (
    place_labels,
    roofline_chart,
    roofline_charts,
    roofline_tables,
)
from tfasr.bench.steppers import PROGRAM_NAME, Kernel, Kernels, kernels_of
from tfasr.data.features import FeatureConfig
from tfasr.display.vega import picture_spec, write_chart
from tfasr.kit.process import call
from tfasr.models.costs import model_costs, unknown_costs
from tfasr.models.keyword_spotter import KeywordSpotterConfig, step_cost
from tfasr.models.recurrent import AcousticModelConfig

SIZES = {"batch": 8, "frames": 300}
LOOP = "CpuExecutable::ExecuteAsyncOnStream"


def ceiling(threads: int, device: str = "CPU") -> Ceilings:
    return Ceilings(
        threads,
        device,
        {"float32": 200e9 * threads, "mixed_bfloat16": 350e9 * threads},
        {
            place: {"copy": rate * threads, "triad": 0.9 * rate * threads}
            for place, rate in (("memory", 10e9), ("L3", 30e9))
        },
        [
            IntensityPoint("float32", "memory", n, n * 1e9 * threads, 8e9 * threads)
            for n in (1, 4)
        ],
    )


KERNELS = Kernels([Kernel(PROGRAM_NAME, 2, 0.05), Kernel("_MklMatMul", 2, 0.02),
                   Kernel("Mul", 2, 0.03)])  # fmt: skip
NONE = Kernels([], "no step was profiled")


def measured(
    name: str, units: int, kernels=KERNELS, lstm="fused CPU", costs=None
) -> ModelPoints:
    config = AcousticModelConfig(
        conv_filters=units, num_lstm_layers=3, lstm_units=units
    )
    costs = costs or model_costs(
        config, num_features=93, num_classes=30, labels=42, **SIZES
    )
    modules = [ModuleSeconds(cost.name, 0.02, 0.004, 0.006, []) for cost in costs]
    return ModelPoints.of(name, costs, ModelMeasured(modules, kernels, [lstm]))


def analysis(**changes) -> RooflineAnalysis:
    models = [measured("model", 256, **changes), measured("small model", 64, **changes)]
    sheet = Specified({"float32": 260.4e9}, 60e9, "as given")
    config = RooflineConfig(**SIZES)
    return RooflineAnalysis([ceiling(1), ceiling(2)], models, config, sheet)


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 1e5), st.floats(1, 10))
def test_the_roof_rises_with_intensity_up_to_the_peak(intensity, factor):
    roof = analysis()
    assert roof.attainable(intensity) <= roof.peak == 400e9
    assert roof.attainable(intensity) <= roof.highest.memory * intensity
    assert roof.attainable(intensity * factor) >= roof.attainable(intensity)
    assert roof.attainable(roof.peak / roof.highest.memory) == pytest.approx(roof.peak)


def test_points_are_operations_over_bytes_and_over_seconds():
    model = analysis().models[0]
    costs = model_costs(
        AcousticModelConfig(conv_filters=256, num_lstm_layers=3, lstm_units=256),
        num_features=93,
        num_classes=30,
        labels=42,
        **SIZES,
    )
    for point, cost in zip(model.modules, costs, strict=True):
        assert point.intensity == pytest.approx(cost.intensity)
        assert point.flops_per_s == pytest.approx(cost.total_flops / 0.02)

    assert model.step.seconds == pytest.approx(0.01 * len(costs))
    assert model.step.flops == pytest.approx(sum(cost.total_flops for cost in costs))
    convolution = sum(cost.flops.get("convolution", 0) for cost in costs)
    assert model.most_used.name == PROGRAM_NAME
    assert model.most_used.flops_per_s == pytest.approx(convolution / 0.05)
    assert model.average.seconds == pytest.approx(0.1)


def test_without_a_compiled_loop_its_matmuls_are_among_the_others():
    kernels = Kernels([Kernel("MatMul", 2, 0.1)])
    own, compiled = (
        measured("model", 256, kernels, lstm) for lstm in ("fused", "fused CPU")
    )
    recurrence = own.most_used.flops - compiled.most_used.flops
    assert recurrence > 0.1 * compiled.most_used.flops


def test_a_model_that_tells_no_costs_is_timed_and_stands_nowhere_in_the_figure(
    tmp_path,
):
    known = measured("model", 256)
    names = [point.name for point in known.modules]
    unknown = measured("model", 256, costs=unknown_costs(names))
    roof = RooflineAnalysis(
        [ceiling(1), ceiling(2)], [unknown], RooflineConfig(**SIZES)
    )
    table = roofline_tables(roof)[2]
    assert table.rows[0] == [names[0], *["n/a"] * 3, "20.0", *["n/a"] * 4]
    write_chart(roofline_chart(roof), tmp_path)
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")


def test_tables_say_why_there_are_no_kernels():
    tables = roofline_tables(analysis(kernels=NONE))
    assert tables[3].rows == [["n/a"] * 6]
    assert tables[3].notes == ["n/a: no step was profiled."]
    assert [row[0] for row in tables[2].rows][-1] == "whole step"
    ceilings, sweep, points, kernels, *_ = roofline_tables(analysis())
    assert [row[0] for row in ceilings.rows] == ["1", "2", "specified"]
    assert ceilings.rows[1][1:] == ["400", "700", "20", "18", "60", "54"]
    assert ceilings.rows[2][1:] == ["260.4", "n/a", "60", "60", "n/a", "n/a"]
    assert sweep.rows[1] == ["float32, memory", "2", "2", "8", "16"]
    assert [row[0] for row in points.rows][-2:] == [
        "most used kernel",
        "average kernel",
    ]
    assert points.rows[0][-1] == "arithmetic"
    assert {row[-1] for row in points.rows if row[0] in ("loss", "update")} == {
        "memory"
    }
    assert kernels.rows[0] == [PROGRAM_NAME, "convolution", "2", "50.0", "50.0", "n/a"]
    assert kernels.rows[-1][0] == "average kernel"
    assert analysis().to_json()["ridge_flops_per_byte"] == pytest.approx(20)


def test_the_figure_shows_the_specified_line_beside_the_measured_ones():
    for chart in (make() for make in roofline_charts(analysis()).values()):
        ceilings = {"float32: 400 GFLOP/s", "memory: 20 GB/s"}
        sheet = {"specified, float32: 260.4 GFLOP/s", "specified, memory: 60 GB/s"}
        assert ceilings | sheet <= set(chart.series())

    assert "float32 in memory, 1 to 4 per element" in chart.series()
    alone = RooflineAnalysis(
        [ceiling(8, "GPU")], [measured("model", 64, NONE)], RooflineConfig(**SIZES)
    )
    assert picture_spec(roofline_chart(alone))["concat"]
    assert roofline_tables(alone)[0].rows[0][0] == "GPU"


def test_the_k80_of_the_keyword_talk_is_a_row_and_a_line_of_both_figures():
    config = load_bench("bench/roofline.gin").configs[0]
    ((name, precision, rate),) = config.reference_gflops
    assert (precision, rate) == ("float64", 2 * 1455)
    assert load_bench("bench/roofline_small.gin").configs[0].reference_gflops
    reference = RooflineConfig(**SIZES, reference_gflops=config.reference_gflops)
    roof = RooflineAnalysis([ceiling(1)], [measured("model", 64)], reference)
    for chart in (make() for make in roofline_charts(roof).values()):
        assert f"{name}, float64: 2910 GFLOP/s" in chart.series()
    # Its precision was not measured here, so its row has no place for the rate.
    assert roofline_tables(roof)[0].rows[-1] == [name, *["n/a"] * 6]
    doubles = dataclasses.replace(
        ceiling(1), flops_per_s={"float32": 2e11, "float64": 1e11}
    )
    roof = RooflineAnalysis([doubles], [measured("model", 64)], reference)
    assert roofline_tables(roof)[0].rows[-1][:3] == [name, "n/a", "2910"]


SPOTTER = Kernels([Kernel("Conv2DBackpropFilter", 4, 0.2), Kernel("Conv2DBackpropInput", 3, 0.1),
                   Kernel("Conv2D", 4, 0.1), Kernel("Mul", 126, 0.1)])  # fmt: skip


def test_the_spotters_kernels_are_counted_and_stand_on_the_roofline():
    kernels = counted(SPOTTER, KeywordSpotterConfig(), 64)
    filters, inputs, forward, rest = kernels.kernels
    assert filters.flops == forward.flops == 64 * 11_624_040
    assert inputs.flops == 64 * (11_624_040 - 2_916_000)
    assert rest == SPOTTER.kernels[-1]
    config = RooflineConfig(**SIZES)
    more = {"spotter": {"TensorFlow": kernels}}
    roof = RooflineAnalysis([ceiling(2)], [measured("model", 256)], config, **more)
    *points, average = roof.spotter_points()["keyword spotter, TensorFlow"]
    assert [point.flops_per_s for point in points[:1]] == [
        pytest.approx(64 * 11_624_040 / 0.2)
    ]
    assert points[0].intensity == pytest.approx(filters.flops / filters.moved_bytes)
    whole = step_cost(KeywordSpotterConfig(), 64)
    assert (average.flops, average.seconds) == (whole.total_flops, pytest.approx(0.5))
    table = roofline_tables(roof)[-1]
    assert [row[-1] for row in table.rows[:3]] == ["3.72", "5.573", "7.439"]
    chart = roofline_chart(roof)
    marks = {
        mark.series: mark
        for mark in chart.panels[0].marks
        if getattr(mark, "series", "")
    }
    assert list(marks["keyword spotter, TensorFlow: kernels"].y) == [
        pytest.approx(point.flops_per_s / 1e9) for point in points
    ]
    assert points[0].flops_per_s / 1e9 in list(marks["most used kernel"].y)
    words = {
        word for mark in chart.panels[0].marks for word in getattr(mark, "words", ())
    }
    assert "Conv2DBackpropFilter (spotter, TensorFlow)" in words
    assert average.flops_per_s / 1e9 in list(marks["average kernel"].y)


def test_the_working_sets_are_swept_in_experiments_and_drawn(tmp_path):
    sizes = (2**12, 2**16)
    found = working_set_sweep(sizes, 2, experiments=3, seconds=0.01)
    assert [one.size_bytes for one in found] == list(sizes)
    assert all(
        len(one.bytes_per_s) == 3 and min(one.bytes_per_s) > 1e6 for one in found
    )
    sets = [WorkingSet(2**12, [8e9, 4e9]), WorkingSet(2**20, [2e9, 1e9])]
    swept = dataclasses.replace(ceiling(1), working_sets=sets)
    roof = RooflineAnalysis([swept], [measured("model", 64)], RooflineConfig(**SIZES))
    table = next(one for one in roofline_tables(roof) if "4\nKiB" in one.columns)
    assert table.rows == [["1", "fastest", "8", "2"], ["1", "slowest", "4", "1"]]
    chart = roofline_charts(roof)["roofline_working_sets"]()
    write_chart(chart, tmp_path)
    assert (tmp_path / "roofline_working_sets.png").stat().st_size > 1000
    assert roof.to_json()["ceilings"][0]["working_sets"][1]["bytes_per_s"] == [2e9, 1e9]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)), min_size=1, max_size=12)
)
def test_no_label_lies_over_another_or_leaves_the_panel(places):
    named = [("", f"recurrent {n}", x, y) for n, (x, y) in enumerate(places, start=1)]
    found = place_labels(named, (1, 1e3), (1, 1e3), (600, 400), 10)
    boxes = []
    for label in found:
        at = (
            600 * np.log10(label.x[0]) / 3,
            400 - 400 * np.log10(label.y[0]) / 3 + label.dy,
        )
        width = 5.8 * len(label.words[0])
        begin = at[0] + 5 if label.align == "left" else at[0] - 5 - width
        boxes.append((begin, at[1] - 5, begin + width, at[1] + 5))

    for index, box in enumerate(boxes):
        assert box[0] >= 0
        assert box[2] <= 600
        for other in boxes[index + 1 :]:
            apart = box[2] <= other[0] or other[2] <= box[0]
            assert apart or box[3] <= other[1] or other[3] <= box[1]

    # Blocks in one place share a label.
    one = place_labels([("", f"recurrent {n}", 10, 10) for n in (1, 2, 3)], (1, 99), (1, 99),
                       (600, 400), 10)  # fmt: skip
    assert [list(label.words) for label in one] == [["recurrent 1–3"]]


CPUINFO = """processor: 0
vendor_id: {vendor}
cpu family: {family}
flags: avx2 avx512f
cpu MHz: 2000.0
"""


@pytest.mark.parametrize(
    ("vendor", "family", "a_cycle"),
    [("GenuineIntel", 6, 64), ("AuthenticAMD", 25, 32), ("AuthenticAMD", 26, 64)],
)
def test_a_processors_specification_is_reckoned_and_says_how(
    tmp_path, vendor, family, a_cycle
):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(
        CPUINFO.format(vendor=vendor, family=family)
    )
    found = specified((), 0, on_gpu=False, root=tmp_path)
    cores = round(found.flops_per_s["float32"] / (2e9 * a_cycle))
    assert cores >= 1
    assert found.flops_per_s["float64"] == found.flops_per_s["float32"] / 2
    assert f"x 2 GHz x {a_cycle} operations a cycle" in found.source
    assert found.bytes_per_s is None
    given_ = specified((("float64", 260.4),), 60, on_gpu=True, root=tmp_path)
    assert given_.flops_per_s == pytest.approx({"float64": 260.4e9})
    assert given_.bytes_per_s == 60e9
    assert specified((), 0, on_gpu=False, root=tmp_path / "none").flops_per_s == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"reference_gflops": (("K80", "int8", 1.0),)},
        {"specified_gflops": (("int8", 1.0),)},
    ],
)
def test_configs_that_measure_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RooflineConfig(**wrong)


def test_each_intensity_is_operations_over_bytes_read_and_written():
    found = intensity_sweep("float64", "L2", 2**18, (1, 64), threads=2, seconds=0.02)
    assert [point.flops_per_byte for point in found] == pytest.approx([1 / 16, 4])
    assert all(point.flops_per_s > 1e6 for point in found)


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_the_spotters_kernels_come_from_each_frameworks_profiler(framework):
    if framework not in installed_backends():
        pytest.skip(f"needs {framework}")
    apart = framework == "torch"
    if apart:
        found = call(spotter_kernels, framework, 4, 2, backend=framework)
    else:
        found = spotter_kernels(framework, 4, 2)

    assert found.reason == ""
    told = [kernel for kernel in found.kernels if kernel.flops]
    assert any(kernel.kind == "convolution" for kernel in told)
    if not apart:
        calls = {
            kernel.name.removeprefix("_MklNative"): kernel.calls for kernel in told
        }
        assert (calls["Conv2D"], calls["Conv2DBackpropFilter"], calls["Conv2DBackpropInput"]) == (
            4, 4, 3,
        )  # fmt: skip


def trace(lines: dict[str, list[tuple[str, int, int]]], plane_name: str = "/host:CPU"):
    """A profiler's trace of lines with events of name, beginning and duration in
    picoseconds.
    """
    xplane = pytest.importorskip(
        "tensorflow.tsl.profiler.protobuf.xplane_pb2",
        reason="this TensorFlow has no trace format",
    )
    space = xplane.XSpace()
    plane = space.planes.add(name=plane_name)
    numbers: dict[str, int] = {}
    for line_name, events in lines.items():
        line = plane.lines.add(name=line_name)
        for name, began, duration in events:
            number = numbers.setdefault(name, len(numbers) + 1)
            plane.event_metadata[number].name = name
            line.events.add(metadata_id=number, offset_ps=began, duration_ps=duration)

    return space


def test_kernels_are_summed_over_threads_without_what_ran_within_them():
    second = 10**12
    space = trace(
        {
            "tf_Compute/1": [
                ("a/call:PartitionedCall", 0, 10 * second),
                ("ExecutorState::Process", 0, 10 * second),
                ("a/matmul:MatMul", 1 * second, 2 * second),
                (LOOP, 4 * second, 3 * second),
                ("b/matmul:MatMul", 20 * second, second),
                ("b/lstm/PyFuncStateless:PyFuncStateless", 22 * second, second),
                ("b/lstm/TfasrRecurrence:TfasrRecurrence", 24 * second, 2 * second),
                ("b/drop/TfasrNormalise:TfasrNormalise", 27 * second, second),
            ],
            "tf_Compute/2": [
                ("c/matmul:MatMul", 0, second),
                ("EagerExecute: f", 0, 9 * second),
            ],
        }
    )
    found = {
        kernel.name: (kernel.calls, kernel.seconds, kernel.kind)
        for kernel in kernels_of(space)
    }
    assert found == {
        "PartitionedCall": (1, 5.0, "elementwise"),
        "MatMul": (3, 4.0, "matmul"),
        PROGRAM_NAME: (1, 3.0, "convolution"),
        "PyFuncStateless": (1, 1.0, "recurrence"),
        "TfasrRecurrence": (1, 2.0, "recurrence"),
        "TfasrNormalise": (1, 1.0, "elementwise"),
    }


def test_a_gpus_kernels_count_alone():
    space = trace(
        {"Stream #1": [("volta_sgemm", 0, 5), ("cudnn_lstm", 9, 7)]}, "/device:GPU:0"
    )
    space.MergeFrom(trace({"tf_Compute/1": [("a:MatMul", 0, 3)]}))
    assert [(one.name, one.kind) for one in kernels_of(space)] == [
        ("cudnn_lstm", "recurrence"),
        ("volta_sgemm", "matmul"),
    ]


def test_moving_memory_has_a_speed_whatever_the_threads():
    for threads in (1, 3):
        found = cpu_bandwidth(2**16, threads, seconds=0.01)
        assert set(found) == {"copy", "triad"}
        assert all(np.isfinite(rate) and rate > 1e6 for rate in found.values())

    assert all(size > 1000 for size in cache_bytes().values())


def test_a_models_modules_and_kernels_are_measured():
    config = RooflineConfig(batch=2, frames=40)
    model = AcousticModelConfig(
        conv_filters=8, num_lstm_layers=1, lstm_units=8, lstm_kernel="generic"
    )
    found = measure_model(config, model, FeatureConfig())
    assert len(found.modules) == 5
    assert found.lstm_kernels == ["generic loop"]
    assert found.kernels.reason == ""
    kinds = {kernel.kind for kernel in found.kernels.kernels}
    assert {"convolution", "matmul", "elementwise"} <= kinds
    seconds = [kernel.seconds for kernel in found.kernels.kernels]
    assert seconds == sorted(seconds, reverse=True)
