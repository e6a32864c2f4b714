"""Compares groups of runs over a range of targets: which is faster at which, and by how much."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from tfasr.display import chart
from tfasr.display.chart import Area, Axis, Chart, Line, Mark, Panel, Points, Rule, Segments
from tfasr.display.table import UNKNOWN, Column, Table, fixed, table_of
from tfasr.errors import UsageError
from tfasr.reports.figures.curves import series_name
from tfasr.reports.figures.registry import NotDrawnError
from tfasr.reports.groups import Results, group_members, one_run_each
from tfasr.reports.numbers import Report, metric_label, target_label
from tfasr.reports.tables.runs import minutes_of
from tfasr.tta.comparison import (
    ESTIMAND,
    LEVEL,
    GroupComparison,
    adjusted,
    compare,
    interval_text,
)
from tfasr.tta.metrics import LOWER, metric_named
from tfasr.tta.policies import AccuracyPoint, Bracket, brackets_at, evaluations_of, medians
from tfasr.tta.ranks import GROUPS, Ends, compare_ends, log_ends

FINE_TARGETS = 97  # targets for which the ratio is computed and drawn as a line
# Targets of the line that get a verdict: evenly spread, both ends included. With 5 runs a group,
# p can't be below 0.0079, which decides 6 comparisons.
VERDICT_TARGETS = 5
_BETWEEN = (FINE_TARGETS - 1) // (VERDICT_TARGETS - 1)
Curve = Sequence[AccuracyPoint]


@dataclass(frozen=True)
class TargetProfile:
    """How much longer one group takes than another; arrays run from easy to hard targets."""

    # `FINE_TARGETS` targets with equal ratios between neighbours that every run first missed, then
    # reached: from just harder than any run's first value to the worst of the runs' best values
    targets: np.ndarray
    first_s: np.ndarray  # median of the first group, at the (geometric) middles of the brackets
    ratio: np.ndarray  # the second group's time over the first's, see `ESTIMAND`
    low: np.ndarray | None  # of the 95 % interval at each target alone; None with too few runs
    high: np.ndarray | None
    # Ends of intervals at the targets of ``verdicts``, all correct at once with 95 % (Bonferroni)
    together_low: np.ndarray | None
    together_high: np.ndarray | None
    verdicts: list[GroupComparison]  # at `VERDICT_TARGETS`, p-values not yet adjusted
    crossings: list[float]  # interpolated targets at which the ratio passes 1, even if by chance

    @property
    def verdict_targets(self) -> np.ndarray:
        return self.targets[::_BETWEEN]


def common_range(
    curves: Sequence[Curve], window: int, metric: str = "cer"
) -> tuple[float, float] | None:
    """Returns the hardest and the easiest target that all runs missed once and then reached."""
    kind = metric_named(metric)
    runs = [
        medians([point.value for point in curve], evaluations_of(curve, window), kind.worst)
        for curve in curves
    ]
    reached = [list(map(kind.hardness, values)) for values in runs]
    if not reached or any(len(run) < 2 for run in reached):
        return None
    hardest = min(map(max, reached))
    # Just harder than the best first value, so that every run missed it.
    easiest = math.nextafter(max(run[0] for run in reached), math.inf)
    if kind.rate and kind.better == LOWER:
        easiest = max(easiest, kind.hardness(1.0))
    ends = abs(hardest), abs(easiest)  # of error rates hardness is the negative value
    return ends if easiest < hardest and min(ends) > 0 and math.isfinite(max(ends)) else None


def target_profile(
    first: Sequence[Curve],
    second: Sequence[Curve],
    *,
    window: int,
    shares: int = 1,
    metric: str = "cer",
) -> TargetProfile | None:
    """Compares two groups; the joint intervals' 5 % are divided among ``shares`` such groups."""
    span = common_range([*first, *second], window, metric)
    if span is None:
        return None
    targets = np.geomspace(span[1], span[0], FINE_TARGETS)
    targets[[0, -1]] = span[1], span[0]  # rounding must not move the ends out of the range
    groups = [
        [brackets_at(curve, targets, window=window, metric=metric) for curve in curves]
        for curves in (first, second)
    ]
    # Both have the shape (targets, runs).
    ends = [_ends(group) for group in groups]
    alone = compare_ends(*ends, GROUPS, 1 - LEVEL)
    together = compare_ends(*ends, GROUPS, 1 - LEVEL / (VERDICT_TARGETS * shares))
    shift = alone.estimate
    verdicts = [
        compare(*([run[index] for run in group] for group in groups))
        for index in range(0, FINE_TARGETS, _BETWEEN)
    ]
    crossings = []
    for before, after in pairwise(np.flatnonzero(shift)):
        if shift[before] * shift[after] < 0:
            share = shift[before] / (shift[before] - shift[after])
            at = np.log(targets[before]) * (1 - share) + np.log(targets[after]) * share
            crossings.append(math.exp(at))
    return TargetProfile(
        targets=targets,
        first_s=np.exp(np.median((ends[0][0] + ends[0][1]) / 2, axis=-1)),
        ratio=np.exp(shift),
        low=_if_known(alone.low),
        high=_if_known(alone.high),
        together_low=_if_known(together.low[::_BETWEEN]),
        together_high=_if_known(together.high[::_BETWEEN]),
        verdicts=verdicts,
        crossings=crossings,
    )


