"""Latencies of one recogniser on one backend, in a process of its own."""

import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.bench.inference.config import TORCH, InferenceConfig
from tfasr.child import child_environment, module_command
from tfasr.errors import RunError, UsageError
from tfasr.telemetry.memory import peak_bytes

_SILENCE_S = 2.0


@dataclass(frozen=True)
class Latency:
    """Seconds that requests of one kind took.

    Attributes:
        kind: "batch" or "chunk".
        size: recordings of a batch, or milliseconds of a chunk.
        requests: how many were measured.
        p50_s: half of them took at most this.
        p90_s: nine in ten.
        p99_s: ninety-nine in a hundred.
        audio_s_per_s: seconds of audio heard in a second: the inverse of the real-time factor.
    """

    kind: str
    size: int
    requests: int
    p50_s: float
    p90_s: float
    p99_s: float
    audio_s_per_s: float

    @classmethod
    def of(cls, kind: str, size: int, seconds: list[float], audio_s: float) -> "Latency":
        """Returns the quantiles of what was measured."""
        quantiles = (float(np.quantile(seconds, q)) for q in (0.5, 0.9, 0.99))
        return cls(kind, size, len(seconds), *quantiles, audio_s / sum(seconds))


@dataclass(frozen=True)
class BackendLatencies:
    """All that was measured of a backend.

    Attributes:
        backend: of `tfasr.bench.inference.config.BACKENDS`.
        latencies: of batches, then of chunks.
        cannot_stream: why there are none of chunks; None where there are.
        load_s: from a process with Python's modules to a recogniser that has heard something.
        peak_memory_bytes: of the process that measured; None where the system does not tell.
        cold_start_s: medians of whole processes of the command line; None until measured.
        model_bytes: of the weights' file.
        text: of the first recording.
    """

    backend: str
    latencies: list[Latency]
    cannot_stream: str | None
    load_s: float
    peak_memory_bytes: int | None
    cold_start_s: float | None
    model_bytes: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as JSON values."""
        return asdict(self)


def measure_backend(
    backend: str, folder: Path, recordings: list[str], config: InferenceConfig, model_bytes: int
) -> BackendLatencies:
    """Measures one backend in this process.

    Args:
        backend: its name.
        folder: of the run, or of its export.
        recordings: paths of audio.
        config: what to measure.
        model_bytes: of the weights' file.
    """
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
        from tfasr.bench.inference.torch_twin import torch_recogniser

        return torch_recogniser(folder)
    from tfasr.recognising.load import load_recogniser

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
    command = module_command("tfasr.cli", "transcribe", recording, "--run_dir", str(folder))
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        done = subprocess.run(
            command, check=False, env=child_environment(), capture_output=True, text=True
        )
        seconds.append(time.perf_counter() - began)
        if done.returncode:
            raise RunError(f"tfasr transcribe must succeed. It said: {done.stderr.strip()}")
    return float(np.median(seconds))
