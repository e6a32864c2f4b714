"""The model in modules: together they are the training step; noise is what training reads."""

import numpy as np
import pytest
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.modules import (
    module_times,
    modules_of,
    replica_seconds,
    staged_step,
    step_through,
    time_in_turns,
)
from tfasr.bench.scaling.measure import write_noise_split
from tfasr.bench.scaling.workload import straggling
from tfasr.data.batches import BatchSource, PipelineConfig
from tfasr.data.features import FeatureConfig
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import build_model
from tfasr.training.experiment import Experiment
from tfasr.training.memory import synthetic_batch

# Keras's own loop: XLA would compile for longer than all of this runs.
SIZES = {"conv_filters": 6, "lstm_units": 5, "dropout": 0.0, "lstm_kernel": "generic"}
CONFIG = AcousticModelConfig(num_lstm_layers=1, **SIZES)


def built(config=CONFIG):
    return build_model(Experiment(model=config), Alphabet(), compiled=True)


def noise(batch=2, frames=40, labels=4):
    return synthetic_batch(Experiment(model=CONFIG), batch, frames, labels)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_modules_in_a_row_have_the_gradients_of_the_training_step(bidirectional):
    config = AcousticModelConfig(
        num_lstm_layers=2, bidirectional=bidirectional, **SIZES
    )
    model = built(config)
    batch = noise()
    modules = modules_of(model)
    names = ["front end", "recurrent 1", "recurrent 2", "head", "loss"]
    assert [module.name for module in modules] == names
    found = step_through(modules, batch)
    own = [variable for module in modules for variable in module.variables]
    assert {id(v) for v in own} == {id(v) for v in model.trainable_variables}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model.utterance_losses(batch, training=True)[0])
    wanted = tape.gradient(loss, [variable.value for variable in own])
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_module_alone_also_has_the_gradient_of_its_inputs():
    model = built()
    batch = noise()
    recurrent = modules_of(model)[1]
    inputs = tf.random.normal((2, 15, recurrent.input_channels))
    *of_weights, of_inputs = step_through([recurrent], batch, inputs)
    assert len(of_weights) == len(recurrent.variables)
    assert of_inputs.shape == inputs.shape


def test_every_module_is_timed_and_the_parts_make_the_whole():
    batch = noise()
    model = built()
    before = [weight.numpy().copy() for weight in model.trainable_variables]
    found = module_times(
        model, batch, tf.distribute.get_strategy(), rounds=2, first_steps=3
    )
    names = ["front end", "recurrent 1", "head", "loss", "update"]
    assert [row.module for row in found.modules] == names
    assert all(row.alone_s > 0 for row in found.modules)
    # Readings of one clock, one after the other: no part can be negative.
    assert all(row.backward_s > 0 for row in found.modules)
    assert all(row.forward_s > 0 for row in found.modules[:-1])
    assert found.modules[-1].forward_s == 0
    assert found.step_s == pytest.approx(sum(row.in_step_s for row in found.modules))
    assert all(len(row.first_s) == 3 and min(row.first_s) >= 0 for row in found.modules)
    assert found.first_host_s[0] > max(found.first_host_s[1:])  # the first is traced
    after = [weight.numpy() for weight in model.trainable_variables]
    assert any((one != other).any() for one, other in zip(before, after, strict=True))
    seconds = replica_seconds(model, batch, tf.distribute.get_strategy(), rounds=2)
    assert np.shape(seconds) == (2, 1)
    assert np.min(seconds) > 0


def test_a_step_whose_clock_is_read_changes_weights_as_training_does():
    batch = noise()
    read = built()
    trained = built()
    staged_step(read, batch, tf.distribute.get_strategy())()
    tf.function(trained.train_step)(batch)
    for one, other in zip(
        read.trainable_variables, trained.trainable_variables, strict=True
    ):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)


def test_calls_take_turns_and_the_first_are_left_out():
    calls: list[str] = []
    found = time_in_turns(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3
    )
    assert calls == ["a", "a", "b", "b", *["a", "b"] * 3]
    assert set(found) == {"a", "b"}


def test_a_straggler_is_the_slowest_over_the_median_device():
    assert straggling([[1, 1, 3], [2, 2, 4], [1, 1, 1]]) == 2
    assert straggling([[0.5]]) == 1


def test_noise_has_a_path_for_ctc_and_is_read_as_in_training(tmp_path):
    features = FeatureConfig()
    pipeline = PipelineConfig(padding="bucketed", global_batch_size=4, prefetch=1)
    experiment = Experiment(model=CONFIG)
    split = write_noise_split(tmp_path, experiment, 70, 40, 9)
    assert len(split.files) == 2
    source = BatchSource(split, features, pipeline, None, split.feature_statistics())
    batches = list(source.training(1, 1))
    positions = np.concatenate([batch["positions"] for batch in batches])
    assert sorted(positions) == list(range(70))
    held = noise(4, 40, 9)
    assert {k: (v.shape, v.dtype) for k, v in batches[0].items()} == {
        k: (v.shape, v.dtype) for k, v in held.items()
    }
    for labels in (batch["labels"].numpy() for batch in [*batches, held]):
        assert (np.diff(labels) != 0).all()
        assert 0 <= labels.min() <= labels.max() < 29

    losses, _ = built().utterance_losses(batches[0], training=False)
    assert np.isfinite(losses).all()
    assert {utterance.frames for utterance in split.utterances} == {40}
    uneven = write_noise_split(tmp_path, experiment, 9, 80, 9, spread=0.5)
    assert len({utterance.frames for utterance in uneven.utterances}) > 3
    assert all(40 <= utterance.frames <= 80 for utterance in uneven.utterances)
    with pytest.raises(ValueError, match="20 frames"):
        write_noise_split(tmp_path, experiment, 1, 20, 9)
