"""Which runs follow the paper's recipe, and that reports do not rank them among others."""

import dataclasses

import keras
import pytest

from tfasr.data.augmentation import AugmentationConfig
from tfasr.training.experiment import is_closed
from tfasr.training.from_gin import load_config


@pytest.fixture(scope="module")
def paper():
    return load_config("paper_sys1.gin").experiment


@pytest.mark.parametrize(
    ("preset", "closed"),
    [
        ("paper_sys2.gin", True),
        ("paper_sys10.gin", True),
        ("equal_batch_sys10.gin", True),
        ("an4.gin", False),
        ("fast/an4.gin", False),
        ("fast/an4_accurate.gin", False),
        ("fast/mini_librispeech.gin", False),
        ("demo.gin", False),
        ("gru_an4.gin", False),
    ],
)
def test_the_papers_presets_alone_are_closed(preset, closed):
    assert is_closed(load_config(preset).experiment) is closed


def test_what_the_papers_systems_differ_in_is_free(paper):
    batch = dataclasses.replace(paper.pipeline, global_batch_size=7)
    training = dataclasses.replace(paper.training, precision="mixed_bfloat16", epochs=3)
    model = dataclasses.replace(paper.model, lstm_kernel="generic")
    changed = dataclasses.replace(paper, pipeline=batch, training=training, model=model)
    assert is_closed(changed)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(1.0),
        lambda: keras.optimizers.Adadelta(0.5),
        lambda: keras.optimizers.Adadelta(1.0, clipnorm=1.0),
        lambda: keras.optimizers.Adadelta(keras.optimizers.schedules.CosineDecay(1.0, 9)),
    ],
)
def test_another_update_rule_is_open(paper, optimizer):
    training = dataclasses.replace(paper.training, optimizer=optimizer)
    assert not is_closed(dataclasses.replace(paper, training=training))


def test_another_dropout_or_augmentation_is_open(paper):
    model = dataclasses.replace(paper.model, dropout=0.1)
    assert not is_closed(dataclasses.replace(paper, model=model))
    masked = AugmentationConfig(time_masks=1)
    assert not is_closed(dataclasses.replace(paper, augmentation=masked))


def test_another_beginning_is_open(paper):
    biased = dataclasses.replace(paper.training, initial_blank_bias=-1.0)
    assert not is_closed(dataclasses.replace(paper, training=biased))
    zeroed = dataclasses.replace(paper.training, zero_output_layer=True)
    assert not is_closed(dataclasses.replace(paper, training=zeroed))
    by_length = dataclasses.replace(paper.pipeline, padding="bucketed", first_epoch_by_length=True)
    assert not is_closed(dataclasses.replace(paper, pipeline=by_length))
    growing = dataclasses.replace(paper.pipeline, batch_size_schedule=[(3, 128)])
    assert not is_closed(dataclasses.replace(paper, pipeline=growing))


def test_another_loss_is_open(paper):
    middle = dataclasses.replace(paper.training, intermediate_loss_weight=0.3)
    assert not is_closed(dataclasses.replace(paper, training=middle))
