"""The figure that shows how factors multiply to the ratio of two times."""

import itertools
import math
import operator

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from tfasr.display.style import INK, label_axes, new_figure
from tfasr.tta.decomposition import FACTORS, Decomposition

SLOWER, FASTER, WHOLE = "#d9660d", "#1f9e6e", "#7d8794"
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_NARROW = 3


def waterfall_figure(found: Decomposition) -> Figure:
    """Returns a bar for each factor, each beginning where the one before it ended.

    The axis is logarithmic, so that equal factors have equal lengths; the last bar is the ratio.
    """
    figure, axes = new_figure(height_in=3.7)
    labels = [*FACTORS.values(), "together"]
    reached = 1.0
    for row, factor in enumerate(found.factors.values()):
        colour = SLOWER if factor > 1 else FASTER
        axes.barh(row, reached * (factor - 1), 0.62, reached, color=colour)
        _annotate(axes, row, max(reached, reached * factor), factor)
        reached *= factor
        axes.plot([reached, reached], [row - 0.31, row + 1.31], color=INK, alpha=0.4, linewidth=0.8)
    axes.barh(len(FACTORS), found.ratio - 1, 0.62, 1.0, color=WHOLE)
    _annotate(axes, len(FACTORS), max(1.0, found.ratio), found.ratio)
    axes.set_xscale("log")
    low, high, ticks = waterfall_range(found)
    axes.set_xlim(low, high)
    axes.axvline(1, color=INK, alpha=0.6, linewidth=1)
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    label_axes(axes, x="times as long", y="")
    return figure


def waterfall_range(found: Decomposition) -> tuple[float, float, list[float]]:
    """Returns from where to where the axis of a waterfall goes, and its ticks."""
    ends = [1.0, *itertools.accumulate(found.factors.values(), operator.mul)]
    low, high = min(ends), max(ends)
    margin = max(1.05, (high / low) ** 0.12)
    bottom, top = low / margin, high * margin * margin
    # Over a narrow range a logarithmic axis is all but linear.
    even = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(bottom, top)
    ticks = even if top / bottom < _NARROW else _TICKS
    return bottom, top, [round(float(tick), 4) for tick in ticks if bottom <= tick <= top]


def factor_text(factor: float) -> str:
    """Returns "×1.50", or a dash where there is nothing to see."""
    return f"×{factor:.2f}" if abs(math.log(factor)) >= 0.005 else "–"


def _annotate(axes: Axes, row: int, at: float, factor: float) -> None:
    text = factor_text(factor)
    axes.annotate(
        text, (at, row), (4, 0), textcoords="offset points", va="center", color=INK, fontsize=9.5
    )
