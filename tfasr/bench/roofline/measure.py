"""Measures a machine's performance ceilings, and how close models' steps come to them."""

import dataclasses
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

SWEEP_PRECISIONS = ("float32", "float64")  # of the intensity sweep's elements
# Precisions of the ceilings.
COMPARED = ("float64", "float32", "mixed_bfloat16", "mixed_float16")
PRECISION = "float32"  # Keras's dtype policy of the models
ROUNDS = 5  # how often each module is measured
CEILING_S = 1.0  # seconds to measure each ceiling
PROFILED_STEPS = 3  # steps under the framework's profiler
SPOTTER_BATCH = 64  # utterances in the keyword spotter's profiled step
SWEEP_S = 0.3  # seconds to measure each intensity, and all experiments of a size


@config_class
class RooflineConfig:
    """Sizes of all measurements; those of the sweeps have the names of ERT, as in the talk."""

    # Of the CPU; empty: powers of 2 and all cores (GPU: all).
    thread_counts: tuple[int, ...] = ()
    # operations per element of the intensity sweep, 1 or even numbers
    sweep_flops: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    # array sizes in bytes, as from ERT_WORKING_SET_MIN to ERT_MEMORY_MAX of the
    # Empirical Roofline Toolkit; () for powers of 4 from 4 KiB to the memory's array
    working_set_bytes: tuple[int, ...] = ()
    experiments: int = 5  # repetitions of the working-set sweep (ERT_NUM_EXPERIMENTS)
    # GFLOP/s by precision; empty to compute a processor's from cores, clock and vectors
    specified_gflops: tuple[tuple[str, float], ...] = ()
    specified_gigabytes_per_s: float = 0.0  # bandwidth of memory; 0 if unknown
    batch: int = 16  # utterances in the model's step
    frames: int = 600  # feature frames of each utterance
    # other machines to draw for comparison: (name, precision, GFLOP/s)
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
        if kind in ("Data", "Unified") and size.endswith("K") and level.isdigit():
            sizes[int(level)] = int(size[:-1]) * 1024

    return sizes


