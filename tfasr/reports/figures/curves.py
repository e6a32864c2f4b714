"""The figures over time: error rates, loss, throughput.

A figure draws a line for each group: of its only run, or the median of its runs, which
are thin lines behind it. All curves can be shown over time, epochs and utterances.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
from tfasr.reports.numbers import (
    Report,
    RunAnalysis,
    metric_label,
    sentence,
    time_unit,
)
from tfasr.reports.series import AXES, SIGMA, RunSeries, thin
from tfasr.tta.metrics import HIGHER, Metrics, metric_named

# Groups that get a line; if there are more, one band of all runs is added
MOST_GROUPS = 16
# From so many runs on, a band of quantiles says more than a line for each run.
FEWEST_FOR_QUANTILES = 20
# More points of a median than a screen shows.
_GRID_POINTS = 250
# The number of the band of all runs, in place of a colour's.
EVERYTHING = -1
# x and y of a line, equally long; x ascends.
Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Band:
    """A group's line, and what shows the spread of its runs.

    Attributes:
        name: the group's.
        number: of its colour, or `EVERYTHING` for the band of all runs.
        runs: how many runs it shows.
        x: ascending places on the horizontal axis.
        middle: the only run's values at ``x``, or the median of the runs'.
        members: each run's own curve, for thin lines; () for a single run.
        low: the 5 % quantile of the runs at ``x``; of fewer than 20 the lowest value.
            None for a single run.
        high: the 95 % quantile, or the highest value.
    """

    name: str
    number: int
    runs: int
    x: np.ndarray
    middle: np.ndarray
    members: Sequence[Curve] = ()
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    @property
    def label(self) -> str:
        return series_name(chart.shortened(self.name), self.runs, self.number)

    def with_point(self, x: float, *, log: bool) -> "Band":
        """Returns the band with a point more, on its line as it is drawn.

        Marks at this point are on the line even if a reader changes the scale. ``log``
        says whether the vertical axis is logarithmic, where lines are straight in
        logarithms.
        """
        place = int(np.searchsorted(self.x, x))
        if place < self.x.size and self.x[place] == x:
            return self

        def between(values: np.ndarray | None) -> np.ndarray | None:
            if values is None:
                return None
            if log:
                with np.errstate(divide="ignore", invalid="ignore"):
                    new = np.exp(np.interp(x, self.x, np.log(values)))
            else:
                new = np.interp(x, self.x, values)

            return np.insert(values, place, new)

        return replace(
            self,
            x=np.insert(self.x, place, x),
            middle=between(self.middle),
            low=between(self.low),
            high=between(self.high),
        )

    def at(self, x: float) -> float:
        """Returns the line's value at one of its points, or between two of them."""
        return float(np.interp(x, self.x, self.middle))


def group_bands(
    report: Report,
    curve: Callable[[RunAnalysis], Curve | None],
    *,
    carry_on: bool = False,
) -> list[Band]:
    """Returns a band for each group whose runs have a curve.

    Args:
        report: its groups, in their order.
        curve: returns a run's curve, or None.
        carry_on: whether a finished run's last value counts until the last run ends,
            as an error rate does and a throughput does not.
    """
    groups = [
        (name, number, runs)
        for number, (name, runs) in enumerate(group_members(report.runs).items())
    ]
    if len(groups) > MOST_GROUPS:
        everything = list(range(len(report.runs)))
        groups[MOST_GROUPS:] = [(f"all {len(everything)} runs", EVERYTHING, everything)]

    bands = []
    for name, number, indices in groups:
        curves = []
        lasting = []
        for index in indices:
            run = report.runs[index]
            points = curve(run)
            if points is not None and points[0].size:
                curves.append(points)
                lasting.append(carry_on and run.status == "success")

        if curves:
            bands.append(band(name, number, curves, lasting))

    return bands


