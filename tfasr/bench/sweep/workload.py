"""Batch sizes and precisions: speed, memory, and the errors that a precision adds."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfasr.bench.backends.measure import (
    RUNTIMES,
    AxesTask,
    AxesTimes,
    measure_axes,
)
from tfasr.bench.devices import cliff_rings, installed_backends
from tfasr.bench.sweep.measure import (
    SweepConfig,
    SweepRow,
    SweepTask,
    flag_cliffs,
    measure_errors,
    measure_inference,
    measure_training,
    speedup,
)
from tfasr.bench.workload import Context, Result, Workload, json_of, require_tensorflow
from tfasr.data.features import FeatureConfig
from tfasr.display.chart import Axis, Chart, Mark, Panel, Segments, counts_axis, curve, run_colour
from tfasr.display.table import UNKNOWN, Column, Table, fixed, milliseconds, table_of
from tfasr.errors import UsageError
from tfasr.kit.config import PRECISIONS
from tfasr.kit.process import call
from tfasr.models.model import MODELS, ModelConfig, RecogniserConfig
from tfasr.training.trained import open_trained


@dataclass(frozen=True)
class SweepAnalysis:
    """All results of the hardware sweep."""

    rows: Sequence[SweepRow]  # of inference, then of training, with growing batch sizes
    errors: dict[str, dict[str, Any]] | None  # of a run in every precision; None without a run
    logit_errors: dict[str, float]  # relative to float32, with random weights
    frames: int  # of each utterance
    frame_s: float  # seconds between frames
    calls: int  # of inference
    warmup: int  # calls and steps left out before each measurement
    split: str | None  # on which errors were counted

    def of(self, mode: str) -> list[SweepRow]:
        return [row for row in self.rows if row.mode == mode]

    def audio_s_per_s(self, row: SweepRow) -> float | None:
        return row.utterance_s and self.frames * self.frame_s / row.utterance_s

    def cost(self, precision: str) -> str:
        """Formats a precision's WER in percent or, without a run, its relative logit error."""
        if self.errors is not None:
            return f"{100 * self.errors[precision]['wer']:.2f}"
        error = self.logit_errors.get(precision)
        return UNKNOWN if error is None else f"{error:.2g}"

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                **json_of(row, "utterance_s"),
                "audio_s_per_s": self.audio_s_per_s(row),
                "speedup_over_float32": speedup(row, self.rows),
            }
            for row in self.rows
        ]
        return {
            "rows": rows,
            "errors": self.errors,
            "split": self.split,
            "relative_logit_error": self.logit_errors,
            "frames": self.frames,
        }


def sweep_tables(analysis: SweepAnalysis) -> list[Table]:
    tables = [_inference(analysis)]
    if analysis.of("training"):
        tables.append(_training(analysis))
    return [*tables, _error_table(analysis)] if analysis.errors is not None else tables


def _row_columns(analysis: SweepAnalysis, *times: Column) -> list[Column]:
    """Returns the columns shared by inference and training, with ``times`` in their middle."""
    cost = "relative\nlogit error" if analysis.errors is None else "WER\n%"
    return [
        Column("precision", "", lambda row: PRECISIONS[row.precision].label),
        Column("batch", "", lambda row: row.batch),
        *times,
        Column("audio\ns/s", "", analysis.audio_s_per_s, "{:.4g}".format),
        Column("times\nfloat32", "", lambda row: speedup(row, analysis.rows), fixed(2)),
        Column(cost, "", lambda row: analysis.cost(row.precision)),
        Column("peak\nMiB", "", _memory, fixed(0)),
        Column("cliff", "", _cliff),
    ]


_PER_UTTERANCE = Column("ms per\nutterance", "", lambda row: row.utterance_s, milliseconds)


