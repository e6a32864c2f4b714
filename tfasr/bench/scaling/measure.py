"""Measures training steps on each number of devices, and computes efficiencies.

`tfasr.bench.scaling.workload` calls `measure` in a separate process for each number
of devices, and shows the `ScalingAnalysis`. Without GPUs, a processor is cut into
slices: that shows what distribution costs, not how it scales.
"""

import dataclasses
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.devices import (
    PROCESS,
    DeviceUse,
    num_gpus,
    powers_up_to,
    watched_devices,
)
from tfasr.bench.modules import (
    ModuleTimes,
    gpu_peak_bytes,
    module_times,
    replica_seconds,
)
from tfasr.data import shards
from tfasr.data.batches import Batch, BatchSource, PipelineConfig
from tfasr.data.features import FeatureConfig
from tfasr.data.packing import Packing
from tfasr.data.shards import ShardedSplit, ShardedUtterance
from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require, require_numbers
from tfasr.telemetry.machine import peak_memory_mib
from tfasr.training.build import build_model, make_strategy
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.memory import FRAMES_PER_LABEL, batch_spec, synthetic_batch
from tfasr.training.step import TimedStep

# Where batches come from: one that stays in memory, shards, or shards whose utterances
# are sorted by length while training waits.
IN_MEMORY = ""
FROM_SHARDS = "loader"
SORTING = "sorting loader"
# Per measurement, times the fraction and, in weak scaling, the devices.
STEPS = 180
# First steps, shown but left out of every result, as in the scaling study.
WARMUP_STEPS = 4
LOADERS = (IN_MEMORY, FROM_SHARDS, SORTING)


@config_class
class ScalingConfig:
    """Loads and sizes of the scaling measurement.

    Attributes:
        device_counts: numbers of devices, 1 among them; empty: 1, 2, 4, ... up to all
            GPUs, or 2 processor slices.
        weak_utterances: batch of each device in weak scaling.
        strong_utterances: global batch in strong scaling; divisible by each device
            count.
        frames: feature frames of each utterance.
    """

    device_counts: tuple[int, ...] = ()
    weak_utterances: int = 150
    strong_utterances: int = 160
    frames: int = 1670

    def check(self) -> None:
        require_numbers(self, "weak_utterances", "strong_utterances", "frames")
        counts = self.device_counts
        fits = all(n > 0 and self.strong_utterances % n == 0 for n in counts)
        rule = "positive divisors of strong_utterances, 1 among them"
        require(not counts or (fits and 1 in counts), self, "device_counts", rule)


@dataclass(frozen=True)
class Load:
    """What devices train on: a batch, where it comes from, and how many steps.

    Attributes:
        name: "weak" or "strong".
        per_device_batch: utterances.
        loader: one of `LOADERS`.
    """

    name: str
    per_device_batch: int
    steps: int
    loader: str = IN_MEMORY


@dataclass(frozen=True)
class ScalingTask:
    """What one process measures."""

    # How many share the work.
    devices: int
    # The model's config.
    model: Any
    features: FeatureConfig
    config: ScalingConfig
    # In the order of measuring.
    loads: tuple[Load, ...]


def default_counts(strong_utterances: int) -> list[int]:
    """Returns the numbers of devices to measure by default."""
    return [n for n in powers_up_to(num_gpus() or 2) if strong_utterances % n == 0]


