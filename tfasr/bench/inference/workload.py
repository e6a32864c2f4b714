"""Latency of a trained recogniser: batches, chunks of a stream, cold start, memory.

Each backend is measured in a process of its own, so that its peak memory is its own.
"""

import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tfasr.bench.inference.config import InferenceConfig
from tfasr.bench.inference.measure import BackendLatencies, cold_start_s, measure_backend
from tfasr.bench.inference.table import inference_tables
from tfasr.bench.workload import Context, Result, Workload
from tfasr.child import call
from tfasr.errors import UsageError
from tfasr.recognising.exported import GRAPH_FILE, is_exported

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
    with tempfile.TemporaryDirectory() as temporary:
        backends = (EXPORTED,) if is_exported(context.run_dir) else config.backends
        for backend in backends:
            folder, size = call(
                prepared, backend, context.run_dir, context.checkpoint, Path(temporary),
                show_messages=False,
            )  # fmt: skip
            one = call(
                measure_backend, backend, folder, recordings, config, size,
                task=f"Measuring {backend}", show_messages=False,
            )  # fmt: skip
            cold_s = cold_start_s(folder, recordings[0], config.cold_starts)
            measured.append(dataclasses.replace(one, cold_start_s=cold_s))
            _log.info("%s: cold start %.2f s", backend, cold_s)
            values = {
                "recordings": len(recordings),
                "rows": [other.to_json() for other in measured],
            }
            yield Result(inference_tables(measured), values, warmup_steps=1)


def prepared(backend: str, run_dir: Path, checkpoint: str, temporary: Path) -> tuple[Path, int]:
    """Returns the folder that a backend runs from, and the bytes of its weights.

    Args:
        backend: its name, or `EXPORTED`.
        run_dir: of the run.
        checkpoint: of the run.
        temporary: gets exports.
    """
    if backend == EXPORTED:
        return run_dir, (run_dir / GRAPH_FILE).stat().st_size
    from tfasr.training.checkpoint import find_checkpoint

    if backend == "keras":
        return run_dir, find_checkpoint(run_dir, checkpoint).stat().st_size
    from tfasr.exporting.export import write_unchecked

    folder = temporary / backend
    write_unchecked(run_dir, folder, int8=backend == "onnx_int8", checkpoint=checkpoint)
    return folder, (folder / GRAPH_FILE).stat().st_size


INFERENCE = Workload(run, (InferenceConfig,), backends=(), flat=True)
