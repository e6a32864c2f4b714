"""Weak and strong scaling of data parallelism over devices.

Weak scaling gives each device a full batch, strong scaling divides one batch among all.
`tfasr.bench.scaling.measure` measures each number of devices in a process of its own;
here are the tables and figures of its `ScalingAnalysis`. If efficiency is low, the
tables that follow say why: slow modules, stragglers, waiting for input, or a device that
does more than the others.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tfasr.bench.devices import PROCESS, DeviceUse, devices_text
from tfasr.bench.modules import ModuleTimes
from tfasr.bench.scaling import measure
from tfasr.bench.scaling.measure import LOADERS, ScalingAnalysis, ScalingConfig
from tfasr.bench.workload import (
    Context,
    Result,
    Workload,
    columns_of_tuples,
    require_tensorflow,
)
from tfasr.data.features import FeatureConfig
from tfasr.display import chart
from tfasr.display.chart import (
    Axis,
    Chart,
    Line,
    Mark,
    Panel,
    Rule,
    counts_axis,
    curve,
    run_colour,
)
from tfasr.display.table import Column, Table, fixed, milliseconds, percent, table_of
from tfasr.kit.process import call
from tfasr.models.model import ModelConfig


def scaling_tables(analysis: ScalingAnalysis) -> list[Table]:
    """Returns the table of efficiencies, then those that explain it."""
    modules = [_first_steps_of_modules(analysis), _modules(analysis)]
    scaling = table_of(
        "Scaling of data parallelism",
        _SCALING,
        analysis.rows,
        _notes(analysis),
    )
    rows = [(label(r), r["devices"], *r["first_s"], r["step_s"]) for r in analysis.rows]
    note = "The first step traces and compiles. No other figure includes these steps."
    warmup = measure.WARMUP_STEPS
    first = _steps_table("First steps, left out", "scaling", warmup, rows, note)

    return [scaling, first, *modules, _devices(analysis)]


def straggling(seconds_of_replicas: list[list[float]]) -> float:
    """Returns how much longer the slowest device takes than the median device.

    It is the median, over rounds, of the ratio of their seconds.

    >>> straggling([[1.0, 1.0, 1.5], [1.0, 1.0, 1.2]])
    1.35
    """
    ratios = []
    for seconds in seconds_of_replicas:
        ratio = 1.0
        median_s = statistics.median(seconds)
        if median_s > 0:
            ratio = max(seconds) / median_s

        ratios.append(ratio)

    return statistics.median(ratios)


def label(row: dict[str, Any]) -> str:
    """Returns a row's name, such as "weak, loader"."""
    return ", ".join(filter(None, (row["mode"], row["loader"])))


_SCALING = [
    Column("scaling", "", label),
    Column("devices", "", "devices"),
    Column("batch per\ndevice", "", "per_device_batch"),
    Column("steps", "", "steps"),
    Column("step\nms", "", "step_s", milliseconds),
    Column("mean step\nms", "", "mean_step_s", milliseconds),
    Column("input wait\nms", "", "input_wait_s", milliseconds),
    Column("use\n%", "", lambda row: _use_of(row), fixed(0)),
    Column("utterances/s", "", "utterances_per_s", "{:.4g}".format),
    Column("speed-up", "", "speedup", fixed(2)),
    Column("efficiency\n%", "", "efficiency", percent),
]


def _use_of(row: dict[str, Any]) -> float | None:
    """Returns the mean use of a row's GPUs or, without any, of this process."""
    percents = row["use_percent"]
    gpus = [
        use for name, use in percents.items() if name != PROCESS and use is not None
    ]
    if gpus:
        return statistics.fmean(gpus)

    return percents.get(PROCESS)


