"""Training steps on Keras's backends as a figure for a slide."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from tfasr.display.slides import add_legend, label_axes, new_slide
from tfasr.display.style import INK, run_colour

if TYPE_CHECKING:
    from tfasr.bench.backends.times import BackendTimes


def backends_figure(times: "Sequence[BackendTimes]") -> Figure:
    """Returns a panel for each model with a bar for each backend: forward, then the rest."""
    models = list(dict.fromkeys(row.model for row in times))
    figure, panels = new_slide(panels=len(models))
    handles = []
    for axes, model in zip(panels, models, strict=True):
        rows = [row for row in times if row.model == model]
        names = [row.backend for row in rows]
        forward = [row.median_forward_ms for row in rows]
        whole = [row.median_step_ms for row in rows]
        rest = [max(0.0, all_ms - own) for all_ms, own in zip(whole, forward, strict=True)]
        handles = [
            axes.bar(names, forward, width=0.6, color=run_colour(0)),
            axes.bar(names, rest, width=0.6, bottom=forward, color=run_colour(1)),
        ]
        for place, value in enumerate(whole):
            text = f"{value:.0f} ms · {value / min(whole):.2f}×"
            axes.annotate(
                text,
                (place, value),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                color=INK,
                fontsize=10.5,
            )
        axes.set_ylim(0, max(whole) * 1.12)
        axes.grid(False, axis="x")
        label_axes(axes, x=f"{model}, batch of {rows[0].batch_size}", y="ms per training step")
    add_legend(figure, handles, ["forward", "backward and update"], columns=2)
    return figure
