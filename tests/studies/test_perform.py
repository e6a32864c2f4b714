"""The steps of a study: what is done is passed over, what fails loses nothing else."""

import logging
import subprocess
import sys

import pytest

from tests.reports.conftest import ledger_of
from tfasr.errors import UsageError
from tfasr.studies.perform import perform, study
from tfasr.studies.steps import Step, finished


@pytest.fixture
def step(tmp_path):
    """Makes a step that reports on a run, done once its log holds the table."""
    ledger_of([0.5, 0.1, 0.1]).write(tmp_path / "run")

    def make(name, run="run", needs=""):
        log = tmp_path / "logs" / f"{name}.log"
        return Step(
            "train",
            name,
            lambda: ["report", tmp_path / run],
            lambda: log.exists() and "CER 10 %" in log.read_text(),
            lambda: needs,
            log,
        )

    return make


def test_each_step_is_a_process_and_its_words_go_to_its_log(step, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="tfasr"):
        steps = [step("first"), step("broken", run="nowhere"), step("held", needs="no")]
        assert perform(steps) == ["broken", "held"]
    said = caplog.messages
    assert said[0] == "1/3 first"
    assert said[1].startswith("1/3 first: done, ")
    assert "left of the study" in said[2]
    assert "failed. It ended with exit code 2" in said[3]
    assert "does not exist" in said[3]
    assert said[-1] == "3/3 held: failed. no"
    # Again, with the run that was missing: only what is not done is begun.
    caplog.clear()
    ledger_of([0.1] * 3).write(tmp_path / "nowhere")
    with caplog.at_level(logging.INFO, logger="tfasr"):
        assert perform([step("first"), step("broken", run="nowhere")]) == []
    assert [line for line in caplog.messages if "first" in line] == []


def test_which_runs_are_finished(tmp_path):
    ledger_of([0.1]).write(tmp_path / "whole")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_text("{}\n")
    cut = ledger_of([0.1])
    del cut.events[-1]
    cut.write(tmp_path / "cut")
    names = ("whole", "empty", "broken", "cut", "missing")
    assert [finished(tmp_path / name) for name in names] == [True, False, False, False, False]


def test_a_wrong_study_leaves_no_folder(tmp_path):
    with pytest.raises(UsageError, match="--gin_file must be a file or a preset"):
        study("nowhere.gin", run_dir=tmp_path / "study")
    with pytest.raises(UsageError, match="--shard_dir"):
        study("study/paper.gin", run_dir=tmp_path / "study")
    assert not (tmp_path / "study").exists()


WAITS = """
import sys, time
from tfasr.studies.child_process import end_with
end_with(int(sys.argv[1]))
print("waits", flush=True)
time.sleep(600)
"""
STARTS = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1], str(os.getpid())])
"""


def test_a_steps_process_ends_when_the_study_is_killed():
    command = [sys.executable, "-c", STARTS, WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waits\n"
        process.kill()
        # The pipe is closed once the last process that holds it has ended.
        assert process.stdout.read() == ""
