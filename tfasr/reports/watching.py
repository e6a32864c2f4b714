"""Shows the state of runs in progress, from their files, and when they will meet their
targets.

``tfasr watch`` makes a `Watch` and calls `look` every few seconds; each run becomes a
`Watched`, which `line` writes as text and `screen` as a row of a table. Everything is
read from the run's folder, so a run on another machine can be watched through a shared
disk, and watching can't disturb it.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfasr.errors import UsageError, printable
from tfasr.kit.files import (
    EVENTS_FILE,
    EXPERIMENT_FILE,
    HEARTBEAT_FILE,
    PROGRESS_FILE,
    object_or_empty,
)
from tfasr.ledger.events import read_ledger
from tfasr.reports.numbers import distinct_names, metric_label, target_label
from tfasr.tta.forecast import Forecast, forecast, pace_s
from tfasr.tta.host import disturbance, host_use, read_host_file
from tfasr.tta.metrics import Metrics, Target, check_target, metric_named
from tfasr.tta.policies import PAPER, AccuracyPoint, Policy, at_epoch_ends
from tfasr.tta.published import load_log
from tfasr.tta.run import Run

if TYPE_CHECKING:
    from rich.console import RenderableType


# A run that touches none of its files for so many seconds may be dead.
SILENT_AFTER_S = 60.0
# How the statuses of a ledger's last event are shown.
_ENDED = {"success": "finished", "aborted": "aborted", "interrupted": "interrupted"}


def _has_no_events(path: Path) -> bool:
    """Whether a folder has an empty or damaged ledger, as a run has that just begins.

    Its process may have created the folder and not written the first line yet, or the
    copy of the folder may be incomplete.
    """
    try:
        return path.is_dir() and not read_ledger(path).events
    except (OSError, ValueError, RecursionError):
        return False


@dataclass(frozen=True)
class Watched:
    """What `tfasr watch` shows of a run at one moment.

    It has many fields because each is a part of the run's line.

    Attributes:
        path: its folder, or a published log.
        name: the folder's name, with as many parents as make it unique.
        status: "starting", "training", "silent", "finished", "aborted", "interrupted"
            or "unreadable".
        epoch: evaluated so far.
        epochs: the most epochs that it may train; None if unknown.
        now_s: seconds from the creation of the model until the run was looked at.
        ends_s: when its last epoch will end at its pace; None if unknown.
        latest: the last value of each metric.
        forecasts: one for each target.
        note: remark for the reader.
        metrics: the registered ones and the run's own.
    """

    path: Path
    name: str
    status: str
    epoch: int = 0
    epochs: int | None = None
    now_s: float = 0.0
    ends_s: float | None = None
    latest: dict[str, float] = field(default_factory=dict)
    forecasts: list[Forecast] = field(default_factory=list)
    note: str = ""
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def goes_on(self) -> bool:
        """Whether the run may still train."""
        return self.status in ("training", "starting", "silent")


class Watch:
    """Looks at runs, even before they begin; reads a ledger again only if it has grown.

    Args:
        paths: run folders, which need not exist yet, or published logs.
        targets: metrics and values; without any, those that each run sets itself.
        policy: the clock and the rule of the forecasts.
        window: evaluations whose median must meet a target; None: the policy's.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        targets: Sequence[Target] = (),
        policy: Policy = PAPER,
        window: int | None = None,
    ):
        self.paths = list(dict.fromkeys(map(Path, paths)))
        bare = [path.with_suffix("") if path.is_file() else path for path in self.paths]
        self._names = dict(zip(self.paths, distinct_names(bare), strict=True))
        self._targets = list(targets)
        self._policy = policy
        self._window = window or policy.window
        # For each ledger, its time and size when it was read, and what was read.
        self._seen: dict[Path, tuple[tuple[int, int], Watched]] = {}

    def look(self) -> list[Watched]:
        """Returns the state of each run, in the order of the paths."""
        return [self._look(path) for path in self.paths]

    def _look(self, path: Path) -> Watched:
        """Returns a run's state, from what was read of its ledger or from a new reading.

        What was read is kept until the ledger's time or size changes. The time since
        the last event is added at each look, so that the clock shown goes on.
        """
        ledger = path / EVENTS_FILE if not path.is_file() else path

        try:
            stat = ledger.stat()
        except OSError:
            note = "no such folder yet: is the name right?"
            if path.exists():
                note = "no ledger yet"

            return Watched(path, self._names[path], "starting", note=note)

        stamp = (stat.st_mtime_ns, stat.st_size)
        if path not in self._seen or self._seen[path][0] != stamp:
            self._seen[path] = (stamp, self._read(path))

        return _as_of_now(self._seen[path][1], time.time() - stat.st_mtime)

    def _read(self, path: Path) -> Watched:
        """Reads a run and computes its forecasts, as of the last event in its ledger.

        A ledger that can't be read yet is a run that is starting, not an error: its
        process may be about to write the first line.
        """
        name = self._names[path]
        try:
            run = load_log(path)
        except UsageError as error:
            if _has_no_events(path):
                return Watched(path, name, "starting", note="its ledger is still empty")

            return Watched(path, name, "unreadable", note=str(error))

        # Declared metrics are known only after reading the run.
        targets = [check_target(*target, run.metrics) for target in self._targets]
        targets = targets or run.targets
        metrics = dict.fromkeys([*(metric for metric, _ in targets), "wer", "cer"])
        curves = {
            metric: run.accuracy_curve(metric, self._policy) for metric in metrics
        }
        longest = at_epoch_ends(max(curves.values(), key=len))

        # A run that has ended may have stopped early.
        status = _ENDED.get(run.status, "training")
        epochs = None
        if status == "training":
            epochs = object_or_empty(path / PROGRESS_FILE).get("epochs")
        if not isinstance(epochs, int):
            epochs = None

        return Watched(
            path,
            name,
            status,
            epoch=len(longest),
            epochs=epochs,
            now_s=float(self._policy.times_s(run.timeline)[-1]),
            ends_s=_end_s(longest, epochs),
            latest={
                metric: points[-1].value for metric, points in curves.items() if points
            },
            forecasts=[
                forecast(
                    curves[metric],
                    value,
                    metric=metric,
                    window=self._window,
                    learning_rate=_learning_rate(path),
                    metrics=run.metrics,
                )
                for metric, value in targets
            ],
            note="; ".join(_remarks(run, bool(targets))),
            metrics=run.metrics,
        )


