"""The figures over time that a report has: error rates, loss, throughput."""

import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tfasr.analysis.bands import EVERYTHING, MOST_GROUPS, Band, Curve, group_bands, spread_text
from tfasr.analysis.groups import colours, group_members
from tfasr.analysis.names import metric_label
from tfasr.analysis.report import Report, RunAnalysis
from tfasr.analysis.series import AXES
from tfasr.analysis.smoothing import SIGMA
from tfasr.report.figures.chart import Chart, Mark, Point, Rug, value_limits
from tfasr.tta.targets import RATES

_MOST_POINTS = 2000
_MOST_RUGS = 6
_LOG_TIME_RATIO = 8
_RATE_LIMIT_PERCENT = 105.0
# The first that all logs state; seconds of audio vary less from step to step.
_RATES = {
    "audio_s_per_s": ("audio s/s", "Seconds of audio"),
    "utterances_per_s": ("utterances/s", "Utterances"),
}
_GAP_SHARE = 0.02
_GAP_STEPS = 5


def curve_charts(report: Report) -> tuple[list[Chart], list[str]]:
    """Returns the figures over time that the runs' logs allow, and why others are left out."""
    metrics = dict.fromkeys(metric for run in report.runs for metric in run.curves)
    charts = [_accuracy_chart(report, metric) for metric in metrics]
    left_out = [] if charts else ["Error rates: no run has a finished evaluation."]
    for chart, reason in (
        (_loss_chart(report), "Training loss: no log says it of its steps."),
        (_throughput_chart(report), "Throughput over time: not every log says what a step had."),
    ):
        if chart is None:
            left_out.append(reason)
        else:
            charts.append(chart)
    return charts, left_out


def _accuracy_chart(report: Report, metric: str) -> Chart:
    rate = metric in RATES
    scale = 100 if rate else 1
    bands = _on_axes(report, lambda run, axis: _accuracy_curve(run, metric, axis, scale))
    values = np.concatenate([band.middle for band in bands["minutes"]] or [[]])
    values = values[np.isfinite(values)]
    targets = sorted({v * scale for name, v in report.targets if name == metric}, reverse=True)
    marks = _marks(report, metric, bands, scale)
    caption = f"{metric_label(metric)} on the validation set"
    if targets:
        caption += "; dashed lines are targets, rings mark where the rule for one is met"
        if any(band.runs > 1 for band in bands["minutes"]):
            caption += " (by a group: its median time)"
    chart = Chart(
        name=metric,
        caption=_with_spread(caption, bands),
        clock=clock_label(report),
        y_label=metric_label(metric) + (", %" if rate else ""),
        unit=" %" if rate else "",
        bands=bands,
        # Zero has no place on a logarithmic axis, and leaving it out would hide the best.
        log_y=bool(values.size and values.min() > 0),
        log_time=_spans_decades(bands),
        limits=value_limits(bands, targets, _RATE_LIMIT_PERCENT if rate else None),
        targets=targets,
        marks=marks,
    )
    return replace(chart, points=_points(report, metric, scale))


def _loss_chart(report: Report) -> Chart | None:
    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        loss = None if run.series is None else run.series.loss
        return None if loss is None or axis not in loss.x else (loss.x[axis], loss.y)

    bands = _on_axes(report, curve)
    if not bands["minutes"]:
        return None
    caption = f"Training loss, smoothed over steps by a Gaussian (sigma {SIGMA:g})"
    return Chart(
        name="train_loss",
        caption=_with_spread(caption, bands),
        clock=clock_label(report),
        y_label="training loss",
        unit="",
        bands=bands,
        log_y=True,
        log_time=_spans_decades(bands),
        limits=value_limits(bands),
    )


def _throughput_chart(report: Report) -> Chart | None:
    series = [run.series for run in report.runs if run.series is not None]
    stated = [rate for rate in _RATES if series and all(rate in one.throughput for one in series)]
    if not stated:
        return None
    rate = stated[0]
    label, what = _RATES[rate]

    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        found = None if run.series is None else run.series.throughput[rate]
        if found is None or axis not in found.x:
            return None
        return _broken(found.x[axis], found.y)

    bands = _on_axes(report, curve)
    if not bands["minutes"]:
        return None
    caption = (
        f"{what} trained on per second of training steps, waiting and compilation included, "
        "over the last 2 % of the steps"
    )
    rugs = _rugs(report)
    if rugs:
        caption += "; beneath: when evaluations ran"
    return Chart(
        name="throughput",
        caption=_with_spread(caption, bands),
        clock=clock_label(report),
        y_label=f"throughput, {label}",
        unit=f" {label}",
        bands=bands,
        log_y=_ratio([float(np.nanmedian(band.middle)) for band in bands["minutes"]]) > 4,
        log_time=_spans_decades(bands),
        limits=value_limits(bands),
        rugs=rugs,
    )


