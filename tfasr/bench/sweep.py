"""Batch sizes and precisions: speed, memory, and how many errors a precision adds.

A workload of ``tfasr bench``. Each precision runs in a separate process: inference of
small batches, then training with batches that grow until the memory is full. With a
trained run, its word errors are measured in each precision. Kinds of network, lengths
of utterances and numbers of threads can be compared, too.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import special

from tfasr.alphabet import Alphabet
from tfasr.bench.backends import RUNTIMES, AxesTask, AxesTimes, measure_axes
from tfasr.bench.devices import (
    cliff_rings,
    fate_of,
    growing_batches,
    installed_backends,
    is_cliff,
)
from tfasr.bench.modules import gpu_peak_bytes
from tfasr.bench.workload import (
    Context,
    Result,
    Workload,
    require_tensorflow,
    seconds_of,
)
from tfasr.data.features import FeatureConfig
from tfasr.decoding.decoder import GreedyDecoder
from tfasr.display.chart import (
    Axis,
    Chart,
    Mark,
    Panel,
    Segments,
    counts_axis,
    curve,
    run_colour,
)
from tfasr.display.table import UNKNOWN, Column, Table, fixed, milliseconds, table_of
from tfasr.errors import UsageError
from tfasr.exporting.litert import QUANTISED, convert, runner
from tfasr.kit.config import (
    PRECISIONS,
    config_class,
    require,
    require_numbers,
    require_precision,
    swept,
)
from tfasr.kit.process import call, usable_cores
from tfasr.models.build import build_recogniser
from tfasr.models.model import MODELS, ModelConfig, RecogniserConfig, portable
from tfasr.scoring.errors import ErrorCounts, count_errors
from tfasr.telemetry.machine import peak_memory_mib
from tfasr.training.build import build_model
from tfasr.training.evaluation import Evaluator
from tfasr.training.experiment import Experiment, TrainingConfig
from tfasr.training.memory import synthetic_batch
from tfasr.training.trained import TrainedRun, open_trained

# The seed of random weights.
SEED = 1
# A network in inference: features and their lengths to logits.
Logits = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Utterances per call, as the talk asks for.
INFERENCE_BATCHES = (1, 2, 3, 4)
# Measured inference calls for each size, times the fraction.
CALLS = 200
# Measured training steps for each size, times the fraction.
STEPS = 10
# Calls and steps before the measured ones, left out of results.
WARMUP = 4
# Fraction of free memory that training may use.
MEMORY_SHARE = 0.8
# Measured with `SweepConfig.threads`.
THREADS_NETWORK = "acoustic_model"
# An utterance slower by this share in a larger batch is a cliff.
CLIFF_TOLERANCE = 0.05
# Utterances per step in comparisons of networks.
AXES_BATCH = 8


@config_class
class SweepConfig:
    """Precisions, batch sizes, networks and threads of the sweep.

    Attributes:
        precisions: float32 and others named in `tfasr.kit.config.swept`.
        training_batches: utterances per step, growing until memory is full.
        frames: feature frames of each utterance.
        networks: names in `tfasr.models.model.MODELS` to compare.
        network_units: width of networks; 0: as their configs say.
        lengths: feature frames in comparisons of networks.
        threads: each entry (threads of OpenMP and MKL, within an operation, operations
            in parallel) is measured in a process of TensorFlow and in one of PyTorch.
    """

    precisions: tuple[str, ...] = ("float32", "mixed_bfloat16", "mixed_float16", "int8")
    training_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    frames: int = 1000
    networks: tuple[str, ...] = ()
    network_units: int = 0
    lengths: tuple[int, ...] = (250, 500, 1000, 2000)
    threads: tuple[tuple[int, int, int], ...] = ()

    def check(self) -> None:
        require_precision(self, "precisions", swept())
        require("float32" in self.precisions, self, "precisions", "float32 and others")
        require_numbers(self, "training_batches", "lengths", "threads")
        require_numbers(self, "frames")
        require_numbers(self, "network_units", zero=True)
        valid = all(name in MODELS for name in self.networks)
        require(valid, self, "networks", f"of {MODELS.listed()}")
        require(bool(self.lengths), self, "lengths", "at least one")


@dataclass(frozen=True)
class SweepRow:
    """Times of one batch size in one precision.

    Attributes:
        mode: "inference" or "training".
        precision: one of `tfasr.kit.config.swept`.
        batch: utterances.
        p50_s: median seconds of a batch; None if it was not run.
        p90_s: of ten batches, nine took at most so many seconds.
        p99_s: of a hundred, 99.
        calls: how many were measured, after the warm-up.
        peak_memory_mib: of the process, smaller sizes included.
        device_memory_mib: of TensorFlow on the GPU, for this size alone.
        reason: why it was not run, or "".
    """

    mode: str
    precision: str
    batch: int
    p50_s: float | None
    p90_s: float | None = None
    p99_s: float | None = None
    calls: int = 0
    peak_memory_mib: float | None = None
    device_memory_mib: float | None = None
    reason: str = ""

    @classmethod
    def of(
        cls,
        mode: str,
        precision: str,
        batch: int,
        seconds: Sequence[float],
        **more: Any,
    ):
        """Returns a row with the quantiles of so many seconds; ``more`` are fields."""
        p50_s, p90_s, p99_s = np.quantile(seconds, [0.5, 0.9, 0.99]).tolist()
        calls = len(seconds)
        return cls(mode, precision, batch, p50_s, p90_s, p99_s, calls=calls, **more)


def sweep_rows(
    rows: Sequence[SweepRow],
    audio_s: float,
    tolerance: float,
) -> list[dict[str, Any]]:
    """Returns rows as JSON values, with what their comparison shows.

    Args:
        rows: of all precisions and sizes.
        audio_s: seconds of audio in an utterance.
        tolerance: see `is_cliff`.
    """
    seconds = {(row.mode, row.precision, row.batch): row.p50_s for row in rows}
    values = []

    for row in rows:
        kind = (row.mode, row.precision)
        utterance_s = row.p50_s and row.p50_s / row.batch
        others = [
            (n, s and s / n)
            for (*names, n), s in seconds.items()
            if tuple(names) == kind
        ]
        exact_s = seconds.get((row.mode, "float32", row.batch))
        more = {
            "cliff": is_cliff(row.batch, utterance_s, others, tolerance),
            "utterance_s": utterance_s,
            "audio_s_per_s": utterance_s and audio_s / utterance_s,
            "speedup_over_float32": exact_s and row.p50_s and exact_s / row.p50_s,
        }
        values.append(asdict(row) | more)

    return values


def measure_inference(
    config: SweepConfig,
    model,
    features: FeatureConfig,
    precision: str,
    calls: int,
) -> tuple[list[SweepRow], float]:
    """Returns a row for each batch size, smallest first, and the precision's error.

    The error is the logits' relative root mean square difference from float32, for
    random weights.

    Args:
        config: how long utterances are.
        model: a config of a network.
        features: how many values a frame has.
        precision: one of `tfasr.kit.config.swept`.
        calls: to measure of each size, after the warm-up.
    """
    _prepare()
    experiment = Experiment(model=model, features=features)
    answer = _inference_function(experiment, precision, config.frames)
    rows = []
    inputs = itemgetter("features", "feature_lengths")

    for size in INFERENCE_BATCHES:
        logits = partial(answer(size), *inputs(_noise(experiment, config, size)))
        rows.append(_measured("inference", precision, size, logits, calls))

    noise = inputs(_noise(experiment, config, 1))
    # With the same weights, as they are drawn by `SEED`.
    exact = _inference_function(experiment, "float32", config.frames)(1)(*noise)
    difference = answer(1)(*noise) - exact
    error = np.sqrt(np.mean(np.square(difference)) / np.mean(np.square(exact)))

    return rows, float(error)


def measure_training(
    config: SweepConfig,
    model,
    features: FeatureConfig,
    precision: str,
    steps: int,
) -> list[SweepRow]:
    """Measures training steps with growing batches.

    A batch that won't fit into memory has only a reason.

    Args:
        config: batch sizes, and how long utterances are.
        model: a config of a network.
        features: how many values a frame has.
        precision: one in which training is possible.
        steps: to measure of each size, after the warm-up.
    """
    _prepare()
    training = TrainingConfig(precision=precision, seed=SEED)
    experiment = Experiment(model=model, features=features, training=training)
    built = build_model(experiment, Alphabet(), compiled=True)
    step = tf.function(lambda batch: built.train_step(batch)["utterance_loss"])

    def measured(size: int) -> SweepRow:
        batch = {k: tf.constant(v) for k, v in _noise(experiment, config, size).items()}

        return _measured(
            "training",
            precision,
            size,
            lambda: step(batch),
            steps,
        )

    sizes = growing_batches(sorted(config.training_batches), MEMORY_SHARE, measured)

    return [
        row or SweepRow("training", precision, size, None, reason=reason)
        for size, row, reason in sizes
    ]


def _noise(
    experiment: Experiment,
    config: SweepConfig,
    size: int,
) -> dict[str, np.ndarray]:
    """Returns a random batch of full-length utterances."""
    # One utterance many times takes as long as different ones.
    noise = synthetic_batch(experiment, 1, config.frames)
    return {
        name: np.repeat(tensor.numpy(), size, axis=0) for name, tensor in noise.items()
    }


def _prepare() -> None:
    """Quietens libraries, and lets GPUs allocate only what is needed."""
    tf.get_logger().setLevel("ERROR")
    # LiteRT's converter logs the renaming of its inputs through absl.
    logging.getLogger("absl").setLevel(logging.ERROR)

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)


def _inference_function(
    experiment: Experiment,
    precision: str,
    frames: int,
) -> Callable[[int], Logits]:
    """Returns a function of the batch size, which LiteRT needs to know beforehand.

    It returns a function from features and lengths to logits.
    """
    config = experiment.model
    classes = Alphabet().num_classes
    num_features = experiment.features.num_features
    if PRECISIONS[precision].litert:
        model = build_recogniser(portable(config), num_features, classes, seed=SEED)
        quantised = precision in QUANTISED

        return lambda batch: runner(
            convert(model, batch, frames, num_features, quantised=quantised),
            usable_cores(),
        )

    model = build_recogniser(config, num_features, classes, seed=SEED, dtype=precision)
    forward = tf.function(lambda features, lengths: model(features, lengths))

    # Reading the result ensures that it was computed.
    return lambda _: lambda features, lengths: forward(features, lengths).numpy()


def _measured(
    mode: str,
    precision: str,
    size: int,
    call: Callable[[], Any],
    calls: int,
) -> SweepRow:
    """Times a call after warm-up calls; returns a row with its memory."""
    if tf.config.list_logical_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")

    def to_its_end() -> None:
        call()
        tf.test.experimental.sync_devices()

    seconds = [seconds_of(to_its_end) for _ in range(WARMUP + calls)][WARMUP:]
    device_memory_mib = None
    on_gpu = gpu_peak_bytes()
    if on_gpu is not None:
        device_memory_mib = on_gpu / 2**20

    return SweepRow.of(
        mode,
        precision,
        size,
        seconds,
        peak_memory_mib=peak_memory_mib(),
        device_memory_mib=device_memory_mib,
    )


def measure_errors(
    run_dir: Path,
    split: str,
    precision: str,
    shard_dir=None,
    checkpoint: str = "best",
) -> ErrorCounts:
    """Counts a run's errors on a split in one precision, with greedy decoding.

    Args:
        run_dir: of the run.
        split: such as "validation".
        precision: one of `tfasr.kit.config.swept`.
        shard_dir: folder of the split; None for the run's own shards.
        checkpoint: "best", "last" or a file.
    """
    trained = open_trained(run_dir)
    source = trained.source(split, shard_dir)
    if PRECISIONS[precision].litert:
        return _by_litert(trained, source, precision, checkpoint)

    model = trained.model(checkpoint, precision=precision)

    return Evaluator(model, source, GreedyDecoder(trained.alphabet)).evaluate().counts


def _by_litert(
    trained: TrainedRun,
    source,
    precision: str,
    checkpoint: str,
) -> ErrorCounts:
    """Counts a run's errors with a converted model."""
    config = trained.experiment.model
    num_features = trained.experiment.features.num_features
    model = build_recogniser(
        portable(config), num_features, trained.alphabet.num_classes
    )
    model.set_weights(trained.model(checkpoint).recogniser.get_weights())
    utterances = source.split.utterances
    frames = max(utterance.frames for utterance in utterances)
    # One utterance at a time, all padded to the longest; padding on the right changes
    # nothing.
    converted = convert(
        model,
        1,
        frames,
        num_features,
        quantised=precision in QUANTISED,
    )
    logits = runner(converted, usable_cores())
    decoder = GreedyDecoder(trained.alphabet)
    texts = {}

    for batch in source.evaluation():
        rows = (
            batch[name].numpy() for name in ("positions", "features", "feature_lengths")
        )
        for position, features, length in zip(*rows, strict=True):
            padded = np.zeros((1, frames, num_features), np.float32)
            padded[0, :length] = features[:length]
            lengths = np.array([length], np.int32)
            log_probs = special.log_softmax(logits(padded, lengths), axis=-1)
            outputs = np.asarray(config.output_lengths(lengths))
            texts[int(position)] = decoder.decode(log_probs, outputs)[0].text

    ordered = [texts[utterance.position] for utterance in utterances]

    return count_errors([utterance.text for utterance in utterances], ordered)


