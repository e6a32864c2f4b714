"""Times to accuracy over commits or dates, and which part of them changed."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.display.chart import INK, Axis, Chart, Line, Mark, Panel, Points, Rule, run_colour
from tfasr.display.table import NEVER, UNKNOWN, Column, Table, table_of, to_json_text
from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE, RUN_FILE, object_or_empty
from tfasr.reports.groups import configuration
from tfasr.reports.load import run_folders
from tfasr.reports.numbers import (
    difference_text,
    differences,
    distinct_names,
    merged_targets,
    target_label,
)
from tfasr.tta.decomposition import parts_until
from tfasr.tta.metrics import Target, check_target
from tfasr.tta.policies import PAPER, Policy
from tfasr.tta.run import Run, load_run

FEWEST_BEFORE = 8  # measurements before a change, from which the noise is known
FEWEST_AFTER = 4  # measurements after it
LEAST_CHANGE = math.log(1.03)  # the least shift of medians that counts, as a logarithm: 3 %
_Z = 2.5  # what the standardised rank sum has to reach; chosen by benchmarks/history.py
_SPREADS = 3.0  # how many standard errors of the median difference the shift has to reach


@dataclass(frozen=True)
class Change:
    """A lasting change of level."""

    index: int  # of the first measurement after it
    found_at: int  # of the measurement with which it was found
    before: float  # the median of the level before, since the last change
    after: float  # the median from it to the measurement with which it was found
    z: float  # the standardised rank sum

    @property
    def ratio(self) -> float:
        return self.after / self.before


def changes(values: Sequence[float], starts: Sequence[bool] | None = None) -> list[Change]:
    """Returns where a series changed, as it would have been found while it grew.

    With each measurement, every place since the last change is tried: values after it are compared
    with those before by the sum of their ranks, so that neither a single slow run nor the shape of
    the noise matters. ``values`` are in the order of time, NaN if missing; ``starts`` says where a
    change may begin, by default anywhere.
    """
    known = [i for i, value in enumerate(values) if value > 0 and math.isfinite(value)]
    logs = np.log(np.asarray(values, float)[known]) if known else np.zeros(0)
    # A missing run that began a commit leaves its start to the next one.
    may = np.array(
        [starts is None or any(starts[a + 1 : b + 1]) for a, b in pairwise([-1, *known])], bool
    )
    changes: list[Change] = []
    begin = 0
    for end in range(1, len(known) + 1):
        split = _best_split(logs[begin:end], may[begin:end])
        if split is None:
            continue
        at, z = begin + split[0], split[1]
        before, after = np.median(logs[begin:at]), np.median(logs[at:end])
        changes.append(Change(known[at], known[end - 1], math.exp(before), math.exp(after), z))
        begin = at
    return changes


def _best_split(logs: np.ndarray, may: np.ndarray) -> tuple[int, float] | None:
    count = logs.size
    splits = np.arange(FEWEST_BEFORE, count - FEWEST_AFTER + 1)
    splits = splits[may[splits]] if splits.size else splits
    if not splits.size:
        return None
    _, inverse, counts = np.unique(logs, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    sums = ranks.sum() - np.cumsum(ranks)[splits - 1]
    after = count - splits
    # Ties make ranks vary less.
    variance = ranks.var(ddof=1) * splits * after / count
    if not variance.all():
        return None
    z = (sums - after * (count + 1) / 2) / np.sqrt(variance)
    for place in np.argsort(-np.abs(z)):
        if abs(z[place]) < _Z:
            return None
        at = int(splits[place])
        shift = np.median(logs[at:]) - np.median(logs[:at])
        enough = max(LEAST_CHANGE, _SPREADS * _error(logs[:at], logs[at:]))
        if abs(shift) >= enough and shift * z[place] > 0:
            return _place(logs, may), float(z[place])
    return None


def _place(logs: np.ndarray, may: np.ndarray) -> int:
    splits = np.arange(FEWEST_BEFORE, logs.size)
    splits = splits[may[splits]]
    sides = ((logs[:at], logs[at:]) for at in splits)
    spreads = [sum(np.abs(side - np.median(side)).sum() for side in pair) for pair in sides]
    return int(splits[int(np.argmin(spreads))])


def _error(before: np.ndarray, after: np.ndarray) -> float:
    # The standard error of the difference of medians, from both sides' own spread. A machine that
    # wanders makes neighbours alike: their correlation, if positive, makes medians err more.
    sides = [side - np.median(side) for side in (before, after)]
    spreads = [(1.4826 * np.median(np.abs(side))) ** 2 * side.size for side in sides]
    spread = math.sqrt(sum(spreads) / (before.size + after.size))
    products = sum(float(side[1:] @ side[:-1]) for side in sides)
    squares = sum(float(side @ side) for side in sides)
    alike = min(max(products / squares, 0.0), 0.9) if squares else 0.0
    inflated = spread * math.sqrt((1 + alike) / (1 - alike))
    return 1.2533 * inflated * math.sqrt(1 / before.size + 1 / after.size)


# What is followed over time; the first is the product of the others
SERIES = {
    "time_s": ("time to the target", 1 / 60, "min"),
    "utterances": ("utterances to the target", 1.0, ""),
    "step_s": ("step time per utterance", 1000.0, "ms"),
    "rest": ("time that is not steps", 1.0, "times the steps"),
}


@dataclass(frozen=True)
class Entry:
    path: Path  # its folder
    name: str  # distinct within the history
    began_ms: float  # wall clock of its first event
    mark: str  # the commit it was trained at, or the date where it does not say one
    values: dict[str, float | None]  # by the names of `SERIES`, None if unknown or not reached
    about: dict[str, Any] | None  # what makes it comparable
    configuration: str | None  # what runs of one history have in common


@dataclass(frozen=True)
class History:
    """Runs of one configuration in the order in which they began."""

    target: Target  # metric and value
    entries: list[Entry]  # the runs
    changes: dict[str, list[Change]]  # the changes of each series, by its name
    notes: list[str]  # what a reader has to know, such as which runs are left out and why

    def standing(self) -> list[tuple[str, Change]]:
        """Returns the slowdowns that stand: the last change of a series, if it made it slower."""
        last = [(name, changes[-1]) for name, changes in self.changes.items() if changes]
        return [(name, change) for name, change in last if change.ratio > 1]

    def starts(self) -> list[bool]:
        """Returns for each run whether it is the first of its commit or date."""
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

    ``target`` is by default the hardest that all runs set themselves; ``since`` is a commit, its
    beginning, or a date; ``force`` keeps runs of other configurations. Raises `UsageError` if there
    is no run, no common target, or nothing since.
    """
    runs, notes = _runs(Path(folder))
    if target is None:
        common = set(runs[0][1].targets).intersection(*(run.targets for _, run in runs))
        if not common:
            raise UsageError(
                "A history must be of one target. The runs set none that is common to all: name "
                "one, such as --target cer=0.10."
            )
        target = merged_targets([sorted(common)])[-1]
    check_target(*target)
    window = policy.window if window is None else window
    entries = [_entry(name, run, target, policy, window) for name, run in runs]
    entries.sort(key=lambda entry: entry.began_ms)
    if not force:
        entries, more = _alike(entries)
        notes += more
    history = History(target, _since(entries, since), {}, notes)
    starts, changes_by_series = history.starts(), {}
    for name in SERIES:
        values = [entry.values[name] for entry in history.entries]
        changes_by_series[name] = changes([math.nan if v is None else v for v in values], starts)
    return replace(history, changes=changes_by_series)


