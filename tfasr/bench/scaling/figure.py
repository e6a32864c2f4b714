"""Efficiency over devices: ideal, predicted and measured, for a slide."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tfasr.bench.scaling.analysis import ScalingAnalysis, ScalingRow
from tfasr.display.slides import add_legend, label_axes, new_slide
from tfasr.display.style import INK, run_colour


def scaling_figure(analysis: ScalingAnalysis) -> Figure:
    """Returns weak and strong scaling side by side, each over the number of devices."""
    figure, panels = new_slide(panels=2)
    handles: dict[str, Line2D] = {}
    for axes, mode in zip(panels, ("weak", "strong"), strict=True):
        _panel(axes, analysis, mode, handles)
        axes.set_title(_title(analysis, mode), fontsize=10.5, color=INK, loc="left")
    add_legend(figure, list(handles.values()), list(handles), columns=4 if len(handles) < 5 else 3)
    return figure


def _title(analysis: ScalingAnalysis, mode: str) -> str:
    if mode == "strong":
        return f"strong: {analysis.strong_utterances} utterances in all"
    batch = next(row.per_device_batch for row in analysis.rows if row.mode == "weak")
    return f"weak: {batch} utterances on each device"


def _panel(axes: Axes, analysis: ScalingAnalysis, mode: str, handles: dict[str, Line2D]) -> None:
    handles["ideal"] = axes.axhline(100, color=INK, alpha=0.55, linewidth=1.4, dashes=(4, 3))
    measured = [row for row in analysis.rows if row.mode == mode]
    counts = sorted({row.devices for row in measured})
    shown = list(counts)
    if analysis.model is not None:
        if analysis.shared_cores:
            efficiency = _predicted(analysis.model, analysis, mode)
            handles["predicted, cores shared"] = _line(axes, counts, efficiency, 1, "--")
        shown = sorted({*counts, *analysis.predicted_devices})
        name = "predicted, devices apart" if analysis.shared_cores else "predicted"
        efficiency = _predicted(analysis.separate(), analysis, mode)
        handles[name] = _line(axes, shown, efficiency, 2, ":")
    for loader in (False, True):
        rows = [row for row in measured if row.loader == loader]
        if rows:
            name = "measured, cores shared" if analysis.shared_cores else "measured"
            name += ", with loader" if loader else ""
            handles[name] = _points(axes, rows, 3 if loader else 0, loader)
    _axes(axes, shown)


def _predicted(model, analysis: ScalingAnalysis, mode: str) -> Callable[[int], float]:
    if mode == "strong":
        return lambda n: model.strong_efficiency(n, analysis.strong_utterances)
    batch = next(row.per_device_batch for row in analysis.rows if row.mode == "weak")
    return lambda n: model.weak_efficiency(n, batch)


def _line(
    axes: Axes, counts: Sequence[int], efficiency: Callable[[int], float], colour: int, style: str
) -> Line2D:
    percent = [100 * efficiency(count) for count in counts]
    (line,) = axes.plot(counts, percent, style, color=run_colour(colour), linewidth=2)
    return line


def _points(axes: Axes, rows: Sequence[ScalingRow], colour: int, hollow: bool) -> Line2D:
    (line,) = axes.plot(
        [row.devices for row in rows],
        [100 * row.efficiency for row in rows],
        "-",
        color=run_colour(colour),
        linewidth=2.2,
        marker="s" if hollow else "o",
        markersize=6,
        markerfacecolor="white" if hollow else None,
    )
    return line


def _axes(axes: Axes, counts: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(counts)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(counts[0] / 1.15, counts[-1] * 1.15)
    top = max(105.0, *(max(line.get_ydata()) * 1.05 for line in axes.get_lines()))
    axes.set_ylim(0, top)
    label_axes(axes, x="devices", y="efficiency, %")
