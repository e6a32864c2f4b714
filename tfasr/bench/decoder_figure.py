"""What a wider beam costs and what it gains, as a figure for a slide."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from tfasr.bench.decoder import DecoderRow
from tfasr.report.drawing import INK, add_legend, label_axes, new_slide, run_colour

_MOST_TICKS = 8


def decoder_figure(rows: Sequence[DecoderRow]) -> Figure:
    """Returns processor seconds per hour of audio and word error rate over beam widths.

    A decoder without a beam is a dashed line.
    """
    figure, (cost, errors) = new_slide(panels=2)
    handles = []
    labels = list(dict.fromkeys(row.label for row in rows))
    for index, label in enumerate(labels):
        own = [row for row in rows if row.label == label]
        seconds = [row.measured.cpu_s_per_audio_hour for row in own]
        wer = [100 * row.measured.counts.wer for row in own]
        handles.append(_draw(cost, own, seconds, index))
        _draw(errors, own, wer, index)
    cost.set_yscale("log")
    cost.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    cost.yaxis.set_minor_formatter(NullFormatter())
    errors.set_ylim(bottom=0)
    for axes in (cost, errors):
        _beam_axis(axes, [row.beam_width for row in rows if row.beam_width is not None])
    label_axes(cost, x="beam width", y="CPU seconds per hour of audio")
    label_axes(errors, x="beam width", y="word error rate, %")
    add_legend(figure, handles, labels, columns=len(labels))
    return figure


def _draw(axes: Axes, rows: Sequence[DecoderRow], values: Sequence[float], index: int):
    colour = run_colour(index)
    if rows[0].beam_width is None:
        return axes.axhline(values[0], color=colour, linewidth=1.8, dashes=(4, 3))
    widths = [row.beam_width for row in rows]
    (line,) = axes.plot(widths, values, "-", color=colour, linewidth=2.2, marker="o", markersize=5)
    for end in sorted({0, len(values) - 1}):
        axes.annotate(
            f"{values[end]:.3g}",
            (widths[end], values[end]),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontsize=10,
        )
    return line


def _beam_axis(axes: Axes, widths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted(set(widths)) or [1]
    step = -(-len(ticks) // _MOST_TICKS)
    axes.xaxis.set_major_locator(FixedLocator(ticks[::step]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(ticks[0] / 1.6, ticks[-1] * 1.6)
    axes.tick_params(colors=INK)
