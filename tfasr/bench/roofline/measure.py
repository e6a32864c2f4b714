"""Measures a machine's performance ceilings, and how close models' steps come to them.

`tfasr.bench.roofline.workload` calls these functions, the measurements in processes of
their own, and shows a `RooflineAnalysis`. Ceilings are large matrix products and
bandwidths; a model's points are its operations and bytes, counted from shapes, over its
measured seconds.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.modules import (
    ModuleSeconds,
    Replicas,
    fastest_s,
    matmul_ceiling,
    module_times,
)
from tfasr.bench.steppers import Kernel, Kernels, profile
from tfasr.data.features import FeatureConfig
from tfasr.display.table import plural
from tfasr.kit.config import (
    PRECISIONS,
    config_class,
    multiplied,
    require,
    require_numbers,
)
from tfasr.kit.process import usable_cores
from tfasr.models import model as recogniser
from tfasr.models.costs import ModuleCost, total_cost
from tfasr.models.keyword_spotter import KeywordSpotterConfig, step_cost
from tfasr.telemetry.machine import ROOT, describe_processor, text
from tfasr.training.build import build_model, make_strategy
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.memory import synthetic_batch

# The precisions of the intensity sweep's elements.
SWEEP_PRECISIONS = ("float32", "float64")
# Precisions of the ceilings.
COMPARED = ("float64", "float32", "mixed_bfloat16", "mixed_float16")
# Keras's dtype policy of the models.
PRECISION = "float32"
# How often each module is measured.
ROUNDS = 5
# Seconds to measure each ceiling.
CEILING_S = 1.0
# Steps under the framework's profiler.
PROFILED_STEPS = 3
# Utterances in the keyword spotter's profiled step.
SPOTTER_BATCH = 64
# Seconds to measure each intensity, and all experiments of a size.
SWEEP_S = 0.3


@config_class
class RooflineConfig:
    """Sizes of all measurements; the sweeps' have the names of ERT, as in the talk.

    Attributes:
        thread_counts: of the CPU; empty: powers of 2 and all cores (GPU: all).
        sweep_flops: operations per element of the intensity sweep, 1 or even numbers.
        working_set_bytes: array sizes, as from ERT_WORKING_SET_MIN to ERT_MEMORY_MAX of
            the Empirical Roofline Toolkit; () for powers of 4 from 4 KiB to the
            memory's array.
        experiments: repetitions of the working-set sweep (ERT_NUM_EXPERIMENTS).
        specified_gflops: GFLOP/s by precision; empty to compute a processor's from
            cores, clock and vectors.
        specified_gigabytes_per_s: bandwidth of memory; 0 if unknown.
        batch: utterances in the model's step.
        frames: feature frames of each utterance.
        reference_gflops: other machines to draw for comparison: (name, precision,
            GFLOP/s).
    """

    thread_counts: tuple[int, ...] = ()
    sweep_flops: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    working_set_bytes: tuple[int, ...] = ()
    experiments: int = 5
    specified_gflops: tuple[tuple[str, float], ...] = ()
    specified_gigabytes_per_s: float = 0.0
    batch: int = 16
    frames: int = 600
    reference_gflops: tuple[tuple[str, str, float], ...] = ()

    def check(self) -> None:
        require_numbers(self, "thread_counts", "experiments", "batch", "frames")
        pairs = all(n == 1 or (n > 0 and n % 2 == 0) for n in self.sweep_flops)
        require(
            pairs,
            self,
            "sweep_flops",
            "1 or even: a multiplication and an addition are two",
        )

        require(
            all(n >= 8 for n in self.working_set_bytes),
            self,
            "working_set_bytes",
            "8 or more",
        )
        require_numbers(self, "specified_gigabytes_per_s", zero=True)
        precisions = set(multiplied())
        stated = all(
            name in precisions and rate > 0 for name, rate in self.specified_gflops
        )
        rule = f"pairs of one of {', '.join(multiplied())} and a positive rate"
        require(stated, self, "specified_gflops", rule)
        stated = all(
            name in precisions and rate > 0 for _, name, rate in self.reference_gflops
        )
        require(stated, self, "reference_gflops", f"a name and {rule}")


# float32 numbers; three such pieces fit into a core's second-level cache
_PIECE = 32 * 1024
# Fewest bytes that a thread moves in a round, as starting it takes as long as moving
# 100 KB.
_ROUND_BYTES = 32 * 1024 * 1024


def cache_bytes() -> dict[int, int]:
    """Returns the bytes of the first core's data caches by level, or {} if unknown."""
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, size, level = (
            text(folder / name).strip() for name in ("type", "size", "level")
        )
        # The others are for instructions.
        if kind in ("Data", "Unified") and size.endswith("K") and level.isdigit():
            sizes[int(level)] = int(size[:-1]) * 1024

    return sizes


