"""The winner by target: how much longer groups take than the first one, from easy to hard."""

from collections.abc import Sequence

import numpy as np

from tfasr.analysis.groups import GroupResult
from tfasr.analysis.names import metric_label, target_label
from tfasr.analysis.profiles import GroupProfile, group_profiles, profiles_of_groups
from tfasr.analysis.report import Report
from tfasr.display.chart import Area, Axis, Chart, Line, Mark, Panel, Points, Rule, Segments
from tfasr.display.style import run_colour, run_dash
from tfasr.reports.figures.curves import series_name
from tfasr.reports.figures.registry import NotDrawnError
from tfasr.tta.metrics import metric_named

_MOST_GROUPS = 4
_WIDEST = 3.0


def profile_charts(report: Report, results: Sequence[Sequence[GroupResult]]) -> list[Chart]:
    """Returns for each metric the ratio of times over targets; nothing unless asked for."""
    if not report.question.profile:
        return []
    charts = [
        _chart(metric, [one for one in own if one.found is not None])
        for metric, own in profiles_of_groups(group_profiles(report)).items()
        if any(one.found is not None for one in own)
    ]
    if not charts:
        raise NotDrawnError("Winner by target: no two groups share a range of targets.")
    return charts


def _chart(metric: str, profiles: Sequence[GroupProfile]) -> Chart:
    shown = profiles[:_MOST_GROUPS]
    scale, unit = (100, ", %") if metric_named(metric).rate else (1, "")
    first = shown[0].first
    marks: list[Mark] = [Rule(value=1.0, dash="solid")]
    for profile in shown:
        marks += _marks(profile, scale)
    targets = np.concatenate([one.found.targets for one in shown]) * scale
    known = [one.found.together_low is not None for one in shown]
    caption = (
        f"How many times as long groups take as {first} to reach a target; above 1 {first} is "
        "faster. Hard targets are on the right"
    )
    if any(known):
        caption += (
            "; areas: 95 % interval at each target by itself; bars: intervals that hold together "
            "at all marked targets; filled: decided there, ring: undecided"
        )
    if len(profiles) > len(shown):
        caption += f"; the first {_MOST_GROUPS} groups"
    x = Axis(
        f"target, {metric_label(metric)}{unit}",
        log=True,
        # From easy to hard, as time goes.
        limits=_from_easy_to_hard(targets),
        ticks=_ticks(float(targets.min()), float(targets.max())),
    )
    y = Axis("times as long", log=True, limits=_limits(shown))
    return Chart(f"profile_{metric}", caption, [Panel(marks, x, y, 300)], wide=True, width=640)


def _from_easy_to_hard(targets: np.ndarray) -> tuple[float, float]:
    low, high = float(targets.min()) / 1.02, float(targets.max()) * 1.02
    return (high, low) if targets[0] > targets[-1] else (low, high)


def _marks(profile: GroupProfile, scale: float) -> list[Mark]:
    found, number = profile.found, profile.number
    colour, series = run_colour(number), series_name(profile.group, profile.sizes[1], number)
    x = found.targets * scale
    marks: list[Mark] = []
    if found.low is not None:
        marks.append(Area(x=x, low=found.low, high=found.high, colour=colour, series=series))
    marks.append(Line(x=x, y=found.ratio, colour=colour, dash=run_dash(number), series=series))
    at = found.verdict_targets * scale
    ratio = found.ratio[:: (x.size - 1) // (at.size - 1)]
    if found.together_low is not None:
        marks.append(
            Segments(
                x0=at, x1=at, y0=found.together_low, y1=found.together_high,
                colour=colour, series=series, width=1.2,
            )
        )  # fmt: skip
    for decided, symbol in ((True, "circle"), (False, "ring")):
        chosen = [i for i, one in enumerate(found.verdicts) if (one.sooner is not None) == decided]
        if chosen:
            marks.append(
                Points(
                    x=at[chosen], y=ratio[chosen], symbol=symbol, size=8, colour=colour,
                    series=series, texts=[_text(profile, i, ratio[i]) for i in chosen],
                )
            )  # fmt: skip
    return marks


def _text(profile: GroupProfile, index: int, ratio: float) -> str:
    found = profile.found
    sooner = found.verdicts[index].sooner
    target = target_label(profile.metric, found.verdict_targets[index])
    verdict = "undecided" if sooner is None else f"{profile.name(sooner)} is faster"
    return f"{profile.group}\n{target}: {ratio:.3g} times as long\n{verdict}"


def _limits(profiles: Sequence[GroupProfile]) -> tuple[float, float]:
    ends = [1.0]
    for one in profiles:
        found = one.found
        ends += [found.ratio.min(), found.ratio.max()]
        for own in (found.low, found.high, found.together_low, found.together_high):
            ends += [] if own is None else [own.min(), own.max()]
    lines = [end for one in profiles for end in (one.found.ratio.min(), one.found.ratio.max())]
    low = max(min(ends), min(*lines, 1.0) / _WIDEST)
    high = min(max(ends), max(*lines, 1.0) * _WIDEST)
    return low / 1.05, high * 1.05


def _ticks(low: float, high: float) -> list[float]:
    decades = range(-6, 4)
    for steps in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [float(f"{tick:.6g}") for tick in ticks if low <= tick <= high]
        if len(ticks) <= 10:
            break
    return ticks
