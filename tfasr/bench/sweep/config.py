"""What the hardware sweep measures."""

from dataclasses import dataclass
from typing import Any, Literal

from tfasr.config import config_class, require

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "litert_float32", "int8")
"""Keras's dtype policies; then LiteRT with float32 and with 8-bit weights, for inference alone."""

Precision = Literal["float32", "mixed_bfloat16", "mixed_float16", "litert_float32", "int8"]


@config_class
class SweepConfig:
    """What is swept.

    Attributes:
        precisions: of `PRECISIONS`, float32 among them.
        inference_batches: utterances of a batch in inference.
        training_batches: in training, as far as the memory allows.
        calls: batches measured in inference, for each size.
        steps: steps measured in training, for each size.
        warmup: calls and steps before those, for each size; left out.
        frames: feature frames of each utterance.
        labels: labels of each.
        memory_share: of the free memory that training may take.
        cliff_tolerance: share by which an utterance of a larger batch may take longer before that
            counts as a cliff.
    """

    precisions: tuple[Precision, ...] = ("float32", "mixed_bfloat16", "mixed_float16", "int8")
    inference_batches: tuple[int, ...] = (1, 2, 3, 4)
    training_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    calls: int = 200
    steps: int = 10
    warmup: int = 4
    frames: int = 1000
    labels: int = 120
    memory_share: float = 0.8
    cliff_tolerance: float = 0.05

    def check(self) -> None:
        """Raises ValueError for values that sweep nothing."""
        require("float32" in self.precisions, self, "precisions", "float32 and others")
        for field in ("inference_batches", "training_batches"):
            sizes = getattr(self, field)
            require(all(n > 0 for n in sizes), self, field, "positive")
        require(bool(self.inference_batches), self, "inference_batches", "at least one")
        for field in ("calls", "steps", "warmup", "frames", "labels"):
            require(getattr(self, field) > 0, self, field, "positive")
        require(0 < self.memory_share <= 1, self, "memory_share", "above 0 and at most 1")
        require(self.cliff_tolerance >= 0, self, "cliff_tolerance", "at least 0")


@dataclass(frozen=True)
class SweepTask:
    """What one process of the sweep measures.

    Attributes:
        model: its config.
        num_features: features per frame.
        precision: of `PRECISIONS`.
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