def _of(values: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    """Returns the rows of "inference" or "training"."""
    return [row for row in values["rows"] if row["mode"] == mode]


def _cost(values: dict[str, Any], precision: str) -> str:
    """Formats a precision's WER in percent or, without a run, its relative logit error."""
    if values["errors"] is not None:
        return f"{100 * values['errors'][precision]['wer']:.2f}"

    error = values["relative_logit_error"].get(precision)
    if error is None:
        return UNKNOWN

    return f"{error:.2g}"


def sweep_tables(values: dict[str, Any], calls: int, warmup: int) -> list[Table]:
    """Returns the tables of a sweep's ``results``.

    Args:
        values: the results.
        calls: how many inference calls each size had.
        warmup: calls and steps before the measured ones.
    """
    per_utterance = Column("ms per\nutterance", "", "utterance_s", milliseconds)
    of_modes = {
        "inference": (
            f"Latency of a batch with {values['frames']} frames per utterance, {calls} "
            f"calls after {warmup} warm-up calls. Each precision runs in its own process.",
            Column("p50\nms", "", "p50_s", milliseconds),
            Column("p90\nms", "", "p90_s", milliseconds),
            Column("p99\nms", "", "p99_s", milliseconds),
            per_utterance,
        ),
        "training": (
            f"Medians of whole training steps after {warmup} warm-up steps of each size. "
            "Batches grow as long as they fit into memory. Errors are those of inference in the "
            "same precision.",
            Column("step\nms", "", "p50_s", milliseconds),
            per_utterance,
            Column("utterances/s", "", _utterances_per_s, "{:.4g}".format),
        ),
    }
    named = [
        Column("precision", "", lambda row: PRECISIONS[row["precision"]].label),
        Column("batch", "", "batch"),
    ]
    cost = "relative\nlogit error" if values["errors"] is None else "WER\n%"

    others = [
        Column("audio\ns/s", "", "audio_s_per_s", "{:.4g}".format),
        Column("times\nfloat32", "", "speedup_over_float32", fixed(2)),
        Column(cost, "", lambda row: _cost(values, row["precision"])),
        Column(
            "peak\nMiB",
            "",
            lambda r: r["device_memory_mib"] or r["peak_memory_mib"],
            fixed(0),
        ),
        Column("cliff", "", fate_of),
    ]

    notes = [
        "Cliff: an utterance takes longer than in a smaller batch. Peak: the most GPU memory used "
        "or, without a GPU, the most memory of the process up to this size.",
        "float16 and bfloat16: Keras's mixed precision. LiteRT int8: 8-bit weights by dynamic "
        "range quantisation after training, with Keras's LSTM loop.",
    ]

    if values["errors"] is None:
        notes.append(
            "Relative logit error: root mean square difference from float32, divided by float32's "
            "root mean square, with random weights. It can't predict word errors; for those use "
            "--run_dir."
        )

    tables = []
    for mode, (note, *times) in of_modes.items():
        if rows := _of(values, mode):
            title = f"{mode.title()} over batch sizes and precisions"
            tables.append(
                table_of(title, [*named, *times, *others], rows, [note, *notes])
            )

    if values["errors"] is not None:
        tables.append(_error_table(values))

    return tables


def _utterances_per_s(row: dict[str, Any]) -> float | None:
    """Returns a row's utterances per second; None if it was not run."""
    return row["utterance_s"] and 1 / row["utterance_s"]


def _error_table(values: dict[str, Any]) -> Table:
    """Returns a line per precision, compared with float32."""
    exact = values["errors"]["float32"]["wer"]
    signed = "{:+.2f}".format
    columns = [
        Column("precision", "", lambda row: PRECISIONS[row[0]].label),
        Column("WER\n%", "", lambda row: row[1]["wer"], fixed(2, 100)),
        Column("CER\n%", "", lambda row: row[1]["cer"], fixed(2, 100)),
        Column(
            "WER against\nfloat32",
            "",
            lambda row: 100 * (row[1]["wer"] - exact),
            signed,
        ),
        Column("utterances", "", lambda row: row[1]["utterances"]),
    ]
    note = f"The run's best checkpoint on {values['split']}, with greedy decoding."
    rows = list(values["errors"].items())

    return table_of("Errors in each precision", columns, rows, [note])


def axes_rows(times: Sequence[AxesTimes], frame_s: float) -> list[dict[str, Any]]:
    """Returns times as JSON values.

    ``frame_s`` is the seconds between feature frames.
    """
    rows = []
    for row in times:
        audio_s = row.batch * row.frames * frame_s
        step_s = row.training_median_s
        rows.append(
            asdict(row)
            | {
                "training_median_s": step_s,
                "inference_median_s": row.inference_median_s,
                "audio_s_per_s": step_s and audio_s / step_s,
            }
        )

    return rows


_FRAMEWORK = Column("framework", "", lambda row: RUNTIMES[row["runtime"]])
_MEDIANS = [
    Column("inference\nms", "", "inference_median_s", milliseconds),
    Column("training step\nms", "", "training_median_s", milliseconds),
]


def axes_table(rows: Sequence[dict[str, Any]], absent: Sequence[str]) -> Table:
    """Returns a line per row of `axes_rows`; ``absent`` runtimes are not installed."""
    of_graph = (row for row in rows if row["runtime"] == "tensorflow")
    graph_s = {
        (row["network"], row["frames"]): row["training_median_s"] for row in of_graph
    }

    def times_graph(row: dict[str, Any]) -> float | None:
        step_s = row["training_median_s"]
        exact_s = graph_s.get((row["network"], row["frames"]))

        return step_s and exact_s and exact_s / step_s

    columns = [
        Column("network", "", "network"),
        _FRAMEWORK,
        Column("frames", "", "frames"),
        Column("parameters\nmillions", "", "parameters", fixed(2, 1e-6)),
        *_MEDIANS,
        Column("audio s/s\nin training", "", "audio_s_per_s", "{:.4g}".format),
        Column("times TensorFlow\ngraph", "", times_graph, fixed(2)),
        Column("first step\ns", "", "first_s", fixed(1)),
    ]

    notes = [
        f"Medians of batches of {rows[0]['batch']} utterances in float32, without the first steps; "
        "the very first, which compiles, has its own column. The loss is the cross entropy of each "
        "output frame. TensorFlow's graph runs tfasr's LSTM and normalisation, the others Keras's."
    ]

    notes += [
        f"{UNKNOWN} for {row['network']} on {RUNTIMES[row['runtime']]} from {row['frames']} "
        f"frames on: “{row['reason']}”"
        for row in rows
        if row["reason"]
    ]

    if absent:
        named = ", ".join(RUNTIMES[name] for name in absent)
        notes.append(f"Not installed and left out: {named}.")

    return table_of("Kinds of network, lengths and frameworks", columns, rows, notes)


def threads_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Returns a line per row of `axes_rows`, compared with the first of its framework."""
    # Reversed, so that each runtime's first row is kept.
    first = {row["runtime"]: row["training_median_s"] for row in reversed(rows)}

    def times_first(row: dict[str, Any]) -> float | None:
        before = first[row["runtime"]]
        now = row["training_median_s"]

        return before and now and before / now

    columns = [
        _FRAMEWORK,
        Column("OMP, MKL\nthreads", "", lambda row: row["threads"][0]),
        Column("intra-op\nthreads", "", lambda row: row["threads"][1]),
        Column("inter-op\nthreads", "", lambda row: row["threads"][2]),
        *_MEDIANS,
        Column("times the\nfirst row", "", times_first, fixed(2)),
    ]

    note = (
        f"{rows[0]['network']}, {rows[0]['frames']} frames, batches of {rows[0]['batch']}; each "
        "row has its own process. TensorFlow uses its own thread pools, not OpenMP's; PyTorch's "
        "operations use the threads of OpenMP and MKL."
    )

    return table_of("Threads", columns, rows, [note])


def axes_chart(rows: Sequence[dict[str, Any]]) -> Chart:
    """Draws times over lengths: a panel per network, for training and inference."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    panels = []

    for title, part in (("training step", "training"), ("inference", "inference")):
        for network in networks:
            of_network = [row for row in rows if row["network"] == network]
            panels.append(
                _axes_panel(of_network, f"{network}: {title}", f"{part}_median_s")
            )

    caption = "Kinds of network over the length of their input, in each framework"

    return Chart("hardware_axes", caption, panels, columns=len(networks), width=290)


def _axes_panel(rows: Sequence[dict[str, Any]], title: str, seconds: str) -> Panel:
    """Draws one network's times, with a curve per framework."""
    marks: list[Mark] = []
    for index, (runtime, name) in enumerate(RUNTIMES.items()):
        of_runtime = [
            row for row in rows if row["runtime"] == runtime and not row["reason"]
        ]
        if of_runtime:
            xs = [row["frames"] for row in of_runtime]
            ys = [1000 * row[seconds] for row in of_runtime]
            marks += curve(xs, ys, run_colour(index), name)

    frames = sorted({row["frames"] for row in rows})
    values = [value for mark in marks for value in mark.y] or [1.0]
    x = counts_axis("feature frames", frames)
    y = Axis("ms", log=True, limits=(min(values) / 1.5, max(values) * 1.5))

    return Panel(marks, x, y, height=210, title=title)


def sweep_chart(values: dict[str, Any]) -> Chart:
    """Draws latency over the batch size, and training's speed."""
    modes = ["inference"]
    if _of(values, "training"):
        modes.append("training")

    panels = [_panel(values, mode) for mode in modes]
    caption = "Batch sizes and precisions, in inference and in training"

    return Chart("hardware_sweep", caption, panels, columns=len(modes), width=420)


def _panel(values: dict[str, Any], mode: str) -> Panel:
    """Draws "inference" or "training", with a curve per precision.

    Inference shows milliseconds of a batch, up to the 99th percentile; training shows
    utterances per second.
    """
    training = mode == "training"
    precisions = list(dict.fromkeys(row["precision"] for row in values["rows"]))
    rows = [row for row in _of(values, mode) if row["p50_s"] is not None]

    def place(row: dict[str, Any]) -> float:
        if training:
            return row["batch"]

        # Offset, so that bars don't hide each other.
        return row["batch"] + 0.05 * (precisions.index(row["precision"]) - 1.5)

    def value(row: dict[str, Any]) -> float:
        if training:
            return _utterances_per_s(row)

        return 1000 * row["p50_s"]

    marks: list[Mark] = []
    for index, precision in enumerate(precisions):
        of_precision = [row for row in rows if row["precision"] == precision]
        if of_precision:
            xs = list(map(place, of_precision))
            ys = list(map(value, of_precision))
            colour = run_colour(index)

            if not training:
                y1 = [1000 * row["p99_s"] for row in of_precision]
                marks.append(
                    Segments(x0=xs, x1=xs, y0=ys, y1=y1, colour=colour, width=1.4)
                )

            marks += curve(xs, ys, colour, _legend(values, precision))

    cliffs = [row for row in rows if row["cliff"]]
    marks += cliff_rings(list(map(place, cliffs)), list(map(value, cliffs)))
    batches = sorted({row["batch"] for row in rows}) or [1]

    if training:
        ends = (batches[0] / 1.15, batches[-1] * 1.15)
        highest = max(map(value, rows), default=1.0)
        label = "utterances per second"
    else:
        ends = (batches[0] - 0.5, batches[-1] + 0.5)
        highest = max((1000 * row["p99_s"] for row in rows), default=1.0)
        label = "latency of a batch, ms: p50, bar to p99"

    x = Axis("batch, utterances", log=training, limits=ends, ticks=batches)

    return Panel(marks, x, Axis(label, limits=(0, 1.08 * highest)), title=mode)


def _legend(values: dict[str, Any], name: str) -> str:
    """Returns a precision's name, with its errors."""
    label = PRECISIONS[name].label
    if values["errors"] is not None:
        return f"{label}: WER {_cost(values, name)} %"

    # All errors are relative to float32.
    if name == "float32":
        return label

    error = 100 * values["relative_logit_error"][name]
    return f"{label}: logits ±{error:.2g} %"


def run(
    config: SweepConfig,
    model,
    features: FeatureConfig,
    context: Context,
) -> Result:
    """Measures each precision in a separate process, and then the comparisons."""
    reason = "The hardware sweep needs tfasr's own training step and LiteRT, which need TensorFlow."
    require_tensorflow(reason, context)
    if context.run_dir is not None:
        experiment = open_trained(context.run_dir).experiment
        model = experiment.model
        features = experiment.features

    # first, so that an unsuitable run is reported at once
    errors = _errors(config, context)
    calls, steps = (max(1, round(n * context.fraction)) for n in (CALLS, STEPS))
    rows: list[SweepRow] = []
    logit_errors: dict[str, float] = {}

    for precision in config.precisions:
        batches, logit_errors[precision] = call(
            measure_inference,
            config,
            model,
            features,
            precision,
            calls,
            backend="tensorflow",
        )
        rows += batches

    for precision in config.precisions:
        if PRECISIONS[precision].trains and config.training_batches:
            rows += call(
                measure_training,
                config,
                model,
                features,
                precision,
                steps,
                backend="tensorflow",
            )

    times, absent = _axes(config, features, context.fraction)
    frame_s = features.step_samples / features.sample_rate_hz
    axes = axes_rows(times, frame_s) or None
    values = {
        # Inference, then training, by growing batch size.
        "rows": sweep_rows(rows, config.frames * frame_s, CLIFF_TOLERANCE),
        "errors": errors,
        "split": context.split if context.run_dir else None,
        "relative_logit_error": logit_errors,
        "frames": config.frames,
        "axes": axes,
    }
    tables = sweep_tables(values, calls, WARMUP)

    if threads := axes_rows(thread_rows(config, features, context.fraction), frame_s):
        tables.append(threads_table(threads))
        values["threads"] = threads

    figures = {"hardware_sweep": lambda: sweep_chart(values)}
    if axes is not None:
        tables.append(axes_table(axes, absent))
        figures["hardware_axes"] = lambda: axes_chart(axes)

    return Result(tables, values, WARMUP, figures)


def _axes(
    config: SweepConfig,
    features: FeatureConfig,
    fraction: float,
) -> tuple[list[AxesTimes], list[str]]:
    """Measures networks and lengths on each runtime; also returns those not installed."""
    installed = installed_backends()
    absent = [name for name in RUNTIMES if name.removesuffix("_xla") not in installed]
    task = _axes_task(
        config,
        features,
        fraction,
        config.networks,
        tuple(sorted(config.lengths)),
    )
    rows: list[AxesTimes] = []

    for runtime in (name for name in RUNTIMES if task.networks and name not in absent):
        rows += call(
            measure_axes,
            replace(task, runtime=runtime),
            backend=runtime.removesuffix("_xla"),
            show_messages=False,
        )

    # By network, then by runtime and length.
    rows.sort(key=lambda row: config.networks.index(row.network))

    return rows, absent


# Read by libraries when they load: OpenMP, MKL, TensorFlow's two thread pools.
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


def thread_rows(
    config: SweepConfig,
    features: FeatureConfig,
    fraction: float,
) -> list[AxesTimes]:
    """Measures each entry of ``config.threads`` on TensorFlow and PyTorch.

    Each has a process of its own, because libraries read the numbers when they load.
    """
    longest = (max(config.lengths),)
    task = _axes_task(config, features, fraction, (THREADS_NETWORK,), longest)
    installed = installed_backends()
    rows = []

    for runtime in ("tensorflow", "torch"):
        if runtime not in RUNTIMES or runtime not in installed:
            continue

        for threads in config.threads:
            chosen = dict(zip(_THREADS, map(str, threads[:1] + threads), strict=True))
            rows += call(
                measure_axes,
                replace(task, runtime=runtime, threads=threads),
                backend=runtime,
                environment=chosen,
                show_messages=False,
            )

    return rows


def _axes_task(
    config: SweepConfig,
    features,
    fraction: float,
    networks,
    lengths,
) -> AxesTask:
    """Returns the task of one process: the networks and lengths to measure."""
    return AxesTask(
        {name: smaller(name, config) for name in networks},
        features.num_features,
        lengths,
        AXES_BATCH,
        steps=max(1, round(STEPS * fraction)),
        warmup=WARMUP,
    )


def smaller(name: str, config: SweepConfig) -> RecogniserConfig:
    """Returns a network of width ``config.network_units``.

    Raises:
        UsageError: if the network has no smaller sizes.
    """
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
    """Returns the errors of ``--run_dir`` in each precision; None without a run."""
    if context.run_dir is None:
        return None

    errors = {}
    for name in config.precisions:
        counts = call(
            measure_errors,
            context.run_dir,
            context.split,
            name,
            context.shard_dir,
            backend="tensorflow",
        )
        errors[name] = counts.to_json()

    return errors


HARDWARE_SWEEP = Workload(run, (SweepConfig, ModelConfig, FeatureConfig), backends=())
