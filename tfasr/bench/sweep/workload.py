"""Batch sizes and precisions: speed, memory, and what a precision costs in errors."""

from typing import Any

from tfasr.bench.sweep.accuracy import measure_errors
from tfasr.bench.sweep.config import SweepConfig, SweepTask
from tfasr.bench.sweep.measure import LITERT, measure_inference, measure_training
from tfasr.bench.sweep.rows import SweepRow, flag_cliffs
from tfasr.bench.sweep.tables import SweepAnalysis, sweep_tables
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.data.features import FeatureConfig
from tfasr.errors import UsageError
from tfasr.models.recogniser import ModelConfig, RecogniserConfig
from tfasr.training.experiment import Experiment


def run(
    config: SweepConfig, model: RecogniserConfig, features: FeatureConfig, context: Context
) -> Result:
    """Runs the workload: a process for each precision, in inference and in training.

    With a run its own model is measured, and evaluated in every precision.

    Raises:
        UsageError: if the backend is another than TensorFlow, or the run cannot be evaluated.
    """
    from tfasr.bench.sweep.figure import sweep_figure

    if context.backend != "tensorflow":
        raise UsageError(
            "The hardware sweep runs tfasr's own training step and LiteRT, which are TensorFlow's. "
            f"Received: --backend {context.backend}. Leave it out."
        )
    if context.run_dir is not None:
        experiment = Experiment.load(context.run_dir)
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
        logit_errors[precision] = answer["logit_error"]
        rows += [SweepRow.of("inference", precision, one) for one in answer["batches"]]
    for precision in config.precisions:
        if precision in LITERT or not config.training_batches:
            continue
        task = SweepTask(
            model, features.num_features, precision, config.training_batches, steps, config
        )
        answer = call(measure_training, task, features, backend="tensorflow")
        rows += [SweepRow.of("training", precision, one) for one in answer["batches"]]
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
    return Result(
        tables=sweep_tables(analysis),
        values=analysis.to_json(),
        warmup_steps=config.warmup,
        figures={"hardware_sweep": lambda: sweep_figure(analysis)},
    )


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
