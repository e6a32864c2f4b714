"""How long a trained recogniser takes: batches, chunks of a stream, cold start, memory."""

import itertools
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.bench.workload import Context, Result, Workload, seconds_of
from tfasr.display.table import Column, Table, fixed, milliseconds, table_of
from tfasr.errors import RunError, UsageError
from tfasr.kit.config import config_class, require, require_numbers
from tfasr.kit.process import call, run_module
from tfasr.recognising import spec as exported
from tfasr.recognising.recogniser import Recogniser, load_recogniser
from tfasr.recognising.spec import State
from tfasr.telemetry.machine import peak_bytes

TORCH = "torch"
BACKENDS = ("keras", "onnx", "onnx_int8", "litert", "litert_int8", TORCH)
EXPORTED = "exported"  # the run_dir itself, if it is an exported model
_FOR_P99 = 100  # requests from which on the p99 is shown
_log = logging.getLogger(__name__)


@config_class
class InferenceConfig:
    """Sizes to measure on every backend."""

    backends: tuple[str, ...] = BACKENDS  # Keras, exported models, PyTorch's own layers
    batches: tuple[int, ...] = (1, 2, 4)  # recordings per request
    chunks_ms: tuple[int, ...] = (100, 250, 500, 1000)  # audio per push into a stream
    recordings: int = 40  # number of recordings, evenly spread over the folder
    rounds: int = 3  # how often each batch and chunk size transcribes each recording
    cold_starts: int = 5  # starts of tfasr transcribe per backend

    def check(self) -> None:
        valid = bool(self.backends) and set(self.backends) <= set(BACKENDS)
        require(valid, self, "backends", f"one or more of {', '.join(BACKENDS)}")
        require_numbers(self, "batches", "chunks_ms", "recordings", "rounds", "cold_starts")


@dataclass(frozen=True)
class Latency:
    kind: str  # "batch" or "chunk"
    size: int  # recordings of a batch, or milliseconds of a chunk
    requests: int  # how many were measured
    p50_s: float
    p90_s: float
    p99_s: float
    audio_s_per_s: float  # the inverse of the real-time factor

    @classmethod
    def of(cls, kind: str, size: int, seconds: list[float], audio_s: float) -> "Latency":
        quantiles = (float(np.quantile(seconds, q)) for q in (0.5, 0.9, 0.99))
        return cls(kind, size, len(seconds), *quantiles, audio_s / sum(seconds))


@dataclass(frozen=True)
class BackendLatencies:
    backend: str  # one of `BACKENDS`, or `EXPORTED`
    latencies: list[Latency]  # batches first, then chunks
    cannot_stream: str | None  # why there are no chunks, or None
    load_s: float  # to load the model and transcribe two seconds of silence, without imports
    peak_memory_bytes: int | None  # of the process that measured this backend, if known
    cold_start_s: float | None  # of a tfasr transcribe process; None until measured
    model_bytes: int  # size of the weights' file
    text: str  # transcript of the first recording


def measure_backend(
    backend: str, folder: Path, recordings: list[str], config: InferenceConfig, model_bytes: int
) -> BackendLatencies:
    began = time.perf_counter()
    if backend == TORCH:
        twin = TorchTwin(folder / exported.GRAPH_FILE)
        recogniser = Recogniser(exported.read_spec(folder, {}), twin)
    else:
        recogniser = load_recogniser(folder)
    recogniser.transcribe(np.zeros(2 * recogniser.sample_rate_hz, np.float32))
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
    memory = (peak_bytes(), None, model_bytes)
    return BackendLatencies(backend, latencies, cannot_stream, load_s, *memory, text)


def _batches(recogniser: Any, samples: list[np.ndarray], size: int, rounds: int) -> Latency:
    groups = [samples[start : start + size] for start in range(0, len(samples), size)]
    groups = [group for group in groups if len(group) == size] or [samples]
    recogniser.transcribe_many(groups[0], batch_size=size)  # warm-up, not measured
    transcribe = recogniser.transcribe_many
    seconds = [seconds_of(transcribe, g, batch_size=size) for _ in range(rounds) for g in groups]
    audio_s = rounds * sum(map(len, itertools.chain(*groups))) / recogniser.sample_rate_hz
    return Latency.of("batch", size, seconds, audio_s)


