"""What training minimises besides the CTC loss: a middle layer's loss, and two views' distance."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from tests.tones import SHARDS, tones_experiment
from tfasr.alphabet import Alphabet
from tfasr.cli import parse
from tfasr.cli import run as run_command
from tfasr.data.augmentation import AugmentationConfig
from tfasr.data.batches import BatchSource, Share
from tfasr.data.shards import open_split
from tfasr.errors import UsageError
from tfasr.ledger.events import read_events
from tfasr.models.conformer import ConformerConfig
from tfasr.models.deep_speech_2 import DeepSpeech2Config
from tfasr.models.separable_conv import SeparableConvConfig
from tfasr.training.build import build_model, check_splits
from tfasr.training.ctc import ctc_loss, divergences
from tfasr.training.experiment import TrainingConfig
from tfasr.training.memory import synthetic_batch
from tfasr.training.train import train
from tfasr.training.trained import evaluate

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)


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
    model = built(one)
    batch = synthetic_batch(one, 3, 60, length_spread=0.4)
    recogniser = model.recogniser
    lengths = batch["feature_lengths"]
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


CHARACTERS = {"intermediate_labels": "characters"}
WORDS = ("five", "oh", "b")
UNITS = tuple(
    (unit, 0.0) for unit in [f"\u2581{word}" for word in WORDS] + list("\u2581befhiov")
)
UNIT_ALPHABET = Alphabet(" befhiov", None, UNITS, "word")


@pytest.mark.parametrize("views", [1, 2])
def test_the_middle_layer_can_learn_the_characters_of_units(views):
    texts = ["five oh", "b b", "five hoobbe", "five five five five", "five fivobe"]
    one = experiment(0.4, **CHARACTERS, consistency_weight=0.2 * (views - 1))
    model = build_model(one, UNIT_ALPHABET, compiled=True)
    frames = int(next(n for n in range(10, 200) if model.output_lengths(n) == 12))
    batch = synthetic_batch(one, 5, frames) | as_batch(map(UNIT_ALPHABET.encode, texts))
    if views == 2:
        batch["second_features"] = batch["features"]
    losses, minimised = model.training_losses(batch)

    inputs = (batch["features"], batch["feature_lengths"])
    lengths = tf.fill([5], 12)
    last, middle = model.recogniser.call_with_intermediate(*inputs, training=True)
    spelled = as_batch(
        [
            UNIT_ALPHABET.symbols.index(c)
            for c in "".join(f"\u2581{w}" for w in text.split())
        ]
        for text in ["five oh", "b b", "b", "b", "five fivobe"]
    )
    usual = ctc_loss(last, lengths, batch["labels"], batch["label_lengths"]).numpy()
    other = ctc_loss(
        middle, lengths, spelled["labels"], spelled["label_lengths"]
    ).numpy()
    np.testing.assert_allclose(losses, usual, rtol=1e-4)
    # The third text's 12 characters need two blanks between equal ones, the fourth has
    # 20.
    other[2:4] = usual[2:4]
    np.testing.assert_allclose(minimised, 0.6 * usual + 0.4 * other, rtol=1e-4)
    _, gradients = model.loss_gradients(batch)
    assert all(np.isfinite(value).all() for value in values(gradients))


def as_batch(texts):
    rows = tf.ragged.constant([list(labels) for labels in texts], dtype=tf.int32)
    return {
        "labels": rows.to_tensor(),
        "label_lengths": tf.cast(rows.row_lengths(), tf.int32),
    }


def test_characters_need_units_and_a_loss():
    with pytest.raises(
        UsageError, match="intermediate_labels.*needs shards with units.*--units"
    ):
        check_splits(
            {"train": open_split(SHARDS, "train")}, experiment(0.4, **CHARACTERS)
        )
    with pytest.raises(ValueError, match="same without an intermediate loss"):
        TrainingConfig(**CHARACTERS)


def test_a_conformers_blocks_are_its_layers():
    config = ConformerConfig(
        width=8, num_blocks=3, num_heads=2, conv_kernel=4, dropout=0.0
    )
    one = of(config)
    model = built(one)
    batch = synthetic_batch(one, 2, 80)
    inputs = batch["features"], batch["feature_lengths"]
    scores, middle = model.recogniser.call_with_intermediate(*inputs)
    np.testing.assert_allclose(scores, model.recogniser(*inputs), rtol=1e-4, atol=1e-5)
    del model.recogniser.blocks[2:]  # of three, what is left ends with the middle one
    np.testing.assert_allclose(middle, model.recogniser(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_a_run_records_and_evaluates_as_without(tmp_path, precision):
    run_dir = tmp_path / "run"
    train(
        experiment(0.5, precision=precision, epochs=1),
        shard_dir=SHARDS,
        run_dir=run_dir,
    )
    (scores,) = (
        e["value"] for e in read_events(run_dir) if e["key"] == "tracked_stats"
    )
    options = {"split": "validation", "shard_dir": SHARDS, "checkpoint": "last"}
    again = evaluate(run_dir=run_dir, **options)
    # Other graphs may sum a product in another order. In float32 that changes the last
    # digits, in bfloat16 one value that is rounded to 8 bits the other way moves all
    # that follow.
    tolerance = 1e-5 if precision == "float32" else 1e-2
    assert again.loss == pytest.approx(scores["loss"], rel=tolerance)
    alone, hardly, twice = (
        evaluate(run_dir=run_dir, decoder="word_beam", middle_weight=weight, **options)
        for weight in (0, 1e-9, 100)
    )
    assert twice.loss == pytest.approx(alone.loss, rel=tolerance)  # the last layer's
    if precision == "float32":
        assert [h.text for h in alone.hypotheses] == [h.text for h in hardly.hypotheses]
    assert [h.text for h in alone.hypotheses] != [h.text for h in twice.hypotheses]
    words = ["--run_dir", run_dir, "--split", "validation", "--shard_dir", SHARDS]
    words += [
        "--decoder",
        "word_beam",
        "--middle_weight",
        0.5,
        "--out",
        tmp_path / "scores",
    ]
    assert run_command(parse(["tfasr", "evaluate", *map(str, words)])) == 0
    (row,) = json.loads((tmp_path / "scores" / "scores.json").read_text())["rows"]
    assert row["middle_weight"] == 0.5
    assert (
        "plus 0.5 times the middle layer's"
        in (tmp_path / "scores" / "scores.md").read_text()
    )
    with pytest.raises(
        UsageError, match="the decoder greedy and .*, or add --decoder word_beam"
    ):
        evaluate(run_dir=run_dir, middle_weight=1, **options)
    for weight in (-1, float("nan"), float("inf")):
        with pytest.raises(
            UsageError, match="--middle_weight must be a finite number of at least"
        ):
            evaluate(
                run_dir=run_dir, decoder="word_beam", middle_weight=weight, **options
            )


@pytest.mark.parametrize("labels", ["same", "characters"])
def test_dropout_and_parts_of_a_batch_go_with_it(labels):
    parts = {"gradient_accumulation_steps": 2, "intermediate_labels": labels}
    one = experiment(0.3, dropout=0.4, **parts)
    alphabet = UNIT_ALPHABET if labels == "characters" else Alphabet()
    model = build_model(one, alphabet, compiled=True)
    batch = synthetic_batch(one, 4, 60) | as_batch([[0, 1], [2], [1, 1, 0], [5]])
    losses, gradients = model.loss_gradients(batch)
    assert losses.shape == (4,)
    assert all(np.isfinite(value).all() for value in values(gradients))


def test_steps_lower_what_is_minimised():
    one = experiment(0.3)
    model = built(one)
    batch = synthetic_batch(one, 4, 60)
    step = model.global_step(
        {name: tf.type_spec_from_value(v) for name, v in batch.items()}
    )

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
    with pytest.raises(
        ValueError, match="intermediate_loss_weight must be in 0..1, below 1"
    ):
        TrainingConfig(intermediate_loss_weight=weight)


# Two views of each utterance, which should be classified alike.


def consistent(weight=0.2, middle=0.0, **training):
    return experiment(middle, consistency_weight=weight, **training)


def two_views(one, shift=0.0):
    batch = synthetic_batch(one, 3, 60, length_spread=0.4)
    return {**batch, "second_features": batch["second_features"] + shift}


@pytest.mark.parametrize("middle", [0.0, 0.3])
def test_equal_views_train_as_one_view(middle):
    once = built(experiment(middle))
    twice = built(consistent(middle=middle))
    batch = two_views(consistent())
    losses, gradients = once.loss_gradients(batch)
    both, of_both = twice.loss_gradients(batch)
    np.testing.assert_allclose(both, losses, rtol=1e-5)
    for found, wanted in zip(values(of_both), values(gradients), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def test_recorded_is_the_mean_of_both_losses_and_minimised_their_divergence_too():
    one = consistent(0.5)
    model = built(one)
    batch = two_views(one, shift=0.3)
    twice = {name: tf.concat([value] * 2, 0) for name, value in batch.items()}
    twice["features"] = tf.concat([batch["features"], batch["second_features"]], 0)
    ctc, logits = values(model.utterance_losses(twice, training=True))
    log = tf.nn.log_softmax(logits.astype(np.float64)).numpy()
    apart = []
    lengths = values([model.output_lengths(batch["feature_lengths"])])[0]
    for a, b, frames in zip(log[:3], log[3:], lengths, strict=True):
        a = a[:frames]
        b = b[:frames]
        apart.append((np.exp(a) * (a - b) + np.exp(b) * (b - a)).sum() / 2)

    losses, minimised = values(model.training_losses(batch))
    assert min(apart) > 1e-3
    np.testing.assert_allclose(losses, (ctc[:3] + ctc[3:]) / 2, rtol=1e-5)
    np.testing.assert_allclose(minimised - losses, 0.5 * np.array(apart), rtol=1e-2)


def test_a_divergence_pulls_each_side_to_the_other():
    rng = np.random.default_rng(3)
    a, b = (tf.Variable(rng.normal(size=(1, 1, 4)), dtype=tf.float32) for _ in range(2))
    with tf.GradientTape() as tape:
        apart = divergences(a, b)
    p, q = (tf.nn.softmax(side).numpy() for side in (a, b))
    expected = (p * np.log(p / q) + q * np.log(q / p)).sum()
    np.testing.assert_allclose(apart, [[expected]], rtol=1e-5)
    # Of -sum(p log q) with p fixed: the softmax's difference, and no more.
    to_a, to_b = values(tape.gradient(apart, [a, b]))
    np.testing.assert_allclose(to_a, p - q, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(to_b, q - p, rtol=1e-4, atol=1e-6)


def test_views_differ_in_their_masks_alone_and_are_the_same_in_every_run():
    one = consistent()
    masks = AugmentationConfig(
        time_masks=1,
        frequency_masks=1,
        time_mask_fraction=1.0,
        from_epoch=2,
        tempo_change=0.1,
    )
    lengths = one.model.output_lengths

    def batches(epoch, second_view=True):
        split = open_split(SHARDS, "train")
        options = {"output_lengths": lengths, "second_view": second_view}
        source = BatchSource(split, one.features, one.pipeline, masks, **options)
        return [
            dict(zip(b, values(b.values()), strict=True))
            for b in source.training(1, epoch)
        ]

    for batch in batches(1):
        np.testing.assert_array_equal(batch["features"], batch["second_features"])
    masked = batches(2)
    assert any(
        (batch["features"] != batch["second_features"]).any() for batch in masked
    )
    for batch, again, alone in zip(masked, batches(2), batches(2, False), strict=True):
        for name, value in batch.items():
            np.testing.assert_array_equal(value, again[name])
        first = batch["features"]
        second = batch.pop("second_features")
        in_both = (first != 0) & (second != 0)
        np.testing.assert_array_equal(first[in_both], second[in_both])
        assert batch.keys() == alone.keys()
        for name, value in batch.items():
            np.testing.assert_array_equal(value, alone[name])


def test_workers_share_both_views():
    one = consistent()
    masks = AugmentationConfig(
        time_masks=1, time_mask_fraction=1.0, tempo_change=0.1, vocal_tract_change=0.1
    )
    split = open_split(SHARDS, "train")
    options = {"output_lengths": one.model.output_lengths, "second_view": True}
    source = BatchSource(split, one.features, one.pipeline, masks, **options)
    shares = [source.training(1, 1, share=Share(rank, 2)) for rank in range(2)]
    for whole, *parts in zip(source.training(1, 1), *shares, strict=True):
        parts = [part for part in parts if part["counted"]]
        for name in ("features", "second_features"):
            np.testing.assert_array_equal(
                tf.concat([part[name] for part in parts], 0), whole[name]
            )


def test_a_run_with_two_views_records_and_evaluates_as_without(tmp_path):
    one = consistent(epochs=1, middle=0.3, gradient_accumulation_steps=2)
    train(one, shard_dir=SHARDS, run_dir=tmp_path / "run")
    (scores,) = (
        e["value"] for e in read_events(tmp_path / "run") if e["key"] == "tracked_stats"
    )
    again = evaluate(
        run_dir=tmp_path / "run",
        split="validation",
        shard_dir=SHARDS,
        checkpoint="last",
    )
    assert again.loss == scores["loss"]


@pytest.mark.parametrize("weight", [-0.1, float("inf"), float("nan")])
def test_weights_of_two_views_are_finite(weight):
    with pytest.raises(
        ValueError, match="consistency_weight must be at least 0, and finite"
    ):
        TrainingConfig(consistency_weight=weight)
