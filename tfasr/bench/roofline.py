"""Roofline: what this machine can compute and move at most, and how near a model's parts come."""

import os
from typing import Any, Literal

from tfasr.alphabet import Alphabet
from tfasr.bench.child import run_in_child
from tfasr.bench.module_costs import model_costs
from tfasr.bench.roofline_points import RooflineAnalysis
from tfasr.bench.workload import Context, Result
from tfasr.config import config_class, require, to_json
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.acoustic_model import AcousticModelConfig

_NUM_CLASSES = Alphabet().num_classes


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
        small_units: of a second, small model, as many filters and 2 layers; 0 for none.
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


def run(
    config: RooflineConfig, model: AcousticModelConfig, features: FeatureConfig, context: Context
) -> Result:
    """Runs the workload: a process for each number of threads, one for each model.

    Raises:
        UsageError: if the backend is another than TensorFlow.
    """
    from tfasr.bench.module_timing import WARMUP_CALLS
    from tfasr.bench.roofline_figure import roofline_figure
    from tfasr.bench.roofline_tables import roofline_tables

    if context.backend != "tensorflow":
        raise UsageError(
            "The roofline is that of tfasr's own training step, which is TensorFlow's. "
            f"Received: --backend {context.backend}. Leave it out."
        )
    ceilings = [
        run_in_child(
            "tfasr.bench.roofline_process:measure_ceilings",
            _ceiling_request(config, threads),
            backend="tensorflow",
        )
        for threads in _thread_counts(config)
    ]
    models = [("model", model)]
    if config.small_units:
        models.append(("small model", _small(model, config.small_units)))
    found = [_measure(name, one, config, features) for name, one in models]
    analysis = RooflineAnalysis.of(ceilings, found, config)
    return Result(
        tables=roofline_tables(analysis),
        values=analysis.to_json(),
        warmup_steps=WARMUP_CALLS,
        figures={"roofline": lambda: roofline_figure(analysis)},
    )


def _thread_counts(config: RooflineConfig) -> list[int]:
    from tfasr.bench.devices import num_gpus

    if config.thread_counts:
        return sorted(set(config.thread_counts))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if num_gpus():
        return [cores]
    powers = {2**power for power in range(cores.bit_length())} | {cores}
    return sorted(n for n in powers if n <= cores)


def _ceiling_request(config: RooflineConfig, threads: int) -> dict[str, Any]:
    from tfasr.bench.bandwidth import cache_bytes
    from tfasr.bench.devices import num_gpus

    caches = cache_bytes()
    last = max(caches.values(), default=0)
    memory = config.memory_megabytes * 2**20 or max(4 * last, 256 * 2**20)
    arrays = {"memory": memory}
    if not num_gpus():
        # Three arrays share a cache; half of it is left to whoever else uses it.
        arrays |= {f"L{n}": caches[n] // 6 for n in (3,) if n in caches}
        arrays |= {f"L{n}": caches[n] // 6 * threads for n in (2,) if n in caches}
    return {
        "threads": threads,
        "precisions": list(config.precisions),
        "seconds": config.ceiling_s,
        "matmul_size": config.matmul_size,
        "arrays": arrays,
    }


def _small(model: AcousticModelConfig, units: int) -> AcousticModelConfig:
    sizes = {"conv_filters": units, "num_lstm_layers": 2, "lstm_units": units}
    return AcousticModelConfig(**{**to_json(model), **sizes})


def _measure(
    name: str, model: AcousticModelConfig, config: RooflineConfig, features: FeatureConfig
) -> dict[str, Any]:
    sizes = {"batch": config.batch, "frames": config.frames, "labels": config.labels}
    request = {
        **sizes,
        "model": to_json(model),
        "features": to_json(features),
        "precision": config.precision,
        "rounds": config.rounds,
        "profiled_steps": config.profiled_steps,
    }
    answer = run_in_child(
        "tfasr.bench.roofline_process:measure_model", request, backend="tensorflow"
    )
    costs = model_costs(
        model,
        num_features=features.num_features,
        num_classes=_NUM_CLASSES,
        bytes_per_number=4 if config.precision == "float32" else 2,
        **sizes,
    )
    return {"name": name, "model": to_json(model), "costs": costs, **answer}