def _chunks(recogniser: Any, samples: list[np.ndarray], ms: int, rounds: int) -> Latency:
    count = max(ms * recogniser.sample_rate_hz // 1000, 1)
    seconds: list[float] = []
    for turn in range(rounds + 1):
        for recording in samples:
            stream, starts = recogniser.open_stream(), range(0, len(recording), count)
            pushes_s = [seconds_of(stream.push, recording[n : n + count]) for n in starts]
            stream.finish()
            seconds += pushes_s if turn else []  # the first turn warms up
    audio_s = rounds * sum(map(len, samples)) / recogniser.sample_rate_hz
    return Latency.of("chunk", ms, seconds, audio_s)


def cold_start_s(folder: Path, recording: str, count: int) -> float:
    """Returns the median seconds of ``tfasr transcribe`` processes; RunError if one fails."""
    command = ("tfasr.cli", "transcribe", recording, "--run_dir", folder)
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        done = run_module(*command, capture_output=True, text=True)
        seconds.append(time.perf_counter() - began)
        if done.returncode:
            raise RunError(f"tfasr transcribe failed: {done.stderr.strip()}")
    return float(np.median(seconds))


# Each of PyTorch's gates (LSTM i, f, g, o; GRU r, z, n): its index in ONNX (i, o, f, c; z, r, h).
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}


