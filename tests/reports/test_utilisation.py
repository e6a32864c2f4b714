import numpy as np
import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.reports.figures.time import steady_window, utilisation_chart
from tfasr.reports.groups import load_report
from tfasr.reports.numbers import ask
from tfasr.tta.run import load_run


def long_run(*, evaluation_s=4.0, steps=60):
    """Ten steps of a second to warm up, and an evaluation after 40 s."""
    ledger = LedgerBuilder().begin(init_s=3)
    for number in range(steps):
        if number == 40:
            ledger.evaluate(
                1, 0.5, forward_s=evaluation_s / 2, decode_s=evaluation_s / 2
            )

        ledger.step(0.75, wait_s=0.25, compile_s=0)

    return ledger.end()


def sample(
    run_dir, busy, *, device="cpu", first_ms=1_700_000_000_000, every_ms=30, seconds=70
):
    """Writes samples of a processor or of two GPUs; `busy` maps a second to percent."""
    times = range(first_ms, first_ms + 1000 * seconds, every_ms)
    if device == "cpu":
        lines = [
            "time_ms,cpu_percent",
            *(f"{t},{busy((t - first_ms) / 1000)}" for t in times),
        ]
    else:
        lines = ["time_ms,gpu,utilisation_percent,memory_used_bytes,power_w"]
        for t in times:
            lines += [
                f"{t},{gpu},{busy((t - first_ms) / 1000) + gpu},0,0" for gpu in range(2)
            ]

    (run_dir / f"{device}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def dipped_run(tmp_path):
    """A run whose processor is used less during its evaluation."""
    run_dir = long_run().write(tmp_path / "run")
    sample(run_dir, lambda now: 20 if 43 <= now < 47 else 80)
    return run_dir


def test_the_window_has_an_evaluation_in_it_and_steps_on_both_sides(dipped_run):
    window = steady_window(load_run(dipped_run))

    assert window.length_s == 25
    # The evaluation begins 43 s into the run; half of what is left of 25 s lies before
    # it.
    assert window.start_s == 32
    assert set(window.phases) == {"input_wait", "train", "eval_forward", "decode"}
    np.testing.assert_allclose(sum(window.phases.values()), 1, atol=1e-9)


def test_the_shares_of_the_phases_are_of_the_windows_seconds(dipped_run):
    window = steady_window(load_run(dipped_run))

    seconds = {n: (s * np.diff(window.edges_s)).sum() for n, s in window.phases.items()}
    assert seconds == pytest.approx(
        {"input_wait": 5.25, "train": 15.75, "eval_forward": 2, "decode": 2}
    )


def test_samples_lie_in_the_window_where_they_were_taken(dipped_run):
    window = steady_window(load_run(dipped_run))

    at, percent = window.devices["CPU"]
    inside = (at > 11.5) & (at < 14.5)

    assert set(percent[inside]) == {20}
    assert set(percent[at < 10.5]) == {80}


def test_a_window_without_evaluation_begins_after_the_warm_up(tmp_path):
    ledger = LedgerBuilder().begin(init_s=3)
    for _ in range(20):
        ledger.step(1.0)

    run_dir = ledger.end().write(tmp_path / "run")
    sample(run_dir, lambda now: 50)

    window = steady_window(load_run(run_dir))

    assert (window.start_s, window.length_s) == (13, 10)


def test_each_gpu_is_a_line_as_it_was_sampled(tmp_path):
    run_dir = long_run().write(tmp_path / "run")
    sample(run_dir, lambda now: 60, device="gpu", every_ms=100)

    window = steady_window(load_run(run_dir))

    assert set(window.devices) == {"GPU 0", "GPU 1"}

    for number, name in enumerate(window.devices):
        seconds, percent = window.devices[name]

        assert set(percent) == {60 + number}
        np.testing.assert_allclose(np.diff(seconds), 0.1, atol=1e-6)


def test_the_training_process_stands_beside_the_machine_where_it_was_sampled(tmp_path):
    run_dir = long_run().write(tmp_path / "run")
    sample(run_dir, lambda now: 50)
    header, *rows = (run_dir / "cpu.csv").read_text().splitlines()
    both = [f"{header},process_percent", *(f"{row},30" for row in rows)]
    (run_dir / "cpu.csv").write_text("\n".join(both) + "\n")

    window = steady_window(load_run(run_dir))

    assert set(window.devices["CPU"][1]) == {50}

    seconds, percent = window.devices["CPU, training process"]

    assert set(percent) == {30}
    # 25 s, a sample every 0.03 s, none averaged away.
    assert percent.size == pytest.approx(25 / 0.03, abs=2)
    assert np.diff(seconds).max() == pytest.approx(0.03, abs=1e-6)


def test_samples_of_a_resumed_run_are_put_beside_their_own_session(tmp_path):
    ledger = LedgerBuilder().begin(init_s=1).step().checkpoint()
    ledger.resume(down_s=500, from_step=1, init_s=1)
    for _ in range(30):
        ledger.step(1.0)

    run_dir = ledger.end().write(tmp_path / "run")
    sample(run_dir, lambda now: 10 if now < 502 else 90, seconds=540)

    window = steady_window(load_run(run_dir))

    # 2 s of the first session, none of the downtime, 1 s of initialisation, ten steps.
    assert window.start_s == 13
    assert set(window.devices["CPU"][1]) == {90}


@pytest.mark.parametrize("case", ["no file", "empty", "another time", "too short"])
def test_without_samples_of_steps_there_is_no_window(case, tmp_path):
    if case == "too short":
        ledger = LedgerBuilder().begin(init_s=3).step()
    else:
        ledger = long_run()

    run_dir = ledger.write(tmp_path / "run")
    if case == "empty":
        (run_dir / "cpu.csv").write_text("")
    elif case == "another time":
        sample(run_dir, lambda now: 1, first_ms=1_500_000_000_000)
    elif case == "too short":
        sample(run_dir, lambda now: 1)

    assert steady_window(load_run(run_dir)) is None


def test_a_figure_that_is_left_out_is_said(tmp_path):
    run_dir = long_run().write(tmp_path / "run")
    report([run_dir], out=tmp_path / "out", targets=["cer=0.1"])

    assert not (tmp_path / "out" / "utilisation.png").exists()

    page = (tmp_path / "out" / "report.html").read_text()
    assert "Utilisation: no run has a cpu.csv or gpu.csv with samples" in page


def test_the_figure_is_drawn_where_there_are_samples(tmp_path):
    run_dir = long_run().write(tmp_path / "run")
    sample(run_dir, lambda now: 50)

    report([run_dir], out=tmp_path / "out", targets=["cer=0.1"])

    for kind in ("png", "svg"):
        assert (tmp_path / "out" / f"utilisation.{kind}").is_file()

    svg = (tmp_path / "out" / "utilisation.svg").read_text()
    for label in ("CPU", "input wait", "train", "eval forward", "decode"):
        assert f">{label}</text>" in svg


@pytest.fixture
def sampled_run(tmp_path):
    """A run with samples of its processor and of two GPUs."""
    run_dir = long_run().write(tmp_path / "run")
    sample(run_dir, lambda now: 50)
    sample(run_dir, lambda now: 60, device="gpu", every_ms=100)
    return run_dir


def test_the_chart_has_processors_above_the_phases(sampled_run):
    chart = utilisation_chart(load_report([sampled_run], ask(["cer=0.1"])), [])
    cpu, gpu, phases = chart.panels

    assert [mark.series for mark in cpu.marks] == ["CPU"]
    assert [mark.series for mark in gpu.marks] == ["GPU 0", "GPU 1"]
    assert len({mark.colour for mark in [*cpu.marks, *gpu.marks]}) == 3
    assert {panel.x.limits for panel in chart.panels} == {(0.0, 25.0)}
    assert [mark.series for mark in phases.marks] == [
        "input wait", "train", "eval forward", "decode",
    ]  # fmt: skip


def test_the_phases_fill_their_strip(sampled_run):
    chart = utilisation_chart(load_report([sampled_run], ask(["cer=0.1"])), [])
    *_, phases = chart.panels

    # Bins that are alike and side by side are one rectangle; together they fill the
    # strip.
    area = sum(
        (x1 - x0) * (y1 - y0)
        for mark in phases.marks
        for x0, x1, y0, y1 in zip(mark.x0, mark.x1, mark.y0, mark.y1, strict=True)
    )
    assert area == pytest.approx(25, abs=0.2)

    evaluation = next(mark for mark in phases.marks if mark.series == "eval forward")
    assert len(evaluation.x0) <= 3
