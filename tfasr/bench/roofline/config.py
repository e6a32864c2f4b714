"""What the roofline measures."""

from typing import Literal

from tfasr.config import config_class, require


@config_class
class RooflineConfig:
    """What is measured.

    Attributes:
        thread_counts: threads of an operation for the ceilings; empty for 1, 2, 4 and so on up to
            all cores, or for the GPU alone where there is one.
        precisions: whose matmuls are ceilings.
        ceiling_s: seconds of measuring each ceiling.
        matmul_size: rows and columns; 0 for 2048, on a GPU 8192.
        memory_megabytes: of each array moved; 0 for four times the last cache, at least 256.
        batch: utterances of the model's step.
        frames: feature frames of each.
        labels: labels of each.
        precision: Keras's dtype policy of the model.
        rounds: repetitions of each module's time.
        profiled_steps: steps under TensorFlow's profiler; 0 for no kernels.
        small_units: of a second, small model, where the config can tell one; 0 for none.
    """

    thread_counts: tuple[int, ...] = ()
    precisions: tuple[Literal["float32", "mixed_bfloat16", "mixed_float16"], ...] = (
        "float32",
        "mixed_bfloat16",
        "mixed_float16",
    )
    ceiling_s: float = 2.0
    matmul_size: int = 0
    memory_megabytes: int = 0
    batch: int = 16
    frames: int = 600
    labels: int = 80
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    rounds: int = 5
    profiled_steps: int = 3
    small_units: int = 128

    def check(self) -> None:
        """Raises ValueError for sizes that measure nothing."""
        for field in ("ceiling_s", "batch", "frames", "labels", "rounds"):
            require(getattr(self, field) > 0, self, field, "positive")
        for field in ("matmul_size", "memory_megabytes", "profiled_steps", "small_units"):
            require(getattr(self, field) >= 0, self, field, "at least 0")
        require(all(n > 0 for n in self.thread_counts), self, "thread_counts", "positive")
        require(self.precision in self.precisions, self, "precisions", "with the model's precision")
