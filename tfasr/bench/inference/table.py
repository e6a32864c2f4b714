"""Measured latencies as tables."""

from collections.abc import Mapping, Sequence

from tfasr.bench.inference.measure import BackendLatencies
from tfasr.display.table import UNKNOWN, Table, milliseconds

_REQUESTS_FOR_P99 = 100
_REQUESTS = ["backend", "request", "requests", "p50\nms", "p90\nms", "p99\nms", "x real\ntime"]
_PROCESSES = ["backend", "cold start\ns", "load\ns", "peak memory\nMiB", "weights\nMB"]


def inference_tables(
    measured: Sequence[BackendLatencies], left_out: Mapping[str, str] | None = None
) -> list[Table]:
    """Returns a table of requests and one of processes.

    Args:
        measured: the backends.
        left_out: those that could not be, and why.
    """
    requests = [
        [
            one.backend,
            f"batch of {latency.size}"
            if latency.kind == "batch"
            else f"chunk of {latency.size} ms",
            f"{latency.requests}",
            milliseconds(latency.p50_s),
            milliseconds(latency.p90_s),
            milliseconds(latency.p99_s) if latency.requests >= _REQUESTS_FOR_P99 else UNKNOWN,
            f"{latency.audio_s_per_s:.0f}",
        ]
        for one in measured
        for latency in one.latencies
    ]
    processes = [
        [
            one.backend,
            UNKNOWN if one.cold_start_s is None else f"{one.cold_start_s:.2f}",
            f"{one.load_s:.2f}",
            UNKNOWN if one.peak_memory_bytes is None else f"{one.peak_memory_bytes / 2**20:.0f}",
            f"{one.model_bytes / 1e6:.2f}",
        ]
        for one in measured
    ]
    notes = [
        "A request takes samples in memory to text with word times: features, the model, decoding "
        "and alignment. A chunk's is one push into a stream. Reading files is not in it. Each kind "
        f"was heard once before it was measured; p99 is shown of {_REQUESTS_FOR_P99} requests or "
        "more. A batch on ONNX Runtime or LiteRT is divided among the cores, and one recording "
        "takes one of them; Keras and PyTorch divide the work of every recording.",
    ]
    notes += sorted({f"No chunks: {one.cannot_stream}" for one in measured if one.cannot_stream})
    notes += [f"{backend} is left out: {why}" for backend, why in (left_out or {}).items()]
    cold = (
        "Cold start is a whole process of tfasr transcribe with one recording, the median of "
        "several; load is the time to a recogniser that has heard two seconds of silence. A run's "
        "weights come with the optimizer's state."
    )
    return [
        Table("Requests to a recogniser", _REQUESTS, requests, notes, name="requests"),
        Table("A recogniser's process", _PROCESSES, processes, [cold], name="processes"),
    ]
