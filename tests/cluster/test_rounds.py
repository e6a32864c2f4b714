"""Workers that train in rounds: they learn, go on without lost ones, and the ledger says so."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.test_workers import STEPS, Ended, of_session, together, values, well
from tests.tones import TRAIN_UTTERANCES
from tests.warm import run_module
from tfasr.kit.files import worker_events_file
from tfasr.ledger.events import read_events
from tfasr.training.experiment import TrainingConfig
from tfasr.tta.decomposition import decompose, parts_until
from tfasr.tta.run import load_run

SETTINGS = {
    "pipeline": {"global_batch_size": 6, "num_buckets": 2},
    "model": {"dropout": 0.0},
}
KEEP = {"checkpoint_every_steps": 100}
LOCAL = {**KEEP, "exchange": "local", "exchange_every_steps": 2}
OF_THREE = {**LOCAL, "epochs": 4}
ASYNCHRONOUS = {
    **KEEP,
    "epochs": 3,
    "exchange": "asynchronous",
    "exchange_every_steps": 1,
}
KILLED_AT = 8  # in the second epoch


def scenarios(tmp: Path) -> dict[str, list[dict]]:
    one_step = {**KEEP, "epochs": 2, "exchange": "local", "exchange_every_steps": 1}
    settled = {"start_s": 8.0, **SETTINGS}
    killed = {"die_in_round": [KILLED_AT, signal.SIGKILL]}
    # Its new process begins with an untouched class, as it is forked.
    again = {**killed, "again": {"die_in_round": [10**9, signal.SIGKILL]}}
    chief = {"await_all_at": 3 * STEPS, "die_in_round": [3 * STEPS + 4, signal.SIGKILL]}
    return {
        "synchronous": together(
            2, tmp, run="synchronous", training={**KEEP, "epochs": 2}, **SETTINGS
        ),
        "one_step": together(2, tmp, run="one_step", training=one_step, **SETTINGS),
        "three": together(
            3,
            tmp,
            run="of_three",
            training=OF_THREE,
            own={0: chief, 2: again},
            **settled,
        ),
        "resumed": together(
            2, tmp, run="of_three", training=OF_THREE, resume=True, **settled
        ),
        "asynchronous": together(
            2,
            tmp,
            run="asynchronous",
            training=ASYNCHRONOUS,
            own={1: killed},
            **settled,
        ),
    }


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> dict[str, Ended]:
    if not hasattr(os, "fork"):
        pytest.skip("workers are forked here")

    tmp = tmp_path_factory.mktemp("rounds")
    requests = scenarios(tmp)
    for name, workers in requests.items():
        for rank, request in enumerate(workers):
            request["log"] = str(tmp / f"{name}-{rank}.log")

    (tmp / "scenarios.json").write_text(json.dumps(requests))
    finished = run_module("tests.cluster.forked", tmp / "scenarios.json")
    assert finished.returncode == 0, finished.stderr
    codes = json.loads(finished.stdout.splitlines()[-1])
    logs = {
        n: [Path(w["log"]).read_text(errors="replace") for w in ws]
        for n, ws in requests.items()
    }
    return {
        n: Ended(Path(ws[0]["run_dir"]), codes[n], logs[n])
        for n, ws in requests.items()
    }


def newest_checkpoint(run_dir: Path) -> dict[str, np.ndarray]:
    with np.load(sorted((run_dir / "checkpoints").glob("step-*.npz"))[-1]) as saved:
        return {
            name: saved[name] for name in saved.files if name not in ("state", "ledger")
        }


def test_rounds_of_one_step_are_the_synchronous_way_bit_for_bit(ended):
    one = of_session(well(ended["synchronous"]), "train_step", 0)
    other = of_session(well(ended["one_step"]), "train_step", 0)
    assert [step["loss"] for step in one.values()] == [
        step["loss"] for step in other.values()
    ]
    weights = [
        newest_checkpoint(ended[name].run_dir) for name in ("synchronous", "one_step")
    ]
    assert weights[0].keys() == weights[1].keys()

    for name, value in weights[0].items():
        # The seed of a dropout of 0, which nothing draws from.
        if value.dtype.kind != "f":
            continue

        np.testing.assert_array_equal(value, weights[1][name])


def test_a_killed_worker_costs_a_round_at_most_and_its_successor_joins(ended):
    run_dir = ended["three"].run_dir
    assert ended["three"].codes[0] == -signal.SIGKILL, "\n".join(ended["three"].logs)
    (left, *_), (joined, *_) = (
        values(run_dir, "worker_left"),
        values(run_dir, "worker_joined"),
    )
    assert left["rank"] == joined["rank"] == 2
    rounds = list(of_session(run_dir, "exchanged", 0).values())
    trained = [{worker["rank"] for worker in one["workers"]} for one in rounds]
    rounds = [one for one in rounds if one["lost_utterances"]]
    assert len(rounds) == 1
    # Two steps of six utterances, of which it had a third.
    assert 0 < rounds[0]["lost_utterances"] <= 4
    assert trained[0] == {0, 1, 2}
    assert {0, 1} in trained
    assert trained[-1] == {0, 1, 2}


def test_the_chiefs_death_ends_the_others_and_the_run_is_resumed(ended):
    for code, log in zip(
        ended["three"].codes[1:], ended["three"].logs[1:], strict=True
    ):
        assert code == 1, log
        assert "Missing: worker 0, the chief" in log

    run_dir = well(ended["resumed"])
    (_, session) = values(run_dir, "session_start")
    assert session["resumed_from_step"] == 3 * STEPS
    run = load_run(run_dir)
    assert run.status == "success"
    assert run.intervals["lost_work"] > 0
    scored = [
        e["metadata"] for e in read_events(run_dir) if e["key"] == "tracked_stats"
    ]
    assert {about["epoch_num"] for about in scored} == set(
        range(1, OF_THREE["epochs"] + 1)
    )


def test_utterances_count_once_and_all_seconds_belong_somewhere(ended):
    run_dir = ended["three"].run_dir
    events = [e for e in read_events(run_dir) if e["key"] == "train_step"]
    lost = sum(r["lost_utterances"] for r in values(run_dir, "exchanged"))
    by_epoch = dict.fromkeys(range(1, 4), 0)
    for event in events:
        if event["metadata"]["epoch_num"] in by_epoch:
            by_epoch[event["metadata"]["epoch_num"]] += event["value"]["utterances"]

    assert sum(by_epoch.values()) == 3 * TRAIN_UTTERANCES - lost

    for name in ("three", "asynchronous"):
        run = load_run(ended[name].run_dir)
        assert sum(run.intervals.values()) == pytest.approx(run.wall_s)
        assert run.intervals["exchange"] > 0
        assert run.intervals["wait"] > 0

    one, other = (
        parts_until(load_run(ended[n].run_dir).timeline, 1e6, warmup_steps=0)
        for n in ("synchronous", "three")
    )
    found = decompose([one], [other])
    assert np.prod(list(found.factors.values())) == pytest.approx(found.ratio)
    assert found.factors["workers"] > 1


def test_every_second_step_and_an_epochs_last_are_exchanged(ended):
    steps = [
        event["metadata"]["step"]
        for event in read_events(ended["three"].run_dir)
        if event["key"] == "exchanged" and event["metadata"]["epoch_num"] == 3
    ]
    assert steps == [12, 14, 15]


def test_an_asynchronous_worker_that_dies_is_left_out_and_the_run_ends_well(ended):
    one = ended["asynchronous"]
    assert one.codes == [0, -signal.SIGKILL], "\n".join(one.logs)
    assert [left["rank"] for left in values(one.run_dir, "worker_left")] == [1]
    settled = values(one.run_dir, "exchanged")
    # Of its share of two steps.
    assert sum(r["lost_utterances"] for r in settled) <= 2 * 3
    assert all(w["staleness"] <= 3 for r in settled for w in r["workers"])
    losses = [s["loss"] for s in values(one.run_dir, "tracked_stats")]
    assert losses[-1] < losses[0]


def test_ways_of_exchange_are_not_ranked_together_and_workers_note_their_rounds(ended):
    (rules,) = values(ended["asynchronous"].run_dir, "comparability")
    assert rules["exchange"]["exchange"] == "asynchronous"
    (plain,) = values(ended["synchronous"].run_dir, "comparability")
    assert "exchange" not in plain
    assert plain["hash"] != rules["hash"]
    noted = values(ended["three"].run_dir, "worker_round", worker_events_file(1))
    assert sum(one["utterances"] for one in noted) > 0
    assert all(one["busy_s"] >= one["train_s"] for one in noted)


@pytest.mark.parametrize(
    "wrong",
    [
        {"exchange_every_steps": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=f"TrainingConfig.{next(iter(wrong))}"):
        TrainingConfig(**wrong)