def _ends(group: Sequence[Sequence[Bracket]]) -> Ends:
    by_target = [log_ends(brackets) for brackets in zip(*group, strict=True)]
    low = np.array([low for low, _ in by_target])
    # An evaluation at time 0 has no logarithm: it counts as a millisecond.
    return np.maximum(low, math.log(1e-3)), np.array([high for _, high in by_target])


def _if_known(log_ends: np.ndarray) -> np.ndarray | None:
    return np.exp(log_ends) if np.isfinite(log_ends).all() else None


_USUAL = ("wer", "cer")


@dataclass(frozen=True)
class GroupProfile:
    metric: str  # "cer", "wer" or another
    first: str  # the group that the other one is compared with
    group: str  # the other one
    number: int  # the other group's place among the report's groups
    sizes: tuple[int, int]  # runs of both
    result: TargetProfile | None  # p-values adjusted for all targets and groups; None: see reason
    reason: str = ""  # why there is no result

    def name(self, which: str) -> str:
        return {"first": self.first, "second": self.group}[which]

    def winner(self, sooner: str | None) -> str:
        return "undecided" if sooner is None else f"{self.name(sooner)} is faster"


def group_profiles(report: Report) -> list[GroupProfile]:
    """Returns each group's profile for each metric; raises `UsageError` for a single group."""
    members = group_members(report.runs)
    if len(members) < 2:
        raise UsageError(
            "--profile needs at least two groups of runs. Received: one, "
            f"{next(iter(members))!r}. Name a folder of runs, or a run, for each."
        )
    usual = [m for m in _USUAL if any(m in run.curves for run in report.runs)][:1]
    metrics = list(dict.fromkeys(metric for metric, _ in report.targets)) or usual
    return [profile for metric in metrics for profile in _of_metric(report, members, metric)]


def _of_metric(report: Report, members: dict[str, list[int]], metric: str) -> list[GroupProfile]:
    (first, reference), *others = members.items()
    profiles = []
    for number, (group, indices) in enumerate(others, start=1):
        curves = [
            [report.runs[run].curves.get(metric, []) for run in runs]
            for runs in (reference, indices)
        ]
        profile, reason = None, ""
        if any(map(report.refused, indices)):
            reason = f"{group} is not compared with {first}: they are not comparable"
        else:
            options = {"window": report.window, "shares": len(others), "metric": metric}
            profile = target_profile(*curves, **options)
            if profile is None:
                reason = (
                    f"{group} and {first} share no range of {metric_label(metric)}: there must be "
                    "a target that every one of their runs missed once and then reached"
                )
        sizes = (len(reference), len(indices))
        profiles.append(GroupProfile(metric, first, group, number, sizes, profile, reason))
    known = [profile.result for profile in profiles if profile.result is not None]
    tests = iter(adjusted([verdict for result in known for verdict in result.verdicts]))
    for place, profile in enumerate(profiles):
        if profile.result is not None:
            verdicts = [next(tests) for _ in profile.result.verdicts]
            profiles[place] = replace(profile, result=replace(profile.result, verdicts=verdicts))
    return profiles


