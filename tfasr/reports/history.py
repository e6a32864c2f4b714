"""Follows times to accuracy over commits or dates, and finds which part of them changed.

``tfasr report --history FOLDER`` reads the runs of one configuration in the order in
which they began (`load_history`). A time to accuracy is a product, so four series are
followed (`SERIES`): the time itself, the utterances that it took, the time of a step per
utterance, and what an epoch takes outside of steps. `changes` finds where the level of a
series shifted by more than the noise between runs; `standing_slowdown` says which shift
is still there, for which the command exits with 3.
"""

import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from tfasr.display.chart import (
    INK,
    Axis,
    Chart,
    Line,
    Mark,
    Panel,
    Points,
    Rule,
    run_colour,
)
from tfasr.display.table import NEVER, UNKNOWN, Column, Table, table_of, to_json_text
from tfasr.errors import UsageError
from tfasr.kit.files import EVENTS_FILE, RUN_FILE, object_or_empty
from tfasr.reports.figures.time import FASTER, SLOWER
from tfasr.reports.groups import configuration, run_folders
from tfasr.reports.numbers import (
    difference_text,
    differences,
    distinct_names,
    merged_targets,
    target_label,
)
from tfasr.tta.decomposition import Throughput, parts_until, throughput
from tfasr.tta.host import disturbance, host_use, read_host_file
from tfasr.tta.metrics import Metrics, Target, check_target
from tfasr.tta.policies import PAPER, Policy
from tfasr.tta.run import Run, load_run

# Measurements that are needed before a change, and after it: with fewer, a level is
# known too badly for a shift of 3 % to be told from noise.
FEWEST_BEFORE = 8
FEWEST_AFTER = 4
# The least shift of medians that counts, as a logarithm: 3 %.
LEAST_CHANGE = math.log(1.03)
# The standardised rank sum must reach this, so that a few runs alone don't decide.
_RANK_Z = 2.5
# One-sided p-value at which Student's t finds a change: in 50 measurements of one
# series at most 1.25 % false alarms, so 5 % in the four of `SERIES`; found with
# benchmarks/history.py
_TAIL = 4e-5
# Residuals are clipped at so many standard deviations.
_CLIP = 3.0
# The standard deviation of normal values over their median absolute deviation.
_SIGMA_PER_MAD = 1.4826
# A level counts as equal to the best one up to so many standard errors above it.
_MADE_GOOD = 2.0


@dataclass(frozen=True)
class Change:
    """A shift of a series' level, as it was found while measurements came in.

    Attributes:
        index: index of the first measurement after the change.
        found_at: index of the measurement with which it was found.
        before: the median from the previous change to this one.
        after: the median from this change to ``found_at``.
        z: the standardised rank sum; above 0 if values became larger.
    """

    index: int
    found_at: int
    before: float
    after: float
    z: float

    @property
    def ratio(self) -> float:
        """The level after the change over the one before; infinity if that was 0."""
        if self.before <= 0:
            return math.inf

        return self.after / self.before


def changes(
    values: Sequence[float], starts: Sequence[bool] | None = None, *, base: float = 0.0
) -> list[Change]:
    """Returns a series' changes, as they would have been found measurement by measurement.

    With each new measurement, every place since the last change is tried: Student's t
    compares the logarithms after it with those before. The sum of their ranks must
    agree, so a single slow run decides nothing. The noise is estimated from the values
    themselves.

    Args:
        values: in the order of time, NaN if missing.
        starts: for each value, whether a change may begin with it; by default anywhere.
        base: added to all values, so that a part's changes are measured as shares of the
            whole.

    Source: D. M. Hawkins, P. Qiu, C. W. Kang, The changepoint model for statistical
    process control, Journal of Quality Technology 35 (2003).
    """
    known, logs = _known_logs(values, base)
    may = np.ones(len(known), bool)
    if starts is not None:
        # If the first run of a commit is missing, the next one counts as its start.
        for place, (before, at) in enumerate(pairwise([-1, *known])):
            may[place] = any(starts[before + 1 : at + 1])

    changes: list[Change] = []
    begin = 0

    for end in range(1, len(known) + 1):
        split = _best_split(logs[begin:end], may[begin:end])
        if split is None:
            continue

        at = begin + split[0]
        changes.append(
            Change(
                index=known[at],
                found_at=known[end - 1],
                before=math.exp(np.median(logs[begin:at])) - base,
                after=math.exp(np.median(logs[at:end])) - base,
                z=split[1],
            )
        )
        begin = at

    return changes


