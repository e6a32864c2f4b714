"""How much computing each layer in bfloat16 changes a training step's gradient.

    python benchmarks/rounding.py --run_dir RUN [--shard_dir SHARDS] [--batches 30] [--out FILE]

The gradients of the same batches are computed from a run's weights, without dropout,
with all layers in float32, then with one layer, one kind of layer and all layers in
``mixed_bfloat16``; the last layer and the loss are always float32. The error, which is
the difference from float32, is reported as a fraction of the length of the batches'
mean gradient:

- its size: the root mean square over the batches;
- its systematic part: the length of the mean error, and the length that chance alone
  would give it (independent errors with mean zero);
- how much longer or shorter the gradient becomes: the mean error along the mean
  gradient;

and, for comparison, the distance of single batches' gradients from their mean.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfasr.telemetry.system import describe_system
from tfasr.training.ctc import CtcModel
from tfasr.training.trained import open_trained


def nested(layer: Any) -> list[Any]:
    """Returns a layer with all its sublayers."""
    return list(layer._flatten_layers())


def set_precision(layers: list[Any], precision: str) -> None:
    """Makes layers compute in a Keras dtype policy from their next call on."""
    for layer in layers:
        for part in nested(layer):
            part.dtype_policy = keras.DTypePolicy(precision)


def gradients(model: Any, batches: list[dict]) -> np.ndarray:
    """Returns the gradient of each batch's mean loss, float64 ``(batches, weights)``."""
    wrapped = CtcModel(model, model.output_lengths)
    wrapped.compile(optimizer=keras.optimizers.SGD())
    rows = []

    for batch in batches:
        _, result = wrapped.loss_gradients(batch)
        rows.append(np.concatenate([np.ravel(g) for g in result]).astype(np.float64))

    return np.stack(rows)


def length(vector: np.ndarray) -> float:
    """Returns the Euclidean length."""
    return float(np.linalg.norm(vector))


def compared(exact: np.ndarray, rounded: np.ndarray) -> dict[str, float]:
    """Returns the quantities listed in the module's docstring, for ``(batches, weights)``."""
    errors = rounded - exact
    mean = exact.mean(axis=0)
    mean_error = errors.mean(axis=0)
    spread = math.sqrt(np.square(errors - mean_error).sum() / max(len(errors) - 1, 1))

    return {
        "error": length(errors) / math.sqrt(len(errors)) / length(mean),
        "systematic": length(mean_error) / length(mean),
        "systematic_by_chance": spread / math.sqrt(len(errors)) / length(mean),
        "along_gradient": float(mean_error @ mean / (mean @ mean)),
    }


def measured(
    run_dir: Path, shard_dir: Path | None, checkpoint: str, count: int
) -> dict[str, Any]:
    """Returns the errors for each choice of layers in bfloat16, and the spread of batches."""
    trained = open_trained(run_dir)
    source = trained.source("train", shard_dir)
    model = trained.model(checkpoint).recogniser

    for dropout in model.dropouts:
        dropout.rate = 0.0

    batches = list(source.training(seed=1, epoch=1).take(count))
    layers = [
        layer
        for layer in [model.convolution, *model.normalisations, *model.recurrent]
        if layer.count_params()
    ]

    groups = {layer.name: [layer] for layer in layers}
    groups["all normalisations"] = list(model.normalisations)
    groups["all recurrent layers"] = list(model.recurrent)
    groups["all"] = layers

    set_precision(layers, "float32")
    exact = gradients(model, batches)
    result = {}

    for name, some in groups.items():
        set_precision(some, "mixed_bfloat16")
        result[name] = compared(exact, gradients(model, batches))
        set_precision(some, "float32")

    mean = exact.mean(axis=0)
    spread = math.sqrt(np.square(exact - mean).sum() / max(len(exact) - 1, 1))
    return {
        "batches": len(batches),
        "weights": exact.shape[1],
        "spread_of_batches": spread / length(mean),
        "layers": result,
    }


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run_dir", type=Path, required=True)
    parser.add_argument("--shard_dir", type=Path, help="the run's own by default")
    parser.add_argument("--checkpoint", default="last")
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    result = measured(args.run_dir, args.shard_dir, args.checkpoint, args.batches)
    print(
        "| layers in bfloat16 | error | systematic | by chance | along the gradient |"
    )
    print("|---|---:|---:|---:|---:|")

    for name, row in result["layers"].items():
        values = [f"{100 * value:.2f} %" for value in row.values()]
        print(f"| {name} | {' | '.join(values)} |")

    print(
        f"The gradients of single batches differ from the mean of all {result['batches']} by "
        f"{100 * result['spread_of_batches']:.0f} % of its length (root mean square)."
    )
    if args.out:
        result |= {"date": time.strftime("%Y-%m-%d"), "machine": describe_system()}
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
