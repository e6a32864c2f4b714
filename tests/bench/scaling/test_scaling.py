"""The scaling workload: what it makes of measured steps, and real steps on two devices."""

import math

import pytest

from tfasr.bench.from_gin import load_bench
from tfasr.bench.scaling.analysis import ScalingAnalysis
from tfasr.bench.scaling.config import Load, ScalingConfig, ScalingTask
from tfasr.bench.scaling.figure import scaling_figure
from tfasr.bench.scaling.measure import measure
from tfasr.bench.scaling.tables import scaling_tables
from tfasr.bench.scaling.workload import default_counts
from tfasr.bench.workload import Context, find_workload
from tfasr.child import call
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.acoustic_model import AcousticModelConfig

CONFIG = ScalingConfig(
    device_counts=(1, 2, 4), weak_utterances=8, strong_utterances=16, steps=6, warmup_steps=2
)


def of_load(name: str, batch: int, seconds: float, loader: bool = False) -> dict:
    """Two slow first steps, then steps of which a tenth of the seconds is input wait."""
    return {
        "name": name,
        "per_device_batch": batch,
        "loader": loader,
        "step_s": [9.0, 5.0, *[0.9 * seconds] * 4],
        "input_wait_s": [1.0, 0.0, *[0.1 * seconds] * 4],
    }


