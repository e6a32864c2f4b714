"""What the scaling analysis runs."""

from dataclasses import dataclass
from typing import Any

from tfasr.config import config_class, require
from tfasr.data.features import FeatureConfig
from tfasr.precision import require_precision, trained

IN_MEMORY, FROM_SHARDS, SORTING = "", "loader", "sorting loader"
LOADERS = (IN_MEMORY, FROM_SHARDS, SORTING)
"""Where batches come from: one lies in memory; shards are read as in training; they are read and
sorted by length while training waits."""


@config_class
class ScalingConfig:
    """What is scaled, over what.

    Attributes:
        device_counts: numbers of devices, 1 among them; empty for 1, 2, 4 and so on up to all
            GPUs, and for 1 and 2 slices of the processor where there is none.
        weak_utterances: of the batch on each device in weak scaling.
        strong_utterances: of the global batch in strong scaling; a multiple of each count.
        steps: training steps of every measurement, for each device: weak scaling on 4 devices
            takes 4 times as many.
        warmup_steps: the first of them, shown and left out of every figure.
        frames: feature frames of each utterance.
        labels: labels of each.
        precision: Keras's dtype policy of the layers.
        loader: whether weak scaling is also measured with batches read from shards.
        sorting_loader: whether it is also measured with batches that the loader has sorted by
            length, some of them at a time, while training waits.
        sorted_batches: global batches that it sorts together.
        module_rounds: repetitions of each module's time; 0 leaves modules out.
        link_gigabytes_per_s: of each device's link, for the prediction; 0 to measure all-reduces
            over the fewest devices above 1.
        link_latency_us: of a message on it, where the bandwidth is given.
        overlap: share of the all-reduce hidden behind the backward pass in the prediction.
        predicted_devices: further numbers of devices to predict.
    """

    device_counts: tuple[int, ...] = ()
    weak_utterances: int = 150
    strong_utterances: int = 160
    steps: int = 180
    warmup_steps: int = 4
    frames: int = 1670
    labels: int = 200
    precision: str = "float32"
    loader: bool = True
    sorting_loader: bool = True
    sorted_batches: int = 4
    module_rounds: int = 10
    link_gigabytes_per_s: float = 0.0
    link_latency_us: float = 0.0
    overlap: float = 0.0
    predicted_devices: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)

    def check(self) -> None:
        """Raises ValueError for sizes that scale nothing."""
        sizes = ("weak_utterances", "strong_utterances", "frames", "labels", "sorted_batches")
        for field in sizes:
            require(getattr(self, field) > 0, self, field, "positive")
        require(self.warmup_steps > 0, self, "warmup_steps", "at least 1: the first step compiles")
        require_precision(self, "precision", trained())
        require(self.steps > self.warmup_steps, self, "steps", "more than the warm-up steps")
        counts = self.device_counts
        fits = all(n > 0 and self.strong_utterances % n == 0 for n in counts)
        rule = "positive divisors of strong_utterances, 1 among them"
        require(not counts or (fits and 1 in counts), self, "device_counts", rule)
        require(all(n > 0 for n in self.predicted_devices), self, "predicted_devices", "positive")
        require(0 <= self.overlap <= 1, self, "overlap", "in 0..1")
        for field in ("module_rounds", "link_gigabytes_per_s", "link_latency_us"):
            require(getattr(self, field) >= 0, self, field, "at least 0")


@dataclass(frozen=True)
class Load:
    """Training steps on batches of one size.

    Attributes:
        name: "weak", "strong" or "single".
        per_device_batch: utterances on each device.
        steps: how many.
        loader: of `LOADERS`.
        sorted_batches: global batches that are sorted together, by a loader that sorts.
    """

    name: str
    per_device_batch: int
    steps: int
    loader: str = IN_MEMORY
    sorted_batches: int = 0


@dataclass(frozen=True)
class ScalingTask:
    """What one process measures: everything on one number of devices.

    Attributes:
        devices: how many share the work.
        model: its config.
        features: what it takes.
        precision: Keras's dtype policy.
        frames: feature frames of each utterance.
        labels: labels of each.
        loads: in their order.
        module_batch: utterances of the batch on which modules are timed; 0 for no times.
        rounds: repetitions of each of those times.
        first_steps: steps of the modules that are left out.
        all_reduce: whether it is timed.
    """

    devices: int
    model: Any
    features: FeatureConfig
    precision: str
    frames: int
    labels: int
    loads: tuple[Load, ...]
    module_batch: int
    rounds: int
    first_steps: int
    all_reduce: bool
