import json
import math

import numpy as np
import pytest

from tests.tta.ledger_builder import LedgerBuilder, step_numbers
from tfasr.errors import UsageError
from tfasr.tta.metrics import METRICS, Metric, Metrics, check_target
from tfasr.tta.run import load_run


@pytest.fixture
def run(tmp_path):
    """A run that was resumed once and whose folder's name needs escaping."""
    ledger = LedgerBuilder().begin(init_s=2, targets=[["cer", 0.25]])
    ledger.epoch(1, 0.5, train_s=1.0, loss=9.0, decode_s=3.0).checkpoint()
    ledger.step(5.0, epoch=2)  # lost
    ledger.resume(down_s=100, from_step=2).epoch(2, 0.25, train_s=2.0).epoch(3, 0.2)

    return load_run(ledger.end().write(tmp_path / "<run>"))


def test_the_accuracy_curve_as_a_data_frame(run):
    pytest.importorskip("pandas", reason="needs the notebook extra")
    frame = run.to_dataframe()

    assert list(frame.columns) == ["epoch", "elapsed_s", "cer", "wer", "loss"]
    assert list(frame["epoch"]) == [1, 2, 3]
    assert list(frame["elapsed_s"]) == [7.0, 16.0, 18.0]
    assert list(frame["cer"]) == [0.5, 0.25, 0.2]
    assert list(run.to_dataframe("algoperf")["elapsed_s"]) == [2.0, 6.0, 8.0]
    with pytest.raises(ValueError, match="There is no policy"):
        run.to_dataframe("quick")


def test_the_steps_that_count_as_a_data_frame(run):
    pytest.importorskip("pandas", reason="needs the notebook extra")
    frame = run.steps_to_dataframe()

    assert list(frame["step"]) == [1, 2, 3, 4, 5, 6]
    assert list(frame["epoch"]) == [1, 1, 2, 2, 3, 3]
    assert list(frame["elapsed_s"]) == [3.0, 4.0, 14.0, 16.0, 17.0, 18.0]
    assert list(frame["loss"])[:2] == [9.0, 9.0]
    assert frame["utterances"].sum() == 24


def test_empty_runs_have_empty_frames_with_columns(tmp_path):
    pytest.importorskip("pandas", reason="needs the notebook extra")
    run = load_run(LedgerBuilder().begin().write(tmp_path / "run"))

    assert list(run.to_dataframe().columns) == ["epoch", "elapsed_s"]
    assert "train_s" in run.steps_to_dataframe().columns
    assert len(run.steps_to_dataframe()) == 0


def test_what_a_notebook_shows_of_a_run(run):
    html = run._repr_html_()

    assert "&lt;run&gt;" in html
    assert "<run>" not in html
    assert "18 s, at epoch 3" in html
    assert "lost work" in html
    assert "5.0 s" in html


def test_what_a_notebook_shows_of_a_time_to_accuracy(run):
    result = run.time_to_accuracy(cer=0.25)

    assert result.summary == "18 s, at epoch 3"
    assert "median of 3" in result._repr_html_()
    assert "18 s, at epoch 3" in result._repr_html_()


def test_a_notebook_says_never_where_the_target_was_not_reached(run):
    never = run.time_to_accuracy(cer=0.01, window=1)

    assert never.summary == "never"
    assert "first crossing" in never._repr_html_()


def test_lower_is_better_unless_it_is_said():
    error = Metric()
    accuracy = Metric("higher")

    assert (error.better, error.rate, error.label) == ("lower", False, "")
    assert [error.met(value, 0.5) for value in (0.4, 0.5, 0.6)] == [True, True, False]
    assert [accuracy.met(value, 0.5) for value in (0.4, 0.5, 0.6)] == [
        False,
        True,
        True,
    ]
    assert (error.worst, accuracy.worst) == (math.inf, -math.inf)
    assert error.best([0.3, math.nan, 0.2]) == 0.2
    assert accuracy.best([0.3, math.nan, 0.2]) == 0.3
    assert error.best([]) is accuracy.best([math.nan]) is None
    assert error.hardness(0.1) > error.hardness(0.2)
    assert accuracy.hardness(0.2) > accuracy.hardness(0.1)


