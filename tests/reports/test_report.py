import json
import math
import subprocess
import sys

import pytest

from tests.reports.conftest import COMPARABLE, ledger_of
from tests.tta.ledger_builder import LedgerBuilder
from tfasr.commands.report import report
from tfasr.errors import RunError, UsageError
from tfasr.reports.numbers import analyse_run, ask
from tfasr.tta.run import load_run


def objects(*run_dirs, **options):
    return json.loads(report(run_dirs, output_format="json", **options))


def test_json_has_an_object_for_each_run_and_target(small, large):
    found = objects(small, large, targets=["cer=0.10", ("cer", 0.05)])
    assert [(one["run"], one["metric"], one["target"]) for one in found] == [
        ("small", "cer", 0.1),
        ("small", "cer", 0.05),
        ("large", "cer", 0.1),
        ("large", "cer", 0.05),
    ]
    assert [one["time_to_accuracy_s"] for one in found] == [8.0, None, 12.0, None]
    assert [one["epoch"] for one in found] == [3, None, 5, None]
    assert [one["relative"] for one in found] == [1.0, None, 1.5, None]
    assert [one["wall_s"] for one in found] == [8.0, 8.0, 12.0, 12.0]
    assert [one["train_s"] for one in found] == [6.0, 6.0, 10.0, 10.0]
    assert found[0]["eval_s"] == 0.0
    assert found[1]["until_target"] is None


def test_times_until_the_target_and_of_the_whole_run(tmp_path):
    ledger = LedgerBuilder().begin(init_s=2, targets=[["cer", 0.1]])
    for epoch in range(1, 6):
        ledger.epoch(epoch, 0.1, wait_s=0.5, forward_s=3, decode_s=4)
        if epoch == 1:
            ledger.checkpoint(1).step(8)
            ledger.resume(down_s=100, from_step=2, init_s=2)
    (found,) = objects(ledger.end().write(tmp_path / "run"))
    assert found["time_to_accuracy_s"] == 2 + 10 + 1 + 8 + 2 + 2 * 10
    assert (found["train_s"], found["eval_s"], found["lost_work_s"]) == (15.0, 35.0, 8.0)
    assert found["wall_s"] == sum(found["intervals_s"].values()) == 63.0
    until = found["until_target"]
    assert (until["train_s"], until["eval_s"], until["wall_s"]) == (9.0, 21.0, 43.0)
    assert found["sessions"] == 2
    assert "8.0 s of work were lost" in found["notes"][0]


def test_targets_default_to_those_of_all_runs(small, tmp_path):
    other = ledger_of([0.5], targets=[["wer", 0.2], ["cer", 0.08]]).write(tmp_path / "other")
    found = [(one["metric"], one["target"]) for one in objects(small, other)]
    assert found == [("cer", 0.1), ("cer", 0.08), ("wer", 0.2)] * 2


def test_the_table_and_markdown_say_the_same(small, large):
    text = report([small, large], targets=["cer=0.1", "wer=0.1"])
    rows = [line.split() for line in text.splitlines()]
    small_row = ["small", "0.133", "0.100–0.133", "3", "100", "%"]
    assert [*small_row, "NA", ">", "0.133", "NA", "NA", "3"] in rows
    large_row = ["large", "0.200", "0.167–0.200", "5", "150", "%"]
    assert [*large_row, "NA", ">", "0.200", "NA", "NA", "5"] in rows
    markdown = report([small, large], output_format="markdown", targets=["cer=0.1", "wer=0.1"])
    row = "| large | 0.200 | 0.167–0.200 | 5 | 150 % | NA | \\> 0.200 | NA | NA | 5 |"
    assert row in markdown.splitlines()
    for said in (text, markdown):
        flat = " ".join(said.split())
        assert "median of the last 3 evaluations" in flat
        assert "warm-up steps left out" in flat or "warm-up steps tracing steps" in flat


def test_another_window_is_computed_and_said(small):
    assert objects(small, window=1)[0]["epoch"] == 2
    said = "here, by request, the median of the last 1"
    assert said in " ".join(report([small], window=1).split())


def test_unlike_runs_are_refused_a_comparison_by_name_of_what_differs(small, tmp_path):
    unlike = COMPARABLE | {"beam_width": 256}
    other = ledger_of([0.1] * 3, comparability=unlike).write(tmp_path / "other")
    text = " ".join(report([small, other]).split())
    assert "refused" in text
    assert "other is not compared with small: they differ in beam_width (8, here 256)" in text
    assert objects(small, other)[1]["relative"] is None
    forced = " ".join(report([small, other], force=True).split())
    assert "refused" not in forced
    assert "by force: they differ in beam_width (8, here 256)" in forced
    assert objects(small, other, force=True)[1]["relative"] == 1.0
    assert objects(small, other)[1]["differs_from_first"] == {"beam_width": ["8", "256"]}


