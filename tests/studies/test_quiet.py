"""Studies wait for a quiet machine and train disturbed runs again, whatever the runs' results."""

import contextlib
import dataclasses
import logging

import pytest

from tests.reports.conftest import ledger_of
from tests.tta.test_host import Machine
from tfasr.ledger.declared import STARTS_FILE, Starts, first_try
from tfasr.ledger.events import ledger_mark, read_events
from tfasr.studies import quiet
from tfasr.studies.perform import perform
from tfasr.studies.plan import Step, StudyConfig, finished
from tfasr.studies.quiet import Patience, QuietMachine, taken_of
from tfasr.telemetry.host import TakenNow
from tfasr.tta.run import load_run

STUDY = StudyConfig(experiments=("fast",))
QUIET = TakenNow(stolen=0.0, others=0.02, throttled=None)
BUSY = TakenNow(stolen=0.3, others=0.4, throttled=None)


@pytest.fixture(autouse=True)
def _quiet_now(monkeypatch):
    monkeypatch.setattr(quiet, "taken_now", lambda seconds: QUIET)


def write_run(folder, taken, cer):
    """Writes a finished run from whose steps the machine took a part."""
    ledger = ledger_of([cer, cer])
    ledger.write(folder)
    machine = Machine()
    for _ in range(100):
        machine.second(ran_s=2.0 * (1 - taken), busy_s=2.0, waited_s=2.0 * taken)
    machine.write(folder)


def training(folder, tries):
    """Returns a training step that gets the next of these parts taken and CERs at each try."""
    run_dir = folder / "runs" / "fast"
    coming = iter(tries)

    def words():
        write_run(run_dir, *next(coming))
        return ["report", run_dir]

    return Step(
        kind="train",
        name="train fast",
        words=words,
        done=lambda: finished(run_dir),
        log=folder / "logs" / "fast.log",
        run_dir=run_dir,
        alike="fast",
        seed=1,
    )


def performed(folder, step, study=STUDY):
    with contextlib.closing(Starts(folder, lambda: {"runs": []})) as starts:
        assert (
            perform([step], starts=starts, quiet=QuietMachine(study, folder, starts))
            == []
        )
    return [
        event["key"]
        for event in read_events(folder / STARTS_FILE)
        if event["key"] != "begun"
    ]


def cer_of(run_dir):
    return load_run(run_dir).accuracy_curve("cer")[-1].value


def test_a_quiet_run_counts_at_once(tmp_path):
    step = training(tmp_path, [(0.05, 0.2)])

    assert performed(tmp_path, step) == ["plan", "start", "end"]
    assert not (tmp_path / "disturbed").exists()


def test_the_second_try_of_a_disturbed_run_counts_even_if_its_result_is_worse(tmp_path):
    step = training(tmp_path, [(0.4, 0.1), (0.0, 0.3)])

    assert performed(tmp_path, step) == [
        "plan",
        "start",
        "end",
        "again",
        "start",
        "end",
    ]
    assert cer_of(step.run_dir) == 0.3
    assert cer_of(first_try(tmp_path, "fast", 1)) == 0.1
    (again,) = (
        e["value"] for e in read_events(tmp_path / STARTS_FILE) if e["key"] == "again"
    )
    assert again["taken"] == taken_of(first_try(tmp_path, "fast", 1))
    assert again["taken"] == pytest.approx(0.4, abs=0.01)


def test_a_run_is_trained_again_once(tmp_path):
    step = training(tmp_path, [(0.4, 0.1), (0.5, 0.3)])

    assert performed(tmp_path, step).count("start") == 2
    # Nor when the study is continued.
    assert performed(tmp_path, step).count("start") == 2
    assert cer_of(step.run_dir) == 0.3


def test_a_study_that_was_killed_before_it_judged_a_run_does_so_later(tmp_path):
    step = training(tmp_path, [(0.0, 0.3)])
    write_run(step.run_dir, 0.4, 0.1)

    assert performed(tmp_path, step) == ["plan", "again", "start", "end"]
    assert cer_of(step.run_dir) == 0.3


def test_a_study_that_was_killed_before_it_moved_a_run_does_so_later(tmp_path):
    step = training(tmp_path, [(0.0, 0.3)])
    write_run(step.run_dir, 0.4, 0.1)
    with contextlib.closing(Starts(tmp_path, lambda: {"runs": []})) as starts:
        starts.again("fast", 1, ledger_mark(step.run_dir), 0.4, "")

    assert performed(tmp_path, step) == ["plan", "again", "start", "end"]
    assert cer_of(first_try(tmp_path, "fast", 1)) == 0.1


@pytest.mark.parametrize("change", [{"most_taken": 1.0}, {"policy": "utterances"}])
def test_where_seconds_do_not_count_nothing_waits_or_is_repeated(
    tmp_path, monkeypatch, change
):
    monkeypatch.setattr(quiet, "taken_now", None)  # whoever looks at the machine fails
    step = training(tmp_path, [(0.4, 0.1)])

    study = dataclasses.replace(STUDY, **change)
    assert performed(tmp_path, step, study) == ["plan", "start", "end"]


@pytest.fixture
def clock(monkeypatch):
    """Replaces time: each look at the machine and each sleep lets it pass."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(quiet.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(quiet.time, "sleep", sleep)
    return now


def looks(monkeypatch, now, states):
    coming = iter(states)

    def look(seconds):
        now[0] += seconds
        return next(coming)

    monkeypatch.setattr(quiet, "taken_now", look)


def test_a_training_waits_until_others_are_done(monkeypatch, clock, caplog):
    looks(monkeypatch, clock, [BUSY, BUSY, QUIET])
    with caplog.at_level(logging.INFO, logger="tfasr"):
        Patience(0.1, 600.0).wait()

    assert clock[0] == pytest.approx(
        2 * (quiet.LOOK_S + quiet.LOOK_EVERY_S) + quiet.LOOK_S
    )
    (message,) = caplog.messages
    assert "others take 70 %" in message


def test_all_waits_together_have_a_limit(monkeypatch, clock, caplog):
    looks(monkeypatch, clock, [BUSY] * 100)
    patience = Patience(0.1, 60.0)
    with caplog.at_level(logging.INFO, logger="tfasr"):
        patience.wait()
        after_first_s = clock[0]
        patience.wait()

    assert 60.0 <= after_first_s <= 60.0 + quiet.LOOK_S + quiet.LOOK_EVERY_S
    assert clock[0] == after_first_s
    assert "did not become quiet" in caplog.messages[-1]
