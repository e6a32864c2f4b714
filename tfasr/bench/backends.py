"""The same training steps on TensorFlow, JAX and PyTorch, which take turns.

A workload of ``tfasr bench``: each backend runs in separate processes, as Keras's
backend can't change within one. The hardware sweep uses `measure_axes` for its
comparison of networks, and the roofline `spotter_kernels`.
"""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import keras
import numpy as np

from tfasr.bench.devices import describe_backend, installed_backends, out_of_memory
from tfasr.bench.keywords import make_spotter
from tfasr.bench.steppers import (
    Batch,
    Kernels,
    Stepper,
    ctc_losses,
    make_stepper,
    profile,
)
from tfasr.bench.workload import BACKENDS, Context, Result, Workload, seconds_of
from tfasr.data.features import FeatureConfig
from tfasr.display.chart import Axis, Chart, Labels, Panel, Rects, rows_axis, run_colour
from tfasr.display.table import UNKNOWN, Column, Table, fixed, table_of, three_digits
from tfasr.errors import UsageError
from tfasr.kit.config import config_class, require, require_numbers
from tfasr.kit.process import call
from tfasr.models import keyword_spotter as spotter
from tfasr.models.build import build_recogniser
from tfasr.models.keyword_spotter import KeywordSpotterConfig
from tfasr.models.model import ModelConfig, RecogniserConfig, output_frames, portable

# How networks are run in the sweep's comparison, by the name in results.
RUNTIMES = {
    "tensorflow": "TensorFlow graph",
    "tensorflow_xla": "TensorFlow, XLA",
    "jax": "JAX (XLA)",
    "torch": "PyTorch eager",
}
# PyTorch without Keras, as PyTorch users write a keyword spotter
NATIVE = "native_torch"
KEYWORDS = "keyword spotter"
ACOUSTIC = "acoustic model"
# English letters, the apostrophe, the space and the blank.
NUM_CLASSES = 29
# The classes in comparisons of networks.
_AXES_CLASSES = 30
# Characters of a reason that are shown.
_REASON = 160
_TITLE = "One training step on Keras's backends, and in PyTorch alone"
_log = logging.getLogger(__name__)


# Steps of each model in each process that are left out of results.
WARMUP_STEPS = 3
# Utterances per step of the keyword spotter.
KEYWORD_BATCH_SIZE = 64


@config_class
class BackendsConfig:
    """The comparison's backends, sizes and repetitions.

    Attributes:
        backends: Keras's backends and `NATIVE`, if installed.
        rounds: processes per backend; backends take turns.
        steps: measured steps per model in each process.
        acoustic_batch_size: utterances per step; 0 leaves the acoustic model out.
        acoustic_frames: feature frames of the acoustic model's utterances.
    """

    backends: tuple[str, ...] = (*BACKENDS, NATIVE)
    rounds: int = 3
    steps: int = 10
    acoustic_batch_size: int = 16
    acoustic_frames: int = 600

    def check(self) -> None:
        require_numbers(self, "rounds", "steps", "acoustic_frames")
        require_numbers(self, "acoustic_batch_size", zero=True)
        names = (*BACKENDS, NATIVE)
        valid = bool(self.backends) and set(self.backends) <= set(names)
        require(valid, self, "backends", f"some of {names}")


@dataclass(frozen=True)
class BackendTimes:
    """One model on one backend, in one process; no times if it can't run there.

    Attributes:
        model: its name.
        layout: of image inputs; "" for other models.
        backend: Keras's backend, or `NATIVE`.
        batch_size: utterances.
        first_s: seconds of the first step, which compiles.
        forward_ms: milliseconds of each forward pass.
        step_ms: milliseconds of each step.
        reason: why times are missing, or "".
    """

    model: str
    layout: str
    backend: str
    batch_size: int
    first_s: float | None = None
    forward_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    reason: str = ""


def row_of(processes: Sequence[BackendTimes]) -> dict[str, Any]:
    """Returns a model's times on a backend as JSON.

    Medians are those of the processes' medians, so that each process counts the same.
    """
    first = processes[0]
    step_ms = _median([times.step_ms for times in processes])
    utterances_per_s = None
    first_step_s = None

    if step_ms is not None:
        utterances_per_s = 1000 * first.batch_size / step_ms
    if not first.reason:
        first_step_s = _median([[times.first_s] for times in processes])

    return {
        "model": first.model,
        "layout": first.layout,
        "backend": first.backend,
        "batch_size": first.batch_size,
        "utterances_per_s": utterances_per_s,
        "reason": first.reason,
        "forward_ms": _median([times.forward_ms for times in processes]),
        "step_ms": step_ms,
        "first_step_s": first_step_s,
        "all_forward_ms": [times.forward_ms for times in processes],
        "all_step_ms": [times.step_ms for times in processes],
    }


