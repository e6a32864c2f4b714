"""The figures over time: error rates, loss, throughput.

A figure draws a line for each group: of its only run, or the median of its runs, which
are thin lines behind it. All curves can be shown over time, epochs and utterances, so
each figure is a set of views, a list of panels for each axis that every log allows.

On the way from runs to a chart, `group_bands` makes a `Band` of each group's curves,
`band_marks` draws it, and `chart_of_views` puts the panels together.
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
from tfasr.reports.series import AXES, SIGMA, Series, thin
from tfasr.tta.metrics import HIGHER, metric_named

# Groups that get a line; if there are more, one band of all runs is added.
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
        """The group's name in legends, shortened."""
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

            new = np.interp(x, self.x, values)
            if log:
                # A value of 0 has no logarithm, and is not drawn.
                with np.errstate(divide="ignore", invalid="ignore"):
                    new = np.exp(np.interp(x, self.x, np.log(values)))

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
        x, middle = curves[0]
        return Band(name, number, 1, x, middle)

    # All curves at the same places, NaN where one has no value.
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[thin(grid.size, _GRID_POINTS)]
    values = []

    for (x, y), lasts in zip(curves, lasting or [False] * len(curves), strict=True):
        after = y[-1] if lasts else np.nan
        values.append(np.interp(grid, x, y, left=np.nan, right=after))

    counts = np.isfinite(values).sum(axis=0)
    begun = grid >= max(x[0] for x, _ in curves)
    shown = (counts >= len(curves) / 2) & begun
    counts = counts[shown]
    # NaN is sorted to the end.
    ordered = np.sort(np.array(values)[:, shown], axis=0)

    outside = 0.05 if len(curves) >= FEWEST_FOR_QUANTILES else 0.0

    return Band(
        name=name,
        number=number,
        runs=len(curves),
        x=grid[shown],
        middle=_quantile(ordered, counts, 0.5),
        members=curves,
        low=_quantile(ordered, counts, outside),
        high=_quantile(ordered, counts, 1 - outside),
    )


def _quantile(ordered: np.ndarray, counts: np.ndarray, share: float) -> np.ndarray:
    """Returns a quantile of the first ``counts`` values of each sorted column.

    Faster than numpy.nanquantile, which loops over the columns.

    Args:
        ordered: of shape (runs, places), each column in ascending order.
        counts: of shape (places,).
        share: of the values that are below the quantile, from 0 to 1.
    """
    place = share * (counts - 1)
    below = np.floor(place).astype(int)
    above = np.ceil(place).astype(int)
    first = np.take_along_axis(ordered, below[None], axis=0)[0]
    second = np.take_along_axis(ordered, above[None], axis=0)[0]

    return first + (second - first) * (place - below)


def spread_text(bands: Sequence[Band], *, carry_on: bool = False) -> str:
    """Explains a figure's thick lines, thin lines and bands; "" without groups.

    It only explains what the figure really has.

    Args:
        bands: of the figure.
        carry_on: see `group_bands`.
    """
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
    """Whether each run of a group is a thin line; many runs are a filled band instead."""
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
# Of each axis that every log allows, the groups' bands.
Bands = Mapping[str, Sequence[Band]]
# Both ends of an axis.
Limits = tuple[float, float]


def error_rate_charts(report: Report, results: Results) -> list[Chart]:
    """Returns a figure for each metric that was evaluated.

    The figure of a metric is named after it, so that the page can show the curve of the
    verdict's metric first. ``results`` is not needed; all figures get it.
    """
    if not report.evaluated:
        raise NotDrawnError("Error rates: no run has a finished evaluation.")

    return [error_rate_chart(report, metric) for metric in report.evaluated]


