"""A prefetched epoch has the same batches as one that is read when it is needed."""

import threading

import pytest
import tensorflow as tf

from tfasr.data.batches import BatchSource, PipelineConfig
from tfasr.data.features import FeatureConfig
from tfasr.data.shards import open_split
from tfasr.training.build import make_strategy
from tfasr.training.checkpoint import TrainingState
from tfasr.training.experiment import TrainingConfig
from tfasr.training.run import EpochBatches


def positions(batches):
    return [batch["positions"].numpy().tolist() for batch in batches]


@pytest.fixture
def source(shard_dir):
    split = open_split(shard_dir, "train")
    pipeline = PipelineConfig(global_batch_size=4, num_readers=1)
    return BatchSource(split, FeatureConfig(normalisation="none"), pipeline)


@pytest.fixture
def batches(source):
    return EpochBatches(source, TrainingConfig(epochs=3, seed=7), make_strategy(1))


def test_the_next_epoch_is_begun_at_the_end_of_one(batches, source):
    for epoch in (1, 2, 3):
        state = TrainingState(epoch=epoch)
        assert positions(batches.iterator(state)) == positions(source.training(7, epoch))
        # A prefetched iterator is used once; the next call starts the epoch again.
        assert positions(batches.iterator(state)) == positions(source.training(7, epoch))
        batches.prefetch(epoch + 1)


def test_an_epoch_that_is_not_the_one_begun_is_made(batches, source):
    batches.prefetch(2)
    resumed = batches.iterator(TrainingState(epoch=2, step_in_epoch=1))
    assert positions(resumed) == positions(source.training(7, 2))[1:]
    third = batches.iterator(TrainingState(epoch=3))
    assert positions(third) == positions(source.training(7, 3))


class SlowSource:
    """Stands for a source whose one batch says when it is read."""

    def __init__(self):
        self.read = threading.Event()

    def training(self, seed, epoch, skip, replicas):
        def element():
            self.read.set()
            yield float(epoch)

        dataset = tf.data.Dataset.from_generator(element, output_signature=tf.TensorSpec([]))
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


def test_nothing_is_begun_after_the_last_epoch():
    source = SlowSource()
    EpochBatches(source, TrainingConfig(epochs=3), make_strategy(1)).prefetch(4)
    assert not source.read.wait(timeout=0.5)