def _median(processes: Sequence[Sequence[float]]) -> float | None:
    """Returns the median of medians; None if there are no times."""
    medians = [statistics.median(times) for times in processes if times]
    if not medians:
        return None

    return statistics.median(medians)


# `describe_backend` and the times.
Answer = tuple[dict[str, Any], list[BackendTimes]]


def measure(
    backend: str,
    config: BackendsConfig,
    keyword,
    acoustic,
    num_features: int,
) -> Answer:
    """Measures the models in this process; on `NATIVE`, only the keyword spotter."""
    described = describe_backend()
    if backend == NATIVE:
        described |= {"name": NATIVE, "versions": {"torch": metadata.version("torch")}}

    models = [_keywords(backend, config, keyword, layout) for layout in spotter.LAYOUTS]
    if config.acoustic_batch_size and backend != NATIVE:
        models.append(_acoustic(backend, config, acoustic, num_features))

    return described, models


def _keywords(
    backend: str,
    config: BackendsConfig,
    network,
    layout: str,
) -> BackendTimes:
    """Measures the keyword spotter; a layout that the backend refuses becomes a reason."""
    framework = "torch" if backend == NATIVE else "keras"
    size = KEYWORD_BATCH_SIZE
    stepper, _ = make_spotter(network, framework, layout, learning_rate=0.001)
    untimed = BackendTimes(KEYWORDS, layout, backend, size)

    try:
        return _timed(untimed, stepper, random_batch(network, size), config)
    except Exception as error:  # each framework has its own error class
        sentence = next(
            (s for s in str(error).split(". ") if "only support" in s), None
        )
        if sentence is None:
            raise

        reason = next(line for line in sentence.splitlines() if "only support" in line)
        return replace(untimed, reason=reason.strip().rstrip(".")[:_REASON])


