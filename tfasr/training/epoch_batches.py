"""Each epoch's batches, the next epoch's begun while this one's weights are evaluated."""

from typing import Any

import keras
import tensorflow as tf

from tfasr.data.pipeline import BatchSource
from tfasr.training.callbacks import RunProgress
from tfasr.training.checkpoint import TrainingState
from tfasr.training.experiment import TrainingConfig


class EpochBatches(keras.callbacks.Callback):
    """Makes each epoch's dataset, and as a callback before the evaluation begins the next one's.

    An epoch's first batch needs a shuffle buffer's worth of records read: 0.24 s of AN4. Begun
    before an evaluation they are there after it.

    Args:
        source: of the training split.
        training: tells the seed, the replicas and the last epoch.
        strategy: what the batches are distributed by where there are replicas.
        progress: says which epoch it is.
    """

    def __init__(
        self,
        source: BatchSource,
        training: TrainingConfig,
        strategy: tf.distribute.Strategy,
        progress: RunProgress,
    ):
        super().__init__()
        self._source = source
        self._training = training
        self._strategy = strategy
        self._progress = progress
        self._begun: tuple[tuple[int, int], Any] | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins the next epoch."""
        following = self._progress.state.epoch + 1
        if following <= self._training.epochs:
            self._begun = (following, 0), begun(self._made(following, 0))

    def of(self, state: TrainingState) -> Any:
        """Returns the batches that remain of a state's epoch, distributed over replicas."""
        ready, self._begun = self._begun, None
        wanted = state.epoch, state.step_in_epoch
        return ready[1] if ready and ready[0] == wanted else self._made(*wanted)

    def _made(self, epoch: int, skip: int) -> Any:
        training = self._training
        replicas = training.num_replicas
        batches = self._source.training(training.seed, epoch, skip, replicas)
        if replicas == 1:
            return batches
        return self._strategy.distribute_datasets_from_function(lambda _: batches)


def begun(dataset: Any) -> Any:
    """Starts reading a dataset whose options warm it up, distributed or not.

    Returns:
        The dataset: the first ``iter`` of it goes on with what was begun, others begin anew.
    """
    ready = [iter(dataset)]
    kind = type(dataset)

    class Begun(kind):
        def __iter__(self):
            return ready.pop() if ready else kind.__iter__(self)

    # An instance of its own class, because iter() asks the class. Keras's fit takes datasets only.
    dataset.__class__ = Begun
    return dataset