def _inference(analysis: SweepAnalysis) -> Table:
    columns = _row_columns(
        analysis,
        Column("p50\nms", "", lambda row: row.p50_s, milliseconds),
        Column("p90\nms", "", lambda row: row.p90_s, milliseconds),
        Column("p99\nms", "", lambda row: row.p99_s, milliseconds),
        _PER_UTTERANCE,
    )
    notes = [
        f"Latency of a batch with {analysis.frames} frames per utterance, {analysis.calls} calls "
        f"after {analysis.warmup} warm-up calls. Each precision runs in its own process.",
        *_common_notes(analysis),
    ]
    title = "Inference over batch sizes and precisions"
    return table_of(title, columns, analysis.of("inference"), notes)


def _training(analysis: SweepAnalysis) -> Table:
    columns = _row_columns(
        analysis,
        Column("step\nms", "", lambda row: row.p50_s, milliseconds),
        _PER_UTTERANCE,
        Column("utterances/s", "", _utterances_per_s, "{:.4g}".format),
    )
    notes = [
        f"Medians of whole training steps after {analysis.warmup} warm-up steps of each size. "
        "Batches grow until memory would be full. Errors are those of inference in the same "
        "precision.",
        *_common_notes(analysis),
    ]
    title = "Training over batch sizes and precisions"
    return table_of(title, columns, analysis.of("training"), notes)


def _common_notes(analysis: SweepAnalysis) -> list[str]:
    notes = [
        "Cliff: an utterance takes longer than in a smaller batch. Peak: of the GPU's memory, or "
        "else the process's peak up to this size.",
        "float16 and bfloat16: Keras's mixed precision. LiteRT int8: 8-bit weights by dynamic "
        "range quantisation after training, with Keras's LSTM loop.",
    ]
    if analysis.errors is None:
        notes.append(
            "Relative logit error: root mean square difference from float32, divided by float32's "
            "root mean square, with random weights. It can't predict word errors; for those use "
            "--run_dir."
        )
    return notes


def _error_table(analysis: SweepAnalysis) -> Table:
    exact, signed = analysis.errors["float32"]["wer"], "{:+.2f}".format
    columns = [
        Column("precision", "", lambda row: PRECISIONS[row[0]].label),
        Column("WER\n%", "", lambda row: row[1]["wer"], fixed(2, 100)),
        Column("CER\n%", "", lambda row: row[1]["cer"], fixed(2, 100)),
        Column("WER against\nfloat32", "", lambda row: 100 * (row[1]["wer"] - exact), signed),
        Column("utterances", "", lambda row: row[1]["utterances"]),
    ]
    note = f"The run's best checkpoint on {analysis.split}, with greedy decoding."
    rows = list(analysis.errors.items())
    return table_of("Errors in each precision", columns, rows, [note])


def _memory(row: SweepRow) -> float | None:
    return row.peak_memory_mib if row.device_memory_mib is None else row.device_memory_mib


def _cliff(row: SweepRow) -> str:
    return row.reason or ("cliff" if row.cliff else "")


@dataclass(frozen=True)
class AxesRow:
    """One network at one length in one framework."""

    runtime: str  # of `RUNTIMES`
    times: AxesTimes
    batch: int  # utterances
    threads: tuple[int, ...] = ()  # of OpenMP, within an operation, parallel operations, if set

    @property
    def training_s(self) -> float | None:
        return _median(self.times.training_s)

    @property
    def inference_s(self) -> float | None:
        return _median(self.times.inference_s)


def _median(seconds: Sequence[float]) -> float | None:
    return statistics.median(seconds) if seconds else None


@dataclass(frozen=True)
class Axes:
    """All networks, lengths and frameworks."""

    rows: Sequence[AxesRow]  # by network, then runtime, then length
    absent: Sequence[str]  # runtimes that are not installed
    frame_s: float  # seconds between frames

    def audio_s_per_s(self, row: AxesRow) -> float | None:
        audio_s = row.batch * row.times.frames * self.frame_s
        return None if row.training_s is None else audio_s / row.training_s

    def against_graph(self, row: AxesRow) -> float | None:
        """Returns training speed relative to TensorFlow's graph, or None."""
        same = ("tensorflow", row.times.network, row.times.frames)
        rows = ((r.runtime, r.times.network, r.times.frames, r.training_s) for r in self.rows)
        graph = next((seconds for *names, seconds in rows if tuple(names) == same), None)
        return graph / row.training_s if graph and row.training_s else None

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "runtime": row.runtime,
                "batch": row.batch,
                "threads": row.threads,
                **dataclasses.asdict(row.times),
                "training_median_s": row.training_s,
                "inference_median_s": row.inference_s,
                "audio_s_per_s": self.audio_s_per_s(row),
            }
            for row in self.rows
        ]


