"""The figure of what machines took from runs over time.

A sampler writes what the host took from a run into ``host.csv``;
`tfasr.tta.host.taken_over_time` relates it to the run's steps.
"""

from contextlib import suppress

import numpy as np

from tfasr.display.chart import Area, Axis, Chart, Mark, Panel, shortened
from tfasr.errors import UsageError
from tfasr.reports.figures.registry import NotDrawnError
from tfasr.reports.groups import Results
from tfasr.reports.numbers import Report, RunAnalysis, TimeUnit, time_unit
from tfasr.tta.host import CAUSES, read_host_file, taken_over_time
from tfasr.tta.run import load_run

# Runs that get a panel, the most disturbed ones.
MOST_RUNS = 3
# Places along the time axis.
BINS = 120
# By the names of `tfasr.tta.host.CAUSES`.
COLOURS = {
    "stolen_s": "#cf4747",
    "throttled_s": "#7a63d4",
    "competed_s": "#e0a526",
    "stopped_s": "#7d8794",
    "low_memory_s": "#1596a8",
}


def host_chart(report: Report, results: Results) -> Chart:
    """Returns the figure of what machines took from the most disturbed runs.

    It has a panel for each run, of which the host file is read again.
    """
    disturbed = [
        run for run in report.runs if run.host is not None and run.host.disturbed
    ]
    disturbed.sort(key=lambda run: run.host.share)
    unit = time_unit(report)
    panels = []

    for run in disturbed[:MOST_RUNS]:
        # It may be deleted after the report's tables were made.
        with suppress(UsageError):
            panels.append(_panel(run, unit))

    if not panels:
        raise NotDrawnError(
            "What machines took: no run is known to have lost 10 % of its steps."
        )

    caption = (
        "What machines took of the processors and the time that runs could have used"
    )
    if len(disturbed) > MOST_RUNS:
        caption += f"; the {MOST_RUNS} most disturbed of {len(disturbed)} runs"

    return Chart("host", caption, panels)


def _panel(run: RunAnalysis, unit: TimeUnit) -> Panel:
    """Returns a run's panel: the causes, stacked, in percent of what it could have used."""
    timeline = load_run(run.path, run.name).timeline
    edges_s, taken = taken_over_time(read_host_file(run.path), timeline, BINS)
    middles = (edges_s[:-1] + edges_s[1:]) / 2 / unit.seconds

    marks: list[Mark] = []
    reached = np.zeros(BINS)

    for name, cause in CAUSES.items():
        if not taken[name].any():
            continue

        low = reached
        reached = np.minimum(reached + 100 * taken[name], 100.0)
        marks.append(
            Area(x=middles, low=low, high=reached, colour=COLOURS[name], series=cause)
        )

    return Panel(
        marks,
        Axis(
            f"{unit.name} since the creation of the model",
            limits=(0.0, edges_s[-1] / unit.seconds),
        ),
        Axis("taken, %", limits=(0.0, 100.0), ticks=[0, 50, 100]),
        height=120,
        title=shortened(run.name, 40),
    )
