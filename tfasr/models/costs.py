"""Operations and memory traffic of each module of a model in a training step.

Models call these functions for their configs; rooflines (`tfasr.bench.roofline`),
estimates and reports of floating-point operations use the results. Counts follow from
shapes alone, so no model is built. Estimates of memory were fitted to measured
processes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tfasr.layers.geometry import conv_output_frames

# Estimates for batch normalisation with the ReLU and dropout after it, forward and
# backward: operations, and numbers read or written, per activation.
NORMALISATION_FLOPS = 20
NORMALISATION_MOVES = 13
# Operations of an LSTM's gates per unit and step; tanh and the sigmoid count as one
# each.
_GATE_FLOPS = 60
# AdaDelta per weight: two running averages, two roots, a division; 4 numbers read and 3
# written.
UPDATE_FLOPS = 12
UPDATE_MOVES = 7

# Kinds of work: "recurrence" is the loop over time with its matmuls and gates, "matmul"
# all other matmuls, "elementwise" the rest.
KINDS = ("convolution", "matmul", "recurrence", "elementwise")
_BASE_BYTES = 900 * 2**20  # Python, TensorFlow and compiled code before the first batch
# Peak memory per weight, in numbers: weight, gradient, two optimizer slots, temporary
# copies.
_COPIES_OF_WEIGHTS = 8
# Numbers per unit and output frame that a layer stores for its gradient: inputs, gates,
# states, outputs, and what normalisation and dropout store.
_KEPT_PER_UNIT = 15
# The same for what only the layer being computed needs: projections, their gradients,
# copies.
_AT_WORK_PER_UNIT = 24
_BYTES = 4  # per number; states and gates are float32 under mixed precision, too


@dataclass(frozen=True)
class ModuleCost:
    """Operations and memory traffic of a module in one training step, forward and backward.

    ``flops`` and ``moved`` (bytes) are by kind, see `KINDS`. Each operation is assumed
    to read its inputs from memory and write its outputs once, except recurrent weights
    that fit into a cache, see `model_costs`.
    """

    name: str
    flops: dict[str, float]
    moved: dict[str, float]

    @property
    def total_flops(self) -> float:
        """Floating-point operations of all kinds together."""
        return float(sum(self.flops.values()))

    @property
    def total_bytes(self) -> float:
        """Bytes read and written by all kinds together."""
        return float(sum(self.moved.values()))

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte moved."""
        return self.total_flops / self.total_bytes


def model_costs(
    config: Any,
    *,
    num_features: int,
    num_classes: int,
    batch: int,
    frames: int,
    labels: int,
    bytes_per_number: int = 4,
    cache_bytes: int = 0,
) -> list[ModuleCost]:
    """Returns the cost of every module of the acoustic model: its stages, loss and update.

    Operations of convolutions and matmuls are exact, those of element-wise work
    estimated.

    Args:
        config: of the model.
        num_features: features per frame.
        num_classes: including the blank.
        batch: utterances.
        frames: feature frames of each utterance, with padding.
        labels: of each utterance.
        bytes_per_number: 4 or 2, of activations and weights; loss and update always
            use 4.
        cache_bytes: recurrent weights that fit are read once per pass, larger ones for
            each frame.
    """
    steps = conv_output_frames(frames, config.conv_kernel, config.conv_stride)
    positions = batch * steps
    costs = [
        _front_end(config, num_features, batch * frames, positions, bytes_per_number)
    ]
    width = config.conv_filters

    for number in range(config.num_lstm_layers):
        loop = _recurrent(
            config,
            number,
            width,
            positions,
            steps,
            bytes_per_number,
            cache_bytes,
        )
        costs.append(loop)
        width = config.directions * config.lstm_units

    # Forward, and the gradients of inputs and weights.
    head_flops = 3 * 2 * positions * width * num_classes
    head_moves = 3 * (positions * (width + num_classes) + width * num_classes)
    costs.append(ModuleCost("head", {"matmul": head_flops}, {"matmul": 4 * head_moves}))
    # CTC's lattice has a blank before, between and after the labels.
    lattice = positions * (2 * labels + 1)
    scores = positions * num_classes
    costs.append(
        _elementwise("loss", 12 * lattice + 10 * scores, 4 * lattice + 6 * scores)
    )
    weights = num_weights(config, num_features, num_classes)

    return [
        *costs,
        _elementwise("update", UPDATE_FLOPS * weights, UPDATE_MOVES * weights),
    ]


def num_weights(config: Any, num_features: int, num_classes: int) -> int:
    """Returns how many trainable weights the model has, with biases and scales."""
    width = config.directions * config.units
    # Channels that are normalised, each with a scale and an offset.
    normalised = config.conv_filters + config.num_layers * width
    biases = (
        config.conv_filters + config.num_layers * config.gates * width + num_classes
    )
    scales = 2 * normalised if config.batch_normalisation else 0

    return least_parameters(config, num_features, num_classes) + biases + scales


def unknown_costs(names: Iterable[str]) -> list[ModuleCost]:
    """Returns costs that are NaN, for stages of models that can't state theirs."""
    nan = float("nan")
    return [ModuleCost(name, {"matmul": nan}, {"matmul": nan}) for name in names]


def total_cost(name: str, costs: list[ModuleCost]) -> ModuleCost:
    """Adds up costs by kind, as one module of this name."""
    flops = {kind: sum(cost.flops.get(kind, 0.0) for cost in costs) for kind in KINDS}
    moved = {kind: sum(cost.moved.get(kind, 0.0) for cost in costs) for kind in KINDS}
    return ModuleCost(name, flops, moved)


