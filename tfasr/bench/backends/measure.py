"""Training steps of models on one Keras backend, in a process that imports no other."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any, Literal

import keras
import numpy as np

from tfasr.bench.devices import describe_backend, out_of_memory
from tfasr.bench.keywords import make_spotter
from tfasr.bench.steppers import Batch, Kernels, ctc_losses, make_stepper, profile, seconds_of
from tfasr.bench.workload import BACKENDS
from tfasr.kit.config import config_class, require
from tfasr.models.build import build_recogniser
from tfasr.models.keyword_spotter import (
    CLASSIFIER,
    CLASSIFIER_BACK,
    FORWARD,
    OF_FILTERS,
    OF_INPUTS,
    KeywordSpotterConfig,
    step_cost,
)
from tfasr.models.model import RecogniserConfig, output_frames, portable

RUNTIMES = {
    "tensorflow": "TensorFlow graph",
    "tensorflow_xla": "TensorFlow, XLA",
    "jax": "JAX (XLA)",
    "torch": "PyTorch eager",
}
NATIVE = "native_torch"  # PyTorch without Keras: the keyword spotter as its users write it


@config_class
class BackendsConfig:
    """The comparison's backends, sizes and repetitions."""

    backends: tuple[str, ...] = (*BACKENDS, NATIVE)  # Keras's and `NATIVE`, if installed
    # of the keyword spotter's images
    layouts: tuple[Literal["NHWC", "NCHW"], ...] = ("NHWC", "NCHW")
    rounds: int = 3  # processes of each backend, in alternation
    steps: int = 10  # of each model in each process
    warmup_steps: int = 3  # of each model in each process, left out
    keyword_batch_size: int = 64  # utterances
    acoustic_batch_size: int = 16  # utterances; 0 leaves the acoustic model out
    acoustic_frames: int = 600  # feature frames of its utterances

    def check(self) -> None:
        for name in ("rounds", "steps", "warmup_steps", "keyword_batch_size", "acoustic_frames"):
            require(getattr(self, name) > 0, self, name, "at least 1")
        require(self.acoustic_batch_size >= 0, self, "acoustic_batch_size", "at least 0")
        require(bool(self.layouts), self, "layouts", "at least one")
        names = (*BACKENDS, NATIVE)
        valid = bool(self.backends) and set(self.backends) <= set(names)
        require(valid, self, "backends", f"some of {names}")


@dataclass(frozen=True)
class ModelTimes:
    """Times of one model in one process."""

    model: str
    layout: str = ""  # of its images; "" for other inputs
    first_s: float | None = None  # the first step, which compiles
    forward_ms: list[float] = field(default_factory=list)  # of each forward pass
    step_ms: list[float] = field(default_factory=list)  # of each whole step
    reason: str = ""  # why the backend can't run it, or ""


@dataclass(frozen=True)
class BackendTimes:
    """One model on one backend; medians are over the processes' medians, None if not run."""

    model: str
    layout: str  # of its images; "" for other inputs
    backend: str  # Keras's, or "native_torch"
    batch_size: int  # utterances
    first_s: list[float]  # the first step of each process
    forward_ms: list[list[float]]  # forward passes, one list per process
    step_ms: list[list[float]]  # steps, one list per process
    reason: str = ""  # why times are missing, or ""

    @classmethod
    def of(cls, backend: str, batch_size: int, processes: Sequence[ModelTimes]) -> "BackendTimes":
        first = processes[0]
        lists = ([getattr(p, n) for p in processes] for n in ("first_s", "forward_ms", "step_ms"))
        return cls(first.model, first.layout, backend, batch_size, *lists, first.reason)

    @property
    def median_forward_ms(self) -> float | None:
        return _median(self.forward_ms)

    @property
    def median_step_ms(self) -> float | None:
        return _median(self.step_ms)

    @property
    def median_first_s(self) -> float | None:
        return None if self.reason else statistics.median(self.first_s)

    @property
    def utterances_per_s(self) -> float | None:
        step_ms = self.median_step_ms
        return None if step_ms is None else 1000 * self.batch_size / step_ms

    def to_json(self) -> dict[str, Any]:
        names = ("model", "layout", "backend", "batch_size", "utterances_per_s", "reason")
        return {
            **{name: getattr(self, name) for name in names},
            "forward_ms": self.median_forward_ms,
            "step_ms": self.median_step_ms,
            "first_step_s": self.median_first_s,
            "all_forward_ms": self.forward_ms,
            "all_step_ms": self.step_ms,
        }


