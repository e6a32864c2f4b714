"""The report's figures: loss, error rates and intervals over time."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from tfasr.report.analysis import Report, RunAnalysis
from tfasr.report.drawing import (
    INK,
    INTERVAL_COLOURS,
    add_legend,
    label_axes,
    new_figure,
    run_colour,
    run_line,
    shortened,
)
from tfasr.report.grouping import GroupResult, colours, group_members, group_results
from tfasr.report.naming import RATES, metric_label, target_label
from tfasr.report.smoothing import SIGMA
from tfasr.report.tables import INTERVAL_LABELS
from tfasr.report.waterfall import waterfall_figure
from tfasr.tta.intervals import INTERVALS

_MOST_BARS = 40
_MOST_WATERFALLS = 3
_RATE_LIMIT_PERCENT = 105.0
_LABEL_HEIGHT = 0.055


def figures(report: Report) -> dict[str, tuple[str, Figure]]:
    """Returns the report's figures by file name: a caption and the drawing.

    What no run has is left out: the loss where there are no steps, a metric never evaluated.
    """
    drawn: dict[str, tuple[str, Figure]] = {}
    evaluated = dict.fromkeys(metric for run in report.runs for metric in run.curves)
    for metric in evaluated:
        caption = f"{metric_label(metric)} on the validation set"
        if any(name == metric for name, _ in report.targets):
            caption += "; dashed lines are targets, rings mark where the rule for one is met"
        drawn[metric] = (caption, accuracy_figure(report, metric))
    if any(run.loss is not None and run.loss[1].size for run in report.runs):
        caption = f"Training loss, smoothed over steps by a Gaussian (sigma {SIGMA:g})"
        drawn["train_loss"] = (caption, loss_figure(report))
    for number, result in enumerate(_decomposed(report)[:_MOST_WATERFALLS], start=1):
        first, second = next(iter(group_members(report.runs))), result.group
        caption = (
            f"Why {second} takes {result.decomposition.ratio:.2f} times as long as {first} to "
            f"{target_label(*result.target)}: the factors multiply to it"
        )
        drawn[f"why_{number}"] = (caption, waterfall_figure(result.decomposition))
    drawn["intervals"] = ("Where the time of the whole run went", intervals_figure(report))
    return drawn


def accuracy_figure(report: Report, metric: str) -> Figure:
    """Returns a metric over time, with the targets as lines and rings where they are met."""
    figure, axes = new_figure()
    scale = 100 if metric in RATES else 1
    handles = []
    highest = 0.0
    for index, run in zip(colours(report), report.runs, strict=True):
        points = run.curves.get(metric, [])
        values = np.array([point.value for point in points], dtype=float) * scale
        minutes = [point.elapsed_s / 60 for point in points]
        handles += axes.plot(
            minutes,
            values,
            run_line(index),
            color=run_colour(index),
            linewidth=1.8,
            marker="o",
            markersize=3,
        )
        highest = max(highest, np.nanmax(values, initial=0))
        _mark_targets(axes, run, metric, scale, index)
    top = min(highest * 1.05, _RATE_LIMIT_PERCENT) if scale == 100 else highest * 1.05
    axes.set_ylim(0, top or 1)
    axes.set_xlim(left=0)
    _draw_targets(axes, [t * scale for name, t in report.targets if name == metric], top or 1)
    unit = ", %" if scale == 100 else ""
    label_axes(axes, x=_clock(report), y=metric_label(metric) + unit)
    _legend_of_groups(figure, report, handles)
    return figure


def loss_figure(report: Report) -> Figure:
    """Returns the smoothed training loss over time on a logarithmic axis."""
    figure, axes = new_figure()
    handles = []
    for index, run in zip(colours(report), report.runs, strict=True):
        minutes, loss = run.loss if run.loss is not None else ([], [])
        handles += axes.plot(minutes, loss, run_line(index), color=run_colour(index), linewidth=1.8)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    low, high = axes.get_ylim()
    # Within one power of ten the major ticks alone would leave the axis without figures.
    few = high / low < 30
    axes.yaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: _minor_label(value)) if few else NullFormatter()
    )
    axes.tick_params(which="minor", colors=INK, labelsize=9, length=0)
    label_axes(axes, x=_clock(report), y="training loss")
    _legend_of_groups(figure, report, handles)
    return figure


def intervals_figure(report: Report) -> Figure:
    """Returns one bar a run, made of the minutes of its intervals; the first run at the top."""
    runs = report.runs[:_MOST_BARS]
    figure, axes = new_figure(height_in=1.9 + 0.34 * len(runs))
    left = np.zeros(len(runs))
    handles, labels = [], []
    for name in INTERVALS:
        minutes = np.array([run.intervals_s[name] for run in runs]) / 60
        if minutes.any():
            handles.append(
                axes.barh(range(len(runs)), minutes, 0.66, left, color=INTERVAL_COLOURS[name])
            )
            labels.append(INTERVAL_LABELS[name].replace("\n", " "))
            left += minutes
    names = [shortened(run.name, 20) for run in runs]
    axes.set_yticks(range(len(runs)), names, parse_math=False)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    label_axes(axes, x="minutes", y="")
    add_legend(figure, handles, labels, columns=4)
    return figure


def _decomposed(report: Report) -> list[GroupResult]:
    """Returns the decompositions of the first target that has any: one figure tells the story."""
    for of_target in group_results(report):
        known = [result for result in of_target if result.decomposition is not None]
        if known:
            return known
    return []


def _mark_targets(axes: Axes, run: RunAnalysis, metric: str, scale: float, index: int) -> None:
    for result in run.results:
        tta = result.tta
        if tta.metric == metric and tta.reached:
            at = next(point for point in run.curves[metric] if point.epoch == tta.epoch)
            axes.plot(
                [tta.minutes],
                [at.value * scale],
                "o",
                color=run_colour(index),
                markersize=9,
                markerfacecolor="none",
                markeredgewidth=1.6,
            )


def _draw_targets(axes: Axes, targets: list[float], top: float) -> None:
    """Draws targets as dashed lines with their values beside the axes."""
    labels: list[list[float]] = []
    for target in sorted((target for target in targets if target <= top), reverse=True):
        axes.axhline(target, color=INK, alpha=0.65, linewidth=1, dashes=(4, 3))
        # Lines too close for a label each share one.
        if labels and labels[-1][0] - target < _LABEL_HEIGHT * top:
            labels[-1].append(target)
        else:
            labels.append([target])
    for close in labels:
        axes.annotate(
            ", ".join(f"{target:.4g}" for target in close),
            (1.015, sum(close) / len(close)),
            xycoords=("axes fraction", "data"),
            va="center",
            color=INK,
            fontsize=9.5,
            annotation_clip=False,
        )


def _clock(report: Report) -> str:
    if report.policy.name == "paper":
        return "minutes since the creation of the model"
    return f"minutes on the clock of {report.policy.name}"


def _legend_of_groups(figure: Figure, report: Report, handles: list) -> None:
    """Names each group once: its runs have one colour."""
    members = group_members(report.runs)
    longest = max(len(shortened(name)) for name in members)
    columns = max(1, min(4, len(members), 60 // (longest + 6)))
    first = [handles[own[0]] for own in members.values()]
    add_legend(figure, first, list(members), columns=columns)


def _minor_label(value: float) -> str:
    digit = round(value / 10 ** math.floor(math.log10(value)))
    return f"{value:g}" if digit in (2, 5) else ""
