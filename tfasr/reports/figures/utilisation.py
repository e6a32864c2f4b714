"""How busy processors were while a run trained and evaluated."""

from collections.abc import Sequence

import numpy as np

from tfasr.analysis.groups import GroupResult
from tfasr.analysis.report import Report
from tfasr.analysis.utilisation import CPU_COLUMNS, UtilisationWindow, utilisation_windows
from tfasr.display.chart import Axis, Chart, Line, Mark, Panel, Rects
from tfasr.display.intervals_look import INTERVAL_LABELS
from tfasr.display.style import INK, INTERVAL_COLOURS, device_colour, shortened
from tfasr.reports.figures.registry import NotDrawnError

_SEEN = 0.005


def utilisation_chart(report: Report, results: Sequence[Sequence[GroupResult]]) -> Chart:
    """Returns for each window the processors' utilisation above the phases of the run.

    Source: the paper (arXiv 2003.12366), Figure 8: 25 s, the CPU and a line for each GPU.
    """
    windows = utilisation_windows(report)
    if not windows:
        raise NotDrawnError(
            "Utilisation: no run has a cpu.csv or gpu.csv with samples of steps after warm-up."
        )
    caption = (
        f"Processors in {windows[0].length_s:.3g} s after warm-up, as sampled, and below what the "
        "run was doing"
    )
    panels: list[Panel] = []
    for window in windows:
        panels += _panels(window)
    panels[-1] = _labelled(panels[-1])
    return Chart("utilisation", caption, panels, wide=True, width=760)


def _panels(window: UtilisationWindow) -> list[Panel]:
    bare = Axis("", limits=(0.0, window.length_s), ticks=[])
    title = f"{shortened(window.run, 40)}, from {moment(window.start_s)}"
    panels = []
    for kind in ("CPU", "GPU"):
        own = {name: line for name, line in window.devices.items() if name.startswith(kind)}
        if own:
            marks = [_device(window, name, number) for number, name in enumerate(own)]
            busy = Axis(f"{kind}, %", limits=(0.0, 104.0), ticks=[0, 50, 100])
            panels.append(Panel(marks, bare, busy, 95, title))
            title = ""
    doing = Axis("doing", limits=(0.0, 1.0), ticks=[], grid=False)
    seconds = Axis("", limits=(0.0, window.length_s))
    return [*panels, Panel(_phases(window), seconds, doing, 22)]


def _labelled(panel: Panel) -> Panel:
    x = Axis("seconds into the window", limits=panel.x.limits)
    return Panel(panel.marks, x, panel.y, panel.height)


def _device(window: UtilisationWindow, name: str, number: int) -> Mark:
    seconds, percent = window.devices[name]
    colour = device_colour(number) if name.startswith("GPU") else INK
    # The training process is part of what the machine does.
    dash = "dotted" if name == CPU_COLUMNS["process_percent"] else "solid"
    return Line(x=seconds, y=percent, colour=colour, dash=dash, width=1.2, series=name)


def _phases(window: UtilisationWindow) -> list[Mark]:
    marks: list[Mark] = []
    reached = np.zeros(window.edges_s.size - 1)
    for name, share in window.phases.items():
        label = INTERVAL_LABELS[name].replace("\n", " ")
        low, high = reached, reached + share
        reached = high
        same = (np.abs(np.diff(low)) < _SEEN) & (np.abs(np.diff(high)) < _SEEN)
        first = np.flatnonzero(np.concatenate([[True], ~same]))
        last = np.append(first[1:], share.size)
        seen = share[first] > _SEEN
        first, last = first[seen], last[seen]
        if first.size:
            marks.append(
                Rects(
                    x0=window.edges_s[first], x1=window.edges_s[last],
                    y0=low[first], y1=high[first],
                    colour=INTERVAL_COLOURS[name], series=label,
                    texts=[
                        f"{label}: {share[one]:.0%} from {window.edges_s[one]:.3g} s"
                        for one in first
                    ],
                )
            )  # fmt: skip
    return marks


def moment(seconds: float) -> str:
    """Returns a time as people say it: seconds, or minutes where they would be many."""
    return f"{seconds:.0f} s" if seconds < 120 else f"minute {seconds / 60:.1f}"