def test_error_rates_and_accuracies_are_fractions_and_losses_are_not():
    assert {name for name in METRICS if METRICS[name].rate} >= {
        "cer", "wer", "cer_reference", "top1_error", "top5_error", "f1_error", "accuracy",
    }  # fmt: skip
    assert not METRICS["loss"].rate
    assert not METRICS["perplexity"].rate
    assert METRICS["accuracy"].better == "higher"


@pytest.mark.parametrize(
    "wrong", [{"better": "more"}, {"rate": 1}, {"label": 3}, {"rate": None}]
)
def test_a_metric_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(UsageError, match="A metric.* must"):
        Metric(**wrong)


def test_only_metrics_are_registered():
    with pytest.raises(
        (TypeError, UsageError), match=r"must be a tfasr\.tta\.metrics\.Metric"
    ):
        METRICS.register("no_metric", "lower")


def test_a_fraction_may_be_all_or_nothing():
    assert [check_target("cer", value) for value in (0, 1)] == [("cer", 0), ("cer", 1)]
    for value in (-0.01, 1.01, math.nan, math.inf, True, "0.1"):
        with pytest.raises(UsageError, match="fraction"):
            check_target("cer", value)

    assert check_target("loss", 3.5) == ("loss", 3.5)
    for value in (math.nan, -math.inf):
        with pytest.raises(UsageError):
            check_target("loss", value)


def test_a_name_with_two_meanings_is_refused_with_both():
    number = {"of_this_test": {"rate": False, "better": "higher"}}
    metrics = Metrics.of(number, "one/run")

    with pytest.raises(
        UsageError, match=r"as a fraction \(higher is better\), one/run as a number"
    ):
        metrics.declare(
            {"of_this_test": {"rate": True, "better": "higher"}}, "another/run"
        )


def test_reading_a_run_teaches_others_nothing(tmp_path):
    before = dict(METRICS)
    scored = LedgerBuilder().begin(
        targets=[["bleu", 0.3]],
        metrics={"bleu": {"better": "higher", "rate": True, "label": "BLEU"}},
    )
    scored.epoch(1, 0.5).event("tracked_stats", {"bleu": 0.4}, epoch_num=1)

    run = load_run(scored.end().write(tmp_path / "scored"))
    other = load_run(LedgerBuilder().begin().end().write(tmp_path / "other"))

    assert run.metrics["bleu"] == Metric("higher", rate=True, label="BLEU")
    assert {"cer", "bleu"} <= set(run.metrics)
    assert dict(METRICS) == before
    assert "bleu" not in other.metrics
    with pytest.raises(UsageError, match="one that a run declares"):
        other.time_to_accuracy(bleu=0.3)
    assert "BLEU" in str(run.explain(bleu=0.3, window=1))


@pytest.fixture
def run_dir(tmp_path):
    """The folder of a run of three epochs that meets CER 10 % after 8 s."""
    ledger = LedgerBuilder().begin(
        init_s=2, targets=[["cer", 0.1]], comparability={"beam": 8}
    )
    for epoch, cer in enumerate([0.5, 0.1, 0.1], start=1):
        ledger.epoch(epoch, cer, loss=1 / epoch)

    return ledger.end().write(tmp_path / "large")


def test_a_run_answers_from_its_ledger_alone(run_dir):
    run = load_run(run_dir)

    assert run.name == "large"
    assert run.cut is False
    assert run.status == "success"
    assert run.sessions == 1
    assert run.time_to_accuracy(cer=0.1).seconds == 8.0
    assert run.targets == [("cer", 0.1)]
    assert run.comparability == {"beam": 8}
    assert run.wall_s == 8.0
    assert run.intervals["train"] == 6.0
    assert run.intervals_until(4)["train"] == 2.0
    assert run.throughput(0).utterances_per_s == 4.0
    assert run.config is None
    assert run.operative_config is None
    assert run.system == {}
    assert run.hypotheses == []
    assert run.utilisation("gpu") == {}


def test_a_run_has_its_steps_in_order(run_dir):
    run = load_run(run_dir)

    steps = run.timeline.steps

    assert step_numbers(run) == [1, 2, 3, 4, 5, 6]
    assert [run.elapsed_s[index] for index in steps.indices] == [3, 4, 5, 6, 7, 8]
    assert steps.column("loss").tolist() == pytest.approx(
        [1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 3]
    )


