"""What workers average, and what they tell each other before a run begins."""

import keras
import numpy as np
import pytest

from tfasr.errors import RunError
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.training.checkpoint import TrainingState
from tfasr.training.interruption import Interruption
from tfasr.training.loop import RunProgress
from tfasr.training.workers.exchange import Alone, Gate
from tfasr.training.workers.interruption import AgreedInterruption
from tfasr.training.workers.state import AverageStatistics


class WithOneMore(Alone):
    """Two workers, of which the other has statistics of its own and offers what it is told."""

    count = 2

    def __init__(self, other: float = 0.0, offer: dict | None = None):
        self.other = other
        self.offer = offer
        self.told: list = []

    def sums(self, arrays):
        return [array + np.float32(self.other) for array in arrays]

    def gather(self, value):
        self.told.append(value)
        return [value, self.offer]

    def name(self, rank):
        return f"worker {rank}"


@pytest.mark.parametrize(("synchronised", "mean"), [(False, 3.0), (True, 1.0)])
def test_statistics_are_averaged_before_each_checkpoint_unless_they_are_the_same(
    synchronised, mean
):
    model = keras.Sequential([BatchNormalization()])
    model.build((None, None, 2))
    layer = model.layers[0]
    layer.synchronized = synchronised
    layer.moving_mean.assign([1.0, 1.0])
    progress = RunProgress(TrainingState(step=3))
    agreed = AgreedInterruption(Interruption())
    hook = AverageStatistics(WithOneMore(5.0), model, 4, progress, agreed)
    hook.on_step(None)
    assert layer.moving_mean.numpy().tolist() == [1.0, 1.0]
    progress.advance(step=4)
    hook.on_step(None)
    assert layer.moving_mean.numpy().tolist() == [mean, mean]


def test_a_signal_brings_its_checkpoint_the_averages_too():
    model = keras.Sequential([BatchNormalization()])
    model.build((None, None, 1))
    agreed, progress = AgreedInterruption(Interruption()), RunProgress(TrainingState(step=1))
    hook = AverageStatistics(WithOneMore(4.0), model, 100, progress, agreed)
    agreed.agree(0)
    assert agreed.received is None
    agreed.agree(15)
    hook.on_step(None)
    assert model.layers[0].moving_mean.numpy().tolist() == [2.0]


def test_who_fails_before_the_gate_tells_the_others():
    workers = WithOneMore(offer={"shards": 1})
    with pytest.raises(ValueError, match="no shards"), Gate(workers).telling():
        raise ValueError("no shards")
    assert workers.told == [{"failed": "no shards"}]


def test_at_the_gate_all_hear_who_failed():
    gate = Gate(WithOneMore(offer={"failed": "no shards"}))
    with pytest.raises(RunError, match="worker 1 could not begin: no shards"), gate.telling():
        gate.passed({"shards": 1})
    assert Gate(Alone()).passed({"shards": 1}) == [{"shards": 1}]
