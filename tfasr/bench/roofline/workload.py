"""A machine's ceilings, and the model's layers, steps and kernels below them."""

from tfasr.alphabet import Alphabet
from tfasr.bench.probes.backend import installed_backends
from tfasr.bench.probes.devices import num_gpus
from tfasr.bench.probes.replicas import WARMUP_CALLS
from tfasr.bench.roofline.bandwidth import cache_bytes
from tfasr.bench.roofline.config import RooflineConfig
from tfasr.bench.roofline.kernels import Kernels
from tfasr.bench.roofline.measure import measure_ceilings, measure_model
from tfasr.bench.roofline.points import ModelPoints, RooflineAnalysis
from tfasr.bench.roofline.specified import specified
from tfasr.bench.roofline.spotter_kernels import FRAMEWORKS, spotter_kernels
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.cores import usable_cores
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
    from tfasr.bench.roofline.figure import roofline_charts
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
    analysis = RooflineAnalysis.of(
        ceilings,
        [_points(name, one, config, features) for name, one in models],
        config,
        specified=specified(
            config.specified_gflops,
            config.specified_gigabytes_per_s,
            on_gpu=ceilings[-1].device == "GPU",
        ),
        spotter=_spotter(config),
    )
    return Result(
        tables=roofline_tables(analysis),
        values=analysis.to_json(),
        warmup_steps=WARMUP_CALLS,
        figures=roofline_charts(analysis),
    )


def _spotter(config: RooflineConfig) -> dict[str, Kernels]:
    """Returns the kernels of the keyword spotter by framework, each from a process of its own."""
    if not (config.spotter_batch and config.profiled_steps):
        return {}
    sizes = (config.spotter_batch, config.profiled_steps)
    installed = installed_backends()
    return {
        label: call(spotter_kernels, framework, *sizes, backend=framework)
        if framework in installed
        else Kernels([], f"{framework} is not installed: pip install {framework}")
        for framework, label in FRAMEWORKS.items()
    }


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


def _points(
    name: str, model: RecogniserConfig, config: RooflineConfig, features: FeatureConfig
) -> ModelPoints:
    sizes = {"batch": config.batch, "frames": config.frames, "labels": config.labels}
    measured = call(measure_model, config, model, features, backend="tensorflow")
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
        costs = unknown_costs([module.module for module in measured.modules])
    return ModelPoints.of(name, costs, measured)


ROOFLINE = Workload(run, (RooflineConfig, ModelConfig, FeatureConfig), backends=())
