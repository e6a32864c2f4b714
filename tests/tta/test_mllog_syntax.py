"""Our runs in MLPerf's format pass MLPerf's own checker, and a reading of its syntax.

Source: github.com/mlcommons/logging, mlperf_logging/compliance_checker and
mllog/constants.py; RNN-T, the nearest of MLPerf's benchmarks, was last run under the
rules of version 3.1.
"""

import json
import re
import subprocess
import sys

import pytest

from tests.tta.ledger_builder import LedgerBuilder
from tfasr.tta.published import load_log, mlperf

EPOCH_KEYS = {"epoch_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy"}
TYPES = {"INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"}


@pytest.fixture
def run(tmp_path):
    """A whole run with what the training writes into its ledger."""
    ledger = LedgerBuilder().begin(init_s=2.5, targets=[["wer", 0.5]])
    for key, value in [
        ("global_batch_size", 8), ("seed", 1), ("train_samples", 16), ("eval_samples", 4),
        ("opt_name", "adadelta"), ("opt_base_learning_rate", 1.0),
    ]:  # fmt: skip
        ledger.event(key, value)

    for epoch, cer in enumerate([0.4, 0.3, 0.2], start=1):
        ledger.epoch(epoch, cer, wait_s=0.25, forward_s=0.5, decode_s=1.5).checkpoint(
            0.1
        )

    run_dir = ledger.end().write(tmp_path / "run")
    (run_dir / "run.json").write_text(
        json.dumps({"system": {"processor": "Ünique CPU"}})
    )

    return load_log(run_dir)


def check(path):
    """Runs MLPerf's own checker of logs."""
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--werror"]
    command += ["--usage", "training", "--ruleset", "3.1.0", str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=path.parent
    )


def test_mlperfs_checker_passes_our_log(run, tmp_path):
    pytest.importorskip("mlperf_logging", reason="needs the dev extra")
    path = tmp_path / "result_0.txt"
    mlperf.write(run, path, submission_benchmark="rnnt", submission_org="us")

    finished = check(path)

    assert finished.returncode == 0, finished.stderr
    assert "SUCCESS" in finished.stderr

    # The checker is no formality: without its end a run fails.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"run_stop"' not in line))

    finished = check(path)

    assert finished.returncode == 1
    assert "'run_stop'" in finished.stderr


def test_our_benchmarks_own_rules_are_all_that_the_checker_lacks(run, tmp_path):
    pytest.importorskip("mlperf_logging", reason="needs the dev extra")
    path = tmp_path / "result_0.txt"
    mlperf.write(run, path)

    finished = check(path)

    assert finished.returncode == 1
    # It has gone through the rules for all benchmarks by then.
    assert re.search("FileNotFoundError.*open_tfasr.yaml", finished.stderr)


def test_the_syntax_of_every_line(run, tmp_path):
    path = tmp_path / "result_0.txt"
    mlperf.write(run, path)
    events = []

    for line in path.read_text().splitlines():
        prefix, _, text = line.partition(" ")
        assert prefix == ":::MLLOG"

        event = json.loads(text)

        assert set(event) == {
            "namespace",
            "time_ms",
            "event_type",
            "key",
            "value",
            "metadata",
        }
        assert isinstance(event["time_ms"], int)
        assert event["event_type"] in TYPES
        assert event["metadata"]["file"]
        assert event["metadata"]["lineno"] >= 1

        events.append(event)

    times = [event["time_ms"] for event in events]

    assert times == sorted(times)
    check_intervals(events)


def check_intervals(events):
    """Each interval that begins ends, once at a time, and the run has one beginning and
    end.
    """
    keys = [event["key"] for event in events]
    opened = set()
    for event in events:
        name, _, edge = event["key"].rpartition("_")
        if event["event_type"] == "INTERVAL_START":
            assert edge == "start"
            assert name not in opened
            opened.add(name)
        elif event["event_type"] == "INTERVAL_END":
            assert edge == "stop"
            opened.remove(name)

        if event["key"] in EPOCH_KEYS:
            assert "epoch_num" in event["metadata"]

    assert opened == set()
    for key in ("init_start", "init_stop", "run_start", "run_stop", "submission_benchmark",
                "submission_platform", "train_samples", "eval_samples"):  # fmt: skip
        assert keys.count(key) == 1

    order = [
        keys.index(key) for key in ("init_start", "init_stop", "run_start", "run_stop")
    ]
    assert order == sorted(order)
    assert events[keys.index("run_stop")]["metadata"]["status"] == "success"
    assert events[keys.index("submission_platform")]["value"] == "Ünique CPU"
