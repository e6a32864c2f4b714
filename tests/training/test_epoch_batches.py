"""An epoch begun ahead is the epoch that would have been made in time."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfasr.data.features import FeatureConfig
from tfasr.data.pipeline import BatchSource, PipelineConfig
from tfasr.data.shards import open_split
from tfasr.training.build import make_strategy
from tfasr.training.callbacks import RunProgress
from tfasr.training.checkpoint import TrainingState
from tfasr.training.epoch_batches import EpochBatches, begun
from tfasr.training.experiment import TrainingConfig


def positions(batches):
    return [batch["positions"].numpy().tolist() for batch in batches]


@pytest.fixture
def source(shard_dir):
    split = open_split(shard_dir, "train")
    pipeline = PipelineConfig(global_batch_size=4, num_readers=1)
    return BatchSource(split, FeatureConfig(normalisation="none"), pipeline)


@pytest.fixture
def batches(source):
    training = TrainingConfig(epochs=3, seed=7)
    progress = RunProgress(TrainingState())
    return EpochBatches(source, training, make_strategy(1), progress), progress


def test_the_next_epoch_is_begun_at_the_end_of_one(batches, source):
    epochs, progress = batches
    for epoch in (1, 2, 3):
        made = epochs.of(TrainingState(epoch=epoch))
        assert positions(made) == positions(source.training(7, epoch))
        # What was begun is gone on with once; a second pass is a whole epoch again.
        assert positions(made) == positions(source.training(7, epoch))
        progress.advance(epoch=epoch)
        epochs.on_epoch_end(epoch - 1)


def test_an_epoch_that_is_not_the_one_begun_is_made(batches, source):
    epochs, _ = batches
    epochs.on_epoch_end(0)  # begins epoch 2
    resumed = epochs.of(TrainingState(epoch=2, step_in_epoch=1))
    assert positions(resumed) == positions(source.training(7, 2))[1:]
    assert positions(epochs.of(TrainingState(epoch=3))) == positions(source.training(7, 3))


def test_reading_begins_before_the_first_batch_is_asked_for():
    seen = threading.Event()

    def element():
        seen.set()
        yield 1.0

    dataset = tf.data.Dataset.from_generator(element, output_signature=tf.TensorSpec([]))
    options = tf.data.Options()
    options.experimental_warm_start = True
    ready = begun(dataset.prefetch(1).with_options(options))
    assert seen.wait(timeout=30)
    assert [x.numpy() for x in ready] == [1.0]


def test_keras_trains_on_begun_batches():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.ones((6, 1)), np.ones((6, 1)))).batch(2)
    history = model.fit(begun(data), epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2
    assert model.optimizer.iterations.numpy() == 6


def test_distributed_batches_are_begun_too(source):
    strategy = make_strategy(1)
    distributed = strategy.distribute_datasets_from_function(lambda _: source.training(7, 1))
    expected = positions(source.training(7, 1))
    assert positions(begun(distributed)) == expected
