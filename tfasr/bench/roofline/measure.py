"""The measuring processes of the roofline: a machine's ceilings, and a model's steps below them."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfasr.alphabet import Alphabet
from tfasr.bench.probes.ceiling import matmul_ceiling
from tfasr.bench.probes.model_modules import UPDATE, modules_of
from tfasr.bench.probes.module_timing import Replicas, module_seconds
from tfasr.bench.probes.noise import noise_batch
from tfasr.bench.roofline.bandwidth import cpu_bandwidth, gpu_bandwidth
from tfasr.bench.roofline.config import RooflineConfig
from tfasr.bench.roofline.kernels import profile
from tfasr.data.features import FeatureConfig
from tfasr.models import recogniser
from tfasr.training.build import build_model, make_strategy
from tfasr.training.experiment import Experiment, TrainingConfig


def measure_ceilings(
    config: RooflineConfig, threads: int, arrays: dict[str, int]
) -> dict[str, Any]:
    """Measures the ceilings at one number of threads.

    Args:
        config: precisions, seconds for each measurement and size of the matmuls.
        threads: of an operation.
        arrays: names and bytes of arrays to move.

    Returns:
        ``flops_per_s`` by precision and ``bytes_per_s`` by array's name, "copy" and "triad" each;
        ``device`` "GPU" or "CPU".
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    seconds, on_gpu = config.ceiling_s, bool(tf.config.list_physical_devices("GPU"))
    size = config.matmul_size or None
    return {
        "threads": threads,
        "device": "GPU" if on_gpu else "CPU",
        "flops_per_s": {
            name: matmul_ceiling(name, seconds=seconds, size=size) for name in config.precisions
        },
        "bytes_per_s": {
            name: gpu_bandwidth(size_bytes, seconds)
            if on_gpu
            else cpu_bandwidth(size_bytes, threads, seconds)
            for name, size_bytes in arrays.items()
        },
    }


def measure_model(
    config: RooflineConfig, model_config: recogniser.RecogniserConfig, features: FeatureConfig
) -> dict[str, Any]:
    """Times a model's modules, and asks the profiler for the kernels of whole steps.

    Args:
        config: precision, sizes of the batch, rounds and profiled steps.
        model_config: the model.
        features: what it takes.

    Returns:
        ``modules`` as `module_seconds` does, ``kernels`` with seconds for one step, ``no_kernels``
        (a reason or ""), ``lstm_kernels`` and ``weights``.
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
    modules = module_seconds(model, batch, strategy, config.rounds)
    assert [one["module"] for one in modules] == [*(m.name for m in modules_of(model)), UPDATE]
    placed = {name: tf.constant(value) for name, value in batch.items()}
    step = Replicas(strategy).compiled(lambda b: [model.train_step(b)["utterance_loss"]], placed)
    step()
    steps = config.profiled_steps
    kernels, reason = profile(step, steps) if steps else ([], "no step was profiled")
    return {
        "modules": modules,
        "kernels": [_per_step(kernel, steps) for kernel in kernels],
        "no_kernels": reason,
        "lstm_kernels": sorted(recogniser.kernels(model.recogniser)),
        "weights": sum(int(np.prod(weight.shape)) for weight in model.trainable_variables),
    }


def _per_step(kernel, steps: int) -> dict[str, Any]:
    values = dataclasses.asdict(kernel)
    return {
        **values,
        "kind": kernel.kind,
        "calls": kernel.calls / steps,
        "seconds": kernel.seconds / steps,
    }
