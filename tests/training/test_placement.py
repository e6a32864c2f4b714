"""Where an epoch is evaluated: the same weights and scores, other intervals, resumed from each."""

import contextlib
import json
import logging
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from tests import child_functions
from tests.tones import SHARDS, tones_experiment
from tests.training.test_signals import same_weights
from tfasr.alphabet import Alphabet
from tfasr.data.shards import open_split
from tfasr.decoding.choice import load_lexicon
from tfasr.errors import RunError, UsageError
from tfasr.ledger.events import Ledger, read_events
from tfasr.reports.numbers import metric_label
from tfasr.training.build import build_model
from tfasr.training.evaluation import Evaluator
from tfasr.training.experiment import TrainingConfig
from tfasr.training.placement import OtherProcess, leave_to_evaluation, named_devices
from tfasr.training.swap import held_bytes, off_device, release
from tfasr.training.train import comparability, train
from tfasr.training.trained import evaluate
from tfasr.tta.policies import POLICIES
from tfasr.tta.run import load_run

EPOCHS = 3
EVALUATES = "tfasr.training.placement.evaluate_checkpoints"
PLACEMENTS = ("shared", "swapped", "beside")


def of(run_dir, key):
    return [event for event in read_events(run_dir) if event["key"] == key]


def scores(run_dir):
    """The scores of each epoch as they were booked last, exactly."""
    found = {
        e["metadata"]["epoch_num"]: e["value"] for e in of(run_dir, "tracked_stats")
    }
    return json.dumps(found, sort_keys=True)


def averaging_adam():
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8, name="adam")


def experiment(placement, **training):
    # Averaged weights, which every placement must take from the checkpoint and give
    # back.
    values = {"second_decoder": "word_beam", "optimizer": averaging_adam, **training}
    return tones_experiment(epochs=EPOCHS, evaluation_placement=placement, **values)


HELD_BYTES = []
"""What the training model held on its device in each evaluation of the swapped run."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each placement, alike in everything else."""
    folder = tmp_path_factory.mktemp("placements")
    start = Evaluator.start
    for placement in PLACEMENTS:
        seen = keras.callbacks.Callback()

        def watched(self, seen=seen):
            HELD_BYTES.append(held_bytes(seen.model))
            return start(self)

        with pytest.MonkeyPatch.context() as patched:
            if placement == "swapped":
                patched.setattr(Evaluator, "start", watched)
            callbacks = [seen] if placement == "swapped" else []
            run_dir = folder / placement
            train(
                experiment(placement),
                shard_dir=SHARDS,
                run_dir=run_dir,
                callbacks=callbacks,
            )

    return folder


def test_weights_scores_and_hypotheses_are_the_same_in_all(runs):
    first = runs / "shared"
    texts = {path.name: path.read_bytes() for path in (first / "hypotheses").iterdir()}
    assert len(texts) == EPOCHS
    for placement in PLACEMENTS[1:]:
        run_dir = runs / placement
        assert scores(run_dir) == scores(first)
        assert same_weights(run_dir, first)
        best = [np.load(d / "checkpoints/best.npz")["state"] for d in (run_dir, first)]
        assert json.loads(str(best[0]))["step"] == json.loads(str(best[1]))["step"]
        assert {
            p.name: p.read_bytes() for p in (run_dir / "hypotheses").iterdir()
        } == texts


def test_a_second_decoder_is_scored_beside_and_runs_stay_comparable(runs):
    run_dir = runs / "shared"
    last = of(run_dir, "tracked_stats")[-1]["value"]
    result = evaluate(
        run_dir=run_dir, split="validation", decoder="word_beam", checkpoint="last"
    )
    assert last["word_beam_wer"] == result.counts.wer
    assert last["word_beam_cer"] == result.counts.cer
    line = json.loads(
        (run_dir / "hypotheses/validation-epoch-0003.jsonl").read_text().split("\n")[0]
    )
    assert line["word_beam"] == result.hypotheses[0].text
    assert all(event["value"] > 0 for event in of(run_dir, "second_decode_work"))
    run = load_run(run_dir)
    assert run.accuracy_curve("word_beam_wer")[-1].value == last["word_beam_wer"]
    assert metric_label("word_beam_wer", run.metrics) == "word beam WER"
    split = open_split(SHARDS, "validation")
    lexicon = load_lexicon(run_dir)
    alphabet = Alphabet.load(run_dir / "alphabet.json")
    training = open_split(SHARDS, "train")
    without = experiment("shared", second_decoder="")
    alone = comparability(without, split, alphabet, lexicon, training=training)
    assert run.comparability == json.loads(json.dumps(alone))
    with pytest.raises(ValueError, match="second_decoder must be"):
        TrainingConfig(second_decoder="none such")


