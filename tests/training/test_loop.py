"""The training loop and what users hang into it: Keras callbacks, targets, progress, sentences."""

import contextlib
import ctypes
import json
import logging
import os
import shutil
import struct
import sys
import threading
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tones import SHARDS, TRAIN_UTTERANCES, tones_experiment
from tests.training.test_hooks import scalars
from tfasr.data.batches import BatchSource, PipelineConfig, Reading
from tfasr.data.features import FeatureConfig
from tfasr.data.shards import open_split
from tfasr.kit.files import PARTIAL_SUFFIX
from tfasr.ledger.events import Ledger, read_events
from tfasr.training import evaluation, trained
from tfasr.training.build import make_strategy
from tfasr.training.checkpoint import TrainingState, find_checkpoint, read_state
from tfasr.training.experiment import TrainingConfig
from tfasr.training.run import EpochBatches
from tfasr.training.step import StepTraces, book_traces
from tfasr.training.train import train
from tfasr.tta.run import load_run

# A prefetched epoch has the same batches as one that is read when it is needed.


def positions(batches):
    return [batch["positions"].numpy().tolist() for batch in batches]


@pytest.fixture
def source(shard_dir):
    split = open_split(shard_dir, "train")
    pipeline = PipelineConfig(padding="bucketed", global_batch_size=4, num_readers=1)
    return BatchSource(split, FeatureConfig(normalisation="none"), pipeline)


@pytest.fixture
def batches(source):
    return EpochBatches(source, TrainingConfig(epochs=3, seed=7), make_strategy(1))


def test_the_next_epoch_is_begun_at_the_end_of_one(batches, source):
    for epoch in (1, 2, 3):
        state = TrainingState(epoch=epoch)
        assert positions(batches.iterator(state)) == positions(
            source.training(7, epoch)
        )
        # A prefetched iterator is used once; the next call starts the epoch again.
        assert positions(batches.iterator(state)) == positions(
            source.training(7, epoch)
        )
        batches.prefetch(epoch + 1)


def test_an_epoch_that_is_not_the_one_begun_is_made(batches, source):
    batches.prefetch(2)
    resumed = batches.iterator(TrainingState(epoch=2, step_in_epoch=1))
    assert positions(resumed) == positions(source.training(7, 2))[1:]
    third = batches.iterator(TrainingState(epoch=3))
    assert positions(third) == positions(source.training(7, 3))


@pytest.mark.parametrize(("kept_bytes", "reads"), [(2**26, 1), (0, 3)])
def test_a_small_validation_split_is_read_once_for_all_evaluations(
    kept_bytes, reads, monkeypatch, tmp_path
):
    begun = []

    class CountedReading(Reading):
        def __init__(self, *arguments):
            begun.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(evaluation, "Reading", CountedReading)
    monkeypatch.setattr(evaluation, "_KEPT_BYTES", kept_bytes)
    train(tones_experiment(epochs=3), shard_dir=SHARDS, run_dir=tmp_path / "run")
    assert len(begun) == reads
    scores = [
        e["value"] for e in read_events(tmp_path / "run") if e["key"] == "tracked_stats"
    ]
    again = trained.evaluate(
        run_dir=tmp_path / "run",
        split="validation",
        shard_dir=SHARDS,
        checkpoint="last",
    )
    assert len(scores) == 3 and again.loss == scores[-1]["loss"]


class SlowSource:
    """Stands for a source whose one batch says when it is read."""

    split = None

    def __init__(self):
        self.read = threading.Event()

    def training(self, seed, epoch, skip, replicas):
        def element():
            self.read.set()
            yield float(epoch)

        dataset = tf.data.Dataset.from_generator(
            element, output_signature=tf.TensorSpec([])
        )
        options = tf.data.Options()
        options.experimental_warm_start = True
        return dataset.prefetch(1).with_options(options)


def test_reading_begins_with_the_iterator_and_not_with_the_dataset():
    source = SlowSource()
    batches = EpochBatches(source, TrainingConfig(epochs=3), make_strategy(1))
    assert batches.dataset(TrainingState()).element_spec == tf.TensorSpec([])
    assert not source.read.wait(timeout=0.5)
    batches.prefetch(2)
    assert source.read.wait(timeout=30)
    assert [x.numpy() for x in batches.iterator(TrainingState(epoch=2))] == [2.0]


