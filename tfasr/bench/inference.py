"""Latency of a trained recogniser: batches, chunks of a stream, cold start, memory.

Each backend is measured in a process of its own, so that its peak memory is its own.
"""

import dataclasses
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfasr.bench.workload import Context, Result, Workload
from tfasr.display.table import Column, Table, fixed, milliseconds, table_of
from tfasr.errors import RunError, UsageError
from tfasr.kit.config import config_class, require
from tfasr.kit.process import call, run_module
from tfasr.recognising.exported import (
    GRAPH_FILE,
    KERAS,
    LITERT,
    MODEL_FILES,
    ONNX,
    exported_runtime,
    is_exported,
    model_bytes,
    read_spec,
)
from tfasr.recognising.recogniser import Recogniser
from tfasr.recognising.spec import State
from tfasr.telemetry.machine import peak_bytes

if TYPE_CHECKING:
    import torch


TORCH = "torch"
BACKENDS = ("keras", "onnx", "onnx_int8", "litert", "litert_int8", TORCH)


@config_class
class InferenceConfig:
    """What is measured: every backend with all batches and chunks."""

    # of `BACKENDS`: the run on Keras, its exports, and "torch", the same weights in PyTorch's own
    # layers
    backends: tuple[str, ...] = BACKENDS
    batches: tuple[int, ...] = (1, 2, 4)  # recordings in one request
    chunks_ms: tuple[int, ...] = (100, 250, 500, 1000)  # of a stream
    recordings: int = 40  # how many are used, evenly spread over those that are given
    rounds: int = 3  # how often each recording is heard in each way
    cold_starts: int = 5  # how often the command line is started

    def check(self) -> None:
        known = bool(self.backends) and set(self.backends) <= set(BACKENDS)
        require(known, self, "backends", f"of {', '.join(BACKENDS)}, at least one")
        for field in ("batches", "chunks_ms"):
            require(all(n > 0 for n in getattr(self, field)), self, field, "at least 1 each")
        for field in ("recordings", "rounds", "cold_starts"):
            require(getattr(self, field) > 0, self, field, "at least 1")


_SILENCE_S = 2.0


@dataclass(frozen=True)
class Latency:
    """Seconds that requests of one kind took."""

    kind: str  # "batch" or "chunk"
    size: int  # recordings of a batch, or milliseconds of a chunk
    requests: int  # how many were measured
    p50_s: float  # half of them took at most this
    p90_s: float  # nine in ten
    p99_s: float  # ninety-nine in a hundred
    audio_s_per_s: float  # seconds of audio heard in a second: the inverse of the real-time factor

    @property
    def name(self) -> str:
        unit = " ms" if self.kind == "chunk" else ""
        return f"{self.kind} of {self.size}{unit}"

    @property
    def known_p99_s(self) -> float | None:
        """`p99_s`, or None of too few requests."""
        return self.p99_s if self.requests >= _REQUESTS_FOR_P99 else None

    @classmethod
    def of(cls, kind: str, size: int, seconds: list[float], audio_s: float) -> "Latency":
        """Returns the quantiles of what was measured."""
        quantiles = (float(np.quantile(seconds, q)) for q in (0.5, 0.9, 0.99))
        return cls(kind, size, len(seconds), *quantiles, audio_s / sum(seconds))


@dataclass(frozen=True)
class BackendLatencies:
    """All that was measured of a backend."""

    backend: str  # of `tfasr.bench.inference.BACKENDS`
    latencies: list[Latency]  # of batches, then of chunks
    cannot_stream: str | None  # why there are none of chunks; None where there are
    load_s: float  # from a process with Python's modules to a recogniser that has heard something
    # of the process that measured; None where the system does not tell
    peak_memory_bytes: int | None
    # medians of whole processes of the command line; None until measured
    cold_start_s: float | None
    model_bytes: int  # of the weights' file
    text: str  # of the first recording


