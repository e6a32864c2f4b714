"""A machine's ceilings, and the model's layers, steps and kernels below them."""

from typing import Any

from tfasr.alphabet import Alphabet
from tfasr.bench.probes.devices import num_gpus, usable_cores
from tfasr.bench.roofline.bandwidth import cache_bytes
from tfasr.bench.roofline.config import RooflineConfig
from tfasr.bench.roofline.measure import measure_ceilings, measure_model
from tfasr.bench.roofline.points import RooflineAnalysis
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.config import to_json
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.costs import unknown_costs
from tfasr.models.recogniser import ModelConfig, RecogniserConfig

_NUM_CLASSES = Alphabet().num_classes


def run(
    config: RooflineConfig, model: RecogniserConfig, features: FeatureConfig, context: Context
) -> Result:
    """Runs the workload: a process for each number of threads, one for each model.

    Raises:
        UsageError: if the backend is another than TensorFlow.
    """
    from tfasr.bench.probes.module_timing import WARMUP_CALLS
    from tfasr.bench.roofline.figure import roofline_figure
    from tfasr.bench.roofline.tables import roofline_tables

    if context.backend != "tensorflow":
        raise UsageError(
            "The roofline is that of tfasr's own training step, which is TensorFlow's. "
            f"Received: --backend {context.backend}. Leave it out."
        )
    ceilings = [
        call(measure_ceilings, config, threads, _arrays(config, threads), backend="tensorflow")
        for threads in _thread_counts(config)
    ]
    models = [("model", model)]
    if config.small_units and hasattr(model, "smaller"):
        models.append(("small model", model.smaller(config.small_units)))
    found = [_measure(name, one, config, features) for name, one in models]
    analysis = RooflineAnalysis.of(ceilings, found, config)
    return Result(
        tables=roofline_tables(analysis),
        values=analysis.to_json(),
        warmup_steps=WARMUP_CALLS,
        figures={"roofline": lambda: roofline_figure(analysis)},
    )


def _thread_counts(config: RooflineConfig) -> list[int]:
    if config.thread_counts:
        return sorted(set(config.thread_counts))
    cores = usable_cores()
    if num_gpus():
        return [cores]
    powers = {2**power for power in range(cores.bit_length())} | {cores}
    return sorted(n for n in powers if n <= cores)


def _arrays(config: RooflineConfig, threads: int) -> dict[str, int]:
    """Returns names and bytes of the arrays whose moving is measured."""
    caches = cache_bytes()
    last = max(caches.values(), default=0)
    memory = config.memory_megabytes * 2**20 or max(4 * last, 256 * 2**20)
    arrays = {"memory": memory}
    if not num_gpus():
        # Three arrays share a cache; half of it is left to whoever else uses it.
        arrays |= {f"L{n}": caches[n] // 6 for n in (3,) if n in caches}
        arrays |= {f"L{n}": caches[n] // 6 * threads for n in (2,) if n in caches}
    return arrays


def _measure(
    name: str, model: RecogniserConfig, config: RooflineConfig, features: FeatureConfig
) -> dict[str, Any]:
    sizes = {"batch": config.batch, "frames": config.frames, "labels": config.labels}
    answer = call(measure_model, config, model, features, backend="tensorflow")
    if hasattr(model, "step_costs"):
        costs = model.step_costs(
            num_features=features.num_features,
            num_classes=_NUM_CLASSES,
            bytes_per_number=4 if config.precision == "float32" else 2,
            # Of a GPU's caches nothing is known here.
            cache_bytes=0 if num_gpus() else max(cache_bytes().values(), default=0),
            **sizes,
        )
    else:
        costs = unknown_costs([module["module"] for module in answer["modules"]])
    return {"name": name, "model": to_json(model), "costs": costs, **answer}


ROOFLINE = Workload(run, (RooflineConfig, ModelConfig, FeatureConfig), backends=())