def test_the_loop_does_not_wait_while_reading_is_begun():
    class HeldSource(SlowSource):
        released = threading.Event()

        def training(self, *position):
            assert self.released.wait(timeout=10)
            return super().training(*position)

    source = HeldSource()
    batches = EpochBatches(source, TrainingConfig(epochs=3), make_strategy(1))
    batches.prefetch(2)
    source.released.set()
    assert [x.numpy() for x in batches.iterator(TrainingState(epoch=2))] == [2.0]


def test_the_loop_waits_while_reading_is_begun_for_several_devices():
    """TensorFlow may fail to create their iterator while another thread's iterator ends."""

    class NoStrategy:
        def distribute_datasets_from_function(self, function):
            time.sleep(0.2)
            begun.append(function(None))
            return begun[0]

    begun = []
    training = TrainingConfig(epochs=3, num_replicas=2)
    EpochBatches(SlowSource(), training, NoStrategy()).prefetch(2)
    assert begun


def test_nothing_is_begun_after_the_last_epoch():
    source = SlowSource()
    EpochBatches(source, TrainingConfig(epochs=3), make_strategy(1)).prefetch(4)
    assert not source.read.wait(timeout=0.5)


STEPS = TRAIN_UTTERANCES // 4


def of(run_dir, key):
    return [event for event in read_events(run_dir) if event["key"] == key]


