"""The measuring processes of the roofline: a machine's ceilings, and a model's steps below them."""

from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.probes.ceiling import matmul_ceiling
from tfasr.bench.probes.module_timing import ModuleSeconds, module_times
from tfasr.bench.probes.noise import noise_batch
from tfasr.bench.probes.replicas import Replicas
from tfasr.bench.roofline.bandwidth import cpu_bandwidth, gpu_bandwidth
from tfasr.bench.roofline.config import RooflineConfig
from tfasr.bench.roofline.intensity import IntensityPoint, intensity_sweep
from tfasr.bench.roofline.kernels import Kernels, profile
from tfasr.data.features import FeatureConfig
from tfasr.models import recogniser
from tfasr.training.build import build_model, make_strategy
from tfasr.training.experiment import Experiment, TrainingConfig


@dataclass(frozen=True)
class Ceilings:
    """What a number of threads, or a GPU, reaches at most.

    Attributes:
        threads: of an operation.
        device: "GPU" or "CPU".
        flops_per_s: of large matrix products, by precision.
        bytes_per_s: by where the moved array lies, "copy" and "triad" each.
        sweep: operations over operations for each element.
    """

    threads: int
    device: str
    flops_per_s: dict[str, float]
    bytes_per_s: dict[str, dict[str, float]]
    sweep: list[IntensityPoint] = field(default_factory=list)

    @property
    def memory(self) -> float:
        """Bytes per second of memory: the faster of copy and triad."""
        return max(self.bytes_per_s["memory"].values())


@dataclass(frozen=True)
class ModelMeasured:
    """A model's training step.

    Attributes:
        modules: seconds of each.
        kernels: of a step.
        lstm_kernels: what computed the recurrence.
        weights: trainable parameters.
    """

    modules: list[ModuleSeconds]
    kernels: Kernels
    lstm_kernels: list[str]
    weights: int


def measure_ceilings(config: RooflineConfig, threads: int, arrays: dict[str, int]) -> Ceilings:
    """Measures the ceilings at one number of threads.

    Args:
        config: precisions, seconds for each measurement and size of the matmuls.
        threads: of an operation.
        arrays: names and bytes of arrays to move.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.get_logger().setLevel("ERROR")  # it takes a kernel for each intensity for a mistake
    seconds, on_gpu = config.ceiling_s, bool(tf.config.list_physical_devices("GPU"))
    size = config.matmul_size or None
    sweep = [
        point
        for precision in config.sweep_precisions
        for place in _far_and_near(arrays)
        for point in intensity_sweep(
            precision,
            place,
            arrays[place],
            config.sweep_flops,
            1 if on_gpu else threads,
            config.sweep_s,
        )
    ]
    return Ceilings(
        threads=threads,
        device="GPU" if on_gpu else "CPU",
        flops_per_s={
            name: matmul_ceiling(name, seconds=seconds, size=size) for name in config.precisions
        },
        bytes_per_s={
            name: gpu_bandwidth(size_bytes, seconds)
            if on_gpu
            else cpu_bandwidth(size_bytes, threads, seconds)
            for name, size_bytes in arrays.items()
        },
        sweep=sweep,
    )


def _far_and_near(arrays: dict[str, int]) -> list[str]:
    """Returns where the largest and the smallest array lie."""
    return list(dict.fromkeys([max(arrays, key=arrays.get), min(arrays, key=arrays.get)]))


def measure_model(
    config: RooflineConfig, model_config: recogniser.RecogniserConfig, features: FeatureConfig
) -> ModelMeasured:
    """Times a model's modules, and asks the profiler for the kernels of whole steps.

    Args:
        config: precision, sizes of the batch, rounds and profiled steps.
        model_config: the model.
        features: what it takes.
    """
    tf.get_logger().setLevel("ERROR")
    experiment = Experiment(
        model=model_config,
        features=features,
        training=TrainingConfig(precision=config.precision),
    )
    alphabet, strategy = Alphabet(), make_strategy(1)
    model = build_model(experiment, alphabet, compiled=True)
    batch = noise_batch(
        config.batch,
        config.frames,
        config.labels,
        num_features=features.num_features,
        num_classes=alphabet.num_classes,
    )
    modules = module_times(model, batch, strategy, config.rounds).modules
    placed = {name: tf.constant(value) for name, value in batch.items()}
    step = Replicas(strategy).compiled(lambda b: [model.train_step(b)["utterance_loss"]], placed)
    step()
    steps = config.profiled_steps
    return ModelMeasured(
        modules=modules,
        kernels=profile(step, steps) if steps else Kernels([], "no step was profiled"),
        lstm_kernels=sorted(recogniser.kernels(model.recogniser)),
        weights=sum(int(np.prod(weight.shape)) for weight in model.trainable_variables),
    )
