"""Times the LSTM layers of tfasr, stock Keras and PyTorch, forward and backward.

    python benchmarks/lstm.py --units 128 256 800 --batch 8 16 64 --frames 125 300

All get the same work in every round: float32 weights, a sequence as input, and
gradients of it and of all weights. The best round counts, which is least disturbed on a
shared machine. PyTorch is included if installed.
"""

import argparse
import json
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tfasr.layers.lstm import LSTM
from tfasr.telemetry.compiled import require_extensions

try:
    import torch
except ImportError:
    torch = None


def keras_step(
    layer: keras.layers.LSTM, inputs: np.ndarray, upstream: np.ndarray
) -> Callable:
    """Returns one forward and backward run of a Keras layer in a `tf.function`."""
    layer.build(inputs.shape)
    x = tf.constant(inputs)
    d_y = tf.constant(upstream)
    # Batch and time are unknown, as in training with batches of several lengths.
    signature = [
        tf.TensorSpec((None, None, size), tf.float32)
        for size in (x.shape[2], d_y.shape[2])
    ]

    @tf.function(input_signature=signature)
    def step(x, d_y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.cast(layer(x), "float32") * d_y)

        weights = [variable.value for variable in layer.trainable_variables]
        return tape.gradient(loss, [x, *weights])

    return lambda: [gradient.numpy() for gradient in step(x, d_y)]


def torch_step(
    units: int, inputs: np.ndarray, upstream: np.ndarray, dtype: str
) -> Callable:
    """Returns one forward and backward run of `torch.nn.LSTM`."""
    layer = torch.nn.LSTM(inputs.shape[2], units, batch_first=True)
    x = torch.tensor(inputs, requires_grad=True)
    d_y = torch.tensor(upstream)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed_bfloat16"):
            y, _ = layer(x)

        return torch.autograd.grad(y.float(), [x, *layer.parameters()], d_y)

    return step


def measure(
    steps: dict[str, Callable], rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the seconds of the first and of the best run of each, in alternation.

    A turn starts with a pause and a run that doesn't count, because the previous
    system's threads keep spinning for a while (PyTorch's doubled the next one's time)
    and caches are cold.
    """
    first_s = {}
    best_s = dict.fromkeys(steps, float("inf"))
    for name, step in steps.items():
        first_s[name] = seconds(step)

    for _ in range(rounds):
        for name, step in steps.items():
            time.sleep(0.05)
            step()
            best_s[name] = min(best_s[name], *(seconds(step) for _ in range(3)))

    return first_s, best_s


def seconds(step: Callable) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def row(units: int, batch: int, frames: int, dtype: str, rounds: int) -> dict:
    """Returns one size's measurements."""
    rng = np.random.default_rng(0)
    inputs, upstream = rng.normal(size=(2, batch, frames, units)).astype("float32")
    options = {"return_sequences": True, "dtype": dtype}
    ours = LSTM(units, **options)
    steps = {
        "tfasr": keras_step(ours, inputs, upstream),
        "stock_keras": keras_step(
            keras.layers.LSTM(units, **options), inputs, upstream
        ),
    }

    if torch is not None:
        steps["torch"] = torch_step(units, inputs, upstream, dtype)

    first_s, best_s = measure(steps, rounds)
    result = {
        "units": units,
        "batch": batch,
        "frames": frames,
        "dtype": dtype,
        "kernel": ours.last_kernel,
        "first_step_s": round(first_s["tfasr"], 3),
    }
    for name, seconds_ in best_s.items():
        result[f"{name}_ms"] = round(1000 * seconds_, 2)

    for peer in set(best_s) - {"tfasr"}:
        result[f"ratio_to_{peer}"] = round(best_s[peer] / best_s["tfasr"], 2)

    return result


def print_table(rows: list[dict]) -> None:
    columns = list(rows[0])
    cells = [columns, *([str(row[column]) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    for line in cells:
        print("  ".join(map(str.rjust, line, widths)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, nargs="+", default=[128, 256, 800])
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--frames", type=int, nargs="+", default=[125])
    parser.add_argument(
        "--dtype", nargs="+", default=["float32"], help="float32, mixed_bfloat16"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--format", choices=["table", "json"], default="table")
    flags = parser.parse_args()

    require_extensions()
    sizes = [
        (units, batch, frames, dtype)
        for dtype in flags.dtype
        for units in flags.units
        for batch in flags.batch
        for frames in flags.frames
    ]
    rows = [row(*size, flags.rounds) for size in sizes]

    if flags.format == "json":
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