def loss_chart(report: Report, results: Results) -> Chart:
    """Returns the figure of the training loss. Source: arXiv 2003.12366, Figure 7.

    Its vertical axis is logarithmic, so that late improvements are visible.
    """
    unit_s = time_unit(report).seconds

    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        if run.series is None:
            return None

        return _on_axis(run.series.loss, axis, unit_s)

    bands = bands_by_axis(report, curve, carry_on=True)
    if not bands["time"]:
        raise NotDrawnError("Training loss: no run recorded the loss of its steps.")

    y = Axis("training loss", log=True, limits=value_limits(bands), choose=True)
    views = {
        axis: [Panel(band_marks(of_axis), time_axis(report, bands, axis), y)]
        for axis, of_axis in bands.items()
    }
    caption = f"Training loss, smoothed over steps by a Gaussian (sigma {SIGMA:g})"
    caption = with_spread(caption, bands, carry_on=True)

    return chart_of_views("train_loss", caption, views)


def _on_axis(series: Series, axis: str, unit_s: float) -> Curve | None:
    """Returns a series over an axis; None if the run's log doesn't allow the axis.

    Seconds are converted to units of ``unit_s``.
    """
    if axis not in series.x:
        return None
    if axis == "time":
        return series.x[axis] / unit_s, series.y

    return series.x[axis], series.y


def bands_by_axis(
    report: Report,
    curve: Callable[[RunAnalysis, str], Curve | None],
    *,
    carry_on: bool = False,
) -> dict[str, list[Band]]:
    """Returns the bands by axis, only for axes that every curve has.

    Args:
        report: the runs.
        curve: returns a run's curve over an axis of `AXES`, or None.
        carry_on: see `group_bands`.
    """
    by_axis = {}
    drawn = {}

    for axis in AXES:
        bands = group_bands(
            report, lambda run, axis=axis: curve(run, axis), carry_on=carry_on
        )
        by_axis[axis] = bands
        drawn[axis] = {(band.number, band.runs) for band in bands}

    return {axis: by_axis[axis] for axis in AXES if drawn[axis] == drawn["time"]}


def band_marks(bands: Sequence[Band]) -> list[Mark]:
    """Returns the lines of bands: first all thin ones, so that medians are above them.

    Each run of a group is a thin line; of many runs, an area shows the quantiles
    instead.
    """
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
    """Returns a group's name in legends, with its number of runs if it has several.

    The band of all runs, whose ``number`` is `EVERYTHING`, states it in its name.
    """
    if runs == 1 or number == EVERYTHING:
        return group

    return f"{group} (n = {runs})"


def time_axis(report: Report, bands: Bands, axis: str) -> Axis:
    """Returns the horizontal axis of curves.

    Time is on a logarithmic scale if some curves last over 8 times as long as others.
    """
    labels = {"time": clock_label(report), "utterances": "utterances trained on"}
    ends = [float(band.x[-1]) for band in bands[axis] if band.x.size]
    starts = [
        float(band.x[band.x > 0][0]) for band in bands[axis] if (band.x > 0).any()
    ]
    last = max(ends, default=1) or 1

    log = False
    limits = (0.0, last * 1.03)
    if axis == "time" and starts and ratio(ends) > _LOG_TIME_RATIO:
        log = True
        limits = (min(starts) / 1.1, last * 1.08)

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
        line
        for band in bands["time"]
        for line in (band.low, band.middle, band.high)
        if line is not None
    ]
    values = np.concatenate([*lines, []])
    values = values[np.isfinite(values)]
    positive = [*values[values > 0], *(target for target in targets if target > 0)]

    high = 1.12 * float(values.max(initial=0)) or 1.0
    low = float(min(positive, default=high)) / 1.15
    if most is not None:
        high = min(high, most)

    # In the first epochs, all values may lie above the highest value shown.
    if low >= high:
        low = high / 10

    return low, high


def ratio(values: Sequence[float]) -> float:
    """Returns the largest positive value over the smallest; 1 without any."""
    positive = [value for value in values if value > 0]
    return max(positive, default=1.0) / min(positive, default=1.0)


def with_spread(caption: str, bands: Bands, *, carry_on: bool = False) -> str:
    """Returns a caption that also says what shows the spread of runs.

    Args:
        caption: a sentence without its full stop.
        bands: of the figure, by axis.
        carry_on: see `group_bands`.
    """
    if any(band.number == EVERYTHING for band in bands["time"]):
        caption += (
            f"; the first {MOST_GROUPS} groups have lines, the grey band contains all"
        )

    spread = spread_text(bands["time"], carry_on=carry_on)
    if spread:
        caption += f"; {spread}"

    return caption