def band(
    name: str,
    number: int,
    curves: Sequence[Curve],
    lasting: Sequence[bool] | None = None,
) -> Band:
    """Returns the median and the spread of a group's curves.

    It begins where all curves have begun, and ends where fewer than half of them have a
    value. Where ``lasting`` is true, a curve keeps its last value after its end: a run
    that met its target and stopped would otherwise leave the median to slower runs, and
    the line would rise.
    """
    if len(curves) == 1:
        return Band(name, number, 1, *curves[0])

    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[thin(grid.size, _GRID_POINTS)]
    values = []
    for (x, y), lasts in zip(curves, lasting or [False] * len(curves), strict=True):
        after = y[-1] if lasts else np.nan
        values.append(np.interp(grid, x, y, left=np.nan, right=after))

    counts = np.isfinite(values).sum(axis=0)
    begun = grid >= max(x[0] for x, _ in curves)
    shown = (counts >= len(curves) / 2) & begun
    low, high = 0.0, 1.0
    if len(curves) >= FEWEST_FOR_QUANTILES:
        low, high = 0.05, 0.95

    ordered = np.sort(np.array(values)[:, shown], axis=0)
    return Band(
        name,
        number,
        len(curves),
        grid[shown],
        _quantile(ordered, counts[shown], 0.5),
        curves,
        _quantile(ordered, counts[shown], low),
        _quantile(ordered, counts[shown], high),
    )


def _quantile(ordered: np.ndarray, counts: np.ndarray, share: float) -> np.ndarray:
    """Returns a quantile of the first ``counts`` values of each sorted column.

    Faster than numpy.nanquantile, which loops over the columns.
    """
    place = share * (counts - 1)
    below = np.floor(place).astype(int)
    above = np.ceil(place).astype(int)
    first = np.take_along_axis(ordered, below[None], axis=0)[0]
    second = np.take_along_axis(ordered, above[None], axis=0)[0]
    return first + (second - first) * (place - below)


def spread_text(bands: Sequence[Band], *, carry_on: bool = False) -> str:
    """Explains a figure's thick lines, thin lines and bands; "" without groups."""
    groups = [band for band in bands if band.runs > 1]
    if not groups:
        return ""

    text = "thick lines are medians of a group's runs"
    if any(_has_thin_lines(band) for band in groups):
        text += ", thin lines its runs"
    if any(band.runs >= FEWEST_FOR_QUANTILES for band in groups):
        text += ", bands contain 5–95 % of the runs"
    elif any(band.number == EVERYTHING for band in groups):
        text += ", the band contains all runs"
    if carry_on:
        text += "; a finished run counts with its last value"

    return text


def _has_thin_lines(band: Band) -> bool:
    return 1 < band.runs < FEWEST_FOR_QUANTILES and band.number != EVERYTHING


# Evaluations that get a point each; more would hide the lines and slow the page down.
_MOST_POINTS = 2000
# If curves differ so much in length, a linear axis would hide the short ones.
_LOG_TIME_RATIO = 8
# Error rates far above 100 % happen in first epochs, and would flatten all else.
_RATE_LIMIT_PERCENT = 105.0
# Of the axis's length: targets closer than this share a label.
_LABEL_HEIGHT = 0.055
# The opacity and the width in pixels of a single run's line behind its group's.
_THIN = 0.35
_THIN_PX = 1.0
Bands = Mapping[str, Sequence[Band]]
Limits = tuple[float, float]


def error_rate_charts(report: Report, results: Results) -> list[Chart]:
    """Returns a figure for each metric that was evaluated."""
    metrics = dict.fromkeys(metric for run in report.runs for metric in run.curves)
    if not metrics:
        raise NotDrawnError("Error rates: no run has a finished evaluation.")
    return [error_rate_chart(report, metric) for metric in metrics]