def test_each_books_its_own_intervals(runs):
    run = {placement: load_run(runs / placement) for placement in PLACEMENTS}
    spent = {placement: run[placement].intervals for placement in PLACEMENTS}
    assert all(
        run[p].fact("evaluation_placement") == {"name": p, "devices": []} for p in run
    )
    in_this_process = {"eval_forward", "swap"}
    booked = {"shared": in_this_process, "swapped": in_this_process, "beside": set()}
    for placement, intervals in booked.items():
        assert spent[placement]["averaging"] > 0
        for name in ("eval_forward", "swap"):
            assert (spent[placement][name] > 0) == (name in intervals), (
                placement,
                name,
            )

    assert spent["beside"]["eval_wait"] > 0
    assert spent["shared"]["eval_wait"] == spent["swapped"]["eval_wait"] == 0
    assert len(of(runs / "swapped", "swap_stop")) == 2 * EPOCHS
    work = [event["value"] for event in of(runs / "beside", "evaluation_work")]
    assert len(work) == EPOCHS
    assert all(
        min(one["load_s"], one["forward_s"], one["decode_s"]) > 0 for one in work
    )
    averaged = "moving average of weights, momentum 0.8 a step; batch statistics estimated anew"
    assert run["shared"].fact("evaluated_weights").startswith(averaged)
    # What they cost differs; what they are scores of does not.
    assert (
        run["shared"].comparability
        == run["swapped"].comparability
        == run["beside"].comparability
    )
    assert not list((runs / "beside" / "checkpoints").glob("evaluating-*"))


def test_a_clock_that_counts_evaluation_is_read_when_the_score_is_known(runs):
    line = load_run(runs / "beside").timeline
    pairs = {epoch: [] for epoch in range(1, EPOCHS + 1)}
    for index in line.of("eval_stop"):
        pairs[line.metadata[index]["epoch_num"]].append(index)
    handed_over, known = map(list, zip(*pairs.values(), strict=True))
    read = {
        name: [one.index for one in POLICIES[name].readings(line, "cer")]
        for name in ("paper", "mlperf", "algoperf", "dawnbench")
    }
    assert read["paper"] == read["mlperf"] == known
    # The others are read at the weights: the other process only slows training down for
    # them.
    assert read["algoperf"] == handed_over
    assert read["dawnbench"] == line.of("epoch_stop")


def test_the_training_model_leaves_the_device_and_comes_back_bit_for_bit(runs):
    assert HELD_BYTES == [0] * EPOCHS
    model = build_model(experiment("swapped"), Alphabet(), compiled=True)
    whole = held_bytes(model)
    before = [np.array(weight) for weight in model.get_weights()]
    # Weights, and Adam's two slots of each.
    assert whole > 3 * 4 * sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    with pytest.raises(ZeroDivisionError), off_device(model):
        assert held_bytes(model) == 0
        raise ZeroDivisionError

    assert held_bytes(model) == whole
    for weight, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    release(model)
    assert held_bytes(model) == 0


def test_a_swapped_run_that_ended_in_an_evaluation_is_resumed(
    runs, tmp_path, monkeypatch
):
    run_dir = tmp_path / "run"
    swapped = experiment("swapped", overlap_evaluation=True)
    with monkeypatch.context() as patched:
        patched.setattr(Evaluator, "forward_passes", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(swapped, shard_dir=SHARDS, run_dir=run_dir)

    assert not of(run_dir, "eval_forward_stop")
    train(swapped, shard_dir=SHARDS, run_dir=run_dir, resume=True)
    assert scores(run_dir) == scores(runs / "shared")
    assert same_weights(run_dir, runs / "shared")


KILLED = """
import sys
from tests.training.test_placement import SHARDS, experiment
from tfasr.training.train import train
train(experiment("beside"), shard_dir=SHARDS, run_dir=sys.argv[1])
"""


def test_a_killed_run_evaluates_what_was_outstanding(runs, tmp_path):
    run_dir = tmp_path / "run"
    # Its messages go to a terminal, which shows a live line.
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(run_dir)],
        stderr=theirs,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    deadline = time.monotonic() + 240
    while not (run_dir / "events.jsonl").exists() or not of(run_dir, "eval_wait_start"):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)

    process.send_signal(signal.SIGKILL)
    process.wait()
    # The system passes on what was shown in parts, the last of them some time after the
    # write.
    shown = b""
    while not all(text in shown for text in (b"epoch 3/3", b"saving and evaluating")):
        ready, _, _ = select.select([ours], [], [], 60)
        assert ready, shown
        shown += os.read(ours, 1 << 16)

    os.close(ours)
    # At its end already, it waited for a process that was still being started.
    held = sorted(path.name for path in (run_dir / "checkpoints").glob("evaluating-*"))
    assert held == [
        f"evaluating-epoch-{epoch:04d}.npz" for epoch in range(1, EPOCHS + 1)
    ]
    assert not of(run_dir, "tracked_stats")
    # As if the first had been booked, and given up, after the checkpoint of the last
    # epoch.
    booked = next(
        e
        for e in of(runs / "shared", "tracked_stats")
        if e["metadata"]["epoch_num"] == 1
    )
    session = read_events(run_dir)[-1]["metadata"]["session"]
    with contextlib.closing(Ledger(run_dir, session)) as ledger:
        ledger.event("tracked_stats", booked["value"], epoch_num=1)
    (run_dir / "checkpoints" / held[0]).unlink()
    shutil.copytree(run_dir, tmp_path / "without")
    train(experiment("beside"), shard_dir=SHARDS, run_dir=run_dir, resume=True)
    assert scores(run_dir) == scores(runs / "shared")
    assert same_weights(run_dir, runs / "shared")
    assert [point.epoch for point in load_run(run_dir).accuracy_curve("cer")] == [
        1,
        2,
        3,
    ]
    assert not list((run_dir / "checkpoints").glob("evaluating-*"))
    (tmp_path / "without" / "checkpoints" / held[1]).unlink()
    with pytest.raises(UsageError, match=r"must keep .*evaluating-epoch-0002\.npz"):
        OtherProcess(tmp_path / "without", (), None).begin(range(1, 3))


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    path = folder / "step-00000001.npz"
    path.write_bytes(b"weights")
    return path