def task_of(
    config: ScalingConfig,
    model,
    features,
    count: int,
    fraction: float,
) -> ScalingTask:
    """Returns the task of measuring this number of devices.

    Weak scaling takes longer on more devices, as each has the same batch and the steps
    are multiplied, too.
    """
    # At least one after the first ones.
    steps = max(WARMUP_STEPS + 1, round(STEPS * fraction))
    # As in the "scaling study" of docs/sources.md: 180 steps on one device, 720 on
    # four.
    loads = [
        Load("weak", config.weak_utterances, steps * count, loader)
        for loader in LOADERS
    ]
    loads.append(Load("strong", config.strong_utterances // count, steps))

    return ScalingTask(count, model, features, config, tuple(loads))


@dataclass(frozen=True)
class LoadTimes:
    """Seconds of every step of a load."""

    load: Load
    # Seconds of every step, without input wait.
    step_s: list[float]
    # Seconds waited before every step.
    input_wait_s: list[float]
    # Of the devices during training.
    use: list[DeviceUse] = field(default_factory=list)

    @property
    def whole_s(self) -> list[float]:
        """Seconds of every step, with the wait before it."""
        return [sum(both) for both in zip(self.step_s, self.input_wait_s, strict=True)]

    @property
    def steady_s(self) -> float:
        """Median seconds of a step after the first ones."""
        return statistics.median(self.whole_s[WARMUP_STEPS:])


@dataclass(frozen=True)
class ScalingAnswer:
    """All that one process measured.

    Attributes:
        kind: "GPU" or "logical CPU".
        peak_device_bytes: TensorFlow's, by device; None if unknown.
        peak_memory_mib: memory of the process.
        replica_s: seconds of the forward and backward pass together, ``(rounds,
            devices)``.
    """

    devices: int
    kind: str
    loads: list[LoadTimes]
    peak_device_bytes: list[int | None]
    peak_memory_mib: float | None
    modules: ModuleTimes
    replica_s: list[list[float]] = field(default_factory=list)

    def gpu_percents(self) -> list[float]:
        """Returns each GPU's mean use over all loads; [] without GPUs."""
        by_device: dict[str, list[float]] = {}
        for times in self.loads:
            for use in times.use:
                if use.device != PROCESS:
                    by_device.setdefault(use.device, []).extend(use.percent)

        return [statistics.fmean(percent) for percent in by_device.values() if percent]


def use_devices(count: int) -> str:
    """Sets up ``count`` devices before TensorFlow starts.

    Returns "GPU" or "logical CPU".

    Raises:
        UsageError: if there are fewer GPUs.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        slices = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        (processor,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(processor, slices)

        return "logical CPU"

    if count > len(gpus):
        raise UsageError(
            f"Device counts must not exceed the {len(gpus)} GPUs. Received: {count}. Bind fewer, "
            "as with --gin_binding 'ScalingConfig.device_counts = (1, 2)'."
        )

    tf.config.set_visible_devices(gpus[:count], "GPU")
    for gpu in gpus[:count]:
        tf.config.experimental.set_memory_growth(gpu, True)

    return "GPU"


# Global batches in an epoch.
_EPOCH_BATCHES = 4
# Utterances in a file.
_SHARD = 64
# Global batches that the sorting loader sorts together.
_SORTED_BATCHES = 4
# Measurements of each module.
_ROUNDS = 10


def measure(task: ScalingTask) -> ScalingAnswer:
    """Measures modules, each device's speed, and all loads, in this process."""
    # Hides TensorFlow's logs of every planned all-reduce, and its warning of many
    # functions.
    tf.get_logger().setLevel("ERROR")
    kind = use_devices(task.devices)
    process = _Process(task)
    # Comes first, so that each module's first steps are the process's first.
    batch = process.noise(task.config.weak_utterances)
    modules = module_times(
        process.model,
        batch,
        process.strategy,
        _ROUNDS,
        first_steps=WARMUP_STEPS,
    )
    replica_s = replica_seconds(process.model, batch, process.strategy, _ROUNDS)
    loads = [process.train(load) for load in task.loads]
    peaks = [gpu_peak_bytes(index) for index in range(task.devices)]

    return ScalingAnswer(
        task.devices,
        kind,
        loads,
        peaks,
        peak_memory_mib(),
        modules,
        replica_s,
    )


class _Process:
    """A model on all devices of this process, with its training step."""

    def __init__(self, task: ScalingTask):
        self._frames = task.config.frames
        self._labels = self._frames // FRAMES_PER_LABEL
        self._replicas = task.devices
        self._features = task.features
        training = TrainingConfig(num_replicas=self._replicas)
        self._experiment = Experiment(
            model=task.model,
            features=task.features,
            training=training,
        )
        self.strategy = make_strategy(self._replicas)

        with self.strategy.scope():
            self.model = build_model(self._experiment, Alphabet(), compiled=True)

        self._step = TimedStep(self.model)

    def train(self, load: Load) -> LoadTimes:
        """Trains a load's steps; returns their seconds and the devices' use."""
        with tempfile.TemporaryDirectory() as folder:
            dataset = self._batches(load, Path(folder))
            if self._replicas > 1:
                dataset = self.strategy.distribute_datasets_from_function(
                    lambda _: dataset
                )

            use: list[DeviceUse] = []
            iterator = iter(dataset)
            step_s = []
            wait_s = []

            with watched_devices(use):
                for _ in range(load.steps):
                    result = self._step(iterator)
                    step_s.append(result.train_s + result.compile_s)
                    wait_s.append(result.input_wait_s)

        return LoadTimes(load, step_s, wait_s, use)

    def noise(self, batch: int) -> dict[str, np.ndarray]:
        """Returns a random batch of full-length utterances."""
        tensors = synthetic_batch(self._experiment, batch, self._frames, self._labels)
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    def _batches(self, load: Load, folder: Path) -> tf.data.Dataset:
        """Returns a load's batches; shards are written to ``folder``."""
        if load.loader == IN_MEMORY:
            # The same shapes as of loaded batches, so the same graph.
            shape = [None, self._frames, self._features.num_features]
            spec = batch_spec(self._experiment) | {"features": tf.TensorSpec(shape)}
            # One batch, read again for each step.
            share = [self.noise(load.per_device_batch)]
            dataset = tf.data.Dataset.from_generator(
                lambda: share, output_signature=spec
            )

            return dataset.cache().repeat()

        global_batch = load.per_device_batch * self._replicas
        loaded = self._loaded(folder, global_batch, load.steps)
        if load.loader == SORTING:
            window = _SORTED_BATCHES * global_batch
            return sorted_by_length(loaded, window, load.per_device_batch)

        return loaded

    def _loaded(self, folder: Path, global_batch: int, steps: int) -> tf.data.Dataset:
        """Returns batches of shards, for at least so many steps."""
        split = write_noise_split(
            folder,
            self._experiment,
            utterances=_EPOCH_BATCHES * global_batch,
            frames=self._frames,
            labels=self._labels,
            spread=0.4,  # lengths differ, or there would be nothing to sort
        )

        pipeline = PipelineConfig(
            global_batch_size=global_batch,
            padding="fixed",
            max_frames=self._frames,
        )

        source = BatchSource(
            split,
            self._features,
            pipeline,
            None,
            split.feature_statistics(),
        )
        epoch = source.training(1, 1, replicas=self._replicas)

        return epoch.repeat(math.ceil(steps / _EPOCH_BATCHES))


def write_noise_split(
    folder: Path,
    experiment: Experiment,
    utterances: int,
    frames: int,
    labels: int,
    spread=0.0,
) -> ShardedSplit:
    """Writes `synthetic_batch`es as shards in the format of `tfasr prepare`.

    Lengths differ by the fraction ``spread``; all utterances have as many labels.

    Returns:
        The opened split.

    Raises:
        ValueError: if the shortest utterance has too few frames for its labels.
    """
    synthetic_batch(experiment, 1, round(frames * (1 - spread)), labels)
    packing = Packing(
        Alphabet(),
        experiment.features,
        shards.ShardConfig(),
        experiment.model,
    )
    listed = []
    files = []
    sums = shards.FeatureSums()
    names = ("features", "feature_lengths", "labels", "duration_s")

    for number, first in enumerate(range(0, utterances, _SHARD)):
        size = min(_SHARD, utterances - first)
        batch = synthetic_batch(
            experiment,
            size,
            frames,
            labels,
            length_spread=spread,
            seed=number,
        )
        rows = zip(*(batch[name].numpy() for name in names), strict=True)
        records = []

        for position, (noise, length, spelled, duration_s) in enumerate(rows, first):
            features = noise[:length].astype(np.float16)
            duration_s = float(duration_s)
            sums.add(features)
            records.append(
                shards.encode_record(features, spelled.tolist(), position, duration_s)
            )
            listed.append(
                ShardedUtterance(
                    position,
                    id=f"noise-{position}",
                    text="",
                    speaker="",
                    duration_s=duration_s,
                    frames=int(length),
                    frames_needed=labels,
                    content="0",
                )
            )

        path = folder / f"train-{number:05d}.tfrecord"
        shards.write_shard(path, records, packing.shards.compression)
        files.append({"file": path.name, "bytes": path.stat().st_size})

    index = {**packing.content(), "shards": files, "feature_sums": sums.to_json()}

    return ShardedSplit(folder, index, shards.HeldUtterances(listed))


def sorted_by_length(
    batches: tf.data.Dataset,
    window: int,
    size: int,
) -> tf.data.Dataset:
    """Sorts ``window`` utterances at a time by length, and batches them.

    Without prefetching, so that training waits for the sorting.
    """

    def in_order(utterances: Batch) -> Batch:
        order = tf.argsort(utterances["feature_lengths"])
        return {name: tf.gather(values, order) for name, values in utterances.items()}

    return batches.unbatch().batch(window).map(in_order).unbatch().batch(size)


def scaling_row(
    devices: int,
    times: LoadTimes,
    single_s: float | None,
) -> dict[str, Any]:
    """Returns a load's steps after the first `WARMUP_STEPS` as JSON values.

    An efficiency of 1 is ideal: as many times one device's throughput as there are
    devices.

    Args:
        devices: how many.
        times: of a load on them.
        single_s: the row's "single_s" on one device, None for that device's own row.
    """
    load = times.load
    steps_s = times.whole_s[WARMUP_STEPS:]
    step_s = times.steady_s
    mean_s = statistics.fmean(steps_s)
    # With a loader, steps are uneven, so rates use the mean instead of the median.
    counted_s = mean_s if load.loader else step_s
    single_s = single_s or counted_s
    speedup = single_s / counted_s * (devices if load.name == "weak" else 1)

    return {
        # "weak" (a full batch per device) or "strong" (one batch for all)
        "mode": load.name,
        "loader": load.loader,
        "devices": devices,
        "per_device_batch": load.per_device_batch,
        "steps": len(times.step_s),  # including the first ones
        "first_s": times.whole_s[:WARMUP_STEPS],
        "step_s": step_s,
        "mean_step_s": mean_s,
        "input_wait_s": statistics.fmean(times.input_wait_s[WARMUP_STEPS:]),
        "use_percent": {use.device: use.mean_percent for use in times.use},
        "single_s": single_s,
        "utterances_per_s": devices * load.per_device_batch / counted_s,
        "efficiency": speedup / devices,
        "speedup": speedup,
    }


@dataclass(frozen=True)
class ScalingAnalysis:
    """All rows and answers.

    Attributes:
        rows: of `scaling_row`: weak without loader, with loaders, then strong; each by
            devices.
        answers: one for each number of devices.
        config: sizes.
    """

    rows: list[dict[str, Any]]
    answers: list[ScalingAnswer]
    config: ScalingConfig

    @classmethod
    def of(
        cls,
        answers: Sequence[ScalingAnswer],
        config: ScalingConfig,
    ) -> "ScalingAnalysis":
        """Compares all answers with that of one device."""
        rows = []
        for kind in (*(("weak", loader) for loader in LOADERS), ("strong", IN_MEMORY)):
            # Of one device, which comes first.
            single_s: float | None = None
            for answer, times in ((a, times) for a in answers for times in a.loads):
                if (times.load.name, times.load.loader) == kind:
                    row = scaling_row(answer.devices, times, single_s)
                    rows.append(row)
                    single_s = rows[-1]["single_s"]

        return cls(rows, list(answers), config)

    @property
    def shared_cores(self) -> bool:
        """Whether devices are slices of one processor."""
        return self.answers[0].kind != "GPU"

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON values."""
        return {
            "rows": self.rows,
            "shared_cores": self.shared_cores,
            "processes": list(map(dataclasses.asdict, self.answers)),
        }
