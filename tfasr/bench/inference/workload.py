"""Latency of a trained recogniser: batches, chunks of a stream, cold start, memory.

Each backend is measured in a process of its own, so that its peak memory is its own.
"""

import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tfasr.bench.inference.config import TORCH, InferenceConfig
from tfasr.bench.inference.measure import BackendLatencies, cold_start_s, measure_backend
from tfasr.bench.inference.table import inference_tables
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.errors import UsageError
from tfasr.recognising.exported import (
    GRAPH_FILE,
    KERAS,
    LITERT,
    MODEL_FILES,
    exported_runtime,
    is_exported,
    model_bytes,
)

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
                "rows": [other.to_json() for other in measured],
                "left_out": dict(left_out),
            }
            yield Result(inference_tables(measured, left_out), values, warmup_steps=1)


def _measured(
    backend: str, context: Context, config: InferenceConfig, recordings: list[str], temporary: Path
) -> BackendLatencies:
    """Measures one backend; raises UsageError if it cannot run here, or not this model."""
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
    """Returns the folder that a backend runs from, and the bytes of its weights.

    Args:
        backend: its name, or `EXPORTED`.
        run_dir: of the run.
        checkpoint: of the run.
        temporary: gets exports.
    """
    if backend == EXPORTED:
        return run_dir, model_bytes(run_dir / MODEL_FILES[exported_runtime(run_dir)])
    if backend == TORCH:
        from tfasr.bench.inference.torch_twin import check_torch

        check_torch()
    from tfasr.training.trained import open_trained

    if backend == KERAS:
        return run_dir, open_trained(run_dir).checkpoint(checkpoint).stat().st_size
    folder = temporary / backend
    int8 = backend.endswith("_int8")
    if backend.removesuffix("_int8") == LITERT:
        from tfasr.exporting.export import write_unchecked

        write_unchecked(run_dir, folder, to=LITERT, int8=int8, checkpoint=checkpoint)
        return folder, model_bytes(folder / MODEL_FILES[LITERT])
    from tfasr.exporting.export import write_unchecked

    write_unchecked(run_dir, folder, int8=int8, checkpoint=checkpoint)
    return folder, model_bytes(folder / GRAPH_FILE)


INFERENCE = Workload(run, (InferenceConfig,), backends=(), flat=True)