def loss_chart(report: Report, results: Results) -> Chart:
    """Returns the figure of the training loss. Source: arXiv 2003.12366, Figure 7."""
    unit_s = time_unit(report).seconds

    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        loss = None if run.series is None else run.series.loss
        if loss is None or axis not in loss.x:
            return None
        return _scaled(loss.x[axis], axis, unit_s), loss.y

    bands = bands_by_axis(report, curve, carry_on=True)
    if not bands["time"]:
        raise NotDrawnError("Training loss: no run recorded the loss of its steps.")
    caption = f"Training loss, smoothed over steps by a Gaussian (sigma {SIGMA:g})"
    y = Axis("training loss", log=True, limits=value_limits(bands), choose=True)
    views = {
        axis: [Panel(band_marks(of_axis), time_axis(report, bands, axis), y)]
        for axis, of_axis in bands.items()
    }
    caption = with_spread(caption, bands, carry_on=True)
    return chart_of_views("train_loss", caption, views)


def _scaled(x: np.ndarray, axis: str, unit_s: float) -> np.ndarray:
    """Returns places on an axis; those in seconds are converted to the report's unit."""
    return x / unit_s if axis == "time" else x


def bands_by_axis(
    report: Report,
    curve: Callable[[RunAnalysis, str], Curve | None],
    *,
    carry_on: bool = False,
) -> dict[str, list[Band]]:
    """Returns the bands by axis, only for axes that every curve has."""
    by_axis = {}
    for axis in AXES:
        by_axis[axis] = group_bands(
            report, lambda run, axis=axis: curve(run, axis), carry_on=carry_on
        )

    drawn = {
        axis: {(band.number, band.runs) for band in by_axis[axis]} for axis in AXES
    }
    return {axis: by_axis[axis] for axis in AXES if drawn[axis] == drawn["time"]}


def band_marks(bands: Sequence[Band]) -> list[Mark]:
    """Returns the lines of bands: first all thin ones, so that medians are above them."""
    behind: list[Mark] = []
    lines: list[Mark] = []
    for band in bands:
        series = series_name(band.name, band.runs, band.number)
        colour = chart.OTHER_COLOUR
        dash = "solid"
        if band.number != EVERYTHING:
            colour = run_colour(band.number)
            dash = chart.run_dash(band.number)

        if _has_thin_lines(band):
            for x, y in band.members:
                behind.append(
                    Line(
                        x=x,
                        y=y,
                        colour=colour,
                        series=series,
                        width=_THIN_PX,
                        opacity=_THIN,
                    )
                )
        elif band.low is not None and band.high is not None:
            lines.append(
                Area(
                    x=band.x, low=band.low, high=band.high, colour=colour, series=series
                )
            )

        lines.append(
            Line(x=band.x, y=band.middle, dash=dash, colour=colour, series=series)
        )

    return behind + lines


def series_name(group: str, runs: int, number: int) -> str:
    """Returns a group's name in legends."""
    return group if runs == 1 or number == EVERYTHING else f"{group} (n = {runs})"


def time_axis(report: Report, bands: Bands, axis: str) -> Axis:
    """Returns the horizontal axis of curves.

    Time is on a logarithmic scale if some curves last over 8 times as long as others.
    """
    labels = {"time": clock_label(report), "utterances": "utterances trained on"}
    ends = [float(band.x[-1]) for band in bands[axis] if band.x.size]
    starts = [
        float(band.x[band.x > 0][0]) for band in bands[axis] if (band.x > 0).any()
    ]
    log = axis == "time" and bool(starts) and ratio(ends) > _LOG_TIME_RATIO
    last = max(ends, default=1) or 1
    limits = (min(starts) / 1.1, last * 1.08) if log else (0.0, last * 1.03)
    return Axis(labels.get(axis, axis), log=log, limits=limits, choose=True)


def clock_label(report: Report) -> str:
    """Returns the label of a time axis: its unit, and where its clock begins."""
    unit = time_unit(report).name
    if report.policy.name == "paper":
        return f"{unit} since the creation of the model"
    return f"{unit} on the clock of {report.policy.name}"


