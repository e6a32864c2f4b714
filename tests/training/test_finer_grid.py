"""Several evaluations an epoch: every part of a run and of its reports knows them."""

import json
import os

import keras
import pytest

import tfasr
from tests.tones import SHARDS, TRAIN_UTTERANCES, tones_experiment
from tests.training.test_signals import same_weights
from tests.warm import run_module
from tfasr.data.shards import open_split
from tfasr.errors import UsageError
from tfasr.kit.files import hypotheses_file
from tfasr.ledger.events import read_events
from tfasr.reports.errors import best_hypotheses
from tfasr.reports.numbers import analyse_run, ask
from tfasr.studies.plan import finished
from tfasr.training.experiment import TrainingConfig
from tfasr.training.train import train
from tfasr.training.trained import evaluate
from tfasr.tta.policies import POLICIES
from tfasr.tta.run import load_run

GRID = {"epochs": 2, "evaluations_per_epoch": 3, "checkpoint_every_steps": 1000}
EPOCHS = [0.3333, 0.6667, 1, 1.3333, 1.6667, 2]
CASES = (
    ("in the second evaluation", {}),
    ("the second evaluation booked", {"evaluation_placement": "swapped"}),
    ("after step 9", {"evaluation_placement": "beside"}),
    ("after step 9", {"overlap_evaluation": True}),
)


def of(run_dir, key):
    return [event for event in read_events(run_dir) if event["key"] == key]