def axes_table(axes: Axes) -> Table:
    columns = [
        Column("network", "", lambda row: row.times.network),
        Column("framework", "", lambda row: RUNTIMES[row.runtime]),
        Column("frames", "", lambda row: row.times.frames),
        Column("parameters\nmillions", "", lambda row: row.times.parameters, fixed(2, 1e-6)),
        Column("inference\nms", "", lambda row: row.inference_s, milliseconds),
        Column("training step\nms", "", lambda row: row.training_s, milliseconds),
        Column("audio s/s\nin training", "", axes.audio_s_per_s, "{:.4g}".format),
        Column("times TensorFlow\ngraph", "", axes.against_graph, fixed(2)),
        Column("first step\ns", "", lambda row: row.times.first_s, fixed(1)),
    ]
    notes = [
        f"Medians of batches of {axes.rows[0].batch} utterances in float32, without the first "
        "steps; the very first, which compiles, has its own column. The loss is the cross entropy "
        "of each output frame. TensorFlow's graph runs tfasr's LSTM and normalisation, the others "
        "Keras's."
    ]
    notes += [
        f"{UNKNOWN} for {row.times.network} on {RUNTIMES[row.runtime]} from {row.times.frames} "
        f"frames on: “{row.times.reason}”"
        for row in axes.rows
        if row.times.reason
    ]
    if axes.absent:
        named = ", ".join(RUNTIMES[name] for name in axes.absent)
        notes.append(f"Not installed and left out: {named}.")
    return table_of("Kinds of network, lengths and frameworks", columns, axes.rows, notes)


def threads_table(rows: Sequence[AxesRow]) -> Table:
    first = {row.runtime: row.training_s for row in reversed(rows)}

    def times_first(row: AxesRow) -> float | None:
        before, now = first[row.runtime], row.training_s
        return before and now and before / now

    columns = [
        Column("framework", "", lambda row: RUNTIMES[row.runtime]),
        Column("OMP, MKL\nthreads", "", lambda row: row.threads[0]),
        Column("intra-op\nthreads", "", lambda row: row.threads[1]),
        Column("inter-op\nthreads", "", lambda row: row.threads[2]),
        Column("inference\nms", "", lambda row: row.inference_s, milliseconds),
        Column("training step\nms", "", lambda row: row.training_s, milliseconds),
        Column("times the\nfirst row", "", times_first, fixed(2)),
    ]  # fmt: skip
    note = (
        f"{rows[0].times.network}, {rows[0].times.frames} frames, batches of {rows[0].batch}; each "
        "row has its own process. TensorFlow uses its own thread pools, not OpenMP's; "
        "PyTorch's operations use the threads of OpenMP and MKL."
    )
    return table_of("Threads", columns, rows, [note])


def axes_chart(axes: Axes) -> Chart:
    """Returns training and inference times over the length, with a panel for each network."""
    networks = list(dict.fromkeys(row.times.network for row in axes.rows))
    panels = []
    for title, seconds in (("training step", "training_s"), ("inference", "inference_s")):
        for network in networks:
            of_network = [row for row in axes.rows if row.times.network == network]
            panels.append(_axes_panel(of_network, f"{network}: {title}", seconds))
    caption = "Kinds of network over the length of their input, in each framework"
    return Chart("hardware_axes", caption, panels, columns=len(networks), width=290)