def test_nothing_is_relative_to_a_run_that_never_reached_the_target(large, tmp_path):
    never = ledger_of([0.9] * 3).write(tmp_path / "never")
    assert [one["relative"] for one in objects(never, large)] == [None, None]


def test_folders_of_one_name_are_told_apart(tmp_path):
    for parent in "ab":
        ledger_of([0.1] * 3).write(tmp_path / parent / "run")
    found = objects(tmp_path / "a" / "run", tmp_path / "b" / "run")
    assert [one["run"] for one in found] == ["a/run", "b/run"]


def test_a_folder_named_twice_stands_once_and_is_said(small):
    assert len(objects(small, small.parent / "." / "small")) == 1
    assert "named twice" in report([small, small])


def test_a_run_without_evaluation_has_no_time(tmp_path):
    run_dir = LedgerBuilder().begin(init_s=1).step(2).write(tmp_path / "run")
    (found,) = objects(run_dir, targets=["cer=0.1"], out=tmp_path / "out")
    assert found["time_to_accuracy_s"] is None
    assert found["notes"] == ["it has no finished evaluation", "the run is unfinished"]
    assert not (tmp_path / "out" / "cer.png").exists()


def test_a_run_that_set_no_targets_is_listed_once(tmp_path):
    run_dir = ledger_of([0.1] * 3, targets=None).write(tmp_path / "run")
    (found,) = objects(run_dir)
    assert (found["metric"], found["target"], found["time_to_accuracy_s"]) == (None, None, None)
    assert "Name them, such as --target cer=0.10" in report([run_dir])


def test_a_diverged_run_is_still_json(tmp_path):
    run_dir = ledger_of([float("nan")] * 3).write(tmp_path / "run")
    assert objects(run_dir, out=tmp_path / "out")[0]["time_to_accuracy_s"] is None


def test_a_cut_ledger_is_used_and_said(small):
    with (small / "events.jsonl").open("a") as file:
        file.write('{"key"')
    assert "a crash cut the ledger's last line" in report([small])


def test_wrong_use_says_what_is_wrong(small, tmp_path):
    with pytest.raises(UsageError, match="at least one run folder"):
        report([])
    with pytest.raises(UsageError, match="does not exist"):
        report([small, tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"must be a folder that holds events\.jsonl"):
        report([tmp_path / "empty"])
    with pytest.raises(UsageError, match="There is no policy"):
        report([small], policy="mine")
    with pytest.raises(UsageError, match="format must be one of"):
        report([small], output_format="xml")
    with pytest.raises(UsageError, match="window must be at least 1"):
        report([small], window=0)
    with pytest.raises(UsageError, match="fraction between 0 and 1"):
        report([small], targets=["cer=10"])
    with pytest.raises(RunError, match="must be written to .* Choose another --out"):
        report([small], out=small / "events.jsonl" / "below")


COMMAND = """
import argparse, sys
from tfasr.commands import report
import tfasr.tta.run
plotting = [name for name in ("matplotlib", "vl_convert") if name in sys.modules]
parser = argparse.ArgumentParser()
report.add_arguments(parser)
status = report.run(parser.parse_args())
slow = ("tensorflow", "keras", "matplotlib.pyplot")
loaded = plotting + [name for name in slow if name in sys.modules]
sys.exit(f"loaded {loaded}" if loaded else status)
"""


def test_the_command_prints_json_alone_and_never_loads_tensorflow(small, large, tmp_path):
    arguments = [small, large, "--format", "json", "--target", "cer=0.1", "--out", tmp_path / "o"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["run"] for one in json.loads(done.stdout)] == ["small", "large"]
    assert (tmp_path / "o" / "report.html").is_file()


def test_the_time_until_a_target_ends_at_the_evaluation_that_met_it(tmp_path):
    run = load_run(ledger_of([0.5, 0.1, 0.1, 0.1, 0.1]).write(tmp_path / "run"))
    (found,) = analyse_run(run, ask(["cer=0.1"])).results
    assert (found.tta.seconds, found.tta.epoch) == (8.0, 3)
    assert math.fsum(found.until_s.values()) == 8.0
    assert found.parts.total_s == 8.0
