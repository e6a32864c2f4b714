"""`tfasr bench scaling`: what it predicts of known truths, of published runs, of run folders."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.bench.scaling.fit import (
    BatchCurve,
    Link,
    MeasuredExchange,
    MeasuredStep,
    Measurements,
    PositiveFit,
    Prior,
    ScalingModel,
    SingleDeviceStep,
    TargetMet,
    WorkerPrediction,
    fit_link,
    fit_single_device,
    interval,
    ring_all_reduce_s,
)
from tfasr.bench.scaling.predict import local_exchanges
from tfasr.cli import parse, run

SERIES = json.loads((Path(__file__).parent / "mlperf_rnnt_h100.json").read_text())["series"]
SHARP = Prior(error=1e-6, weight=1e6)


def rng():
    return np.random.default_rng(0)


def holds(row: dict, name: str, value: float) -> bool:
    return row[f"{name}_low"] <= value <= row[f"{name}_high"]


@settings(deadline=None, max_examples=20)
@given(st.floats(1e-3, 10), st.floats(1e-3, 10), st.sets(st.integers(1, 500), min_size=2))
def test_a_sum_of_two_causes_is_found_again(fixed_s, per_row_s, rows):
    seconds = [fixed_s + per_row_s * n for n in sorted(rows)]
    fit = PositiveFit([(1, n) for n in sorted(rows)], seconds, SHARP, 100, rng())
    for n in rows:
        drawn = fit.drawn(1, n)
        assert np.median(drawn) == pytest.approx(fixed_s + per_row_s * n, rel=1e-3)
    assert (fit.coefficients >= 0).all()


def test_causes_that_cannot_be_told_apart_are_shared_out():
    fit = PositiveFit([(1, 16), (1, 16)], [2.0, 2.0], SHARP, 4000, rng())
    same, none = interval(fit.drawn(1, 16)), interval(fit.drawn(1, 0))
    assert same[::2] == pytest.approx((2, 2), rel=1e-3)
    assert none[::2] == pytest.approx((0.1, 1.9), abs=0.03)  # 4 errors of 4000 draws
    only = PositiveFit([(0, 5)], [1.0], SHARP, 10, rng())
    assert only.drawn(7, 10) == pytest.approx([2.0] * 10, rel=1e-3)


def test_a_cause_that_would_be_negative_is_none():
    # Less for more rows: no row costs anything. More than in proportion: nothing is fixed.
    falling = PositiveFit([(1, 1), (1, 2)], [2.0, 1.9], SHARP, 10, rng())
    assert falling.coefficients[:, 1] == pytest.approx([0] * 10, abs=1e-3)
    steep = PositiveFit([(1, 1), (1, 2)], [1.0, 2.2], SHARP, 10, rng())
    assert steep.coefficients[:, 0] == pytest.approx([0] * 10, abs=1e-3)


@pytest.mark.parametrize("critical", [100.0, 1e9])
def test_a_critical_batch_is_found_between_measured_ones(critical):
    points = [TargetMet(b, 1e5 * (1 + b / critical)) for b in (16, 64, 256)]
    curve = BatchCurve(points, 2000, rng(), SHARP)
    assert np.median(curve.drawn(128)) == pytest.approx(1e5 * (1 + 128 / critical), rel=0.02)
    if critical < 1e6:
        assert np.median(curve.critical_batch) == pytest.approx(critical, rel=0.05)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(1e3, 1e7)), min_size=1, max_size=8))
def test_larger_batches_take_no_fewer_utterances_and_no_more_steps(points):
    curve = BatchCurve([TargetMet(*point) for point in points], 200, rng(), SHARP)
    small, large = (np.median(curve.drawn(batch)) for batch in (8, 8000))
    assert large >= 0.99 * small
    assert large / 8000 <= 1.01 * small / 8


def test_intervals_hold_what_they_promise():
    """Ninety percent of new runs of a known truth, whose curve and step are of the fitted kind."""
    draw, held, size, link = np.random.default_rng(1), 0, 4e6, Link(1e8)
    trials = 100
    for trial in range(trials):
        critical, power, by_power = draw.uniform(50, 500), draw.uniform(0.2, 0.8), trial % 2

        def utterances(batch, critical=critical, power=power, by_power=by_power):
            shape = batch**power if by_power else 1 + batch / critical
            return 1e4 * shape * math.exp(0.06 * draw.standard_normal())

        def step_s(rows):
            return (0.05 + 0.01 * rows) * math.exp(0.08 * draw.standard_normal())

        measured = Measurements(
            [MeasuredStep(rows, step_s(rows)) for rows in (8, 16, 32)],
            size,
            link,
            targets=[TargetMet(b, utterances(b)) for b in (16, 16, 32, 32, 64, 64)],
        )
        found = WorkerPrediction(measured, seed=trial).run(8, 128)
        seconds = utterances(128) / 128 * (step_s(16) + ring_all_reduce_s(8, size, link))
        held += holds(found, "target_s", seconds)
    assert 0.86 * trials <= held <= trials - 1


def published(gpus):
    return [one for one in SERIES if one["gpus"] in gpus]


def trained(one):
    return [epochs * one["samples"] for epochs in one["epochs"]]


def steps_s(one):
    steps = [utterances / one["batch"] for utterances in trained(one)]
    return [s / count for s, count in zip(one["seconds"], steps, strict=True)]


def of_published(gpus) -> WorkerPrediction:
    """Evaluation and exchange are in these steps; the exchange changes little with many workers."""
    known = published(gpus)
    measured = Measurements(
        [
            MeasuredStep(one["batch"] / one["gpus"], statistics.median(steps_s(one)))
            for one in known
        ],
        gradient_bytes=0,
        link=Link(math.inf),
        targets=[TargetMet(one["batch"], u) for one in known for u in trained(one)],
    )
    return WorkerPrediction(measured)


def test_times_to_train_of_published_runs_lie_where_other_sizes_predict_them():
    held, runs_held, predicted = [], 0, 0
    sizes = [(8,), (8, 64), (8, 16), (4, 8, 16), (16, 64), (4, 8, 16, 64), (8, 512), (64, 512)]
    for gpus in sizes:
        prediction = of_published(gpus)
        for one in SERIES:
            if one["gpus"] not in gpus:
                found = prediction.run(one["gpus"], one["batch"])
                held.append(holds(found, "target_s", statistics.median(one["seconds"])))
                runs_held += sum(holds(found, "target_s", seconds) for seconds in one["seconds"])
                predicted += len(one["seconds"])
    assert len(held) == 24
    assert sum(held) >= 21
    assert runs_held >= 0.9 * predicted
    # Not because they were wide: 64 GPUs, between 8 and 512, to a third either way.
    between = of_published((8, 512)).run(64, 2048)
    assert between["target_s_high"] / between["target_s_low"] < 2
    assert between["target_s"] == pytest.approx(252.8, rel=0.1)


def write_run(
    folder, batch, epochs, *, step_s, workers=1, exchange_s=0.0, comparability=None, **link
):
    """Meets cer=0.1 in its last epoch of 320 utterances; 5 s of start, 2 s of evaluation each."""
    ledger = LedgerBuilder().begin(init_s=5, comparability=comparability or {"split": "v"})
    ledger.event("global_batch_size", batch).event("parameters", 250_000)
    ledger.event("num_replicas", workers)
    if workers > 1:
        ledger.event("cluster", {"workers": workers, "gradient_bytes": 1_000_000, **link})
    for epoch in range(1, epochs + 1):
        for _ in range(320 // batch):
            ledger.step(step_s, epoch=epoch, utterances=batch)
        ledger.evaluate(epoch, 0.05 if epoch == epochs else 0.5, forward_s=1.5, decode_s=0.5)
        ledger.event("epoch_stop", None, "INTERVAL_END", epoch_num=epoch)
    run_dir = ledger.end().write(folder)
    for rank in range(workers if workers > 1 else 0):
        value = {"utterances": batch // workers, "input_wait_s": 0.0, "compiled": False}
        value |= {"step_s": step_s, "ready_s": step_s - exchange_s}
        events = [
            {
                "key": "worker_step",
                "time_ms": 1,
                "value": value,
                "metadata": {"session": 0, "step": n},
            }
            for n in range(1, 320 // batch * epochs + 1)
        ]
        text = "".join(json.dumps(event) + "\n" for event in events)
        (run_dir / f"events-worker-{rank}.jsonl").write_text(text)
    return str(run_dir)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Steps of 0.1 s and 0.01 s a row; twice the utterances at a batch of 64 as at 16."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        write_run(folder / "16", 16, 16, step_s=0.26),
        write_run(folder / "32", 32, 22, step_s=0.42),
        write_run(folder / "64", 64, 32, step_s=0.74),
    ]


def bench(*arguments) -> int:
    return run(parse(["tfasr", "bench", "scaling", *arguments]))


def predicted(capsys, *arguments) -> list[dict]:
    assert bench(*arguments, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)["predicted"]


def test_runs_and_a_link_give_steps_and_minutes(runs, capsys, tmp_path):
    flags = ["--target", "cer=0.1", "--window", "1", "--workers", "1,2,4", "--out", str(tmp_path)]
    flags += ["--global_batch_size", "64", "--link_gbit_s", "0.016"]
    one, two, four = predicted(capsys, *runs, *flags)
    # A megabyte at 2 MB/s: half a second between two, three quarters between four; TCP gets 85 %.
    for row, rows, ring_s in ((one, 64, 0), (two, 32, 0.5), (four, 16, 0.75)):
        exchange_s = ring_s / 0.85
        step_s = 0.1 + 0.01 * rows + exchange_s
        assert row["step_s"] == pytest.approx(step_s, rel=0.05)
        assert row["step_s_low"] < step_s < row["step_s_high"]
        assert row["exchange_s"] == pytest.approx(exchange_s, rel=0.01)
        assert row["exchange_s_low"] == pytest.approx(ring_s / 0.94, rel=0.01)
        assert row["utterances"] == pytest.approx(64 * 160, rel=0.08)
        # 160 steps, 5 s of start, 32 evaluations of 2 s shared out.
        seconds = 160 * step_s + 5 + 64 / (64 / rows)
        assert row["target_s"] == pytest.approx(seconds, rel=0.12)
        assert row["target_s_low"] < seconds < row["target_s_high"]
    assert [row["beyond"] for row in (one, two, four)] == ["", "", ""]
    names = {path.name for path in tmp_path.iterdir()}
    assert {"results.json", "table.md", "prediction.png", "prediction.svg"} <= names
    unlimited = [*flags[:4], *flags[8:10], "--link_gbit_s", "1e9", "--workers"]
    two, more = predicted(capsys, *runs, *unlimited, "2,64")
    assert more["beyond"] == "rows"
    # One row is further from 16 to 64 than 32 are: less is known of what is computed.
    wide, narrow = (row["step_s_high"] / row["step_s_low"] for row in (more, two))
    assert wide > 2 * narrow


def test_batches_that_are_not_full_take_more_steps(capsys, tmp_path):
    """Half of the steps have 16 rows and half 8, as with rests: 12 on average."""
    ledger = LedgerBuilder().begin(comparability={"split": "v"}).event("global_batch_size", 16)
    ledger.event("parameters", 250_000)
    for number in range(40):
        ledger.step(0.26 - 0.08 * (number % 2), epoch=1, utterances=16 - 8 * (number % 2))
    path = str(ledger.evaluate(1, 0.05).event("epoch_stop", epoch_num=1).end().write(tmp_path))
    flags = ["--target", "cer=0.1", "--window", "1", "--workers", "1"]
    (found,) = predicted(capsys, path, *flags)
    assert found["step_s"] == pytest.approx(0.22, rel=0.03)
    assert found["utterances"] == pytest.approx(480, rel=0.08)
    assert found["target_s"] == pytest.approx(40 * 0.22, rel=0.08)


def test_runs_of_several_workers_tell_their_exchange(runs, capsys, tmp_path):
    pair = write_run(tmp_path / "pair", 32, 22, step_s=0.36, workers=2, exchange_s=0.1)
    two, four = predicted(capsys, *runs, pair, "--workers", "2,4", "--rows_per_worker", "16")
    assert (two["global_batch"], four["global_batch"]) == (32, 64)
    assert two["exchange_s"] == pytest.approx(0.1, rel=0.05)
    # Of two workers' exchange nobody knows which part is latency, which grows three times as long.
    assert four["exchange_s_low"] < 0.16
    assert four["exchange_s_high"] > 0.28
    assert four["beyond"] == "workers"
    # Unless the workers noted how long a few numbers took: here half of the exchange is latency.
    link = {"small_bytes": 4000, "small_s": 0.05}
    noted = write_run(tmp_path / "noted", 32, 22, step_s=0.36, workers=2, exchange_s=0.1, link=link)
    (four,) = predicted(capsys, *runs, noted, "--workers", "4", "--rows_per_worker", "16")
    assert four["exchange_s"] == pytest.approx(3 * 0.05 + 0.05 * 6 / 4, rel=0.05)
    # Over a loopback, a link comes on top; otherwise it stands instead.
    link = ["--workers", "2", "--global_batch_size", "32", "--link_gbit_s", "0.016"]
    (on_top,) = predicted(capsys, *runs, pair, *link, "--over_loopback")
    (instead,) = predicted(capsys, *runs, pair, *link)
    assert on_top["exchange_s"] == pytest.approx(0.1 + 0.5 / 0.85, rel=0.05)
    assert instead["exchange_s"] == pytest.approx(0.5 / 0.85, rel=0.01)
    (Path(pair) / "events-worker-1.jsonl").unlink()
    assert bench(pair) == 2
    assert "Copy the others" in capsys.readouterr().err


def test_the_scaling_workload_is_a_source_of_steps(capsys, tmp_path):
    def times(name, rows, seconds, loader=""):
        load = {"name": name, "per_device_batch": rows, "loader": loader}
        return {"load": load, "step_s": [9.0, *[seconds] * 4], "input_wait_s": [0.0] * 5}

    all_reduce = [{"size_bytes": 4096, "seconds": 0.01}, {"size_bytes": 1_000_000, "seconds": 0.11}]
    one = {"devices": 1, "gradient_bytes": 1_000_000, "all_reduce": []}
    one["loads"] = [
        times("weak", 8, 0.18),
        times("strong", 16, 0.26),
        times("weak", 8, 5, "loader"),
    ]
    two = {**one, "devices": 2, "all_reduce": all_reduce}
    path = tmp_path / "results.json"
    values = {"workload": "scaling", "warmup_steps": 1, "results": {"processes": [one, two]}}
    path.write_text(json.dumps(values))
    (found,) = predicted(
        capsys, "--measured", str(path), "--workers", "2", "--rows_per_worker", "8"
    )
    assert found["step_s"] == pytest.approx(0.18 + 0.11, rel=0.05)
    path.write_text(json.dumps({**values, "workload": "ds2"}))
    assert bench("--measured", str(path)) == 2
    assert "workload 'scaling'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--link_gbit_s"),
        (["--link_gbit_s", "-1"], "--link_gbit_s must be above 0"),
        (["--link_latency_us", "5"], "and needs --link_gbit_s"),
        (["--workers", "0"], "above 0"),
        (["--link_gbit_s", "1", "--target", "cer=0.01"], "3 runs"),
        (["--rows_per_worker", "4", "--global_batch_size", "16"], "exclude"),
        (["--global_batch_size", "2", "--workers", "4", "--link_gbit_s", "1"], "an utterance"),
        (["--overlap", "2"], "--overlap"),
    ],
)
def test_what_cannot_be_predicted_is_refused(runs, capsys, flags, said):
    assert bench(*runs, *flags) == 2
    assert said in capsys.readouterr().err


def test_runs_that_missed_the_target_are_named(runs, capsys, tmp_path):
    missed = LedgerBuilder().begin(comparability={"split": "v"}).event("global_batch_size", 16)
    missed.event("parameters", 250_000)
    for _ in range(20):
        missed.step(0.26, utterances=16)
    path = str(missed.evaluate(1, 0.9).end().write(tmp_path / "missed"))
    flags = ["--target", "cer=0.1", "--window", "1", "--link_gbit_s", "1", "--workers", "2"]
    assert bench(*runs, path, *flags) == 0
    assert "1 runs never met the target" in capsys.readouterr().out
    other = write_run(tmp_path / "other", 16, 2, step_s=0.26, comparability={"split": "w"})
    assert bench(*runs, other, *flags) == 2
    assert "must be comparable" in capsys.readouterr().err


def test_an_exchange_is_measured_between_two_processes():
    little, much = local_exchanges(8_000_000)
    assert (little.workers, little.gradient_bytes, much.gradient_bytes) == (2, 4096, 8_000_000)
    assert 0 < little.seconds < much.seconds
    measured = Measurements([MeasuredStep(8, 0.1)], 8e6, exchanges=[little, much])
    assert holds(WorkerPrediction(measured).run(2, 16), "exchange_s", much.seconds)


def test_a_prediction_needs_steps_and_an_exchange():
    for steps, exchanges in (([], [MeasuredExchange(2, 1e6, 0.1)]), ([MeasuredStep(8, 0.1)], [])):
        with pytest.raises(ValueError, match="needs measured steps and a link"):
            WorkerPrediction(Measurements(steps, 1e6, exchanges=exchanges))


SECONDS = st.floats(1e-6, 10)
LINKS = st.builds(Link, st.floats(1e6, 1e12), st.floats(0, 1e-2))
MODELS = st.builds(
    ScalingModel,
    st.builds(SingleDeviceStep, SECONDS, SECONDS),
    st.floats(0, 1e10),
    LINKS,
    st.floats(0, 1),
    st.floats(0, 1),
)
COUNTS = st.integers(1, 1024)


def test_a_ring_by_hand():
    # 4 devices: 6 messages of 250 bytes at 1000 bytes/s, 0.01 s each besides.
    assert ring_all_reduce_s(4, 1000, Link(1000, 0.01)) == pytest.approx(6 * 0.26)
    assert ring_all_reduce_s(1, 1e12, Link(1.0, 1.0)) == 0
    model = ScalingModel(SingleDeviceStep(1.0, 0.1), 1000, Link(1000, 0.01), overlap=0.5)
    assert model.step_s(4, 10) == pytest.approx(2.0 + 1.56 / 2)
    assert model.weak_efficiency(4, 10) == pytest.approx(2.0 / 2.78)
    assert model.strong_efficiency(4, 40) == pytest.approx(5.0 / (4 * 2.78))


@settings(deadline=None, max_examples=100)
@given(MODELS, COUNTS, st.integers(1, 512))
def test_more_devices_are_never_better_than_ideal(model, devices, batch):
    assert model.step_s(1, batch) == pytest.approx(model.single.seconds(batch))
    assert model.step_s(devices, batch) >= model.single.seconds(batch)
    for efficiency in (
        model.weak_efficiency(devices, batch),
        model.strong_efficiency(devices, batch * devices),
    ):
        assert 0 < efficiency <= 1 + 1e-9
    assert model.step_s(devices + 1, batch) >= model.step_s(devices, batch) * (1 - 1e-9)


@settings(deadline=None, max_examples=100)
@given(COUNTS, st.integers(0, 10**12), LINKS)
def test_bandwidth_bounds_a_ring_whatever_its_length(devices, size, link):
    seconds = ring_all_reduce_s(devices, size, link)
    most = 2 * size / link.bytes_per_s + 2 * devices * link.latency_s
    assert 0 <= seconds <= most * (1 + 1e-9)
    assert ring_all_reduce_s(devices, 2 * size, link) >= seconds


@settings(deadline=None, max_examples=100)
@given(MODELS, st.integers(2, 256), st.integers(1, 64), st.floats(0, 1))
def test_overlap_hides_no_more_than_the_exchange_and_the_backward_pass(model, devices, batch, more):
    def exposed(overlap: float) -> float:
        changed = ScalingModel(
            model.single, model.gradient_bytes, model.link, overlap, model.backward_share
        )
        return changed.step_s(devices, batch) - model.single.seconds(batch)

    bare, hidden = exposed(0.0), exposed(more)
    tolerance = 1e-9 * (bare + model.single.seconds(batch))
    assert -tolerance <= hidden <= bare + tolerance
    assert bare - hidden <= model.backward_share * model.single.seconds(batch) + tolerance


@settings(deadline=None, max_examples=50)
@given(MODELS, st.integers(2, 64), st.integers(1, 64))
def test_slices_of_one_processor_gain_nothing(model, devices, batch):
    sliced = ScalingModel(model.single, model.gradient_bytes, model.link, shared_cores=True)
    assert sliced.weak_efficiency(devices, batch) <= 1 / devices + 1e-9
    assert sliced.strong_efficiency(devices, batch * devices) <= 1 / devices + 1e-9


@settings(deadline=None, max_examples=50)
@given(st.floats(1e6, 1e11), st.floats(1e-6, 1e-2), st.integers(2, 8), st.integers(2, 8))
def test_a_link_is_found_again_in_its_own_times(bandwidth, latency_s, first, second):
    link = Link(bandwidth, latency_s)
    # Sizes around the one whose transfer takes as long as the latency tell the two apart.
    size = bandwidth * latency_s
    assume(size > 1)
    devices, sizes = [first, first, second], [size / 4, 4 * size, 16 * size]
    seconds = [ring_all_reduce_s(n, s, link) for n, s in zip(devices, sizes, strict=True)]
    found = fit_link(devices, sizes, seconds)
    assert found.bytes_per_s == pytest.approx(bandwidth, rel=1e-3)
    assert found.latency_s == pytest.approx(latency_s, rel=1e-3)


def test_a_link_that_is_all_latency_has_no_bandwidth_to_speak_of():
    found = fit_link([2, 2], [1e3, 1e6], [0.01, 0.01])
    assert ring_all_reduce_s(2, 1e6, found) == pytest.approx(0.01, rel=0.01)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 5), st.floats(0.01, 5), st.sets(st.integers(1, 300), min_size=2))
def test_a_step_is_found_again_in_its_own_times(fixed_s, per_utterance_s, batches):
    step = SingleDeviceStep(fixed_s, per_utterance_s)
    found = fit_single_device(sorted(batches), [step.seconds(b) for b in sorted(batches)])
    for batch in batches:
        assert found.seconds(batch) == pytest.approx(step.seconds(batch), rel=1e-3)


def test_one_batch_alone_leaves_nothing_fixed():
    assert fit_single_device([4], [2.0]) == SingleDeviceStep(0.0, 0.5)