def profile_finding(profile: GroupProfile) -> str:
    result, metric = profile.result, profile.metric
    label = metric_label(metric)
    if result is None:
        return f"{label}: {profile.reason}."
    easiest, hardest = (target_label(metric, result.targets[end]) for end in (0, -1))
    span = f"from {easiest} to {hardest}"
    if result.low is None:
        least, most = result.ratio.min(), result.ratio.max()
        text = (
            f"{span}, {profile.group} takes {least:.2f} to {most:.2f} times as long as "
            f"{profile.first} (n = {profile.sizes[1]} and {profile.sizes[0]}: no interval; "
            f"{one_run_each()})"
        )
    else:
        text = f"{span}: {_stretches(profile)}"
    if not result.crossings:
        return f"{text}. The ratio never crosses 1."
    at = ", ".join(target_label(metric, crossing) for crossing in result.crossings[:4])
    more = len(result.crossings) - 4
    text += f". The ratio crosses 1 at {at}{f' and {more} more' if more > 0 else ''}"
    winners = {verdict.sooner for verdict in result.verdicts} - {None}
    if len(winners) > 1:
        return f"{text}: the winner flips with the target, beyond chance."
    return f"{text}; whether the winner flips is undecided."


def _stretches(profile: GroupProfile) -> str:
    judged = zip(profile.result.verdict_targets, profile.result.verdicts, strict=True)
    parts = []
    for sooner, pairs in groupby(judged, key=lambda pair: pair[1].sooner):
        labels = [target_label(profile.metric, target) for target, _ in pairs]
        where = " to ".join(dict.fromkeys((labels[0], labels[-1])))
        parts.append(f"{profile.winner(sooner)} at {where}")
    return "; ".join(parts)


def profiles_of_groups(profiles: Sequence[GroupProfile]) -> dict[str, list[GroupProfile]]:
    by_metric = groupby(profiles, attrgetter("metric"))
    return {metric: list(of_metric) for metric, of_metric in by_metric}


_MOST_GROUPS = 4
_WIDEST = 3.0
_STEPS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3))


def profile_charts(report: Report, results: Results) -> list[Chart]:
    if not report.question.profile:
        return []
    with_range = [profile for profile in group_profiles(report) if profile.result is not None]
    charts = [_chart(*of_metric) for of_metric in profiles_of_groups(with_range).items()]
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
    targets = np.concatenate([profile.result.targets for profile in shown]) * scale
    caption = (
        f"How many times as long groups take as {first} to reach a target; above 1 {first} is "
        "faster. Hard targets are on the right"
    )
    if any(profile.result.together_low is not None for profile in shown):
        caption += (
            "; areas: 95 % interval at each target by itself; bars: intervals that hold together "
            "at all marked targets; filled: decided there, ring: undecided"
        )
    if len(profiles) > len(shown):
        caption += f"; only the first {_MOST_GROUPS} groups are shown"
    least, most = float(targets.min()), float(targets.max())
    limits = (least / 1.02, most * 1.02)
    if targets[0] > targets[-1]:  # from easy to hard, as time goes
        limits = limits[::-1]
    label = f"target, {metric_label(metric)}{unit}"
    x = Axis(label, log=True, limits=limits, ticks=chart.log_ticks(least, most, _STEPS, 10))
    y = Axis("times as long", log=True, limits=_limits(shown))
    return Chart(f"profile_{metric}", caption, [Panel(marks, x, y, 300)], wide=True, width=640)


def _marks(profile: GroupProfile, scale: float) -> list[Mark]:
    result, number = profile.result, profile.number
    look = {
        "colour": chart.run_colour(number),
        "series": series_name(profile.group, profile.sizes[1], number),
    }
    x = result.targets * scale
    marks: list[Mark] = []
    if result.low is not None:
        marks.append(Area(x=x, low=result.low, high=result.high, **look))
    marks.append(Line(x=x, y=result.ratio, dash=chart.run_dash(number), **look))
    at, ratio = result.verdict_targets * scale, result.ratio[::_BETWEEN]
    if result.together_low is not None:
        ends = {"y0": result.together_low, "y1": result.together_high}
        marks.append(Segments(x0=at, x1=at, width=1.2, **ends, **look))
    decided = np.array([verdict.sooner is not None for verdict in result.verdicts])
    for shown, symbol in ((decided, "circle"), (~decided, "ring")):
        if shown.any():
            chosen = np.flatnonzero(shown)
            texts = [_text(profile, i, ratio[i]) for i in chosen]
            place = {"x": at[chosen], "y": ratio[chosen]}
            marks.append(Points(symbol=symbol, size=8, texts=texts, **place, **look))
    return marks


