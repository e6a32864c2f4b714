"""The figures over time: error rates, loss, throughput."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.display import chart
from tfasr.display.chart import (
    Area,
    Axis,
    Chart,
    Line,
    Mark,
    Panel,
    Points,
    Rects,
    Rule,
    run_colour,
)
from tfasr.reports.figures.registry import NotDrawnError
from tfasr.reports.groups import Results, colours, group_members
from tfasr.reports.numbers import Report, RunAnalysis, metric_label, sentence
from tfasr.reports.series import AXES, SIGMA, RunSeries, thin
from tfasr.tta.metrics import HIGHER, Metrics, metric_named

# Groups that get a line; if there are more, one band of all runs is added
MOST_GROUPS = 16
FEWEST_FOR_QUANTILES = 20
_GRID_POINTS = 250
EVERYTHING = -1
Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Band:
    name: str  # the group's
    number: int  # the number of its colour, or `EVERYTHING` for the band of all runs
    runs: int  # how many runs it shows
    x: np.ndarray  # ascending
    middle: np.ndarray  # the only run's values, or the median of the runs'
    # The lowest value, or from 20 runs on the 5 % quantile.
    low: np.ndarray | None = None
    # The highest value, or from 20 runs on the 95 % quantile.
    high: np.ndarray | None = None

    @property
    def label(self) -> str:
        return series_name(chart.shortened(self.name), self.runs, self.number)


def group_bands(
    report: Report, curve: Callable[[RunAnalysis], Curve | None]
) -> list[Band]:
    groups = [
        (name, n, runs)
        for n, (name, runs) in enumerate(group_members(report.runs).items())
    ]
    if len(groups) > MOST_GROUPS:
        indices = list(range(len(report.runs)))
        groups[MOST_GROUPS:] = [(f"all {len(indices)} runs", EVERYTHING, indices)]

    bands = []
    for name, number, indices in groups:
        curves = [
            points for points in (curve(report.runs[run]) for run in indices) if points
        ]
        curves = [(x, y) for x, y in curves if x.size]
        if curves:
            bands.append(band(name, number, curves))

    return bands


def band(name: str, number: int, curves: Sequence[Curve]) -> Band:
    """Returns the median and the spread of curves, wherever at least half of them have
    a value.
    """
    if len(curves) == 1:
        return Band(name, number, 1, *curves[0])
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[thin(grid.size, _GRID_POINTS)]
    values = np.array(
        [np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in curves]
    )
    counts = np.isfinite(values).sum(axis=0)
    shown = counts >= len(curves) / 2
    low, high = (0.05, 0.95) if len(curves) >= FEWEST_FOR_QUANTILES else (0.0, 1.0)
    ordered = np.sort(values[:, shown], axis=0)
    spread = [_quantile(ordered, counts[shown], share) for share in (0.5, low, high)]
    return Band(name, number, len(curves), grid[shown], *spread)


def _quantile(ordered: np.ndarray, counts: np.ndarray, share: float) -> np.ndarray:
    # The quantile of the first ``counts`` values of each column, which are sorted.
    # Faster than numpy.nanquantile, which loops over the columns.
    place = share * (counts - 1)
    below = np.floor(place).astype(int)
    above = np.ceil(place).astype(int)
    first = np.take_along_axis(ordered, below[None], axis=0)[0]
    second = np.take_along_axis(ordered, above[None], axis=0)[0]
    return first + (second - first) * (place - below)


def spread_text(bands: Sequence[Band]) -> str:
    sizes = [band.runs for band in bands if band.low is not None]
    if not sizes:
        return ""
    spread = "all runs"
    if max(sizes) >= FEWEST_FOR_QUANTILES:
        spread = "5–95 % of the runs"
        if min(sizes) < FEWEST_FOR_QUANTILES:
            spread += " (all runs of groups of fewer than 20)"

    return (
        f"lines are medians of a group's runs, bands contain {spread}; both end where fewer than "
        "half of the runs continue"
    )


_MOST_POINTS = 2000
_LOG_TIME_RATIO = 8
_RATE_LIMIT_PERCENT = 105.0
_LABEL_HEIGHT = 0.055
Bands = Mapping[str, Sequence[Band]]
Limits = tuple[float, float]


def error_rate_charts(report: Report, results: Results) -> list[Chart]:
    metrics = dict.fromkeys(metric for run in report.runs for metric in run.curves)
    if not metrics:
        raise NotDrawnError("Error rates: no run has a finished evaluation.")
    return [error_rate_chart(report, metric) for metric in metrics]


def loss_chart(report: Report, results: Results) -> Chart:
    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        loss = None if run.series is None else run.series.loss
        return None if loss is None or axis not in loss.x else (loss.x[axis], loss.y)

    bands = bands_by_axis(report, curve)
    if not bands["minutes"]:
        raise NotDrawnError("Training loss: no run recorded the loss of its steps.")
    caption = f"Training loss, smoothed over steps by a Gaussian (sigma {SIGMA:g})"
    y = Axis("training loss", log=True, limits=value_limits(bands), choose=True)
    views = {
        axis: [Panel(band_marks(of_axis), time_axis(report, bands, axis), y)]
        for axis, of_axis in bands.items()
    }
    return chart_of_views("train_loss", with_spread(caption, bands), views)


def bands_by_axis(
    report: Report, curve: Callable[[RunAnalysis, str], Curve | None]
) -> dict[str, list[Band]]:
    """Returns the bands by axis, only for axes that every curve has."""
    by_axis = {
        axis: group_bands(report, lambda run, a=axis: curve(run, a)) for axis in AXES
    }
    drawn = {
        axis: {(band.number, band.runs) for band in by_axis[axis]} for axis in AXES
    }
    return {axis: by_axis[axis] for axis in AXES if drawn[axis] == drawn["minutes"]}


def band_marks(bands: Sequence[Band]) -> list[Mark]:
    marks: list[Mark] = []
    for band in bands:
        everything = band.number == EVERYTHING
        look = {
            "colour": chart.OTHER_COLOUR if everything else run_colour(band.number),
            "series": series_name(band.name, band.runs, band.number),
        }
        if band.low is not None and band.high is not None:
            marks.append(Area(x=band.x, low=band.low, high=band.high, **look))
        dash = "solid" if everything else chart.run_dash(band.number)
        marks.append(Line(x=band.x, y=band.middle, dash=dash, **look))

    return marks


def series_name(group: str, runs: int, number: int) -> str:
    return group if runs == 1 or number == EVERYTHING else f"{group} (n = {runs})"


def time_axis(report: Report, bands: Bands, axis: str) -> Axis:
    """Returns the horizontal axis of curves.

    Minutes are on a logarithmic scale if some curves last over 8 times as long as
    others.
    """
    labels = {"minutes": clock_label(report), "utterances": "utterances trained on"}
    ends = [float(band.x[-1]) for band in bands[axis] if band.x.size]
    starts = [
        float(band.x[band.x > 0][0]) for band in bands[axis] if (band.x > 0).any()
    ]
    log = axis == "minutes" and bool(starts) and ratio(ends) > _LOG_TIME_RATIO
    last = max(ends, default=1) or 1
    limits = (min(starts) / 1.1, last * 1.08) if log else (0.0, last * 1.03)
    return Axis(labels.get(axis, axis), log=log, limits=limits, choose=True)


def clock_label(report: Report) -> str:
    if report.policy.name == "paper":
        return "minutes since the creation of the model"
    return f"minutes on the clock of {report.policy.name}"


def value_limits(
    bands: Bands, targets: Sequence[float] = (), most: float | None = None
) -> Limits:
    lines = [
        line for band in bands["minutes"] for line in (band.low, band.middle, band.high)
    ]
    values = np.concatenate([line for line in lines if line is not None] or [[]])
    values = values[np.isfinite(values)]
    positive = [*values[values > 0], *(target for target in targets if target > 0)]
    high = 1.12 * float(values.max(initial=0)) or 1.0
    low = float(min(positive, default=high)) / 1.15
    high = high if most is None else min(high, most)
    # In the first epochs, all values may lie above the highest value shown.
    return (low, high) if low < high else (high / 10, high)


def ratio(values: Sequence[float]) -> float:
    positive = [value for value in values if value > 0]
    return max(positive) / min(positive) if positive else 1.0


def with_spread(caption: str, bands: Bands) -> str:
    spread = spread_text(bands["minutes"])
    if any(band.number == EVERYTHING for band in bands["minutes"]):
        caption += (
            f"; the first {MOST_GROUPS} groups have lines, the grey band contains all"
        )

    return f"{caption}; {spread}" if spread else caption


def chart_of_views(name: str, caption: str, views: dict[str, list[Panel]]) -> Chart:
    return Chart(name, caption, views["minutes"], views if len(views) > 1 else {})


def places(run: RunAnalysis, epoch: float, elapsed_s: float) -> dict[str, float]:
    at = {"minutes": elapsed_s / 60, "epochs": float(epoch)}
    done = {} if run.series is None else run.series.utterances_by_epoch
    last = math.ceil(epoch)
    if last not in done:
        return at
    before = done.get(last - 1, 0.0)
    return at | {
        "utterances": float(done[last] - (last - epoch) * (done[last] - before))
    }


def error_rate_chart(report: Report, metric: str) -> Chart:
    rate = metric_named(metric, report.metrics).rate
    scale, unit = (100, " %") if rate else (1, "")
    bands = bands_by_axis(
        report, lambda run, axis: _evaluations(run, metric, axis, scale)
    )
    values = np.concatenate([band.middle for band in bands["minutes"]] or [[]])
    values = values[np.isfinite(values)]
    targets = sorted(
        {v * scale for name, v in report.targets if name == metric}, reverse=True
    )
    caption = f"{sentence(metric_label(metric, report.metrics))} on the validation set"
    if targets:
        caption += "; dashed lines are targets, rings mark when a target counts as met"
        if any(band.runs > 1 for band in bands["minutes"]):
            caption += " (for a group: its median time)"

    y = _value_axis(report.metrics, metric, bands, values, targets)
    few = sum(len(run.curves.get(metric, [])) for run in report.runs) <= _MOST_POINTS
    views = {}
    for axis, of_axis in bands.items():
        marks: list[Mark] = [*target_rules(targets, y), *band_marks(of_axis)]
        marks += _evaluation_points(report, metric, axis, scale, unit) if few else []
        marks += _rings(report, metric, axis, of_axis, scale, unit)
        views[axis] = [Panel(marks, time_axis(report, bands, axis), y)]

    return chart_of_views(metric, with_spread(caption, bands), views)


def _value_axis(
    metrics: Metrics,
    metric: str,
    bands: Bands,
    values: np.ndarray,
    targets: Sequence[float],
) -> Axis:
    kind = metric_named(metric, metrics)
    label = metric_label(metric, metrics) + (", %" if kind.rate else "")
    most = _RATE_LIMIT_PERCENT if kind.rate else None
    lowest = float(values.min(initial=0.0))
    if kind.better == HIGHER or lowest < 0:
        # Metrics that grow get a linear axis that reaches up to the targets.
        above = [*values, *targets, 0.0 if lowest < 0 else 1e-12]
        high = float(max(above))
        low = min([lowest, *targets, 0.0])
        room = 0.08 * (high - low)
        high = min(high + room, most or math.inf)
        return Axis(label, limits=(low - room if low < 0 else 0.0, high))

    # A logarithmic axis can't show 0, and leaving zeros out would hide the best values.
    log = bool(values.size and values.min() > 0)
    low, high = value_limits(bands, targets, most)
    return Axis(label, log=log, limits=(low if log else 0.0, high), choose=log)


def _evaluations(
    run: RunAnalysis, metric: str, axis: str, scale: float
) -> Curve | None:
    points = [
        (places(run, p.epoch, p.elapsed_s), p.value) for p in run.curves.get(metric, [])
    ]
    if not points or any(axis not in at for at, _ in points):
        return None
    x = np.array([at[axis] for at, _ in points], dtype=float)
    return x, np.array([value for _, value in points], dtype=float) * scale


def target_rules(targets: Sequence[float], y: Axis) -> list[Mark]:
    """Returns a line for each target within an axis; targets close to each other share
    a label.
    """
    low, high = y.limits
    close: list[list[float]] = []
    for target in targets:
        if low <= target <= high:
            if close and _distance(target, close[-1][-1], y) < _LABEL_HEIGHT:
                close[-1].append(target)
            else:
                close.append([target])

    marks: list[Mark] = []
    for group in close:
        label = ", ".join(f"{target:.4g}" for target in group)
        middle = len(group) // 2
        marks += [
            Rule(value=t, label=label if n == middle else "")
            for n, t in enumerate(group)
        ]

    return marks


def _distance(first: float, second: float, axis: Axis) -> float:
    low, high = axis.limits
    if axis.log:
        return abs(math.log(first / second)) / math.log(high / low)
    return abs(first - second) / (high - low)


def _evaluation_points(
    report: Report, metric: str, axis: str, scale: float, unit: str
) -> list[Mark]:
    members = group_members(report.runs)
    marks: list[Mark] = []
    for number, run in zip(colours(report), report.runs, strict=True):
        curve = _evaluations(run, metric, axis, scale)
        if number >= MOST_GROUPS or curve is None:
            continue
        runs = len(members[run.group])
        texts = [
            f"{run.name}\nepoch {p.epoch}, {p.elapsed_s / 60:.4g} min\n{p.value * scale:.4g}{unit}"
            for p in run.curves[metric]
        ]
        look = {
            "colour": run_colour(number),
            "series": series_name(run.group, runs, number),
        }
        look |= {"size": 4.5 if runs == 1 else 3, "texts": texts}
        marks.append(Points(x=list(curve[0]), y=list(curve[1]), **look))

    return marks


def _rings(
    report: Report,
    metric: str,
    axis: str,
    bands: Sequence[Band],
    scale: float,
    unit: str,
) -> list[Mark]:
    lines = {band.number: band for band in bands if band.number != EVERYTHING}
    marks: list[Mark] = []
    for number, (group, indices) in enumerate(group_members(report.runs).items()):
        runs = [report.runs[index] for index in indices]
        for index, (name, value) in enumerate(report.targets):
            ttas = [run.results[index].tta for run in runs]
            reached = [
                (run, tta) for run, tta in zip(runs, ttas, strict=True) if tta.reached
            ]
            # If half of the runs never reach the target, neither does the median.
            if name != metric or number not in lines or 2 * len(reached) <= len(runs):
                continue
            never = [math.inf] * (len(runs) - len(reached))
            at = [places(run, tta.epoch, tta.seconds).get(axis) for run, tta in reached]
            x = statistics.median([*at, *never])
            if not math.isfinite(x):
                continue
            line = lines[number]
            # A group's line shows the median value at each time. At the median time to
            # the target it may show another value, or have ended, so the ring is drawn
            # at the target.
            if line.runs > 1:
                y = value * scale
            else:
                y = float(np.interp(x, line.x, line.middle))

            text = f"{group}\ntarget {value * scale:.4g}{unit} met after {x:.4g} {axis}"
            look = {
                "colour": run_colour(number),
                "series": series_name(group, line.runs, number),
            }
            marks.append(
                Points(x=[x], y=[y], symbol="ring", size=11, texts=[text], **look)
            )

    return marks


_MOST_RUNS = 6
_RATES = {
    "utterances_per_s": ("utterances/s", "Utterances"),
    "audio_s_per_s": ("audio s/s", "Seconds of audio"),
}
_GAP_SHARE = 0.02
_GAP_STEPS = 5


def throughput_charts(report: Report, results: Results) -> list[Chart]:
    """Source: the paper (arXiv 2003.12366), equation 4 and Figure 9."""
    series = [run.series.throughput for run in report.runs if run.series is not None]
    rate = next(
        (rate for rate in _RATES if series and all(rate in of for of in series)), None
    )
    if rate is None:
        raise NotDrawnError(
            "Throughput over time: not every log states the utterances or the audio of its steps."
        )

    label, what = _RATES[rate]

    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        speeds = None if run.series is None else run.series.throughput[rate]
        if speeds and axis in speeds.x:
            return _broken(speeds.x[axis], speeds.y)

        return None

    bands = bands_by_axis(report, curve)
    caption = (
        f"{what} trained on per second of training steps, waiting and compilation included, "
        "as a moving mean over 2 % of the steps"
    )
    rugs = _runs(report)
    if rugs:
        caption += "; beneath: when evaluations ran"
    log = ratio([float(np.nanmedian(band.middle)) for band in bands["minutes"]]) > 4
    low, high = value_limits(bands)
    y = Axis(f"throughput, {label}", log=log, limits=(low if log else 0.0, high))
    views = {}
    for axis, of_axis in bands.items():
        x = time_axis(report, bands, axis)
        steady = band_marks(of_axis)
        views[axis] = [Panel(steady, x, y)]
        marks = [mark for row, rug in enumerate(rugs) for mark in _rug(row, rug, axis)]
        if marks:
            top = Axis(
                "", log=x.log, limits=x.limits, choose=True, tick_labels=[], ticks=[]
            )
            beneath = Axis("evaluations", limits=(len(rugs), 0.0), ticks=[], grid=False)
            rows = Panel(marks, x, beneath, 16.0 * max(len(rugs), 4))
            views[axis] = [Panel(steady, top, y, 260), rows]

    steady = chart_of_views("throughput", with_spread(caption, bands), views)
    return [steady, *_over_the_wall_clock(report)]


def _broken(x: np.ndarray, y: np.ndarray) -> Curve:
    # Adds gaps where training visibly paused.
    if x.size < 3:
        return x, y
    pauses = np.diff(x)
    least = max(_GAP_SHARE * (x[-1] - x[0]), _GAP_STEPS * float(np.median(pauses)))
    after = np.flatnonzero(pauses > least)
    between = (x[after] + x[after + 1]) / 2
    return np.insert(x, after + 1, between), np.insert(y, after + 1, np.nan)


def _runs(report: Report) -> list[tuple[str, int, RunAnalysis, RunSeries]]:
    shown_runs = []
    for number, (group, indices) in enumerate(group_members(report.runs).items()):
        run = report.runs[indices[0]]
        if run.series is not None and run.series.evaluations:
            shown_runs.append(
                (series_name(group, len(indices), number), number, run, run.series)
            )

    return shown_runs[:_MOST_RUNS]


def _rug(
    row: int, rug: tuple[str, int, RunAnalysis, RunSeries], axis: str
) -> list[Mark]:
    name, number, run, series = rug
    epochs, starts, stops = zip(*series.evaluations, strict=True)
    texts = [
        f"{run.name}\nevaluation of epoch {epoch}: {60 * (stop - start):.3g} s"
        for epoch, start, stop in zip(epochs, starts, stops, strict=True)
    ]
    about = {"series": name, "colour": run_colour(number), "texts": texts}
    if axis == "minutes":
        rows = {"y0": [row + 0.15] * len(texts), "y1": [row + 0.85] * len(texts)}
        # The outline keeps an evaluation of seconds visible in a run of hours.
        return [Rects(x0=starts, x1=stops, outline=1, **rows, **about)]

    at = [
        places(run, epoch, 60 * stop) for epoch, stop in zip(epochs, stops, strict=True)
    ]
    if any(axis not in position for position in at):
        return []
    x = [position[axis] for position in at]
    return [Points(x=x, y=[row + 0.5] * len(at), symbol="tick", size=9, **about)]


def _bin_s(series: RunSeries) -> float:
    """Returns how many seconds each point of the throughput over the wall clock averages."""
    # The first is at half a bin.
    return 120 * float(series.wall_throughput.x["minutes"][0])


def _over_the_wall_clock(report: Report) -> list[Chart]:
    shown = [run for run in _runs(report) if run[3].wall_throughput is not None]
    if not shown:
        return []
    drawn = [(*run[:2], run[3].wall_throughput) for run in shown]
    marks: list[Mark] = []
    for name, number, speeds in drawn:
        look = {
            "colour": run_colour(number),
            "dash": chart.run_dash(number),
            "width": 1.2,
        }
        marks.append(Line(x=speeds.x["minutes"], y=speeds.y, series=name, **look))

    ends = [float(speeds.x["minutes"][-1]) for *_, speeds in drawn]
    highest = max(float(speeds.y.max()) for *_, speeds in drawn)
    caption = (
        "Utterances trained on per second of the wall clock, evaluations and all else included, "
        "so pauses of training show as dips; each group's first run"
    )
    falls = [
        f"{name} {100 * series.fall_at_evaluations:.0f} % (mean of {_bin_s(series):.2g} s)"
        for name, _, _, series in shown
        if series.fall_at_evaluations is not None
    ]
    if falls:
        caption += f". At an evaluation the throughput falls by: {', '.join(falls)}"
    log = ratio(ends) > 8
    limits = (min(ends) / 50 if log else 0.0, max(1e-9, *ends) * 1.03)
    x = Axis(
        "minutes since the creation of the model", limits=limits, log=log, choose=True
    )
    y = Axis("throughput, utterances/s", limits=(0.0, 1.08 * highest or 1.0))
    return [
        Chart(
            "throughput_wall", caption, [Panel(marks, x, y, 220)], wide=True, width=760
        )
    ]
