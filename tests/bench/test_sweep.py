"""The hardware sweep: rows, cliffs, LiteRT, and what a precision costs a run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.alphabet import Alphabet
from tfasr.bench import sweep
from tfasr.bench.backends import AxesTask, AxesTimes, measure_axes
from tfasr.bench.devices import expected_bytes, installed_backends
from tfasr.bench.sweep import (
    SweepConfig,
    SweepRow,
    axes_chart,
    axes_rows,
    axes_table,
    measure_errors,
    measure_inference,
    measure_training,
    smaller,
    sweep_chart,
    sweep_rows,
    sweep_tables,
    threads_table,
)
from tfasr.data.features import FeatureConfig
from tfasr.display.chart import Line
from tfasr.display.vega import picture_spec
from tfasr.errors import UsageError
from tfasr.exporting.litert import convert, runner
from tfasr.kit.process import call
from tfasr.models.model import MODELS
from tfasr.models.recurrent import AcousticModel, AcousticModelConfig
from tfasr.models.separable_conv import SeparableConvConfig

TINY = AcousticModelConfig(
    conv_filters=32, num_lstm_layers=1, lstm_units=32, lstm_kernel="generic"
)


def row(mode: str, precision: str, batch: int, p50_s: float | None, **more) -> SweepRow:
    return SweepRow(mode, precision, batch, p50_s, p50_s, p50_s, calls=5, **more)


ROWS = [
    row("inference", "float32", 1, 0.010, peak_memory_mib=500.0),
    row("inference", "float32", 2, 0.016),
    row("inference", "float32", 3, 0.030),
    row("inference", "int8", 1, 0.004),
    row("inference", "int8", 2, 0.009),
    row("training", "float32", 2, 0.1, peak_memory_mib=900.0, device_memory_mib=300.0),
    row("training", "float32", 4, None, reason="out of memory"),
]


def cliffs(rows, tolerance: float) -> list[bool]:
    return [row["cliff"] for row in sweep_rows(rows, 3.0, tolerance)]


def values(errors=None) -> dict:
    return {
        "rows": sweep_rows(ROWS, 3.0, 0.05),
        "errors": errors,
        "relative_logit_error": {"float32": 0.0, "int8": 0.0123},
        "frames": 300,
        "split": errors and "test",
    }


def test_a_cliff_is_an_utterance_slower_than_in_a_smaller_batch():
    assert cliffs(ROWS, 0.05) == [False, False, True, False, True] + [False] * 2
    # 4.5 ms an utterance instead of 4.0 is within a fifth.
    assert not cliffs(ROWS, 0.2)[4]


TIMES = st.lists(st.floats(1e-4, 10), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(TIMES, st.floats(0, 0.5))
def test_without_growth_per_utterance_there_is_no_cliff(seconds, tolerance):
    batches = range(1, len(seconds) + 1)
    falling = sorted(seconds, reverse=True)
    rows = [
        row("training", "float32", n, n * s)
        for n, s in zip(batches, falling, strict=True)
    ]
    assert not any(cliffs(rows, tolerance + 1e-9))
    rows = [
        row("training", "float32", n, n * s)
        for n, s in zip(batches, seconds, strict=True)
    ]
    flagged = sweep_rows(rows, 3.0, tolerance)
    assert not flagged[0]["cliff"]
    best = min(one["utterance_s"] for one in flagged)
    assert not any(one["cliff"] for one in flagged if one["utterance_s"] == best)
    # Neither other modes nor the order of the rows matter.
    reordered = sweep_rows([*ROWS[:5], *reversed(rows)], 3.0, tolerance)[5:]
    assert [one["cliff"] for one in reordered] == [
        one["cliff"] for one in flagged[::-1]
    ]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(1e-3, 1), min_size=1, max_size=300))
def test_quantiles_are_those_of_the_calls(seconds):
    made = SweepRow.of("inference", "int8", 2, seconds)
    assert made.calls == len(seconds)
    assert min(seconds) <= made.p50_s <= made.p90_s <= made.p99_s <= max(seconds)
    assert sum(one <= made.p90_s * (1 + 1e-9) for one in seconds) >= 0.9 * (
        len(seconds) - 1
    )
    assert sweep_rows([made], 3.0, 0.0)[0]["utterance_s"] == made.p50_s / 2


def test_memory_goes_on_in_a_line():
    assert expected_bytes([1], [100], 2) is None
    assert expected_bytes([1, 2, 4], [100, 110, 130], 8) == 170
    assert expected_bytes([1, 2], [100, 90], 8) == 90


def test_speed_is_compared_at_the_same_batch_size():
    speedups = [one["speedup_over_float32"] for one in sweep_rows(ROWS, 3.0, 0.05)]
    assert speedups[3] == pytest.approx(2.5)
    assert speedups[6] is None
    alone = sweep_rows([*ROWS[:5], row("training", "int8", 2, 0.1)], 3.0, 0.05)[-1]
    assert alone["speedup_over_float32"] is None


def test_tables_call_a_logit_error_by_its_name_and_never_word_errors():
    inference, training = sweep_tables(values(), calls=5, warmup=2)
    assert "relative\nlogit error" in inference.columns
    assert not any("WER" in column for column in inference.columns)
    assert any("word errors" in note for note in inference.notes)
    cells = [
        "LiteRT int8",
        "2",
        "9.00",
        "9.00",
        "9.00",
        "4.50",
        "666.7",
        "1.78",
        "0.012",
        "n/a",
    ]
    assert inference.rows[4] == [*cells, "cliff"]
    assert training.rows[0][-2:] == ["300", ""]
    assert training.rows[1][2:4] == ["n/a", "n/a"]
    assert training.rows[1][-1] == "out of memory"


def test_with_a_run_each_precision_shows_its_word_errors():
    rates = {"float32": 0.2, "int8": 0.21}
    counts = {
        name: {"wer": wer, "cer": wer / 2, "utterances": 9}
        for name, wer in rates.items()
    }
    inference, _, errors = sweep_tables(values(counts), calls=5, warmup=2)
    assert inference.rows[3][inference.columns.index("WER\n%")] == "21.00"
    assert errors.rows[1] == ["LiteRT int8", "21.00", "10.50", "+1.00", "9"]


def test_the_figure_has_a_curve_a_precision_and_rings_around_cliffs():
    latency, training = sweep_chart(values()).panels
    curves = [mark for mark in latency.marks if isinstance(mark, Line)]
    assert [curve.series for curve in curves] == [
        "float32",
        "LiteRT int8: logits ±1.2 %",
    ]
    assert list(curves[0].y) == [10, 16, 30]
    rings = [mark for mark in latency.marks if "cliff" in mark.series]
    assert list(rings[0].y) == [30, 9]
    (curve,) = (mark for mark in training.marks if isinstance(mark, Line))
    assert list(curve.y) == [20]


SEPARABLE = SeparableConvConfig(filters=(8,), kernels=(5,), repeats=1, last_kernel=5)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["tensorflow", "tensorflow_xla", "jax", "torch"])
def test_every_kind_of_network_is_measured_at_every_length(runtime):
    networks = {"recurrent": TINY, "convolutional": SEPARABLE.smaller(8)}
    frames = (40, 60)
    # Which compiles every network at every length, for seconds.
    if runtime == "tensorflow_xla":
        networks = {"recurrent": TINY}
        frames = (40,)

    task = AxesTask(networks, 20, frames, 2, 2, 1, runtime)
    if runtime in ("jax", "torch"):
        if runtime not in installed_backends():
            pytest.skip(f"needs {runtime}")
        found = call(measure_axes, task, backend=runtime)
    else:
        found = measure_axes(task)

    expected = [(name, length) for name in networks for length in frames]
    assert [(times.network, times.frames) for times in found] == expected
    assert [times.reason for times in found] == [""] * len(found)
    assert all(len(times.training_s) == len(times.inference_s) == 2 for times in found)
    assert min(times.first_s for times in found) > 0


def test_the_kinds_of_the_preset_have_small_versions():
    from tfasr.bench.perform import load_bench

    config = load_bench("bench/hardware_sweep_small.gin").configs[0]
    small = [smaller(name, config) for name in config.networks]
    assert [type(one) for one in small] == [
        type(MODELS[name]()) for name in config.networks
    ]
    assert all(
        one != MODELS[name]() for name, one in zip(config.networks, small, strict=True)
    )
    with pytest.raises(UsageError, match="deep_speech_2"):
        smaller("deep_speech_2", config)


def test_frameworks_are_compared_at_the_same_length_and_what_cannot_run_says_why():
    sizes = (4, (), "conformer", 100, 9)
    rows = [
        AxesTimes("tensorflow", *sizes, [0.1], [0.2, 0.4, 0.3], 2.0),
        AxesTimes("tensorflow_xla", *sizes, reason="no kernel"),
        AxesTimes("jax", *sizes, [0.1], [0.1], 2.0),
    ]
    rows = axes_rows(rows, frame_s=0.01)
    table = axes_table(rows, ["torch"])
    assert table.rows[0][4:] == ["100.0", "300.0", "13.33", "1.00", "2.0"]
    assert table.rows[1][4:] == ["n/a"] * 5
    assert table.rows[2][7] == "3.00"
    assert any("“no kernel”" in note for note in table.notes)
    assert "Not installed and left out: PyTorch eager." in table.notes
    assert len(picture_spec(axes_chart(rows))["concat"]) == 2


def test_each_number_of_threads_has_its_own_process_and_environment(monkeypatch):
    started = []

    def measured(function, task, *, backend, environment, **_):
        assert function is measure_axes
        names = ("OMP", "MKL", "TF_NUM_INTRAOP", "TF_NUM_INTEROP")
        threads = [
            environment[f"{name}{'_NUM' * (len(name) == 3)}_THREADS"] for name in names
        ]
        started.append((backend, *map(int, threads), task.threads[2]))
        seconds = 0.4 / int(threads[2])
        named = (task.runtime, task.batch, task.threads, *task.networks, *task.frames)
        return [AxesTimes(*named, 9, [0.1], [seconds], 2.0)]

    monkeypatch.setattr(sweep, "call", measured)
    monkeypatch.setattr(sweep, "installed_backends", lambda: ["tensorflow", "torch"])
    chosen = ((1, 1, 1), (3, 1, 1), (1, 2, 4))
    config = SweepConfig(threads=chosen, lengths=(30, 20), network_units=8)
    rows = axes_rows(sweep.thread_rows(config, FeatureConfig(), 1.0), 0.01)
    assert started == [
        (backend, openmp, openmp, intra, inter, inter)
        for backend in ("tensorflow", "torch")
        for openmp, intra, inter in chosen
    ]
    table = threads_table(rows)
    assert table.rows[2] == [
        "TensorFlow graph",
        "1",
        "2",
        "4",
        "100.0",
        "200.0",
        "2.00",
    ]
    assert table.rows[3][0] == "PyTorch eager"
    assert sweep.thread_rows(SweepConfig(), FeatureConfig(), 1.0) == []
    with pytest.raises(ValueError, match="threads"):
        SweepConfig(threads=((1, 0, 1),))


@pytest.mark.parametrize("wrong", [{"networks": ("perceptron",)}, {"lengths": ()}])
def test_axes_over_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SweepConfig(**wrong)


def test_litert_answers_as_keras_does_and_8_bits_nearly():
    model = AcousticModel(TINY.portable(), 30, seed=1)
    model.build((None, None, 93))
    features = np.random.default_rng(1).standard_normal((2, 40, 93), dtype=np.float32)
    lengths = np.array([40, 30], np.int32)
    wanted = model(features, lengths).numpy()
    exact, quantised = (
        convert(model, 2, 40, 93, quantised=choice) for choice in (False, True)
    )
    np.testing.assert_allclose(runner(exact, 1)(features, lengths), wanted, atol=1e-5)
    difference = np.abs(runner(quantised, 1)(features, lengths) - wanted).max()
    assert 1e-5 < difference < 0.2 * np.abs(wanted).max()
    assert len(quantised) < 0.5 * len(exact)


SMALL = {"frames": 40}


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "int8"])
def test_inference_is_measured_in_order_and_held_against_float32(precision):
    config = SweepConfig(**SMALL)
    rows, error = measure_inference(config, TINY, FeatureConfig(), precision, 3)
    assert [row.batch for row in rows] == [1, 2, 3, 4]
    assert [row.calls for row in rows] == [3] * 4
    assert all(0 < row.p50_s <= row.p99_s for row in rows)
    assert error == 0 if precision == "float32" else 1e-4 < error < 0.3


def test_training_stops_before_the_memory_is_full():
    config = SweepConfig(training_batches=(1, 2, 10**9), **SMALL)
    found = measure_training(config, TINY, FeatureConfig(), "float32", 3)
    assert [one.batch for one in found] == [1, 2, 10**9]
    assert [one.calls for one in found] == [3, 3, 0]
    assert "GiB" in found[-1].reason or "memory" in found[-1].reason


def test_a_runs_errors_are_counted_in_every_precision(shard_dir, tmp_path):
    from tfasr.data.shards import open_split
    from tfasr.training.build import build_model
    from tfasr.training.checkpoint import TrainingState, save_checkpoint
    from tfasr.training.experiment import Experiment
    from tfasr.training.run_folder import record_sources

    experiment = Experiment(model=TINY)
    split = open_split(shard_dir, "test")
    alphabet = Alphabet(**split.index["alphabet"])
    experiment.save(tmp_path, alphabet)
    record_sources(tmp_path, shard_dir, split.feature_statistics())
    save_checkpoint(
        tmp_path,
        build_model(experiment, alphabet, compiled=True),
        TrainingState(),
        keep=1,
    )
    found = {
        precision: measure_errors(
            tmp_path, "test", precision, checkpoint="last"
        ).to_json()
        for precision in ("float32", "litert_float32", "int8")
    }
    # The same weights by another runtime, at batch 1: the same texts, so the same
    # errors.
    assert found["litert_float32"] == found["float32"]
    assert (
        found["int8"]["utterances"]
        == found["float32"]["utterances"]
        == len(split.utterances)
    )
    assert found["float32"]["wer"] > 0.5  # nobody trained it
