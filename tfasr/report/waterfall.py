"""The figure that shows how factors multiply to the ratio of two times."""

import math

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from tfasr.report.drawing import INK, label_axes, new_figure
from tfasr.tta.decomposition import FACTORS, Decomposition

_SLOWER, _FASTER, _WHOLE = "#d9660d", "#1f9e6e", "#7d8794"
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 5, 7, 10, 20, 50, 100)


def waterfall_figure(found: Decomposition) -> Figure:
    """Returns a bar for each factor, each beginning where the one before it ended.

    The axis is logarithmic, so that equal factors have equal lengths; the last bar is the ratio.
    """
    figure, axes = new_figure(height_in=3.7)
    labels = [*FACTORS.values(), "together"]
    reached = 1.0
    ends = [1.0]
    for row, factor in enumerate(found.factors.values()):
        colour = _SLOWER if factor > 1 else _FASTER
        axes.barh(row, reached * (factor - 1), 0.62, reached, color=colour)
        _annotate(axes, row, max(reached, reached * factor), factor)
        reached *= factor
        ends.append(reached)
        axes.plot([reached, reached], [row - 0.31, row + 1.31], color=INK, alpha=0.4, linewidth=0.8)
    axes.barh(len(FACTORS), found.ratio - 1, 0.62, 1.0, color=_WHOLE)
    _annotate(axes, len(FACTORS), max(1.0, found.ratio), found.ratio)
    axes.set_xscale("log")
    low, high = min(ends), max(ends)
    margin = max(1.05, (high / low) ** 0.12)
    axes.set_xlim(low / margin, high * margin * margin)
    axes.axvline(1, color=INK, alpha=0.6, linewidth=1)
    ticks = [tick for tick in _TICKS if low / margin <= tick <= high * margin]
    # Within a narrow range the usual ticks would leave but one.
    if len(ticks) < 3:
        ticks = [round(low, 3), 1.0, round(high, 3)]
    axes.set_xticks(sorted(set(ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    label_axes(axes, x="times as long", y="")
    return figure


def _annotate(axes, row: int, at: float, factor: float) -> None:
    text = f"×{factor:.2f}" if abs(math.log(factor)) >= 0.005 else "–"
    axes.annotate(
        text, (at, row), (4, 0), textcoords="offset points", va="center", color=INK, fontsize=9.5
    )
