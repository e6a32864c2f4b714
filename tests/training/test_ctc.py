import json
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.ctc_reference import by_all_paths, by_logarithms
from tests.warm import run_script
from tfasr.alphabet import Alphabet
from tfasr.corpora.manifests import ctc_frames_needed
from tfasr.errors import UsageError
from tfasr.ledger.events import read_events
from tfasr.models.recurrent import AcousticModelConfig
from tfasr.training.build import build_model
from tfasr.training.checkpoint import plain_array
from tfasr.training.ctc import ctc_loss
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.memory import batch_spec, synthetic_batch
from tfasr.training.train import train


def loss_of(logits, labels):
    return float(
        ctc_loss(
            tf.constant(logits[None], tf.float32),
            tf.constant([len(logits)]),
            tf.constant([labels], tf.int32),
            tf.constant([len(labels)]),
        )[0]
    )


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_agrees_with_the_sum_over_all_paths(data):
    labels = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))
    frames = data.draw(st.integers(ctc_frames_needed(labels), 6))
    seed = data.draw(st.integers(0, 1000))
    logits = (
        np.random.default_rng(seed).normal(scale=2, size=(frames, 3)).astype(np.float32)
    )
    expected = by_all_paths(logits, labels)[0]
    assert loss_of(logits, labels) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert by_logarithms(logits, labels)[0] == pytest.approx(expected)


def batch(seed=0, batch_size=5, frames=80, classes=30):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(batch_size, frames, classes)).astype(np.float32)
    lengths = rng.integers(50, frames + 1, batch_size).astype(np.int32)
    label_lengths = rng.integers(1, 21, batch_size).astype(np.int32)
    labels = rng.integers(0, classes - 1, (batch_size, 21)).astype(np.int32)
    return logits, lengths, labels, label_lengths


def test_a_batch_agrees_with_the_forward_algorithm():
    logits, lengths, labels, label_lengths = batch()
    losses = ctc_loss(logits, lengths, labels, label_lengths).numpy()
    assert losses.dtype == np.float32
    expected = [
        by_logarithms(logits[i, : lengths[i]], labels[i, : label_lengths[i]])[0]
        for i in range(len(logits))
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_padding_of_logits_and_labels_is_irrelevant():
    logits, lengths, labels, label_lengths = batch(1)
    other_logits = logits.copy()
    other_labels = labels.copy()
    for i in range(len(logits)):
        other_logits[i, lengths[i] :] = 1e4
        other_labels[i, label_lengths[i] :] = -7 if i % 2 else 1000

    with tf.GradientTape(persistent=True) as tape:
        one = tf.constant(logits)
        other = tf.constant(other_logits)
        tape.watch([one, other])
        losses = ctc_loss(one, lengths, labels, label_lengths)
        other_losses = ctc_loss(other, lengths, other_labels, label_lengths)

    np.testing.assert_array_equal(losses, other_losses)
    gradient = tape.gradient(losses, one)
    other_gradient = tape.gradient(other_losses, other)
    np.testing.assert_array_equal(gradient, other_gradient)

    for i in range(len(logits)):
        assert np.any(gradient[i, : lengths[i]])
        assert not np.any(gradient[i, lengths[i] :])


def test_half_precision_logits_are_computed_on_in_float32():
    logits, lengths, labels, label_lengths = batch(2)
    half = tf.cast(logits, tf.bfloat16)
    losses = ctc_loss(half, lengths, labels, label_lengths)
    assert losses.dtype == tf.float32
    exact = ctc_loss(tf.cast(half, tf.float32), lengths, labels, label_lengths)
    np.testing.assert_array_equal(losses, exact)


def test_labels_without_a_path_do_not_pass_for_a_loss():
    logits = np.zeros((2, 3), np.float32)
    assert loss_of(logits, [0, 0]) == np.inf
    with pytest.raises(tf.errors.InvalidArgumentError, match="Not enough time"):
        loss_of(logits, [0, 1, 0])

    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels length is zero"):
        ctc_loss(logits[None], [2], tf.constant([[0]]), tf.constant([0]))


def test_traced_once_for_all_shapes():
    traced = tf.function(
        ctc_loss,
        input_signature=[
            tf.TensorSpec([None, None, 30], tf.float32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None, None], tf.int32),
            tf.TensorSpec([None], tf.int32),
        ],
    )
    for values in (batch(3), batch(4, batch_size=2, frames=60)):
        np.testing.assert_allclose(traced(*values), ctc_loss(*values), rtol=1e-6)


