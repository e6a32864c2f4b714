"""What `MirroredStrategy` costs a training step on one device: both ways in turns.

    python benchmarks/mirrored_step.py --gin_file an4.gin

It prints the fastest and the median time of each, and the median ratio of neighbours.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.training.build import build_model, make_strategy
from tfasr.training.experiment import Experiment
from tfasr.training.from_gin import load_config

LABELS = 12  # characters of each utterance
STEPS = 3  # between two readings of the clocks


def noise_batch(experiment: Experiment, frames: int) -> dict[str, tf.Tensor]:
    """Returns a batch of noise, as `tfasr.data.batches.BatchSource` makes batches."""
    rng = np.random.default_rng(0)
    utterances = experiment.pipeline.global_batch_size
    shape = (utterances, frames, experiment.features.num_features)

    return {
        "features": tf.constant(rng.normal(size=shape), tf.float32),
        "feature_lengths": tf.fill([utterances], frames),
        "labels": tf.constant(rng.integers(0, 26, (utterances, LABELS)), tf.int32),
        "label_lengths": tf.fill([utterances], LABELS),
        "positions": tf.range(utterances, dtype=tf.int64),
        "duration_s": tf.fill([utterances], frames / 100),
    }


def step_under(
    strategy: tf.distribute.Strategy,
    experiment: Experiment,
    batch: dict[str, tf.Tensor],
) -> Callable[[], None]:
    """Returns a function that takes a training step, which is traced already."""
    with strategy.scope():
        model = build_model(experiment, Alphabet(), compiled=True)

    spec = {
        name: tf.TensorSpec(value.shape, value.dtype) for name, value in batch.items()
    }
    traced = model.global_step(spec)

    def step() -> None:
        for value in traced(batch).values():
            value.numpy()

    step()
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gin_file", default="an4.gin")
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()

    experiment = load_config(arguments.gin_file).experiment
    batch = noise_batch(experiment, arguments.frames)
    steps = {
        "default": step_under(tf.distribute.get_strategy(), experiment, batch),
        "mirrored": step_under(make_strategy(1), experiment, batch),
    }

    clocks = {"wall": time.perf_counter, "processor": time.process_time}
    took_ms = {clock: {name: [] for name in steps} for clock in clocks}
    for turn in range(arguments.rounds):
        names = list(steps)
        if turn % 2 == 0:
            names.reverse()

        for name in names:
            began = {clock: now() for clock, now in clocks.items()}
            for _ in range(STEPS):
                steps[name]()

            for clock, now in clocks.items():
                took_ms[clock][name].append(1000 * (now() - began[clock]) / STEPS)

    for clock, of_steps in took_ms.items():
        for name, times in of_steps.items():
            print(
                f"{clock:9} {name:8} fastest {min(times):8.2f} ms, "
                f"median {np.median(times):8.2f}"
            )

        ratios = np.divide(of_steps["mirrored"], of_steps["default"])
        print(f"{clock:9} mirrored / default, median of pairs: {np.median(ratios):.4f}")


if __name__ == "__main__":
    main()
