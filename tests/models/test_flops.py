"""Operations of the acoustic model, against the graph's and by hand."""

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfasr.models.costs import forward_flops, training_flops
from tfasr.models.recurrent import AcousticModel, AcousticModelConfig

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
            part.unroll, part.requested_kernel, part.use_cudnn = True, "generic", False

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
    assert forward_flops(config, *sizes) == products_of_the_graph(config, *sizes)


def test_the_papers_step_of_16_times_600_frames_is_some_720_billion():
    assert training_flops(PAPER, 93, 30, 16, 600) == pytest.approx(718e9, rel=0.005)


@settings(deadline=None, max_examples=50)
@given(batch=st.integers(1, 64), frames=st.integers(11, 2000))
def test_operations_grow_with_the_batch_and_backward_is_nearly_twice_forward(batch, frames):
    sizes = (93, 30)
    assert forward_flops(PAPER, *sizes, batch, frames) == batch * forward_flops(
        PAPER, *sizes, 1, frames
    )
    forward = forward_flops(PAPER, *sizes, batch, frames)
    assert 2.9 * forward < training_flops(PAPER, *sizes, batch, frames) < 3 * forward


def test_too_few_frames_are_refused():
    with pytest.raises(ValueError, match="frames=10"):
        forward_flops(PAPER, 93, 30, 1, 10)
