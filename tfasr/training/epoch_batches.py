"""Each epoch's batches; the next epoch's are prefetched during an evaluation."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfasr.data.pipeline import Batch, BatchSource
from tfasr.data.shares import Share
from tfasr.training.checkpoint import TrainingState
from tfasr.training.experiment import TrainingConfig


class EpochBatches:
    """Creates each epoch's iterator, and starts the next epoch's before an evaluation.

    An epoch's first batch is there only when the shuffle buffer is full (0.24 s with AN4). Started
    before an evaluation, the buffer fills meanwhile.

    Args:
        source: of the training split.
        training: tells the seed, the replicas and the last epoch.
        strategy: what the batches are distributed by where there are replicas.
        share: this worker's, where several train together.
    """

    def __init__(
        self,
        source: BatchSource,
        training: TrainingConfig,
        strategy: tf.distribute.Strategy,
        share: Share | None = None,
    ):
        self._source = source
        self._training = training
        self._strategy = strategy
        self._share = share
        self._prefetched: tuple[tuple[int, int], Iterator[Batch]] | None = None

    def prefetch(self, epoch: int) -> None:
        """Starts to read an epoch's batches, unless the run ends before it."""
        if epoch <= self._training.epochs:
            following = TrainingState(epoch=epoch)
            self._prefetched = _position(following), iter(self.dataset(following))

    def iterator(self, state: TrainingState) -> Iterator[Batch]:
        """Returns the batches that remain of a state's epoch, and starts to read them."""
        prefetched, self._prefetched = self._prefetched, None
        if prefetched and prefetched[0] == _position(state):
            return prefetched[1]
        return iter(self.dataset(state))

    def dataset(self, state: TrainingState) -> Any:
        """Returns what remains of a state's epoch, over all replicas; nothing is read yet."""
        replicas, seed = self._training.num_replicas, self._training.seed
        if self._share is not None:
            return self._source.training(seed, *_position(state), share=self._share)
        batches = self._source.training(seed, *_position(state), replicas)
        if replicas == 1:
            return batches
        return self._strategy.distribute_datasets_from_function(lambda _: batches)


def _position(state: TrainingState) -> tuple[int, int]:
    return state.epoch, state.step_in_epoch