def standing_slowdown(
    values: Sequence[float], changes: Sequence[Change], *, base: float = 0.0
) -> Change | None:
    """Returns the change that made a series slower than its best earlier level, if it
    still is.

    Its ``before`` and ``after`` are the best level and the present one. None if the
    present level is at most 3 %, or two standard errors, above the best.

    Args:
        values: in the order of time, NaN if missing.
        changes: those of `changes`.
        base: the one that found them.
    """
    if not changes:
        return None

    known, logs = _known_logs(values, base)
    starts = np.searchsorted(known, [change.index for change in changes])
    parts = [logs[begin:end] for begin, end in pairwise([0, *starts, len(known)])]
    levels = [float(np.median(part)) for part in parts]
    best = min(range(len(levels) - 1), key=levels.__getitem__)

    excess = levels[-1] - levels[best]
    if excess <= max(LEAST_CHANGE - 1e-9, _MADE_GOOD * _error(parts[best], parts[-1])):
        return None

    for change in changes[best:]:
        if change.z > 0:
            return replace(
                change,
                before=math.exp(levels[best]) - base,
                after=math.exp(levels[-1]) - base,
            )

    return None


def _known_logs(values: Sequence[float], base: float) -> tuple[list[int], np.ndarray]:
    """Returns the indices of usable values, and the logarithms of these values plus
    base.

    A value is usable if it is known and its logarithm exists.
    """
    moved = np.asarray(values, float) + base
    usable = [i for i, value in enumerate(moved) if value > 0 and math.isfinite(value)]

    return usable, np.log(moved[usable])