class TorchTwin:
    """An exported graph in PyTorch's own layers; raises UsageError for other kinds of models."""

    batches_at_once = 1  # PyTorch uses all cores for one batch

    def __init__(self, graph: Path):
        import onnx
        from onnx import numpy_helper

        content = onnx.load(graph).graph
        weights = {array.name: numpy_helper.to_array(array) for array in content.initializer}

        def nodes(*kinds: str) -> list[Any]:
            return [node for node in content.node if node.op_type in kinds]

        convolutions, products, layers = nodes("Conv"), nodes("MatMul"), nodes(*_GATES)
        one_way = layers and all(len(weights[node.input[1]]) == 1 for node in layers)
        if not one_way or len(convolutions) != 1 or len(products) != 1:
            raise UsageError(
                "The backend torch only runs models with a convolution and recurrent layers in one "
                "direction. This model is different."
            )
        (convolution,), (product,) = convolutions, products
        (bias,) = (weights[n.input[1]] for n in nodes("Add") if product.output[0] in n.input)
        self._stride = next(a.ints[0] for a in convolution.attribute if a.name == "strides")
        self._convolution = _tensors(*(weights[name] for name in convolution.input[1:]))
        self._classifier = _tensors(weights[product.input[1]].T, bias)
        self._layers = [_layer(node, weights) for node in layers]

    def log_probs(self, features: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self._run(features, self.initial_state())[0]

    def initial_state(self) -> State:
        return [None] * len(self._layers)

    def continued(self, features: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        log_probs, state = self._run(features[None], state)
        return log_probs[0], state

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


def _layer(node: Any, weights: dict[str, np.ndarray]) -> Any:
    import torch

    kernel, recurrent_kernel, bias = (weights[name][0] for name in node.input[1:4])
    gates = _GATES[node.op_type]
    kinds = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
    layer = kinds[node.op_type](kernel.shape[1], recurrent_kernel.shape[1], batch_first=True)
    arrays = {"weight_ih_l0": kernel, "weight_hh_l0": recurrent_kernel}
    arrays |= dict(zip(("bias_ih_l0", "bias_hh_l0"), np.split(bias, 2), strict=True))
    ordered = {}
    for target, array in arrays.items():
        split = np.split(array, len(gates))
        (ordered[target],) = _tensors(np.concatenate([split[gate] for gate in gates]))
    layer.load_state_dict(ordered)
    return layer.eval()


def _tensors(*arrays: np.ndarray) -> list[Any]:
    import torch

    return [torch.from_numpy(np.array(array, np.float32, order="C")) for array in arrays]


def run(config: InferenceConfig, context: Context) -> Iterator[Result]:
    """Measures one backend after another; an exported model has only one."""
    if context.run_dir is None or context.corpus_dir is None:
        raise UsageError(
            "The workload 'inference' needs a trained run and a folder of recordings. "
            f"Received: --run_dir {context.run_dir}, --corpus_dir {context.corpus_dir}."
        )
    from tfasr.recognising.files import find_sources

    paths = [str(source.path) for source in find_sources([str(context.corpus_dir)])]
    step = max(len(paths) // config.recordings, 1)
    recordings = paths[::step][: config.recordings]
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        backends = (EXPORTED,) if exported.is_exported(context.run_dir) else config.backends
        for backend in backends:
            try:
                rows.append(_measured(backend, context, config, recordings, Path(temporary)))
            except UsageError as error:  # not installed, or unable to run this model
                left_out[backend] = str(error)
                _log.info("%s is left out: %s", backend, error)
                if len(left_out) == len(backends):
                    raise
                continue
            values = {"recordings": len(recordings), "rows": [*rows], "left_out": {**left_out}}
            yield Result(inference_tables(rows, left_out), values, warmup_steps=1)


def _measured(
    backend: str, context: Context, config: InferenceConfig, recordings: list[str], temporary: Path
) -> dict[str, Any]:
    options = (backend, context.run_dir, context.checkpoint, temporary)
    folder, size = call(prepared, *options, show_messages=False)
    task = {"task": f"Measuring {backend}", "show_messages": False}
    latencies = call(measure_backend, backend, folder, recordings, config, size, **task)
    row = asdict(latencies)
    if backend != TORCH:  # which tfasr transcribe doesn't support
        row["cold_start_s"] = cold_start_s(folder, recordings[0], config.cold_starts)
        _log.info("%s: cold start %.2f s", backend, row["cold_start_s"])
    return row


def prepared(backend: str, run_dir: Path, checkpoint: str, temporary: Path) -> tuple[Path, int]:
    """Returns the folder from which a backend runs, and the bytes of its weights."""
    if backend == EXPORTED:
        runtime = exported.exported_runtime(run_dir)
        return run_dir, exported.model_bytes(run_dir / exported.MODEL_FILES[runtime])
    if backend == TORCH and find_spec("torch") is None:
        raise UsageError("PyTorch is not installed: pip install torch.")
    from tfasr.training.trained import open_trained

    if backend == exported.KERAS:
        return run_dir, open_trained(run_dir).checkpoint(checkpoint).stat().st_size
    folder = temporary / backend
    int8 = backend.endswith("_int8")
    runtime = exported.LITERT if backend.removesuffix("_int8") == exported.LITERT else exported.ONNX
    from tfasr.exporting.export import write_unchecked

    write_unchecked(run_dir, folder, to=runtime, int8=int8, checkpoint=checkpoint)
    return folder, exported.model_bytes(folder / exported.MODEL_FILES[runtime])


def _request(row: Mapping[str, Any]) -> str:
    return f"{row['kind']} of {row['size']}" + (" ms" if row["kind"] == "chunk" else "")


_REQUESTS = [
    Column("backend", "", "backend"),
    Column("request", "", _request),
    Column("requests", "", "requests"),
    Column("p50\nms", "", "p50_s", milliseconds),
    Column("p90\nms", "", "p90_s", milliseconds),
    Column(
        "p99\nms", "", lambda r: r["p99_s"] if r["requests"] >= _FOR_P99 else None, milliseconds
    ),
    Column("x real\ntime", "", "audio_s_per_s", fixed(0)),
]
_PROCESSES = [
    Column("backend", "", "backend"),
    Column("cold start\ns", "", "cold_start_s", fixed(2)),
    Column("load\ns", "", "load_s", fixed(2)),
    Column("peak memory\nMiB", "", "peak_memory_bytes", fixed(0, 2**-20)),
    Column("weights\nMB", "", "model_bytes", fixed(2, 1e-6)),
]


def inference_tables(
    rows: Sequence[Mapping[str, Any]], left_out: Mapping[str, str] | None = None
) -> list[Table]:
    """Returns tables of `BackendLatencies` as JSON values."""
    notes = [
        "A request takes samples in memory and returns text with word times; for chunks, it is "
        f"one push into a stream. Each kind ran once before measuring; p99 needs {_FOR_P99} "
        "requests. ONNX Runtime and LiteRT split a batch between the cores, so a single recording "
        "uses one core; Keras and PyTorch split the work of every recording."
    ]
    reasons = {row["cannot_stream"] for row in rows} - {None}
    notes += [f"No chunks: {reason}" for reason in sorted(reasons)]
    notes += [f"{backend} is left out: {why}" for backend, why in (left_out or {}).items()]
    cold = (
        "Cold start: a tfasr transcribe process with one recording, median of several. Load: until "
        "two seconds of silence are transcribed. A run's weights include the optimizer's state."
    )
    requests = [{**latency, **row} for row in rows for latency in row["latencies"]]
    return [
        table_of("Requests to a recogniser", _REQUESTS, requests, notes, name="requests"),
        table_of("A recogniser's process", _PROCESSES, rows, [cold], name="processes"),
    ]


INFERENCE = Workload(run, (InferenceConfig,), backends=(), flat=True)
