"""SIGTERM and SIGINT: a checkpoint at the next step, a documented exit code, nothing lost."""

import os
import signal
import threading
import time

import keras
import numpy as np
import pytest

from tests.tones import SHARDS, TONES_GIN, TRAIN_UTTERANCES, tones_experiment
from tests.warm import start_tfasr
from tfasr.ledger.events import read_events
from tfasr.training.checkpoint import find_checkpoint, read_state
from tfasr.training.run_folder import Interruption, RunInterruptedError
from tfasr.training.train import train
from tfasr.tta.run import load_run

STEPS = TRAIN_UTTERANCES // 4
EPOCHS = 4


def of(run_dir, key):
    return [event for event in read_events(run_dir) if event["key"] == key]


def weights(run_dir):
    with np.load(find_checkpoint(run_dir, "last")) as arrays:
        return {
            name: arrays[name]
            for name in arrays.files
            if name not in ("state", "ledger")
        }


def same_weights(one, other):
    one = weights(one)
    other = weights(other)
    assert one.keys() == other.keys()
    # Keras seeds by chance a random state that nothing has drawn from: its counter is
    # 0.
    unused = {n for n in one if n.endswith("seed_generator_state") and one[n][1] == 0}
    assert len(unused) <= 1
    return all(np.array_equal(one[name], other[name]) for name in one.keys() - unused)


def experiment():
    return tones_experiment(epochs=EPOCHS, checkpoint_every_steps=1000)


@pytest.fixture(autouse=True)
def interruptible():
    """Of a shell's background job SIGINT is ignored, which tfasr and its children would
    keep.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    train(experiment(), shard_dir=SHARDS, run_dir=run_dir)
    return run_dir


def send(number):
    return lambda *_: os.kill(os.getpid(), number)


def at_batch(batch, number):
    def end(at, logs):
        if at == batch:
            os.kill(os.getpid(), number)

    return keras.callbacks.LambdaCallback(on_train_batch_end=end)


def test_a_signal_within_an_epoch_saves_that_step(uninterrupted, tmp_path):
    run_dir = tmp_path / "run"
    handlers = [signal.getsignal(s) for s in (15, 2)]
    with pytest.raises(
        RunInterruptedError, match="SIGTERM ended the run after step 4"
    ) as caught:
        train(
            experiment(),
            shard_dir=SHARDS,
            run_dir=run_dir,
            callbacks=[at_batch(3, signal.SIGTERM)],
        )

    assert caught.value.exit_code == 143
    assert [signal.getsignal(s) for s in (15, 2)] == handlers
    events = read_events(run_dir)
    keys = [event["key"] for event in events]
    assert keys[-3:] == ["checkpoint_start", "checkpoint_stop", "run_stop"]
    assert events[-1]["metadata"]["status"] == load_run(run_dir).status == "interrupted"
    assert read_state(find_checkpoint(run_dir, "last")).step == 4
    assert [e["metadata"]["step"] for e in of(run_dir, "train_step")] == [1, 2, 3, 4]
    train(experiment(), shard_dir=SHARDS, run_dir=run_dir, resume=True)
    steps = [e["metadata"]["step"] for e in of(run_dir, "train_step")]
    assert steps == list(range(1, EPOCHS * STEPS + 1))
    assert load_run(run_dir).intervals["lost_work"] == pytest.approx(0, abs=0.1)
    assert same_weights(run_dir, uninterrupted)


def test_a_signal_in_an_evaluation_keeps_it(uninterrupted, tmp_path):
    run_dir = tmp_path / "run"
    sending = keras.callbacks.LambdaCallback(on_epoch_end=send(signal.SIGINT))
    with pytest.raises(RunInterruptedError, match="SIGINT") as caught:
        train(experiment(), shard_dir=SHARDS, run_dir=run_dir, callbacks=[sending])

    assert caught.value.exit_code == 130
    state = read_state(find_checkpoint(run_dir, "last"))
    assert (state.step, state.epoch, len(state.history)) == (STEPS, 2, 1)
    train(experiment(), shard_dir=SHARDS, run_dir=run_dir, resume=True)
    assert [e["metadata"]["epoch_num"] for e in of(run_dir, "tracked_stats")] == [
        1,
        2,
        3,
        4,
    ]
    assert len(load_run(run_dir).accuracy_curve("cer")) == EPOCHS
    assert same_weights(run_dir, uninterrupted)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)],
)
def test_a_process_exits_with_the_documented_code(tmp_path, number, code):
    run_dir = tmp_path / "run"
    words = ["--gin_file", TONES_GIN, "--shard_dir", SHARDS, "--run_dir", run_dir]
    words += ["--gin_binding", "TrainingConfig.epochs = 200", "--no_memory_probe"]
    process = start_tfasr("train", *words, one_stream=True)
    deadline = time.monotonic() + 240
    while not (run_dir / "events.jsonl").exists() or not of(run_dir, "train_step"):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)

    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == code, output
    assert "Continue it with --resume." in output
    assert "Traceback" not in output
    last = of(run_dir, "train_step")[-1]["metadata"]["step"]
    assert read_state(find_checkpoint(run_dir, "last")).step == last
    assert of(run_dir, "run_stop")[-1]["metadata"]["status"] == "interrupted"


def test_a_second_signal_works_as_without_tfasr():
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.received is signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_and_ignored_signals_are_left_alone():
    before = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
    }
    seen = {}

    def look():
        with Interruption():
            seen.update({number: signal.getsignal(number) for number in before})

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == before
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) not in (
                signal.SIG_IGN,
                signal.SIG_DFL,
            )
    finally:
        signal.signal(signal.SIGINT, ignored)