def _runs(folder: Path) -> tuple[list[tuple[str, Run]], list[str]]:
    if not folder.is_dir():
        raise UsageError(f"A history must be given a folder of runs. Received: {folder}.")
    paths = list(run_folders(folder))
    runs, notes = [], []
    for path, name in zip(paths, distinct_names(paths), strict=True):
        try:
            runs.append((name, load_run(path, name)))
        except UsageError as error:
            notes.append(f"{name} is left out. {error}")
    if not runs:
        raise UsageError(
            " ".join(notes)
            or f"A history must be given a folder of run folders, each with {EVENTS_FILE}. "
            f"Received: {folder}, which holds none."
        )
    return runs, notes


def _entry(name: str, run: Run, target: Target, policy: Policy, window: int) -> Entry:
    metric, value = target
    began_ms = float(run.events[0]["time_ms"])
    reached = run.time_to_accuracy(policy=policy, window=window, **{metric: value})
    values: dict[str, float | None] = dict.fromkeys(SERIES)
    speed = run.throughput().utterances_per_s
    values["step_s"] = 1 / speed if speed else None
    if reached.reached:
        values |= _until(run, policy, metric, reached.epoch, reached.seconds)
    commit = object_or_empty(run.path / RUN_FILE).get("revision")
    mark = date_text(began_ms)
    if isinstance(commit, str):
        mark = commit[:12] + ("+" if commit.endswith("+") else "") or mark
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