def measure_backend(
    backend: str, folder: Path, recordings: list[str], config: InferenceConfig, model_bytes: int
) -> BackendLatencies:
    """Measures one backend in this process."""
    began = time.perf_counter()
    recogniser = _loaded(backend, folder)
    recogniser.transcribe(np.zeros(int(_SILENCE_S * recogniser.sample_rate_hz), np.float32))
    load_s = time.perf_counter() - began
    samples = [np.concatenate(list(recogniser.blocks(path))) for path in recordings]
    latencies = [_batches(recogniser, samples, size, config.rounds) for size in config.batches]
    cannot_stream = None
    try:
        recogniser.open_stream()
    except UsageError as error:
        cannot_stream = str(error)
    else:
        latencies += [_chunks(recogniser, samples, ms, config.rounds) for ms in config.chunks_ms]
    text = recogniser.transcribe(samples[0]).text
    peak = peak_bytes()
    return BackendLatencies(
        backend, latencies, cannot_stream, load_s, peak, None, model_bytes, text
    )


def _loaded(backend: str, folder: Path) -> Any:
    if backend == TORCH:
        return torch_recogniser(folder)
    from tfasr.recognising.recogniser import load_recogniser

    return load_recogniser(folder)


def _batches(recogniser: Any, samples: list[np.ndarray], size: int, rounds: int) -> Latency:
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    groups = [group for group in groups if len(group) == size] or [samples]
    recogniser.transcribe_many(groups[0], batch_size=size)  # not counted: it warms up
    seconds, audio_s = [], 0.0
    for _ in range(rounds):
        for group in groups:
            began = time.perf_counter()
            recogniser.transcribe_many(group, batch_size=size)
            seconds.append(time.perf_counter() - began)
            audio_s += sum(map(len, group)) / recogniser.sample_rate_hz
    return Latency.of("batch", size, seconds, audio_s)