def _median(processes: Sequence[Sequence[float]]) -> float | None:
    medians = [statistics.median(times) for times in processes if times]
    return statistics.median(medians) if medians else None


KEYWORDS, ACOUSTIC = "keyword spotter", "acoustic model"
NUM_CLASSES = 29
_REASON = 160  # characters
Answer = tuple[dict[str, Any], list[ModelTimes]]  # of `describe_backend`, for models and layouts


def measure(config: BackendsConfig, keyword, acoustic, num_features: int) -> Answer:
    models = [_keywords(config, keyword, "keras", layout) for layout in config.layouts]
    if config.acoustic_batch_size:
        models.append(_acoustic(config, acoustic, num_features))
    return describe_backend(), models


def measure_native(config: BackendsConfig, keyword: KeywordSpotterConfig) -> Answer:
    """Measures the keyword spotter in PyTorch without Keras, see `measure`."""
    versions = {"torch": metadata.version("torch")}
    described = {**describe_backend(), "name": NATIVE, "versions": versions}
    models = [_keywords(config, keyword, "torch", layout) for layout in config.layouts]
    return described, models


def _keywords(config: BackendsConfig, network, framework: str, layout: str) -> ModelTimes:
    stepper, _ = make_spotter(network, framework, layout, learning_rate=0.001)
    batch = random_batch(network, config.keyword_batch_size)
    try:
        return _times(KEYWORDS, layout, stepper, batch, config)
    except Exception as error:  # each framework has its own error class
        sentence = next((s for s in str(error).split(". ") if "only support" in s), None)
        if sentence is None:
            raise
        reason = next(line for line in sentence.splitlines() if "only support" in line)
        return ModelTimes(KEYWORDS, layout, reason=reason.strip().rstrip(".")[:_REASON])


