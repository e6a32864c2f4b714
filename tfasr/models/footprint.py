"""How much memory a training step takes, about, without trying it."""

from typing import Any

from tfasr.layers.geometry import conv_output_frames

# What Python, TensorFlow and compiled code take before the first batch.
_BASE_BYTES = 900 * 2**20
# Weights, gradients, two slots of the optimizer, what it computes in between and copies of kernels.
_COPIES_OF_WEIGHTS = 8
# Values per unit and output frame that a layer keeps for its gradient: inputs, gates, states,
# outputs, and what normalisation and dropout need.
_KEPT_PER_UNIT = 15
# The same for what only the layer at work needs: projections, their gradients, copies of both.
_AT_WORK_PER_UNIT = 24
_BYTES = 4  # states and gates are float32 under mixed precision too


def estimated_step_bytes(
    config: Any, num_features: int, parameters: int, batch: int, frames: int
) -> int:
    """Estimates the peak memory of a process that trains on batches of this size."""
    units = config.lstm_units * (2 if config.bidirectional else 1) * bool(config.num_lstm_layers)
    per_output = _KEPT_PER_UNIT * config.num_lstm_layers * units + _AT_WORK_PER_UNIT * units
    # The convolution multiplies copies of the frames that each output sees.
    per_output += 8 * config.conv_filters + config.conv_kernel * num_features
    outputs = max(conv_output_frames(frames, config.conv_kernel, config.conv_stride), 1)
    per_utterance = outputs * per_output + 2 * frames * num_features
    return step_bytes(parameters, batch * per_utterance)


def step_bytes(parameters: int, values: int) -> int:
    """Estimates the peak memory of a process that trains.

    Args:
        values: numbers that a step keeps for its gradients and needs at its widest.
    """
    return _BASE_BYTES + _BYTES * (_COPIES_OF_WEIGHTS * parameters + values)


def least_parameters(config: Any, num_features: int, num_classes: int) -> int:
    """Returns about how many weights a model has, never more: biases and scales are left out."""
    total = config.conv_kernel * num_features * config.conv_filters
    width = config.conv_filters
    for _ in range(config.num_layers):
        total += config.directions * config.gates * config.units * (width + config.units)
        width = config.directions * config.units
    return total + width * num_classes