# A batch in parts learns what it learns whole.


def experiment(
    parts=1,
    optimizer=lambda: keras.optimizers.SGD(0.1),
    dropout=0.0,
    layers=0,
    **training,
):
    model = AcousticModelConfig(
        conv_filters=8,
        num_lstm_layers=layers,
        lstm_units=8,
        dropout=dropout,
        batch_normalisation=False,
    )
    return Experiment(
        model=model,
        training=TrainingConfig(
            gradient_accumulation_steps=parts, optimizer=optimizer, **training
        ),
    )


def after_steps(config, batches):
    """The losses of a step on each batch, and all weights after them."""
    model = build_model(config, Alphabet(), compiled=True)
    step = model.global_step(batch_spec(config))
    losses = [step(batch)["utterance_loss"].numpy() for batch in batches]
    assert step.experimental_get_tracing_count() == 1
    return losses, [plain_array(v) for v in model.trainable_variables], model


@pytest.mark.parametrize(("parts", "layers"), [(2, 0), (3, 1), (7, 0), (8, 0)])
def test_parts_of_uneven_sizes_make_the_whole_batchs_step(parts, layers):
    config = experiment(layers=layers)
    batches = [
        synthetic_batch(config, utterances, 60, length_spread=0.4, seed=utterances)
        for utterances in (7, 5, 1)  # the last batches of an epoch are smaller
    ]
    losses, weights, _ = after_steps(config, batches)
    part_losses, part_weights, _ = after_steps(
        experiment(parts, layers=layers), batches
    )

    for whole, in_parts in zip(losses, part_losses, strict=True):
        np.testing.assert_allclose(in_parts, whole, rtol=1e-4)

    for whole, in_parts in zip(weights, part_weights, strict=True):
        np.testing.assert_allclose(in_parts, whole, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    "clipping", [{"clipnorm": 0.1}, {"global_clipnorm": 0.1}, {"clipvalue": 0.001}]
)
def test_the_sum_of_the_parts_is_clipped(clipping):
    def optimizer():
        return keras.optimizers.SGD(1.0, **clipping)

    batches = [synthetic_batch(experiment(), 6, 60, length_spread=0.4)]
    _, unclipped, _ = after_steps(
        experiment(3, lambda: keras.optimizers.SGD(1.0)), batches
    )
    _, whole, _ = after_steps(experiment(1, optimizer), batches)
    _, in_parts, _ = after_steps(experiment(3, optimizer), batches)
    assert any(abs(a - b).max() > 1e-3 for a, b in zip(whole, unclipped, strict=True))

    for a, b in zip(whole, in_parts, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=2e-5)


def test_a_batch_in_parts_is_one_step_of_schedule_and_optimizer():
    schedule = keras.optimizers.schedules.PolynomialDecay(
        1.0, decay_steps=4, end_learning_rate=0.0
    )
    config = experiment(4, lambda: keras.optimizers.SGD(schedule))
    _, _, model = after_steps(config, [synthetic_batch(config, 8, 60)] * 2)
    assert int(plain_array(model.optimizer.iterations)) == 2
    assert float(model.optimizer.learning_rate) == pytest.approx(0.5)


def test_each_part_drops_other_activations_and_updates_batch_statistics():
    config = experiment(2, dropout=0.5)
    twice = {
        name: tf.concat([value, value], axis=0)
        for name, value in synthetic_batch(config, 2, 60).items()
    }
    losses, _, _ = after_steps(config, [twice])
    assert abs(losses[0][:2] - losses[0][2:]).max() > 1e-3
    normalised = Experiment(
        model=AcousticModelConfig(
            conv_filters=8, num_lstm_layers=0, lstm_units=8, dropout=0.0
        ),
        training=config.training,
    )
    _, _, model = after_steps(normalised, [twice])
    means = [plain_array(v) for v in model.variables if v.path.endswith("moving_mean")]
    assert len(means) == 1
    # Two equal parts: the statistics moved twice towards the same means.
    _, _, whole = after_steps(experiment_of_one_part(normalised), [twice])
    once = [plain_array(v) for v in whole.variables if v.path.endswith("moving_mean")]
    np.testing.assert_allclose(means[0], once[0] * (1 + 0.99), rtol=1e-3, atol=1e-6)


