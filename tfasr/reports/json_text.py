"""A report as text: for a terminal, for Markdown, for a program."""

import dataclasses
import math
from collections.abc import Callable, Container, Sequence
from typing import Any

from tfasr.analysis.groups import GroupResult
from tfasr.analysis.report import Report, eval_s, train_s
from tfasr.display.json_text import to_json_text
from tfasr.display.table import Column, Row, values_of
from tfasr.reports.tables.costs import charges_json
from tfasr.reports.tables.runs import (
    RunAtTarget,
    accuracy_columns,
    group_columns,
    throughput_columns,
    time_columns,
)
from tfasr.tta.group_comparison import GroupComparison
from tfasr.tta.intervals import INTERVALS


def to_json(report: Report) -> str:
    """Returns a list of objects, one for each run and target; times in seconds.

    A run is listed once, with ``metric`` and ``target`` null, where there are no targets. What
    could not be measured, and a time of a target never reached, is null. ``until_target`` holds
    the same times as the whole run's, from the first event to the end of the reaching epoch.
    """
    objects = []
    of_target, charges = accuracy_columns(report), charges_json(report)
    of_run = [*time_columns(report), *throughput_columns(report)]
    for index, run in enumerate(report.runs):
        about = _about(report, index, _others(of_run, run, _TIMES))
        places = [RunAtTarget(report, index, target) for target in range(len(report.targets))]
        rows = [_result(at, values_of(of_target, at)) | charges(at) for at in places]
        empty = {"metric": None, "target": None, "time_to_accuracy_s": None, "epoch": None}
        objects.extend({"run": run.name, **row, **about} for row in rows or [empty])
    return to_json_text(objects)


def groups_to_json(report: Report, results: Sequence[Sequence[GroupResult]]) -> str:
    """Returns a list of objects, one for each group of runs and target; times in seconds.

    ``time_to_accuracy_s`` and ``bracket`` are lists over the group's ``runs``; a run that never
    reached the target has null for its time, and a bracket that is open: ``[last seen, null]``.
    """
    charges = charges_json(report)
    objects = [_group(report, result, charges) for of_target in results for result in of_target]
    return to_json_text(objects)


# What is stated under another name or within another object.
_TIMES = {"run", "group", "wall_s", "training_total_s", "evaluation_total_s"}
_TIMES |= {f"{name}_s" for name in INTERVALS}
_AGAINST_FIRST = {"ratio_to_first", "ratio_95_low", "ratio_95_high", "ratio_of_middles"}
_AGAINST_FIRST |= {"interpolated_ratio", "p_value", "p_adjusted", "permutation_p"}
_INTERVAL = {"mean_95_low_s", "mean_95_high_s"}


def _others(columns: Sequence[Column[Row]], row: Row, stated: Container[str]) -> dict[str, Any]:
    return {name: v for name, v in values_of(columns, row).items() if name not in stated}


def _group(
    report: Report, result: GroupResult, charges: Callable[[RunAtTarget], dict[str, Any]]
) -> dict[str, Any]:
    target = report.targets.index(result.target)
    ttas = [report.runs[run].results[target].tta for run in result.members]
    comparison, product = result.comparison, result.decomposition
    whole = {
        "group": result.group,
        "policy": report.policy.name,
        "window": report.window,
        "metric": result.target[0],
        "target": result.target[1],
        "runs": [report.runs[run].name for run in result.members],
        "time_to_accuracy_s": [tta.seconds for tta in ttas],
        "epoch": [tta.epoch for tta in ttas],
        "bracket": [[one.last_miss_s, one.first_hit_s] for one in result.brackets],
        "interpolated_s": [one.interpolated_s for one in result.brackets],
        **dataclasses.asdict(result.statistics),
        "against_first": None if comparison is None else _against_first(comparison),
        "factors": None if product is None else dataclasses.asdict(product),
        "charges": [charges(RunAtTarget(report, run, target)) for run in result.members],
    }
    stated = whole.keys() | _AGAINST_FIRST | _INTERVAL
    return whole | _others(group_columns(report), result, stated)


def _against_first(found: GroupComparison) -> dict[str, Any]:
    derived = {name: getattr(found, name) for name in ("reading_bias", "sooner", "verdict")}
    return dataclasses.asdict(found) | derived


def _result(at: RunAtTarget, values: dict[str, Any]) -> dict[str, Any]:
    for elsewhere in ("run", "group", "comparison_refused", "epochs"):
        del values[elsewhere]
    first = ("metric", "target", "policy", "window", "time_to_accuracy_s", "epoch", "value")
    until_s = at.result.until_s
    return {
        **{name: values.pop(name) for name in first},
        "relative": values.pop("relative_to_first"),
        "bracket": [values.pop("last_miss_s"), values.pop("first_hit_s")],
        **values,
        "until_target": None if until_s is None else _times(until_s),
    }


def _about(report: Report, index: int, speed: dict[str, Any]) -> dict[str, Any]:
    run = report.runs[index]
    return {
        **_times(run.intervals_s),
        **speed,
        "epochs": run.epochs,
        "sessions": run.sessions,
        "status": run.status,
        "path": str(run.path),
        "differs_from_first": report.differences[index],
        "notes": run.notes,
    }


def _times(intervals_s: dict[str, float]) -> dict[str, Any]:
    return {
        # Microseconds are the clock's resolution; what lies below is the sums' rounding.
        "train_s": round(train_s(intervals_s), 6),
        "eval_s": round(eval_s(intervals_s), 6),
        "wall_s": round(math.fsum(intervals_s.values()), 6),
        "lost_work_s": intervals_s["lost_work"],
        "intervals_s": intervals_s,
    }
