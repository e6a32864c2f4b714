"""Runs, shards and exports that older versions wrote are reported, resumed and used."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tones import BEFORE_FOLD, OLD
from tfasr.ledger.events import read_events
from tfasr.recognising.recogniser import load_recogniser
from tfasr.recording.recorder import Recorder
from tfasr.training.from_gin import load_config
from tfasr.training.train import train
from tfasr.training.trained import evaluate
from tfasr.tta.run import load_run

KILLED_AFTER, RESUMED_FROM, STEPS, EPOCHS = 15, 12, 24, 4


@pytest.fixture(scope="module", params=[OLD, BEFORE_FOLD], ids=lambda folder: folder.name)
def old(request) -> Path:
    return request.param


@pytest.fixture(scope="module")
def resumed(old, tmp_path_factory):
    """The old run, gone on with to its end in a copy."""
    run_dir = tmp_path_factory.mktemp("old") / "run"
    shutil.copytree(old / "run", run_dir)
    config = load_config(str(old / "tones.gin"))
    train(config.experiment, shard_dir=old / "shards", run_dir=run_dir, resume=True)
    return run_dir


def test_an_old_run_is_reported(old):
    command = [sys.executable, "-m", "tfasr.cli", "report", str(old / "run"), "--format", "json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(finished.stdout)
    run = load_run(old / "run")
    assert (run.status, run.sessions, run.targets) == ("unfinished", 1, [("cer", 0.99)])
    assert [point.epoch for point in run.accuracy_curve("cer")] == [1, 2]


def test_an_old_run_is_evaluated_as_it_was(old, resumed):
    # Its best checkpoint is that of an epoch whose evaluation the old version has booked.
    stats = [e["value"] for e in read_events(old / "run") if e["key"] == "tracked_stats"]
    best = min(stats, key=lambda scores: scores["cer"])
    result = evaluate(run_dir=old / "run", split="validation", shard_dir=old / "shards")
    assert result.counts.cer == pytest.approx(best["cer"], abs=1e-9)
    assert result.loss == pytest.approx(best["loss"], rel=1e-4)
    again = evaluate(run_dir=resumed, split="validation", shard_dir=old / "shards")
    assert again.counts.utterances == 8


def test_an_old_run_is_gone_on_with(old, resumed):
    run = load_run(resumed)
    assert (run.status, run.sessions) == ("success", 2)
    assert [point.epoch for point in run.accuracy_curve("cer")] == list(range(1, EPOCHS + 1))
    steps = [event for event in read_events(resumed) if event["key"] == "train_step"]
    earlier = [e["metadata"]["step"] for e in steps if e["metadata"]["session"] == 0]
    later = [e["metadata"]["step"] for e in steps if e["metadata"]["session"] == 1]
    assert earlier == list(range(1, KILLED_AFTER + 1))
    assert later == list(range(RESUMED_FROM + 1, STEPS + 1))
    losses = json.loads((old / "losses.json").read_text())
    ours = [event["value"]["loss"] for event in steps]
    assert ours[:KILLED_AFTER] == pytest.approx(losses[:KILLED_AFTER], rel=1e-4)
    assert ours[KILLED_AFTER:] == pytest.approx(losses[RESUMED_FROM:], rel=1e-3)


def test_a_session_of_today_writes_all_that_the_old_one_wrote(resumed):
    written: tuple[dict, dict] = ({}, {})
    for event in read_events(resumed):
        fields = set(event["metadata"])
        fields |= set(event["value"]) if isinstance(event["value"], dict) else set()
        session = written[event["metadata"]["session"]]
        session.setdefault(event["key"], set()).update(fields)
    del written[0]["lstm_kernel"]  # once a run
    written[0]["session_start"].discard("process_age_s")  # of the command line's processes
    for key, fields in written[0].items():
        assert fields <= written[1].get(key, set()), key


# Below is what `BEFORE_FOLD` alone holds.


@pytest.mark.parametrize("made", ["run", "onnx", "litert"])
def test_a_recording_is_transcribed_as_it_was(made):
    before = json.loads((BEFORE_FOLD / "transcript.json").read_text())
    transcript = load_recogniser(BEFORE_FOLD / made).transcribe(BEFORE_FOLD / before["file"])
    assert transcript.text == before["text"]
    words = [(word.start_s, word.end_s) for word in transcript.words]
    assert np.allclose(words, [(word["start"], word["end"]) for word in before["result"]])


@pytest.mark.parametrize("made", ["onnx", "litert"])
def test_an_exports_files_are_those_that_were_written(made):
    for line in (BEFORE_FOLD / made / "SHA256SUMS").read_text().splitlines():
        sha256, name = line.split()
        assert hashlib.sha256((BEFORE_FOLD / made / name).read_bytes()).hexdigest() == sha256


def test_a_recorded_run_is_gone_on_with(tmp_path):
    run_dir = tmp_path / "recorded"
    shutil.copytree(BEFORE_FOLD / "recorded", run_dir)
    recorder = Recorder(
        run_dir,
        train_samples=4,
        targets=[("cer", 0.5)],
        global_batch_size=2,
        seed=1,
        facts={"opt_name": "adam"},
        utilisation=False,
    )
    with recorder as run:
        assert (run.steps_done, run.epochs_done, run.resumed_from_step) == (2, 1, 2)
        run.epoch()
        for _ in range(2):
            with run.step(utterances=2, audio_s=1.5) as step:
                step.loss = 1.0
        with run.evaluation() as evaluation:
            evaluation.score(["ab c"], ["ab c"])
        run.checkpoint()
    done = load_run(run_dir)
    assert (done.status, done.sessions) == ("success", 2)
    assert [point.value for point in done.accuracy_curve("cer")] == [pytest.approx(1 / 7), 0.0]
    assert done.intervals["lost_work"] > 0