def value_limits(
    bands: Bands, targets: Sequence[float] = (), most: float | None = None
) -> Limits:
    """Returns the ends of a vertical axis that shows all curves and targets.

    ``most`` cuts values above it; the lower end is above 0, for logarithmic axes.
    """
    lines = [
        line for band in bands["time"] for line in (band.low, band.middle, band.high)
    ]
    values = np.concatenate([line for line in lines if line is not None] or [[]])
    values = values[np.isfinite(values)]
    positive = [*values[values > 0], *(target for target in targets if target > 0)]
    high = 1.12 * float(values.max(initial=0)) or 1.0
    low = float(min(positive, default=high)) / 1.15
    if most is not None:
        high = min(high, most)

    # In the first epochs, all values may lie above the highest value shown.
    return (low, high) if low < high else (high / 10, high)


def ratio(values: Sequence[float]) -> float:
    """Returns the largest positive value over the smallest; 1 without any."""
    positive = [value for value in values if value > 0]
    return max(positive) / min(positive) if positive else 1.0


def with_spread(caption: str, bands: Bands, *, carry_on: bool = False) -> str:
    """Returns a caption that also says what shows the spread of runs."""
    if any(band.number == EVERYTHING for band in bands["time"]):
        caption += (
            f"; the first {MOST_GROUPS} groups have lines, the grey band contains all"
        )

    spread = spread_text(bands["time"], carry_on=carry_on)
    return f"{caption}; {spread}" if spread else caption


def chart_of_views(name: str, caption: str, views: dict[str, list[Panel]]) -> Chart:
    """Returns a chart that is first shown over time, with its other axes to choose."""
    return Chart(name, caption, views["time"], views if len(views) > 1 else {})


def places(
    run: RunAnalysis, epoch: float, elapsed_s: float, unit_s: float = 1.0
) -> dict[str, float]:
    """Returns where a moment of a run is on each of the `AXES` that its log allows.

    Args:
        run: the run.
        epoch: of the moment; 2.5 is in the middle of the third epoch.
        elapsed_s: seconds of the policy's clock.
        unit_s: the seconds in a unit of the time axis.
    """
    at = {"time": elapsed_s / unit_s, "epochs": float(epoch)}
    done = {} if run.series is None else run.series.utterances_by_epoch
    last = math.ceil(epoch)
    if last in done:
        before = done.get(last - 1, 0.0)
        at["utterances"] = float(done[last] - (last - epoch) * (done[last] - before))

    return at


def error_rate_chart(report: Report, metric: str) -> Chart:
    """Returns the figure of a metric: lines, evaluations, targets and when they are met."""
    rate = metric_named(metric, report.metrics).rate
    scale, unit = (100, " %") if rate else (1, "")
    unit_s = time_unit(report).seconds
    bands = bands_by_axis(
        report,
        lambda run, axis: _evaluations(run, metric, axis, scale, unit_s),
        carry_on=True,
    )
    values = np.concatenate([band.middle for band in bands["time"]] or [[]])
    values = values[np.isfinite(values)]
    targets = sorted(
        {v * scale for name, v in report.targets if name == metric}, reverse=True
    )
    caption = f"{sentence(metric_label(metric, report.metrics))} on the validation set"
    if targets:
        caption += (
            "; dashed: the target; ring: the curve crosses it; dot: the time to "
            "accuracy, when the rule counts it as met"
        )

    y = _value_axis(report.metrics, metric, bands, values, targets)
    few = sum(len(run.curves.get(metric, [])) for run in report.runs) <= _MOST_POINTS
    views = {}
    for axis, of_axis in bands.items():
        drawn, marks_at = _met_targets(report, metric, axis, of_axis, y, scale)
        marks: list[Mark] = [*target_rules(targets, y), *band_marks(drawn)]
        if few:
            marks += _evaluation_points(report, metric, axis, scale, unit, unit_s)
        views[axis] = [Panel(marks + marks_at, time_axis(report, bands, axis), y)]

    caption = with_spread(caption, bands, carry_on=True)
    return chart_of_views(metric, caption, views)


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
    run: RunAnalysis, metric: str, axis: str, scale: float, unit_s: float
) -> Curve | None:
    """Returns a run's curve of a metric, times ``scale``; None if the axis is unknown."""
    points = [
        (places(run, p.epoch, p.elapsed_s, unit_s), p.value)
        for p in run.curves.get(metric, [])
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
    report: Report, metric: str, axis: str, scale: float, unit: str, unit_s: float
) -> list[Mark]:
    """Returns a small point for each evaluation, with a tooltip that names its run."""
    time = time_unit(report)
    members = group_members(report.runs)
    marks: list[Mark] = []
    for number, run in zip(colours(report), report.runs, strict=True):
        curve = _evaluations(run, metric, axis, scale, unit_s)
        if number >= MOST_GROUPS or curve is None:
            continue
        runs = len(members[run.group])
        texts = [
            f"{run.name}\nepoch {p.epoch}, {time.text(p.elapsed_s)}\n{p.value * scale:.4g}{unit}"
            for p in run.curves[metric]
        ]
        look = {
            "colour": run_colour(number),
            "series": series_name(run.group, runs, number),
        }
        look |= {"size": 4.5 if runs == 1 else 3, "texts": texts}
        marks.append(Points(x=list(curve[0]), y=list(curve[1]), **look))

    return marks


