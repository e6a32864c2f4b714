"""How fast runs train: while they train, and over the wall clock with all that stops training."""

from collections.abc import Sequence

import numpy as np

from tfasr.analysis.bands import Curve
from tfasr.analysis.groups import GroupResult, group_members
from tfasr.analysis.report import Report, RunAnalysis
from tfasr.analysis.series import RunSeries
from tfasr.display.chart import Axis, Chart, Line, Mark, Panel, Points, Rects
from tfasr.display.style import run_colour, run_dash
from tfasr.reports.figures.curves import (
    band_marks,
    bands_by_axis,
    chart_of_views,
    places,
    ratio,
    series_name,
    time_axis,
    value_limits,
    with_spread,
)
from tfasr.reports.figures.registry import NotDrawnError

_MOST_RUNS = 6
_RATES = {
    "utterances_per_s": ("utterances/s", "Utterances"),
    "audio_s_per_s": ("audio s/s", "Seconds of audio"),
}
_GAP_SHARE = 0.02
_GAP_STEPS = 5


def throughput_charts(report: Report, results: Sequence[Sequence[GroupResult]]) -> list[Chart]:
    """Returns the throughput of training steps, and that over the wall clock.

    Source: the paper (arXiv 2003.12366), equation 4 and Figure 9.
    """
    rate = _stated(report)
    if rate is None:
        raise NotDrawnError(
            "Throughput over time: not every log states the utterances or the audio of its steps."
        )
    label, what = _RATES[rate]

    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        found = None if run.series is None else run.series.throughput[rate]
        if found is None or axis not in found.x:
            return None
        return _broken(found.x[axis], found.y)

    bands = bands_by_axis(report, curve)
    caption = (
        f"{what} trained on per second of training steps, waiting and compilation included, "
        "over the last 2 % of the steps"
    )
    rugs = _runs(report)
    if rugs:
        caption += "; beneath: when evaluations ran"
    medians = [float(np.nanmedian(band.middle)) for band in bands["minutes"]]
    log = ratio(medians) > 4
    low, high = value_limits(bands)
    y = Axis(f"throughput, {label}", log=log, limits=(low if log else 0.0, high))
    views = {}
    for axis, own in bands.items():
        x = time_axis(report, bands, axis)
        views[axis] = [Panel(band_marks(own), x, y)]
        marks = [mark for row, rug in enumerate(rugs) for mark in _rug(row, rug, axis)]
        if marks:
            views[axis] = _above(views[axis][0], marks, len(rugs))
    steady = chart_of_views("throughput", with_spread(caption, bands), views)
    return [steady, *_over_the_wall_clock(report)]


def _stated(report: Report) -> str | None:
    series = [run.series for run in report.runs if run.series is not None]
    stated = [
        rate for rate in _RATES if series and all(rate in of_run.throughput for of_run in series)
    ]
    return stated[0] if stated else None


def _above(panel: Panel, marks: list[Mark], rows: int) -> list[Panel]:
    top = Axis("", log=panel.x.log, limits=panel.x.limits, choose=True, tick_labels=[], ticks=[])
    beneath = Axis("evaluations", limits=(rows, 0.0), ticks=[], grid=False)
    return [
        Panel(panel.marks, top, panel.y, panel.height - 20),
        Panel(marks, panel.x, beneath, 16.0 * max(rows, 4)),
    ]


def _broken(x: np.ndarray, y: np.ndarray) -> Curve:
    # With a gap where nothing was trained for longer than an eye overlooks.
    if x.size < 3:
        return x, y
    pauses = np.diff(x)
    least = max(_GAP_SHARE * (x[-1] - x[0]), _GAP_STEPS * float(np.median(pauses)))
    after = np.flatnonzero(pauses > least)
    between = (x[after] + x[after + 1]) / 2
    return np.insert(x, after + 1, between), np.insert(y, after + 1, np.nan)


def _runs(report: Report) -> list[tuple[str, int, RunAnalysis, RunSeries]]:
    found = []
    for number, (group, own) in enumerate(group_members(report.runs).items()):
        run = report.runs[own[0]]
        if run.series is not None and run.series.evaluations:
            found.append((series_name(group, len(own), number), number, run, run.series))
    return found[:_MOST_RUNS]


def _rug(row: int, rug: tuple[str, int, RunAnalysis, RunSeries], axis: str) -> list[Mark]:
    name, number, run, series = rug
    own = series.evaluations
    texts = [
        f"{run.name}\nevaluation of epoch {evaluation.epoch}: "
        f"{60 * (evaluation.stop_min - evaluation.start_min):.3g} s"
        for evaluation in own
    ]
    about = {"series": name, "colour": run_colour(number), "texts": texts}
    if axis == "minutes":
        return [
            Rects(
                x0=[evaluation.start_min for evaluation in own],
                x1=[evaluation.stop_min for evaluation in own],
                y0=[row + 0.15] * len(own),
                y1=[row + 0.85] * len(own),
                # Keeps an evaluation of seconds visible in a run of hours.
                outline=1,
                **about,
            )
        ]
    at = [places(run, evaluation.epoch, 60 * evaluation.stop_min) for evaluation in own]
    if any(axis not in position for position in at):
        return []
    return [
        Points(
            x=[position[axis] for position in at],
            y=[row + 0.5] * len(at),
            symbol="tick",
            size=9,
            **about,
        )
    ]


def _over_the_wall_clock(report: Report) -> list[Chart]:
    marks: list[Mark] = []
    ends, highest = [1e-9], 0.0
    shown = [rug for rug in _runs(report) if rug[3].wall_throughput is not None]
    for name, number, _, series in shown:
        found = series.wall_throughput
        x, y = found.x["minutes"], found.y
        look = {"colour": run_colour(number), "dash": run_dash(number), "width": 1.2}
        marks.append(Line(x=x, y=y, series=name, **look))
        ends.append(float(x[-1]))
        highest = max(highest, float(y.max()))
    if not marks:
        return []
    caption = (
        "Utterances trained on per second of the wall clock, evaluations and all else included, "
        "so that what stops training is seen as a dip; of each group's first run"
    )
    log = ratio(ends[1:]) > 8
    x = Axis(
        "minutes since the creation of the model",
        limits=(min(ends[1:]) / 50 if log else 0.0, max(ends) * 1.03),
        log=log,
        choose=True,
    )
    y = Axis("throughput, utterances/s", limits=(0.0, 1.08 * highest or 1.0))
    return [Chart("throughput_wall", caption, [Panel(marks, x, y, 220)], wide=True, width=760)]
