"""Weak and strong scaling of data parallelism over devices, with a prediction beside it."""

from tfasr.bench.scaling.analysis import ScalingAnalysis
from tfasr.bench.scaling.config import FROM_SHARDS, SORTING, Load, ScalingConfig, ScalingTask
from tfasr.bench.scaling.measure import measure
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.recogniser import ModelConfig, RecogniserConfig


def run(
    config: ScalingConfig,
    model: RecogniserConfig,
    features: FeatureConfig,
    context: Context,
) -> Result:
    """Runs the workload: a process for each number of devices.

    Raises:
        UsageError: if the backend is another than TensorFlow, or devices are too few.
    """
    from tfasr.bench.scaling.figure import scaling_charts
    from tfasr.bench.scaling.tables import scaling_tables

    if context.backend != "tensorflow":
        raise UsageError(
            "The scaling analysis runs tfasr's own training under tf.distribute, which is "
            f"TensorFlow's. Received: --backend {context.backend}. Leave it out."
        )
    counts = sorted(set(config.device_counts)) or default_counts(config.strong_utterances)
    answers = [
        call(
            measure,
            task_of(config, model, features, count, counts, context.fraction),
            backend="tensorflow",
        )
        for count in counts
    ]
    analysis = ScalingAnalysis.of(answers, config)
    return Result(
        tables=scaling_tables(analysis),
        values=analysis.to_json(),
        warmup_steps=config.warmup_steps,
        figures=scaling_charts(analysis),
    )


def default_counts(strong_utterances: int) -> list[int]:
    """Returns 1, 2, 4 and so on up to all GPUs, as far as they divide the global batch."""
    from tfasr.bench.probes.devices import num_gpus

    most = num_gpus() or 2
    powers = {2**power for power in range(most.bit_length())} | {most}
    return sorted(n for n in powers if n <= most and strong_utterances % n == 0)


def task_of(
    config: ScalingConfig, model, features, count: int, counts: list[int], fraction: float
) -> ScalingTask:
    """Returns what the process of one number of devices is to measure.

    Args:
        config: what is scaled.
        model: its config.
        features: what it takes.
        count: devices of the process.
        counts: of all processes.
        fraction: share of the steps.
    """
    steps = max(config.warmup_steps + 1, round(config.steps * fraction))
    # As many for each device: 180 on one are 720 on four.
    loads = [Load("weak", config.weak_utterances, steps * count)]
    if config.loader:
        loads.append(Load("weak", config.weak_utterances, steps * count, FROM_SHARDS))
    if config.sorting_loader:
        sorting = (SORTING, config.sorted_batches)
        loads.append(Load("weak", config.weak_utterances, steps * count, *sorting))
    loads.append(Load("strong", config.strong_utterances // count, steps))
    if count == 1:
        # The prediction is made of one device's steps on the batches that it predicts for.
        few = max(config.warmup_steps + 1, min(steps, config.warmup_steps + 12))
        loads += [Load("single", config.strong_utterances // n, few) for n in counts if n > 1]
    return ScalingTask(
        devices=count,
        model=model,
        features=features,
        precision=config.precision,
        frames=config.frames,
        labels=config.labels,
        loads=tuple(loads),
        module_batch=config.weak_utterances if config.module_rounds else 0,
        rounds=max(config.module_rounds, 5),
        first_steps=config.warmup_steps,
        all_reduce=not config.link_gigabytes_per_s,
    )


SCALING = Workload(run, (ScalingConfig, ModelConfig, FeatureConfig), backends=())