def _acoustic(config: BackendsConfig, network: RecogniserConfig, num_features: int) -> ModelTimes:
    model = build_recogniser(network, num_features, NUM_CLASSES)
    random = np.random.default_rng(0)
    size, frames = config.acoustic_batch_size, config.acoustic_frames
    features = random.standard_normal((size, frames, num_features), np.float32)
    lengths = np.full(size, frames, np.int32)
    num_labels = max(1, frames // 8)
    targets = (
        np.asarray(network.output_lengths(lengths), np.int32),
        random.integers(0, NUM_CLASSES - 1, (size, num_labels), np.int32),
        np.full(size, num_labels, np.int32),
    )
    stepper = make_stepper(model, ctc_losses, keras.optimizers.Adadelta(1.0))
    return _times(ACOUSTIC, "", stepper, Batch((features, lengths), targets), config)


def _times(model: str, layout: str, stepper, batch: Batch, config) -> ModelTimes:
    placed = stepper.place(batch)
    first_s = seconds_of(stepper.update, placed)
    for _ in range(config.warmup_steps - 1):
        stepper.update(placed)
    for _ in range(config.warmup_steps):
        stepper.forward(placed)
    forward_ms, step_ms = [], []
    for _ in range(config.steps):
        forward_ms.append(1000 * seconds_of(stepper.forward, placed))
        step_ms.append(1000 * seconds_of(stepper.update, placed))
    return ModelTimes(model, layout, first_s, forward_ms, step_ms)


def random_batch(network: KeywordSpotterConfig, size: int) -> Batch:
    random = np.random.default_rng(0)
    features = random.standard_normal((size, network.num_frames, network.num_bins), np.float32)
    return Batch((features,), (random.integers(0, network.num_words, size, np.int32),))


FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch alone"}  # by backend
_AXES_CLASSES = 30


def spotter_kernels(framework: str, batch: int, steps: int) -> Kernels:
    """Profiles training steps of the keyword spotter on random features."""
    network = KeywordSpotterConfig()
    layout, library = ("NCHW", "torch") if framework == "torch" else ("NHWC", "keras")
    stepper, _ = make_spotter(network, library, layout, learning_rate=0.003)
    placed = stepper.place(random_batch(network, batch))
    for _ in range(3):
        stepper.update(placed)
    return counted(profile(lambda: stepper.update(placed), steps), network, batch)


# Parts computed by operations; oneDNN's names on a processor start with _MklNative.
_PARTS = {
    "Conv2D": [FORWARD],
    "Conv2DBackpropFilter": [OF_FILTERS],
    "Conv2DBackpropInput": [OF_INPUTS],
    "MatMul": [CLASSIFIER, CLASSIFIER_BACK],
    "aten::mkldnn_convolution": [FORWARD],
    "aten::cudnn_convolution": [FORWARD],
    "aten::_slow_conv2d_forward": [FORWARD],
    "aten::convolution_backward": [OF_FILTERS, OF_INPUTS],
    "aten::addmm": [CLASSIFIER],
    "aten::mm": [CLASSIFIER_BACK],
}


def counted(kernels: Kernels, network: KeywordSpotterConfig, batch: int) -> Kernels:
    """Adds operations and bytes to the spotter's convolutions and products, found by name."""
    cost, with_costs = step_cost(network, batch), []
    for kernel in kernels.kernels:
        if parts := _PARTS.get(kernel.name.removeprefix("_Mkl").removeprefix("Native")):
            flops, moved = (sum(of[part] for part in parts) for of in (cost.flops, cost.moved))
            kernel = replace(kernel, flops=flops, moved_bytes=moved)
        with_costs.append(kernel)
    return Kernels(with_costs, kernels.reason)


@dataclass(frozen=True)
class AxesTask:
    """Work of one process: all networks and lengths in one framework."""

    networks: dict[str, RecogniserConfig]  # by name
    num_features: int  # per frame
    frames: tuple[int, ...]  # lengths, growing
    batch: int  # utterances
    steps: int  # measured for each
    warmup: int  # steps before those
    xla: bool = False  # whether XLA compiles TensorFlow's graphs
    inter_op: int = 0  # parallel operations in PyTorch; 0 for its default


@dataclass(frozen=True)
class AxesTimes:
    """One network at one length in one framework."""

    network: str
    frames: int  # feature frames of each utterance
    parameters: int = 0  # trainable ones
    inference_s: list[float] = field(default_factory=list)  # of each forward pass
    training_s: list[float] = field(default_factory=list)  # of each step
    first_s: float | None = None  # of the first training step, which compiles
    reason: str = ""  # why it was not run, or ""


def measure_axes(task: AxesTask) -> list[AxesTimes]:
    """Measures every network and length, with the cross entropy of output frames as the loss."""
    if task.inter_op and keras.backend.backend() == "torch":
        import torch

        torch.set_num_interop_threads(task.inter_op)
    times = []
    for name, config in task.networks.items():
        config = portable(config) if task.xla else config
        model = build_recogniser(config, task.num_features, _AXES_CLASSES)
        parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
        stepper = make_stepper(model, frame_losses, keras.optimizers.Adam(0.001), xla=task.xla)
        for frames in task.frames:
            measured = _axes_times(task, name, frames, config, stepper)
            times.append(replace(measured, parameters=parameters))
            if measured.reason:
                break
    return times


def frame_losses(logits, classes):
    """Returns the mean cross entropy of each utterance's frames."""
    losses = keras.losses.sparse_categorical_crossentropy(classes, logits, from_logits=True)
    return keras.ops.mean(losses, axis=-1)


def _axes_times(task: AxesTask, name: str, frames: int, config, stepper) -> AxesTimes:
    random, lengths = np.random.default_rng(0), np.full(task.batch, frames, np.int32)
    features = random.standard_normal((task.batch, frames, task.num_features), np.float32)
    outputs = (task.batch, output_frames(config, frames))
    batch = Batch((features, lengths), (random.integers(0, _AXES_CLASSES, outputs, np.int32),))
    try:
        placed = stepper.place(batch)
        first_s = seconds_of(stepper.update, placed)
        training_s, inference_s = (
            [seconds_of(part, placed) for _ in range(warmup + task.steps)][warmup:]
            for part, warmup in ((stepper.update, task.warmup - 1), (stepper.predict, task.warmup))
        )
    except Exception as error:  # each framework has its own error classes
        if not (task.xla or out_of_memory(error)):
            raise
        reason = "out of memory" if out_of_memory(error) else " ".join(str(error).split())
        return AxesTimes(name, frames, reason=reason[:_REASON])
    return AxesTimes(name, frames, 0, inference_s, training_s, first_s)
