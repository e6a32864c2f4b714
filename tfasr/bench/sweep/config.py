"""What the hardware sweep measures."""

from dataclasses import dataclass
from typing import Any

from tfasr.bench.sweep.axes_tables import RUNTIMES
from tfasr.config import config_class, require
from tfasr.models.recogniser import MODELS
from tfasr.precision import require_precision, swept


@config_class
class SweepConfig:
    """What is swept.

    Attributes:
        precisions: of `tfasr.precision.swept`, float32 among them.
        inference_batches: utterances of a batch in inference.
        training_batches: in training, as far as the memory allows.
        calls: batches measured in inference, for each size.
        steps: steps measured in training, for each size.
        warmup: calls and steps before those, for each size; left out.
        frames: feature frames of each utterance.
        labels: labels of each.
        memory_share: of the free memory that training may take.
        networks: kinds of network to compare, of `tfasr.models.recogniser.MODELS`; empty for none.
        network_units: width of all of them; 0 for each config's own sizes.
        runtimes: frameworks beneath Keras, and XLA, to compare them in, of `RUNTIMES`; those not
            installed are left out.
        lengths: feature frames to compare them at.
        axes_batch: utterances of a batch then.
        axes_steps: steps measured then, of each.
        cliff_tolerance: share by which an utterance of a larger batch may take longer before that
            counts as a cliff.
    """

    precisions: tuple[str, ...] = ("float32", "mixed_bfloat16", "mixed_float16", "int8")
    inference_batches: tuple[int, ...] = (1, 2, 3, 4)
    training_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    calls: int = 200
    steps: int = 10
    warmup: int = 4
    frames: int = 1000
    labels: int = 120
    memory_share: float = 0.8
    networks: tuple[str, ...] = ()
    network_units: int = 0
    runtimes: tuple[str, ...] = tuple(RUNTIMES)
    lengths: tuple[int, ...] = (250, 500, 1000, 2000)
    axes_batch: int = 8
    axes_steps: int = 10
    cliff_tolerance: float = 0.05

    def check(self) -> None:
        """Raises ValueError for values that sweep nothing."""
        require_precision(self, "precisions", swept())
        require("float32" in self.precisions, self, "precisions", "float32 and others")
        for field in ("inference_batches", "training_batches", "lengths"):
            sizes = getattr(self, field)
            require(all(n > 0 for n in sizes), self, field, "positive")
        known = all(name in MODELS for name in self.networks)
        require(known, self, "networks", f"of {MODELS.listed()}")
        known = set(self.runtimes) <= set(RUNTIMES) and bool(self.runtimes)
        require(known, self, "runtimes", f"some of {', '.join(RUNTIMES)}")
        require(bool(self.lengths), self, "lengths", "at least one")
        require(self.network_units >= 0, self, "network_units", "at least 0")
        require(bool(self.inference_batches), self, "inference_batches", "at least one")
        for field in (
            "calls",
            "steps",
            "warmup",
            "frames",
            "labels",
            "axes_batch",
            "axes_steps",
        ):
            require(getattr(self, field) > 0, self, field, "positive")
        require(0 < self.memory_share <= 1, self, "memory_share", "above 0 and at most 1")
        require(self.cliff_tolerance >= 0, self, "cliff_tolerance", "at least 0")


@dataclass(frozen=True)
class SweepTask:
    """What one process of the sweep measures.

    Attributes:
        model: its config.
        num_features: features per frame.
        precision: of `tfasr.precision.swept`.
        batches: numbers of utterances.
        calls: measured for each.
        sweep: the other sizes.
    """

    model: Any
    num_features: int
    precision: str
    batches: tuple[int, ...]
    calls: int
    sweep: SweepConfig
