"""The same training steps on TensorFlow, JAX and PyTorch, in alternation."""

import logging
import statistics
from collections.abc import Sequence
from typing import Any

from tfasr.bench.backends.measure import (
    ACOUSTIC,
    KEYWORDS,
    NATIVE,
    Answer,
    BackendsConfig,
    BackendTimes,
    measure,
    measure_native,
)
from tfasr.bench.devices import installed_backends
from tfasr.bench.workload import Context, Result, Workload
from tfasr.data.features import FeatureConfig
from tfasr.display.chart import Axis, Chart, Labels, Panel, Rects, rows_axis, run_colour
from tfasr.display.table import UNKNOWN, Column, Table, fixed, table_of
from tfasr.errors import UsageError
from tfasr.kit.process import call
from tfasr.models.keyword_spotter import KeywordSpotterConfig
from tfasr.models.model import ModelConfig

_log = logging.getLogger(__name__)
_TITLE = "One training step on Keras's backends, and in PyTorch alone"


def backends_table(times, config: BackendsConfig, backends, absent: list[str]) -> Table:
    """Returns a row per model, backend and layout, relative to the fastest of each model."""
    ran = [row for row in times if row.median_step_ms is not None]
    fastest = {
        model: min(row.median_step_ms for row in ran if row.model == model)
        for model in {row.model for row in ran}
    }

    def of_fastest(row: BackendTimes) -> float | None:
        return None if row.reason else row.median_step_ms / fastest[row.model]

    def rounds(row: BackendTimes) -> str | None:
        medians = [statistics.median(steps) for steps in row.step_ms if not row.reason]
        return f"{min(medians):.1f}–{max(medians):.1f}" if medians else None

    columns = [
        Column("model", "", lambda row: f"{row.model}, batch {row.batch_size}"),
        Column("backend", "", lambda row: _label(row.backend)),
        Column("layout", "", lambda row: row.layout or UNKNOWN),
        Column("forward, ms", "", lambda row: row.median_forward_ms, fixed(1)),
        Column("step, ms", "", lambda row: row.median_step_ms, fixed(1)),
        Column("rounds, ms", "", rounds),
        Column("utterances/s", "", lambda row: row.utterances_per_s, "{:,.1f}".format),
        Column("of the fastest", "", of_fastest, fixed(2)),
        Column("first step, s", "", lambda row: row.median_first_s, fixed(1)),
    ]
    return table_of(_TITLE, columns, times, _notes(times, config, backends, absent))


def _label(name: str) -> str:
    return "PyTorch alone" if name == NATIVE else name


def _notes(times, config: BackendsConfig, backends, absent: list[str]) -> list[str]:
    versions = ", ".join(map(_version, backends))
    keras = " and ".join(
        dict.fromkeys(b["versions"]["keras"] for b in backends if "keras" in b["versions"])
    )
    notes = [
        f"Medians over {config.rounds} processes of each backend, in alternation, of the medians "
        f"of {config.steps} steps, without the first {config.warmup_steps} steps of each process. "
        "A step is forward, loss, backward and update, timed to its end.",
        f"The acoustic model gets {config.acoustic_frames} frames. Keras {keras}; "
        f"{versions}. TensorFlow runs graphs with tfasr's LSTM; JAX compiles the whole step and "
        "PyTorch is eager, both with Keras's LSTM. Of the fastest: the step's time divided by that "
        "of the model's fastest row.",
        "Layout: channels last (NHWC) or second (NCHW) in the keyword spotter's images. PyTorch "
        "alone: the same network in PyTorch's own layers, loss and Adam. The acoustic model has no "
        "images and no version in PyTorch alone.",
    ]
    for row in times:
        if row.reason:
            notes.append(f"{UNKNOWN} for {row.layout} on {_label(row.backend)}: “{row.reason}”")
    if absent:
        notes.append(f"Not installed and left out: {', '.join(map(_label, absent))}.")
    return notes


def _version(backend: dict[str, Any]) -> str:
    name, versions = backend["name"], backend["versions"]
    version = versions["torch" if name == NATIVE else name]
    return f"{_label(name)} {version} on {' and '.join(backend['devices'])}"


def backends_chart(times: Sequence[BackendTimes]) -> Chart:
    """Returns one panel per model with a bar for each backend: forward, then the rest."""
    models = list(dict.fromkeys(row.model for row in times))
    panels = [_panel([row for row in times if row.model == model]) for model in models]
    return Chart("backends", _TITLE, panels, columns=len(models), width=420)


def _panel(rows: Sequence[BackendTimes]) -> Panel:
    ran = [row for row in rows if not row.reason]
    places = list(range(len(ran)))
    forward = [row.median_forward_ms for row in ran]
    step_ms = [row.median_step_ms for row in ran]
    y = {"y0": [n - 0.36 for n in places], "y1": [n + 0.36 for n in places]}
    ends = [max(pair) for pair in zip(forward, step_ms, strict=True)]
    words = [f"{ms:{'.3g' if ms < 100 else '.0f'}} ms · {ms / min(step_ms):.2f}×" for ms in step_ms]
    marks = [
        Rects(x0=[0.0] * len(ran), x1=forward, **y, colour=run_colour(0), series="forward"),
        Rects(x0=forward, x1=ends, **y, colour=run_colour(1), series="backward and update"),
        Labels(x=ends, y=places, words=words),
    ]
    names = [" ".join((_label(row.backend), row.layout)).strip() for row in ran]
    label = f"ms per training step, {rows[0].model}, batch of {rows[0].batch_size}"
    x = Axis(label, limits=(0, 1.35 * max(ends)))
    return Panel(marks, x, rows_axis(names), height=20 + 30 * len(ran))


def run(config: BackendsConfig, keyword, acoustic, features, context: Context) -> Result:
    """Measures every installed backend in separate processes."""
    installed = installed_backends()
    present = [name for name in config.backends if _process(name) in installed]
    absent = [name for name in config.backends if name not in present]
    if not present:
        raise UsageError(
            "At least one of BackendsConfig.backends must be installed. Received: "
            f"{config.backends}."
        )
    answers: dict[str, list[Answer]] = {name: [] for name in present}
    for number in range(config.rounds):
        # Each round starts with another backend, so none always meets a warm or cold machine.
        for name in present[number % len(present) :] + present[: number % len(present)]:
            _log.info("round %d of %d: %s", number + 1, config.rounds, name)
            work, further = measure, (acoustic, features.num_features)
            if name == NATIVE:
                work, further = measure_native, ()
            answers[name].append(call(work, config, keyword, *further, backend=_process(name)))
    sizes = {KEYWORDS: config.keyword_batch_size, ACOUSTIC: config.acoustic_batch_size}
    times = [
        BackendTimes.of(name, sizes[processes[0].model], processes)
        for name in present
        for processes in zip(*(models for _, models in answers[name]), strict=True)
    ]
    times.sort(key=lambda row: row.model != KEYWORDS)
    backends = [answers[name][0][0] for name in present]
    tables, figures = [backends_table(times, config, backends, absent)], {}
    figures["backends"] = lambda: backends_chart(times)
    values = {"backends": backends, "not_installed": absent}
    values["rows"] = [row.to_json() for row in times]
    # Each process warms up the forward pass and the whole step of every model that ran.
    steps = 2 * config.warmup_steps * config.rounds * sum(not row.reason for row in times)
    return Result(tables, values, steps, figures)


def _process(name: str) -> str:
    return "torch" if name == NATIVE else name


BACKENDS_WORKLOAD = Workload(
    run, (BackendsConfig, KeywordSpotterConfig, ModelConfig, FeatureConfig), backends=()
)
