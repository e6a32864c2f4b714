"""The scaling analysis as figures: efficiency, use over time, first steps, modules."""

from collections.abc import Callable, Sequence

from tfasr.bench.probes.device_use import PROCESS, DeviceUse
from tfasr.bench.scaling.analysis import ScalingAnalysis, ScalingRow
from tfasr.bench.scaling.config import LOADERS
from tfasr.display.chart import Axis, Chart, Line, Mark, Panel, Points, Rule
from tfasr.display.style import INK, device_colour, run_colour

_SHOWN_S = 25.0
"""As in the paper's figure of the utilisation."""
_SOURCES = {"": "without loader", "loader": "with loader", "sorting loader": "with sorting loader"}


def scaling_charts(analysis: ScalingAnalysis) -> dict[str, Callable[[], Chart]]:
    """Returns what makes each figure, by its name."""
    charts = {
        "scaling": lambda: scaling_chart(analysis),
        "scaling_use": lambda: use_chart(analysis),
    }
    if analysis.timed:
        charts["scaling_first_steps"] = lambda: first_steps_chart(analysis)
        charts["scaling_modules"] = lambda: modules_chart(analysis)
    return charts


def scaling_chart(analysis: ScalingAnalysis) -> Chart:
    """Returns weak and strong scaling side by side, each over the number of devices."""
    panels = [_efficiency(analysis, mode) for mode in ("weak", "strong")]
    caption = "Efficiency of data parallelism: ideal, predicted and measured"
    return Chart("scaling", caption, panels, columns=2, width=420)


def use_chart(analysis: ScalingAnalysis) -> Chart:
    """Returns how busy the devices were over time, a panel for each source of batches."""
    answer = analysis.answers[-1]
    panels = []
    for loader in LOADERS:
        for times in answer.loads:
            if (times.load.name, times.load.loader) == ("weak", loader):
                panels.append(_use_panel(times.use, _SOURCES[loader]))
    on = f"{answer.devices} {'device' if answer.devices == 1 else 'devices'}"
    caption = f"Use of the devices over time while training on {on}"
    return Chart("scaling_use", caption, panels, width=760)


def first_steps_chart(analysis: ScalingAnalysis) -> Chart:
    """Returns each module's seconds within the first steps, a panel for each number of devices."""
    panels = []
    for answer in analysis.timed:
        count = len(answer.modules.first_host_s)
        xs = list(range(1, count + 2))
        marks: list[Mark] = []
        for number, module in enumerate(answer.modules.modules):
            ys = [1000 * seconds for seconds in [*module.first_s, module.in_step_s]]
            marks += _curve(xs, ys, number, module.module)
        host = [1000 * seconds for seconds in answer.modules.first_host_s]
        look = {"colour": INK, "dash": "dashed"}
        marks.append(Line(x=xs[:-1], y=host, series="tracing and host", **look))
        named = [*map(str, xs[:-1]), "median after"]
        x = Axis("step", limits=(0.7, count + 1.3), ticks=xs, tick_labels=named, grid=False)
        on = f"{answer.devices} {'device' if answer.devices == 1 else 'devices'}"
        panels.append(Panel(marks, x, _ms_axis(marks), title=on))
    caption = "The first steps of each function, which no other figure counts"
    return Chart("scaling_first_steps", caption, panels, columns=2, width=420)


def modules_chart(analysis: ScalingAnalysis) -> Chart:
    """Returns each module's seconds over the numbers of devices, within the step and alone."""
    counts = [answer.devices for answer in analysis.timed]
    panels = []
    for title, seconds in (
        ("within the step", lambda module: module.in_step_s),
        ("alone, every other module off", lambda module: module.alone_s),
    ):
        marks: list[Mark] = []
        for number, module in enumerate(analysis.timed[0].modules.modules):
            ys = [1000 * seconds(a.modules.modules[number]) for a in analysis.timed]
            marks += _curve(counts, ys, number, module.module)
        wholes = [1000 * sum(map(seconds, a.modules.modules)) for a in analysis.timed]
        marks.append(Line(x=counts, y=wholes, colour=INK, dash="dashed", series="all modules"))
        panels.append(Panel(marks, _devices_axis(counts), _ms_axis(marks), title=title))
    caption = "Time of each module over the number of devices"
    return Chart("scaling_modules", caption, panels, columns=2, width=420)


