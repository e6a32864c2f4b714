"""Trains on two logical processors, as a process of its own: ``python -m ... FOLDER KIND``.

TensorFlow's collectives of two strategies in one process can collide, so each kind has
its own.
"""

import json
import sys
from pathlib import Path

import tensorflow as tf

# Before TensorFlow starts, and never in a process of the tests.
if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )

from tests.tones import SHARDS, tones_experiment  # noqa: E402
from tests.training import test_evaluation_callback as callback  # noqa: E402
from tfasr.training import swap  # noqa: E402
from tfasr.training.experiment import zeiler_adadelta  # noqa: E402
from tfasr.training.train import train  # noqa: E402

RUNS = {"swapped": ("swapped", 2), "shared": ("shared", 2), "alone": ("swapped", 1)}


def main(folder: Path, kind: str) -> None:
    """Trains the paper's layers and optimizer three ways, or Keras's own layers under
    ``fit``.
    """
    devices: dict[str, list[str]] = {}
    on_device = swap.Swap._on_device

    def watched(self):
        model = on_device(self)
        devices[current] = sorted({c.device for c in swap._components(model)})
        return model

    swap.Swap._on_device = watched
    current = kind
    for current, (placement, replicas) in RUNS.items() if kind == "train" else ():
        experiment = tones_experiment(
            evaluation_placement=placement,
            num_replicas=replicas,
            optimizer=zeiler_adadelta,
        )
        train(
            experiment, shard_dir=SHARDS, run_dir=folder / current, memory_probe=False
        )

    if kind == "fit":
        fit(folder)
    (folder / f"{kind}.json").write_text(json.dumps(devices))


def fit(folder: Path) -> None:
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    with tf.distribute.MirroredStrategy(names).scope():
        model = callback.stock_model()
    features, _, texts = callback.spoken(10, seed=2)
    # 9 and 1 for two devices
    odd = [(features[:9], texts[:9]), (features[9:], texts[9:])]
    callback.fitted(folder / "callback", epochs=2, model=model, validation=odd)
    callback.fitted(folder / "callback_alone", epochs=2, validation=odd)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
