"""Latency and throughput over batch sizes, a curve for each precision, for a slide."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from tfasr.bench.sweep.rows import SweepRow
from tfasr.bench.sweep.tables import LABELS, SweepAnalysis
from tfasr.display.slides import add_legend, label_axes, new_slide
from tfasr.display.style import INK, run_colour

_CLIFF_COLOUR = "#cf4747"


def sweep_figure(analysis: SweepAnalysis) -> Figure:
    """Returns inference latency, and beside it training throughput where it was measured.

    Bars reach from the median latency to the 99th percentile; a red ring is a cliff.
    """
    modes = ["inference", *(["training"] if analysis.of("training") else [])]
    figure, panels = new_slide(panels=len(modes))
    precisions = list(dict.fromkeys(row.precision for row in analysis.rows))
    handles: dict[str, Line2D] = {}
    for axes, mode in zip(panels, modes, strict=True):
        rows = [row for row in analysis.of(mode) if row.p50_s is not None]
        for index, precision in enumerate(precisions):
            own = [row for row in rows if row.precision == precision]
            if own:
                handles.setdefault(precision, _curve(axes, own, index, _value(mode)))
        _ring(axes, rows, handles, _value(mode))
        _batch_axis(axes, sorted({row.batch for row in rows}), logarithmic=mode == "training")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_title(mode, fontsize=10.5, color=INK, loc="left")
    label_axes(panels[0], x="batch, utterances", y="latency of a batch, ms: p50, bar to p99")
    if len(panels) > 1:
        label_axes(panels[1], x="batch, utterances", y="utterances per second")
    labels = [_legend(analysis, name) for name in handles]
    add_legend(figure, list(handles.values()), labels, columns=min(len(labels), 3))
    return figure


def _legend(analysis: SweepAnalysis, name: str) -> str:
    if name not in LABELS:
        return name
    if analysis.errors is not None:
        return f"{LABELS[name]}: WER {analysis.cost(name)} %"
    error = 100 * analysis.logit_errors[name]
    return LABELS[name] if name == "float32" else f"{LABELS[name]}: logits ±{error:.2g} %"


def _value(mode: str) -> Callable[[SweepRow], float]:
    if mode == "training":
        return lambda row: 1 / row.utterance_s
    return lambda row: 1000 * row.p50_s


def _curve(
    axes: Axes, rows: Sequence[SweepRow], index: int, value: Callable[[SweepRow], float]
) -> Line2D:
    colour, batches = run_colour(index), [row.batch for row in rows]
    if rows[0].mode == "inference":
        # Side by side, so that no bar hides another's.
        batches = [batch + 0.05 * (index - 1.5) for batch in batches]
        for batch, row in zip(batches, rows, strict=True):
            ends = (1000 * row.p50_s, 1000 * row.p99_s)
            axes.plot([batch] * 2, ends, "-", color=colour, linewidth=1.4, alpha=0.7)
    values = [value(row) for row in rows]
    (line,) = axes.plot(batches, values, "-o", color=colour, linewidth=2.2, markersize=5.5)
    line.set_gid(rows[0].precision)
    return line


def _ring(
    axes: Axes,
    rows: Sequence[SweepRow],
    handles: dict[str, Line2D],
    value: Callable[[SweepRow], float],
) -> None:
    precisions = [name for name in handles if name in LABELS]
    for row in rows:
        if row.cliff:
            aside = 0.05 * (precisions.index(row.precision) - 1.5)
            (ring,) = axes.plot(
                [row.batch + (aside if row.mode == "inference" else 0)],
                [value(row)],
                "o",
                markersize=13,
                markerfacecolor="none",
                markeredgecolor=_CLIFF_COLOUR,
                markeredgewidth=1.8,
            )
            handles.setdefault("cliff: slower per utterance", ring)


def _batch_axis(axes: Axes, batches: Sequence[int], logarithmic: bool) -> None:
    if logarithmic:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(batches)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
