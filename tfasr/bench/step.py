"""Seconds, FLOP/s and memory of a training step on a synthetic batch.

A workload of ``tfasr bench`` with flags. Each combination of batch, frames and
precision is measured in a separate process, because a process reports one peak of
memory.
"""

import dataclasses
import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tfasr.bench.workload import Context, Result, Workload, seconds_of
from tfasr.display.table import UNKNOWN, Column, Table, fixed, table_of
from tfasr.errors import wrong_values_are_wrong_use
from tfasr.kit.config import require, require_precision, trained
from tfasr.kit.process import call
from tfasr.telemetry.compiled import require_extensions
from tfasr.telemetry.machine import peak_bytes

# The first call compiles; in the second, kernels may still be tuned.
WARM_UPS = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepConfig:
    """Sizes to measure: each batch size with all numbers of frames and precisions.

    Attributes:
        experiment: a preset or gin file of model and optimizer; "" for the paper's.
        bindings: gin lines that override the file.
        batches: utterances per batch.
        frames: feature frames to which a batch is padded.
        labels: characters in the longest transcript; None for an estimate.
        precisions: to compare.
        rounds: how often each part of a step is measured.
        length_spread: fraction by which the shortest utterance is below the longest.
    """

    experiment: str = ""
    bindings: tuple[str, ...] = ()
    batches: tuple[int, ...] = (16,)
    frames: tuple[int, ...] = (600,)
    labels: int | None = None
    precisions: tuple[str, ...] = ("float32", "mixed_bfloat16")
    rounds: int = 5
    length_spread: float = 0.0

    def __post_init__(self):
        for field, flag in (("batches", "--batch"), ("frames", "--frames")):
            sizes = getattr(self, field)
            require(
                bool(sizes) and min(sizes) > 0,
                self,
                field,
                f"at least 1 each ({flag})",
            )

        require(bool(self.precisions), self, "precisions", "at least one (--precision)")
        require_precision(self, "precisions", trained())
        require(
            self.labels is None or self.labels > 0,
            self,
            "labels",
            "at least 1 (--labels)",
        )
        require(self.rounds > 0, self, "rounds", "at least 1 (--rounds)")
        spread = 0 <= self.length_spread < 1
        require(spread, self, "length_spread", "in 0..1, below 1 (--length_spread)")


@dataclass(frozen=True)
class StepTiming:
    """A training step on a synthetic batch; medians over rounds that run each part once.

    Its fields are those of a row in ``results.json``.

    Attributes:
        precision: Keras's dtype policy.
        batch: utterances.
        frames: length to which utterances are padded.
        labels: characters in the longest transcript.
        length_spread: fraction by which the shortest utterance is below the longest.
        accumulation_steps: parts into which the batch is split for gradient
            accumulation.
        lstm_kernels: implementations of the recurrence.
        forward_s: to compute the loss in training mode.
        forward_backward_s: to compute the loss and its gradients.
        audio_s: audio in the batch.
        flops: of the step's matrix products; None if the model doesn't count them.
        ceiling_flops_per_s: of large matrix products in this precision, in the same
            process.
        first_step_s: seconds of the first step, which traces and compiles.
        warm_up_calls: of each part of a step, left out of results.
        warm_up_s: their total time.
        traces: how often TensorFlow has traced the step, after all rounds.
        peak_memory_bytes: of the process, or of the GPU's allocator; None if unknown.
        memory_before_bytes: peak memory before the model was built.
        peak_memory_of: "process" or "GPU".
    """

    precision: str
    batch: int
    frames: int
    labels: int
    length_spread: float
    accumulation_steps: int
    lstm_kernels: list[str]
    parameters: int
    rounds: int
    forward_s: float
    forward_backward_s: float
    step_s: float
    audio_s: float
    flops: int | None
    ceiling_flops_per_s: float
    first_step_s: float
    warm_up_calls: int
    warm_up_s: float
    traces: int
    peak_memory_bytes: int | None
    memory_before_bytes: int | None
    peak_memory_of: str

    def to_json(self) -> dict[str, Any]:
        """Returns the fields and what follows from them, in seconds and per second."""
        flops_per_s = None if self.flops is None else self.flops / self.step_s

        return {
            **dataclasses.asdict(self),
            "backward_s": self.forward_backward_s - self.forward_s,
            "update_s": self.step_s - self.forward_backward_s,
            # Extra time of the first step: tracing, compilation, first allocations.
            "compile_s": self.first_step_s - self.step_s,
            "audio_s_per_s": self.audio_s / self.step_s,
            "utterances_per_s": self.batch / self.step_s,
            "flops_per_s": flops_per_s,
            "model_flops_utilisation": flops_per_s
            and flops_per_s / self.ceiling_flops_per_s,
        }


