"""Moving statistics of batch normalisation reach back over utterances, not over steps."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest

from tfasr.data.batches import PipelineConfig
from tfasr.layers.batch_normalization import BatchNormalization
from tfasr.ledger.events import read_events
from tfasr.training.build import (
    batch_normalisations,
    moving_momentum,
    set_moving_momentum,
    statistics_rule,
)
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.from_gin import load_config
from tfasr.training.train import train

TINY = Path(__file__).parent / "tiny.gin"


def experiment(batch, **training):
    return Experiment(
        pipeline=PipelineConfig(padding="bucketed", global_batch_size=batch),
        training=TrainingConfig(**training),
    )


def test_a_batch_seen_a_window_ago_weighs_one_eth_whatever_the_batch_size():
    for batch in (1, 8, 64):
        momentum = moving_momentum(
            experiment(batch, batch_norm_window_utterances=512), 10_000
        )
        assert momentum ** (512 / batch) == pytest.approx(np.exp(-1))

    # exp(-64 / 512), by hand.
    assert momentum == pytest.approx(0.8824969)


def test_the_window_is_half_of_a_small_split_at_most():
    # 800 utterances: exp(-64 / 400), by hand.
    assert moving_momentum(experiment(64), 800) == pytest.approx(0.8521438)


def test_each_part_of_an_accumulated_batch_counts_for_its_own_utterances():
    whole = moving_momentum(experiment(64), 10_000)
    part = moving_momentum(experiment(64, gradient_accumulation_steps=4), 10_000)
    assert part**4 == pytest.approx(whole)


def test_no_window_leaves_the_layers_alone():
    plain = experiment(8, batch_norm_window_utterances=0)
    assert moving_momentum(plain, 800) is None
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.7)]
    )
    set_moving_momentum(model, None)
    assert model.layers[0].momentum == 0.7


def test_every_normalisation_of_a_nested_model_forgets_alike():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    outer = keras.Sequential(
        [keras.Input((3,)), keras.layers.BatchNormalization(), inner]
    )
    set_moving_momentum(outer, 0.75)
    outer(np.full((4, 3), 8.0, "float32"), training=True)
    # From 0 a quarter of the way to 8; the second sees the first's output, whose mean
    # is 0.
    moved = [layer.moving_mean.numpy() for layer in (outer.layers[0], inner.layers[0])]
    np.testing.assert_allclose(moved, [[2.0] * 3, [0.0] * 3], atol=1e-6)


class Attributes(keras.layers.Layer):
    """Batch normalisations where a layer may have them: an attribute, a list, a dictionary."""

    def __init__(self, momentum=0.99):
        super().__init__()
        self.one = keras.layers.BatchNormalization()
        self.some = [keras.layers.BatchNormalization(momentum=momentum)]
        self.named = {"twice": (keras.layers.BatchNormalization(), self.one)}
        self.wrapped = keras.layers.TimeDistributed(BatchNormalization())


class Subclassed(keras.Model):
    """Has layers within a layer; no list of them is public."""

    def __init__(self, momentum=0.99):
        super().__init__()
        self.inner = Attributes(momentum)
        self.own = keras.layers.BatchNormalization()


def test_normalisations_are_found_wherever_a_layer_keeps_them():
    model = Subclassed()
    assert set_moving_momentum(model, 0.75) == 0
    inner = model.inner
    expected = [
        inner.one,
        inner.some[0],
        inner.named["twice"][0],
        inner.wrapped.layer,
        model.own,
    ]
    assert all(layer.momentum == 0.75 for layer in expected)
    found = batch_normalisations(model)
    assert sorted(map(id, found)) == sorted(map(id, expected))


@dataclasses.dataclass
class Says:
    """A model's config that says who decides."""

    keeps_momentum: bool


@pytest.mark.parametrize(
    ("config", "kept", "momenta"),
    [
        (None, 1, [0.9, 0.75]),
        (TrainingConfig(), 1, [0.9, 0.75]),
        (Says(keeps_momentum=False), 0, [0.75, 0.75]),
        (Says(keeps_momentum=True), 5, [0.9, 0.99]),
    ],
)
def test_a_momentum_that_a_model_chose_stays_unless_its_config_says_otherwise(
    config, kept, momenta
):
    model = Subclassed(momentum=0.9)
    assert set_moving_momentum(model, 0.75, config) == kept
    assert [model.inner.some[0].momentum, model.own.momentum] == momenta


def test_the_rule_tells_runs_apart_and_batch_sizes_not():
    rules = {
        statistics_rule(TrainingConfig(batch_norm_window_utterances=n))
        for n in (0, 256, 512)
    }
    rules.add(statistics_rule(TrainingConfig(batch_norm_window_utterances=512), 2))
    assert len(rules) == 4


def test_a_window_must_not_be_negative():
    with pytest.raises(
        ValueError, match="batch_norm_window_utterances must be at least 0"
    ):
        TrainingConfig(batch_norm_window_utterances=-1)


def losses(run_dir, key):
    return [e["value"]["loss"] for e in read_events(run_dir) if e["key"] == key]


def test_the_window_changes_what_is_evaluated_and_not_what_is_learned(
    shard_dir, tmp_path
):
    runs = {}
    for window in (0, 512):
        changed = [
            f"TrainingConfig.batch_norm_window_utterances = {window}",
            "TrainingConfig.epochs = 1",
        ]
        loaded = load_config(str(TINY), changed)
        runs[window] = tmp_path / str(window)
        train(
            loaded.experiment,
            shard_dir=shard_dir,
            run_dir=runs[window],
            memory_probe=False,
        )

    learned = [losses(run_dir, "train_step") for run_dir in runs.values()]
    np.testing.assert_allclose(learned[0], learned[1], rtol=1e-5)
    stale, followed = (
        losses(run_dir, "tracked_stats")[-1] for run_dir in runs.values()
    )
    # 96 utterances in batches of 8: of the first statistics 0.99^12 = 89 % would be
    # left.
    assert abs(stale - followed) > 0.05 * followed
    rules = [
        e["value"]["batch_statistics"]
        for e in read_events(runs[512])
        if e["key"] == "comparability"
    ]
    assert rules == ["over 512 utterances, half the split at most"]