def _elementwise(name: str, flops: float, moves: float) -> ModuleCost:
    """Returns a cost of ``moves`` 32-bit numbers read or written, and nothing else."""
    return ModuleCost(name, {"elementwise": flops}, {"elementwise": 4 * moves})


def _front_end(
    config,
    num_features: int,
    inputs: int,
    positions: int,
    size: int,
) -> ModuleCost:
    """Returns the convolution's cost.

    ``inputs`` and ``positions`` are the frames before and after it, over the batch;
    ``size`` is the bytes of a number.
    """
    weights = config.conv_kernel * num_features * config.conv_filters
    outputs = positions * config.conv_filters
    # Twice: forward, and for the weights' gradient; features need no gradient.
    moves = 2 * (inputs * num_features + outputs + weights)

    return ModuleCost(
        "front end",
        {
            "convolution": 2 * 2 * positions * weights,
            "elementwise": NORMALISATION_FLOPS * outputs,
        },
        {
            "convolution": size * moves,
            "elementwise": size * NORMALISATION_MOVES * outputs,
        },
    )


def _recurrent(
    config,
    number: int,
    width: int,
    positions: int,
    steps: int,
    size: int,
    cache_bytes: int,
) -> ModuleCost:
    """Returns the cost of one recurrent layer, numbered from 0.

    Args:
        config: of the model.
        number: of the layer.
        width: of its input.
        positions: output frames of the whole batch.
        steps: output frames of an utterance.
        size: bytes of a number.
        cache_bytes: see `model_costs`.
    """
    units = config.lstm_units
    directions = config.directions
    kernel = width * 4 * units
    recurrent = units * 4 * units
    outputs = positions * directions * units
    flops = {
        # Inputs times weights, the two gradients of that, and the recurrent weights'
        # gradient.
        "matmul": directions * 2 * positions * (3 * kernel + recurrent),
        "recurrence": directions * 2 * 2 * positions * recurrent
        + _GATE_FLOPS * outputs,
        "elementwise": NORMALISATION_FLOPS * outputs,
    }
    matmul_moves = (
        positions * (3 * width + units + 4 * 4 * units) + 3 * kernel + recurrent
    )
    # Per unit: forward reads 4 projected inputs and writes 6 numbers to save and 1
    # output; backward reads those 6 + 1 and writes 4 gradients.
    reads = 1 if size * recurrent <= cache_bytes else steps
    loop_moves = positions * units * (4 + 6 + 1 + 6 + 1 + 4) + 2 * reads * recurrent
    moved = {
        "matmul": directions * size * matmul_moves,
        "recurrence": directions * size * loop_moves,
        "elementwise": size * NORMALISATION_MOVES * outputs,
    }

    return ModuleCost(f"recurrent {number + 1}", flops, moved)


def flops(
    config: Any,
    num_features: int,
    num_classes: int,
    frames: int,
    *,
    training: bool,
) -> int:
    """Returns an utterance's floating-point operations.

    A multiplication with its addition counts as 2. This counts the matmuls of
    convolution, recurrent layers and classifier, over all padded frames. It leaves out
    gates, batch normalisation, dropout, softmax, CTC and the optimizer, together below
    1 % at the paper's sizes. Training adds the backward pass, which multiplies twice as
    much, for the gradients of inputs and weights, except in the convolution, whose
    inputs, the features, need no gradient.

    Raises:
        ValueError: if the convolution has no output frame.
    """
    outputs = conv_output_frames(frames, config.conv_kernel, config.conv_stride)
    if outputs < 1:
        raise ValueError(
            f"The convolution needs at least {config.conv_kernel} frames, its kernel's size. "
            f"Received: frames={frames}."
        )

    weights = least_parameters(config, num_features, num_classes)
    convolution = config.conv_kernel * num_features * config.conv_filters

    products = 3 * weights - convolution if training else weights

    return 2 * outputs * products


def estimated_step_bytes(
    config: Any,
    num_features: int,
    parameters: int,
    batch: int,
    frames: int,
) -> int:
    """Estimates the peak memory of a process that trains the LSTM model on such batches.

    ``parameters`` are the model's weights; ``frames`` those of the longest utterance.
    """
    units = config.directions * config.lstm_units * bool(config.num_lstm_layers)
    per_output = (
        _KEPT_PER_UNIT * config.num_lstm_layers * units + _AT_WORK_PER_UNIT * units
    )
    # The convolution first copies the frames that each output sees.
    per_output += 8 * config.conv_filters + config.conv_kernel * num_features
    outputs = max(conv_output_frames(frames, config.conv_kernel, config.conv_stride), 1)
    per_utterance = outputs * per_output + 2 * frames * num_features

    return step_bytes(parameters, batch * per_utterance)


def step_bytes(parameters: int, values: int) -> int:
    """Estimates the peak memory of training with so many weights and ``values`` per step."""
    return _BASE_BYTES + _BYTES * (_COPIES_OF_WEIGHTS * parameters + values)


def least_parameters(config: Any, num_features: int, num_classes: int) -> int:
    """Returns a lower bound on the number of weights, without biases and scales."""
    total = config.conv_kernel * num_features * config.conv_filters
    width = config.conv_filters

    for _ in range(config.num_layers):
        total += (
            config.directions * config.gates * config.units * (width + config.units)
        )
        width = config.directions * config.units

    return total + width * num_classes