def chart_of_views(name: str, caption: str, views: dict[str, list[Panel]]) -> Chart:
    """Returns a chart that is first shown over time, with its other axes to choose."""
    if len(views) == 1:
        return Chart(name, caption, views["time"])

    return Chart(name, caption, views["time"], views)


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
    if run.series is None:
        return at

    done = run.series.utterances_by_epoch
    last = math.ceil(epoch)
    if last in done:
        before = done.get(last - 1, 0.0)
        at["utterances"] = float(done[last] - (last - epoch) * (done[last] - before))

    return at


@dataclass(frozen=True)
class _Shown:
    """A metric as its figure shows it.

    Attributes:
        report: the runs.
        metric: its name.
        scale: what values are multiplied by: 100 for rates, which are shown in percent.
        unit: behind values in tooltips.
    """

    report: Report
    metric: str
    scale: float
    unit: str


def error_rate_chart(report: Report, metric: str) -> Chart:
    """Returns the figure of a metric: lines, evaluations, targets and when they are met."""
    of = _Shown(report, metric, 1, "")
    if metric_named(metric, report.metrics).rate:
        of = _Shown(report, metric, 100, " %")

    bands = bands_by_axis(
        report, lambda run, axis: _evaluations(of, run, axis), carry_on=True
    )
    targets = {value * of.scale for name, value in report.targets if name == metric}
    targets = sorted(targets, reverse=True)
    y = _value_axis(of, bands, targets)

    views = {}
    few = sum(len(run.curves.get(metric, [])) for run in report.runs) <= _MOST_POINTS

    for axis, of_axis in bands.items():
        drawn, marks_at = _met_targets(of, axis, of_axis, y)
        marks: list[Mark] = [*target_rules(targets, y), *band_marks(drawn)]
        if few:
            marks += _evaluation_points(of, axis)

        views[axis] = [Panel(marks + marks_at, time_axis(report, bands, axis), y)]

    caption = f"{sentence(metric_label(metric, report.metrics))} on the validation set"
    if targets:
        caption += (
            "; dashed: the target; ring: the curve crosses it; dot: the time to "
            "accuracy, when the rule counts it as met"
        )

    return chart_of_views(metric, with_spread(caption, bands, carry_on=True), views)


def _value_axis(of: _Shown, bands: Bands, targets: Sequence[float]) -> Axis:
    """Returns the vertical axis of a metric.

    It is logarithmic for metrics that fall towards 0, so that late improvements are as
    visible as early ones.
    """
    kind = metric_named(of.metric, of.report.metrics)
    label = metric_label(of.metric, of.report.metrics)
    most = None

    if kind.rate:
        label += ", %"
        most = _RATE_LIMIT_PERCENT

    values = np.concatenate([*(band.middle for band in bands["time"]), []])
    values = values[np.isfinite(values)]
    lowest = float(values.min(initial=0.0))

    if kind.better == HIGHER or lowest < 0:
        # Metrics that grow get a linear axis that reaches up to the targets.
        least = 0.0 if lowest < 0 else 1e-12
        high = float(max([*values, *targets, least]))
        low = min([lowest, *targets, 0.0])
        room = 0.08 * (high - low)
        high = min(high + room, most or math.inf)

        if low < 0:
            return Axis(label, limits=(low - room, high))

        return Axis(label, limits=(0.0, high))

    # A logarithmic axis can't show 0, and leaving zeros out would hide the best values.
    low, high = value_limits(bands, targets, most)
    if values.size and values.min() > 0:
        return Axis(label, log=True, limits=(low, high), choose=True)

    return Axis(label, limits=(0.0, high))


def _evaluations(of: _Shown, run: RunAnalysis, axis: str) -> Curve | None:
    """Returns a run's curve of a metric over an axis; None if the axis is unknown."""
    points = run.curves.get(of.metric, [])
    unit_s = time_unit(of.report).seconds
    at = [places(run, point.epoch, point.elapsed_s, unit_s) for point in points]

    if not points or any(axis not in place for place in at):
        return None

    x = np.array([place[axis] for place in at], dtype=float)
    return x, np.array([point.value for point in points], dtype=float) * of.scale