def test_a_run_reads_what_lies_beside_the_ledger(run_dir):
    (run_dir / "config.gin").write_text("x = 1\n")
    (run_dir / "operative_config.gin").write_text("x = 1\ny = 2\n")
    (run_dir / "run.json").write_text(json.dumps({"cpus": 2}))
    (run_dir / "cpu.csv").write_text("time_ms,cpu_percent\n10,50.5\n20,\n30,9")
    (run_dir / "hypotheses").mkdir()
    (run_dir / "hypotheses" / "epoch-1.jsonl").write_text("{}\n")

    run = load_run(run_dir)

    assert (run.config, run.operative_config) == ("x = 1\n", "x = 1\ny = 2\n")
    assert run.system == {"cpus": 2}
    assert [path.name for path in run.hypotheses] == ["epoch-1.jsonl"]

    cpu = run.utilisation("cpu")

    assert cpu["time_ms"].tolist() == [10, 20, 30]
    np.testing.assert_array_equal(cpu["cpu_percent"], [50.5, np.nan, 9])


@pytest.mark.parametrize("content", ["", "time_ms,cpu_percent\n"])
def test_a_sampler_that_wrote_nothing_yet(run_dir, content):
    (run_dir / "cpu.csv").write_text(content)

    assert all(
        column.size == 0 for column in load_run(run_dir).utilisation("cpu").values()
    )


def test_one_target_is_asked_for_at_a_time(run_dir):
    with pytest.raises(ValueError, match="one target, such as cer=0.10"):
        load_run(run_dir).time_to_accuracy(cer=0.1, wer=0.2)


def test_a_ledger_cut_in_mid_line_is_used_up_to_there(run_dir):
    with (run_dir / "events.jsonl").open("a") as file:
        file.write('{"key": "run_s')

    run = load_run(run_dir)

    assert run.cut
    assert run.time_to_accuracy(cer=0.1).reached


def test_a_resumed_run_without_an_end_is_unfinished(tmp_path):
    ledger = LedgerBuilder().begin().event("run_stop", status="aborted")
    assert load_run(ledger.write(tmp_path)).status == "aborted"

    run = load_run(ledger.resume(down_s=1, from_step=None).write(tmp_path))
    assert (run.status, run.sessions) == ("unfinished", 2)


def test_a_missing_folder_is_no_run(tmp_path):
    with pytest.raises(UsageError, match="which does not exist"):
        load_run(tmp_path / "nowhere")


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="which is a file"):
        load_run(tmp_path / "file")


def test_a_folder_without_a_ledger_is_no_run(tmp_path):
    with pytest.raises(UsageError, match=r"must hold events\.jsonl"):
        load_run(tmp_path)


def test_an_empty_ledger_is_refused(tmp_path):
    (tmp_path / "events.jsonl").touch()

    with pytest.raises(UsageError, match="no events"):
        load_run(tmp_path)


def test_an_event_without_a_time_is_refused(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"key": "a", "time_ms": "soon"}\n' * 2)

    with pytest.raises(UsageError, match="time_ms must be a finite number"):
        load_run(tmp_path)


def test_a_line_that_is_no_event_is_refused_by_its_number(tmp_path):
    (tmp_path / "events.jsonl").write_text('garbage\n{"key": "a", "time_ms": 1}\n')

    with pytest.raises(UsageError, match="Line 1 "):
        load_run(tmp_path)


def test_a_run_without_steps_has_no_losses(tmp_path):
    steps = load_run(LedgerBuilder().begin().write(tmp_path)).timeline.steps

    assert len(steps) == steps.at_us.size == steps.column("loss").size == 0


def test_what_a_run_shows_of_itself(run_dir):
    run = load_run(run_dir)
    assert "tracked_stats" not in repr(run)

    html = run._repr_html_()

    assert "<td>6.0 s, 75.0 %</td>" in html
    assert "<td>8 s, at epoch 3</td>" in html


@pytest.mark.parametrize(
    "content", [{"system": []}, {"system": {"packages": []}}, {"system": 1}]
)
def test_facts_of_a_machine_are_objects(run_dir, content):
    (run_dir / "run.json").write_text(json.dumps(content))

    with pytest.raises(UsageError, match=r"run\.json must be JSON objects"):
        _ = load_run(run_dir).system
