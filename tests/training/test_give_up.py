"""Forecasts while a run trains, and the end of one that would miss its budget."""

import json

import pytest

from tests.tones import SHARDS, tones_experiment
from tests.training.bare_run import bare_run
from tfasr.ledger.events import read_events
from tfasr.reports.watching import Watch
from tfasr.reports.write import report
from tfasr.training.experiment import TrainingConfig
from tfasr.training.hooks.targets import WatchTargets
from tfasr.training.train import train


class Clock:
    now_s = 0.0

    def elapsed_s(self):
        return self.now_s


class Events(list):
    def event(self, key, value=None, **metadata):
        self.append((key, value, metadata))


def epochs(values, *, hours, pace_s=60.0, target=0.2):
    """Epochs as the loop has them, until the hook asks for the end; returns run and hook."""
    training = TrainingConfig(
        targets=(("wer", target),), target_window=1, give_up_after_hours=hours
    )
    run, hook = bare_run(training), WatchTargets()
    run.clock, run.ledger = Clock(), Events()
    hook.on_train_begin(run)
    for epoch, value in enumerate(values, start=1):
        run.clock.now_s = epoch * pace_s
        run.advance(history=[*run.state.history, {"wer": value}])
        hook.on_epoch_end(run, epoch)
        if run.stop_requested:
            break
    return run, hook


SLOW = [0.9 * 0.97**epoch for epoch in range(60)]


def test_a_run_that_will_be_too_late_is_given_up_before_its_budget_is_spent():
    run, hook = epochs(SLOW, hours=0.25)
    assert run.stop_requested
    ((key, value, metadata),) = run.ledger
    assert key == "given_up"
    assert value["budget_s"] == 900
    assert value["not_before_s"] > 900
    assert 5 < metadata["epoch_num"] < 15
    assert hook.forecasts[0].known


@pytest.mark.parametrize("hours", [0.0, 2.0])
def test_a_run_without_a_budget_or_within_it_goes_on(hours):
    run, hook = epochs(SLOW, hours=hours)
    assert not run.stop_requested
    assert run.ledger == []
    assert hook.forecasts[0].met_s == 51 * 60


def test_a_spent_budget_ends_a_run_of_which_nothing_is_known():
    run, _ = epochs([0.9, 0.95, 0.97, 0.99, 1.0, 1.0], hours=0.05)
    assert run.stop_requested
    assert run.ledger[0][2] == {"epoch_num": 3}
    assert run.ledger[0][1]["not_before_s"] is None


@pytest.mark.parametrize("wrong", [{"give_up_after_hours": -1.0}, {"give_up_after_hours": 1.0}])
def test_a_budget_is_of_targets_and_not_negative(wrong):
    with pytest.raises(ValueError, match="give_up_after_hours"):
        TrainingConfig(**wrong)


def test_a_given_up_training_is_booked_as_censored(tmp_path):
    # Within a budget of no time at all a single epoch is trained.
    experiment = tones_experiment(
        epochs=3, targets=(("cer", 0.0),), target_window=1, give_up_after_hours=1e-9
    )
    history = train(experiment, shard_dir=SHARDS, run_dir=tmp_path / "run", memory_probe=False)
    assert len(history) == 1
    keys = [event["key"] for event in read_events(tmp_path / "run")]
    assert keys.count("given_up") == 1
    progress = json.loads((tmp_path / "run" / "progress.json").read_text())
    (said,) = progress["forecasts"]
    assert said["low_s"] is None
    assert "1 of the 4 evaluations" in said["reason"]
    text = " ".join(report([tmp_path / "run"]).split())
    assert "it was given up for its budget of 1e-09 h" in text
    (seen,) = Watch([tmp_path / "run"], window=1).look()
    assert seen.status == "finished"
    assert seen.forecasts[0].met_s is None
    # What is finished is not gone on with.
    again = train(experiment, shard_dir=SHARDS, run_dir=tmp_path / "run", resume=True)
    assert again == history
