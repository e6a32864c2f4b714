"""A figure of your own: how long an epoch takes in each run.

tfasr report RUN_A RUN_B --out DIR --import examples/own_figure.py

The chart is on DIR/report.html with the others, and as DIR/epoch_time.png and .svg.
"""

from tfasr.display.chart import Axis, Chart, Panel, Rects, rows_axis
from tfasr.reports.figures.registry import FIGURES, NotDrawnError


@FIGURES.register("epoch_time")
def epoch_time(report, results):
    """Draws a bar for each run with at least one evaluated epoch."""
    runs = [run for run in report.runs if run.epochs]
    if not runs:
        raise NotDrawnError("No run has finished an epoch.")
    rows = range(len(runs))
    bars = Rects(
        x0=[0.0] * len(runs),
        x1=[run.wall_s / run.epochs for run in runs],
        y0=[row - 0.3 for row in rows],
        y1=[row + 0.3 for row in rows],
        colour="#2f7fd0",
        series="seconds per epoch, everything counted",
    )
    panel = Panel([bars], Axis("seconds"), rows_axis([run.name for run in runs]))
    return Chart("epoch_time", "How long an epoch takes in each run", [panel])