def cpu_bandwidth(array_bytes: int, threads: int, seconds: float) -> dict[str, float]:
    """Measures copy and triad on float32 arrays; returns bytes per second of each.

    ``seconds`` is how long each is repeated.

    Each thread has separate slices; the best round counts. The triad ``a = b + s * c``
    needs two passes. It works in small pieces, which the second finds in a cache; so
    memory gets two reads and one write, as in STREAM.

    Source: J. McCalpin, Memory Bandwidth and Machine Balance in High Performance
    Computers, 1995.
    """
    # Of each thread's slices.
    numbers = max(array_bytes // 4 // threads, 1)
    values = range(3)
    arrays = [[np.full(numbers, n, np.float32) for n in values] for _ in range(threads)]
    times = math.ceil(_ROUND_BYTES / (4 * numbers))
    moved = 4 * numbers * threads * times

    with ThreadPoolExecutor(threads) as pool:

        def pass_s(work: Callable) -> float:
            def repeated(slices: list) -> None:
                for _ in range(times):
                    work(*slices)

            return fastest_s(lambda: list(pool.map(repeated, arrays)), seconds)

        copy_s = pass_s(lambda a, b, _: np.copyto(a, b))
        return {"copy": 2 * moved / copy_s, "triad": 3 * moved / pass_s(_triad)}


def gpu_bandwidth(array_bytes: int, seconds: float) -> dict[str, float]:
    """Measures scaling (instead of copy) and triad on the first GPU.

    TensorFlow would leave out a mere copy. See `cpu_bandwidth`.
    """
    b, c = (tf.fill([max(array_bytes // 4, 1)], value) for value in (1.0, 2.0))
    works = {
        "copy": (tf.function(lambda: 3.0 * c), 2),
        "triad": (tf.function(lambda: b + 3.0 * c, jit_compile=True), 3),
    }

    def once(work: Callable) -> None:
        work()
        tf.test.experimental.sync_devices()

    return {
        name: moves * array_bytes / fastest_s(partial(once, work), seconds)
        for name, (work, moves) in works.items()
    }


def _triad(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Computes ``a = 3 c + b`` piece by piece."""
    for start in range(0, len(a), _PIECE):
        piece = slice(start, start + _PIECE)
        np.multiply(c[piece], np.float32(3), out=a[piece])
        np.add(a[piece], b[piece], out=a[piece])


@dataclass(frozen=True)
class WorkingSet:
    """Bandwidth for arrays of one size.

    Attributes:
        size_bytes: of the array that all threads together read and write repeatedly.
        bytes_per_s: the fastest call of each experiment.
    """

    size_bytes: int
    bytes_per_s: list[float]


def working_set_sweep(
    sizes: Sequence[int],
    threads: int,
    experiments: int,
    seconds: float,
) -> list[WorkingSet]:
    """Measures the bandwidth for arrays of each size.

    An experiment measures each size once, so that a slow minute doesn't hit one size.

    Args:
        sizes: bytes of the arrays, growing.
        threads: which share each array.
        experiments: how often to repeat the sweep.
        seconds: to measure each size in an experiment.
    """
    rates: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(experiments):
        for size in sizes:
            (point,) = intensity_sweep("float32", "", size, (1,), threads, seconds)
            rates[size].append(point.bytes_per_s)

    return [WorkingSet(size, rates[size]) for size in sizes]


# Times that a pass moves an element.
_READ_AND_WRITTEN = 2
# Independent, to keep two units busy whose results take four cycles.
_CHAINS = 8


@dataclass(frozen=True)
class IntensityPoint:
    """Rates of the sweep's kernel at one number of operations per element.

    Attributes:
        precision: a name in `tfasr.kit.config.PRECISIONS`.
        place: where the array fits: "memory" or a cache.
        flops_per_s: in the fastest call.
        bytes_per_s: read and written in that call.
    """

    precision: str
    place: str
    flops_per_element: int
    flops_per_s: float
    bytes_per_s: float

    @property
    def flops_per_byte(self) -> float:
        """Operations per byte moved."""
        return self.flops_per_s / self.bytes_per_s


def intensity_sweep(
    precision: str,
    place: str,
    array_bytes: int,
    operations: Sequence[int],
    threads: int,
    seconds,
) -> list[IntensityPoint]:
    """Measures operations and bytes per second for numbers of operations per element.

    The kernel, in place, is ``x = a x`` for one operation; for even numbers it repeats
    ``x = a x + b``. XLA compiles each pass into one loop. Threads share the
    ``array_bytes``.

    Args:
        precision: of the elements.
        place: where the array fits, for the result.
        array_bytes: of the array.
        operations: per element.
        threads: each with a slice.
        seconds: to measure each number.
    """
    dtype = tf.dtypes.as_dtype(PRECISIONS[precision].dtype)
    elements = max(array_bytes // dtype.size // threads, 1)
    slices = [tf.fill([elements], tf.constant(0.5, dtype)) for _ in range(threads)]
    # Enough passes per call to make the call itself and the copy of its input
    # negligible.
    passes = max(16, 64 * 2**20 // (_READ_AND_WRITTEN * elements * dtype.size))
    points = []

    with ThreadPoolExecutor(threads) as pool:
        for flops in operations:
            work = _kernel(flops)

            def call(work=work) -> None:
                list(pool.map(lambda values: work(values, passes).numpy(), slices))

            work(slices[0], 1)  # traces here, not once in each thread
            per_s = passes * elements * threads / fastest_s(call, seconds)
            points.append(
                IntensityPoint(
                    precision,
                    place,
                    flops,
                    flops_per_s=per_s * flops,
                    bytes_per_s=per_s * _READ_AND_WRITTEN * dtype.size,
                )
            )

    return points


def _kernel(flops: int) -> Callable[[tf.Tensor, int], tf.Tensor]:
    """Returns a function that passes over an array so many times."""

    @tf.function(jit_compile=True)
    def passes(values: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        # If count were a constant, the compiler could remove passes.
        _, values = tf.while_loop(
            lambda number, _: number < count,
            lambda number, values: (number + 1, _worked_through(values, flops)),
            (tf.constant(0), values),
        )
        return values[0]

    return lambda values, count: passes(values, tf.constant(count))


def _worked_through(values: tf.Tensor, flops: int) -> tf.Tensor:
    """Returns each element after ``flops`` operations, in independent chains if many."""

    def constant(value: float) -> tf.Tensor:
        return tf.constant(value, values.dtype)

    def once(values: tf.Tensor, addend: float = 0.001) -> tf.Tensor:
        return values * constant(0.8) + constant(addend)

    if flops == 1:
        return values * constant(0.999)

    pairs = flops // 2
    chains = [values]
    if pairs >= 2 * _CHAINS:
        chains = [once(values, 0.001 * (number + 1)) for number in range(_CHAINS)]
        pairs -= 2 * _CHAINS - 1  # begin the chains and sum them

    for _ in range(pairs // len(chains)):
        chains = [once(chain) for chain in chains]

    values = chains[0]
    for chain in chains[1:]:
        values = values * constant(0.1) + chain

    for _ in range(pairs % len(chains)):
        values = once(values)

    return values


# 32-bit numbers in a vector.
_LANES = {"AVX-512": 16, "AVX2": 8, "NEON": 4}
# Units in a core that each multiply and add a vector per cycle.
_UNITS = 2


@dataclass(frozen=True)
class Specified:
    """What a machine could do by its data sheet.

    Attributes:
        flops_per_s: by precision, if known.
        bytes_per_s: of memory, if known.
        source: says where flops_per_s comes from.
    """

    flops_per_s: dict[str, float]
    bytes_per_s: float | None
    source: str


def specified(
    gflops: Sequence[tuple[str, float]],
    gigabytes_per_s: float,
    *,
    on_gpu: bool,
    root: Path = ROOT,
) -> Specified:
    """Returns the configured rates or, for a processor, estimates from Linux's data.

    Args:
        gflops: configured GFLOP/s, by precision.
        gigabytes_per_s: of memory; 0 if unknown.
        on_gpu: whether the ceilings are those of a GPU.
        root: where Linux's files are.
    """
    bytes_per_s = 1e9 * gigabytes_per_s or None
    if gflops:
        rates = {precision: 1e9 * rate for precision, rate in gflops}
        return Specified(rates, bytes_per_s, "configured")

    if on_gpu:
        return Specified({}, bytes_per_s, "n/a: set RooflineConfig.specified_gflops")

    rate, source = _of_processor(root)
    if rate is None:
        return Specified({}, bytes_per_s, source)

    rates = {"float32": rate, "float64": rate / 2}
    return Specified(rates, bytes_per_s, source)


def _of_processor(root: Path) -> tuple[float | None, str]:
    """Computes operations per second from cores, clock and vectors; says how."""
    processor = describe_processor(root)
    # Of the widest instructions that the processor has.
    lanes = max((_LANES.get(name, 0) for name in processor["instructions"]), default=0)
    shown = _of_cpuinfo(root, "cpu MHz")
    mhz = processor["max_mhz"]

    if not mhz and shown.replace(".", "", 1).isdigit():
        mhz = float(shown)
    if not lanes or not mhz:
        return None, "n/a: Linux reports no clock rate or no vector instructions"

    vendor = _of_cpuinfo(root, "vendor_id")
    family = _of_cpuinfo(root, "cpu family")
    # AMD's processors before Zen 5 process 512-bit vectors in halves.
    if vendor == "AuthenticAMD" and family.isdigit() and int(family) < 26:
        lanes = min(lanes, _LANES["AVX2"])

    cores = min(processor["cores"] or usable_cores(), usable_cores())
    per_cycle = 2 * _UNITS * lanes  # a multiplication and an addition
    source = (
        f"computed: {plural(cores, 'core')} x {mhz / 1000:.4g} GHz x {per_cycle} "
        f"operations a cycle ({_UNITS} units that multiply and add {lanes} numbers of 32 "
        "bits; half as many of 64)"
    )

    if not processor["max_mhz"]:
        source += (
            "; Linux reports this clock rate, but the processor may reach a higher one"
        )

    return cores * mhz * 1e6 * per_cycle, source


def _of_cpuinfo(root: Path, key: str) -> str:
    """Returns a value of /proc/cpuinfo for the first core; "" if it isn't there."""
    lines = (
        line.partition(":") for line in text(root / "proc" / "cpuinfo").splitlines()
    )
    return next((value.strip() for name, _, value in lines if name.strip() == key), "")


@dataclass(frozen=True)
class Ceilings:
    """What a machine reached with one number of threads.

    Attributes:
        threads: used by each operation.
        device: "GPU" or "CPU".
        flops_per_s: of large matrix products, by precision.
        bytes_per_s: of "copy" and "triad", by place (memory or a cache).
        sweep: of `intensity_sweep`.
        working_sets: by growing size.
    """

    threads: int
    device: str
    flops_per_s: dict[str, float]
    bytes_per_s: dict[str, dict[str, float]]
    sweep: list[IntensityPoint] = field(default_factory=list)
    working_sets: list[WorkingSet] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Number of threads, or "GPU", for tables."""
        if self.device == "GPU":
            return "GPU"

        return str(self.threads)

    @property
    def memory(self) -> float:
        """Bytes per second of memory, the faster of copy and triad."""
        return max(self.bytes_per_s["memory"].values())


@dataclass(frozen=True)
class ModelMeasured:
    """What was measured of a model's training step."""

    modules: list[ModuleSeconds]
    # Of a step.
    kernels: Kernels
    # Implementations of the recurrence.
    lstm_kernels: list[str]


def measure_ceilings(
    config: RooflineConfig,
    threads: int,
    arrays: dict[str, int],
) -> Ceilings:
    """Measures all ceilings with one number of threads, in this process.

    ``arrays`` are bytes by place: far more than the last cache for "memory".
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.get_logger().setLevel("ERROR")  # TensorFlow would warn about the sweep's kernels
    seconds = CEILING_S
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    # A GPU's kernel uses all of it.
    sweep_threads = 1 if on_gpu else threads
    far_and_near = (max(arrays, key=arrays.get), min(arrays, key=arrays.get))
    sweep = []

    for precision in SWEEP_PRECISIONS:
        for place in dict.fromkeys(far_and_near):
            sweep += intensity_sweep(
                precision,
                place,
                arrays[place],
                config.sweep_flops,
                sweep_threads,
                SWEEP_S,
            )

    bandwidth = gpu_bandwidth if on_gpu else partial(cpu_bandwidth, threads=threads)
    matmuls = {name: matmul_ceiling(name, seconds=seconds) for name in COMPARED}
    moved = {name: bandwidth(array, seconds=seconds) for name, array in arrays.items()}
    # From 4 KiB on.
    powers = [4**n for n in range(6, 32) if 4**n <= max(arrays.values())]
    sizes = sorted(config.working_set_bytes) or powers
    each_s = SWEEP_S / config.experiments
    sets = working_set_sweep(sizes, sweep_threads, config.experiments, each_s)

    return Ceilings(threads, "GPU" if on_gpu else "CPU", matmuls, moved, sweep, sets)


def measure_model(
    config: RooflineConfig,
    model_config: recogniser.RecogniserConfig,
    features: FeatureConfig,
) -> ModelMeasured:
    """Times a model's modules and profiles its step, in this process."""
    tf.get_logger().setLevel("ERROR")
    training = TrainingConfig(precision=PRECISION)
    experiment = Experiment(model=model_config, features=features, training=training)
    strategy = make_strategy(1)
    model = build_model(experiment, Alphabet(), compiled=True)
    batch = synthetic_batch(experiment, config.batch, config.frames)
    modules = module_times(model, batch, strategy, ROUNDS).modules
    step = Replicas(strategy).compiled(
        lambda b: [model.train_step(b)["utterance_loss"]], batch
    )
    step()
    kernels = profile(step, PROFILED_STEPS)

    return ModelMeasured(modules, kernels, sorted(recogniser.kernels(model.recogniser)))


@dataclass(frozen=True)
class Point:
    """A place in the roofline's picture: work, and how long it took."""

    model: str
    # Name of a module, a step or a kernel.
    name: str
    flops: float
    # Read and written, if there were no caches.
    moved_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations per byte moved."""
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        """Operations per second."""
        return self.flops / self.seconds

    @property
    def gflops(self) -> float:
        """Billions of operations per second."""
        return self.flops_per_s / 1e9


@dataclass(frozen=True)
class ModelPoints:
    """All points of a model, and its profiled kernels.

    Attributes:
        modules: each module, run alone.
        step: A whole step.
        kernels: of a step.
        most_used: all kernels of the slowest kernel's kind.
        average: the step's operations over the seconds of all kernels.
        lstm_kernels: implementations of the recurrence.
    """

    name: str
    modules: list[Point]
    step: Point
    kernels: Kernels
    most_used: Point | None
    average: Point | None
    lstm_kernels: list[str]

    @classmethod
    def of(
        cls,
        name: str,
        costs: Sequence[ModuleCost],
        measured: ModelMeasured,
    ) -> "ModelPoints":
        """Combines counted costs with measured seconds."""
        step_total = total_cost("whole step", costs)
        modules = [
            Point(name, cost.name, cost.total_flops, cost.total_bytes, module.alone_s)
            for cost, module in zip(costs, measured.modules, strict=True)
        ]
        kernels = measured.kernels
        step = Point(
            name,
            step_total.name,
            step_total.total_flops,
            step_total.total_bytes,
            seconds=sum(module.in_step_s for module in measured.modules),
        )
        average = None

        if kernels.seconds:
            average = dataclasses.replace(
                step,
                name="average kernel",
                seconds=kernels.seconds,
            )

        most_used = _most_used(name, step_total, measured)

        return cls(
            name,
            modules,
            step,
            kernels,
            most_used,
            average,
            measured.lstm_kernels,
        )


@dataclass(frozen=True)
class RooflineAnalysis:
    """All that was measured, and what follows from it."""

    # Fewest threads first.
    ceilings: list[Ceilings]
    models: list[ModelPoints]
    config: RooflineConfig
    specified: Specified = Specified({}, None, "")
    # By framework.
    spotter: Mapping[str, Kernels] = field(default_factory=dict)

    @property
    def references(self) -> list[tuple[str, str, float]]:
        """Names, precisions and operations per second of other machines."""
        return [
            (name, of, 1e9 * rate) for name, of, rate in self.config.reference_gflops
        ]

    def spotter_points(self) -> dict[str, list[Point]]:
        """Returns the spotter's kernels, slowest first, then their average, by framework."""
        points = {}
        for framework, kernels in self.spotter.items():
            name = f"keyword spotter, {framework}"
            of_kernels = [
                Point(
                    name,
                    kernel.name,
                    kernel.flops,
                    kernel.moved_bytes,
                    kernel.seconds,
                )
                for kernel in kernels.kernels
                # Others can't be drawn.
                if kernel.flops and kernel.moved_bytes
            ]

            if of_kernels:
                cost = step_cost(KeywordSpotterConfig(), SPOTTER_BATCH)
                average = Point(
                    name,
                    "average kernel",
                    cost.total_flops,
                    cost.total_bytes,
                    kernels.seconds,
                )
                points[name] = [*of_kernels, average]

        return points

    @property
    def highest(self) -> Ceilings:
        """The ceilings with the most threads."""
        return self.ceilings[-1]

    @property
    def peak(self) -> float:
        """Operations per second in the models' precision with the most threads."""
        return self.highest.flops_per_s[PRECISION]

    def attainable(self, intensity: float) -> float:
        """Returns the roofline's operations per second at an intensity.

        Source: S. Williams et al., Roofline, CACM 2009, section 3.
        """
        return min(self.peak, self.highest.memory * intensity)

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON values, with each point's share of its roof."""

        def of_point(point: Point) -> dict[str, Any]:
            roof = self.attainable(point.intensity)

            return {
                "name": point.name,
                "flops_per_byte": point.intensity,
                "flops_per_s": point.flops_per_s,
                "share_of_roof": point.flops_per_s / roof,
            }

        return {
            "ceilings": list(map(dataclasses.asdict, self.ceilings)),
            "ridge_flops_per_byte": self.peak / self.highest.memory,
            "specified": dataclasses.asdict(self.specified),
            "models": [
                {
                    **dataclasses.asdict(model),
                    "kernels": _kernels_to_json(model.kernels),
                    "no_kernels": model.kernels.reason,
                    "points": list(map(of_point, model.modules)),
                }
                for model in self.models
            ],
            "references": list(map(list, self.references)),
            "spotter_points": {
                n: [*map(of_point, ps)] for n, ps in self.spotter_points().items()
            },
            "spotter_kernels": {
                framework: {
                    "kernels": _kernels_to_json(kernels),
                    "reason": kernels.reason,
                }
                for framework, kernels in self.spotter.items()
            },
        }


def _kernels_to_json(kernels: Kernels) -> list[dict[str, Any]]:
    """Returns kernels as JSON values, with their kinds."""
    return [
        {**dataclasses.asdict(kernel), "kind": kernel.kind}
        for kernel in kernels.kernels
    ]


def _most_used(model: str, whole: ModuleCost, measured: ModelMeasured) -> Point | None:
    """Returns the kind of work of the slowest kernel as a point; None if it has no count."""
    flops, moved = dict(whole.flops), dict(whole.moved)
    if not any(name in ("fused CPU", "cuDNN") for name in measured.lstm_kernels):
        # Without a fused kernel, the recurrence consists of matrix products like the
        # others.
        flops["matmul"] += flops.pop("recurrence")
        moved["matmul"] += moved.pop("recurrence")

    kernels = measured.kernels
    longest: Kernel | None = max(
        kernels.kernels,
        key=lambda kernel: kernel.seconds,
        default=None,
    )
    if longest is None or not flops.get(longest.kind):
        return None

    kind = longest.kind
    seconds = sum(kernel.seconds for kernel in kernels.kernels if kernel.kind == kind)

    return Point(model, longest.name, flops[kind], moved[kind], seconds)