class Calls(keras.callbacks.Callback):
    """Writes down how it is called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_begin(self, logs=None):
        self.calls.append("train begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch} begin")

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(f"batch {batch} begin")

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(f"batch {batch} end")

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch} end")

    def on_train_end(self, logs=None):
        self.calls.append("train end")


@pytest.fixture(scope="module")
def with_callbacks(tmp_path_factory):
    """A run of two epochs with several callbacks; its folder, history and what they saw."""
    folder = tmp_path_factory.mktemp("callbacks")
    seen = {"batches": [], "epochs": [], "rates": [], "calls": Calls()}

    def epoch_end(epoch, logs):
        seen["epochs"].append((epoch, dict(logs)))
        seen["rates"].append(float(reduce.model.optimizer.learning_rate.numpy()))

    reduce = keras.callbacks.ReduceLROnPlateau(
        monitor="val_loss", factor=0.5, patience=0, min_delta=1e9, cooldown=0
    )
    callbacks = [
        reduce,
        keras.callbacks.TensorBoard(folder / "tensorboard", update_freq="batch"),
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen["batches"].append(
                (batch, logs["loss"])
            ),
            on_epoch_end=epoch_end,
        ),
        seen["calls"],
    ]
    with warnings.catch_warnings():
        # Keras's ReduceLROnPlateau converts Keras's variable in a way that NumPy 2
        # warns of.
        warnings.filterwarnings(
            "ignore", "__array__ implementation doesn't accept a copy"
        )
        history = train(
            tones_experiment(epochs=2, overlap_evaluation=True),
            shard_dir=SHARDS,
            run_dir=folder / "run",
            callbacks=callbacks,
        )

    return folder, history, seen


def test_a_lambda_callback_sees_every_step_and_every_evaluation(with_callbacks):
    folder, history, seen = with_callbacks
    steps = of(folder / "run", "train_step")
    assert [batch for batch, _ in seen["batches"]] == [*range(STEPS), *range(STEPS)]
    losses = [event["value"]["loss"] for event in steps]
    np.testing.assert_allclose([loss for _, loss in seen["batches"]], losses, atol=1e-6)
    for epoch, (number, logs) in enumerate(seen["epochs"], start=1):
        assert number == epoch - 1
        of_epoch = [e["value"] for e in steps if e["metadata"]["epoch_num"] == epoch]
        weights = [step["utterances"] for step in of_epoch]
        mean = np.average([step["loss"] for step in of_epoch], weights=weights)
        assert logs["loss"] == pytest.approx(mean, abs=1e-5)
        metrics = {f"val_{name}": value for name, value in history[epoch - 1].items()}
        assert {"val_loss", "val_cer", "val_wer"} <= metrics.keys()
        assert {name: logs[name] for name in metrics} == metrics


def test_callbacks_are_called_in_keras_order(with_callbacks):
    batches = [
        f"batch {number} {edge}" for number in range(STEPS) for edge in ("begin", "end")
    ]
    # Keras announces a batch before it knows whether there is one.
    batches.append(f"batch {STEPS} begin")
    epochs = [[f"epoch {e} begin", *batches, f"epoch {e} end"] for e in range(2)]
    assert with_callbacks[2]["calls"].calls == [
        "train begin",
        *sum(epochs, []),
        "train end",
    ]


def test_reduce_lr_on_plateau_lowers_the_rate_that_training_uses(with_callbacks):
    # The first epoch is its best by definition; the second is no better by its
    # min_delta.
    _, _, seen = with_callbacks
    assert seen["rates"] == pytest.approx([0.01, 0.005])


def test_keras_tensorboard_writes_batches_and_epochs(with_callbacks):
    folder, history, _ = with_callbacks
    logged = folder / "tensorboard"
    tags = {}
    for name in ("train", "validation"):
        tags[name] = set(scalars(logged / name))
    assert {"epoch_loss"} <= tags["train"]
    assert {"epoch_loss", "epoch_cer", "epoch_wer"} <= tags["validation"]
    assert any(tag.startswith("batch_loss") for tag in tags["train"])


def test_early_stopping_ends_the_run(tmp_path):
    stopping = keras.callbacks.EarlyStopping(
        "val_wer", mode="min", min_delta=1e9, patience=1
    )
    history = train(
        tones_experiment(epochs=5),
        shard_dir=SHARDS,
        run_dir=tmp_path / "run",
        callbacks=[stopping],
    )
    assert len(history) == 2
    assert len(of(tmp_path / "run", "epoch_stop")) == 2
    assert load_run(tmp_path / "run").status == "success"


def test_stopping_within_an_epoch_evaluates_and_saves_it(tmp_path):
    def stop(batch, logs):
        own.model.stop_training = batch == 2

    own = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    history = train(
        tones_experiment(epochs=5),
        shard_dir=SHARDS,
        run_dir=tmp_path / "run",
        callbacks=[own],
    )
    assert len(history) == 1
    assert len(of(tmp_path / "run", "train_step")) == 3
    assert read_state(find_checkpoint(tmp_path / "run", "last")).step == 3


def test_progress_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    def block(epoch, logs):
        path = tmp_path / "run" / "progress.json"
        path.unlink()
        (path / "in the way").mkdir(parents=True)  # no file can be renamed to it

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=block)]
    experiment = tones_experiment(epochs=1)
    train(experiment, shard_dir=SHARDS, run_dir=tmp_path / "run", callbacks=callbacks)
    assert load_run(tmp_path / "run").status == "success"
    assert (tmp_path / "run" / "progress.json").is_dir()
    assert not (tmp_path / "run" / f"progress.json{PARTIAL_SUFFIX}").exists()


def test_a_callback_that_raises_ends_the_run(tmp_path):
    def fail(batch, logs):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train(
            tones_experiment(),
            shard_dir=SHARDS,
            run_dir=tmp_path / "run",
            callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail)],
        )

    assert load_run(tmp_path / "run").status == "aborted"
    assert (
        json.loads((tmp_path / "run" / "progress.json").read_text())["status"]
        == "stopped"
    )


class OpenedFiles:
    """The names of the files that are opened in some folders, by Linux's inotify."""

    def __init__(self, *folders):
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK)
        opened = 0x20
        for folder in folders:
            assert (
                libc.inotify_add_watch(self._descriptor, os.fsencode(folder), opened)
                >= 0
            )

    def take(self):
        """Returns the names since the last call."""
        names = set()
        content = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                content += os.read(self._descriptor, 1 << 16)

        while content:
            (length,) = struct.unpack_from("12xI", content)
            names.add(content[16 : 16 + length].rstrip(b"\0").decode())
            content = content[16 + length :]

        return names

    def close(self):
        os.close(self._descriptor)


@pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")
def test_no_shard_is_opened_before_run_start(tmp_path, monkeypatch, caplog):
    # Another process may be reading the ones that tests share.
    shards = tmp_path / "shards"
    shutil.copytree(SHARDS, shards)
    opened = OpenedFiles(shards / "train", shards / "validation")
    before = None
    event = Ledger.event

    def watch(self, key, *args, **kwargs):
        nonlocal before
        if key == "run_start":
            before = opened.take()
        event(self, key, *args, **kwargs)

    monkeypatch.setattr(Ledger, "event", watch)
    texts = {u.text for u in open_split(SHARDS, "train").utterances}
    with caplog.at_level(logging.INFO, "tfasr"):
        train(
            tones_experiment(epochs=1, sentences_every_steps=3),
            shard_dir=shards,
            run_dir=tmp_path / "run",
        )

    assert not {name for name in before if name.endswith(".tfrecord")}
    assert {name for name in opened.take() if name.endswith(".tfrecord")}
    opened.close()
    # The sentences are training utterances, the same ones at every look.
    shown = [r.args[0] for r in caplog.records if "reference" in r.msg]
    assert len(shown) == 6
    assert shown[:3] == shown[3:]
    assert set(shown) <= texts
    assert len(of(tmp_path / "run", "sentences_stop")) == 2


@pytest.mark.parametrize("overlap", [False, True])
def test_targets_are_announced_when_their_rule_is_first_met(tmp_path, caplog, overlap):
    experiment = tones_experiment(
        epochs=3,
        targets=(("cer", 1.0), ("wer", 1.0), ("cer", 0.0)),
        target_window=2,
        overlap_evaluation=overlap,
    )
    with caplog.at_level(logging.INFO, "tfasr"):
        history = train(experiment, shard_dir=SHARDS, run_dir=tmp_path / "run")
    announced = [
        message for message in caplog.messages if message.startswith("target met")
    ]
    run = load_run(tmp_path / "run")
    progress = json.loads((tmp_path / "run" / "progress.json").read_text())
    met = [(target["metric"], target["value"]) for target in progress["targets_met"]]
    reported = {
        (metric, value): run.time_to_accuracy(**{metric: value}, window=2)
        for metric, value in experiment.training.targets
    }
    assert sorted(met) == sorted(
        target for target, found in reported.items() if found.reached
    )
    assert len(announced) == len(met) >= 2
    assert "median of the last 2 epochs" in announced[0]
    for target in progress["targets_met"]:
        found = reported[target["metric"], target["value"]]
        assert target["epoch"] == found.epoch
        # Read from the ledger at the end of the epoch, after the announcement; of an
        # overlapped evaluation at its own end, before it, and before the next epoch's.
        assert target["elapsed_s"] > 0
        if overlap:
            ends = [
                p.elapsed_s for p in run.accuracy_curve("cer") if p.epoch > found.epoch
            ]
            assert found.seconds <= target["elapsed_s"] <= min(ends)
        else:
            assert target["elapsed_s"] <= found.seconds

    assert progress["status"] == "finished"
    assert (progress["epoch"], progress["step"]) == (3, 3 * STEPS)
    assert progress["evaluation"]["epoch"] == len(history) == 3
    assert progress["evaluation"]["cer"] == history[-1]["cer"]
    assert not list((tmp_path / "run").glob(f"*{PARTIAL_SUFFIX}"))


# Counts of traces and compilations, and the warning of too many.


def test_steps_and_compilations_are_counted_by_shape(tmp_path):
    traces = StepTraces()
    for utterances, frames, compile_s in (
        (8, 100, 2.0),
        (8, 100, 0.0),
        (3, 100, 0.5),
        (8, 70, 0),
    ):
        traces.record(utterances, frames, traced=1, compile_s=compile_s)
    counts = traces.to_json()
    assert (counts["traces"], counts["shapes"], counts["compiling_steps"]) == (1, 3, 2)
    assert counts["compile_s"] == 2.5
    assert counts["by_frames"] == {
        "70": {"steps": 1, "compiling_steps": 0, "compile_s": 0},
        "100": {"steps": 3, "compiling_steps": 2, "compile_s": 2.5},
    }
    ledger = Ledger(tmp_path)
    book_traces(ledger, traces, evaluation_traces=1)
    ledger.close()
    (event,) = read_events(tmp_path)
    assert event["value"] == {"training": counts, "evaluation": {"traces": 1}}


def test_a_trace_too_many_is_warned_of_once_with_a_remedy(caplog):
    traces = StepTraces()
    with caplog.at_level(logging.WARNING):
        traces.record(8, 100, traced=1, compile_s=1.0)
        assert not caplog.records
        for traced in (2, 2, 3):
            traces.record(8, 110, traced=traced, compile_s=1.0)

    (warning,) = caplog.messages
    assert "8 utterances x 110 frames" in warning
    assert "num_buckets" in warning