def _met_targets(
    report: Report,
    metric: str,
    axis: str,
    bands: Sequence[Band],
    y: Axis,
    scale: float,
) -> tuple[list[Band], list[Mark]]:
    """Returns the bands with points where targets are met, and marks at these points.

    It has many parameters because each is a setting of the figure. A ring is where the
    group's line crosses a target for the last time before the rule is met; a dot is
    where the rule is met, at the median time of the group's runs. Groups of which at
    most half of the runs met the target get neither.
    """
    drawn = {band.number: band for band in bands}
    marks: list[Mark] = []
    unit_s = time_unit(report).seconds
    for number, (group, indices) in enumerate(group_members(report.runs).items()):
        for index, (name, value) in enumerate(report.targets):
            if name != metric or number not in drawn:
                continue
            runs = [report.runs[run] for run in indices]
            met = _median_place(runs, index, axis, unit_s)
            if met is None:
                continue

            line = drawn[number].with_point(min(met, drawn[number].x[-1]), log=y.log)
            met = min(met, line.x[-1])
            target = value * scale
            better = metric_named(metric, report.metrics).better
            crossing = _crossing(line, target, met, better, y.log)
            look = {
                "colour": run_colour(number),
                "series": series_name(group, line.runs, number),
            }
            label = f"{group}\ntarget {target:.4g}"
            if crossing is not None:
                line = line.with_point(crossing, log=y.log)
                text = f"{label} crossed after {crossing:.4g} {axis}"
                marks.append(
                    Points(
                        x=[crossing],
                        y=[line.at(crossing)],
                        symbol="ring",
                        size=12,
                        texts=[text],
                        **look,
                    )
                )

            text = f"{label} met by the rule after {met:.4g} {axis}"
            marks.append(
                Points(x=[met], y=[line.at(met)], size=9, texts=[text], **look)
            )
            drawn[number] = line

    return [drawn[band.number] for band in bands], marks


def _median_place(
    runs: Sequence[RunAnalysis], target: int, axis: str, unit_s: float
) -> float | None:
    """Returns the median place at which runs met a target; None if half never did."""
    ends = []
    for run in runs:
        tta = run.results[target].tta
        if tta.reached:
            ends.append(places(run, tta.epoch, tta.seconds, unit_s).get(axis, math.inf))
        else:
            ends.append(math.inf)

    middle = statistics.median(ends)
    return middle if math.isfinite(middle) else None


