"""Which group of runs wins at which target: profiles of a report's groups, and what they say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from tfasr.analysis.findings import one_run_each
from tfasr.analysis.groups import group_members
from tfasr.analysis.names import metric_label, target_label
from tfasr.analysis.report import Report
from tfasr.errors import UsageError
from tfasr.tta.group_comparison import adjusted
from tfasr.tta.groups import FEWEST_FOR_INTERVAL
from tfasr.tta.target_profile import TargetProfile, target_profile

_USUAL = ("wer", "cer")


@dataclass(frozen=True)
class GroupProfile:
    """A group against the first one, over all targets of a metric."""

    metric: str  # "cer", "wer" or another
    first: str  # the group that is compared with
    group: str  # the other one
    number: int  # its place among the report's groups
    sizes: tuple[int, int]  # runs of both
    # The profile, its verdicts' p-values adjusted for all targets and groups; None where ``reason``
    # says why there is none
    found: TargetProfile | None
    reason: str = ""  # a sentence

    def name(self, which: str | None) -> str:
        """Returns the group that a verdict or a crossing calls "first" or "second"."""
        return {"first": self.first, "second": self.group}.get(which, "undecided")


def group_profiles(report: Report) -> list[GroupProfile]:
    """Returns for each metric of the targets, or of the runs, each group's profile.

    Raises:
        UsageError: if there are no two groups.
    """
    members = group_members(report.runs)
    if len(members) < 2:
        raise UsageError(
            "--profile must be given two groups of runs or more. Received: one, "
            f"{next(iter(members))!r}. Name a folder of runs, or a run, for each."
        )
    known = [m for m in _USUAL if any(m in run.curves for run in report.runs)][:1]
    metrics = list(dict.fromkeys(metric for metric, _ in report.targets)) or known
    return [one for metric in metrics for one in _of_metric(report, members, metric)]


def _of_metric(report: Report, members: dict[str, list[int]], metric: str) -> list[GroupProfile]:
    (first, reference), *others = members.items()
    found = []
    for number, (group, own) in enumerate(others, start=1):
        curves = [
            [report.runs[run].curves.get(metric, []) for run in runs] for runs in (reference, own)
        ]
        profile, reason = None, ""
        if any(report.refused(run) for run in own):
            reason = f"{group} is not compared with {first}: they are not comparable"
        else:
            profile = target_profile(
                *curves, window=report.window, shares=len(others), metric=metric
            )
            if profile is None:
                reason = (
                    f"{group} and {first} share no range of {metric_label(metric)}: there must be "
                    "a target that every one of their runs missed once and then reached"
                )
        sizes = (len(reference), len(own))
        found.append(GroupProfile(metric, first, group, number, sizes, profile, reason))
    return _adjusted(found)


def _adjusted(profiles: list[GroupProfile]) -> list[GroupProfile]:
    compared = [one for profile in profiles if profile.found for one in profile.found.verdicts]
    rest = iter(adjusted(compared))
    return [
        profile
        if profile.found is None
        else replace(
            profile,
            found=replace(profile.found, verdicts=[next(rest) for _ in profile.found.verdicts]),
        )
        for profile in profiles
    ]


def profile_finding(profile: GroupProfile) -> str:
    """Returns which of two groups wins where, in a sentence."""
    label = metric_label(profile.metric)
    if profile.found is None:
        return f"{label}: {profile.reason}."
    found, metric = profile.found, profile.metric
    easiest, hardest = (target_label(metric, found.targets[end]) for end in (0, -1))
    span = f"from {easiest} to {hardest}"
    if min(profile.sizes) < FEWEST_FOR_INTERVAL:
        least, most = found.ratio.min(), found.ratio.max()
        said = (
            f"{span}, {profile.group} takes {least:.2f} to {most:.2f} times as long as "
            f"{profile.first} (n = {profile.sizes[1]} and {profile.sizes[0]}: no interval; "
            f"{one_run_each()})"
        )
    else:
        said = f"{span}: {_stretches(profile)}"
    return f"{said}.{_crossings(profile)}"


def _stretches(profile: GroupProfile) -> str:
    found = profile.found
    judged = zip(found.verdict_targets, found.verdicts, strict=True)
    parts = []
    for sooner, own in groupby(judged, key=lambda pair: pair[1].sooner):
        targets = [target for target, _ in own]
        ends = dict.fromkeys([target_label(profile.metric, t) for t in (targets[0], targets[-1])])
        where = " to ".join(ends)
        parts.append(
            f"undecided at {where}"
            if sooner is None
            else f"{profile.name(sooner)} is faster at {where}"
        )
    return "; ".join(parts)


def _crossings(profile: GroupProfile) -> str:
    found = profile.found
    if not found.crossings:
        return " The line crosses 1 nowhere."
    at = ", ".join(target_label(profile.metric, one.target) for one in found.crossings[:4])
    more = len(found.crossings) - 4
    said = f" The line crosses 1 at {at}{f' and {more} more' if more > 0 else ''}"
    winners = {verdict.sooner for verdict in found.verdicts} - {None}
    if len(winners) > 1:
        return f"{said}: the winner flips with the target, beyond chance."
    return f"{said}; that the winner flips is not shown."


def profiles_of_groups(profiles: Sequence[GroupProfile]) -> dict[str, list[GroupProfile]]:
    by_metric: dict[str, list[GroupProfile]] = {}
    for one in profiles:
        by_metric.setdefault(one.metric, []).append(one)
    return by_metric