def scores(run_dir):
    curves = {
        name: load_run(run_dir).accuracy_curve(name) for name in ("cer", "wer", "loss")
    }
    return {
        name: [(p.epoch, p.value) for p in points] for name, points in curves.items()
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    history = train(tones_experiment(**GRID), shard_dir=SHARDS, run_dir=run_dir)
    assert [at["epoch"] for at in history] == EPOCHS
    return run_dir


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folders of runs that were killed, one for each of `CASES`."""
    if not hasattr(os, "fork"):
        pytest.skip("processes are forked here")

    folder = tmp_path_factory.mktemp("killed")
    cases = [
        {
            "run_dir": str(folder / str(number)),
            "moment": moment,
            "training": {**GRID, **training},
        }
        for number, (moment, training) in enumerate(CASES)
    ]
    (folder / "cases.json").write_text(json.dumps(cases))
    ended = run_module("tests.training.killed_grid", folder / "cases.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_run_killed_within_an_epoch_ends_as_if_it_had_not_been(
    killed, uninterrupted, number
):
    run_dir = killed / str(number)
    training = {**GRID, **CASES[number][1]}
    assert not finished(run_dir)
    train(tones_experiment(**training), shard_dir=SHARDS, run_dir=run_dir, resume=True)
    assert scores(run_dir) == scores(uninterrupted)
    assert same_weights(run_dir, uninterrupted)
    assert load_run(run_dir).intervals["lost_work"] > 0
    texts = [
        {path.name: path.read_bytes() for path in (folder / "hypotheses").iterdir()}
        for folder in (run_dir, uninterrupted)
    ]
    assert texts[0] == texts[1]
    assert not list((run_dir / "checkpoints").glob("evaluating-*"))


def test_the_ledger_places_each_evaluation_after_its_share_of_the_epoch(uninterrupted):
    events = read_events(uninterrupted)
    done = 0
    seen = []
    for event in events:
        if event["key"] == "train_step":
            done += event["value"]["utterances"]

        if event["key"] == "eval_start":
            seen.append((event["metadata"]["epoch_num"], done / TRAIN_UTTERANCES))

    assert seen == [(1, 1 / 3), (1, 2 / 3), (1, 1), (2, 4 / 3), (2, 5 / 3), (2, 2)]
    saved = [e["metadata"]["step"] for e in of(uninterrupted, "checkpoint_stop")]
    assert saved == [2, 4, 6, 8, 10, 12]
    assert (
        hypotheses_file(uninterrupted, 1.3333).name
        == "validation-epoch-0002-0.3333.jsonl"
    )
    names = sorted(path.name for path in (uninterrupted / "hypotheses").iterdir())
    assert names == [hypotheses_file(uninterrupted, epoch).name for epoch in EPOCHS]
    assert len(of(uninterrupted, "epoch_stop")) == 2
    progress = json.loads((uninterrupted / "progress.json").read_text())
    assert (progress["evaluation"]["epoch"], progress["epoch"]) == (2, 2)


def test_readers_of_a_run_know_the_grid(uninterrupted):
    run = load_run(uninterrupted)
    for policy in POLICIES.values():
        points = run.accuracy_curve("cer", policy)
        assert [point.epoch for point in points] == EPOCHS
        times = [point.elapsed_s for point in points]
        assert times == sorted(times)
        assert times[0] > 0

    assert run.target_window == 3
    rule = {"window": 3, "evaluations_per_epoch": 3}
    assert run.comparability["target_rule"] == run.fact("target_rule") == rule
    # The median of the evaluations of two epochs, made odd, cannot be met within six.
    assert not run.time_to_accuracy(cer=1.0, window=2).reached
    result = run.time_to_accuracy(cer=1.0, window=1)
    assert (result.epoch, result.window) == (EPOCHS[0], 1)
    assert f"at epoch {EPOCHS[0]:g}" in str(run.explain(cer=1.0, window=1))
    assert list(run.to_dataframe()["epoch"]) == EPOCHS
    analysis = analyse_run(run, ask(["cer=1.0"], "paper", 1, over_time=True))
    assert analysis.epochs == 2
    assert analysis.results[0].parts.evaluations == 1
    assert [epoch for epoch, *_ in analysis.series.evaluations] == EPOCHS
    worst = min(analysis.curves["cer"], key=lambda p: (p.value, p.epoch))
    assert best_hypotheses(analysis) == hypotheses_file(uninterrupted, worst.epoch)
    page = str(tfasr.report([uninterrupted], targets=["cer=1.0"], window=1))
    assert page


def test_runs_of_another_schedule_are_not_ranked(uninterrupted, tmp_path):
    coarse = tmp_path / "coarse"
    train(tones_experiment(epochs=1), shard_dir=SHARDS, run_dir=coarse)
    report = tfasr.compare([uninterrupted, coarse], targets=["cer=1.0"]).report
    assert list(report.differences[1]) == ["target_rule.evaluations_per_epoch", "hash"]
    assert all("at_epoch" not in event["metadata"] for event in read_events(coarse))


def test_training_stops_within_an_epoch_at_its_targets_and_goes_on_longer(tmp_path):
    settings = {**GRID, "evaluations_per_epoch": 2, "targets": (("cer", 1.0),)}
    settings |= {"stop_at_targets": True, "target_window": 1}
    run_dir = tmp_path / "run"
    seen = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs)
    )
    found = {"shard_dir": SHARDS, "run_dir": run_dir}
    history = train(tones_experiment(**settings), **found, callbacks=[count])
    # A window of one is met by the first evaluation, in the middle of epoch 1.
    assert [at["epoch"] for at in history] == [0.5]
    assert len(of(run_dir, "train_step")) == 3
    assert "val_epoch" not in seen[-1]
    assert seen[-1]["val_cer"] == history[-1]["cer"]
    assert (
        json.loads((run_dir / "progress.json").read_text())["targets_met"][0]["epoch"]
        == 0.5
    )
    assert train(tones_experiment(**settings), **found, resume=True) == history
    longer = {**settings, "epochs": 3, "stop_at_targets": False}
    history = train(tones_experiment(**longer), **found, resume=True)
    assert [at["epoch"] for at in history] == [0.5, 1.5, 2, 2.5, 3]
    assert [point.epoch for point in load_run(run_dir).accuracy_curve()] == [
        0.5,
        1.5,
        2,
        2.5,
        3,
    ]


def test_a_declared_part_of_the_split_is_the_same_in_every_placement(tmp_path):
    whole = open_split(SHARDS, "validation")
    part = whole.part(5)
    ids = [utterance.id for utterance in part.utterances]
    assert len(ids) == 5
    assert whole.part(3).utterances[0].id in ids
    assert whole.part(10**6) is whole
    results = {}
    for placement in ("shared", "beside"):
        run_dir = tmp_path / placement
        settings = {
            "evaluation_utterances": 5,
            "evaluation_placement": placement,
            "epochs": 1,
        }
        train(tones_experiment(**settings), shard_dir=SHARDS, run_dir=run_dir)
        lines = hypotheses_file(run_dir, 1).read_text().splitlines()
        assert [json.loads(line)["id"] for line in lines] == ids
        results[placement] = scores(run_dir)
        assert load_run(run_dir).comparability["validation_utterances"] == 5

    assert results["shared"] == results["beside"]
    everything = evaluate(run_dir=tmp_path / "shared", split="validation")
    assert len(everything.utterances) == len(whole.utterances)


def test_a_grid_finer_than_steps_is_refused(tmp_path):
    with pytest.raises(ValueError, match="evaluations_per_epoch must"):
        TrainingConfig(evaluations_per_epoch=0)

    with pytest.raises(UsageError, match="Received: 7 evaluations, 6 batches"):
        experiment = tones_experiment(evaluations_per_epoch=7)
        train(experiment, shard_dir=SHARDS, run_dir=tmp_path / "run")

    assert not (tmp_path / "run").exists()
