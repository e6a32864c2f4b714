"""Averaged weights: evaluated, kept and used in place of training's, which stay as they are."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tones import SHARDS, TRAIN_UTTERANCES, tones_experiment
from tests.training.test_signals import same_weights
from tfasr.alphabet import Alphabet
from tfasr.data.augmentation import AugmentationConfig
from tfasr.data.batches import BatchSource
from tfasr.data.shards import open_split
from tfasr.errors import UsageError
from tfasr.ledger.events import Ledger, read_events
from tfasr.models.deep_speech_2 import DeepSpeech2Config
from tfasr.models.separable_conv import SeparableConvConfig
from tfasr.training.averaging import (
    StatisticsEstimate,
    averaged_values,
    averaging_rule,
    check_averaging,
    weights_for_use,
)
from tfasr.training.build import batch_normalisations, build_model, set_moving_momentum
from tfasr.training.checkpoint import (
    TrainingState,
    model_variables,
    plain_array,
    restore,
    restore_for_use,
    save_checkpoint,
    state_variables,
)
from tfasr.training.experiment import TrainingConfig
from tfasr.training.from_gin import load_config
from tfasr.training.optimizer import make_optimizer
from tfasr.training.placement import SharedModel
from tfasr.training.train import train
from tfasr.training.trained import evaluate, open_trained
from tfasr.training.workers.team import check_clustered

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)
needs_schedule_free = pytest.mark.skipif(
    not hasattr(keras.optimizers, "ScheduleFreeAdamW"), reason="needs Keras 3.14"
)
MOMENTUM = 0.6


def averaging_adam():
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=MOMENTUM, name="adam")


def schedule_free():
    return keras.optimizers.ScheduleFreeAdamW(
        0.02, warmup_steps=3, name="schedule_free_adamw"
    )


def gradients(steps=5):
    return np.random.default_rng(2).standard_normal((steps, 2, 3)).astype(np.float32)


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_keras_moving_averages_are_found_behind_fused_updates_and_a_scaled_loss(
    precision,
):
    variable = keras.Variable(np.ones((2, 3), np.float32))
    optimizer = make_optimizer(
        TrainingConfig(optimizer=averaging_adam, precision=precision)
    )
    optimizer.build([variable])
    (begun,) = averaged_values(optimizer, [variable])
    np.testing.assert_array_equal(begun, np.ones((2, 3)))
    expected = None
    for gradient in gradients():
        optimizer.apply_gradients(
            [(optimizer.scale_loss(tf.constant(gradient)), variable)]
        )
        value = plain_array(variable)
        before = value if expected is None else expected
        expected = MOMENTUM * before + (1 - MOMENTUM) * value

    (average,) = averaged_values(optimizer, [variable])
    np.testing.assert_allclose(average, expected, rtol=1e-5)
    assert np.abs(expected - value).max() > 1e-3


@needs_schedule_free
def test_the_average_of_schedule_free_adamw_is_the_papers_x():
    beta_1 = 0.8
    beta_2 = 0.9
    rate = 0.1
    decay = 0.3
    keras_own = keras.optimizers.ScheduleFreeAdamW(
        rate, beta_1, beta_2, weight_decay=decay
    )
    optimizer = make_optimizer(TrainingConfig(optimizer=lambda: keras_own))
    assert optimizer.get_config() == keras_own.get_config()
    variable = keras.Variable(np.ones((2, 3), np.float32))
    optimizer.build([variable])
    z = x = y = np.ones((2, 3))
    velocity = np.zeros((2, 3))
    for step, gradient in enumerate(gradients(), 1):
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
        velocity = beta_2 * velocity + (1 - beta_2) * gradient**2
        change = gradient / (np.sqrt(velocity / (1 - beta_2**step)) + 1e-8)
        z = z - rate * (change + decay * y)
        x = (1 - 1 / step) * x + z / step
        y = (1 - beta_1) * z + beta_1 * x

    (average,) = averaged_values(optimizer, [variable])
    np.testing.assert_allclose(average, x, atol=1e-5)
    np.testing.assert_allclose(plain_array(variable), y, atol=1e-5)


@needs_schedule_free
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ScheduleFreeAdamW", ["ScheduleFreeAdamW.warmup_steps = 7"]),
        ("Muon", ["Muon.weight_decay = 0.01"]),
        ("Nadam", ["Nadam.use_ema = True", "Nadam.ema_momentum = 0.9"]),
    ],
)
def test_optimizers_of_recipes_are_bound_by_gin_with_their_schedules(name, more):
    schedule = [
        f"TrainingConfig.optimizer = @{name}",
        f"{name}.learning_rate = @CosineDecay()",
        "CosineDecay.initial_learning_rate = 0.0",
        "CosineDecay.decay_steps = 30",
        "CosineDecay.warmup_target = 0.1",
        "CosineDecay.warmup_steps = 10",
    ]
    training = load_config(None, [*schedule, *more]).experiment.training
    optimizer = make_optimizer(training)
    assert isinstance(optimizer, getattr(keras.optimizers, name))
    field, value = more[-1].split(".", 1)[1].split(" = ")
    assert str(optimizer.get_config()[field]) == value
    variable = keras.Variable(np.ones((4, 4), np.float32), name="kernel")
    optimizer.build([variable])
    rates = []
    for _ in range(2):
        rates.append(float(optimizer.learning_rate))
        optimizer.apply_gradients([(tf.ones((4, 4)), variable)])

    np.testing.assert_allclose(rates, [0.0, 0.01], atol=1e-7)
    assert not np.array_equal(plain_array(variable), np.ones((4, 4)))
    assert (averaging_rule(training) is None) == (name == "Muon")


@pytest.fixture(scope="module")
def source():
    return make_source()


def make_source(augmentation=None, pipeline=None):
    split = open_split(SHARDS, "train")
    experiment = tones_experiment()
    pipeline = pipeline or experiment.pipeline
    statistics = split.feature_statistics()
    return BatchSource(split, experiment.features, pipeline, augmentation, statistics)


@pytest.fixture(scope="module")
def trained(source):
    """An experiment and its model after a few steps; tests leave it as it is."""
    experiment = tones_experiment(optimizer=averaging_adam)
    model = build_model(experiment, Alphabet(), compiled=True)
    for batch in source.training(1, 1).take(3):
        model.train_step(batch)
    return experiment, model


def values(variables):
    return {name: plain_array(variable) for name, variable in variables.items()}


def test_a_model_in_training_stays_as_it_is_whatever_is_made_of_it(
    trained, source, tmp_path
):
    experiment, model = trained
    before = values(state_variables(model))
    for_use = weights_for_use(experiment, model, source)(TrainingState(epoch=1))
    path = save_checkpoint(tmp_path, model, TrainingState(epoch=1), 1, for_use)
    seen = []

    class Watched:
        def start(self):
            seen.append(values(model_variables(model)))

    ledger = Ledger(tmp_path)
    SharedModel(model, Watched(), ledger, most_pending=0, averaged=True).start(1, path)
    ledger.close()
    after = values(state_variables(model))
    assert all(np.array_equal(before[name], after[name]) for name in before)
    other = build_model(experiment, Alphabet(), compiled=False)
    restore_for_use(path, other)
    found = values(model_variables(other))
    # Every weight and statistic is another, and nothing else is.
    random_states = {name for name in found if name.endswith("seed_generator_state")}
    assert set(for_use) == set(found) - random_states
    for name, value in found.items():
        np.testing.assert_array_equal(seen[0][name], value)
        assert np.array_equal(value, before[name]) == (name in random_states), name

    restore(path, other)
    found = values(model_variables(other))
    assert all(np.array_equal(before[name], found[name]) for name in found)


@pytest.mark.parametrize("changes", ["masks", "batch size"])
def test_weights_for_use_depend_on_the_model_and_on_how_batches_are_made(
    trained, monkeypatch, changes
):
    experiment, model = trained
    if changes == "masks":
        masks = AugmentationConfig(time_masks=1, time_mask_fraction=0.5, from_epoch=4)
        experiment = dataclasses.replace(experiment, augmentation=masks)
    else:
        smaller = dataclasses.replace(
            experiment.pipeline, batch_size_schedule=((4, 2),)
        )
        experiment = dataclasses.replace(experiment, pipeline=smaller)

    source = make_source(experiment.augmentation, experiment.pipeline)
    states = [(1, 3), (1, 4), (2, 3), (3, 3), (4, 3)]
    read = []
    training = source.training
    monkeypatch.setattr(
        source, "training", lambda *given: read.append(given) or training(*given)
    )

    def made():
        make = weights_for_use(experiment, model, source)
        read.clear()
        return [make(TrainingState(epoch=epoch, step=step)) for epoch, step in states]

    def same(one, other):
        return all(np.array_equal(one[name], other[name]) for name in one)

    first, again, alike, first_other, last = for_use = made()
    assert [epoch for _, epoch in read] == [2, 4]  # the others are kept
    assert same(first, again)
    assert same(first, alike)  # epoch 3 is made as epoch 2
    differing = {
        name for name in first if not np.array_equal(first[name], first_other[name])
    }
    assert differing == {name for name in first if "moving_" in name}
    assert same(first_other, last)
    monkeypatch.setattr("tfasr.training.averaging.MOST_KEPT_BYTES", 0)
    assert all(same(one, other) for one, other in zip(made(), for_use, strict=True))
    assert [epoch for _, epoch in read] == [2, 2, 2, 4, 4]
    resumed = weights_for_use(experiment, model, source)(TrainingState(epoch=4))
    assert same(resumed, last)


def test_a_runs_statistics_are_of_the_training_split_alone(tmp_path, monkeypatch):
    seen = []
    estimate = StatisticsEstimate.estimate

    def recorded(self, batches):
        batches = list(batches)
        names = ("positions", "duration_s", "feature_lengths")
        seen.append(
            [
                row
                for b in batches
                for row in zip(*(b[n].numpy() for n in names), strict=True)
            ]
        )
        estimate(self, batches)

    monkeypatch.setattr(StatisticsEstimate, "estimate", recorded)
    # More than there are: each utterance of the split is taken once.
    more = {"averaged_statistics_utterances": 1000, "epochs": 1}
    experiment = tones_experiment(optimizer=averaging_adam, **more)
    train(experiment, shard_dir=SHARDS, run_dir=tmp_path / "run")

    def utterances(split):
        rows = open_split(SHARDS, split).utterances
        return {(u.position, round(u.duration_s, 3), u.frames) for u in rows}

    assert seen
    for taken in seen:
        taken = [(int(p), round(float(s), 3), int(n)) for p, s, n in taken]
        assert len(taken) == TRAIN_UTTERANCES
        assert set(taken) == utterances("train") != utterances("validation")


def test_statistics_of_no_utterances_are_those_of_the_training_weights(trained, source):
    experiment, model = trained
    none = dataclasses.replace(experiment.training, averaged_statistics_utterances=0)
    kept = weights_for_use(
        dataclasses.replace(experiment, training=none), model, source
    )
    kept = kept(TrainingState())
    own = values(model_variables(model))
    statistics = [name for name in kept if "moving_" in name]
    assert statistics
    assert all(np.array_equal(kept[name], own[name]) for name in statistics)
    assert weights_for_use(tones_experiment(), model, source) is None


FAMILIES = {
    "acoustic_model": None,
    "deep_speech_2": DeepSpeech2Config(conv_filters=2, num_recurrent_layers=1, units=6),
    "separable_conv": SeparableConvConfig(
        filters=(4, 6), kernels=(3, 4), repeats=1, first_kernel=5, last_filters=(6, 5),
        last_kernel=3, dropout=0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_are_those_of_the_batches_without_dropout(source, family):
    experiment = tones_experiment()
    config = FAMILIES[family] or dataclasses.replace(experiment.model, dropout=0.5)
    experiment = dataclasses.replace(experiment, model=config)
    model = build_model(experiment, Alphabet(), compiled=False)
    set_moving_momentum(model, 0.5)
    if hasattr(config, "dropout"):
        config = dataclasses.replace(config, dropout=0.0)
    plain = build_model(
        dataclasses.replace(experiment, model=config), Alphabet(), compiled=False
    )
    first, second = source.training(1, 2).take(2)
    estimate = StatisticsEstimate(model, experiment.features.num_features)
    assert all(
        variable.path.split("/")[-1].startswith("moving_")
        for variable in estimate.variables
    )
    estimate.estimate([first])
    # Normalised by the statistics of the batch, which are now the model's.
    np.testing.assert_allclose(model(first), plain(first, training=True), atol=1e-4)
    alone = [plain_array(variable) for variable in estimate.variables]
    estimate.estimate([second])
    others = [plain_array(variable) for variable in estimate.variables]
    estimate.estimate([first, second])
    for one, other, both in zip(alone, others, estimate.variables, strict=True):
        np.testing.assert_allclose(plain_array(both), (one + other) / 2, atol=1e-5)
    assert {layer.momentum for layer in batch_normalisations(model.recogniser)} == {0.5}
    kept = [plain_array(variable) for variable in estimate.variables]
    estimate.estimate([])
    for variable, value in zip(estimate.variables, kept, strict=True):
        np.testing.assert_array_equal(plain_array(variable), value)


def recipe():
    """An experiment with all levers of a recipe."""
    experiment = tones_experiment(
        optimizer=schedule_free,
        checkpoint_every_steps=4,
        averaged_statistics_utterances=8,
        zero_output_layer=True,
    )
    return dataclasses.replace(
        experiment,
        augmentation=AugmentationConfig(
            time_masks=1, time_mask_fraction=0.5, from_epoch=2, tempo_change=0.1
        ),
    )


class Stop(keras.callbacks.Callback):
    """Ends a run in the middle of its second epoch, behind a checkpoint."""

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == 9:
            raise ZeroDivisionError


@needs_schedule_free
def test_a_recipe_with_all_levers_is_resumed_and_used_with_its_averages(tmp_path):
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    train(recipe(), shard_dir=SHARDS, run_dir=whole)
    with pytest.raises(ZeroDivisionError):
        train(recipe(), shard_dir=SHARDS, run_dir=resumed, callbacks=[Stop()])
    train(recipe(), shard_dir=SHARDS, run_dir=resumed, resume=True)
    assert same_weights(whole, resumed)  # averaged ones too
    scores = [
        [e["value"] for e in read_events(run) if e["key"] == "tracked_stats"]
        for run in (whole, resumed)
    ]
    assert json.dumps(scores[0]) == json.dumps(scores[1])
    last = evaluate(
        run_dir=whole, split="validation", shard_dir=SHARDS, checkpoint="last"
    )
    assert last.loss == scores[0][-1]["loss"]
    # What the checkpoint holds for training is something else.
    trained = open_trained(whole)
    model = trained.model("last")
    averages = values(model_variables(model))
    restore(trained.checkpoint("last"), model)
    in_training = values(model_variables(model))
    kernels = [name for name in averages if name.endswith("kernel")]
    assert kernels
    assert not any(
        np.array_equal(averages[name], in_training[name]) for name in kernels
    )


def test_the_last_layer_begins_at_zero():
    experiment = tones_experiment(zero_output_layer=True)
    model = build_model(experiment, Alphabet(), compiled=True)
    classifier = model.recogniser.classifier
    assert not plain_array(classifier.kernel).any()
    others = [plain_array(layer.cell.kernel) for layer in model.recogniser.recurrent]
    assert all(kernel.any() for kernel in others)


def test_what_cannot_be_averaged_is_refused(tmp_path):
    several = tones_experiment(optimizer=averaging_adam, num_replicas=2)
    with pytest.raises(
        UsageError, match="With several replicas TrainingConfig.optimizer must not"
    ):
        train(several, shard_dir=SHARDS, run_dir=tmp_path / "run")
    with pytest.raises(UsageError, match=r"In a cluster .*evaluate_averaged = False"):
        check_clustered(tones_experiment(optimizer=averaging_adam), [])
    off = TrainingConfig(
        optimizer=averaging_adam, num_replicas=2, evaluate_averaged=False
    )
    check_averaging(off)
    if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
        twice = TrainingConfig(
            optimizer=lambda: keras.optimizers.ScheduleFreeAdamW(use_ema=True)
        )
        with pytest.raises(
            UsageError, match=r"ScheduleFreeAdamW.use_ema must be False"
        ):
            check_averaging(twice)
