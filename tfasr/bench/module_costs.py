"""Arithmetic and memory traffic of each module of the acoustic model in a training step."""

from dataclasses import dataclass, field

from tfasr.layers.geometry import conv_output_frames
from tfasr.models.acoustic_model import AcousticModelConfig

# Operations and elements moved for an element of an activation, forward and backward together:
# batch normalisation reads its input twice and writes once, backwards it reads input and gradient
# twice and writes once; dropout and the rectifier read one and write one each way.
_NORMALISATION_FLOPS, _NORMALISATION_MOVES = 20, 13
# Gates of the LSTM, per unit and step, transcendental functions counted as one operation.
_GATE_FLOPS = 60
# AdaDelta, per weight: two running averages, two roots, a division; reads 4 and writes 3 numbers.
_UPDATE_FLOPS, _UPDATE_MOVES = 12, 7


@dataclass(frozen=True)
class ModuleCost:
    """What a module must compute and move in one training step, forward and backward.

    Attributes:
        name: of the module.
        flops: floating-point operations by kind: "convolution", "matmul", "recurrence" (the
            matmuls inside of the loop over time) and "elementwise".
        moved_bytes: bytes moved if every tensor is read and written once where it is used, and
            nothing stays in a cache between uses.
    """

    name: str
    moved_bytes: float
    flops: dict[str, float] = field(default_factory=dict)

    @property
    def total_flops(self) -> float:
        """Floating-point operations of all kinds."""
        return float(sum(self.flops.values()))

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte moved."""
        return self.total_flops / self.moved_bytes


def model_costs(
    config: AcousticModelConfig,
    *,
    num_features: int,
    num_classes: int,
    batch: int,
    frames: int,
    labels: int,
    bytes_per_number: int = 4,
) -> list[ModuleCost]:
    """Returns the cost of every module in the order of `tfasr.bench.model_modules`.

    Multiplications and additions of convolutions and matmuls are exact; the element-wise rest is
    counted by round numbers of operations per element.

    Args:
        config: sizes of the model.
        num_features: features per frame.
        num_classes: classes, blank included.
        batch: utterances.
        frames: padded feature frames of each.
        labels: labels of each.
        bytes_per_number: of activations and of weights as computed with; 4, or 2 in 16 bits. The
            loss and the update always count 4.
    """
    steps = conv_output_frames(frames, config.conv_kernel, config.conv_stride)
    positions = batch * steps
    costs = [_front_end(config, num_features, batch * frames, positions, bytes_per_number)]
    width = config.conv_filters
    for number in range(config.num_lstm_layers):
        costs.append(_recurrent(config, number, width, positions, bytes_per_number))
        width = config.lstm_units * (2 if config.bidirectional else 1)
    head_flops = 3 * 2 * positions * width * num_classes
    head_moves = positions * 3 * (width + num_classes) + 3 * width * num_classes
    costs.append(ModuleCost("head", 4 * head_moves, {"matmul": head_flops}))
    lattice, scores = positions * (2 * labels + 1), positions * num_classes
    loss_flops = 12 * lattice + 10 * scores
    costs.append(ModuleCost("loss", 4 * (4 * lattice + 6 * scores), {"elementwise": loss_flops}))
    weights = num_weights(config, num_features, num_classes)
    update = {"elementwise": _UPDATE_FLOPS * weights}
    return [*costs, ModuleCost("update", 4 * _UPDATE_MOVES * weights, update)]


def num_weights(config: AcousticModelConfig, num_features: int, num_classes: int) -> int:
    """Returns the trainable weights of the model."""
    directions = 2 if config.bidirectional else 1
    width, units = config.conv_filters, config.lstm_units
    total = config.conv_kernel * num_features * width + width
    normalised = [width]
    for _ in range(config.num_lstm_layers):
        total += directions * 4 * units * (width + units + 1)
        width = directions * units
        normalised.append(width)
    total += width * num_classes + num_classes
    return total + (2 * sum(normalised) if config.batch_normalisation else 0)


def total_cost(name: str, costs: list[ModuleCost]) -> ModuleCost:
    """Returns the sum of several modules."""
    kinds = sorted({kind for cost in costs for kind in cost.flops})
    flops = {kind: sum(cost.flops.get(kind, 0.0) for cost in costs) for kind in kinds}
    return ModuleCost(name, sum(cost.moved_bytes for cost in costs), flops)


def _front_end(config, num_features: int, inputs: int, positions: int, size: int) -> ModuleCost:
    weights = config.conv_kernel * num_features * config.conv_filters
    outputs = positions * config.conv_filters
    # Forward and the weights' gradient: the features need none.
    moves = 2 * inputs * num_features + 3 * outputs + 3 * weights
    flops = {
        "convolution": 2 * 2 * positions * weights,
        "elementwise": _NORMALISATION_FLOPS * outputs,
    }
    return ModuleCost("front end", size * (moves + _NORMALISATION_MOVES * outputs), flops)


def _recurrent(config, number: int, width: int, positions: int, size: int) -> ModuleCost:
    units, directions = config.lstm_units, 2 if config.bidirectional else 1
    kernel, recurrent = width * 4 * units, units * 4 * units
    outputs = positions * directions * units
    # Of each direction and step: inputs thrice, projected inputs and gates' gradients written and
    # read, what the backward loop needs (6 per unit) written and read, outputs and their gradients.
    of_step = 3 * width + 8 * units + 16 * units + 12 * units + 4 * units
    moves = directions * (positions * of_step + 3 * (kernel + recurrent))
    flops = {
        "matmul": directions * 2 * positions * (3 * kernel + recurrent),
        "recurrence": directions * 2 * 2 * positions * recurrent,
        "elementwise": _GATE_FLOPS * outputs + _NORMALISATION_FLOPS * outputs,
    }
    name = f"recurrent {number + 1}"
    return ModuleCost(name, size * (moves + _NORMALISATION_MOVES * outputs), flops)
