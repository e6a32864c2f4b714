"""The three precisions: each learns, saves and resumes; overflow changes no weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.kit.gin import presets_folder
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import build_model
from tfasr.training.checkpoint import TrainingState, plain_array, restore, save_checkpoint
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.from_gin import load_config
from tfasr.training.memory import batch_spec, synthetic_batch

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def experiment(precision, parts=1, layers=0, dropout=0.0, **optimizer):
    return Experiment(
        model=AcousticModelConfig(
            conv_filters=16, num_lstm_layers=layers, lstm_units=16, dropout=dropout
        ),
        training=TrainingConfig(
            precision=precision,
            gradient_accumulation_steps=parts,
            optimizer=lambda: keras.optimizers.Adam(0.01, **optimizer),
        ),
    )


def losses(model, config, batch, steps):
    step = model.global_step(batch_spec(config))
    return [float(tf.reduce_mean(step(batch)["utterance_loss"])) for _ in range(steps)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_learns_saves_and_resumes(precision, tmp_path):
    config = experiment(precision, layers=1, dropout=0.1, global_clipnorm=5.0)
    batch = synthetic_batch(config, 4, 60)
    model = build_model(config, Alphabet(), compiled=True)
    first = losses(model, config, batch, 4)
    assert first[-1] < first[0]
    # Master weights, the optimizer's slots and the logits are float32 whatever computes.
    dtypes = {v.dtype for v in [*model.trainable_variables, *model.optimizer.variables]}
    assert {dtype for dtype in dtypes if "float" in dtype} == {"float32"}
    assert model(batch).dtype == tf.float32
    assert model.recogniser.recurrent[0].compute_dtype == precision.removeprefix("mixed_")
    path = save_checkpoint(tmp_path, model, TrainingState(step=4), keep=1)
    resumed = build_model(config, Alphabet(), compiled=True)
    assert restore(path, resumed).step == 4
    np.testing.assert_allclose(
        losses(resumed, config, batch, 2), losses(model, config, batch, 2), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("instructions", "gpus", "expected"),
    [
        ({"name": "amx", "forced": False}, [], "mixed_bfloat16"),
        ({"name": "amx", "forced": False}, ["a GPU"], "float32"),
        ({"name": "avx512bf16", "forced": False}, [], "float32"),
        ({"name": "emulated_amx", "forced": True}, [], "float32"),
        (None, [], "float32"),
    ],
)
def test_a_fast_preset_takes_the_precision_that_is_fastest_here(
    monkeypatch, instructions, gpus, expected
):
    place = "tfasr.training.from_gin.layers_instruction_set"
    monkeypatch.setattr(place, lambda: instructions)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    assert load_config("fast/an4.gin").experiment.training.precision == expected
    told = load_config("fast/an4.gin", ["TrainingConfig.precision = 'mixed_float16'"])
    assert told.experiment.training.precision == "mixed_float16"
    assert load_config("an4.gin").experiment.training.precision == "float32"


def test_sixteen_bits_learn_what_thirty_two_learn():
    curves = {}
    for precision in PRECISIONS:
        config = experiment(precision)
        model = build_model(config, Alphabet(), compiled=True)
        curves[precision] = losses(model, config, synthetic_batch(config, 4, 60), 6)
    for precision in PRECISIONS[1:]:
        np.testing.assert_allclose(curves[precision], curves["float32"], rtol=0.03)


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_that_overflow_in_float16_change_no_weight(parts):
    config = experiment("mixed_float16", parts)
    batch = synthetic_batch(config, 4, 60)
    model = build_model(config, Alphabet(), compiled=True)
    losses(model, config, batch, 1)
    scale = model.optimizer.dynamic_scale
    scale.assign(2.0**100)
    watched = [*model.trainable_variables, *model.optimizer.inner_optimizer.variables]
    before = [plain_array(variable) for variable in watched]
    assert np.isfinite(losses(model, config, batch, 1)).all()
    for variable, value in zip(watched, before, strict=True):
        np.testing.assert_array_equal(plain_array(variable), value)
    assert float(plain_array(scale)) == 2.0**99
    scale.assign(2.0**10)
    losses(model, config, batch, 1)
    changed = [(plain_array(v) != b).any() for v, b in zip(watched, before, strict=True)]
    assert all(changed[: len(model.trainable_variables)])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_precision_is_a_leaf_that_any_preset_can_include(precision, tmp_path):
    (tmp_path / "mine.gin").write_text(
        f"include 'models/paper.gin'\ninclude 'train/{precision}.gin'\nTrainingConfig.epochs = 1\n"
    )
    config = load_config(str(tmp_path / "mine.gin")).experiment
    assert config.training.precision == precision
    assert (presets_folder() / "train" / f"{precision}.gin").is_file()