def other_process(monkeypatch, run_dir, function, ledger):
    monkeypatch.setattr(EVALUATES, function)
    return OtherProcess(run_dir, (), ledger)


def test_a_process_that_died_is_started_again(
    checkpoint, monkeypatch, tmp_path, caplog
):
    run_dir = tmp_path / "run"
    ledger = Ledger(run_dir)
    other = other_process(
        monkeypatch, run_dir, child_functions.score_after_a_death, ledger
    )
    assert other.begin(range(1, 1)) == []
    with caplog.at_level(logging.WARNING, "tfasr"):
        pending = [other.start(epoch, checkpoint) for epoch in (1, 2)]
        found = [one.scores()[0]["wer"] for one in pending]

    other.close()
    ledger.close()
    assert found == [0.1, 0.2]
    assert "It is started again." in caplog.text
    (died,) = of(run_dir, "evaluator_died")
    assert died["value"] == {"exit_code": -9, "deaths": 1}
    assert died["metadata"]["epoch_num"] == 1


def test_a_process_that_always_dies_ends_the_run(checkpoint, monkeypatch, tmp_path):
    run_dir = tmp_path / "run"
    ledger = Ledger(run_dir)
    other = other_process(monkeypatch, run_dir, child_functions.die_at_once, ledger)
    other.begin(range(1, 1))
    pending = other.start(1, checkpoint)
    checkpoint.unlink()  # newer ones have taken its place
    with pytest.raises(
        RunError, match="3 times over epoch 1, whose checkpoint is kept"
    ):
        pending.scores()
    other.close()
    ledger.close()
    assert pending.checkpoint.read_bytes() == b"weights"


def test_more_evaluations_than_may_be_under_way_are_waited_for(
    runs, tmp_path, monkeypatch
):
    monkeypatch.setattr(OtherProcess, "most_pending", 1)
    pending = []
    start = OtherProcess.start

    def counted(self, *args):
        pending.append(len(self._sent))
        return start(self, *args)

    monkeypatch.setattr(OtherProcess, "start", counted)
    monkeypatch.setattr(EVALUATES, child_functions.score_one_behind)
    assert child_functions.BEHIND_EPOCHS == EPOCHS
    train(experiment("beside"), shard_dir=SHARDS, run_dir=tmp_path / "run")
    assert pending == [0, 1, 1]


def test_devices_are_named_and_must_be_there():
    assert named_devices(("cpu:1", "gpu:0", "cpu:3")).processors == (1, 3)
    usable = sorted(os.sched_getaffinity(0))
    leave_to_evaluation((f"cpu:{usable[0]}",))
    with pytest.raises(
        UsageError, match=r"\['cpu:9999'\] are not among the processors"
    ):
        leave_to_evaluation(("cpu:9999",))
    with pytest.raises(UsageError, match=r"\['gpu:7'\] are not among"):
        leave_to_evaluation(("gpu:7",))


def test_a_process_sees_its_own_gpus_alone(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    visible = {names: named_devices(names).environment() for names in ((), ("gpu:1",))}
    assert visible[()] == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert visible[("gpu:1",)] == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert named_devices(("gpu:1",)).environment() == {"CUDA_VISIBLE_DEVICES": "6"}


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"evaluation_devices": ("cpu:0",)}, 'empty unless the placement is "beside"'),
        (
            {"evaluation_placement": "beside", "evaluation_devices": ("cores",)},
            "names such as",
        ),
        (
            {"evaluation_placement": "beside", "overlap_evaluation": True},
            "overlaps all",
        ),
        ({"evaluation_placement": "elsewhere"}, "evaluation_placement"),
    ],
)
def test_what_makes_no_placement_is_refused(values, rule):
    with pytest.raises((ValueError, TypeError), match=rule):
        TrainingConfig(**values)
