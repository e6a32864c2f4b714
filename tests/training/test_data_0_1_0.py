"""Runs and shards of version 0.1.0 are reported, resumed and evaluated."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.tones import OLD, SHARDS
from tfasr.ledger import read_events
from tfasr.training.from_gin import load_config
from tfasr.training.train import train
from tfasr.training.trained import evaluate
from tfasr.tta.load import load_run

KILLED_AFTER, RESUMED_FROM, STEPS, EPOCHS = 15, 12, 24, 4


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The old run, gone on with to its end in a copy."""
    run_dir = tmp_path_factory.mktemp("old") / "run"
    shutil.copytree(OLD / "run", run_dir)
    config = load_config(str(OLD / "tones.gin"))
    train(config.experiment, shard_dir=SHARDS, run_dir=run_dir, resume=True)
    return run_dir


def test_an_old_run_is_reported():
    command = [sys.executable, "-m", "tfasr.cli", "report", str(OLD / "run"), "--format", "json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(finished.stdout)
    run = load_run(OLD / "run")
    assert (run.status, run.sessions, run.targets) == ("unfinished", 1, [("cer", 0.99)])
    assert [point.epoch for point in run.accuracy_curve("cer")] == [1, 2]


def test_an_old_run_is_evaluated_as_it_was(resumed):
    # Its best checkpoint is that of an epoch whose evaluation 0.1.0 has booked.
    stats = [e["value"] for e in read_events(OLD / "run") if e["key"] == "tracked_stats"]
    best = min(stats, key=lambda scores: scores["cer"])
    result = evaluate(run_dir=OLD / "run", split="validation", shard_dir=SHARDS)
    assert result.counts.cer == pytest.approx(best["cer"], abs=1e-9)
    assert result.loss == pytest.approx(best["loss"], rel=1e-4)
    again = evaluate(run_dir=resumed, split="validation", shard_dir=SHARDS)
    assert again.counts.utterances == 8


def test_an_old_run_is_gone_on_with(resumed):
    run = load_run(resumed)
    assert (run.status, run.sessions) == ("success", 2)
    assert [point.epoch for point in run.accuracy_curve("cer")] == list(range(1, EPOCHS + 1))
    steps = [event for event in read_events(resumed) if event["key"] == "train_step"]
    old = [e["metadata"]["step"] for e in steps if e["metadata"]["session"] == 0]
    new = [e["metadata"]["step"] for e in steps if e["metadata"]["session"] == 1]
    assert old == list(range(1, KILLED_AFTER + 1))
    assert new == list(range(RESUMED_FROM + 1, STEPS + 1))
    losses = json.loads((OLD / "losses.json").read_text())
    ours = [event["value"]["loss"] for event in steps]
    assert ours[:KILLED_AFTER] == pytest.approx(losses[:KILLED_AFTER], rel=1e-4)
    assert ours[KILLED_AFTER:] == pytest.approx(losses[RESUMED_FROM:], rel=1e-3)
