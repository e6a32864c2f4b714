"""The scaling workload: what it makes of measured steps, and real steps on two devices."""

import dataclasses

import pytest
import tensorflow as tf

from tfasr.bench.devices import PROCESS, DeviceUse
from tfasr.bench.modules import ModuleSeconds, ModuleTimes
from tfasr.bench.perform import load_bench
from tfasr.bench.scaling.measure import (
    FROM_SHARDS,
    LOADERS,
    SORTING,
    STEPS,
    WARMUP_STEPS,
    Load,
    LoadTimes,
    ScalingAnalysis,
    ScalingAnswer,
    ScalingConfig,
    ScalingTask,
    default_counts,
    measure,
    sorted_by_length,
    task_of,
)
from tfasr.bench.scaling.workload import (
    scaling_charts,
    scaling_tables,
)
from tfasr.bench.workload import Context, find_workload
from tfasr.data.features import FeatureConfig
from tfasr.display.chart import Line
from tfasr.display.vega import picture_spec
from tfasr.errors import UsageError
from tfasr.kit.process import call
from tfasr.models.recurrent import AcousticModelConfig

MODEL = AcousticModelConfig(
    conv_filters=4, num_lstm_layers=1, lstm_units=4, lstm_kernel="generic"
)
CONFIG = ScalingConfig(device_counts=(1, 2, 4), weak_utterances=8, strong_utterances=16)


def of_load(name: str, batch: int, seconds: float, loader: str = "") -> LoadTimes:
    """Four slow first steps, then steps of which a tenth of the seconds is input wait."""
    wait_s = [1.0, 0.0, 0.0, 0.0, *[0.1 * seconds] * 4]
    use = [DeviceUse(PROCESS, [0.0, 1.0], [90.0, 70.0])]
    return LoadTimes(
        Load(name, batch, 8, loader),
        [9.0, 5.0, 5.0, 5.0, *[0.9 * seconds] * 4],
        wait_s,
        use,
    )