def _best_split(logs: np.ndarray, may: np.ndarray) -> tuple[int, float] | None:
    """Returns where a series most probably changed, with its standardised rank sum.

    Both tests must agree, see `changes`; None if no place passes them.

    Args:
        logs: logarithms of the values since the last change, in order of time.
        may: for each value, whether a change may begin with it.
    """
    count = logs.size
    splits = np.arange(FEWEST_BEFORE, count - FEWEST_AFTER + 1)
    splits = splits[may[splits]]

    if not splits.size:
        return None

    # The rank sum after each place, standardised; ties reduce the variance of ranks.
    _, inverse, counts = np.unique(logs, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    sums = ranks.sum() - np.cumsum(ranks)[splits - 1]
    after = count - splits
    variance = ranks.var(ddof=1) * splits * after / count

    if not variance.all():
        return None

    z = (sums - after * (count + 1) / 2) / np.sqrt(variance)
    quantile = stdtrit(count - 2, 1 - _TAIL)

    for place in np.argsort(-np.abs(z)):
        if abs(z[place]) < _RANK_Z:
            return None

        sides = (logs[: splits[place]], logs[splits[place] :])
        shift = np.median(sides[1]) - np.median(sides[0])
        if abs(shift) < LEAST_CHANGE or shift * z[place] < 0:
            continue

        of_means = _clipped(sides[1]).mean() - _clipped(sides[0]).mean()
        if abs(of_means) >= quantile * _error(*sides):
            return _place(logs, may), float(z[place])

    return None


def _place(logs: np.ndarray, may: np.ndarray) -> int:
    """Returns the place that best separates two levels.

    It has the least sum of distances from the medians of both sides. The test's own
    place is the most surprising one, which a single outlier can move.
    """
    splits = np.arange(FEWEST_BEFORE, logs.size)
    splits = splits[may[splits]]
    spreads = []

    for at in splits:
        sides = (logs[:at], logs[at:])
        spreads.append(sum(np.abs(side - np.median(side)).sum() for side in sides))

    return int(splits[int(np.argmin(spreads))])


def _clipped(values: np.ndarray) -> np.ndarray:
    """Returns values with outliers pulled in to `_CLIP` standard deviations (winsorised).

    An extremely slow run, on a busy machine, then counts as an ordinary slow one.
    """
    middle = np.median(values)
    reach = _CLIP * _SIGMA_PER_MAD * np.median(np.abs(values - middle))
    # Without a spread, anything else would be an outlier.
    if not reach:
        return values

    return np.clip(values, middle - reach, middle + reach)


def _error(before: np.ndarray, after: np.ndarray) -> float:
    """Returns the standard error of the difference of two sides' means.

    It is larger if successive runs are positively correlated, as on a machine whose
    speed drifts.
    """
    sides = [values - values.mean() for values in map(_clipped, (before, after))]
    squares = sum(float(side @ side) for side in sides)
    products = sum(float(side[1:] @ side[:-1]) for side in sides)

    # The correlation of a run with the next one, at most 0.9: a higher one would make
    # every change undecidable.
    alike = min(max(products / squares, 0.0), 0.9) if squares else 0.0

    spread = math.sqrt(
        squares / max(before.size + after.size - 2, 1) * (1 + alike) / (1 - alike)
    )
    return spread * math.sqrt(1 / before.size + 1 / after.size)


# What is followed over time: labels, factors to the units shown, and units.
SERIES = {
    "time_s": ("time to the target", 1 / 60, "min"),
    "utterances": ("utterances to the target", 1.0, ""),
    "step_s": ("step time per utterance", 1000.0, "ms"),
    "rest_s": ("time per epoch outside of steps", 1.0, "s"),
}


@dataclass(frozen=True)
class PastRun:
    """One run of a history, reduced to the figures that are followed over time.

    It has many fields because a history keeps no run's ledger in memory.

    Attributes:
        path: its folder.
        name: distinct within the history.
        began_ms: wall clock of its first event, in milliseconds.
        mark: the commit it was trained at, or its date if the commit is unknown.
        values: by the names of `SERIES`, None if unknown or not reached.
        epochs: epochs until the target; 0 if it was not reached.
        once_s: seconds of start-up and lost work until the target.
        about: `Run.comparability`.
        configuration: settings without seeds, see
            `tfasr.reports.groups.configuration`.
        disturbed: what the machine took from it, see `tfasr.tta.host.disturbance`; ""
            if it took little.
    """

    path: Path
    name: str
    began_ms: float
    mark: str
    values: dict[str, float | None]
    epochs: int
    once_s: float
    about: dict[str, Any] | None
    configuration: str | None
    disturbed: str = ""


@dataclass(frozen=True)
class History:
    """Runs of one configuration in the order in which they began.

    Attributes:
        target: metric and value.
        entries: the runs.
        changes: the changes of each series, by its name.
        slower: the current slowdown, by its series, see `standing_slowdown`.
        notes: caveats for readers, such as which runs are left out and why.
        metrics: the registered ones and the runs' own.
    """

    target: Target
    entries: list[PastRun]
    changes: dict[str, list[Change]]
    slower: dict[str, Change]
    notes: list[str]
    metrics: Metrics

    def stands(self, series: str, change: Change) -> bool:
        """Whether a change is the one that still makes the series slow."""
        return series in self.slower and self.slower[series].index == change.index

    def starts(self) -> list[bool]:
        """Returns for each run whether it is the first of its commit or date.

        A change can only begin there, as all runs of a commit have the same code.
        """
        marks = [entry.mark for entry in self.entries]
        return [mark != before for before, mark in pairwise([None, *marks])]


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
        folder: of run folders.
        target: by default the hardest that all runs set themselves.
        policy: the clock and the rule of the times.
        window: evaluations whose median must meet the target; None: the policy's.
        since: a commit, the beginning of its hash, or a date: earlier runs are left out.
        force: keeps runs of other configurations and those that their machine disturbed.

    Raises:
        UsageError: if there is no run, no common target, or no run from ``since`` on.
    """
    runs, notes = _runs(Path(folder))
    metrics = Metrics()

    for _, run in runs:
        metrics.declare(run.declared_metrics, run.path)

    if target is None:
        common = set.intersection(*(set(run.targets) for _, run in runs))
        if not common:
            raise UsageError(
                "A history needs one target. The runs have no target in common: name "
                "one, such as --target cer=0.10."
            )

        target = merged_targets([sorted(common)], metrics)[-1]

    check_target(*target, metrics)
    if window is None:
        window = policy.window

    entries = [_entry(name, run, target, policy, window) for name, run in runs]
    entries.sort(key=lambda entry: entry.began_ms)
    if not force:
        entries, more = _alike(entries)
        notes += more
        entries, more = _undisturbed(entries)
        notes += more

    return followed(target, _since(entries, since), notes, metrics)


def followed(
    target: Target,
    entries: Sequence[PastRun],
    notes: Sequence[str] = (),
    metrics: Metrics | None = None,
) -> History:
    """Returns a history with its changes; it computes the entries' ``rest_s``.

    Args:
        target: metric and value.
        entries: the runs, in the order in which they began.
        notes: caveats for readers.
        metrics: the registered ones and the runs' own; by default the registered ones.
    """
    entries, steps_s = _with_rest(entries)
    history = History(target, entries, {}, {}, list(notes), metrics or Metrics())

    for name in SERIES:
        # numpy makes NaN of None.
        values = np.array([entry.values[name] for entry in entries], float)
        base = 0.0
        # A change of the time outside steps is measured as a share of the whole epoch.
        if name == "rest_s":
            base = steps_s

        history.changes[name] = changes(values, history.starts(), base=base)
        slowdown = standing_slowdown(values, history.changes[name], base=base)
        if slowdown is not None:
            history.slower[name] = slowdown

    return history


def _with_rest(entries: Sequence[PastRun]) -> tuple[list[PastRun], float]:
    """Fills in ``rest_s``; also returns the median over runs of the step seconds in an epoch.

    Start-up and lost work are spread over the median number of epochs, so that a run
    with fewer epochs doesn't get more of them per epoch.
    """
    reached = [entry for entry in entries if entry.epochs and entry.values["step_s"]]
    if not reached:
        return list(entries), 0.0

    epochs = statistics.median(entry.epochs for entry in reached)
    steps_s = {e.path: e.values["utterances"] * e.values["step_s"] for e in reached}
    with_rest = []

    for entry in entries:
        if entry.path in steps_s:
            rest_s = entry.values["time_s"] - steps_s[entry.path]
            once_s = max(0.0, min(entry.once_s, rest_s))
            rest_s = once_s / epochs + (rest_s - once_s) / entry.epochs
            entry = replace(entry, values=entry.values | {"rest_s": rest_s})

        with_rest.append(entry)

    return with_rest, statistics.median(steps_s[e.path] / e.epochs for e in reached)


def _runs(folder: Path) -> tuple[list[tuple[str, Run]], list[str]]:
    """Returns the runs in a folder with their names, and a note for each left out.

    Raises UsageError if the folder has no runs.
    """
    if not folder.is_dir():
        raise UsageError(f"A history needs a folder of runs. Received: {folder}.")

    paths = list(run_folders(folder))
    runs = []
    notes = []

    for path, name in zip(paths, distinct_names(paths), strict=True):
        try:
            runs.append((name, load_run(path, name)))
        except UsageError as error:
            notes.append(f"{name} is left out. {error}")

    if not runs:
        raise UsageError(
            " ".join(notes)
            or f"A history needs a folder of run folders, each with {EVENTS_FILE}. "
            f"Received: {folder}, which contains no run."
        )

    return runs, notes


def _entry(name: str, run: Run, target: Target, policy: Policy, window: int) -> PastRun:
    """Returns a run's entry in a history: time, utterances, step time, epochs.

    A run that never reached the target has its step time only.
    """
    metric, value = target
    values: dict[str, float | None] = dict.fromkeys(SERIES)
    values["step_s"] = _step_s(throughput(run.timeline))
    epochs = 0
    once_s = 0.0
    reached = run.time_to_accuracy(policy=policy, window=window, **{metric: value})

    if reached.reached:
        values["time_s"] = reached.seconds
        readings = policy.readings(run.timeline, metric)
        index = next(r.index for r in readings if r.epoch == reached.epoch)
        until_s = run.timeline.elapsed_s[index]

        # A log of another benchmark may have no steps.
        with suppress(ValueError):
            parts = parts_until(run.timeline, until_s)
            step_s = _step_s(throughput(run.timeline, until_s=until_s))
            values["step_s"] = step_s or 1 / parts.utterances_per_s
            values["utterances"] = parts.utterances
            epochs = max(parts.epochs, 1)
            once_s = parts.seconds["startup"] + parts.seconds["lost_work"]

    disturbed = ""
    host = host_use(read_host_file(run.path), run.timeline)
    if host is not None and host.disturbed:
        disturbed = disturbance(host)

    began_ms = float(run.events[0]["time_ms"])

    return PastRun(
        path=run.path,
        name=name,
        began_ms=began_ms,
        mark=_mark(run.path, began_ms),
        values=values,
        epochs=epochs,
        once_s=once_s,
        about=run.comparability,
        configuration=configuration(run),
        disturbed=disturbed,
    )


def _mark(run_dir: Path, began_ms: float) -> str:
    """Returns the first digits of a run's commit, or its date if the commit is unknown.

    "+" at the end stands for changes that were not committed.
    """
    commit = object_or_empty(run_dir / RUN_FILE).get("revision")
    if not isinstance(commit, str) or not commit:
        return date_text(began_ms)
    if commit.endswith("+"):
        return f"{commit[:12]}+"

    return commit[:12]


def _step_s(speed: Throughput) -> float | None:
    """Returns the seconds per utterance of a run's steady steps; None if unknown.

    Waiting for input is included: faster steps wait longer for the same input.
    """
    if not speed.utterances_per_s or speed.input_wait_share is None:
        return None

    return 1 / speed.utterances_per_s / (1 - speed.input_wait_share)


def date_text(began_ms: float) -> str:
    """Returns the day of a wall clock in UTC, such as "2026-11-28"."""
    try:
        return datetime.fromtimestamp(began_ms / 1000, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return "no date"


def _alike(entries: list[PastRun]) -> tuple[list[PastRun], list[str]]:
    """Returns the entries comparable with the newest one, and why others are left out.

    All of them must be comparable with the newest run and have its configuration: else
    a change of the settings would look like a change of the code.
    """
    newest = entries[-1]
    alike = []
    notes = []

    for entry in entries:
        differing = differences(newest.about, entry.about)
        if differing:
            notes.append(
                f"{entry.name} is left out: it is not comparable with the newest run, "
                f"{newest.name}; they differ in {difference_text(differing)}."
            )
        elif entry.configuration != newest.configuration:
            notes.append(
                f"{entry.name} is left out: its configuration differs from that of the "
                f"newest run, {newest.name}."
            )
        else:
            alike.append(entry)

    return alike, notes


def _undisturbed(entries: list[PastRun]) -> tuple[list[PastRun], list[str]]:
    """Returns the entries that their machine left alone, and a note on each other one.

    A busy machine would otherwise be blamed on a commit.
    """
    undisturbed = [entry for entry in entries if not entry.disturbed]
    if not undisturbed:
        note = (
            "Every run was disturbed by its machine, so a change may be the machine's."
        )
        return entries, [note]

    notes = [
        f"{entry.name} is left out: {entry.disturbed}."
        for entry in entries
        if entry.disturbed
    ]
    return undisturbed, notes


def _since(entries: list[PastRun], since: str) -> list[PastRun]:
    """Returns the entries from the first one of a commit or date on; all if it is ""."""
    for index, entry in enumerate(entries):
        later = "-" in since and date_text(entry.began_ms) >= since
        if later or entry.mark.startswith(since):
            return entries[index:]

    raise UsageError(
        "--since must name a commit or a date of the history. Received: "
        f"{since!r}. The history goes from {entries[0].mark} to {entries[-1].mark}."
    )


def history_table(history: History) -> Table:
    """Returns a table with a row for each commit or date: medians of its runs.

    The findings are its first notes.
    """
    notes = [
        *findings(history),
        "Medians over the runs of a commit, or of a date for runs without one. Step time "
        "includes waiting for input. Not steps: starting, lost work (both spread over the "
        "median number of epochs), evaluations and checkpoints. A change needs "
        f"{FEWEST_BEFORE} runs before it and {FEWEST_AFTER} after it, more if it is small "
        "compared with the spread of the runs. A slowdown stands until the best earlier "
        "level is reached again. To accept one, pass its commit or date to --since: the "
        "history then begins there.",
        *history.notes,
    ]
    label = target_label(*history.target, history.metrics)

    def median(
        heading: str, name: str, missing: str = UNKNOWN
    ) -> Column[list[PastRun]]:
        def value(entries: list[PastRun]) -> float | None:
            values = [entry.values[name] for entry in entries]
            known = [value for value in values if value is not None]
            if not known:
                return None

            return SERIES[name][1] * statistics.median(known)

        return Column(heading, "", value, "{:.4g}".format, missing)

    def reached(entries: list[PastRun]) -> int:
        return sum(entry.values["time_s"] is not None for entry in entries)

    columns = [
        Column("Commit", "", lambda entries: entries[0].mark),
        Column("date", "", lambda entries: date_text(entries[0].began_ms)),
        Column("runs", "", len),
        Column("reached", "", reached),
        median(f"{label}\nmin", "time_s", NEVER),
        median("utterances\nto target", "utterances"),
        median("ms per\nutterance", "step_s"),
        median("s per epoch\nnot steps", "rest_s"),
    ]
    by_mark = [
        list(entries)
        for _, entries in groupby(history.entries, lambda entry: entry.mark)
    ]

    return table_of(
        f"History of the time to {label}", columns, by_mark, notes, name="history"
    )


def findings(history: History) -> list[str]:
    """Returns a sentence for each change, the one that still stands first.

    The first words are "SLOWER", "Was slower" and "Faster"; scripts may look for them.
    Without a change, the sentence says whether there are enough runs to tell.
    """
    lines = [
        f"SLOWER: {_change_text(history, name, change)}."
        for name, change in history.slower.items()
    ]
    for name, changed in history.changes.items():
        for change in changed:
            if history.stands(name, change):
                continue

            verb = "Faster" if change.z < 0 else "Was slower"

            lines.append(f"{verb}: {_change_text(history, name, change)}.")

    if lines:
        return lines

    runs = len(history.entries)
    enough = FEWEST_BEFORE + FEWEST_AFTER
    if runs < enough:
        return [
            f"Not known yet: {runs} of the {enough} runs needed to tell a change from "
            "noise."
        ]

    return ["No change beyond noise."]


def _change_text(history: History, name: str, change: Change) -> str:
    """Describes a change: the series, the commit, both levels and the certainty.

    The name of the run with which it was found tells when the history could first have
    shown the change.
    """
    label, scale, unit = SERIES[name]
    levels = f"{scale * change.before:.4g} to {scale * change.after:.4g}"
    if unit:
        levels += f" {unit}"
    if history.stands(name, change):
        levels += "; the earlier level is the best so far"

    by = ""
    if math.isfinite(change.ratio):
        by = f" {100 * (change.ratio - 1):+.1f} %"

    first = history.entries[change.index]
    found_with = history.entries[change.found_at].name

    return f"{label}{by} from {first.mark} on ({levels}; found with {found_with})"


def history_chart(history: History) -> Chart:
    """Returns a figure with a panel for each series, over runs in order of time.

    Gaps are runs without the value, such as the time of a run that never reached the
    target.
    """
    label = target_label(*history.target, history.metrics)
    caption = (
        f"Time to {label} and what it is made of, run by run; lines are "
        "medians between changes, upright lines the first run after a change"
    )
    panels = [_panel(history, name) for name in SERIES]

    return Chart("history", caption, panels, wide=True, width=640)


def _panel(history: History, name: str) -> Panel:
    """Returns a series' panel: a point for each run, a line for each level.

    Only the last panel has labels on its horizontal axis, which all share.
    """
    label, scale, unit = SERIES[name]
    entries = history.entries
    changes = history.changes[name]
    points = [
        (place, scale * entry.values[name])
        for place, entry in enumerate(entries)
        if entry.values[name] is not None
    ]
    span = _span([y for _, y in points])
    marks: list[Mark] = []

    for change in changes:
        colour = FASTER
        series = "faster from here"
        if change.z > 0:
            colour = SLOWER
            series = "slower from here"

        marks.append(
            Line(
                x=[change.index - 0.5] * 2,
                y=span,
                dash="dashed",
                colour=colour,
                series=series,
                width=1.6,
            )
        )

    for begin, end in pairwise(
        [0, *(change.index for change in changes), len(entries)]
    ):
        values = [y for x, y in points if begin <= x < end]
        if values:
            level = [statistics.median(values)] * 2
            marks.append(
                Line(x=[begin - 0.4, end - 0.6], y=level, colour=INK, width=1.2)
            )

    if points:
        x, y = zip(*points, strict=True)
        texts = [f"{entries[at].name}\n{entries[at].mark}" for at in x]
        marks.append(Points(x=x, y=y, colour=run_colour(0), size=5, texts=texts))

    # At most 16 ticks, one for each commit or for every few.
    ticks = [place for place, first in enumerate(history.starts()) if first]
    ticks = ticks[:: max(1, len(ticks) // 16)]
    title = ""
    names = [""] * len(ticks)
    angle = 0

    if name == list(SERIES)[-1]:
        title = "commit or date of the runs"
        names = [entries[place].mark[:10] for place in ticks]
        angle = -40

    axis = Axis(
        title,
        limits=(-0.8, len(entries) - 0.2),
        ticks=ticks,
        tick_labels=names,
        label_angle=angle,
    )
    label = ", ".join(filter(None, (label, unit)))

    return Panel(marks or [Rule(value=0.0)], axis, Axis("", limits=span), 120, label)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Returns the ends of a vertical axis around values, with room above and below."""
    if not values:
        return 0.0, 1.0

    low = min(values)
    high = max(values)
    margin = 0.12 * (high - low) or 0.05 * high or 1.0

    return low - margin, high + margin


def history_json(history: History) -> str:
    """Returns the history for programs: runs, changes, and what is slower now."""
    metric, target = history.target
    changed = [
        _change_json(history, name, change) | {"stands": history.stands(name, change)}
        for name, changes in history.changes.items()
        for change in changes
    ]

    return to_json_text(
        {
            "metric": metric,
            "target": target,
            "runs": [
                {
                    "run": entry.name,
                    "mark": entry.mark,
                    "began_ms": entry.began_ms,
                    **entry.values,
                }
                for entry in history.entries
            ],
            "changes": changed,
            "slower": [
                _change_json(history, name, change)
                for name, change in history.slower.items()
            ],
            "notes": history.notes,
        }
    )


def _change_json(history: History, series: str, change: Change) -> dict[str, Any]:
    """Returns a change for programs; ratios are after over before.

    An infinite ratio becomes null, see `to_json_text`.
    """
    first = history.entries[change.index]

    return {
        "series": series,
        "from_run": first.name,
        "from": first.mark,
        "found_with": history.entries[change.found_at].name,
        "before": change.before,
        "after": change.after,
        "ratio": change.ratio,
    }