def _end_s(evaluated: Sequence[AccuracyPoint], epochs: int | None) -> float | None:
    """Returns when a run's last epoch will end, in seconds of its clock.

    None if the number of epochs or the pace is unknown.
    """
    pace = pace_s(evaluated)
    if epochs is None or not math.isfinite(pace) or pace <= 0:
        return None

    left = epochs - len(evaluated)
    if left < 0:
        return None

    return evaluated[-1].elapsed_s + pace * left


def _remarks(run: Run, has_target: bool) -> list[str]:
    """Returns remarks on a run that are shown next to its state.

    They say why there is no forecast, and whether other programs take the processors
    that the run could use.
    """
    remarks = []
    if not has_target:
        remarks.append("it has no target: name one, such as --target wer=0.2")

    host = host_use(read_host_file(run.path), run.timeline)
    if host is not None and host.disturbed:
        remarks.append(disturbance(host))

    return remarks


def _learning_rate(run_dir: Path) -> object:
    """Returns the learning rate that a run saved with its configs.

    It is a number, a schedule, or None if the run saved none.
    """
    value = object_or_empty(run_dir / EXPERIMENT_FILE)
    for name in ("training", "optimizer", "learning_rate"):
        if not isinstance(value, dict):
            return None

        value = value.get(name)

    return value


def _as_of_now(watched: Watched, silent_s: float) -> Watched:
    """Returns a training run's state at this moment, or as silent if it seems dead.

    Args:
        watched: the state as of the ledger's last event.
        silent_s: seconds since that event was written.
    """
    if watched.status != "training":
        return watched

    # A step may take long, but a living process keeps touching its heartbeat file.
    silent_s = max(0.0, silent_s)
    quiet_s = silent_s

    with contextlib.suppress(OSError):
        beat = (watched.path / HEARTBEAT_FILE).stat().st_mtime
        quiet_s = min(silent_s, max(0.0, time.time() - beat))

    if quiet_s > SILENT_AFTER_S:
        note = f"no news for {quiet_s / 60:.3g} min: it may be dead"
        return replace(watched, status="silent", note=note)

    return replace(watched, now_s=watched.now_s + silent_s)


# Rows of the table; a terminal has hardly more lines.
_MOST_ROWS = 24


def forecast_text(watched: Watched, future: Forecast) -> str:
    """Returns when a run will meet a target, such as "WER 20 % in 24-41 min (80 %)".

    Args:
        watched: the run's state, whose time is now.
        future: one of its forecasts.
    """
    now_s = watched.now_s
    ends_s = watched.ends_s
    label = target_label(future.metric, future.target, watched.metrics)

    if future.met_s is not None:
        return f"{label} met after {duration(future.met_s)}"

    if not future.known:
        text = f"{label} not known yet ({future.reason})"
        if (future.not_before_s or 0.0) < now_s + 1:
            return text

        return f"{text}; not in the next {duration(future.not_before_s - now_s)} (95 %)"

    low = max(0.0, future.low_s - now_s)
    high = future.high_s - now_s
    if high <= 0:
        return f"{label} due: it was expected by now"

    text = range_text(label, low, high)
    if ends_s is None or future.high_s <= ends_s:
        return text

    verb = "ends before that, in" if future.low_s > ends_s else "ends in"

    return f"{text}; its last epoch {verb} {duration(max(0.0, ends_s - now_s))}"


