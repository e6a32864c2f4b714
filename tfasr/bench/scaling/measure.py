"""The measuring process of the scaling analysis: one number of devices, real training steps."""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.probes.device_use import DeviceUse, watched_devices
from tfasr.bench.probes.devices import peak_device_bytes, use_devices
from tfasr.bench.probes.module_timing import module_times
from tfasr.bench.probes.noise import noise_batch, write_noise_split
from tfasr.bench.scaling.answer import LoadTimes, ScalingAnswer
from tfasr.bench.scaling.config import IN_MEMORY, SORTING, Load, ScalingTask
from tfasr.bench.scaling.replicas import all_reduce_seconds, replica_seconds
from tfasr.data.pipeline import Batch, BatchSource, PipelineConfig
from tfasr.telemetry.memory import peak_memory_mib
from tfasr.training.build import build_model, make_strategy
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.step import TimedStep

_LITTLE_BYTES = 4096
_EPOCH_BATCHES = 4
# Utterances of equal length need no sorting.
_LENGTH_SPREAD = 0.4


def measure(task: ScalingTask) -> ScalingAnswer:
    """Measures everything on one number of devices."""
    # TensorFlow tells of every all-reduce that it plans, and takes so many functions for a mistake.
    tf.get_logger().setLevel("ERROR")
    kind = use_devices(task.devices)
    process = _Process(task)
    modules, replica_s, all_reduce = None, [], []
    if task.module_batch:
        # Before all else: the first steps of each module are then the process's first.
        batch = process.noise(task.module_batch)
        timing = (process.model, batch, process.strategy, task.rounds)
        modules = module_times(*timing, first_steps=task.first_steps)
        replica_s = replica_seconds(*timing)
    loads = [process.train(load) for load in task.loads]
    if task.all_reduce and task.devices > 1:
        # All gradients at once, and so little that only the latency is left.
        sizes = [_LITTLE_BYTES, process.gradient_bytes]
        all_reduce = all_reduce_seconds(process.strategy, sizes, task.rounds)
    return ScalingAnswer(
        devices=task.devices,
        kind=kind,
        loads=loads,
        peak_device_bytes=peak_device_bytes(task.devices),
        peak_memory_mib=peak_memory_mib(),
        gradient_bytes=process.gradient_bytes,
        modules=modules,
        replica_s=replica_s,
        all_reduce=all_reduce,
    )


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

    def train(self, load: Load) -> LoadTimes:
        """Takes training steps as `tfasr train` does and returns the seconds of each."""
        with tempfile.TemporaryDirectory() as folder:
            dataset = self._batches(load, Path(folder))
            if self._replicas > 1:
                dataset = self.strategy.distribute_datasets_from_function(lambda _: dataset)
            use: list[DeviceUse] = []
            iterator, step_s, wait_s = iter(dataset), [], []
            with watched_devices(use):
                for _ in range(load.steps):
                    result = self._step(iterator)
                    step_s.append(result.train_s + result.compile_s)
                    wait_s.append(result.input_wait_s)
        return LoadTimes(load, step_s, wait_s, use)

    def noise(self, batch: int) -> dict[str, np.ndarray]:
        """Returns a batch of random features."""
        sizes = {
            "num_features": self._experiment.features.num_features,
            "num_classes": Alphabet().num_classes,
        }
        return noise_batch(batch, self._frames, self._labels, **sizes)

    def _batches(self, load: Load, folder: Path) -> tf.data.Dataset:
        """Returns batches for each device in turn, from where the load takes them."""
        if load.loader == IN_MEMORY:
            return self._held(load.per_device_batch)
        global_batch = load.per_device_batch * self._replicas
        loaded = self._loaded(folder, global_batch, load.steps)
        if load.loader == SORTING:
            window = load.sorted_batches * global_batch
            return sorted_by_length(loaded, window, load.per_device_batch)
        return loaded

    def _held(self, batch: int) -> tf.data.Dataset:
        """One batch in memory, again and again: nothing to load."""
        share = self.noise(batch)
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
        sizes = (_EPOCH_BATCHES * global_batch, self._frames, self._labels)
        split = write_noise_split(
            folder,
            *sizes,
            self._experiment.features,
            self._experiment.model,
            length_spread=_LENGTH_SPREAD,
        )
        pipeline = PipelineConfig(
            global_batch_size=global_batch, padding="fixed", max_frames=self._frames
        )
        source = BatchSource(
            split, self._experiment.features, pipeline, None, split.feature_statistics()
        )
        epoch = source.training(1, 1, replicas=self._replicas)
        return epoch.repeat(-(-steps // _EPOCH_BATCHES))


def sorted_by_length(batches: tf.data.Dataset, window: int, size: int) -> tf.data.Dataset:
    """Sorts so many utterances at a time by length, shortest first, and hands them out in batches.

    Nothing of it is done ahead: whoever asks for a batch waits for the sorting.
    """

    def in_order(utterances: Batch) -> Batch:
        order = tf.argsort(utterances["feature_lengths"])
        return {name: tf.gather(values, order) for name, values in utterances.items()}

    return batches.unbatch().batch(window).map(in_order).unbatch().batch(size)
