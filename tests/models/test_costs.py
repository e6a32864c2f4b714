"""Operations, bytes and weights counted against what is known by hand or from a built model."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.models.costs import (
    KINDS,
    estimated_step_bytes,
    flops,
    model_costs,
    num_weights,
    total_cost,
)
from tfasr.models.model import model_flops
from tfasr.models.recurrent import AcousticModel, AcousticModelConfig

CONFIGS = st.builds(
    AcousticModelConfig,
    conv_filters=st.integers(1, 9),
    conv_kernel=st.integers(1, 5),
    conv_stride=st.integers(1, 3),
    num_lstm_layers=st.integers(0, 3),
    lstm_units=st.integers(1, 9),
    bidirectional=st.booleans(),
    batch_normalisation=st.booleans(),
)
SIZES = {"num_features": 7, "num_classes": 5, "frames": 40, "labels": 3}


@settings(deadline=None, max_examples=12)
@given(CONFIGS)
def test_weights_are_those_of_the_built_model(config):
    model = AcousticModel(config, 5)
    model.build((None, None, 7))
    built = sum(int(weight.numpy().size) for weight in model.trainable_variables)
    assert num_weights(config, 7, 5) == built


def test_the_papers_model_by_hand():
    costs = model_costs(
        AcousticModelConfig(),
        num_features=93,
        num_classes=30,
        batch=16,
        frames=600,
        labels=80,
    )
    positions = 16 * 295
    by_name = {cost.name: cost for cost in costs}
    assert by_name["front end"].flops["convolution"] == 4 * positions * 11 * 93 * 600
    first = by_name["recurrent 1"].flops
    # Forward and two gradients of inputs (600) and of states (800) times the gates'
    # weights.
    gates = 3 * 2 * positions * 3200 * (600 + 800)
    assert first["matmul"] + first["recurrence"] - 60 * positions * 800 == gates
    assert by_name["head"].flops["matmul"] == 6 * positions * 800 * 30
    assert by_name["update"].total_bytes == 28 * num_weights(
        AcousticModelConfig(), 93, 30
    )
    whole = total_cost("step", costs)
    assert whole.total_flops == pytest.approx(721e9, rel=0.01)
    assert whole.intensity == pytest.approx(whole.total_flops / whole.total_bytes)


def test_recurrent_weights_beyond_the_cache_are_read_at_every_frame():
    sizes = {
        "num_features": 93,
        "num_classes": 30,
        "batch": 16,
        "frames": 600,
        "labels": 80,
    }
    weights = 800 * 3200 * 4  # 10.24 MB
    everywhere, just_too_small, resident = (
        model_costs(AcousticModelConfig(), cache_bytes=cache, **sizes)[1].moved[
            "recurrence"
        ]
        for cache in (0, weights - 1, weights)
    )
    # 22 numbers a unit and output frame, and the weights of both passes at 295 frames
    # or once.
    activations = 16 * 295 * 800 * 22 * 4
    assert resident == activations + 2 * weights == pytest.approx(353e6, rel=0.01)
    assert everywhere == just_too_small == activations + 2 * 295 * weights
    assert everywhere == pytest.approx(6.4e9, rel=0.01)


@settings(deadline=None, max_examples=60)
@given(CONFIGS, st.integers(1, 8))
def test_costs_grow_with_the_batch_as_they_should(config, batch):
    one, many = (model_costs(config, batch=n, **SIZES) for n in (batch, 2 * batch))
    assert [cost.name for cost in one] == [
        "front end",
        *(f"recurrent {n + 1}" for n in range(config.num_lstm_layers)),
        "head",
        "loss",
        "update",
    ]
    for small, large in zip(one[:-1], many[:-1], strict=True):
        assert set(small.flops) == set(small.moved) <= set(KINDS)
        assert large.total_flops == 2 * small.total_flops > 0
        # Weights are moved once whatever the batch.
        assert small.total_bytes < large.total_bytes <= 2 * small.total_bytes
        assert large.intensity >= small.intensity

    assert one[-1] == many[-1]


@settings(deadline=None, max_examples=30)
@given(CONFIGS)
def test_half_the_bytes_in_16_bits_where_16_bits_are_used(config):
    full, half = (
        model_costs(config, batch=2, bytes_per_number=size, **SIZES) for size in (4, 2)
    )
    for cost, halved in zip(full, half, strict=True):
        kept = cost.name in ("head", "loss", "update")
        assert halved.total_bytes == cost.total_bytes / (1 if kept else 2)
        assert halved.flops == cost.flops


# Operations of the acoustic model, against the graph's and by hand.

PAPER = AcousticModelConfig()


def products_of_the_graph(config, num_features, num_classes, batch, frames) -> int:
    """Operations of all products in the graph of a forward pass whose loops are unrolled."""
    model = AcousticModel(config, num_classes)
    model.build((None, None, num_features))
    for layer in model.recurrent:
        for part in (
            layer,
            *(getattr(layer, f"{d}_layer", layer) for d in ("forward", "backward")),
        ):
            part.unroll = True
            part.requested_kernel = "generic"
            part.use_cudnn = False

    @tf.function(
        input_signature=[
            tf.TensorSpec((batch, frames, num_features)),
            tf.TensorSpec((batch,), tf.int32),
        ]
    )
    def forward(features, lengths):
        return model(features, lengths, training=False)

    total = 0
    for operation in forward.get_concrete_function().graph.get_operations():
        if operation.type in ("MatMul", "BatchMatMulV2", "Conv2D"):
            *_, outputs = operation.outputs[0].shape
            rows = operation.outputs[0].shape.num_elements() // outputs
            weights = operation.inputs[1].shape.num_elements()
            total += 2 * rows * weights

    return total


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_forward_pass_is_what_stands_in_the_graph(bidirectional):
    config = AcousticModelConfig(
        conv_filters=6,
        conv_kernel=5,
        num_lstm_layers=2,
        lstm_units=7,
        bidirectional=bidirectional,
        batch_normalisation=False,
        dropout=0.0,
    )
    sizes = (9, 11, 3, 20)
    *of_utterance, batch, frames = sizes
    found = batch * flops(config, *of_utterance, frames, training=False)
    assert found == products_of_the_graph(config, *sizes)


def test_the_papers_step_of_16_times_600_frames_is_some_720_billion():
    assert 16 * flops(PAPER, 93, 30, 600, training=True) == pytest.approx(
        718e9, rel=0.005
    )


@settings(deadline=None, max_examples=50)
@given(batch=st.integers(1, 64), frames=st.integers(11, 2000))
def test_operations_grow_with_the_batch_and_backward_is_nearly_twice_forward(
    batch, frames
):
    forward, both = (
        flops(PAPER, 93, 30, frames, training=way) for way in (False, True)
    )
    assert model_flops(PAPER, 93, 30, batch, frames, training=False) == batch * forward
    assert 2.9 * forward < both < 3 * forward


def test_too_few_frames_are_refused():
    with pytest.raises(ValueError, match="frames=10"):
        flops(PAPER, 93, 30, 10, training=False)


# The estimate of a step's memory.

MIB = 2**20


@pytest.mark.parametrize(
    ("batch", "measured_mib"),
    # Peaks of processes that trained the paper's model on 600 frames.
    [(2, 1899), (4, 2095)],
)
def test_the_papers_model_takes_about_what_was_measured(batch, measured_mib):
    estimated = estimated_step_bytes(AcousticModelConfig(), 93, 27_000_000, batch, 600)
    assert estimated / MIB == pytest.approx(measured_mib, rel=0.15)


def test_more_of_anything_takes_more():
    def estimate(batch=8, frames=600, **sizes):
        return estimated_step_bytes(
            AcousticModelConfig(**sizes), 93, 10_000_000, batch, frames
        )

    least = estimate()
    assert estimate(batch=9) > least
    assert estimate(frames=700) > least
    assert estimate(num_lstm_layers=6) > least
    assert estimate(lstm_units=900) > least
    assert estimate(bidirectional=True) > least