def _notes(analysis: ScalingAnalysis) -> list[str]:
    """Returns the notes about the efficiencies."""
    config = analysis.config
    notes = [
        f"Without the first {measure.WARMUP_STEPS} steps. Step: the median, with input wait. "
        "Weak: a full batch on every device, and one device's number of steps times the devices. "
        f"Strong: {config.strong_utterances} utterances on all devices. Without loader, one "
        "batch stays in memory; the sorting loader sorts utterances by length while training "
        "waits. Efficiency: throughput (with a loader, from the mean step) divided by the number "
        "of devices and by one device's throughput. Use: of GPUs, or of all cores by this process."
    ]

    if analysis.shared_cores:
        notes.append(
            "The devices are slices of one processor and share its cores, so 100 % is impossible. "
            "A speed-up of 1 means that distribution costs nothing. Only separate devices show "
            "scaling."
        )

    return notes


def _steps_table(
    title: str,
    of: str,
    count: int,
    rows: Sequence[tuple],
    note: str,
) -> Table:
    """Returns first steps, which are left out of other tables, and the median after them."""
    steps = (f"step {index + 1}\nms" for index in range(count))
    columns = columns_of_tuples(
        [of, "devices", *steps, "median\nafter"], milliseconds, 2
    )

    return table_of(title, columns, rows, [note])


def _first_steps_of_modules(analysis: ScalingAnalysis) -> Table:
    """Returns the first steps of each module, and the rest of the call."""
    count = max(len(answer.modules.first_host_s) for answer in analysis.answers)
    rows = []

    for answer in analysis.answers:
        devices = answer.devices
        times = answer.modules
        rows += [(m.module, devices, *m.first_s, m.in_step_s) for m in times.modules]
        rows.append(("tracing, host", devices, *times.first_host_s, None))

    note = (
        "The first steps of each process: seconds of each function within the step, forward and "
        "backward. Tracing, host: the rest of the call."
    )

    return _steps_table("First steps of each function", "function", count, rows, note)


def _modules(analysis: ScalingAnalysis) -> Table:
    """Returns a line per module, with columns for each number of devices."""

    def block(times: ModuleTimes) -> list[list[Any]]:
        seconds = [[m.alone_s, m.forward_s, m.backward_s] for m in times.modules]
        shares = [percent(module.in_step_s / times.step_s) for module in times.modules]
        sums = [sum(values) for values in zip(*seconds, strict=True)]
        pairs = zip([*seconds, sums], [*shares, "100.0"], strict=True)

        return [[*values, share] for values, share in pairs]

    columns = ["module"]
    for answer in analysis.answers:
        on = devices_text(answer.devices)
        columns += [f"{on}\nalone ms", "forward\nms", "backward\nms", "share\n%"]

    # The same modules on any number of devices.
    names = [[m.module] for m in analysis.answers[0].modules.modules] + [["whole step"]]
    blocks = (block(answer.modules) for answer in analysis.answers)
    rows = [sum(cells, []) for cells in zip(names, *blocks, strict=True)]
    note = (
        "Within the step, the clock is read after each module's forward and backward pass, and the "
        "next pass waits for the reading, so times add up to the step; medians after the first "
        "steps. Alone: without the other modules, on random input. The update's backward pass is "
        "the exchange of gradients. Without these readings, modules may overlap and make the step "
        "shorter."
    )
    by_place = columns_of_tuples(columns, milliseconds)

    return table_of("Time per module", by_place, rows, [note])


_DEVICES = [
    Column("devices", "", lambda row: row[0].devices),
    Column("slowest over\nmedian device", "", lambda row: row[1], fixed(2)),
    Column("GPU use\nfirst %", "", lambda row: row[2][0], fixed(0)),
    Column("GPU use\nothers %", "", lambda row: row[2][1], fixed(0)),
    Column("memory first\nGiB", "", lambda row: row[3][0], fixed(2, 2**-30)),
    Column("memory others\nGiB", "", lambda row: row[3][1], fixed(2, 2**-30)),
    Column("first over\nothers", "", lambda row: row[4], fixed(2)),
    Column(
        "process peak\nGiB",
        "",
        lambda row: row[0].peak_memory_mib,
        fixed(2, 2**-10),
    ),
]


