"""The figure of how busy processors were while a run trained and evaluated."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from tfasr.analysis.utilisation import UtilisationWindow
from tfasr.display.intervals_look import INTERVAL_LABELS
from tfasr.display.style import (
    DEVICE_COLOURS,
    INK,
    INTERVAL_COLOURS,
    add_legend,
    new_stack,
    shortened,
)
from tfasr.tta.intervals import INTERVALS

_WIDTH_IN = 8.2


def utilisation_figure(windows: Sequence[UtilisationWindow]) -> Figure:
    """Returns for each window the devices' utilisation above the phases of the run."""
    heights = [height for _ in windows for height in (1.35, 0.3)]
    figure, axes = new_stack(heights, width_in=_WIDTH_IN, share=False)
    lines: dict[str, object] = {}
    for number, window in enumerate(windows):
        above, below = axes[2 * number], axes[2 * number + 1]
        for device, (seconds, percent) in window.devices.items():
            colour = DEVICE_COLOURS[device[:3]]
            (lines[device],) = above.plot(seconds, percent, color=colour, linewidth=1.5)
        above.set_ylim(0, 104)
        above.yaxis.set_major_locator(FixedLocator([0, 50, 100]))
        above.set_ylabel("busy, %", color=INK, fontsize=10.5)
        above.set_title(
            f"{shortened(window.run, 40)}, from {moment(window.start_s)}",
            loc="left", color=INK, fontsize=10, parse_math=False,
        )  # fmt: skip
        _draw_phases(below, window)
        for one in (above, below):
            one.set_xlim(0, window.length_s)
        above.tick_params(labelbottom=False)
    below.set_xlabel("seconds into the window", color=INK, fontsize=10.5)
    phases = [name for name in INTERVALS if any(name in window.phases for window in windows)]
    patches = [_patch(axes[1], INTERVAL_COLOURS[name]) for name in phases]
    labels = [INTERVAL_LABELS[name].replace("\n", " ") for name in phases]
    add_legend(figure, [*lines.values(), *patches], [*lines, *labels], columns=6)
    return figure


def _draw_phases(axes: Axes, window: UtilisationWindow) -> None:
    reached = np.zeros(window.edges_s.size - 1)
    for name, share in window.phases.items():
        # What is not there has no outline either.
        seen = np.where(share > 0, reached + share, np.nan)
        axes.stairs(seen, window.edges_s, baseline=reached, fill=True,
                    color=INTERVAL_COLOURS[name], linewidth=0)  # fmt: skip
        reached = reached + share
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_locator(NullLocator())
    axes.grid(False)
    axes.set_ylabel("doing", color=INK, fontsize=9, rotation=0, ha="right", va="center")


def _patch(axes: Axes, colour: str):
    """Returns a rectangle for the legend that is drawn nowhere else."""
    (patch,) = axes.bar([np.nan], [np.nan], color=colour)
    return patch


def moment(seconds: float) -> str:
    """Returns a time as people say it: seconds, or minutes where they would be many."""
    return f"{seconds:.0f} s" if seconds < 120 else f"minute {seconds / 60:.1f}"
