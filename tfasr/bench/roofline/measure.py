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
from tfasr.bench.roofline.kernels import profile
from tfasr.data.features import FeatureConfig
from tfasr.models.acoustic_model import AcousticModelConfig
from tfasr.training.build import build_model, make_strategy
from tfasr.training.experiment import Experiment, TrainingConfig


def measure_ceilings(request: dict[str, Any]) -> dict[str, Any]:
    """Measures the ceilings at one number of threads.

    Args:
        request: ``threads``, ``precisions``, ``seconds`` for each measurement, ``matmul_size`` (0
            for the default) and ``arrays``: names and bytes of arrays to move.

    Returns:
        ``flops_per_s`` by precision and ``bytes_per_s`` by array's name, "copy" and "triad" each;
        ``device`` "GPU" or "CPU".
    """
    tf.config.threading.set_intra_op_parallelism_threads(request["threads"])
    seconds, on_gpu = request["seconds"], bool(tf.config.list_physical_devices("GPU"))
    size = request["matmul_size"] or None
    return {
        "threads": request["threads"],
        "device": "GPU" if on_gpu else "CPU",
        "flops_per_s": {
            name: matmul_ceiling(name, seconds=seconds, size=size) for name in request["precisions"]
        },
        "bytes_per_s": {
            name: gpu_bandwidth(size_bytes, seconds)
            if on_gpu
            else cpu_bandwidth(size_bytes, request["threads"], seconds)
            for name, size_bytes in request["arrays"].items()
        },
    }


def measure_model(request: dict[str, Any]) -> dict[str, Any]:
    """Times a model's modules, and asks the profiler for the kernels of whole steps.

    Args:
        request: ``model`` and ``features`` (configs), ``precision``, ``batch``, ``frames``,
            ``labels``, ``rounds`` and ``profiled_steps``.

    Returns:
        ``modules`` as `module_seconds` does, ``kernels`` with seconds for one step, ``no_kernels``
        (a reason or ""), ``lstm_kernels`` and ``weights``.
    """
    tf.get_logger().setLevel("ERROR")
    experiment = Experiment(
        model=AcousticModelConfig(**request["model"]),
        features=FeatureConfig(**request["features"]),
        training=TrainingConfig(precision=request["precision"]),
    )
    alphabet, strategy = Alphabet(), make_strategy(1)
    model = build_model(experiment, alphabet, compiled=True)
    batch = noise_batch(
        request["batch"],
        request["frames"],
        request["labels"],
        num_features=experiment.features.num_features,
        num_classes=alphabet.num_classes,
    )
    modules = module_seconds(model, batch, strategy, request["rounds"])
    assert [one["module"] for one in modules] == [*(m.name for m in modules_of(model)), UPDATE]
    placed = {name: tf.constant(value) for name, value in batch.items()}
    step = Replicas(strategy).compiled(lambda b: [model.train_step(b)["utterance_loss"]], placed)
    step()
    steps = request["profiled_steps"]
    kernels, reason = profile(step, steps) if steps else ([], "no step was profiled")
    return {
        "modules": modules,
        "kernels": [_per_step(kernel, steps) for kernel in kernels],
        "no_kernels": reason,
        "lstm_kernels": sorted(model.acoustic_model.lstm_kernels),
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
