import json

import numpy as np
import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.errors import UsageError
from tfasr.tta.run import load_run


@pytest.fixture
def run_dir(tmp_path):
    ledger = LedgerBuilder().begin(init_s=2, targets=[["cer", 0.1]], comparability={"beam": 8})
    for epoch, cer in enumerate([0.5, 0.1, 0.1], start=1):
        ledger.epoch(epoch, cer, loss=1 / epoch)
    return ledger.end().write(tmp_path / "large")


def test_a_run_answers_from_its_ledger_alone(run_dir):
    run = load_run(run_dir)
    assert (run.name, run.cut, run.status, run.sessions) == ("large", False, "success", 1)
    assert run.time_to_accuracy(cer=0.1).seconds == 8.0
    assert run.targets == [("cer", 0.1)]
    assert run.comparability == {"beam": 8}
    assert run.wall_s == 8.0
    assert run.intervals["train"] == 6.0
    assert run.intervals_until(4)["train"] == 2.0
    assert run.throughput(0).utterances_per_s == 4.0
    assert (run.config, run.operative_config, run.system, run.hypotheses) == (None, None, {}, [])
    assert run.utilisation("gpu") == {}
    curve = run.loss_curve()
    assert curve.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert curve.elapsed_s.tolist() == [3, 4, 5, 6, 7, 8]
    assert curve.loss.tolist() == pytest.approx([1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 3])


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
    assert all(column.size == 0 for column in load_run(run_dir).utilisation("cpu").values())


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


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="which does not exist"):
        load_run(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="which is a file"):
        load_run(tmp_path / "file")
    with pytest.raises(UsageError, match=r"must hold events\.jsonl"):
        load_run(tmp_path)
    (tmp_path / "events.jsonl").touch()
    with pytest.raises(UsageError, match="holds none"):
        load_run(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"key": "a", "time_ms": "soon"}\n' * 2)
    with pytest.raises(UsageError, match="time_ms must be a finite number"):
        load_run(tmp_path)
    (tmp_path / "events.jsonl").write_text('garbage\n{"key": "a", "time_ms": 1}\n')
    with pytest.raises(UsageError, match="Line 1 is not"):
        load_run(tmp_path)


def test_a_run_without_steps_has_an_empty_loss_curve(tmp_path):
    curve = load_run(LedgerBuilder().begin().write(tmp_path)).loss_curve()
    assert curve.steps.size == curve.elapsed_s.size == curve.loss.size == 0


def test_what_a_run_shows_of_itself(run_dir):
    run = load_run(run_dir)
    assert "tracked_stats" not in repr(run)
    html = run._repr_html_()
    assert "<td>6.0 s, 75.0 %</td>" in html
    assert "<td>8 s, at epoch 3</td>" in html


@pytest.mark.parametrize("content", [{"system": []}, {"system": {"packages": []}}, {"system": 1}])
def test_facts_of_a_machine_are_objects(run_dir, content):
    (run_dir / "run.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"run\.json must hold objects as system"):
        _ = load_run(run_dir).system