def _crossing(
    line: Band, target: float, until: float, better: str, log: bool
) -> float | None:
    """Returns where a line last crosses a target before ``until``; None if it does not.

    A line is straight between its points as it is drawn: in logarithms if ``log``.
    """
    y = line.middle if better != HIGHER else -line.middle
    limit = target if better != HIGHER else -target
    meets = y <= limit
    begins = np.flatnonzero(meets[1:] & ~meets[:-1] & (line.x[:-1] < until))
    if not begins.size:
        return None

    before = int(begins[-1])
    ends = line.middle[before : before + 2]
    if log:
        ends = np.log(ends)
        target = math.log(target)

    share = (target - ends[0]) / (ends[1] - ends[0])
    left, right = line.x[before : before + 2]
    return float(left + share * (right - left))


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

    unit_s = time_unit(report).seconds

    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        speeds = None if run.series is None else run.series.throughput[rate]
        if speeds and axis in speeds.x:
            return _broken(_scaled(speeds.x[axis], axis, unit_s), speeds.y)

        return None

    bands = bands_by_axis(report, curve)
    caption = (
        f"{what} trained on per second of training steps, waiting and compilation included, "
        "as a moving mean over 2 % of the steps"
    )
    rugs = _runs(report)
    if rugs:
        caption += "; beneath: when evaluations ran"
    log = ratio([float(np.nanmedian(band.middle)) for band in bands["time"]]) > 4
    low, high = value_limits(bands)
    y = Axis(f"throughput, {label}", log=log, limits=(low if log else 0.0, high))
    views = {}
    for axis, of_axis in bands.items():
        x = time_axis(report, bands, axis)
        steady = band_marks(of_axis)
        views[axis] = [Panel(steady, x, y)]
        marks: list[Mark] = []
        for row, rug in enumerate(rugs):
            marks += _rug(row, rug, axis, unit_s)

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
    row: int,
    rug: tuple[str, int, RunAnalysis, RunSeries],
    axis: str,
    unit_s: float,
) -> list[Mark]:
    """Returns when a run evaluated, as a row of bars over time, else of ticks."""
    name, number, run, series = rug
    epochs, starts, stops = zip(*series.evaluations, strict=True)
    texts = [
        f"{run.name}\nevaluation of epoch {epoch}: {stop - start:.3g} s"
        for epoch, start, stop in zip(epochs, starts, stops, strict=True)
    ]
    about = {"series": name, "colour": run_colour(number), "texts": texts}
    if axis == "time":
        starts = [start / unit_s for start in starts]
        stops = [stop / unit_s for stop in stops]
        rows = {"y0": [row + 0.15] * len(texts), "y1": [row + 0.85] * len(texts)}
        # The outline keeps an evaluation of seconds visible in a run of hours.
        return [Rects(x0=starts, x1=stops, outline=1, **rows, **about)]

    at = [places(run, epoch, stop) for epoch, stop in zip(epochs, stops, strict=True)]
    if any(axis not in position for position in at):
        return []
    x = [position[axis] for position in at]
    return [Points(x=x, y=[row + 0.5] * len(at), symbol="tick", size=9, **about)]


def _bin_s(series: RunSeries) -> float:
    """Returns how many seconds each point of the throughput over the wall clock averages."""
    # The first is at half a bin.
    return 2 * float(series.wall_throughput.x["time"][0])


def _over_the_wall_clock(report: Report) -> list[Chart]:
    shown = [run for run in _runs(report) if run[3].wall_throughput is not None]
    if not shown:
        return []
    unit = time_unit(report)
    drawn = [(*run[:2], run[3].wall_throughput) for run in shown]
    marks: list[Mark] = []
    for name, number, speeds in drawn:
        look = {
            "colour": run_colour(number),
            "dash": chart.run_dash(number),
            "width": 1.2,
        }
        marks.append(
            Line(x=speeds.x["time"] / unit.seconds, y=speeds.y, series=name, **look)
        )

    ends = [float(speeds.x["time"][-1]) / unit.seconds for *_, speeds in drawn]
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
        f"{unit.name} since the creation of the model",
        limits=limits,
        log=log,
        choose=True,
    )
    y = Axis("throughput, utterances/s", limits=(0.0, 1.08 * highest or 1.0))
    return [
        Chart(
            "throughput_wall", caption, [Panel(marks, x, y, 220)], wide=True, width=760
        )
    ]