def _devices(analysis: ScalingAnalysis) -> Table:
    """Returns a line per number of devices: stragglers, use and memory."""
    note = (
        "Slowest over median: forward and backward pass of each device, started together. GPU use: "
        "NVML's mean during training. Memory: TensorFlow's peak. Others: their median."
    )
    rows = []

    for answer in analysis.answers:
        use = _first_and_others(answer.gpu_percents()[: answer.devices])
        # None for slices of a processor.
        sizes = [size for size in answer.peak_device_bytes if size is not None]
        first, others = _first_and_others(sizes)
        ratio = None
        if first and others:
            ratio = first / others

        slowest = None
        if answer.devices > 1 and answer.replica_s:
            slowest = straggling(answer.replica_s)

        rows.append((answer, slowest, use, (first, others), ratio))

    return table_of("Devices", _DEVICES, rows, [note])


def _first_and_others(values: list[float]) -> tuple[float | None, float | None]:
    """Returns the first device's value, and the median of the others'.

    The first device may do more: it holds what isn't distributed. None if unknown.
    """
    if not values:
        return None, None
    if len(values) == 1:
        return values[0], None

    return values[0], statistics.median(values[1:])


# As in the paper's figure of utilisation.
_SHOWN_S = 25.0
_SOURCES = {
    "": "without loader",
    "loader": "with loader",
    "sorting loader": "with sorting loader",
}


def scaling_charts(analysis: ScalingAnalysis) -> dict[str, Callable[[], Chart]]:
    """Returns the charts by file name, each drawn when it is called."""
    return {
        "scaling": lambda: scaling_chart(analysis),
        "scaling_use": lambda: use_chart(analysis),
        "scaling_first_steps": lambda: first_steps_chart(analysis),
        "scaling_modules": lambda: modules_chart(analysis),
    }


def scaling_chart(analysis: ScalingAnalysis) -> Chart:
    """Draws efficiencies over the number of devices."""
    panels = [_efficiency(analysis, mode) for mode in ("weak", "strong")]
    caption = "Efficiency of data parallelism: ideal and measured"

    return Chart("scaling", caption, panels, columns=2, width=420)


def use_chart(analysis: ScalingAnalysis) -> Chart:
    """Draws the devices' use over time, with a panel per loader."""
    answer = analysis.answers[-1]
    panels = [
        _use_panel(times.use, _SOURCES[loader])
        for loader in LOADERS
        for times in answer.loads
        if (times.load.name, times.load.loader) == ("weak", loader)
    ]
    caption = f"Utilisation over time while training on {devices_text(answer.devices)}"

    return Chart("scaling_use", caption, panels, width=760)


def first_steps_chart(analysis: ScalingAnalysis) -> Chart:
    """Draws the first steps of each module, with a panel per number of devices."""
    panels = []
    for answer in analysis.answers:
        count = len(answer.modules.first_host_s)
        xs = list(range(1, count + 2))
        marks: list[Mark] = []

        for place, module in enumerate(answer.modules.modules):
            ys = [1000 * seconds for seconds in [*module.first_s, module.in_step_s]]
            marks += curve(xs, ys, run_colour(place), module.module)

        host = [1000 * seconds for seconds in answer.modules.first_host_s]
        marks.append(Line(x=xs[:-1], y=host, series="tracing and host", dash="dashed"))
        named = [*map(str, xs[:-1]), "median after"]
        x = Axis(
            "step",
            limits=(0.7, count + 1.3),
            ticks=xs,
            tick_labels=named,
            grid=False,
        )
        panels.append(
            Panel(marks, x, _ms_axis(marks), title=devices_text(answer.devices))
        )

    caption = "The first steps of each function, left out of all other figures"

    return Chart("scaling_first_steps", caption, panels, columns=2, width=420)


def modules_chart(analysis: ScalingAnalysis) -> Chart:
    """Draws the time of each module over the number of devices."""
    counts = [answer.devices for answer in analysis.answers]
    panels = []

    for title, seconds in (
        ("within the step", lambda module: module.in_step_s),
        ("alone, every other module off", lambda module: module.alone_s),
    ):
        marks: list[Mark] = []
        for place, module in enumerate(analysis.answers[0].modules.modules):
            ys = [1000 * seconds(a.modules.modules[place]) for a in analysis.answers]
            marks += curve(counts, ys, run_colour(place), module.module)

        wholes = [1000 * sum(map(seconds, a.modules.modules)) for a in analysis.answers]
        marks.append(Line(x=counts, y=wholes, dash="dashed", series="all modules"))
        panels.append(
            Panel(marks, counts_axis("devices", counts), _ms_axis(marks), title=title)
        )

    caption = "Time of each module over the number of devices"

    return Chart("scaling_modules", caption, panels, columns=2, width=420)


