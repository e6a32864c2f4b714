"""Seconds, FLOP/s and memory of a training step on a synthetic batch.

Every size and precision is measured in a process of its own, so that its peak memory is its own.
"""

import logging
from collections.abc import Iterator
from itertools import product

from tfasr.bench.step.config import StepConfig
from tfasr.bench.step.table import step_table
from tfasr.bench.step.timing import WARM_UPS, StepTiming
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.errors import wrong_values_are_wrong_use
from tfasr.telemetry.compiled import require_compiled_parts

_log = logging.getLogger(__name__)


def run(config: StepConfig, context: Context) -> Iterator[Result]:
    """Measures one size after the other; the process that asks uses no device."""
    require_compiled_parts()
    source = {"gin_file": config.experiment or None, "gin_bindings": list(config.bindings)}
    timings: list[StepTiming] = []
    for batch, frames, precision in product(config.batches, config.frames, config.precisions):
        timing = call(
            measure_configured,
            config,
            batch,
            frames,
            precision,
            task=f"Measuring {batch} x {frames} in {precision}",
            show_messages=False,
        )
        timings.append(timing)
        _log_timing(timing)
        yield Result(
            tables=[step_table(timings)],
            values={
                "source": source,
                "warm_up_calls": WARM_UPS,
                "rows": [one.to_json() for one in timings],
            },
            warmup_steps=WARM_UPS,
        )


def measure_configured(config: StepConfig, batch: int, frames: int, precision: str) -> StepTiming:
    """Measures one size of those that a config asks for, in this process.

    Args:
        config: names the experiment and how it is measured.
        batch: utterances.
        frames: feature frames to which they are padded.
        precision: Keras's dtype policy.

    Raises:
        UsageError: if the experiment's preset is wrong, or the sizes make no batch.
    """
    # Imported here: the process that asks for it does without TensorFlow.
    from tfasr.bench.step.measure import measure_step
    from tfasr.training.from_gin import load_config

    experiment = load_config(config.experiment or None, config.bindings).experiment
    with wrong_values_are_wrong_use():
        return measure_step(
            experiment,
            batch=batch,
            frames=frames,
            labels=config.labels,
            precision=precision,
            rounds=config.rounds,
            length_spread=config.length_spread,
        )


def _log_timing(timing: StepTiming) -> None:
    _log.info(
        "%d x %d, %s: %.0f ms a step%s",
        timing.batch,
        timing.frames,
        timing.precision,
        1000 * timing.step_s,
        ""
        if timing.flops is None
        else f", {timing.model_flops_utilisation:.0%} of the matmul ceiling",
    )


STEP = Workload(run, (StepConfig,), backends=(), flat=True)