def answer(devices: int, kind: str = "GPU", **changes) -> ScalingAnswer:
    """Steps of 0.1 s and 0.05 s an utterance, and an exchange of 0.2 s a device after
    the first.
    """

    def step_s(batch: int) -> float:
        return 0.1 + 0.05 * batch + 0.2 * (devices - 1)

    loads = [
        of_load("weak", 8, step_s(8)),
        of_load("weak", 8, 2 * step_s(8), FROM_SHARDS),
        of_load("weak", 8, 3 * step_s(8), SORTING),
        of_load("strong", 16 // devices, step_s(16 // devices)),
    ]
    found = {
        "devices": devices,
        "kind": kind,
        "loads": loads,
        "peak_device_bytes": [None] * devices,
        "peak_memory_mib": None,
        "modules": modules(devices),
    }
    return ScalingAnswer(**{**found, **changes})


def modules(devices: int) -> ModuleTimes:
    of = [
        ModuleSeconds(name, 0.2, 0.04, 0.06 * devices, [0.9, 0.3])
        for name in ("a", "b")
    ]
    return ModuleTimes(of, [4.0, 0.1])


def analysed(
    kind: str = "GPU", config: ScalingConfig = CONFIG, **changes
) -> ScalingAnalysis:
    return ScalingAnalysis.of([answer(n, kind, **changes) for n in (1, 2, 4)], config)


def rows_of(analysis: ScalingAnalysis, mode: str, loader: str = ""):
    return [
        row for row in analysis.rows if (row["mode"], row["loader"]) == (mode, loader)
    ]


def test_efficiency_is_throughput_over_that_of_as_many_single_devices():
    analysis = analysed()
    weak = rows_of(analysis, "weak")
    strong = rows_of(analysis, "strong")
    assert [row["devices"] for row in weak] == [1, 2, 4]
    assert [row["step_s"] for row in weak] == pytest.approx([0.5, 0.7, 1.1])
    assert [row["efficiency"] for row in weak] == pytest.approx(
        [1, 0.5 / 0.7, 0.5 / 1.1]
    )
    assert [row["efficiency"] for row in strong] == pytest.approx(
        [1, 0.9 / 1.4, 0.9 / 3.6]
    )
    assert [row["speedup"] for row in strong] == pytest.approx(
        [1, 0.9 / 0.7, 0.9 / 0.9]
    )
    assert weak[1]["utterances_per_s"] == pytest.approx(16 / 0.7)
    for row in (*weak, *strong):
        alone = next(
            r
            for r in analysis.rows
            if (r["mode"], r["loader"]) == (row["mode"], row["loader"])
        )
        ratio = row["utterances_per_s"] / alone["utterances_per_s"]
        assert row["efficiency"] == pytest.approx(ratio / row["devices"])


def test_the_first_steps_are_shown_and_count_nowhere():
    row = rows_of(analysed(), "weak")[0]
    assert row["first_s"] == [10.0, 5.0, 5.0, 5.0]
    assert row["step_s"] == pytest.approx(0.5)
    assert row["input_wait_s"] == pytest.approx(0.05)


def test_a_loader_is_judged_by_the_mean_step_that_its_pauses_belong_to():
    pauses = of_load("weak", 8, 0.5, SORTING)
    pauses.input_wait_s[-1] += 4.0
    one, two, *_ = rows_of(
        analysed(loads=[of_load("weak", 8, 0.5), pauses]), "weak", SORTING
    )
    assert one["step_s"] == pytest.approx(0.5)
    assert one["mean_step_s"] == pytest.approx(0.5 + 4.0 / 4)
    assert one["utterances_per_s"] == pytest.approx(8 / 1.5)
    assert two["efficiency"] == pytest.approx(1)


def test_tables_hold_every_row_and_say_that_slices_share_cores():
    replicas = [[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]]
    analysis = analysed("logical CPU", modules=modules(1), replica_s=replicas)
    scaling, first, first_of_each, timed, devices = scaling_tables(analysis)
    assert len(scaling.rows) == len(first.rows) == 12
    assert scaling.rows[1][:5] == ["weak", "2", "8", "8", "700.0"]
    assert scaling.rows[1][7] == "80"
    assert any("share its cores" in note for note in scaling.notes)
    assert not any(
        "share its cores" in note for note in scaling_tables(analysed())[0].notes
    )
    assert first.rows[0] == ["weak", "1", "10000", "5000", "5000", "5000", "500.0"]
    assert first_of_each.rows[0] == ["a", "1", "900.0", "300.0", "100.0"]
    assert first_of_each.rows[2] == ["tracing, host", "1", "4000", "100.0", "n/a"]
    assert timed.rows[0][:5] == ["a", "200.0", "40.0", "60.0", "50.0"]
    assert timed.rows[-1][:5] == ["whole step", "400.0", "80.0", "120.0", "100.0"]
    assert [row[1] for row in devices.rows] == ["n/a", "2.00", "2.00"]
    assert devices.rows[0][2:] == ["n/a"] * 6


def test_devices_show_what_the_first_has_more_than_the_others():
    use = [
        DeviceUse(f"GPU {n}", [1.0], [u])
        for n, u in enumerate((90.0, 80.0, 70.0, 60.0))
    ]
    load = dataclasses.replace(of_load("weak", 8, 0.5), use=[DeviceUse(PROCESS), *use])
    memory = [3 * 2**30, 2**30, 2**30, 2**30]
    analysis = analysed(loads=[load], peak_device_bytes=memory)
    row = scaling_tables(analysis)[-1].rows[2]
    assert row == ["4", "n/a", "90", "70", "3.00", "1.00", "3.00", "n/a"]
    # Of the GPUs, not of the processor.
    assert scaling_tables(analysis)[0].rows[0][7] == "75"


def test_the_figures_show_ideal_measurement_use_and_modules():
    analysis = analysed("logical CPU")
    charts = {name: make() for name, make in scaling_charts(analysis).items()}
    assert all(picture_spec(chart)["concat"] for chart in charts.values())
    weak, strong = charts["scaling"].panels
    lines = {mark.series: mark for mark in weak.marks if isinstance(mark, Line)}
    measured = lines["measured, cores shared"]
    assert measured.y == pytest.approx([100, 100 * 0.5 / 0.7, 100 * 0.5 / 1.1])
    assert "16 utterances in all" in strong.title
    panels = [panel.title for panel in charts["scaling_use"].panels]
    assert panels == ["without loader", "with loader", "with sorting loader"]
    within, alone = charts["scaling_modules"].panels
    assert list(within.marks[0].y) == pytest.approx([100, 160, 280])
    assert list(alone.marks[0].y) == [200] * 3
    assert [panel.title for panel in charts["scaling_first_steps"].panels][
        0
    ] == "1 device"


@pytest.mark.parametrize(
    "wrong",
    [
        {"device_counts": (2, 4)},
        {"device_counts": (1, 3), "strong_utterances": 16},
    ],
)
def test_configs_that_scale_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ScalingConfig(**wrong)


@pytest.mark.parametrize("name", ["scaling", "hardware_sweep", "roofline"])
def test_full_and_small_presets_are_there_and_other_backends_are_refused(name):
    full, small = (load_bench(f"bench/{name}{suffix}.gin") for suffix in ("", "_small"))
    assert full.bench.workload == small.bench.workload == name
    assert full.configs[1].lstm_units == 800 > small.configs[1].lstm_units
    with pytest.raises(UsageError, match="--backend jax"):
        find_workload(name).run(*small.configs, Context(backend="jax"))


def test_weak_scaling_takes_more_steps_on_more_devices_and_says_so():
    config = ScalingConfig(strong_utterances=16, device_counts=(1, 4))
    tasks = [task_of(config, MODEL, FeatureConfig(), n, 1.0) for n in (1, 4)]
    weak = [
        [load.steps for load in task.loads if load.name == "weak"] for task in tasks
    ]
    assert weak == [[180] * 3, [720] * 3]
    assert all(task.config.weak_utterances == 150 for task in tasks)
    (note, *_) = scaling_tables(analysed())[0].notes
    assert "one device's number of steps times the devices" in note


def test_the_full_preset_has_the_studys_numbers():
    config = load_bench("bench/scaling.gin").configs[0]
    assert (config.weak_utterances, STEPS, WARMUP_STEPS) == (150, 180, 4)
    assert default_counts(16) == [1, 2]


@pytest.mark.long
def test_two_slices_of_a_processor_train_together():
    task = ScalingTask(
        devices=2,
        model=MODEL,
        features=FeatureConfig(),
        config=ScalingConfig(frames=60, weak_utterances=2),
        loads=tuple(Load("weak", 2, 5, loader) for loader in LOADERS),
    )
    found = call(measure, task, backend="tensorflow")
    assert (found.devices, found.kind) == (2, "logical CPU")
    for times in found.loads:
        assert len(times.step_s) == len(times.input_wait_s) == 5
        assert min(times.step_s) > 0
        assert times.use[0].device == PROCESS

    assert found.peak_device_bytes == [None, None]
    assert [len(seconds) for seconds in found.replica_s] == [2] * 10
    names = [row.module for row in found.modules.modules]
    assert names == ["front end", "recurrent 1", "head", "loss", "update"]
    assert min(row.in_step_s for row in found.modules.modules) > 0


def test_a_sorting_loader_hands_out_each_window_from_short_to_long():
    lengths = tf.constant([5, 3, 9, 1, 8, 2, 7, 4])
    batches = tf.data.Dataset.from_tensor_slices({"feature_lengths": lengths}).batch(2)
    found = [
        b["feature_lengths"].numpy().tolist() for b in sorted_by_length(batches, 4, 2)
    ]
    assert found == [[1, 3], [5, 9], [2, 4], [7, 8]]
