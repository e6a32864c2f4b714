"""What workers average, and what they tell each other before a run begins."""

import contextlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from tests.training.bare_run import bare_run
from tfasr.errors import RunError
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.training.experiment import TrainingConfig
from tfasr.training.loop import Hook, Loop
from tfasr.training.run_folder import Interruption, RunInterruptedError
from tfasr.training.workers.exchange import Gate, Workers
from tfasr.training.workers.step import AgreedInterruption
from tfasr.training.workers.team import Team


class WithOneMore(Workers):
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


class Silent:
    """Stands for a ledger that nobody reads."""

    def start(self, name, **metadata):
        pass

    stop = start


class BareStep:
    """Stands for a training step that changes nothing, as often as the test wants it."""

    def __init__(self, steps):
        self._left = steps

    def __call__(self, batches):
        self._left -= 1
        return None if self._left < 0 else SimpleNamespace()


class Scored:
    """Stands for evaluations that find nothing."""

    def begin(self, run):
        pass

    collect = finish = settle = begin

    def evaluate(self, run, epoch, checkpoint, *, wait):
        pass


def averages(workers, *, synchronised=False, asked=0, every=4):
    """Returns the moving mean after each of six steps, and at the end of the epoch."""
    model = keras.Sequential([BatchNormalization()])
    model.build((None, None, 1))
    layer = model.layers[0]
    layer.synchronized = synchronised
    run = bare_run(TrainingConfig(epochs=1, checkpoint_every_steps=every))
    run.team, run.ledger, run.model = Team(workers), Silent(), SimpleNamespace(recogniser=model)
    run.interruption, run.take_step = AgreedInterruption(Interruption()), BareStep(6)
    run.batches = SimpleNamespace(iterator=lambda state: [], prefetch=lambda epoch: None)
    seen = []

    class Look(Hook):
        def on_step(self, run, step):
            run.interruption.agree(asked if run.state.step == 2 else 0)

        def on_step_end(self, run, step):
            seen.append(float(layer.moving_mean.numpy()[0]))

        def on_epoch_end(self, run, epoch):
            seen.append(float(layer.moving_mean.numpy()[0]))

    with contextlib.suppress(RunInterruptedError):
        Loop(run, [Look()], Scored()).train()
    return seen


def test_statistics_are_averaged_before_each_checkpoint_unless_they_are_the_same():
    assert averages(WithOneMore(4.0, 0)) == [0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 3.0]
    assert averages(WithOneMore(4.0, 0), synchronised=True) == [0.0] * 7


def test_a_signal_brings_its_checkpoint_the_averages_too():
    assert averages(WithOneMore(4.0, 0), asked=15, every=100) == [0.0, 2.0]


def test_who_fails_before_the_gate_tells_the_others():
    workers = WithOneMore(offer={"shards": 1})
    with pytest.raises(ValueError, match="no shards"), Gate(workers).telling():
        raise ValueError("no shards")
    assert workers.told == [{"failed": "no shards"}]


def test_at_the_gate_all_hear_who_failed():
    gate = Gate(WithOneMore(offer={"failed": "no shards"}))
    with pytest.raises(RunError, match="worker 1 could not begin: no shards"), gate.telling():
        gate.passed({"shards": 1})
    assert Gate(Workers()).passed({"shards": 1}) == [{"shards": 1}]
