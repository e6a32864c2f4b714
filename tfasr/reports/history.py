"""Times to accuracy over commits or dates, and which part of them changed."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
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

    index: int
    found_at: int
    before: float
    after: float
    z: float

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
    may = np.array([starts is None or starts[i] for i in known], bool)
    # A missing run that began a commit leaves its start to the next one.
    if starts is not None:
        may = _passed_on(starts, known)
    found: list[Change] = []
    begin = 0
    for end in range(1, len(known) + 1):
        split = _best_split(logs[begin:end], may[begin:end])
        if split is None:
            continue
        at, z = split
        before, after = np.median(logs[begin : begin + at]), np.median(logs[begin + at : end])
        found.append(
            Change(known[begin + at], known[end - 1], math.exp(before), math.exp(after), z)
        )
        begin += at
    return found


def _passed_on(starts: Sequence[bool], known: Sequence[int]) -> np.ndarray:
    places, last = [], -1
    for index in known:
        places.append(any(starts[last + 1 : index + 1]))
        last = index
    return np.array(places, bool)


def _best_split(logs: np.ndarray, may: np.ndarray) -> tuple[int, float] | None:
    count = logs.size
    splits = np.arange(FEWEST_BEFORE, count - FEWEST_AFTER + 1)
    splits = splits[may[splits]] if splits.size else splits
    if not splits.size:
        return None
    ranks = _ranks(logs)
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
    rests = [
        sum(np.abs(side - np.median(side)).sum() for side in (logs[:at], logs[at:]))
        for at in splits[may[splits]]
    ]
    return int(splits[may[splits]][int(np.argmin(rests))])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def _error(before: np.ndarray, after: np.ndarray) -> float:
    """Returns the standard error of the difference of medians; neighbours that are alike, as on a
    machine whose speed wanders, make it larger.
    """
    sides = [side - np.median(side) for side in (before, after)]
    spreads = [1.4826 * np.median(np.abs(side)) for side in sides]
    spread = math.sqrt(
        (spreads[0] ** 2 * before.size + spreads[1] ** 2 * after.size) / (before.size + after.size)
    )
    products = sum(float(side[1:] @ side[:-1]) for side in sides)
    squares = sum(float(side @ side) for side in sides)
    alike = min(max(products / squares, 0.0), 0.9) if squares else 0.0
    inflated = spread * math.sqrt((1 + alike) / (1 - alike))
    return 1.2533 * inflated * math.sqrt(1 / before.size + 1 / after.size)


# What is followed over time; the first is the product of the others
SERIES = {
    "time_s": "time to the target",
    "utterances": "utterances to the target",
    "step_s": "step time per utterance",
    "rest": "time that is not steps",
}


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


SLOWER, FASTER = "#d9660d", "#1f9e6e"
_UNITS = {
    "time_s": (1 / 60, "min"),
    "utterances": (1.0, ""),
    "step_s": (1000.0, "ms"),
    "rest": (1.0, "times the steps"),
}


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
            return _UNITS[name][0] * statistics.median(known) if known else None

        return Column(heading, "", value, "{:.4g}".format, missing)

    columns = [
        Column("Commit", "", lambda entries: entries[0].mark),
        Column("date", "", lambda entries: date_text(entries[0].began_ms)),
        Column("runs", "", len),
        Column("reached", "", lambda e: sum(one.values["time_s"] is not None for one in e)),
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
    said = [f"SLOWER: {_change_text(history, name, change)}." for name, change in standing]
    for name, own in history.found.items():
        said += [
            f"{'Faster' if change.ratio < 1 else 'Was slower'}: "
            f"{_change_text(history, name, change)}."
            for change in own
            if (name, change) not in standing
        ]
    if said:
        return said
    enough = FEWEST_BEFORE + FEWEST_AFTER
    if len(history.entries) < enough:
        return [
            f"Not known yet: {len(history.entries)} of the {enough} runs that a change needs to be "
            "told from noise."
        ]
    return ["No change that is more than noise."]


def _change_text(history: History, name: str, change: Change) -> str:
    scale, unit = _UNITS[name]
    levels = " to ".join(f"{scale * value:.4g}" for value in (change.before, change.after))
    levels += f" {unit}" if unit else ""
    mark = history.entries[change.index].mark
    found_with = history.entries[change.found_at].name
    shift = f"{SERIES[name]} {100 * (change.ratio - 1):+.1f} % from {mark} on"
    return f"{shift} ({levels}; found with {found_with})"


def history_chart(history: History) -> Chart:
    panels = [_panel(history, name) for name in SERIES]
    caption = (
        f"Time to {target_label(*history.target)} and what it is made of, run by run; lines are "
        "medians between changes, upright lines the first run after a change"
    )
    return Chart("history", caption, panels, wide=True, width=640)


def _panel(history: History, name: str) -> Panel:
    scale, unit = _UNITS[name]
    known = [
        (place, scale * entry.values[name])
        for place, entry in enumerate(history.entries)
        if entry.values[name] is not None
    ]
    marks: list[Mark] = []
    edges = [0, *(change.index for change in history.found[name]), len(history.entries)]
    for change in history.found[name]:
        colour = SLOWER if change.ratio > 1 else FASTER
        series = "slower from here" if change.ratio > 1 else "faster from here"
        marks.append(
            Line(
                x=[change.index - 0.5] * 2, y=_span([y for _, y in known]), dash="dashed",
                colour=colour, series=series, width=1.6,
            )
        )  # fmt: skip
    for begin, end in zip(edges, edges[1:], strict=False):
        own = [y for x, y in known if begin <= x < end]
        if own:
            level = statistics.median(own)
            marks.append(Line(x=[begin - 0.4, end - 0.6], y=[level] * 2, colour=INK, width=1.2))
    if known:
        x, y = zip(*known, strict=True)
        texts = [f"{history.entries[at].name}\n{history.entries[at].mark}" for at in x]
        marks.append(Points(x=x, y=y, colour=run_colour(0), size=5, texts=texts))
    ticks = [n for n, first in enumerate(history.starts()) if first]
    ticks = ticks[:: max(1, len(ticks) // 16)]
    last = name == list(SERIES)[-1]
    axis = Axis(
        "commit or date of the runs" if last else "",
        limits=(-0.8, len(history.entries) - 0.2),
        ticks=ticks,
        tick_labels=[history.entries[n].mark[:10] if last else "" for n in ticks],
        label_angle=-40 if last else 0,
    )
    label = f"{SERIES[name]}{', ' if unit else ''}{unit}"
    span = _span([value for _, value in known]) if known else (0.0, 1.0)
    return Panel(marks or [Rule(value=0.0)], axis, Axis("", limits=span), 120, label)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.05 * high or 1.0
    return low - margin, high + margin


def history_json(history: History) -> str:
    runs: list[dict[str, Any]] = [
        {"run": entry.name, "mark": entry.mark, "began_ms": entry.began_ms, **entry.values}
        for entry in history.entries
    ]
    standing = history.standing()
    found = [
        {
            "series": name, "from_run": history.entries[change.index].name,
            "from": history.entries[change.index].mark,
            "found_with": history.entries[change.found_at].name, "before": change.before,
            "after": change.after, "ratio": change.ratio, "stands": (name, change) in standing,
        }
        for name, own in history.found.items()
        for change in own
    ]  # fmt: skip
    return to_json_text(
        {"metric": history.target[0], "target": history.target[1], "runs": runs,
         "changes": found, "notes": history.notes}
    )  # fmt: skip