def measure_step(
    experiment: Any,
    config: StepConfig,
    batch: int,
    frames: int,
    precision: str,
    ceiling_s=2.0,
) -> StepTiming:
    """Measures training steps on a synthetic batch on one device, and peak memory.

    Matrix products are measured for ``ceiling_s``. Raises ValueError for too few
    frames.
    """
    # Imported late: the parent process doesn't need TensorFlow.
    import tensorflow as tf

    from tfasr.alphabet import Alphabet
    from tfasr.bench.modules import matmul_ceiling
    from tfasr.models.model import kernels, model_flops
    from tfasr.training.build import build_model
    from tfasr.training.memory import FRAMES_PER_LABEL, synthetic_batch

    training = dataclasses.replace(experiment.training, precision=precision)
    experiment = dataclasses.replace(experiment, training=training)
    spread = config.length_spread
    labels = config.labels or max(frames // FRAMES_PER_LABEL, 1)
    data = synthetic_batch(experiment, batch, frames, labels, length_spread=spread)
    # With TensorFlow loaded, before any weights.
    before_bytes, _ = _peak_memory()
    model = build_model(experiment, Alphabet(), compiled=True)
    timed = _time_parts(model, experiment, data, config.rounds)
    peak, peak_of = _peak_memory(at_least=before_bytes)

    return StepTiming(
        precision=precision,
        batch=batch,
        frames=frames,
        labels=labels,
        length_spread=spread,
        accumulation_steps=training.gradient_accumulation_steps,
        lstm_kernels=sorted(kernels(model.recogniser)),
        parameters=int(model.count_params()),
        rounds=config.rounds,
        audio_s=float(tf.reduce_sum(data["duration_s"])),
        flops=model_flops(
            experiment.model,
            experiment.features.num_features,
            Alphabet().num_classes,
            training.views * batch,
            frames,
            training=True,
        ),
        ceiling_flops_per_s=matmul_ceiling(precision, seconds=ceiling_s),
        warm_up_calls=WARM_UPS,
        peak_memory_bytes=peak,
        memory_before_bytes=before_bytes,
        peak_memory_of=peak_of,
        **timed,
    )


def _time_parts(model, experiment, data, rounds: int) -> dict[str, Any]:
    """Times forward pass, both passes, and a whole step, in turns.

    Returns the fields of `StepTiming` that are times.
    """
    import tensorflow as tf

    from tfasr.bench.steppers import after
    from tfasr.training.memory import batch_spec

    spec = batch_spec(experiment)
    in_graph = tf.function(input_signature=[spec])
    forward = in_graph(lambda batch: model.training_losses(batch)[1])
    forward_backward = in_graph(lambda batch: after(*model.loss_gradients(batch)))
    step = model.global_step(spec)
    # Updated last.
    last = model.trainable_variables[-1]

    def whole_step(batch):
        losses = step(batch)["utterance_loss"].numpy()
        # On a GPU the loss is ready before the weights are updated.
        tf.reduce_sum(last.value).numpy()

        return losses

    # The step comes first, so its first call includes what a run's first step includes.
    parts = {
        "step_s": whole_step,
        "forward_s": lambda batch: forward(batch).numpy(),
        "forward_backward_s": lambda batch: forward_backward(batch).numpy(),
    }

    warm_up = {}
    for name, part in parts.items():
        warm_up[name] = [seconds_of(part, data) for _ in range(WARM_UPS)]

    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds):
        for name, part in parts.items():
            seconds[name].append(seconds_of(part, data))

    times = {name: statistics.median(values) for name, values in seconds.items()}

    return times | {
        "first_step_s": warm_up["step_s"][0],
        "warm_up_s": sum(map(sum, warm_up.values())),
        "traces": step.experimental_get_tracing_count(),
    }


