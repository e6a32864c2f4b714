"""The compiled CTC loss: every instruction set, beside brute force, TensorFlow's and PyTorch's."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.training.ctc_reference import by_all_paths, by_logarithms
from tfasr.layers import operations
from tfasr.training import ctc

core = pytest.importorskip(
    "tfasr.layers._recurrent_core", reason="built without a compiler"
)
if not hasattr(core, "ctc"):
    pytest.skip(
        "the core is of an older source: install tfasr again", allow_module_level=True
    )


def drawn(rng, batch, frames, classes, most_labels, scale):
    """Random arguments of `core.ctc`; some utterances may have no path, for equal
    neighbours.
    """
    label_lengths = rng.integers(1, min(most_labels, frames) + 1, batch).astype("int32")
    lengths = rng.integers(label_lengths, frames + 1).astype("int32")
    labels = rng.integers(0, classes - 1, (batch, most_labels)).astype("int32")
    logits = rng.normal(scale=scale, size=(batch, frames, classes)).astype("float32")

    return logits, lengths, labels, label_lengths


def expected_of(logits, lengths, labels, label_lengths):
    """Losses and gradients of a batch, one utterance after the other."""
    losses = np.zeros(len(logits))
    gradients = np.zeros(logits.shape)
    for u, (frames, count) in enumerate(zip(lengths, label_lengths, strict=True)):
        losses[u], gradients[u, :frames] = by_logarithms(
            logits[u, :frames], labels[u, :count]
        )

    return losses, gradients


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_it_is_the_sum_over_all_paths(data):
    labels = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))
    frames = data.draw(st.integers(len(labels), 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    logits = rng.normal(scale=2, size=(frames, 3)).astype("float32")
    blanks_needed = sum(a == b for a, b in itertools.pairwise(labels))

    if frames < len(labels) + blanks_needed:
        expected = np.inf, np.zeros((frames, 3))
    else:
        expected = by_all_paths(logits, labels)

    given_lengths = np.array([frames], "int32"), np.array([labels], "int32")
    for name in core.instruction_sets():
        (loss,), (gradient,) = core.ctc(
            logits[None], *given_lengths, np.array([len(labels)], "int32"), 1, name
        )

        np.testing.assert_allclose(loss, expected[0], rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(gradient, expected[1], atol=2e-6)

    np.testing.assert_allclose(
        by_logarithms(logits, labels)[1], expected[1], atol=1e-12
    )


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.tuples(*(st.integers(1, n) for n in (6, 60))),
    classes=st.integers(2, 70),
    most_labels=st.integers(1, 40),
    scale=st.sampled_from([0.1, 2.0, 40.0, 1000.0, 1e5]),
    threads=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
# A path that doesn't exist, with probabilities of exactly 1: it once cost 3.7e8.
@example(sizes=(2, 2), classes=2, most_labels=2, scale=40.0, threads=1, seed=2)
def test_every_instruction_set_is_as_exact_as_float64(
    sizes, classes, most_labels, scale, threads, seed
):
    arguments = drawn(np.random.default_rng(seed), *sizes, classes, most_labels, scale)
    expected = expected_of(*arguments)
    for name in core.instruction_sets():
        losses, gradient = core.ctc(*arguments, threads=threads, instruction_set=name)

        np.testing.assert_allclose(losses, expected[0], rtol=1e-5, atol=1e-4)
        # A logit of 1000 has an error of 6e-5 in float32, and so have logarithms of
        # probabilities.
        np.testing.assert_allclose(gradient, expected[1], atol=1e-5 + 1e-6 * scale)


@pytest.mark.parametrize("gap", [0.0, 1.0, 80.0, 1000.0, 1e5, 1e8, 1e30])
@pytest.mark.parametrize("labels", [[0, 0], [1, 1, 0], [0, 1, 1, 1], [1] * 20])
def test_labels_without_a_path_cost_infinity_however_certain_the_frames_are(
    labels, gap
):
    needed = len(labels) + sum(a == b for a, b in itertools.pairwise(labels))
    arrays = np.array([labels], "int32"), np.array([len(labels)], "int32")
    for frames in range(len(labels), needed + 1):
        # Each frame is certain of a label; the last frames of the blank.
        logits = np.zeros((1, frames, 3), "float32")
        for t in range(frames):
            logits[0, t, labels[t] if t < len(labels) else 2] = gap

        for name in core.instruction_sets():
            (loss,), gradient = core.ctc(
                logits,
                np.array([frames], "int32"),
                *arrays,
                threads=1,
                instruction_set=name,
            )

            if frames < needed:
                assert loss == np.inf
                assert not gradient.any()
            elif gap <= 1e5:
                expected = by_logarithms(logits[0], labels)

                np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
                np.testing.assert_allclose(gradient[0], expected[1], atol=1e-5)


def test_long_utterances_keep_the_gradients_digits():
    # TensorFlow's kernel is wrong here by 0.001 to 0.03.
    rng = np.random.default_rng(0)
    for classes, labels in ((29, 200), (300, 50)):
        arguments = drawn(rng, 2, 900, classes, labels, 3.0)

        losses, gradient = core.ctc(*arguments, threads=2)
        expected = expected_of(*arguments)

        np.testing.assert_allclose(losses, expected[0], rtol=1e-6)
        np.testing.assert_allclose(gradient, expected[1], atol=2e-5)


def compare_with_peers(rng, batches):
    """Compares random batches with TensorFlow's and PyTorch's loss."""
    torch = None
    with contextlib.suppress(ImportError):
        import torch

    for _ in range(batches):
        sizes = (
            int(rng.integers(low, high)) for low, high in ((1, 30), (2, 20), (1, 12))
        )
        arguments = drawn(rng, 4, *sizes, rng.choice([0.3, 3.0]))
        logits, lengths, labels, label_lengths = arguments

        losses, gradient = core.ctc(*arguments, threads=2)

        expected = expected_of(*arguments)
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(gradient, expected[1], atol=1e-5)

        has_path = np.isfinite(losses)
        their_losses, their_gradient = tensorflows(*arguments)
        np.testing.assert_allclose(losses, their_losses, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            gradient[has_path], their_gradient[has_path], atol=1e-3
        )

        if torch:
            inputs = torch.tensor(logits, requires_grad=True)
            theirs = torch.nn.functional.ctc_loss(
                inputs.log_softmax(-1).transpose(0, 1),
                *(torch.tensor(x).long() for x in (labels, lengths, label_lengths)),
                blank=logits.shape[2] - 1,
                reduction="none",
            )
            np.testing.assert_allclose(losses, theirs.detach(), rtol=1e-5, atol=1e-5)
            theirs[torch.tensor(has_path)].sum().backward()
            slope = inputs.grad.numpy()
            np.testing.assert_allclose(gradient[has_path], slope[has_path], atol=1e-3)


def tensorflows(logits, lengths, labels, label_lengths):
    with pytest.MonkeyPatch.context() as patch, tf.GradientTape() as tape:
        patch.setattr(ctc, "runs_here", lambda *_: False)
        inputs = tf.constant(logits)
        tape.watch(inputs)
        losses = ctc.ctc_loss(inputs, lengths, labels, label_lengths)

    return losses.numpy(), tape.gradient(losses, inputs).numpy()


@pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
def test_peers_agree():
    compare_with_peers(np.random.default_rng(5), 100)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")
def test_peers_agree_on_ten_thousand_utterances():
    compare_with_peers(np.random.default_rng(6), 2500)


def test_it_is_an_operation_of_graphs_and_refuses_second_derivatives(monkeypatch):
    arguments = drawn(np.random.default_rng(1), 5, 30, 10, 8, 2.0)

    def gradients(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = ctc.ctc_loss(logits, *arguments[1:])
            total = tf.reduce_sum(losses * tf.constant([1.0, 2, 0, -1, 5]))

        return losses, tape.gradient(total, logits)

    spec = tf.TensorSpec((None, None, 10), tf.float32)
    traced = tf.function(gradients).get_concrete_function(spec)

    assert "TfasrCtc" in {operation.type for operation in traced.graph.get_operations()}
    assert traced.structured_outputs[1].shape[2] == 10

    losses, gradient = core.ctc(*arguments, threads=1)
    slopes = gradient * np.array([1.0, 2, 0, -1, 5], "float32")[:, None, None]
    monkeypatch.setattr(operations, "registered", lambda: False)
    called = tf.function(gradients).get_concrete_function(spec)

    for run in (traced, called, gradients):
        received = run(tf.constant(arguments[0]))

        np.testing.assert_array_equal(received[0], losses)
        np.testing.assert_array_equal(received[1], slopes)

    logits = tf.constant(arguments[0])
    with tf.GradientTape() as outer, pytest.raises(NotImplementedError, match="CTC"):
        outer.watch(logits)
        outer.gradient(tf.reduce_sum(gradients(logits)[1]), logits)


def test_nan_and_infinite_logits_give_a_loss_of_nan():
    arguments = drawn(np.random.default_rng(2), 4, 20, 5, 3, 1.0)
    logits = arguments[0]
    expected = core.ctc(*arguments, threads=1)
    logits[0, 0, 1], logits[1, 0, 4], logits[2, 0] = np.nan, np.inf, -np.inf

    for name in core.instruction_sets():
        losses, gradient = core.ctc(*arguments, threads=1, instruction_set=name)

        assert np.isnan(losses[:3]).all()
        assert all(np.isnan(gradient[u, : arguments[1][u]]).all() for u in range(3))
        np.testing.assert_allclose(losses[3], expected[0][3], rtol=1e-6)

    # A class that is impossible in a frame only makes the paths through it impossible.
    arguments = drawn(np.random.default_rng(3), 1, 20, 5, 3, 1.0)
    arguments[0][0, 0, arguments[2][0, 0]] = -np.inf
    losses, gradient = core.ctc(*arguments, threads=1)
    arguments[0][0, 0, arguments[2][0, 0]] = -1e4

    np.testing.assert_allclose(losses, expected_of(*arguments)[0], rtol=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({0: np.zeros((2, 3), "float32")}, "logits must be"),
        ({1: np.array([3], "int32")}, "logit_lengths has a wrong shape"),
        (
            {1: np.array([3, 9], "int32")},
            "There are 5 frames, but logit_lengths has 9.*: 1,",
        ),
        ({1: np.array([-1, 3], "int32")}, "logit_lengths has -1"),
        ({2: np.array([[0, 1], [1, 3]], "int32")}, r"in 0\.\.2\. Received: 3\..*: 1,"),
        ({2: np.array([[-1, 1], [1, 2]], "int32")}, r"Received: -1\."),
        ({3: np.array([2, 3], "int32")}, "There are 2 labels, but label_lengths has 3"),
        ({3: np.array([0, 2], "int32")}, "Labels length is zero"),
        ({1: np.array([5, 1], "int32")}, "Not enough time.* 2 labels and 1 frames"),
    ],
)
def test_what_has_no_loss_is_refused(changed, message):
    arguments = {
        0: np.zeros((2, 5, 4), "float32"),
        1: np.array([5, 4], "int32"),
        2: np.array([[0, 1], [1, 2]], "int32"),
        3: np.array([2, 2], "int32"),
    } | changed

    with pytest.raises(ValueError, match=message):
        core.ctc(*arguments.values(), threads=1)


def test_a_batch_without_utterances_has_no_losses():
    arguments = drawn(np.random.default_rng(4), 1, 5, 4, 2, 1.0)
    losses, gradient = core.ctc(*(x[:0] for x in arguments), threads=2)

    assert losses.shape == (0,)
    assert gradient.shape == (0, 5, 4)