def _axes_panel(rows: Sequence[AxesRow], title: str, seconds: str) -> Panel:
    marks: list[Mark] = []
    for index, (runtime, name) in enumerate(RUNTIMES.items()):
        of_runtime = [row for row in rows if row.runtime == runtime and not row.times.reason]
        if of_runtime:
            xs = [row.times.frames for row in of_runtime]
            ys = [1000 * getattr(row, seconds) for row in of_runtime]
            marks += curve(xs, ys, run_colour(index), name)
    frames = sorted({row.times.frames for row in rows})
    values = [value for mark in marks for value in mark.y] or [1.0]
    x = counts_axis("feature frames", frames)
    y = Axis("ms", log=True, limits=(min(values) / 1.5, max(values) * 1.5))
    return Panel(marks, x, y, height=210, title=title)


def sweep_chart(analysis: SweepAnalysis) -> Chart:
    """Returns inference latency (bars: median to p99) and training throughput; rings: cliffs."""
    modes = ["inference", *(["training"] if analysis.of("training") else [])]
    panels = [_panel(analysis, mode) for mode in modes]
    caption = "Batch sizes and precisions, in inference and in training"
    return Chart("hardware_sweep", caption, panels, columns=len(modes), width=420)


def _panel(analysis: SweepAnalysis, mode: str) -> Panel:
    training = mode == "training"
    value = _utterances_per_s if training else lambda row: 1000 * row.p50_s
    precisions = list(dict.fromkeys(row.precision for row in analysis.rows))
    rows = [row for row in analysis.of(mode) if row.p50_s is not None]

    def place(row: SweepRow) -> float:
        # Offset, so that bars don't hide each other.
        index = precisions.index(row.precision)
        return row.batch + (0 if training else 0.05 * (index - 1.5))

    marks: list[Mark] = []
    for index, precision in enumerate(precisions):
        of_precision, colour = (
            [row for row in rows if row.precision == precision],
            run_colour(index),
        )
        if of_precision:
            xs = [place(row) for row in of_precision]
            if not training:
                y0, y1 = (
                    [1000 * getattr(row, q) for row in of_precision] for q in ("p50_s", "p99_s")
                )
                marks.append(Segments(x0=xs, x1=xs, y0=y0, y1=y1, colour=colour, width=1.4))
            marks += curve(
                xs, [value(row) for row in of_precision], colour, _legend(analysis, precision)
            )
    cliffs = [row for row in rows if row.cliff]
    marks += cliff_rings([place(row) for row in cliffs], [value(row) for row in cliffs])
    batches = sorted({row.batch for row in rows}) or [1]
    ends = (batches[0] - 0.5, batches[-1] + 0.5)
    ends = (batches[0] / 1.15, batches[-1] * 1.15) if training else ends
    highest = [value(row) if training else 1000 * row.p99_s for row in rows] or [1.0]
    label = "utterances per second" if training else "latency of a batch, ms: p50, bar to p99"
    x = Axis("batch, utterances", log=training, limits=ends, ticks=batches)
    return Panel(marks, x, Axis(label, limits=(0, 1.08 * max(highest))), title=mode)


def _utterances_per_s(row: SweepRow) -> float | None:
    return row.utterance_s and 1 / row.utterance_s


def _legend(analysis: SweepAnalysis, name: str) -> str:
    label = PRECISIONS[name].label
    if analysis.errors is not None:
        return f"{label}: WER {analysis.cost(name)} %"
    error = 100 * analysis.logit_errors[name]
    return label if name == "float32" else f"{label}: logits ±{error:.2g} %"


