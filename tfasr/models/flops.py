"""How many floating-point operations the matrix products of a recurrent stack take."""

from typing import Any

from tfasr.layers.geometry import conv_output_frames


def forward_flops(config: Any, num_features: int, num_classes: int, batch: int, frames: int) -> int:
    """Counts a forward pass: 2 for each product and sum of a matrix multiplication.

    Counted are the convolution, the input and recurrent products of every layer and the classifier,
    over all padded frames. What is left out - gates, batch normalisation, dropout, softmax, CTC -
    is below 1 % at the paper's sizes.

    Raises:
        ValueError: if the convolution leaves no frame.
    """
    outputs = _output_frames(config, frames)
    convolution = _convolution_flops(config, num_features, outputs)
    inputs, recurrent = config.conv_filters, 0
    for _ in range(config.num_layers):
        gates = config.directions * config.gates * config.units
        recurrent += 2 * outputs * gates * (inputs + config.units)
        inputs = config.directions * config.units
    classifier = 2 * outputs * inputs * num_classes
    return batch * (convolution + recurrent + classifier)


def training_flops(
    config: Any, num_features: int, num_classes: int, batch: int, frames: int
) -> int:
    """Counts a training step: forward, and backward twice as much.

    Backward multiplies once for the gradient of each product's inputs and once for its weights';
    only the convolution's inputs, the features, need none. The optimizer is not counted.
    """
    forward = forward_flops(config, num_features, num_classes, batch, frames)
    outputs = _output_frames(config, frames)
    return 3 * forward - batch * _convolution_flops(config, num_features, outputs)


def _convolution_flops(config: Any, num_features: int, outputs: int) -> int:
    return 2 * outputs * config.conv_kernel * num_features * config.conv_filters


def _output_frames(config: Any, frames: int) -> int:
    outputs = conv_output_frames(frames, config.conv_kernel, config.conv_stride)
    if outputs < 1:
        raise ValueError(
            f"The convolution must be given at least its kernel's {config.conv_kernel} frames. "
            f"Received: frames={frames}."
        )
    return outputs
