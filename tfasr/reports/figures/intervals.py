"""Where the time of whole runs went."""

from collections.abc import Sequence

import numpy as np

from tfasr.analysis.groups import GroupResult
from tfasr.analysis.report import Report
from tfasr.display.chart import Axis, Chart, Mark, Panel, Rects, rows_axis
from tfasr.display.intervals_look import INTERVAL_LABELS
from tfasr.display.style import INTERVAL_COLOURS, shortened
from tfasr.reports.figures.registry import NotDrawnError
from tfasr.tta.intervals import INTERVALS

MOST_BARS = 40


def interval_chart(report: Report, results: Sequence[Sequence[GroupResult]]) -> Chart:
    """Returns one bar a run, made of the minutes of its intervals; the first run at the top."""
    runs = report.runs[:MOST_BARS]
    rows = np.arange(len(runs))
    left = np.zeros(len(runs))
    marks: list[Mark] = []
    for name in INTERVALS:
        minutes = np.array([run.intervals_s[name] for run in runs]) / 60
        if not minutes.any():
            continue
        label = INTERVAL_LABELS[name].replace("\n", " ")
        marks.append(
            Rects(
                x0=left, x1=left + minutes, y0=rows - 0.33, y1=rows + 0.33,
                colour=INTERVAL_COLOURS[name], series=label,
                texts=[
                    f"{run.name}\n{label}: {own:.3g} min"
                    for run, own in zip(runs, minutes, strict=True)
                ],
            )
        )  # fmt: skip
        left = left + minutes
    if not marks:
        raise NotDrawnError("Where the time went: no run has lasted any time.")
    more = f", of the first {MOST_BARS} runs" if len(report.runs) > MOST_BARS else ""
    x = Axis("minutes", limits=(0.0, 1.03 * float(left.max()) or 1.0))
    names = rows_axis([shortened(run.name, 20) for run in runs])
    panel = Panel(marks, x, names, 30.0 + 30 * len(runs))
    return Chart("intervals", f"Where the time of the whole run went{more}", [panel])
