"""What a wider beam costs and what it gains, as a figure for a slide."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tfasr.bench.decoder.rows import DecoderRow
from tfasr.display.slides import add_legend, label_axes, new_slide
from tfasr.display.style import run_colour

_MOST_TICKS = 8
_LABEL_HEIGHT = 0.055


def decoder_figure(rows: Sequence[DecoderRow]) -> Figure:
    """Returns processor seconds per hour of audio and word error rate over beam widths.

    A decoder without a beam is a dashed line; the numbers at the right are those of the widest
    beam.
    """
    figure, (cost, errors) = new_slide(panels=2)
    curves: dict[str, list[DecoderRow]] = {}
    for row in rows:
        curves.setdefault(row.label, []).append(row)
    widths = sorted({row.beam_width for row in rows if row.beam_width is not None})
    seconds = [[row.measured.cpu_s_per_audio_hour for row in own] for own in curves.values()]
    wer = [[100 * row.measured.counts.wer for row in own] for own in curves.values()]
    cost.set_yscale("log")
    for axes, values in ((cost, seconds), (errors, wer)):
        handles = [
            _draw(axes, own, of_one, run_colour(index))
            for index, (own, of_one) in enumerate(zip(curves.values(), values, strict=True))
        ]
        _beam_axis(axes, widths or [1])
    _seconds_axis(cost)
    errors.set_ylim(bottom=0)
    _label_ends(cost, seconds, "{:.2g}")
    _label_ends(errors, wer, "{:.1f}")
    label_axes(cost, x="beam width", y="CPU seconds per hour of audio")
    label_axes(errors, x="beam width", y="word error rate, %")
    add_legend(figure, handles, list(curves), columns=len(curves))
    return figure


def _draw(axes: Axes, rows: Sequence[DecoderRow], values: Sequence[float], colour: str) -> Line2D:
    if rows[0].beam_width is None:
        return axes.axhline(values[0], color=colour, linewidth=1.8, dashes=(4, 3))
    widths = [row.beam_width for row in rows]
    (line,) = axes.plot(widths, values, "-", color=colour, linewidth=2.2, marker="o", markersize=5)
    return line


def _beam_axis(axes: Axes, widths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    step = -(-len(widths) // _MOST_TICKS)
    axes.xaxis.set_major_locator(FixedLocator(widths[::-1][::step]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(widths[0] / 1.6, widths[-1] * 1.6)


def _seconds_axis(axes: Axes) -> None:
    """Widens a logarithmic axis to whole powers of ten: within one it would show no figure."""
    low, high = axes.get_ylim()
    axes.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _label_ends(axes: Axes, values: Sequence[Sequence[float]], form: str) -> None:
    """Writes each curve's last value beside the axes, no two over each other."""
    to_fraction = axes.transScale + axes.transLimits
    ends = [(to_fraction.transform((1, own[-1]))[1], own[-1], i) for i, own in enumerate(values)]
    lowest_free = -math.inf
    for height, value, index in sorted(ends):
        height = max(height, lowest_free)
        lowest_free = height + _LABEL_HEIGHT
        axes.annotate(
            form.format(value),
            (1.02, height),
            xycoords="axes fraction",
            va="center",
            color=run_colour(index),
            fontsize=10.5,
            annotation_clip=False,
        )
