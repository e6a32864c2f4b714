"""What the roofline measures."""

from tfasr.config import config_class, require
from tfasr.precision import multiplied, require_precision, trained


@config_class
class RooflineConfig:
    """What is measured.

    Attributes:
        thread_counts: threads of an operation for the ceilings; empty for 1, 2, 4 and so on up to
            all cores, or for the GPU alone where there is one.
        precisions: whose matmuls are ceilings, of `tfasr.precision.multiplied`.
        ceiling_s: seconds of measuring each ceiling.
        matmul_size: rows and columns; 0 for 2048, on a GPU 8192.
        memory_megabytes: of each array moved; 0 for four times the last cache, at least 256.
        sweep_flops: operations for each element of an array, 1 or even numbers: ERT's sweep of
            the intensity; empty for none.
        sweep_precisions: of the elements, of `tfasr.precision.multiplied`.
        sweep_s: seconds of measuring each intensity.
        specified_gflops: precisions and GFLOP/s that the specification states; empty to reckon
            those of a processor from its cores, clock and vectors.
        specified_gigabytes_per_s: of memory, as specified; 0 where that is not known.
        batch: utterances of the model's step.
        frames: feature frames of each.
        labels: labels of each.
        precision: Keras's dtype policy of the model.
        rounds: repetitions of each module's time.
        profiled_steps: steps under TensorFlow's profiler; 0 for no kernels.
        small_units: of a second, small model, where the config can tell one; 0 for none.
        spotter_batch: utterances of the keyword spotter's step, whose kernels TensorFlow's and
            PyTorch's profilers tell; 0 leaves it out.
    """

    thread_counts: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ("float32", "mixed_bfloat16", "mixed_float16")
    ceiling_s: float = 2.0
    matmul_size: int = 0
    memory_megabytes: int = 0
    sweep_flops: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    sweep_precisions: tuple[str, ...] = ("float32", "float64")
    sweep_s: float = 0.3
    specified_gflops: tuple[tuple[str, float], ...] = ()
    specified_gigabytes_per_s: float = 0.0
    batch: int = 16
    frames: int = 600
    labels: int = 80
    precision: str = "float32"
    rounds: int = 5
    profiled_steps: int = 3
    small_units: int = 128
    spotter_batch: int = 64

    def check(self) -> None:
        """Raises ValueError for sizes that measure nothing."""
        for field in ("ceiling_s", "sweep_s", "batch", "frames", "labels", "rounds"):
            require(getattr(self, field) > 0, self, field, "positive")
        for field in ("matmul_size", "memory_megabytes", "profiled_steps", "small_units"):
            require(getattr(self, field) >= 0, self, field, "at least 0")
        for field in ("spotter_batch", "specified_gigabytes_per_s"):
            require(getattr(self, field) >= 0, self, field, "at least 0")
        require(all(n > 0 for n in self.thread_counts), self, "thread_counts", "positive")
        pairs = all(n == 1 or (n > 0 and n % 2 == 0) for n in self.sweep_flops)
        require(pairs, self, "sweep_flops", "1 or even: a multiplication and an addition are two")
        known = set(multiplied())
        stated = all(name in known and rate > 0 for name, rate in self.specified_gflops)
        rule = f"pairs of one of {', '.join(multiplied())} and a positive rate"
        require(stated, self, "specified_gflops", rule)
        require_precision(self, "precisions", multiplied())
        require_precision(self, "sweep_precisions", multiplied())
        require_precision(self, "precision", trained())
        require(self.precision in self.precisions, self, "precisions", "with the model's precision")
