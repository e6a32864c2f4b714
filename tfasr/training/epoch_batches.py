"""Each epoch's batches, the next epoch's begun while this one's weights are evaluated."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfasr.data.pipeline import Batch, BatchSource
from tfasr.training.checkpoint import TrainingState
from tfasr.training.experiment import TrainingConfig
from tfasr.training.loop import Hook


class EpochBatches(Hook):
    """Makes each epoch's iterator, and as a hook before the evaluation begins the next one's.

    An epoch's first batch needs a shuffle buffer's worth of records read: 0.24 s of AN4. Begun
    before an evaluation they are there after it.

    Args:
        source: of the training split.
        training: tells the seed, the replicas and the last epoch.
        strategy: what the batches are distributed by where there are replicas.
    """

    def __init__(
        self, source: BatchSource, training: TrainingConfig, strategy: tf.distribute.Strategy
    ):
        self._source = source
        self._training = training
        self._strategy = strategy
        self._begun: tuple[tuple[int, int], Iterator[Batch]] | None = None

    def on_epoch_trained(self, epoch: int) -> None:
        """Begins the next epoch."""
        if epoch < self._training.epochs:
            following = TrainingState(epoch=epoch + 1)
            self._begun = _position(following), iter(self.dataset(following))

    def iterator(self, state: TrainingState) -> Iterator[Batch]:
        """Returns the batches that remain of a state's epoch; they are being read from now on."""
        begun, self._begun = self._begun, None
        if begun and begun[0] == _position(state):
            return begun[1]
        return iter(self.dataset(state))

    def dataset(self, state: TrainingState) -> Any:
        """Returns what remains of a state's epoch, distributed over replicas; nothing is read."""
        replicas = self._training.num_replicas
        batches = self._source.training(self._training.seed, *_position(state), replicas)
        if replicas == 1:
            return batches
        return self._strategy.distribute_datasets_from_function(lambda _: batches)


def _position(state: TrainingState) -> tuple[int, int]:
    return state.epoch, state.step_in_epoch