def _chunks(recogniser: Any, samples: list[np.ndarray], ms: int, rounds: int) -> Latency:
    count = max(ms * recogniser.sample_rate_hz // 1000, 1)
    seconds, audio_s = [], 0.0
    for turn in range(rounds + 1):
        for recording in samples:
            stream = recogniser.open_stream()
            for start in range(0, len(recording), count):
                chunk = recording[start : start + count]
                began = time.perf_counter()
                stream.push(chunk)
                if turn:  # the first one warms up
                    seconds.append(time.perf_counter() - began)
                    audio_s += len(chunk) / recogniser.sample_rate_hz
            stream.finish()
    return Latency.of("chunk", ms, seconds, audio_s)


def cold_start_s(folder: Path, recording: str, count: int) -> float:
    """Returns the median of the seconds that ``tfasr transcribe`` takes for one recording.

    Raises:
        RunError: if it fails.
    """
    command = ("tfasr.cli", "transcribe", recording, "--run_dir", folder)
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        done = run_module(*command, capture_output=True, text=True)
        seconds.append(time.perf_counter() - began)
        if done.returncode:
            raise RunError(f"tfasr transcribe must succeed. It said: {done.stderr.strip()}")
    return float(np.median(seconds))


# Where PyTorch's gates stand among ONNX's: i, f, g, o among i, o, f, c; r, z, n among z, r, h.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}


def check_torch() -> None:
    """Raises UsageError unless PyTorch is installed."""
    if find_spec("torch") is None:
        raise UsageError("It needs PyTorch, which is not installed: pip install torch.")


def torch_recogniser(folder: Path) -> Recogniser:
    """Returns an exported recogniser whose model runs on PyTorch.

    Raises:
        UsageError: if its model is not a recurrent stack that runs in one direction.
    """
    check_torch()
    return Recogniser(read_spec(folder, {}), TorchTwin(folder / GRAPH_FILE))


class TorchTwin:
    """Computes log-probabilities with PyTorch's convolution, LSTMs or GRUs, and dense layer.

    Raises:
        UsageError: if it is another graph.
    """

    batches_at_once = 1  # PyTorch divides one among the cores

    def __init__(self, graph: Path):
        import onnx
        from onnx import numpy_helper

        content = onnx.load(graph).graph
        weights = {one.name: numpy_helper.to_array(one) for one in content.initializer}
        layers = [node for node in content.node if node.op_type in _GATES]
        one_way = all(len(weights[f"{node.name}_w"]) == 1 for node in layers)
        if "convolution_kernel" not in weights or not one_way:
            raise UsageError(
                "PyTorch's twin is written for a convolution and recurrent layers that run in one "
                "direction. The model is another."
            )
        (strides,) = (
            attribute.ints
            for node in content.node
            if node.op_type == "Conv"
            for attribute in node.attribute
            if attribute.name == "strides"
        )
        self._stride = int(strides[0])
        self._convolution = _tensors(weights["convolution_kernel"], weights["convolution_bias"])
        self._classifier = _tensors(weights["classifier_kernel"].T, weights["classifier_bias"])
        self._layers = [_layer(node.op_type, node.name, weights) for node in layers]

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns log-probabilities, see `tfasr.recognising.spec.Acoustics`."""
        found, _ = self._run(features, [None] * len(self._layers))
        return found

    def initial_state(self) -> State:
        """Returns the state of a recurrence that has heard nothing."""
        return [None] * len(self._layers)

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Returns the next log-probabilities, see `tfasr.recognising.spec.Acoustics`."""
        found, state = self._run(features[None], state)
        return found[0], state

    def _run(self, features: np.ndarray, states: State) -> tuple[np.ndarray, State]:
        import torch
        from torch.nn import functional

        with torch.inference_mode():
            by_channel = torch.from_numpy(features).transpose(1, 2)
            convolved = functional.conv1d(by_channel, *self._convolution, stride=self._stride)
            hidden, reached = functional.relu(convolved).transpose(1, 2), []
            for layer, state in zip(self._layers, states, strict=True):
                hidden, state = layer(hidden, state)
                reached.append(state)
            logits = functional.linear(hidden, *self._classifier)
            return functional.log_softmax(logits, dim=-1).numpy(), reached


def _layer(operator: str, name: str, weights: dict[str, np.ndarray]) -> "torch.nn.Module":
    import torch

    kernel, recurrent_kernel, bias = (weights[f"{name}_{part}"][0] for part in "wrb")
    gates = _GATES[operator]
    kinds = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
    layer = kinds[operator](kernel.shape[1], recurrent_kernel.shape[1], batch_first=True)
    arrays = {"weight_ih_l0": kernel, "weight_hh_l0": recurrent_kernel}
    arrays |= dict(zip(("bias_ih_l0", "bias_hh_l0"), np.split(bias, 2), strict=True))
    ordered = {}
    for target, array in arrays.items():
        split = np.split(array, len(gates))
        (ordered[target],) = _tensors(np.concatenate([split[gate] for gate in gates]))
    layer.load_state_dict(ordered)
    return layer.eval()


def _tensors(*arrays: np.ndarray) -> "list[torch.Tensor]":
    import torch

    return [torch.from_numpy(np.array(array, np.float32, order="C")) for array in arrays]


EXPORTED = "exported"
"""The backend of a folder that was exported before."""
_log = logging.getLogger(__name__)


def run(config: InferenceConfig, context: Context) -> Iterator[Result]:
    """Measures one backend after the other; of an exported folder the one that it has.

    Raises:
        UsageError: without a run and recordings.
    """
    if context.run_dir is None or context.corpus_dir is None:
        raise UsageError(
            "The workload 'inference' must be given a trained run and a folder of recordings. "
            f"Received: --run_dir {context.run_dir}, --corpus_dir {context.corpus_dir}."
        )
    from tfasr.recognising.files import find_sources

    found = [str(source.path) for source in find_sources([str(context.corpus_dir)])]
    step = max(len(found) // config.recordings, 1)
    recordings = found[::step][: config.recordings]
    measured: list[BackendLatencies] = []
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        backends = (EXPORTED,) if is_exported(context.run_dir) else config.backends
        for backend in backends:
            try:
                one = _measured(backend, context, config, recordings, Path(temporary))
            except UsageError as error:  # not installed, or not for this model
                left_out[backend] = str(error)
                _log.info("%s is left out: %s", backend, error)
                if len(left_out) == len(backends):
                    raise
                continue
            measured.append(one)
            values = {
                "recordings": len(recordings),
                "rows": [asdict(other) for other in measured],
                "left_out": dict(left_out),
            }
            yield Result(inference_tables(measured, left_out), values, warmup_steps=1)


def _measured(
    backend: str, context: Context, config: InferenceConfig, recordings: list[str], temporary: Path
) -> BackendLatencies:
    folder, size = call(
        prepared, backend, context.run_dir, context.checkpoint, temporary, show_messages=False
    )
    one = call(
        measure_backend, backend, folder, recordings, config, size,
        task=f"Measuring {backend}", show_messages=False,
    )  # fmt: skip
    if backend == TORCH:  # tfasr transcribe does not run it
        return one
    cold_s = cold_start_s(folder, recordings[0], config.cold_starts)
    _log.info("%s: cold start %.2f s", backend, cold_s)
    return dataclasses.replace(one, cold_start_s=cold_s)


def prepared(backend: str, run_dir: Path, checkpoint: str, temporary: Path) -> tuple[Path, int]:
    """Returns the folder that a backend runs from, and the bytes of its weights."""
    if backend == EXPORTED:
        return run_dir, model_bytes(run_dir / MODEL_FILES[exported_runtime(run_dir)])
    if backend == TORCH:
        check_torch()
    from tfasr.training.trained import open_trained

    if backend == KERAS:
        return run_dir, open_trained(run_dir).checkpoint(checkpoint).stat().st_size
    folder = temporary / backend
    int8 = backend.endswith("_int8")
    runtime = LITERT if backend.removesuffix("_int8") == LITERT else ONNX
    from tfasr.exporting.export import write_unchecked

    write_unchecked(run_dir, folder, to=runtime, int8=int8, checkpoint=checkpoint)
    return folder, model_bytes(folder / MODEL_FILES[runtime])


_REQUESTS_FOR_P99 = 100
# Rows are backends with one of their latencies.
_REQUESTS = [
    Column("backend", "", lambda row: row[0].backend),
    Column("request", "", lambda row: row[1].name),
    Column("requests", "", lambda row: row[1].requests),
    Column("p50\nms", "", lambda row: row[1].p50_s, milliseconds),
    Column("p90\nms", "", lambda row: row[1].p90_s, milliseconds),
    Column("p99\nms", "", lambda row: row[1].known_p99_s, milliseconds),
    Column("x real\ntime", "", lambda row: row[1].audio_s_per_s, fixed(0)),
]
_PROCESSES = [
    Column("backend", "", lambda measured: measured.backend),
    Column("cold start\ns", "", lambda measured: measured.cold_start_s, fixed(2)),
    Column("load\ns", "", lambda measured: measured.load_s, fixed(2)),
    Column("peak memory\nMiB", "", lambda measured: measured.peak_memory_bytes, fixed(0, 2**-20)),
    Column("weights\nMB", "", lambda measured: measured.model_bytes, fixed(2, 1e-6)),
]


def inference_tables(
    measured: Sequence[BackendLatencies], left_out: Mapping[str, str] | None = None
) -> list[Table]:
    """Returns a table of requests and one of processes."""
    notes = [
        "A request takes samples in memory to text with word times: features, the model, decoding "
        "and alignment. A chunk's is one push into a stream. Reading files is not in it. Each kind "
        f"was heard once before it was measured; p99 is shown of {_REQUESTS_FOR_P99} requests or "
        "more. A batch on ONNX Runtime or LiteRT is divided among the cores, and one recording "
        "takes one of them; Keras and PyTorch divide the work of every recording."
    ]
    notes += sorted({f"No chunks: {one.cannot_stream}" for one in measured if one.cannot_stream})
    notes += [f"{backend} is left out: {why}" for backend, why in (left_out or {}).items()]
    cold = (
        "Cold start is a whole process of tfasr transcribe with one recording, the median of "
        "several; load is the time to a recogniser that has heard two seconds of silence. A run's "
        "weights come with the optimizer's state."
    )
    requests = [(one, latency) for one in measured for latency in one.latencies]
    return [
        table_of("Requests to a recogniser", _REQUESTS, requests, notes, name="requests"),
        table_of("A recogniser's process", _PROCESSES, measured, [cold], name="processes"),
    ]


INFERENCE = Workload(run, (InferenceConfig,), backends=(), flat=True)
