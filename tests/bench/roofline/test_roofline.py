"""The roofline: ceilings, kernels of a trace, points below the roof, the figure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.bench.roofline.bandwidth import cache_bytes, cpu_bandwidth
from tfasr.bench.roofline.config import RooflineConfig
from tfasr.bench.roofline.figure import roofline_figure
from tfasr.bench.roofline.kernels import PROGRAM_NAME, kernels_of
from tfasr.bench.roofline.measure import measure_model
from tfasr.bench.roofline.points import ModelPoints, RooflineAnalysis
from tfasr.bench.roofline.tables import roofline_tables
from tfasr.data.features import FeatureConfig
from tfasr.display.slides import write_png
from tfasr.models.acoustic_model import AcousticModelConfig
from tfasr.models.costs import model_costs, unknown_costs

SIZES = {"batch": 8, "frames": 300, "labels": 30}
LOOP = "CpuExecutable::ExecuteAsyncOnStream"


def ceiling(threads: int, device: str = "CPU") -> dict:
    return {
        "threads": threads,
        "device": device,
        "flops_per_s": {"float32": 200e9 * threads, "mixed_bfloat16": 350e9 * threads},
        "bytes_per_s": {
            place: {"copy": rate * threads, "triad": 0.9 * rate * threads}
            for place, rate in (("memory", 10e9), ("L3", 30e9))
        },
    }


def kernel(name: str, kind: str, seconds: float) -> dict:
    return {"name": name, "kind": kind, "calls": 2.0, "seconds": seconds}


KERNELS = [
    kernel(PROGRAM_NAME, "recurrence", 0.05),
    kernel("_MklMatMul", "matmul", 0.02),
    kernel("Mul", "elementwise", 0.03),
]


def measured(name: str, units: int, kernels=KERNELS) -> dict:
    config = AcousticModelConfig(conv_filters=units, num_lstm_layers=3, lstm_units=units)
    costs = model_costs(config, num_features=93, num_classes=30, **SIZES)
    modules = [{"module": c.name, "alone_s": 0.02, "in_step_s": 0.01} for c in costs]
    return {
        "name": name,
        "costs": costs,
        "modules": modules,
        "kernels": kernels,
        "no_kernels": "" if kernels else "no step was profiled",
        "lstm_kernels": ["fused CPU"],
    }


def analysis(**changes) -> RooflineAnalysis:
    found = [measured("model", 256, **changes), measured("small model", 64, **changes)]
    return RooflineAnalysis.of([ceiling(1), ceiling(2)], found, RooflineConfig(**SIZES))


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 1e5), st.floats(1, 10))
def test_the_roof_rises_with_intensity_up_to_the_peak(intensity, factor):
    roof = analysis()
    assert roof.attainable(intensity) <= roof.peak == 400e9
    assert roof.attainable(intensity) <= roof.memory * intensity
    assert roof.attainable(intensity * factor) >= roof.attainable(intensity)
    assert roof.attainable(roof.peak / roof.memory) == pytest.approx(roof.peak)


def test_points_are_operations_over_bytes_and_over_seconds():
    model = analysis().models[0]
    costs = measured("model", 256)["costs"]
    for point, cost in zip(model.modules, costs, strict=True):
        assert point.intensity == pytest.approx(cost.intensity)
        assert point.flops_per_s == pytest.approx(cost.total_flops / 0.02)
    assert model.step.seconds == pytest.approx(0.01 * len(costs))
    assert model.step.flops == pytest.approx(sum(cost.total_flops for cost in costs))
    recurrence = sum(cost.flops.get("recurrence", 0) for cost in costs)
    assert model.most_used.name == PROGRAM_NAME
    assert model.most_used.flops_per_s == pytest.approx(recurrence / 0.05)
    assert model.average.seconds == pytest.approx(0.1)


def test_without_a_compiled_loop_its_matmuls_are_among_the_others():
    found = {**measured("model", 256, [kernel("MatMul", "matmul", 0.1)]), "lstm_kernels": ["fused"]}
    most_used = ModelPoints.of(found).most_used
    flops = [cost.flops for cost in found["costs"]]
    wanted = sum(one.get("matmul", 0) + one.get("recurrence", 0) for one in flops)
    assert most_used.flops == pytest.approx(wanted)


def test_a_model_that_tells_no_costs_is_timed_and_stands_nowhere_in_the_figure(tmp_path):
    known = measured("model", 256)
    names = [module["module"] for module in known["modules"]]
    found = [{**known, "costs": unknown_costs(names)}]
    roof = RooflineAnalysis.of([ceiling(1), ceiling(2)], found, RooflineConfig(**SIZES))
    table = roofline_tables(roof)[1]
    assert table.rows[0] == [names[0], *["n/a"] * 3, "20.0", *["n/a"] * 4]
    write_png(roofline_figure(roof), tmp_path / "roofline.png")
    with_known = RooflineAnalysis.of(roof.ceilings, [*found, known], RooflineConfig(**SIZES))
    write_png(roofline_figure(with_known), tmp_path / "both.png")


def test_tables_say_why_there_are_no_kernels():
    tables = roofline_tables(analysis(kernels=[]))
    assert tables[2].rows == [["n/a"] * 5]
    assert tables[2].notes == ["n/a: no step was profiled."]
    assert [row[0] for row in tables[1].rows][-1] == "whole step"
    ceilings, points, kernels, *_ = roofline_tables(analysis())
    assert [row[0] for row in ceilings.rows] == ["1", "2"]
    assert ceilings.rows[1][1:] == ["400", "700", "20", "18", "60", "54"]
    assert [row[0] for row in points.rows][-2:] == ["most used kernel", "average kernel"]
    assert points.rows[0][-1] == "arithmetic"
    assert {row[-1] for row in points.rows if row[0] in ("loss", "update")} == {"memory"}
    assert kernels.rows[0] == [PROGRAM_NAME, "recurrence", "2", "50.0", "50.0"]
    assert analysis().to_json()["ridge_flops_per_byte"] == pytest.approx(20)


def test_no_label_of_the_figure_lies_over_another():
    figure = roofline_figure(analysis())
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    names = [text.get_text() for text in axes.texts]
    # Points in one place share a label.
    assert {"front end", "recurrent 1–3", "head", "loss", "update", "whole step"} <= set(names)
    for index, box in enumerate(boxes):
        for other in boxes[index + 1 :]:
            assert not box.shrunk(0.9, 0.7).overlaps(other.shrunk(0.9, 0.7))
    top = max(line.get_ydata().max() for line in axes.get_lines())
    assert axes.get_ylim()[1] > top


def test_a_figure_without_kernels_or_with_one_ceiling_can_be_drawn(tmp_path):
    found = [measured("model", 64, kernels=[])]
    alone = RooflineAnalysis.of([ceiling(8, "GPU")], found, RooflineConfig(**SIZES))
    write_png(roofline_figure(alone), tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")
    assert roofline_tables(alone)[0].rows[0][0] == "GPU"


def trace(lines: dict[str, list[tuple[str, int, int]]], plane_name: str = "/host:CPU"):
    """A profiler's trace of lines with events of name, beginning and duration in picoseconds."""
    xplane = pytest.importorskip(
        "tensorflow.tsl.profiler.protobuf.xplane_pb2", reason="this TensorFlow has no trace format"
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
            ],
            "tf_Compute/2": [("c/matmul:MatMul", 0, second), ("EagerExecute: f", 0, 9 * second)],
        }
    )
    found = {
        kernel.name: (kernel.calls, kernel.seconds, kernel.kind) for kernel in kernels_of(space)
    }
    assert found == {
        "PartitionedCall": (1, 5.0, "elementwise"),
        "MatMul": (3, 4.0, "matmul"),
        PROGRAM_NAME: (1, 3.0, "convolution"),
        "PyFuncStateless": (1, 1.0, "recurrence"),
    }


def test_a_gpus_kernels_count_alone():
    space = trace({"Stream #1": [("volta_sgemm", 0, 5), ("cudnn_lstm", 9, 7)]}, "/device:GPU:0")
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
    config = RooflineConfig(batch=2, frames=40, labels=4, rounds=1, profiled_steps=2)
    model = AcousticModelConfig(
        conv_filters=8, num_lstm_layers=1, lstm_units=8, lstm_kernel="generic"
    )
    found = measure_model(config, model, FeatureConfig())
    assert len(found["modules"]) == 5
    assert found["lstm_kernels"] == ["generic loop"]
    assert found["no_kernels"] == ""
    kinds = {kernel["kind"] for kernel in found["kernels"]}
    assert {"convolution", "matmul", "elementwise"} <= kinds
    seconds = [kernel["seconds"] for kernel in found["kernels"]]
    assert seconds == sorted(seconds, reverse=True)
