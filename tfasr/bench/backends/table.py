"""The backends' times as a table."""

import statistics
from typing import Any

from tfasr.bench.backends.config import NATIVE, BackendsConfig
from tfasr.bench.backends.times import BackendTimes
from tfasr.display.table import UNKNOWN, Table

LABELS = {NATIVE: "PyTorch alone"}
"""What tables and figures call what is no backend of Keras's."""


def backends_table(
    times: list[BackendTimes],
    config: BackendsConfig,
    backends: list[dict[str, Any]],
    absent: list[str],
) -> Table:
    """Returns a row for each model, backend and layout, with the ratio to the model's fastest."""
    columns = ["model", "backend", "layout", "forward, ms", "step, ms", "rounds, ms"]
    columns += ["utterances/s", "of the fastest", "first step, s"]
    return Table(
        title="One training step on Keras's backends, and in PyTorch alone",
        columns=columns,
        rows=[_cells(row, times) for row in times],
        notes=_notes(times, config, backends, absent),
    )


def _cells(row: BackendTimes, times: list[BackendTimes]) -> list[str]:
    named = [f"{row.model}, batch {row.batch_size}", LABELS.get(row.backend, row.backend)]
    named.append(row.layout or UNKNOWN)
    if row.reason:
        return named + [UNKNOWN] * 6
    of_model = [other.median_step_ms for other in times if other.model == row.model]
    fastest = min(one for one in of_model if one is not None)
    medians = [statistics.median(steps) for steps in row.step_ms]
    return [
        *named,
        f"{row.median_forward_ms:.1f}",
        f"{row.median_step_ms:.1f}",
        f"{min(medians):.1f}–{max(medians):.1f}",
        f"{row.utterances_per_s:,.1f}",
        f"{row.median_step_ms / fastest:.2f}",
        f"{statistics.median(row.first_s):.1f}",
    ]


def _notes(
    times: list[BackendTimes],
    config: BackendsConfig,
    backends: list[dict[str, Any]],
    absent: list[str],
) -> list[str]:
    versions = ", ".join(_version(backend) for backend in backends)
    notes = [
        f"Medians over {config.rounds} processes of each backend, in alternation, of the medians "
        f"of {config.steps} steps; the first {config.warmup_steps} steps of each process are left "
        "out. A step is forward, loss, backward and update; every one is waited for.",
        f"The acoustic model gets {config.acoustic_frames} frames. Keras {_keras(backends)}; "
        f"{versions}. TensorFlow runs graphs with tfasr's LSTM, JAX compiles the whole step, "
        "PyTorch is eager, with Keras's LSTM both. Of the fastest: the step over that of the "
        "model's fastest row.",
        "Layout: channels last (NHWC) or second (NCHW) in the keyword spotter's images. PyTorch "
        "alone is the same network in its own layers, loss and Adam; the acoustic model has no "
        "images, and is not written in PyTorch alone.",
    ]
    for row in times:
        if row.reason:
            name = LABELS.get(row.backend, row.backend)
            notes.append(f"{UNKNOWN} for {row.layout} on {name}: “{row.reason}”")
    if absent:
        named = ", ".join(LABELS.get(name, name) for name in absent)
        notes.append(f"Not installed and left out: {named}.")
    return notes


def _version(backend: dict[str, Any]) -> str:
    name, devices = backend["name"], " and ".join(backend["devices"])
    if name == NATIVE:
        return f"{LABELS[NATIVE]} {backend['versions']['torch']} on {devices}"
    return f"{name} {backend['versions'][name]} on {devices}"


def _keras(backends: list[dict[str, Any]]) -> str:
    found = (backend["versions"].get("keras") for backend in backends)
    return " and ".join(dict.fromkeys(filter(None, found)))
