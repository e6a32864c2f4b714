import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.corpora.manifests import ctc_frames_needed
from tfasr.training.ctc import ctc_loss


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def collapse(path, blank):
    return [label for label, _ in itertools.groupby(path) if label != blank]


def all_paths_loss(logits, labels):
    log_probs = log_softmax(logits)
    frames, classes = log_probs.shape
    scores = [
        log_probs[range(frames), path].sum()
        for path in itertools.product(range(classes), repeat=frames)
        if collapse(path, classes - 1) == list(labels)
    ]
    return -np.logaddexp.reduce(scores)


def forward_loss(logits, labels):
    """The forward algorithm in float64."""
    log_probs = log_softmax(logits)
    blank = log_probs.shape[1] - 1
    extended = [blank]
    for label in labels:
        extended += [label, blank]
    alpha = np.full(len(extended), -np.inf)
    alpha[:2] = log_probs[0, extended[:2]]
    for frame in log_probs[1:]:
        previous = alpha.copy()
        for s, label in enumerate(extended):
            sources = [previous[s], previous[s - 1] if s else -np.inf]
            if s > 1 and label != blank and label != extended[s - 2]:
                sources.append(previous[s - 2])
            alpha[s] = np.logaddexp.reduce(sources) + frame[label]
    return -np.logaddexp(alpha[-1], alpha[-2])


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
    logits = np.random.default_rng(seed).normal(scale=2, size=(frames, 3)).astype(np.float32)
    expected = all_paths_loss(logits, labels)
    assert loss_of(logits, labels) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert forward_loss(logits, labels) == pytest.approx(expected)


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
        forward_loss(logits[i, : lengths[i]], labels[i, : label_lengths[i]])
        for i in range(len(logits))
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_padding_of_logits_and_labels_is_irrelevant():
    logits, lengths, labels, label_lengths = batch(1)
    other_logits, other_labels = logits.copy(), labels.copy()
    for i in range(len(logits)):
        other_logits[i, lengths[i] :] = 1e4
        other_labels[i, label_lengths[i] :] = -7 if i % 2 else 1000
    with tf.GradientTape(persistent=True) as tape:
        one, other = tf.constant(logits), tf.constant(other_logits)
        tape.watch([one, other])
        losses = ctc_loss(one, lengths, labels, label_lengths)
        other_losses = ctc_loss(other, lengths, other_labels, label_lengths)
    np.testing.assert_array_equal(losses, other_losses)
    gradient, other_gradient = tape.gradient(losses, one), tape.gradient(other_losses, other)
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
