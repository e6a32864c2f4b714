"""Two logical devices, swapped, with batch normalisation, dropout and AdaDelta, as in the paper."""

import json

import pytest
import tensorflow as tf

from tests.training.mirrored_runs import RUNS
from tests.training.test_signals import same_weights
from tests.warm import run_module
from tfasr.ledger.events import read_events
from tfasr.training.build import make_strategy
from tfasr.training.experiment import Experiment
from tfasr.tta.run import load_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirrored")
    for kind in ("train", "fit"):
        done = run_module("tests.training.mirrored_runs", folder, kind)
        assert not done.returncode, done.stderr[-3000:]

    return folder


def values(run_dir, key):
    return [event["value"] for event in read_events(run_dir) if event["key"] == key]


def test_the_evaluation_model_is_on_the_devices_of_training(runs):
    devices = json.loads((runs / "train.json").read_text())
    devices |= json.loads((runs / "fit.json").read_text())
    counts = {run: len(names) for run, names in devices.items()}
    assert counts == {"swapped": 2, "alone": 1, "fit": 1}


def test_a_swap_changes_neither_weights_nor_scores(runs):
    assert same_weights(runs / "swapped", runs / "shared")
    assert values(runs / "swapped", "tracked_stats") == values(
        runs / "shared", "tracked_stats"
    )
    losses = [step["loss"] for step in values(runs / "swapped", "train_step")]
    assert losses == [step["loss"] for step in values(runs / "shared", "train_step")]
    assert losses[-1] < losses[0]


def test_the_ledger_has_the_memory_of_both_states(runs):
    memory = {run: values(runs / run, "device_memory") for run in RUNS}
    assert memory["shared"] == []
    parameters = values(runs / "alone", "parameters")[0]
    for run, devices in (("alone", 1), ("swapped", 2)):
        assert len(memory[run]) == 2  # epochs
        for held in memory[run]:
            # Weights of 4 bytes, of which AdaDelta keeps two more values; further
            # states are small.
            assert (
                4 * parameters * devices
                < held["evaluation"]
                < 4.4 * parameters * devices
            )
            assert (
                11 * parameters * devices < held["training"] < 13 * parameters * devices
            )

    assert memory["swapped"][0]["evaluation"] == 2 * memory["alone"][0]["evaluation"]


def test_fits_model_is_evaluated_on_all_devices(runs):
    two, one = (
        values(runs / name, "device_memory") for name in ("callback", "callback_alone")
    )
    assert [held["evaluation"] for held in two] == [
        2 * held["evaluation"] for held in one
    ]
    assert len(load_run(runs / "callback").accuracy_curve("wer")) == 2


def test_one_device_is_mirrored_too():
    assert isinstance(make_strategy(1), tf.distribute.MirroredStrategy)
    assert Experiment().training.num_replicas == 0  # all devices of the machine