def _ms_axis(marks: Sequence[Mark]) -> Axis:
    """Returns a logarithmic axis of milliseconds that all marks fit into."""
    values = [value for mark in marks for value in mark.y if value > 0]

    return Axis(
        "ms, forward and backward",
        log=True,
        limits=(min(values) / 1.5, max(values) * 1.5),
    )


def _use_panel(use: Sequence[DeviceUse], title: str) -> Panel:
    """Draws the use of all devices with one loader."""
    marks: list[Mark] = []
    for place, device in enumerate(use):
        shown = sum(seconds <= _SHOWN_S for seconds in device.seconds)
        if device.device == PROCESS:
            colour = chart.INK
        else:
            colour = chart.device_colour(place - 1)

        marks.append(
            Line(
                x=device.seconds[:shown],
                y=device.percent[:shown],
                colour=colour,
                series=device.device,
                width=1.4,
            )
        )
        if device.mean_percent is not None:
            text = f"mean {device.mean_percent:.0f} %"
            marks.append(Rule(value=device.mean_percent, label=text, colour=colour))

    last = max(
        (x for mark in marks if isinstance(mark, Line) for x in mark.x), default=1.0
    )
    x = Axis("seconds", limits=(0, min(_SHOWN_S, last)))

    return Panel(marks, x, Axis("use, %", limits=(0, 105)), height=130, title=title)


def _efficiency(analysis: ScalingAnalysis, mode: str) -> Panel:
    """Draws weak or strong efficiency, with a curve per loader."""
    measured = [row for row in analysis.rows if row["mode"] == mode]
    counts = sorted({row["devices"] for row in measured})
    marks: list[Mark] = [Rule(value=100, label="ideal")]
    weak_batch = next(
        row["per_device_batch"] for row in analysis.rows if row["mode"] == "weak"
    )

    for place, loader in enumerate(LOADERS):
        if rows := [row for row in measured if row["loader"] == loader]:
            name = "measured"
            if analysis.shared_cores:
                name += ", cores shared"
            if loader:
                name += f", {loader}"
            xs = [row["devices"] for row in rows]
            ys = [100 * row["efficiency"] for row in rows]
            symbol = "square" if loader else "circle"
            marks += curve(xs, ys, run_colour((0, 3, 5)[place]), name, symbol=symbol)

    titles = {
        "strong": f"strong: {analysis.config.strong_utterances} utterances in all",
        "weak": f"weak: {weak_batch} utterances on each device",
    }
    top = max(105.0, *(1.05 * 100 * row["efficiency"] for row in measured))
    y = Axis("efficiency, %", limits=(0, top))

    return Panel(marks, counts_axis("devices", counts), y, title=titles[mode])


def run(
    config: ScalingConfig,
    model,
    features: FeatureConfig,
    context: Context,
) -> Result:
    """Measures each number of devices in a separate process."""
    reason = "The scaling analysis needs tfasr's own training under tf.distribute, on TensorFlow."
    require_tensorflow(reason, context)
    counts = sorted(set(config.device_counts)) or measure.default_counts(
        config.strong_utterances
    )
    tasks = [
        measure.task_of(config, model, features, n, context.fraction) for n in counts
    ]
    answers = [call(measure.measure, task, backend="tensorflow") for task in tasks]
    analysis = ScalingAnalysis.of(answers, config)
    tables = scaling_tables(analysis)
    figures = scaling_charts(analysis)

    return Result(tables, analysis.to_json(), measure.WARMUP_STEPS, figures)


SCALING = Workload(run, (ScalingConfig, ModelConfig, FeatureConfig), backends=())