def cpu_bandwidth(array_bytes: int, threads: int, seconds: float) -> dict[str, float]:
    """Measures copy and triad on float32 arrays; returns bytes per second of the best round.

    Each thread has separate slices. The triad ``a = b + s * c`` needs two passes. It
    works in small pieces, which the second finds in a cache; so memory gets two reads
    and one write, as in STREAM.

    Source: J. McCalpin, Memory Bandwidth and Machine Balance in High Performance
    Computers, 1995.
    """
    numbers = max(array_bytes // 4 // threads, 1)
    values = range(3)
    arrays = [[np.full(numbers, n, np.float32) for n in values] for _ in range(threads)]
    times = -(-_ROUND_BYTES // (4 * numbers))
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
    """Measures scaling (instead of copy) and triad on the first GPU, see `cpu_bandwidth`."""
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
    for start in range(0, len(a), _PIECE):
        piece = slice(start, start + _PIECE)
        np.multiply(c[piece], np.float32(3), out=a[piece])
        np.add(a[piece], b[piece], out=a[piece])


@dataclass(frozen=True)
class WorkingSet:
    # Size of the array that all threads together read and write repeatedly.
    size_bytes: int
    bytes_per_s: list[float]  # the fastest call of each experiment


def working_set_sweep(
    sizes: Sequence[int],
    threads: int,
    experiments: int,
    seconds: float,
) -> list[WorkingSet]:
    """Measures the bandwidth for arrays of each size; an experiment measures each size
    once.
    """
    rounds = [
        [
            intensity_sweep("float32", "", size, (1,), threads, seconds)[0]
            for size in sizes
        ]
        for _ in range(experiments)
    ]
    by_size = zip(sizes, zip(*rounds, strict=True), strict=True)
    return [
        WorkingSet(size, [point.bytes_per_s for point in points])
        for size, points in by_size
    ]


_READ_AND_WRITTEN = 2
_CHAINS = 8  # independent, to keep two units busy whose results take four cycles


@dataclass(frozen=True)
class IntensityPoint:
    precision: str  # a name in `tfasr.kit.config.PRECISIONS`
    place: str  # where the array fits: "memory" or a cache
    flops_per_element: int
    flops_per_s: float  # in the fastest call
    bytes_per_s: float  # read and written in that call

    @property
    def flops_per_byte(self) -> float:
        return self.flops_per_s / self.bytes_per_s


def intensity_sweep(
    precision: str,
    place: str,
    array_bytes: int,
    operations: Sequence[int],
    threads: int,
    seconds,
) -> list[IntensityPoint]:
    """Measures operations and bytes per second for each number of operations per element.

    The kernel, in place, is ``x = a x`` for one operation; for even numbers it repeats
    ``x = a x + b``. XLA compiles each pass into one loop. Threads share the
    ``array_bytes``.
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
            rates = (per_s * flops, per_s * _READ_AND_WRITTEN * dtype.size)
            points.append(IntensityPoint(precision, place, flops, *rates))

    return points


def _kernel(flops: int) -> Callable[[tf.Tensor, int], tf.Tensor]:
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


_LANES = {"AVX-512": 16, "AVX2": 8, "NEON": 4}  # 32-bit numbers in a vector
_UNITS = 2  # units in a core that each multiply and add a vector per cycle


@dataclass(frozen=True)
class Specified:
    flops_per_s: dict[str, float]  # by precision, if known
    bytes_per_s: float | None  # of memory, if known
    source: str  # says where flops_per_s comes from


def specified(
    gflops: Sequence[tuple[str, float]],
    gigabytes_per_s: float,
    *,
    on_gpu: bool,
    root: Path = ROOT,
) -> Specified:
    bytes_per_s = 1e9 * gigabytes_per_s or None
    if gflops:
        rates = {precision: 1e9 * rate for precision, rate in gflops}
        return Specified(rates, bytes_per_s, "configured")

    if on_gpu:
        return Specified({}, bytes_per_s, "n/a: set RooflineConfig.specified_gflops")

    rate, source = _of_processor(root)
    rates = {"float32": rate, "float64": rate / 2} if rate else {}

    return Specified(rates, bytes_per_s, source)


def _of_processor(root: Path) -> tuple[float | None, str]:
    processor = describe_processor(root)
    lanes = max((_LANES.get(name, 0) for name in processor["instructions"]), default=0)
    shown = _of_cpuinfo(root, "cpu MHz")
    mhz = processor["max_mhz"] or (shown.replace(".", "", 1).isdigit() and float(shown))
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
        f"computed: {cores} {'core' if cores == 1 else 'cores'} x {mhz / 1000:.4g} GHz x "
        f"{per_cycle} operations a cycle ({_UNITS} units that multiply and add {lanes} numbers of "
        "32 bits; half as many of 64)"
    )
    if not processor["max_mhz"]:
        source += (
            "; Linux reports this clock rate, but the processor may reach a higher one"
        )

    return cores * mhz * 1e6 * per_cycle, source


def _of_cpuinfo(root: Path, key: str) -> str:
    lines = (
        line.partition(":") for line in text(root / "proc" / "cpuinfo").splitlines()
    )
    return next((value.strip() for name, _, value in lines if name.strip() == key), "")


@dataclass(frozen=True)
class Ceilings:
    threads: int  # used by each operation
    device: str  # "GPU" or "CPU"
    flops_per_s: dict[str, float]  # of large matrix products, by precision
    # Of "copy" and "triad", by place (memory or a cache).
    bytes_per_s: dict[str, dict[str, float]]
    sweep: list[IntensityPoint] = field(default_factory=list)
    working_sets: list[WorkingSet] = field(default_factory=list)  # by growing size

    @property
    def label(self) -> str:
        return str(self.threads) if self.device == "CPU" else "GPU"

    @property
    def memory(self) -> float:
        return max(self.bytes_per_s["memory"].values())


@dataclass(frozen=True)
class ModelMeasured:
    modules: list[ModuleSeconds]
    kernels: Kernels  # of a step
    lstm_kernels: list[str]  # implementations of the recurrence


def measure_ceilings(
    config: RooflineConfig,
    threads: int,
    arrays: dict[str, int],
) -> Ceilings:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.get_logger().setLevel("ERROR")  # TensorFlow would warn about the sweep's kernels
    seconds = CEILING_S
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    sweep_threads = 1 if on_gpu else threads
    far_and_near = (max(arrays, key=arrays.get), min(arrays, key=arrays.get))
    swept = (config.sweep_flops, sweep_threads, SWEEP_S)
    sweep = [
        point
        for precision in SWEEP_PRECISIONS
        for place in dict.fromkeys(far_and_near)
        for point in intensity_sweep(precision, place, arrays[place], *swept)
    ]

    bandwidth = gpu_bandwidth if on_gpu else partial(cpu_bandwidth, threads=threads)
    matmuls = {name: matmul_ceiling(name, seconds=seconds) for name in COMPARED}
    moved = {name: bandwidth(array, seconds=seconds) for name, array in arrays.items()}
    powers = [4**n for n in range(6, 32) if 4**n <= max(arrays.values())]
    sizes = sorted(config.working_set_bytes) or powers
    times = (config.experiments, SWEEP_S / config.experiments)
    sets = working_set_sweep(sizes, sweep_threads, *times)

    return Ceilings(threads, "GPU" if on_gpu else "CPU", matmuls, moved, sweep, sets)


def measure_model(
    config: RooflineConfig,
    model_config: recogniser.RecogniserConfig,
    features: FeatureConfig,
) -> ModelMeasured:
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
    model: str
    name: str  # name of a module, a step or a kernel
    flops: float
    moved_bytes: float  # read and written, if there were no caches
    seconds: float

    @property
    def intensity(self) -> float:
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.seconds

    @property
    def gflops(self) -> float:
        return self.flops_per_s / 1e9


@dataclass(frozen=True)
class ModelPoints:
    name: str
    modules: list[Point]  # each module, run alone
    step: Point  # a whole step
    kernels: Kernels  # of a step
    most_used: Point | None  # all kernels of the slowest kernel's kind
    average: Point | None  # the step's operations over the seconds of all kernels
    lstm_kernels: list[str]  # implementations of the recurrence

    @classmethod
    def of(
        cls,
        name: str,
        costs: Sequence[ModuleCost],
        measured: ModelMeasured,
    ) -> "ModelPoints":
        step_total = total_cost("whole step", costs)
        modules = [
            Point(name, cost.name, cost.total_flops, cost.total_bytes, module.alone_s)
            for cost, module in zip(costs, measured.modules, strict=True)
        ]
        kernels = measured.kernels
        work = (step_total.total_flops, step_total.total_bytes)
        step_s = sum(module.in_step_s for module in measured.modules)
        if kernels.seconds:
            average = Point(name, "average kernel", *work, kernels.seconds)
        else:
            average = None

        step = Point(name, step_total.name, *work, step_s)
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
    ceilings: list[Ceilings]  # fewest threads first
    models: list[ModelPoints]
    config: RooflineConfig
    specified: Specified = Specified({}, None, "")
    spotter: Mapping[str, Kernels] = field(default_factory=dict)  # by framework

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
                if kernel.flops and kernel.moved_bytes
            ]
            if of_kernels:
                cost = step_cost(KeywordSpotterConfig(), SPOTTER_BATCH)
                work = (cost.total_flops, cost.total_bytes, kernels.seconds)
                points[name] = [*of_kernels, Point(name, "average kernel", *work)]

        return points

    @property
    def highest(self) -> Ceilings:
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
        def of_point(point: Point) -> dict[str, Any]:
            rate = point.flops_per_s
            intensity = point.intensity
            shares = {
                "flops_per_s": rate,
                "share_of_roof": rate / self.attainable(intensity),
            }
            return {"name": point.name, "flops_per_byte": intensity, **shares}

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
    return [
        {**dataclasses.asdict(kernel), "kind": kernel.kind}
        for kernel in kernels.kernels
    ]


def _most_used(model: str, whole: ModuleCost, measured: ModelMeasured) -> Point | None:
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
