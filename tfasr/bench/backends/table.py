"""The backends' times as a table."""

import statistics
from typing import Any

from tfasr.bench.backends.config import BackendsConfig
from tfasr.bench.backends.times import BackendTimes
from tfasr.display.table import Table


def backends_table(
    times: list[BackendTimes],
    config: BackendsConfig,
    backends: list[dict[str, Any]],
    absent: list[str],
) -> Table:
    """Returns a row for each model and backend, with the ratio to the model's fastest backend."""
    fastest = {row.model: row.median_step_ms for row in times}
    for row in times:
        fastest[row.model] = min(fastest[row.model], row.median_step_ms)
    rows = []
    for row in times:
        medians = [statistics.median(steps) for steps in row.step_ms]
        rows.append(
            [
                f"{row.model}, batch {row.batch_size}",
                row.backend,
                f"{row.median_forward_ms:.1f}",
                f"{row.median_step_ms:.1f}",
                f"{min(medians):.1f}–{max(medians):.1f}",
                f"{1000 * row.batch_size / row.median_step_ms:,.1f}",
                f"{row.median_step_ms / fastest[row.model]:.2f}",
                f"{statistics.median(row.first_s):.1f}",
            ]
        )
    columns = ["model", "backend", "forward, ms", "step, ms", "rounds, ms", "utterances/s"]
    return Table(
        title="One training step on Keras's backends",
        columns=[*columns, "of the fastest", "first step, s"],
        rows=rows,
        notes=_notes(config, backends, absent),
    )


def _notes(config: BackendsConfig, backends: list[dict[str, Any]], absent: list[str]) -> list[str]:
    versions = ", ".join(
        f"{backend['name']} {backend['versions'][backend['name']]} on "
        f"{' and '.join(backend['devices'])}"
        for backend in backends
    )
    notes = [
        f"Medians over {config.rounds} processes of each backend, in alternation, of the medians "
        f"of {config.steps} steps; the first {config.warmup_steps} steps of each process are left "
        "out. A step is forward, loss, backward and update; every one is waited for.",
        f"The acoustic model gets {config.acoustic_frames} frames. Keras {_keras(backends)}; "
        f"{versions}. TensorFlow runs graphs with tfasr's LSTM, JAX compiles the whole step, "
        "PyTorch is eager, with Keras's LSTM both.",
    ]
    if absent:
        notes.append(f"Not installed and left out: {', '.join(absent)}.")
    return notes


def _keras(backends: list[dict[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(backend["versions"]["keras"] for backend in backends))
