"""The measuring process of the scaling analysis: one number of devices, real training steps."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.probes.devices import peak_device_bytes, use_devices, watched_gpus
from tfasr.bench.probes.module_timing import module_seconds
from tfasr.bench.probes.noise import noise_batch, write_noise_split
from tfasr.bench.scaling.config import Load, ScalingTask
from tfasr.bench.scaling.replicas import all_reduce_seconds, replica_seconds
from tfasr.data.pipeline import Batch, BatchSource, PipelineConfig
from tfasr.telemetry.memory import peak_memory_mib
from tfasr.training.build import build_model, make_strategy
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.step import TimedStep

_LITTLE_BYTES = 4096


def measure(task: ScalingTask) -> dict[str, Any]:
    """Measures everything on one number of devices.

    Returns:
        ``loads`` with the seconds of every step, the first ones too; ``modules``, ``all_reduce``,
        ``replica_s``; ``gpus``, ``peak_device_bytes``, ``peak_memory_mib``, ``gradient_bytes``.
    """
    # TensorFlow tells of every all-reduce that it plans, and takes so many functions for a mistake.
    tf.get_logger().setLevel("ERROR")
    kind = use_devices(task.devices)
    process = _Process(task)
    gpus: list[dict[str, Any]] = []
    loads = []
    with watched_gpus(gpus):
        for load in task.loads:
            loads.append({**dataclasses.asdict(load), **process.train(load)})
    found = {"devices": task.devices, "kind": kind, "loads": loads, "gpus": gpus}
    found["peak_device_bytes"] = peak_device_bytes(task.devices)
    found["peak_memory_mib"] = peak_memory_mib()
    found["gradient_bytes"] = process.gradient_bytes
    if task.module_batch:
        found["modules"] = process.modules(task.module_batch, task.rounds)
        found["replica_s"] = process.replicas(task.module_batch, task.rounds)
    if task.all_reduce and task.devices > 1:
        # All gradients at once, and so little that only the latency is left.
        sizes = [_LITTLE_BYTES, process.gradient_bytes]
        found["all_reduce"] = all_reduce_seconds(process.strategy, sizes, task.rounds)
    return found


class _Process:
    """A model on this process's devices, and batches for it."""

    def __init__(self, task: ScalingTask):
        self._frames, self._labels = task.frames, task.labels
        self._replicas = task.devices
        self._experiment = Experiment(
            model=task.model,
            features=task.features,
            training=TrainingConfig(num_replicas=self._replicas, precision=task.precision),
        )
        self.strategy = make_strategy(self._replicas)
        with self.strategy.scope():
            self.model = build_model(self._experiment, Alphabet(), compiled=True)
        self._step = TimedStep(self.model)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of all trainable weights, in float32."""
        return 4 * sum(int(np.prod(weight.shape)) for weight in self.model.trainable_variables)

    def train(self, load: Load) -> dict[str, Any]:
        """Takes training steps as `tfasr train` does and returns the seconds of each."""
        steps = load.steps
        with tempfile.TemporaryDirectory() as folder:
            size = load.per_device_batch * self._replicas
            dataset = self._loaded(Path(folder), size, steps) if load.loader else self._held(size)
            if self._replicas > 1:
                dataset = self.strategy.distribute_datasets_from_function(lambda _: dataset)
            iterator, step_s, wait_s = iter(dataset), [], []
            for _ in range(steps):
                result = self._step(iterator)
                step_s.append(result.train_s + result.compile_s)
                wait_s.append(result.input_wait_s)
        return {"step_s": step_s, "input_wait_s": wait_s}

    def modules(self, batch: int, rounds: int) -> list[dict[str, Any]]:
        """Returns the seconds of every module, see `module_seconds`."""
        return module_seconds(self.model, self._noise(batch), self.strategy, rounds)

    def replicas(self, batch: int, rounds: int) -> list[float]:
        """Returns each device's median seconds of forward and backward pass, and all rounds'."""
        return replica_seconds(self.model, self._noise(batch), self.strategy, rounds)

    def _noise(self, batch: int) -> dict[str, np.ndarray]:
        sizes = {
            "num_features": self._experiment.features.num_features,
            "num_classes": Alphabet().num_classes,
        }
        return noise_batch(batch, self._frames, self._labels, **sizes)

    def _held(self, global_batch: int) -> tf.data.Dataset:
        """One batch in memory, again and again: nothing to load."""
        share = self._noise(global_batch // self._replicas)
        return tf.data.Dataset.from_tensors(share).map(self._as_loaded).cache().repeat()

    def _as_loaded(self, batch: Batch) -> Batch:
        """Forgets what shards do not tell either, so that one trace serves all batches."""
        shapes = {"features": [None, self._frames, batch["features"].shape[-1]]}
        shapes["labels"] = [None, None]
        return {
            name: tf.compat.v1.placeholder_with_default(value, shapes.get(name, [None]))
            for name, value in batch.items()
        }

    def _loaded(self, folder: Path, global_batch: int, steps: int) -> tf.data.Dataset:
        """Shards of as many utterances as an epoch of four batches has, read as in training."""
        utterances = global_batch * 4
        sizes = (utterances, self._frames, self._labels)
        split = write_noise_split(folder, *sizes, self._experiment.features, self._experiment.model)
        pipeline = PipelineConfig(
            global_batch_size=global_batch, padding="fixed", max_frames=self._frames
        )
        source = BatchSource(
            split, self._experiment.features, pipeline, None, split.feature_statistics()
        )
        epoch = source.training(1, 1, replicas=self._replicas)
        return epoch.repeat(-(-steps // 4))