def _text(profile: GroupProfile, index: int, ratio: float) -> str:
    sooner = profile.result.verdicts[index].sooner
    target = target_label(profile.metric, profile.result.verdict_targets[index])
    return f"{profile.group}\n{target}: {ratio:.3g} times as long\n{profile.winner(sooner)}"


def _limits(profiles: Sequence[GroupProfile]) -> tuple[float, float]:
    ends, lines = [1.0], [1.0]
    for result in (profile.result for profile in profiles):
        lines += [result.ratio.min(), result.ratio.max()]
        for band in (result.low, result.high, result.together_low, result.together_high):
            ends += [] if band is None else [band.min(), band.max()]
    low = max(min(ends + lines), min(lines) / _WIDEST)
    high = min(max(ends + lines), max(lines) * _WIDEST)
    return low / 1.05, high * 1.05


_METHOD = (
    f"Targets: {VERDICT_TARGETS} in equal ratios, over the range that every run of both groups "
    f"missed once and then reached. {ESTIMAND[GROUPS]} 95 % interval: for that target alone. "
    "Together: intervals that hold at all targets and for all groups of the table at once with "
    "95 % (Bonferroni); between the targets nothing is claimed. Faster: p < 0.05 after Holm's "
    "method over these targets and groups."
)


def profile_tables(report: Report, profiles: Sequence[GroupProfile]) -> list[Table]:
    runs = {run.group: index for index, run in reversed(list(enumerate(report.runs)))}
    tables = []
    for metric, of_metric in profiles_of_groups(profiles).items():
        compared = [profile for profile in of_metric if profile.result is not None]
        rows = [_row(profile, n) for profile in compared for n in range(VERDICT_TARGETS)]
        title = f"Winner by target: {metric_label(metric)}, times of {of_metric[0].first} = 1"
        notes = [*map(profile_finding, of_metric), _METHOD]
        look = {"name": f"profile_{metric}", "colours": [runs[row["group"]] for row in rows]}
        tables.append(table_of(title, _columns(report), rows, notes, **look))
    return tables


def _row(profile: GroupProfile, number: int) -> dict[str, Any]:
    result, verdict = profile.result, profile.result.verdicts[number]

    def value(values: np.ndarray | None) -> float | None:
        if values is None:
            return None
        # Some arrays have all targets of the line, others only those of the verdicts.
        return float(values[number * (_BETWEEN if len(values) == FINE_TARGETS else 1)])

    return {
        **{name: getattr(profile, name) for name in ("group", "first", "metric")},
        **{name: value(getattr(result, name)) for name in ("first_s", "ratio")},
        "target": value(result.targets),
        "ratio_95_low": value(result.low),
        "ratio_95_high": value(result.high),
        "together_95_low": value(result.together_low),
        "together_95_high": value(result.together_high),
        "adjusted_p": verdict.adjusted_p,
        "comparisons": verdict.comparisons,
        "faster": verdict.sooner and profile.name(verdict.sooner),
    }


def _columns(report: Report) -> list[Column[dict[str, Any]]]:
    def target(row: dict[str, Any]) -> str:
        return target_label(row["metric"], row["target"])

    def ends(name: str) -> Callable[[dict[str, Any]], str]:
        def shown(row: dict[str, Any]) -> str:
            low, high = row[f"{name}_low"], row[f"{name}_high"]
            return UNKNOWN if low is None else interval_text(low, high)

        return shown

    return [
        Column(heading, name, name, *more)
        for heading, name, *more in (
            ("Runs", "group"),
            ("", "first"),
            ("", "metric"),
            ("target", "target", str, UNKNOWN, target),
            ("first\nmin", "first_s", minutes_of(report)),
            ("times\nas long", "ratio", fixed(2)),
            ("95 %\ninterval", "ratio_95_low", str, UNKNOWN, ends("ratio_95")),
            ("", "ratio_95_high"),
            ("95 %\ntogether", "together_95_low", str, UNKNOWN, ends("together_95")),
            ("", "together_95_high"),
            ("p,\nadjusted", "adjusted_p", "{:.2g}".format),
            ("", "comparisons"),
            ("faster", "faster", str, _no_winner),
        )
    ]


def _no_winner(row: dict[str, Any]) -> str:
    return "no test" if row["adjusted_p"] is None else "undecided"
