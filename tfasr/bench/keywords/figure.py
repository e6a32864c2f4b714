"""The keyword spotter as a figure for a slide: its confusions, and how fast it learns."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tfasr.bench.keywords.training import error_rate
from tfasr.display.slides import label_axes, new_slide
from tfasr.display.style import INK, run_colour
from tfasr.tta.time_to_accuracy import AccuracyPoint

_SMALL_PT = 6.5


def keyword_figure(
    words: Sequence[str], confusion: np.ndarray, points: Sequence[AccuracyPoint], target: float
) -> Figure:
    """Returns the confusion matrix of the test split beside the error rate over time.

    Args:
        words: names of rows and columns.
        confusion: how often the word of a row was taken for that of a column.
        points: the error rate on the validation split.
        target: the error rate to come down to.
    """
    figure, (matrix, curve) = new_slide(panels=2)
    _draw_matrix(matrix, words, confusion)
    seconds = [point.elapsed_s for point in points]
    errors = [100 * point.value for point in points]
    curve.plot(seconds, errors, color=run_colour(0), linewidth=2.2, marker="o", markersize=4)
    curve.axhline(100 * target, color=INK, linewidth=1.2, dashes=(4, 3))
    curve.annotate(
        f"target {100 * target:g} %",
        (1.0, 100 * target),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        color=INK,
        fontsize=10.5,
    )
    curve.set_ylim(0, max(100 * target * 1.3, *errors) * 1.05)
    curve.set_xlim(left=0)
    curve.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    label_axes(curve, x="seconds since the model's creation", y="wrong words, validation")
    return figure


def _draw_matrix(axes: Axes, words: Sequence[str], confusion: np.ndarray) -> None:
    spoken = np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    shares = confusion / spoken
    colours = LinearSegmentedColormap.from_list("shares", ["#ffffff", run_colour(0)])
    axes.imshow(shares, cmap=colours, vmin=0, vmax=1, aspect="equal")
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(True)
    places = range(len(words))
    axes.set_xticks(places, words, rotation=90, fontsize=_SMALL_PT)
    axes.set_yticks(places, words, fontsize=_SMALL_PT)
    axes.tick_params(labelsize=_SMALL_PT, pad=1)
    for row, column in np.argwhere(confusion):
        axes.text(
            column,
            row,
            confusion[row, column],
            ha="center",
            va="center",
            color="white" if shares[row, column] > 0.6 else INK,
            fontsize=4.5,
        )
    accuracy = 100 * (1 - error_rate(confusion))
    label_axes(axes, x=f"taken for; {accuracy:.1f} % right", y="spoken, test")
