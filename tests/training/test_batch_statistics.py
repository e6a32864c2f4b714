"""Moving statistics of batch normalisation reach back over utterances, not over steps."""

import dataclasses

import keras
import numpy as np
import pytest

from tfasr.data.pipeline import PipelineConfig
from tfasr.training.batch_statistics import moving_momentum, set_moving_momentum, statistics_rule
from tfasr.training.experiment import Experiment, TrainingConfig


def experiment(batch, **training):
    return Experiment(
        pipeline=PipelineConfig(global_batch_size=batch), training=TrainingConfig(**training)
    )


def test_a_batch_seen_a_window_ago_weighs_one_eth_whatever_the_batch_size():
    for batch in (1, 8, 64):
        momentum = moving_momentum(experiment(batch, batch_norm_window_utterances=512), 10_000)
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
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.7)])
    set_moving_momentum(model, None)
    assert model.layers[0].momentum == 0.7


def test_every_normalisation_of_a_nested_model_forgets_alike():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    outer = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), inner])
    set_moving_momentum(outer, 0.75)
    outer(np.full((4, 3), 8.0, "float32"), training=True)
    # From 0 a quarter of the way to 8; the second sees the first's output, whose mean is 0.
    moved = [layer.moving_mean.numpy() for layer in (outer.layers[0], inner.layers[0])]
    np.testing.assert_allclose(moved, [[2.0] * 3, [0.0] * 3], atol=1e-6)


def test_the_rule_tells_runs_apart_and_batch_sizes_not():
    rules = {statistics_rule(TrainingConfig(batch_norm_window_utterances=n)) for n in (0, 256, 512)}
    assert len(rules) == 3


def test_a_run_of_0_1_0_keeps_its_momentum_a_step():
    content = experiment(8).to_json()
    del content["training"]["batch_norm_window_utterances"]
    loaded = Experiment.from_json(content)
    assert loaded.training.batch_norm_window_utterances == 0
    again = Experiment.from_json(experiment(8).to_json())
    assert again.training == dataclasses.replace(
        TrainingConfig(), optimizer=again.training.optimizer
    )


def test_a_window_must_not_be_negative():
    with pytest.raises(ValueError, match="batch_norm_window_utterances must be at least 0"):
        TrainingConfig(batch_norm_window_utterances=-1)
