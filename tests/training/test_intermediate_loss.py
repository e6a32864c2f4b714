"""A middle layer's CTC loss is minimised too, and is all that changes."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.tones import SHARDS, tones_experiment
from tfasr.alphabet import Alphabet
from tfasr.errors import UsageError
from tfasr.ledger.events import read_events
from tfasr.models.conformer import ConformerConfig
from tfasr.models.deep_speech_2 import DeepSpeech2Config
from tfasr.models.separable_conv import SeparableConvConfig
from tfasr.training.build import build_model
from tfasr.training.ctc import ctc_loss
from tfasr.training.experiment import TrainingConfig
from tfasr.training.memory import synthetic_batch
from tfasr.training.train import train
from tfasr.training.trained import evaluate

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def experiment(weight, layers=3, dropout=0.0, **training):
    one = tones_experiment(intermediate_loss_weight=weight, **training)
    model = dataclasses.replace(one.model, num_lstm_layers=layers, dropout=dropout)
    return dataclasses.replace(one, model=model)


def of(model_config, weight=0.3):
    return dataclasses.replace(experiment(weight), model=model_config)


def built(one):
    return build_model(one, Alphabet(), compiled=True)


def values(tensors):
    return [tf.convert_to_tensor(tensor).numpy() for tensor in tensors]


@pytest.mark.parametrize(("layers", "middle"), [(2, 0), (3, 1), (4, 1)])
def test_losses_are_the_last_layers_and_gradients_those_of_both(layers, middle):
    one = experiment(0.3, layers)
    model, batch = built(one), synthetic_batch(one, 3, 60, length_spread=0.4)
    recogniser, lengths = model.recogniser, batch["feature_lengths"]
    with tf.GradientTape() as tape:
        outputs = recogniser.encodings(batch["features"], lengths, True)
        last, other = (
            ctc_loss(
                recogniser.classifier(scored),
                model.output_lengths(lengths),
                batch["labels"],
                batch["label_lengths"],
            )
            for scored in (outputs[-1], outputs[middle])
        )
        minimised = tf.reduce_mean(0.7 * last + 0.3 * other)
    assert len(outputs) == layers
    expected = tape.gradient(minimised, model.trainable_variables)
    losses, gradients = model.loss_gradients(batch)
    np.testing.assert_allclose(losses, last, rtol=1e-5)
    for found, wanted in zip(values(gradients), values(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_a_conformers_blocks_are_its_layers():
    config = ConformerConfig(width=8, num_blocks=3, num_heads=2, conv_kernel=4, dropout=0.0)
    one = of(config)
    model, batch = built(one), synthetic_batch(one, 2, 80)
    inputs = batch["features"], batch["feature_lengths"]
    scores, middle = model.recogniser.call_with_intermediate(*inputs)
    np.testing.assert_allclose(scores, model.recogniser(*inputs), rtol=1e-4, atol=1e-5)
    del model.recogniser.blocks[2:]  # of three, what is left ends with the middle one
    np.testing.assert_allclose(middle, model.recogniser(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_a_run_records_and_evaluates_as_without(tmp_path, precision):
    run_dir = tmp_path / "run"
    train(experiment(0.5, precision=precision, epochs=1), shard_dir=SHARDS, run_dir=run_dir)
    (scores,) = (e["value"] for e in read_events(run_dir) if e["key"] == "tracked_stats")
    again = evaluate(run_dir=run_dir, split="validation", shard_dir=SHARDS, checkpoint="last")
    assert again.loss == scores["loss"]


def test_dropout_and_parts_of_a_batch_go_with_it():
    one = experiment(0.3, dropout=0.4, gradient_accumulation_steps=2)
    model, batch = built(one), synthetic_batch(one, 4, 60)
    losses, gradients = model.loss_gradients(batch)
    assert losses.shape == (4,)
    assert all(np.isfinite(value).all() for value in values(gradients))


def test_steps_lower_what_is_minimised():
    one = experiment(0.3)
    model, batch = built(one), synthetic_batch(one, 4, 60)
    step = model.global_step({name: tf.type_spec_from_value(v) for name, v in batch.items()})

    def minimised():
        return float(tf.reduce_mean(model.training_losses(batch)[1]))

    before = minimised()
    for _ in range(8):
        step(batch)
    assert minimised() < before


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (experiment(0.3, layers=1), r"two layers .*AcousticModel"),
        (of(SeparableConvConfig()), r"two layers .*SeparableConv"),
        pytest.param(
            *(of(DeepSpeech2Config()), r"call_with_intermediate.*DeepSpeech2"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_models_without_a_middle_layer_are_refused_before_training(one, message):
    with pytest.raises(UsageError, match=message):
        built(one)


@pytest.mark.parametrize("weight", [-0.1, 1.0, float("nan")])
def test_weights_are_parts(weight):
    with pytest.raises(ValueError, match="intermediate_loss_weight must be in 0..1, below 1"):
        TrainingConfig(intermediate_loss_weight=weight)