def _acoustic(
    backend: str,
    config: BackendsConfig,
    network,
    num_features: int,
) -> BackendTimes:
    """Measures the acoustic model, with CTC and AdaDelta as in the paper."""
    model = build_recogniser(network, num_features, NUM_CLASSES)
    size = config.acoustic_batch_size
    # Random features take as long as speech.
    frames = config.acoustic_frames
    random = np.random.default_rng(0)
    # About as many as in English speech at 100 frames per second.
    num_labels = max(1, frames // 8)
    features, lengths = _noise(random, size, frames, num_features)
    targets = (
        np.asarray(network.output_lengths(lengths), np.int32),
        random.integers(0, NUM_CLASSES - 1, (size, num_labels), np.int32),
        np.full(size, num_labels, np.int32),
    )
    stepper = make_stepper(model, ctc_losses, keras.optimizers.Adadelta(1.0))
    untimed = BackendTimes(ACOUSTIC, "", backend, size)

    return _timed(untimed, stepper, Batch((features, lengths), targets), config)


def _timed(
    untimed: BackendTimes,
    stepper: Stepper,
    batch: Batch,
    config: BackendsConfig,
) -> BackendTimes:
    """Returns a model's times, those of the first step apart.

    Forward passes and steps alternate, so that a machine that slows down affects both.
    """
    placed = stepper.place(batch)
    first_s = seconds_of(stepper.update, placed)

    for _ in range(WARMUP_STEPS - 1):
        stepper.update(placed)

    for _ in range(WARMUP_STEPS):
        stepper.forward(placed)

    forward_ms = []
    step_ms = []

    for _ in range(config.steps):
        forward_ms.append(1000 * seconds_of(stepper.forward, placed))
        step_ms.append(1000 * seconds_of(stepper.update, placed))

    return replace(untimed, first_s=first_s, forward_ms=forward_ms, step_ms=step_ms)


def _noise(
    random: np.random.Generator,
    size: int,
    frames: int,
    num_features: int,
) -> tuple:
    """Returns random features and their lengths, without padding.

    Features are float32 ``(size, frames, num_features)``, lengths int32 ``(size,)``.
    """
    features = random.standard_normal((size, frames, num_features), np.float32)
    return features, np.full(size, frames, np.int32)


def random_batch(network: KeywordSpotterConfig, size: int) -> Batch:
    """Returns a batch for the keyword spotter."""
    random = np.random.default_rng(0)
    features, _ = _noise(random, size, network.num_frames, network.num_bins)

    return Batch((features,), (random.integers(0, network.num_words, size, np.int32),))


# By backend.
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch alone"}


def spotter_kernels(framework: str, batch: int, steps: int) -> Kernels:
    """Profiles a training step of the keyword spotter on a backend of `FRAMEWORKS`.

    Each framework gets its faster layout.
    """
    network = KeywordSpotterConfig()
    if framework == "torch":
        stepper, _ = make_spotter(network, "torch", "NCHW", learning_rate=0.003)
    else:
        stepper, _ = make_spotter(network, "keras", "NHWC", learning_rate=0.003)

    placed = stepper.place(random_batch(network, batch))

    for _ in range(3):
        stepper.update(placed)

    return counted(profile(lambda: stepper.update(placed), steps), network, batch)


# Parts of the network that an operation computes. oneDNN's names also start with
# _MklNative.
_PARTS = {
    "Conv2D": [spotter.FORWARD],
    "Conv2DBackpropFilter": [spotter.OF_FILTERS],
    "Conv2DBackpropInput": [spotter.OF_INPUTS],
    "MatMul": [spotter.CLASSIFIER, spotter.CLASSIFIER_BACK],
    "aten::mkldnn_convolution": [spotter.FORWARD],
    "aten::cudnn_convolution": [spotter.FORWARD],
    "aten::_slow_conv2d_forward": [spotter.FORWARD],
    "aten::convolution_backward": [spotter.OF_FILTERS, spotter.OF_INPUTS],
    "aten::addmm": [spotter.CLASSIFIER],
    "aten::mm": [spotter.CLASSIFIER_BACK],
}


def counted(kernels: Kernels, network: KeywordSpotterConfig, batch: int) -> Kernels:
    """Adds FLOPs and bytes to kernels that are convolutions or matrix products.

    Which ones are, their names say. Other kernels stay without.
    """
    cost = spotter.step_cost(network, batch)
    with_costs = []

    for kernel in kernels.kernels:
        if parts := _PARTS.get(kernel.name.removeprefix("_Mkl").removeprefix("Native")):
            kernel = replace(
                kernel,
                flops=sum(cost.flops[part] for part in parts),
                moved_bytes=sum(cost.moved[part] for part in parts),
            )

        with_costs.append(kernel)

    return Kernels(with_costs, kernels.reason)


@dataclass(frozen=True)
class AxesTask:
    """What one process measures of the hardware sweep's comparisons.

    Attributes:
        networks: configs by name.
        num_features: values per frame.
        frames: lengths of utterances, growing.
        batch: utterances.
        steps: measured per network and length.
        warmup: steps before the measured ones, left out of results.
        runtime: a key of `RUNTIMES`.
        threads: numbers of threads (OpenMP, within an operation, parallel operations);
            () for the defaults.
    """

    networks: dict[str, RecogniserConfig]
    num_features: int
    frames: tuple[int, ...]
    batch: int
    steps: int
    warmup: int
    runtime: str = "tensorflow"
    threads: tuple[int, ...] = ()


@dataclass(frozen=True)
class AxesTimes:
    """Times of one network at one length; no times if it could not run.

    Attributes:
        runtime: a key of `RUNTIMES`.
        batch: utterances.
        threads: see `AxesTask`.
        network: its name.
        frames: feature frames of each utterance.
        parameters: trainable ones.
        inference_s: seconds of each inference call.
        training_s: seconds of each training step.
        first_s: seconds of the first training step, which compiles.
        reason: why it was not run, or "".
    """

    runtime: str
    batch: int
    threads: tuple[int, ...]
    network: str
    frames: int
    parameters: int = 0
    inference_s: list[float] = field(default_factory=list)
    training_s: list[float] = field(default_factory=list)
    first_s: float | None = None
    reason: str = ""

    @property
    def training_median_s(self) -> float | None:
        """Median seconds of a training step."""
        return _median([self.training_s])

    @property
    def inference_median_s(self) -> float | None:
        """Median seconds of an inference call."""
        return _median([self.inference_s])


def measure_axes(task: AxesTask) -> list[AxesTimes]:
    """Measures every network and length; the loss is the cross entropy of output frames.

    Cross entropy, because the frameworks' CTC losses differ too much. Lengths grow
    until one doesn't fit into memory.
    """
    if task.threads and keras.backend.backend() == "torch":
        import torch

        # PyTorch reads no environment variable for these.
        torch.set_num_interop_threads(task.threads[2])

    times = []
    xla = task.runtime.endswith("_xla")

    for name, config in task.networks.items():
        if xla:  # compiles only operations that exporters support, too
            config = portable(config)

        model = build_recogniser(config, task.num_features, _AXES_CLASSES)
        parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
        stepper = make_stepper(
            model,
            frame_losses,
            keras.optimizers.Adam(0.001),
            xla=xla,
        )

        for frames in task.frames:
            measured = _axes_times(task, frames, config, stepper)
            times.append(
                AxesTimes(
                    task.runtime,
                    task.batch,
                    task.threads,
                    name,
                    frames,
                    parameters,
                    **measured,
                )
            )
            if times[-1].reason:
                break

    return times


def frame_losses(logits, classes):
    """Returns the mean cross entropy of each utterance's frames."""
    losses = keras.losses.sparse_categorical_crossentropy(
        classes,
        logits,
        from_logits=True,
    )
    return keras.ops.mean(losses, axis=-1)


def _axes_times(
    task: AxesTask,
    frames: int,
    config,
    stepper: Stepper,
) -> dict[str, Any]:
    """Returns the fields of `AxesTimes` that are measured, or the reason why none are.

    Args:
        task: batch, steps and warm-up.
        frames: of each utterance.
        config: of the network, which says how many frames it returns.
        stepper: of the network.
    """
    random = np.random.default_rng(0)
    outputs = (task.batch, output_frames(config, frames))
    # The same for all networks and frameworks.
    inputs = _noise(random, task.batch, frames, task.num_features)
    batch = Batch(inputs, (random.integers(0, _AXES_CLASSES, outputs, np.int32),))

    def seconds(part, warmup: int) -> list[float]:
        return [seconds_of(part, placed) for _ in range(warmup + task.steps)][warmup:]

    try:
        placed = stepper.place(batch)
        times: dict[str, Any] = {"first_s": seconds_of(stepper.update, placed)}
        times["training_s"] = seconds(stepper.update, task.warmup - 1)

        return {**times, "inference_s": seconds(stepper.predict, task.warmup)}
    except Exception as error:  # each framework has its own error classes
        no_memory = out_of_memory(error)
        if not (no_memory or task.runtime.endswith("_xla")):
            raise

        reason = "out of memory" if no_memory else " ".join(str(error).split())
        return {"reason": reason[:_REASON]}


def backends_table(rows, config: BackendsConfig, backends, absent: list[str]) -> Table:
    """Returns a line per row of `row_of`, relative to the fastest of each model.

    Args:
        rows: of all models and backends.
        config: numbers of rounds and steps, for the notes.
        backends: what `describe_backend` says about each.
        absent: backends that are not installed.
    """
    ran = [row for row in rows if row["step_ms"] is not None]

    def of_fastest(row: dict[str, Any]) -> float | None:
        fastest = min(
            other["step_ms"] for other in ran if other["model"] == row["model"]
        )
        return None if row["reason"] else row["step_ms"] / fastest

    def rounds(row: dict[str, Any]) -> str | None:
        medians = [statistics.median(steps) for steps in row["all_step_ms"] if steps]
        return f"{min(medians):.1f}–{max(medians):.1f}" if medians else None

    columns = [
        Column("model", "", "{0[model]}, batch {0[batch_size]}".format),
        Column("backend", "", lambda row: _label(row["backend"])),
        Column("layout", "", lambda row: row["layout"] or UNKNOWN),
        Column("forward, ms", "", "forward_ms", fixed(1)),
        Column("step, ms", "", "step_ms", fixed(1)),
        Column("rounds, ms", "", rounds),
        Column("utterances/s", "", "utterances_per_s", "{:,.1f}".format),
        Column("of the fastest", "", of_fastest, fixed(2)),
        Column("first step, s", "", "first_step_s", fixed(1)),
    ]

    return table_of(_TITLE, columns, rows, _notes(rows, config, backends, absent))


def _label(name: str) -> str:
    """Returns a backend's name for readers."""
    return "PyTorch alone" if name == NATIVE else name


def _notes(rows, config: BackendsConfig, backends, absent: list[str]) -> list[str]:
    """Returns the notes below the table, with the reasons for missing rows."""
    versions = ", ".join(map(_version, backends))
    kerases = (b["versions"]["keras"] for b in backends if "keras" in b["versions"])
    keras = " and ".join(dict.fromkeys(kerases))
    notes = [
        f"Each backend runs in {config.rounds} processes; backends take turns. Medians of the "
        f"processes' medians over {config.steps} steps, without the first {WARMUP_STEPS}. "
        "A step is forward pass, loss, backward pass and update, timed to their end.",
        f"The acoustic model gets {config.acoustic_frames} frames. Keras {keras}; "
        f"{versions}. TensorFlow runs graphs with tfasr's LSTM; JAX compiles the whole step and "
        "PyTorch is eager, both with Keras's LSTM. Of the fastest: the step's time divided by that "
        "of the model's fastest row.",
        "Layout: channels last (NHWC) or second (NCHW) in the keyword spotter's images. PyTorch "
        "alone: the same network in PyTorch's own layers, loss and Adam. The acoustic model has no "
        "images and no version in PyTorch alone.",
    ]

    for row in rows:
        if reason := row["reason"]:
            place = f"{row['layout']} on {_label(row['backend'])}"
            notes.append(f"{UNKNOWN} for {place}: “{reason}”")

    if absent:
        notes.append(f"Not installed and left out: {', '.join(map(_label, absent))}.")

    return notes


def _version(backend: dict[str, Any]) -> str:
    """Returns a backend's name, version and devices."""
    name = backend["name"]
    version = backend["versions"][name.removeprefix("native_")]

    return f"{_label(name)} {version} on {' and '.join(backend['devices'])}"


def backends_chart(rows: Sequence[dict[str, Any]]) -> Chart:
    """Draws a bar per backend, forward and the rest, with a panel for each model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    panels = [
        _panel([row for row in rows if row["model"] == model]) for model in models
    ]

    return Chart("backends", _TITLE, panels, columns=len(models), width=420)


def _panel(rows: Sequence[dict[str, Any]]) -> Panel:
    """Draws the bars of one model: the forward pass, then the rest of the step."""
    ran = [row for row in rows if not row["reason"]]
    places = list(range(len(ran)))
    forward = [row["forward_ms"] for row in ran]
    step_ms = [row["step_ms"] for row in ran]
    # A forward pass alone may take longer than within a step.
    ends = list(map(max, forward, step_ms))
    words = [f"{three_digits(ms)} ms · {ms / min(step_ms):.2f}×" for ms in step_ms]

    def bars(begin: list[float], end: list[float], colour: int, series: str) -> Rects:
        return Rects(
            x0=begin,
            x1=end,
            y0=[place - 0.36 for place in places],
            y1=[place + 0.36 for place in places],
            colour=run_colour(colour),
            series=series,
        )

    marks = [
        bars([0.0] * len(ran), forward, 0, "forward"),
        bars(forward, ends, 1, "backward and update"),
        Labels(x=ends, y=places, words=words),
    ]
    names = [" ".join((_label(row["backend"]), row["layout"])).strip() for row in ran]
    label = "ms per training step, {0[model]}, batch of {0[batch_size]}".format(rows[0])
    x = Axis(label, limits=(0, 1.35 * max(ends)))

    return Panel(marks, x, rows_axis(names), height=20 + 30 * len(ran))


def run(
    config: BackendsConfig,
    keyword,
    acoustic,
    features,
    context: Context,
) -> Result:
    """Measures all installed backends in turns; UsageError if none is installed."""
    installed = installed_backends()
    processes = {name: name.removeprefix("native_") for name in config.backends}
    present = [name for name in config.backends if processes[name] in installed]
    absent = [name for name in config.backends if name not in present]

    if not present:
        raise UsageError(
            "At least one of BackendsConfig.backends must be installed. Received: "
            f"{config.backends}."
        )

    answers: dict[str, list[Answer]] = {name: [] for name in present}

    for number in range(config.rounds):
        # Each round starts with another backend, so that none always has a warm or cold
        # machine.
        for name in present[number % len(present) :] + present[: number % len(present)]:
            _log.info("round %d of %d: %s", number + 1, config.rounds, name)
            answer = call(
                measure,
                name,
                config,
                keyword,
                acoustic,
                features.num_features,
                backend=processes[name],
            )
            answers[name].append(answer)

    rows = [
        row_of(of_model)
        for name in present
        for of_model in zip(*(models for _, models in answers[name]), strict=True)
    ]
    # The keyword spotter first; else in the order of the backends.
    rows.sort(key=lambda row: row["model"] != KEYWORDS)
    backends = [answers[name][0][0] for name in present]
    values = {"backends": backends, "not_installed": absent, "rows": rows}
    # Each process warms up the forward pass and the whole step of every model that ran.
    steps = 2 * WARMUP_STEPS * config.rounds * sum(not row["reason"] for row in rows)
    tables = [backends_table(rows, config, backends, absent)]

    return Result(tables, values, steps, {"backends": lambda: backends_chart(rows)})


BACKENDS_WORKLOAD = Workload(
    run,
    (BackendsConfig, KeywordSpotterConfig, ModelConfig, FeatureConfig),
    backends=(),
)
