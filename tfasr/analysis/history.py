"""Times to accuracy over commits or dates, and which part of them changed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tfasr.analysis.comparable import difference_text, differences
from tfasr.analysis.folders import run_folders
from tfasr.analysis.groups import configuration
from tfasr.analysis.names import distinct_names, merged_targets
from tfasr.checked_files import object_or_empty
from tfasr.errors import UsageError
from tfasr.run_files import EVENTS_FILE, RUN_FILE
from tfasr.tta.change_points import Change, changes
from tfasr.tta.decomposition import parts_until
from tfasr.tta.load import load_run
from tfasr.tta.policies import PAPER, Policy
from tfasr.tta.run import Run
from tfasr.tta.targets import Target, check_target

SERIES = {
    "time_s": "time to the target",
    "utterances": "utterances to the target",
    "step_s": "step time per utterance",
    "rest": "time that is not steps",
}
"""What is followed over time; the first is the product of the others."""


@dataclass(frozen=True)
class Entry:
    path: Path  # its folder
    name: str  # distinct within the history
    began_ms: float  # wall clock of its first event
    mark: str  # the commit it was trained at, or the date where it does not say one
    # By the names of `SERIES`; None where not known, as of a target never reached. ``step_s`` is
    # known of every run that took steps
    values: dict[str, float | None]
    about: dict[str, Any] | None  # what makes it comparable
    configuration: str | None  # what runs of one history have in common


@dataclass(frozen=True)
class History:
    """Runs of one configuration in the order in which they began."""

    target: Target  # metric and value
    entries: list[Entry]  # the runs
    found: dict[str, list[Change]]  # the changes of each series, by its name
    notes: list[str]  # what a reader has to know, such as which runs are left out and why

    def standing(self) -> list[tuple[str, Change]]:
        """Returns the slowdowns that stand: the last change of a series, if it made it slower."""
        last = [(name, own[-1]) for name, own in self.found.items() if own]
        return [(name, change) for name, change in last if change.ratio > 1]

    def starts(self) -> list[bool]:
        """Returns of each run whether it is the first of its commit or date."""
        marks = [entry.mark for entry in self.entries]
        return [not n or marks[n - 1] != mark for n, mark in enumerate(marks)]


def load_history(
    folder: str | Path,
    *,
    target: Target | None = None,
    policy: Policy = PAPER,
    window: int | None = None,
    since: str = "",
    force: bool = False,
) -> History:
    """Reads the runs in a folder, or in its folders, as one history.

    Args:
        folder: holds run folders, also within folders of commits.
        target: metric and value; by default the hardest that all runs set themselves.
        policy: the clock.
        window: the evaluations whose median must meet the target; by default the policy's.
        since: a commit, its beginning, or a date such as 2026-11-21: what was before is left out.
        force: keep runs of other configurations, or such that are not comparable.

    Raises:
        UsageError: if there is no run, no target that all of them set, or nothing since.
    """
    runs, notes = _runs(Path(folder))
    if target is None:
        target = _common_target([run for _, run in runs])
    check_target(*target)
    window = policy.window if window is None else window
    entries = [_entry(name, run, target, policy, window) for name, run in runs]
    entries.sort(key=lambda entry: entry.began_ms)
    entries, more = (entries, []) if force else _alike(entries)
    entries = _since(entries, since)
    history = History(target, entries, {}, notes + more)
    starts = history.starts()
    found = {name: changes([_value(entry, name) for entry in entries], starts) for name in SERIES}
    return replace(history, found=found)


def _runs(folder: Path) -> tuple[list[tuple[str, Run]], list[str]]:
    if not folder.is_dir():
        raise UsageError(f"A history must be given a folder of runs. Received: {folder}.")
    paths = list(run_folders(folder))
    if not paths:
        raise UsageError(
            f"A history must be given a folder of run folders, each with {EVENTS_FILE}. Received: "
            f"{folder}, which holds none."
        )
    runs, notes = [], []
    for path, name in zip(paths, distinct_names(paths), strict=True):
        try:
            runs.append((name, load_run(path, name)))
        except UsageError as error:
            notes.append(f"{name} is left out. {error}")
    if not runs:
        raise UsageError(" ".join(notes))
    return runs, notes


def _common_target(runs: Sequence[Run]) -> Target:
    common = set(runs[0].targets).intersection(*(run.targets for run in runs))
    if not common:
        raise UsageError(
            "A history must be of one target. The runs set none that is common to all: name one, "
            "such as --target cer=0.10."
        )
    return merged_targets([sorted(common)])[-1]


def _entry(name: str, run: Run, target: Target, policy: Policy, window: int) -> Entry:
    metric, value = target
    began_ms = float(run.events[0]["time_ms"])
    reached = run.time_to_accuracy(policy=policy, window=window, **{metric: value})
    values: dict[str, float | None] = dict.fromkeys(SERIES)
    speed = run.throughput().utterances_per_s
    values["step_s"] = 1 / speed if speed else None
    if reached.reached:
        values |= _until(run, policy, metric, reached.epoch, reached.seconds)
    commit = _commit(run)
    mark = commit or date_text(began_ms)
    return Entry(run.path, name, began_ms, mark, values, run.comparability, configuration(run))


def _until(
    run: Run, policy: Policy, metric: str, epoch: int, seconds: float
) -> dict[str, float | None]:
    reading = next(r for r in policy.readings(run.timeline, metric) if r.epoch == epoch)
    try:
        parts = parts_until(run.timeline, run.timeline.elapsed_s[reading.index])
    except ValueError:  # a log without steps
        return {"time_s": seconds}
    steps_s = parts.utterances / parts.utterances_per_s
    return {
        "time_s": seconds,
        "utterances": parts.utterances,
        "step_s": 1 / parts.utterances_per_s,
        "rest": seconds / steps_s,
    }


def _commit(run: Run) -> str | None:
    commit = object_or_empty(run.path / RUN_FILE).get("revision")
    return commit[:12] + ("+" if commit.endswith("+") else "") if isinstance(commit, str) else None


def date_text(began_ms: float) -> str:
    """Returns the day of a wall clock's time, or "no date" of one that no calendar has."""
    try:
        return datetime.fromtimestamp(began_ms / 1000, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return "no date"


def _alike(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    newest = entries[-1]
    kept, notes = [], []
    for entry in entries:
        differing = differences(newest.about, entry.about)
        if differing:
            notes.append(
                f"{entry.name} is left out: it is not comparable with the newest run, "
                f"{newest.name}; they differ in {difference_text(differing)}."
            )
        elif entry.configuration != newest.configuration:
            notes.append(
                f"{entry.name} is left out: its configuration is not that of the newest run, "
                f"{newest.name}."
            )
        else:
            kept.append(entry)
    return kept, notes


def _value(entry: Entry, name: str) -> float:
    value = entry.values[name]
    return math.nan if value is None else value


def _since(entries: list[Entry], since: str) -> list[Entry]:
    if not since:
        return entries
    for index, entry in enumerate(entries):
        if entry.mark.startswith(since) or ("-" in since and date_text(entry.began_ms) >= since):
            return entries[index:]
    raise UsageError(
        f"--since must name a commit or a date of the history. Received: {since!r}. It goes from "
        f"{entries[0].mark} to {entries[-1].mark}."
    )