def _broken(x: np.ndarray, y: np.ndarray) -> Curve:
    """Returns a curve with a gap where nothing was trained for longer than an eye overlooks."""
    if x.size < 3:
        return x, y
    pauses = np.diff(x)
    least = max(_GAP_SHARE * (x[-1] - x[0]), _GAP_STEPS * float(np.median(pauses)))
    after = np.flatnonzero(pauses > least)
    between = (x[after] + x[after + 1]) / 2
    return np.insert(x, after + 1, between), np.insert(y, after + 1, np.nan)


def _on_axes(
    report: Report, curve: Callable[[RunAnalysis, str], Curve | None]
) -> dict[str, list[Band]]:
    """Returns the bands by axis; an axis that some curve lacks would compare unlike things."""
    found = {axis: group_bands(report, lambda run, a=axis: curve(run, a)) for axis in AXES}
    drawn = {(band.number, band.runs) for band in found["minutes"]}
    return {
        axis: bands
        for axis, bands in found.items()
        if axis == "minutes" or {(band.number, band.runs) for band in bands} == drawn
    }


def _accuracy_curve(run: RunAnalysis, metric: str, axis: str, scale: float) -> Curve | None:
    points = [(_places(run, p.epoch, p.elapsed_s), p.value) for p in run.curves.get(metric, [])]
    if not points or any(axis not in places for places, _ in points):
        return None
    x = np.array([places[axis] for places, _ in points], dtype=float)
    return x, np.array([value for _, value in points], dtype=float) * scale


def _places(run: RunAnalysis, epoch: int, elapsed_s: float) -> dict[str, float]:
    """Returns where on each axis an evaluation of a run stands."""
    places = {"minutes": elapsed_s / 60, "epochs": float(epoch)}
    done = {} if run.series is None else run.series.utterances_by_epoch
    if epoch in done:
        places["utterances"] = float(done[epoch])
    return places


def _marks(report: Report, metric: str, bands: dict[str, list[Band]], scale: float) -> list[Mark]:
    by_number = {
        axis: {band.number: band for band in own if band.number != EVERYTHING}
        for axis, own in bands.items()
    }
    marks = []
    for number, (group, own) in enumerate(group_members(report.runs).items()):
        for index, (name, value) in enumerate(report.targets):
            found = [(report.runs[run], report.runs[run].results[index].tta) for run in own]
            reached = [(run, tta) for run, tta in found if tta.reached]
            # Where half of the runs never arrive, the median is never.
            if name != metric or 2 * len(reached) <= len(found):
                continue
            at = {}
            for axis, drawn in by_number.items():
                if number not in drawn:
                    continue
                never = [float("inf")] * (len(found) - len(reached))
                places = [_places(run, tta.epoch, tta.seconds).get(axis) for run, tta in reached]
                x = statistics.median([*places, *never])
                if np.isfinite(x):
                    line = drawn[number]
                    # A group's line is of medians at one time, and its own end may be earlier.
                    y = value * scale if line.runs > 1 else np.interp(x, line.x, line.middle)
                    at[axis] = (x, float(y))
            if "minutes" in at:
                marks.append(Mark(group, number, value, at))
    return marks


def _points(report: Report, metric: str, scale: float) -> list[Point]:
    if sum(len(run.curves.get(metric, [])) for run in report.runs) > _MOST_POINTS:
        return []
    return [
        Point(run.name, run.group, number, p.epoch, _places(run, p.epoch, p.elapsed_s),
              p.value * scale)
        for number, run in zip(colours(report), report.runs, strict=True)
        if number < MOST_GROUPS
        for p in run.curves.get(metric, [])
    ]  # fmt: skip


def _rugs(report: Report) -> list[Rug]:
    rugs = []
    for number, (group, own) in enumerate(group_members(report.runs).items()):
        run = report.runs[own[0]]
        if run.series is not None and run.series.evaluations:
            evaluations = run.series.evaluations
            places = [_places(run, one.epoch, 60 * one.stop_min) for one in evaluations]
            axes = [axis for axis in AXES[1:] if all(axis in own for own in places)]
            at = {axis: [own[axis] for own in places] for axis in axes}
            rugs.append(Rug(run.name, group, number, evaluations, at))
    return rugs[:_MOST_RUGS]


def _spans_decades(bands: dict[str, list[Band]]) -> bool:
    return _ratio([float(band.x[-1]) for band in bands["minutes"] if band.x.size]) > _LOG_TIME_RATIO


def _ratio(values: list[float]) -> float:
    known = [value for value in values if value > 0]
    return max(known) / min(known) if known else 1.0


def _with_spread(caption: str, bands: dict[str, list[Band]]) -> str:
    spread = spread_text(bands["minutes"])
    if any(band.number == EVERYTHING for band in bands["minutes"]):
        caption += f"; the first {MOST_GROUPS} groups have lines, the grey band holds all"
    return f"{caption}; {spread}" if spread else caption


def clock_label(report: Report) -> str:
    """Returns what the minutes of the report's policy are."""
    if report.policy.name == "paper":
        return "minutes since the creation of the model"
    return f"minutes on the clock of {report.policy.name}"