def experiment_of_one_part(config):
    training = TrainingConfig(optimizer=config.training.optimizer)
    return Experiment(model=config.model, training=training)


def test_keras_own_accumulation_is_refused():
    config = experiment(
        optimizer=lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    )
    with pytest.raises(
        UsageError, match=r"TrainingConfig\.gradient_accumulation_steps"
    ):
        build_model(config, Alphabet(), compiled=True)


REPLICAS = """
    import json
    import sys

    import keras
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    from tfasr.alphabet import Alphabet
    from tfasr.models.recurrent import AcousticModelConfig
    from tfasr.training.build import build_model, make_strategy
    from tfasr.training.experiment import Experiment, TrainingConfig
    from tfasr.training.memory import synthetic_batch

    def losses(replicas, parts, clipnorm):
        model = AcousticModelConfig(
            conv_filters=8, num_lstm_layers=0, dropout=0.0,
            batch_normalisation=clipnorm is None,
        )
        training = TrainingConfig(
            num_replicas=replicas, gradient_accumulation_steps=parts,
            optimizer=lambda: keras.optimizers.SGD(0.05, global_clipnorm=clipnorm),
        )
        experiment = Experiment(model=model, training=training)
        strategy = make_strategy(replicas)
        with strategy.scope():
            model = build_model(experiment, Alphabet(), compiled=True)
        batch = synthetic_batch(experiment, 10, 60, length_spread=0.4)
        each = 10 // replicas

        def share(context):
            first = context.replica_id_in_sync_group * each
            return {name: value[first : first + each] for name, value in batch.items()}

        shares = strategy.experimental_distribute_values_from_function(share)
        step = tf.function(model._global_step)
        shares = batch if replicas == 1 else shares
        return [step(shares)["utterance_loss"].numpy().tolist() for _ in range(3)]

    print(json.dumps([losses(*case) for case in json.loads(sys.argv[1])]))
"""


def losses_of_replicas(cases):
    """Per case of replicas, parts and clipnorm: each utterance's loss in three steps."""
    # Strategies of one process share the numbers of their collectives: one kind of
    # model each.
    finished = run_script(textwrap.dedent(REPLICAS), json.dumps(cases))
    return np.array(json.loads(finished.stdout))


def test_replicas_in_parts_learn_what_one_device_learns():
    """With clipping, which Keras would do on each replica's share alone."""
    one, two, two_in_parts = losses_of_replicas([(1, 1, 1.0), (2, 1, 1.0), (2, 3, 1.0)])
    assert abs(one[0] - one[-1]).max() > 0.01
    np.testing.assert_allclose(two, one, rtol=1e-4)
    np.testing.assert_allclose(two_in_parts, one, rtol=1e-4)


def test_replicas_in_parts_normalise_each_part():
    (losses,) = losses_of_replicas([(2, 3, None)])
    assert losses[-1].mean() < losses[0].mean()


def test_a_run_in_parts_keeps_steps_and_epochs_and_books_its_traces(
    shard_dir, tmp_path
):
    from tfasr.data.batches import PipelineConfig

    pipeline = PipelineConfig(padding="bucketed", global_batch_size=16, num_buckets=2)
    steps = {}
    for parts in (1, 4):
        config = experiment(
            parts, lambda: keras.optimizers.SGD(1e-4), epochs=2, sentences_every_steps=0
        )
        config = Experiment(
            model=config.model, pipeline=pipeline, training=config.training
        )
        train(config, shard_dir=shard_dir, run_dir=tmp_path / str(parts))
        events = read_events(tmp_path / str(parts))
        values = [e["value"] for e in events if e["key"] == "train_step"]
        steps[parts] = [(v["utterances"], v["frames"]) for v in values]
        (traces,) = [e["value"] for e in events if e["key"] == "traces"]
        assert traces["training"]["traces"] == traces["evaluation"]["traces"] == 1
        compiled = [v["compile_s"] > 0 for v in values]
        assert traces["training"]["compiling_steps"] == sum(compiled)
        by_frames = traces["training"]["by_frames"].values()
        assert sum(shape["steps"] for shape in by_frames) == len(values)

    assert steps[1] == steps[4]