def _peak_memory(at_least: int | None = None) -> tuple[int | None, str]:
    """Returns the peak memory, and whether it is the "process"'s or a "GPU"'s.

    It is ``at_least`` or more; None if unknown.
    """
    from tfasr.bench.modules import gpu_peak_bytes

    if (peak := gpu_peak_bytes()) is not None:
        return peak, "GPU"

    peak = peak_bytes()

    # Linux counts memory only approximately and may report less than before.
    if peak is not None:
        peak = max(peak, at_least or 0)

    return peak, "process"


def run(config: StepConfig, context: Context) -> Iterator[Result]:
    """Measures all combinations, yielding the rows so far after each."""
    require_extensions()
    source = {
        "gin_file": config.experiment or None,
        "gin_bindings": list(config.bindings),
    }
    rows: list[dict[str, Any]] = []

    for batch, frames, precision in product(
        config.batches, config.frames, config.precisions
    ):
        timing = call(
            measure_configured,
            config,
            batch,
            frames,
            precision,
            task=f"Measuring {batch} x {frames} in {precision}",
            show_messages=False,
        )
        rows.append(timing.to_json())
        share = rows[-1]["model_flops_utilisation"]
        ms = 1000 * timing.step_s
        of_ceiling = "" if share is None else f", {share:.0%} of the matmul ceiling"
        _log.info(
            "%d x %d, %s: %.0f ms a step%s",
            batch,
            frames,
            precision,
            ms,
            of_ceiling,
        )
        values = {"source": source, "warm_up_calls": WARM_UPS, "rows": list(rows)}
        yield Result([step_table(rows)], values, warmup_steps=WARM_UPS)


def measure_configured(
    config: StepConfig,
    batch: int,
    frames: int,
    precision: str,
) -> StepTiming:
    """Measures one combination in this process, after reading the gin file."""
    from tfasr.training.from_gin import load_config

    experiment = load_config(config.experiment or None, config.bindings).experiment
    with wrong_values_are_wrong_use():
        return measure_step(experiment, config, batch, frames, precision)


def _size(row: Mapping[str, Any]) -> str:
    """Returns a row's batch and frames, and into how many parts the batch is cut."""
    size = f"{row['batch']} x {row['frames']}"
    if row["accumulation_steps"] > 1:
        size += f" in {row['accumulation_steps']}"

    return size


# Seconds as milliseconds.
_MS = fixed(1, 1000)
_COLUMNS = [
    Column("batch x\nframes", "", _size),
    Column("precision", "", "precision"),
    Column("forward\nms", "", "forward_s", _MS),
    Column("backward\nms", "", "backward_s", _MS),
    Column("update\nms", "", "update_s", _MS),
    Column("step\nms", "", "step_s", _MS),
    Column("audio s\nper s", "", "audio_s_per_s", fixed(0)),
    Column("utterances\nper s", "", "utterances_per_s", fixed(1)),
    Column("GFLOP\nper s", "", "flops_per_s", fixed(0, 1e-9)),
    Column("ceiling\nGFLOP per s", "", "ceiling_flops_per_s", fixed(0, 1e-9)),
    Column("utilisation\n%", "", "model_flops_utilisation", fixed(1, 100)),
    Column("peak memory\nMiB", "", "peak_memory_bytes", fixed(0, 2**-20)),
    Column("compile\ns", "", "compile_s", fixed(1)),
]


def step_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the table of rows as `StepTiming.to_json` makes them."""
    kernels = sorted({kernel for row in rows for kernel in row["lstm_kernels"]})
    traced = sorted({row["traces"] for row in rows})
    rounds = sorted({row["rounds"] for row in rows})
    memory_of = sorted({f"the {row['peak_memory_of']}'s" for row in rows})
    notes = [
        f"Medians of {' to '.join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))} rounds on a "
        f"synthetic batch, without the first {WARM_UPS} calls, which compile. Backward and update "
        "are differences: both passes minus forward, and the whole step minus both passes.",
        "GFLOP counts the model's matrix products over all padded frames, with backward as twice "
        f"forward ({UNKNOWN} if the model doesn't count them). Ceiling: large matrix products in "
        "the precision's dtype, measured in the same run.",
        f"Recurrence: {', '.join(kernels) or UNKNOWN}. Traces of the step: "
        f"{', '.join(map(str, traced))}. Compile: extra time of the first step.",
        f"Each row is measured in a separate process; peak memory is {' and '.join(memory_of)}.",
    ]

    return table_of("A training step", _COLUMNS, rows, notes)


STEP = Workload(run, (StepConfig,), backends=(), by_flags=True)