def answer(devices: int, kind: str = "GPU", **changes) -> dict:
    """Steps of 0.1 s and 0.05 s an utterance, and an exchange of 0.2 s a device after the first."""

    def step_s(batch: int) -> float:
        return 0.1 + 0.05 * batch + 0.2 * (devices - 1)

    loads = [
        of_load("weak", 8, step_s(8)),
        of_load("weak", 8, 2 * step_s(8), loader=True),
        of_load("strong", 16 // devices, step_s(16 // devices)),
    ]
    if devices == 1:
        loads += [of_load("single", 8, step_s(8)), of_load("single", 4, step_s(4))]
    found = {
        "devices": devices,
        "kind": kind,
        "loads": loads,
        "gpus": [],
        "peak_device_bytes": [None] * devices,
        "peak_memory_mib": None,
        "gradient_bytes": 1_000_000,
    }
    if devices > 1:
        # Half the latency goes into each of two messages, the rest into a megabyte.
        of_size = [(4096, 0.1), (1_000_000, 0.2)]
        found["all_reduce"] = [{"size_bytes": size, "seconds": s} for size, s in of_size]
    return {**found, **changes}


def analysed(kind: str = "GPU", config: ScalingConfig = CONFIG, **changes) -> ScalingAnalysis:
    return ScalingAnalysis.of([answer(n, kind, **changes) for n in (1, 2, 4)], config)


def rows_of(analysis: ScalingAnalysis, mode: str, loader: bool = False):
    return [row for row in analysis.rows if (row.mode, row.loader) == (mode, loader)]


def test_efficiency_is_throughput_over_that_of_as_many_single_devices():
    analysis = analysed()
    weak, strong = rows_of(analysis, "weak"), rows_of(analysis, "strong")
    assert [row.devices for row in weak] == [1, 2, 4]
    assert [row.step_s for row in weak] == pytest.approx([0.5, 0.7, 1.1])
    assert [row.efficiency for row in weak] == pytest.approx([1, 0.5 / 0.7, 0.5 / 1.1])
    assert [row.efficiency for row in strong] == pytest.approx([1, 0.9 / 1.4, 0.9 / 3.6])
    assert [row.speedup for row in strong] == pytest.approx([1, 0.9 / 0.7, 0.9 / 0.9])
    assert weak[1].utterances_per_s == pytest.approx(16 / 0.7)
    for row in (*weak, *strong):
        alone = next(r for r in analysis.rows if (r.mode, r.loader) == (row.mode, row.loader))
        ratio = row.utterances_per_s / alone.utterances_per_s
        assert row.efficiency == pytest.approx(ratio / row.devices)


def test_the_first_steps_are_shown_and_count_nowhere():
    row = rows_of(analysed(), "weak")[0]
    assert row.first_s == [10.0, 5.0]
    assert row.step_s == pytest.approx(0.5)
    assert row.input_wait_s == pytest.approx(0.05)


def test_the_prediction_is_made_of_single_steps_and_the_measured_link():
    analysis = analysed()
    assert analysis.model.single.fixed_s == pytest.approx(0.1, rel=0.01)
    assert analysis.model.single.per_utterance_s == pytest.approx(0.05, rel=0.01)
    assert analysis.link_source == "all-reduces measured over 2 devices"
    one, two, _ = rows_of(analysis, "weak")
    assert one.prediction_error == pytest.approx(0, abs=0.01)
    assert two.predicted_s == pytest.approx(0.7, rel=0.02)
    assert all(row.predicted_s is None for row in rows_of(analysis, "weak", loader=True))


def test_a_link_can_be_given_and_can_be_missing():
    given = ScalingConfig(link_gigabytes_per_s=0.01, link_latency_us=50_000.0, warmup_steps=2)
    analysis = analysed(config=given)
    # 2 messages of half a megabyte at 10 MB/s and 0.05 s each.
    assert rows_of(analysis, "weak")[1].predicted_s == pytest.approx(0.5 + 2 * 0.1, rel=0.01)
    analysis = analysed(all_reduce=None)
    assert analysis.model is None
    assert rows_of(analysis, "weak")[1].predicted_s is None
    assert "n/a" in scaling_tables(analysis)[0].rows[1]
    scaling_figure(analysis)


def test_tables_hold_every_row_and_say_that_slices_share_cores():
    modules = [{"module": name, "alone_s": 0.2, "in_step_s": 0.1} for name in ("a", "b")]
    replicas = [[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]]
    analysis = analysed("logical CPU", modules=modules, replica_s=replicas)
    scaling, first, timed, devices = scaling_tables(analysis)
    assert len(scaling.rows) == len(first.rows) == 9
    assert scaling.rows[1][:4] == ["weak", "2", "8", "700.0"]
    assert any("share its cores" in note for note in scaling.notes)
    assert not any("share its cores" in note for note in scaling_tables(analysed())[0].notes)
    assert first.rows[0] == ["weak", "1", "10000", "5000", "500.0"]
    assert timed.rows[-1][:4] == ["whole step", "400.0", "200.0", "100.0"]
    assert [row[1] for row in devices.rows] == ["n/a", "2.00", "2.00"]
    assert devices.rows[0][2:] == ["n/a"] * 6


def test_devices_show_what_the_first_has_more_than_the_others():
    gpus = [{"utilisation_percent": use, "memory_bytes": 0} for use in (90, 80, 70, 60)]
    analysis = analysed(gpus=gpus, peak_device_bytes=[3 * 2**30, 2**30, 2**30, 2**30])
    row = scaling_tables(analysis)[-1].rows[2]
    assert row == ["4", "n/a", "90", "70", "3.00", "1.00", "3.00", "n/a"]


def test_the_figure_shows_ideal_prediction_and_measurement():
    analysis = analysed("logical CPU")
    weak, strong = scaling_figure(analysis).axes
    curves = {tuple(map(float, line.get_xdata())): line for line in weak.get_lines()}
    measured = [line for line in weak.get_lines() if line.get_marker() == "o"]
    assert pytest.approx(measured[0].get_ydata()) == [100, 100 * 0.5 / 0.7, 100 * 0.5 / 1.1]
    predicted = curves[(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)].get_ydata()
    assert all(later <= sooner for sooner, later in zip(predicted, predicted[1:], strict=False))
    assert "16 utterances in all" in strong.get_title(loc="left")


@pytest.mark.parametrize(
    "wrong",
    [
        {"device_counts": (2, 4)},
        {"device_counts": (1, 3), "strong_utterances": 16},
        {"steps": 4, "warmup_steps": 4},
        {"overlap": 2.0},
        {"predicted_devices": (0,)},
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


def test_the_full_preset_has_the_papers_numbers():
    config = load_bench("bench/scaling.gin").configs[0]
    assert (config.weak_utterances, config.steps, config.warmup_steps) == (150, 180, 4)
    assert default_counts(16) == [1, 2]


@pytest.mark.slow
def test_two_slices_of_a_processor_train_together():
    sizes = {"conv_filters": 4, "num_lstm_layers": 1, "lstm_units": 4}
    task = ScalingTask(
        devices=2,
        model=AcousticModelConfig(**sizes, lstm_kernel="generic"),
        features=FeatureConfig(),
        precision="float32",
        frames=40,
        labels=4,
        loads=tuple(Load("weak", 2, 3, loader) for loader in (False, True)),
        module_batch=2,
        rounds=2,
        all_reduce=True,
    )
    found = call(measure, task, backend="tensorflow")
    assert (found["devices"], found["kind"]) == (2, "logical CPU")
    for load_ in found["loads"]:
        assert len(load_["step_s"]) == len(load_["input_wait_s"]) == 3
        assert min(load_["step_s"]) > 0
    assert found["peak_device_bytes"] == [None, None]
    assert [len(seconds) for seconds in found["replica_s"]] == [2, 2]
    names = [row["module"] for row in found["modules"]]
    assert names == ["front end", "recurrent 1", "head", "loss", "update"]
    assert [row["size_bytes"] for row in found["all_reduce"]] == [4096, found["gradient_bytes"]]
    assert all(math.isfinite(row["seconds"]) for row in found["all_reduce"])