def run(
    config: SweepConfig, model: RecogniserConfig, features: FeatureConfig, context: Context
) -> Result:
    """Runs a process for each precision, in inference and in training, or with a run's model."""
    reason = "The hardware sweep needs tfasr's own training step and LiteRT, which need TensorFlow."
    require_tensorflow(reason, context)
    if context.run_dir is not None:
        experiment = open_trained(context.run_dir).experiment
        model, features = experiment.model, experiment.features
    errors = _errors(config, context)  # first, to report an unsuitable run at once
    calls, steps = (max(1, round(n * context.fraction)) for n in (config.calls, config.steps))
    rows: list[SweepRow] = []
    logit_errors: dict[str, float] = {}

    def task(precision: str, batches: Sequence[int], calls: int) -> SweepTask:
        return SweepTask(model, features.num_features, precision, batches, calls, config)

    for precision in config.precisions:
        inference = task(precision, config.inference_batches, calls)
        answer = call(measure_inference, inference, backend="tensorflow")
        logit_errors[precision] = answer.logit_error
        rows += [SweepRow.of("inference", precision, times) for times in answer.batches]
    for precision in config.precisions:
        if PRECISIONS[precision].trains and config.training_batches:
            training = task(precision, config.training_batches, steps)
            batches = call(measure_training, training, features, backend="tensorflow")
            rows += [SweepRow.of("training", precision, times) for times in batches]
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
    tables, values = sweep_tables(analysis), {**analysis.to_json(), "axes": axes and axes.to_json()}
    if threads := thread_rows(config, features, context.fraction):
        tables.append(threads_table(threads))
        values["threads"] = Axes(threads, (), analysis.frame_s).to_json()
    figures = {"hardware_sweep": lambda: sweep_chart(analysis)}
    if axes is not None:
        tables.append(axes_table(axes))
        figures["hardware_axes"] = lambda: axes_chart(axes)
    return Result(tables, values, config.warmup, figures)


def _axes(config: SweepConfig, features: FeatureConfig, fraction: float) -> Axes | None:
    if not config.networks:
        return None
    installed = installed_backends()
    absent = [name for name in config.runtimes if name.removesuffix("_xla") not in installed]
    task = _axes_task(config, features, fraction, config.networks, tuple(sorted(config.lengths)))
    rows = []
    for runtime in (name for name in config.runtimes if name not in absent):
        backend = runtime.removesuffix("_xla")
        task = dataclasses.replace(task, xla=backend != runtime)
        times = call(measure_axes, task, backend=backend, show_messages=False)
        rows += [AxesRow(runtime, of_length, config.axes_batch) for of_length in times]
    rows.sort(key=lambda row: config.networks.index(row.times.network))
    return Axes(rows, absent, features.step_samples / features.sample_rate_hz)


# Variables that libraries read when loaded: OpenMP, MKL, TensorFlow's two pools.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS") + tuple(
    f"TF_NUM_{pool}OP_THREADS" for pool in ("INTRA", "INTER")
)


def thread_rows(config: SweepConfig, features: FeatureConfig, fraction: float) -> list[AxesRow]:
    longest = (max(config.lengths),)
    task = _axes_task(config, features, fraction, (config.threads_network,), longest)
    installed = installed_backends()
    rows = []
    for runtime in ("tensorflow", "torch"):
        for threads in config.threads if runtime in {*config.runtimes} & {*installed} else ():
            chosen = dict(zip(_THREADS, map(str, threads[:1] + threads), strict=True))
            options = {"backend": runtime, "environment": chosen, "show_messages": False}
            (times,) = call(measure_axes, dataclasses.replace(task, inter_op=threads[2]), **options)
            rows.append(AxesRow(runtime, times, config.axes_batch, threads))
    return rows


def _axes_task(config: SweepConfig, features, fraction: float, networks, lengths) -> AxesTask:
    steps = max(1, round(config.axes_steps * fraction))
    sizes = (features.num_features, lengths, config.axes_batch, steps, config.warmup)
    return AxesTask({name: smaller(name, config) for name in networks}, *sizes)


def smaller(name: str, config: SweepConfig) -> RecogniserConfig:
    """Returns a network of ``config.network_units``; UsageError if its size is fixed."""
    network = MODELS[name]()
    if not config.network_units:
        return network
    if not hasattr(network, "smaller"):
        raise UsageError(
            f"SweepConfig.network_units must be 0 for {name!r}, which has no smaller(units). "
            f"Received: {config.network_units}."
        )
    return network.smaller(config.network_units)


def _errors(config: SweepConfig, context: Context) -> dict[str, dict[str, Any]] | None:
    if context.run_dir is None:
        return None
    where, shards = (context.run_dir, context.split), context.shard_dir
    return {
        name: call(measure_errors, *where, name, shards, backend="tensorflow").to_json()
        for name in config.precisions
    }


HARDWARE_SWEEP = Workload(run, (SweepConfig, ModelConfig, FeatureConfig), backends=())