def date_text(began_ms: float) -> str:
    try:
        return datetime.fromtimestamp(began_ms / 1000, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return "no date"


def _alike(entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    newest = entries[-1]
    alike, notes = [], []
    for entry in entries:
        differing = differences(newest.about, entry.about)
        if differing:
            notes.append(
                f"{entry.name} is left out: it is not comparable with the newest run, "
                f"{newest.name}; they differ in {difference_text(differing)}."
            )
        elif entry.configuration != newest.configuration:
            other = f"its configuration is not that of the newest run, {newest.name}"
            notes.append(f"{entry.name} is left out: {other}.")
        else:
            alike.append(entry)
    return alike, notes


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


SLOWER, FASTER = "#d9660d", "#1f9e6e"


def history_table(history: History) -> Table:
    notes = [
        *findings(history),
        "Medians over the runs of a commit, or of a date where runs say no commit. The time is the "
        "product of the utterances, the step time per utterance and the rest, which is the whole "
        "time over that of the steps. A change is told with the "
        f"{FEWEST_AFTER}th run after it or so, and needs {FEWEST_BEFORE} runs before it.",
        *history.notes,
    ]
    label = target_label(*history.target)

    def median(heading: str, name: str, missing: str = UNKNOWN) -> Column[list[Entry]]:
        def value(entries: list[Entry]) -> float | None:
            known = [entry.values[name] for entry in entries if entry.values[name] is not None]
            return SERIES[name][1] * statistics.median(known) if known else None

        return Column(heading, "", value, "{:.4g}".format, missing)

    columns = [
        Column("Commit", "", lambda entries: entries[0].mark),
        Column("date", "", lambda entries: date_text(entries[0].began_ms)),
        Column("runs", "", len),
        Column("reached", "", lambda e: sum(entry.values["time_s"] is not None for entry in e)),
        median(f"{label}\nmin", "time_s", NEVER),
        median("utterances\nto target", "utterances"),
        median("ms per\nutterance", "step_s"),
        median("rest", "rest"),
    ]
    by_mark = [list(entries) for _, entries in groupby(history.entries, lambda entry: entry.mark)]
    return table_of(f"History of the time to {label}", columns, by_mark, notes, name="history")


def findings(history: History) -> list[str]:
    """Returns a sentence for each change, slowdowns that stand first, or that there is none."""
    standing = history.standing()
    lines = [f"SLOWER: {_change_text(history, name, change)}." for name, change in standing]
    for name, changed in history.changes.items():
        for change in changed:
            if (name, change) not in standing:
                verb = "Faster" if change.ratio < 1 else "Was slower"
                lines.append(f"{verb}: {_change_text(history, name, change)}.")
    runs, enough = len(history.entries), FEWEST_BEFORE + FEWEST_AFTER
    few = f"Not known yet: {runs} of the {enough} runs that a change needs to be told from noise."
    return lines or [few if runs < enough else "No change that is more than noise."]


def _change_text(history: History, name: str, change: Change) -> str:
    label, scale, unit = SERIES[name]
    levels = " to ".join(f"{scale * value:.4g}" for value in (change.before, change.after))
    levels += f" {unit}" if unit else ""
    shift = f"{label} {100 * (change.ratio - 1):+.1f} %"
    first, found_with = history.entries[change.index], history.entries[change.found_at].name
    return f"{shift} from {first.mark} on ({levels}; found with {found_with})"


def history_chart(history: History) -> Chart:
    caption = (
        f"Time to {target_label(*history.target)} and what it is made of, run by run; lines are "
        "medians between changes, upright lines the first run after a change"
    )
    panels = [_panel(history, name) for name in SERIES]
    return Chart("history", caption, panels, wide=True, width=640)


def _panel(history: History, name: str) -> Panel:
    label, scale, unit = SERIES[name]
    entries, changes = history.entries, history.changes[name]
    known = [
        (place, scale * entry.values[name])
        for place, entry in enumerate(entries)
        if entry.values[name] is not None
    ]
    span = _span([y for _, y in known]) if known else (0.0, 1.0)
    marks: list[Mark] = []
    for change in changes:
        look = (SLOWER, "slower from here") if change.ratio > 1 else (FASTER, "faster from here")
        about = {"dash": "dashed", "colour": look[0], "series": look[1], "width": 1.6}
        marks.append(Line(x=[change.index - 0.5] * 2, y=span, **about))
    for begin, end in pairwise([0, *(change.index for change in changes), len(entries)]):
        values = [y for x, y in known if begin <= x < end]
        if values:
            level = [statistics.median(values)] * 2
            marks.append(Line(x=[begin - 0.4, end - 0.6], y=level, colour=INK, width=1.2))
    if known:
        x, y = zip(*known, strict=True)
        texts = [f"{entries[at].name}\n{entries[at].mark}" for at in x]
        marks.append(Points(x=x, y=y, colour=run_colour(0), size=5, texts=texts))
    ticks = [n for n, first in enumerate(history.starts()) if first]
    ticks = ticks[:: max(1, len(ticks) // 16)]
    last = name == list(SERIES)[-1]
    axis = Axis(
        "commit or date of the runs" if last else "",
        limits=(-0.8, len(entries) - 0.2),
        ticks=ticks,
        tick_labels=[entries[n].mark[:10] if last else "" for n in ticks],
        label_angle=-40 if last else 0,
    )
    label = f"{label}{', ' if unit else ''}{unit}"
    return Panel(marks or [Rule(value=0.0)], axis, Axis("", limits=span), 120, label)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.05 * high or 1.0
    return low - margin, high + margin


def history_json(history: History) -> str:
    entries, standing = history.entries, history.standing()
    runs = [{"run": e.name, "mark": e.mark, "began_ms": e.began_ms, **e.values} for e in entries]
    change_rows = [
        {
            "series": name, "from_run": entries[change.index].name,
            "from": entries[change.index].mark,
            "found_with": entries[change.found_at].name, "before": change.before,
            "after": change.after, "ratio": change.ratio, "stands": (name, change) in standing,
        }
        for name, changed in history.changes.items()
        for change in changed
    ]  # fmt: skip
    about = {"metric": history.target[0], "target": history.target[1]}
    return to_json_text({**about, "runs": runs, "changes": change_rows, "notes": history.notes})