def _curve(xs: Sequence[float], ys: Sequence[float], number: int, name: str) -> list[Mark]:
    colour = run_colour(number)
    return [Line(x=xs, y=ys, colour=colour, series=name), Points(x=xs, y=ys, colour=colour)]


def _ms_axis(marks: Sequence[Mark]) -> Axis:
    values = [value for mark in marks for value in mark.y if value > 0]
    return Axis("ms, forward and backward", log=True, limits=(min(values) / 1.5, max(values) * 1.5))


def _devices_axis(counts: Sequence[int]) -> Axis:
    limits = (counts[0] / 1.15, counts[-1] * 1.15)
    return Axis("devices", log=True, limits=limits, ticks=counts)


def _use_panel(use: Sequence[DeviceUse], title: str) -> Panel:
    marks: list[Mark] = []
    for number, device in enumerate(use):
        shown = sum(seconds <= _SHOWN_S for seconds in device.seconds)
        colour = INK if device.device == PROCESS else device_colour(number - 1)
        look = {"colour": colour, "series": device.device, "width": 1.4}
        marks.append(Line(x=device.seconds[:shown], y=device.percent[:shown], **look))
        if device.mean_percent is not None:
            text = f"mean {device.mean_percent:.0f} %"
            marks.append(Rule(value=device.mean_percent, label=text, colour=colour))
    last = max((x for mark in marks if isinstance(mark, Line) for x in mark.x), default=1.0)
    x = Axis("seconds", limits=(0, min(_SHOWN_S, last)))
    return Panel(marks, x, Axis("use, %", limits=(0, 105)), height=130, title=title)


def _efficiency(analysis: ScalingAnalysis, mode: str) -> Panel:
    measured = [row for row in analysis.rows if row.mode == mode]
    counts = sorted({row.devices for row in measured})
    marks: list[Mark] = [Rule(value=100, label="ideal")]
    shown = list(counts)
    if analysis.model is not None:
        if analysis.shared_cores:
            ys = [100 * _predicted(analysis.model, analysis, mode)(n) for n in counts]
            name = "predicted, cores shared"
            marks.append(Line(x=counts, y=ys, colour=run_colour(1), dash="dashed", series=name))
        shown = sorted({*counts, *analysis.predicted_devices})
        name = "predicted, devices apart" if analysis.shared_cores else "predicted"
        ys = [100 * _predicted(analysis.separate(), analysis, mode)(n) for n in shown]
        marks.append(Line(x=shown, y=ys, colour=run_colour(2), dash="dotted", series=name))
    for number, loader in enumerate(LOADERS):
        rows = [row for row in measured if row.loader == loader]
        if rows:
            marks += _measured(rows, analysis.shared_cores, (0, 3, 5)[number])
    top = max(105.0, *(1.05 * 100 * row.efficiency for row in measured))
    y = Axis("efficiency, %", limits=(0, top))
    return Panel(marks, _devices_axis(shown), y, title=_title(analysis, mode))


def _measured(rows: Sequence[ScalingRow], shared_cores: bool, colour: int) -> list[Mark]:
    name = "measured, cores shared" if shared_cores else "measured"
    name += f", {rows[0].loader}" if rows[0].loader else ""
    place = {"x": [row.devices for row in rows], "y": [100 * row.efficiency for row in rows]}
    look = {"colour": run_colour(colour)}
    symbol = "square" if rows[0].loader else "circle"
    return [Line(**place, **look, series=name), Points(**place, **look, symbol=symbol)]


def _title(analysis: ScalingAnalysis, mode: str) -> str:
    if mode == "strong":
        return f"strong: {analysis.strong_utterances} utterances in all"
    batch = next(row.per_device_batch for row in analysis.rows if row.mode == "weak")
    return f"weak: {batch} utterances on each device"


def _predicted(model, analysis: ScalingAnalysis, mode: str) -> Callable[[int], float]:
    if mode == "strong":
        return lambda n: model.strong_efficiency(n, analysis.strong_utterances)
    batch = next(row.per_device_batch for row in analysis.rows if row.mode == "weak")
    return lambda n: model.weak_efficiency(n, batch)
