"""Facts about a run beside its times to accuracy: the machine, the batch, an epoch, utilisation."""

import io
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfasr.checked_files import read_text
from tfasr.tta.run import Run


@dataclass(frozen=True)
class RunFacts:
    """What a run says about itself; None or {} where it says nothing."""

    system: dict[str, Any]  # processor, memory, GPUs and software, see `tfasr.telemetry.system`
    global_batch_size: int | None  # utterances of one optimizer update
    num_replicas: int | None  # devices that shared it
    train_samples: int | None  # utterances of an epoch
    optimizer: str | None  # its name
    decoder: str | None  # the name of the decoder of the evaluations
    beam_width: int | None  # its beam width
    evaluations: int  # how many were finished
    epoch_s: float | None  # the median seconds of an epoch without its evaluation
    placement: str | None  # where they were done: "shared", "swapped" or "beside"
    forward_s: float | None  # the mean seconds of an evaluation's forward passes
    decode_s: float | None  # the mean seconds that an evaluation waited for the decoder
    swap_s: float | None  # the mean seconds of an evaluation's two swaps of models
    wait_s: float | None  # mean seconds of waiting for an evaluation in another process
    # Means over the run by heading, such as ``cpu_percent``; ``_bytes`` are the most that was seen
    utilisation: dict[str, float]


def facts_of(run: Run, *, with_utilisation: bool = False) -> RunFacts:
    """Returns a run's facts; ``with_utilisation`` also reads the samples beside the ledger."""
    stated = run.comparability or {}
    spent = run.intervals
    useful = run.timeline.useful
    evaluations = sum(useful[index] for index in run.timeline.of("tracked_stats"))
    epochs = epoch_seconds(run)
    decoder = stated.get("decoder")
    # Older ledgers state the decoder's name alone.
    decoder = decoder if isinstance(decoder, dict) else {"name": decoder, **stated}
    placement = run.fact("evaluation_placement")

    def each(interval: str) -> float | None:
        return spent[interval] / evaluations if evaluations else None

    return RunFacts(
        system=run.system.get("system") or {},
        global_batch_size=run.fact("global_batch_size"),
        num_replicas=run.fact("num_replicas"),
        train_samples=run.fact("train_samples"),
        optimizer=run.fact("opt_name"),
        decoder=decoder.get("name"),
        # A greedy decoder has no beam, whatever its config says.
        beam_width=None if decoder.get("name") == "greedy" else decoder.get("beam_width"),
        evaluations=evaluations,
        epoch_s=statistics.median(epochs) if epochs else None,
        placement=placement.get("name") if isinstance(placement, dict) else None,
        forward_s=each("eval_forward"),
        decode_s=each("decode"),
        swap_s=each("swap") or None,
        wait_s=each("eval_wait") or None,
        utilisation=mean_utilisation(run) if with_utilisation else {},
    )


def epoch_seconds(run: Run) -> list[float]:
    """Returns the seconds of each epoch that one process trained whole, without evaluations."""
    found = []
    line = run.timeline
    starts = {session.start for session in line.sessions}
    partial, began, evaluating_since, evaluated_us = False, None, None, 0
    edges = ("epoch_start", "eval_start", "eval_stop", "epoch_stop", "session_start")
    for index in line.of(*edges):
        key, now = line.keys[index], line.clock_us[index]
        if index in starts:
            # The first epoch of a resumed session may be the rest of one.
            partial, began, evaluating_since = index > 0, None, None
        if key == "epoch_start":
            began, evaluated_us = now, 0
        elif key == "eval_start":
            evaluating_since = now
        elif key == "eval_stop" and evaluating_since is not None:
            evaluated_us += now - evaluating_since
            evaluating_since = None
        elif key == "epoch_stop" and began is not None:
            if not partial and line.useful[index]:
                found.append((now - began - evaluated_us) / 1e6)
            partial, began = False, None
    return found


def mean_utilisation(run: Run) -> dict[str, float]:
    """Returns the means of the samples of a run, over all devices, and the most memory of a GPU."""
    cpu, gpu = _columns(run, "cpu"), _columns(run, "gpu")
    found = {
        "cpu_percent": _mean(cpu.get("cpu_percent")),
        "process_percent": _mean(cpu.get("process_percent")),
        "gpu_percent": _mean(gpu.get("utilisation_percent")),
        "gpu_power_w": _mean(gpu.get("power_w")),
        "gpu_memory_bytes": _most(gpu.get("memory_used_bytes")),
    }
    return {name: value for name, value in found.items() if value is not None}


def _columns(run: Run, device: str) -> dict[str, np.ndarray]:
    path = run.path / f"{device}.csv"
    if not path.is_file():
        return {}
    text = read_text(path, "Delete the file to report without its samples.")
    heading, _, samples = text.partition("\n")
    if not samples.strip():
        return {}
    try:
        # Samples every 0.03 s make long files: the fast reader first, then the patient one.
        rows = np.loadtxt(io.StringIO(samples), delimiter=",", ndmin=2, comments=None)
        return dict(zip(heading.split(","), rows.T, strict=True))
    except ValueError:
        return run.utilisation(device)


def _mean(values: np.ndarray | None) -> float | None:
    known = values[np.isfinite(values)] if values is not None else np.zeros(0)
    return float(known.mean()) if known.size else None


def _most(values: np.ndarray | None) -> float | None:
    known = values[np.isfinite(values)] if values is not None else np.zeros(0)
    return float(known.max()) if known.size else None