def target_rules(targets: Sequence[float], y: Axis) -> list[Mark]:
    """Returns a line for each target within an axis.

    Targets close to each other share a label, which names all of them.
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
        labels = [""] * len(group)
        labels[len(group) // 2] = ", ".join(f"{target:.4g}" for target in group)
        marks += [
            Rule(value=target, label=label)
            for target, label in zip(group, labels, strict=True)
        ]

    return marks


def _distance(first: float, second: float, axis: Axis) -> float:
    """Returns how far apart two values are on an axis, as a share of its length."""
    low, high = axis.limits
    if axis.log:
        return abs(math.log(first / second)) / math.log(high / low)

    return abs(first - second) / (high - low)


def _evaluation_points(of: _Shown, axis: str) -> list[Mark]:
    """Returns a small point for each evaluation, with a tooltip that names its run.

    Points of one run can be seen apart from its line; groups with colours beyond
    `MOST_GROUPS` have neither.
    """
    report = of.report
    unit = time_unit(report)
    members = group_members(report.runs)
    marks: list[Mark] = []

    for number, run in zip(colours(report), report.runs, strict=True):
        curve = _evaluations(of, run, axis)
        if number >= MOST_GROUPS or curve is None:
            continue

        runs = len(members[run.group])
        texts = []

        for point in run.curves[of.metric]:
            moment = f"epoch {point.epoch}, {unit.text(point.elapsed_s)}"
            value = f"{point.value * of.scale:.4g}{of.unit}"
            texts.append(f"{run.name}\n{moment}\n{value}")

        marks.append(
            Points(
                x=list(curve[0]),
                y=list(curve[1]),
                colour=run_colour(number),
                series=series_name(run.group, runs, number),
                # Points of several runs would hide their group's line.
                size=4.5 if runs == 1 else 3,
                texts=texts,
            )
        )

    return marks


def _met_targets(
    of: _Shown, axis: str, bands: Sequence[Band], y: Axis
) -> tuple[list[Band], list[Mark]]:
    """Returns the bands with points where targets are met, and marks at these points.

    A ring is where the group's line crosses a target for the last time before the rule
    is met; a dot is where the rule is met, at the median time of the group's runs.
    Groups of which at most half of the runs met the target get neither.

    Args:
        of: the metric.
        axis: the horizontal axis, one of `AXES`.
        bands: on this axis.
        y: the vertical axis.
    """
    report = of.report
    better = metric_named(of.metric, report.metrics).better
    drawn = {band.number: band for band in bands}
    marks: list[Mark] = []

    for number, (group, indices) in enumerate(group_members(report.runs).items()):
        if number not in drawn:
            continue

        runs = [report.runs[run] for run in indices]
        for index, (name, value) in enumerate(report.targets):
            if name != of.metric:
                continue

            met = _median_place(report, runs, index, axis)
            if met is None:
                continue

            met = min(met, drawn[number].x[-1])
            line = drawn[number].with_point(met, log=y.log)
            target = value * of.scale
            colour = run_colour(number)
            series = series_name(group, line.runs, number)
            label = f"{group}\ntarget {target:.4g}"
            crossing = _crossing(line, target, met, better, y.log)

            if crossing is not None:
                line = line.with_point(crossing, log=y.log)
                marks.append(
                    Points(
                        x=[crossing],
                        y=[line.at(crossing)],
                        symbol="ring",
                        size=12,
                        texts=[f"{label} crossed after {crossing:.4g} {axis}"],
                        colour=colour,
                        series=series,
                    )
                )

            marks.append(
                Points(
                    x=[met],
                    y=[line.at(met)],
                    size=9,
                    texts=[f"{label} met by the rule after {met:.4g} {axis}"],
                    colour=colour,
                    series=series,
                )
            )
            drawn[number] = line

    return [drawn[band.number] for band in bands], marks


def _median_place(
    report: Report, runs: Sequence[RunAnalysis], target: int, axis: str
) -> float | None:
    """Returns the median place at which runs met a target; None if half never did.

    The median is infinite if half of them never met it, and the axis is unknown if a
    log doesn't allow it.
    """
    unit_s = time_unit(report).seconds
    ends = []

    for run in runs:
        tta = run.results[target].tta
        at = {}
        if tta.reached:
            at = places(run, tta.epoch, tta.seconds, unit_s)

        ends.append(at.get(axis, math.inf))

    middle = statistics.median(ends)
    if not math.isfinite(middle):
        return None

    return middle


def _crossing(
    line: Band, target: float, until: float, better: str, log: bool
) -> float | None:
    """Returns where a line last crosses a target before ``until``; None if it does not.

    A line is straight between its points as it is drawn: in logarithms if ``log``.
    ``better`` says whether the metric's better values are higher or lower ones.
    """
    meets = line.middle <= target
    if better == HIGHER:
        meets = line.middle >= target

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


# Groups whose first run gets a row that shows when it evaluated.
_MOST_RUNS = 6
# What rates are called on the axis, and what they count, the preferred one first.
_RATES = {
    "utterances_per_s": ("utterances/s", "Utterances"),
    "audio_s_per_s": ("audio s/s", "Seconds of audio"),
}
# A pause in training is visible if it takes this part of the axis, and so many times the
# usual distance between points.
_GAP_SHARE = 0.02
_GAP_STEPS = 5


def throughput_charts(report: Report, results: Results) -> list[Chart]:
    """Returns the figures of the throughput: of steady steps, and over the wall clock.

    Below the first one, rows show when evaluations ran. Source: the paper
    (arXiv 2003.12366), equation 4 and Figure 9.
    """
    series = [run.series.throughput for run in report.runs if run.series is not None]
    rates = [rate for rate in _RATES if series and all(rate in of for of in series)]
    if not rates:
        raise NotDrawnError(
            "Throughput over time: not every log states the utterances or the audio of its "
            "steps."
        )

    label, what = _RATES[rates[0]]
    unit_s = time_unit(report).seconds

    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        if run.series is None:
            return None

        speeds = _on_axis(run.series.throughput[rates[0]], axis, unit_s)
        if speeds is None:
            return None

        return _broken(*speeds)

    bands = bands_by_axis(report, curve)
    low, high = value_limits(bands)
    y = Axis(f"throughput, {label}", limits=(0.0, high))

    # A linear axis would hide the differences of slow groups.
    if ratio([float(np.nanmedian(band.middle)) for band in bands["time"]]) > 4:
        y = Axis(f"throughput, {label}", log=True, limits=(low, high))

    caption = (
        f"{what} trained on per second of training steps, waiting and compilation included, "
        "as a moving mean over 2 % of the steps"
    )
    evaluated = _first_runs(report)
    if evaluated:
        caption += "; beneath: when evaluations ran"

    views = {}
    for axis, of_axis in bands.items():
        x = time_axis(report, bands, axis)
        steady = band_marks(of_axis)
        views[axis] = [Panel(steady, x, y)]
        rows: list[Mark] = []

        for row, first in enumerate(evaluated):
            rows += _evaluated(row, first, axis, unit_s)

        if rows:
            top = replace(x, label="", tick_labels=[], ticks=[])
            beneath = Axis(
                "evaluations", limits=(len(evaluated), 0.0), ticks=[], grid=False
            )
            height = 16.0 * max(len(evaluated), 4)
            views[axis] = [
                Panel(steady, top, y, 260),
                Panel(rows, x, beneath, height),
            ]

    of_steps = chart_of_views("throughput", with_spread(caption, bands), views)
    return [of_steps, *_over_the_wall_clock(report)]


def _broken(x: np.ndarray, y: np.ndarray) -> Curve:
    """Returns a curve with gaps, which are NaN, where training visibly paused."""
    if x.size < 3:
        return x, y

    pauses = np.diff(x)
    least = max(_GAP_SHARE * (x[-1] - x[0]), _GAP_STEPS * float(np.median(pauses)))
    after = np.flatnonzero(pauses > least)
    between = (x[after] + x[after + 1]) / 2

    return np.insert(x, after + 1, between), np.insert(y, after + 1, np.nan)


@dataclass(frozen=True)
class _FirstRun:
    """The first run of a group, which evaluated.

    Attributes:
        label: of the group, in legends.
        number: of its colour.
        run: the run; its series are known.
    """

    label: str
    number: int
    run: RunAnalysis


def _first_runs(report: Report) -> list[_FirstRun]:
    """Returns the first run of each group, of at most `_MOST_RUNS` that evaluated."""
    shown = []
    for number, (group, indices) in enumerate(group_members(report.runs).items()):
        run = report.runs[indices[0]]
        if run.series is not None and run.series.evaluations:
            label = series_name(group, len(indices), number)
            shown.append(_FirstRun(label, number, run))

    return shown[:_MOST_RUNS]


def _evaluated(row: int, first: _FirstRun, axis: str, unit_s: float) -> list[Mark]:
    """Returns when a run evaluated, as a row of bars over time, else of ticks.

    Args:
        row: its number from the top.
        first: the run.
        axis: one of `AXES`; [] if the run's log doesn't allow it.
        unit_s: the seconds in a unit of the time axis.
    """
    evaluations = first.run.series.evaluations
    texts = [
        f"{first.run.name}\nevaluation of epoch {epoch}: {stop - start:.3g} s"
        for epoch, start, stop in evaluations
    ]
    colour = run_colour(first.number)

    if axis == "time":
        return [
            Rects(
                x0=[start / unit_s for _, start, _ in evaluations],
                x1=[stop / unit_s for _, _, stop in evaluations],
                y0=[row + 0.15] * len(texts),
                y1=[row + 0.85] * len(texts),
                # Keeps an evaluation of seconds visible in a run of hours.
                outline=1,
                series=first.label,
                colour=colour,
                texts=texts,
            )
        ]

    x = [places(first.run, epoch, stop).get(axis) for epoch, _, stop in evaluations]
    if None in x:
        return []

    return [
        Points(
            x=x,
            y=[row + 0.5] * len(x),
            symbol="tick",
            size=9,
            series=first.label,
            colour=colour,
            texts=texts,
        )
    ]


def _bin_s(speeds: Series) -> float:
    """Returns how many seconds each point of the throughput over the wall clock averages.

    The first point is at half a bin.
    """
    return 2 * float(speeds.x["time"][0])


def _over_the_wall_clock(report: Report) -> list[Chart]:
    """Returns the figure of the throughput over the wall clock, [] if it is unknown.

    Source: the paper (arXiv 2003.12366), Figure 9.
    """
    unit = time_unit(report)
    marks: list[Mark] = []
    falls = []
    ends = []
    highest = 0.0

    for first in _first_runs(report):
        speeds = first.run.series.wall_throughput
        if speeds is None:
            continue

        x = speeds.x["time"] / unit.seconds
        marks.append(
            Line(
                x=x,
                y=speeds.y,
                series=first.label,
                colour=run_colour(first.number),
                dash=chart.run_dash(first.number),
                width=1.2,
            )
        )
        ends.append(float(speeds.x["time"][-1]) / unit.seconds)
        highest = max(highest, float(speeds.y.max()))
        fall = first.run.series.fall_at_evaluations

        if fall is not None:
            percent = f"{100 * fall:.0f} %"
            falls.append(f"{first.label} {percent} (mean of {_bin_s(speeds):.2g} s)")

    if not marks:
        return []

    caption = (
        "Utterances trained on per second of the wall clock, evaluations and all else "
        "included, so pauses of training show as dips; each group's first run"
    )
    if falls:
        caption += f". At an evaluation the throughput falls by: {', '.join(falls)}"

    log = ratio(ends) > _LOG_TIME_RATIO
    start = min(ends) / 50 if log else 0.0
    x = Axis(
        f"{unit.name} since the creation of the model",
        limits=(start, max(1e-9, *ends) * 1.03),
        log=log,
        choose=True,
    )
    y = Axis("throughput, utterances/s", limits=(0.0, 1.08 * highest or 1.0))
    panel = Panel(marks, x, y, 220)

    return [Chart("throughput_wall", caption, [panel], wide=True, width=760)]
