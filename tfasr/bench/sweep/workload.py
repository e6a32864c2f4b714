"""Batch sizes and precisions: speed, memory, and what a precision costs in errors."""

import dataclasses
from typing import Any

from tfasr.bench.probes.backend import installed_backends
from tfasr.bench.sweep.accuracy import measure_errors
from tfasr.bench.sweep.axes import AxesTask, measure_axes
from tfasr.bench.sweep.axes_tables import Axes, AxesRow, axes_chart, axes_table
from tfasr.bench.sweep.config import SweepConfig, SweepTask
from tfasr.bench.sweep.measure import measure_inference, measure_training
from tfasr.bench.sweep.rows import SweepRow, flag_cliffs
from tfasr.bench.sweep.tables import SweepAnalysis, sweep_tables
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.recogniser import MODELS, ModelConfig, RecogniserConfig
from tfasr.precision import PRECISIONS
from tfasr.training.trained import open_trained


def run(
    config: SweepConfig, model: RecogniserConfig, features: FeatureConfig, context: Context
) -> Result:
    """Runs the workload: a process for each precision, in inference and in training.

    With a run its own model is measured, and evaluated in every precision.

    Raises:
        UsageError: if the backend is another than TensorFlow, or the run cannot be evaluated.
    """
    from tfasr.bench.sweep.figure import sweep_chart

    if context.backend != "tensorflow":
        raise UsageError(
            "The hardware sweep runs tfasr's own training step and LiteRT, which are TensorFlow's. "
            f"Received: --backend {context.backend}. Leave it out."
        )
    if context.run_dir is not None:
        experiment = open_trained(context.run_dir).experiment
        model, features = experiment.model, experiment.features
    errors = _errors(config, context)  # before all else: a run that does not fit is found at once
    calls, steps = (max(1, round(n * context.fraction)) for n in (config.calls, config.steps))
    rows: list[SweepRow] = []
    logit_errors: dict[str, float] = {}
    for precision in config.precisions:
        task = SweepTask(
            model, features.num_features, precision, config.inference_batches, calls, config
        )
        answer = call(measure_inference, task, backend="tensorflow")
        logit_errors[precision] = answer.logit_error
        rows += [SweepRow.of("inference", precision, one) for one in answer.batches]
    for precision in config.precisions:
        if not PRECISIONS[precision].trains or not config.training_batches:
            continue
        task = SweepTask(
            model, features.num_features, precision, config.training_batches, steps, config
        )
        batches = call(measure_training, task, features, backend="tensorflow")
        rows += [SweepRow.of("training", precision, one) for one in batches]
    axes = _axes(config, features, context.fraction)
    analysis = SweepAnalysis(
        rows=flag_cliffs(rows, config.cliff_tolerance),
        errors=errors,
        logit_errors=logit_errors,
        frames=config.frames,
        frame_s=features.step_samples / features.sample_rate_hz,
        calls=calls,
        warmup=config.warmup,
        split=context.split if context.run_dir else None,
    )
    figures = {"hardware_sweep": lambda: sweep_chart(analysis)}
    if axes is not None:
        figures["hardware_axes"] = lambda: axes_chart(axes)
    return Result(
        tables=[*sweep_tables(analysis), *([axes_table(axes)] if axes else [])],
        values={**analysis.to_json(), "axes": axes and axes.to_json()},
        warmup_steps=config.warmup,
        figures=figures,
    )


def _axes(config: SweepConfig, features: FeatureConfig, fraction: float) -> Axes | None:
    """Returns networks, lengths and frameworks, a process for each framework; None for none."""
    if not config.networks:
        return None
    installed = installed_backends()
    present = [name for name in config.runtimes if _backend(name) in installed]
    absent = [name for name in config.runtimes if name not in present]
    networks = {name: smaller(name, config) for name in config.networks}
    task = AxesTask(
        networks,
        features.num_features,
        tuple(sorted(config.lengths)),
        config.axes_batch,
        max(1, round(config.axes_steps * fraction)),
        config.warmup,
    )
    rows = []
    for runtime in present:
        own = dataclasses.replace(task, xla=runtime == "tensorflow_xla")
        for times in call(measure_axes, own, backend=_backend(runtime), show_messages=False):
            rows.append(AxesRow(runtime, times, config.axes_batch))
    rows.sort(key=lambda row: config.networks.index(row.times.network))
    return Axes(rows, absent, features.step_samples / features.sample_rate_hz)


def smaller(name: str, config: SweepConfig) -> RecogniserConfig:
    """Returns a network of ``config.network_units``, or of its own sizes where these are 0.

    Raises:
        UsageError: if the network has no small version.
    """
    network = MODELS[name]()
    if not config.network_units:
        return network
    if not hasattr(network, "smaller"):
        raise UsageError(
            "SweepConfig.network_units must be 0 where a network has no small version of its own. "
            f"Received: {config.network_units} and {name!r}, whose config has no smaller(units)."
        )
    return network.smaller(config.network_units)


def _backend(runtime: str) -> str:
    return runtime.removesuffix("_xla")


def _errors(config: SweepConfig, context: Context) -> dict[str, dict[str, Any]] | None:
    """Returns the error counts of the run in every precision; None without a run."""
    if context.run_dir is None:
        return None
    return {
        precision: call(
            measure_errors,
            context.run_dir,
            context.split,
            precision,
            context.shard_dir,
            backend="tensorflow",
        ).to_json()
        for precision in config.precisions
    }


HARDWARE_SWEEP = Workload(run, (SweepConfig, ModelConfig, FeatureConfig), backends=())