def range_text(label: str, low_s: float, high_s: float) -> str:
    """Returns a time to a target as text.

    >>> range_text("WER 20 %", 1440.0, 2460.0)
    'WER 20 % in 24-41 min (80 %)'
    """
    number, unit = _unit(high_s)
    digits = _digits(high_s / number, unit)
    # Ends that are equal as text are written once.
    ends = dict.fromkeys(f"{end / number:{digits}}" for end in (low_s, high_s))

    return f"{label} in {'-'.join(ends)} {unit} (80 %)"


def duration(seconds: float) -> str:
    """Returns seconds as text with a fitting unit.

    >>> duration(2460.0), duration(90.0), duration(4.2)
    ('41 min', '90 s', '4 s')
    """
    number, unit = _unit(seconds)
    return f"{seconds / number:{_digits(seconds / number, unit)}} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    """Returns the seconds in the unit for a time, and the unit's short name."""
    if seconds < 99.5:
        return 1.0, "s"
    if seconds < 99.5 * 60:
        return 60.0, "min"

    return 3600.0, "h"


def _digits(number: float, unit: str) -> str:
    """Returns the format of a number in a unit: decimals only where they tell."""
    if unit == "s" or (unit == "min" and number >= 9.5):
        return ".0f"

    return ".1f"


def targets_text(watched: Watched) -> list[str]:
    """Returns a text for each target: when it was met, will be met, or that it wasn't.

    A run that has ended can't meet a target any more, so the text says for how long it
    trained.
    """
    texts = []
    for future in watched.forecasts:
        if watched.goes_on or future.met_s is not None:
            texts.append(forecast_text(watched, future))
        else:
            label = target_label(future.metric, future.target, watched.metrics)
            texts.append(f"{label} never met (in {duration(watched.now_s)})")

    return texts


def line(watched: Watched) -> str:
    """Returns a run's state in one line, for logs and for output that is no terminal.

    Parts are separated by semicolons: name and status, progress, targets, and a note if
    there is one.
    """
    parts = [
        f"{watched.name}: {watched.status}",
        *_standing(watched),
        *_targets_and_note(watched),
    ]
    return "; ".join(parts)


def _targets_and_note(watched: Watched) -> list[str]:
    """Returns what is known about a run's targets, and its note if it has one."""
    texts = targets_text(watched)
    if watched.note:
        texts.append(watched.note)

    return texts


def _standing(watched: Watched) -> list[str]:
    """Returns how far a run is: epoch and time, then its last error rates.

    [] for a run that has not begun. Only metrics that are rates are shown, in percent,
    since others have no common scale.
    """
    if not watched.epoch and not watched.now_s:
        return []

    of = f" of {watched.epochs}" if watched.epochs else ""
    latest = [
        f"{metric_label(metric, watched.metrics)} {100 * value:.1f} %"
        for metric, value in watched.latest.items()
        if metric_named(metric, watched.metrics).rate
    ]

    return [f"epoch {watched.epoch}{of}, {duration(watched.now_s)}", *latest]


def screen(runs: Sequence[Watched]) -> "RenderableType":
    """Returns a table of the runs for a terminal, running ones first.

    At most `_MOST_ROWS` are shown; the caption counts the others. The title has the
    time of day and how many runs are in which status.
    """
    from rich.table import Table
    from rich.text import Text

    statuses = Counter(run.status for run in runs).items()
    counts = ", ".join(f"{count} {status}" for status, count in statuses)
    table = Table(title=f"{time.strftime('%H:%M:%S')}  {counts}", title_justify="left")

    for heading in ("run", "status", "epoch", "time", "latest", "targets"):
        table.add_column(heading, no_wrap=heading == "epoch")

    shown = sorted(runs, key=lambda run: not run.goes_on)[:_MOST_ROWS]
    for run in shown:
        epoch = str(run.epoch)
        if run.epochs:
            epoch += f"/{run.epochs}"

        cells = [
            run.name,
            run.status,
            epoch,
            duration(run.now_s),
            ", ".join(_standing(run)[1:]),
            "\n".join(_targets_and_note(run)),
        ]
        # Text, not str: a run's name may contain markup.
        table.add_row(*(Text(printable(cell)) for cell in cells))

    if len(runs) > len(shown):
        table.caption = f"and {len(runs) - len(shown)} more"

    return table
