"""Runs that go on, in words: a line for each, and a table that a terminal keeps current."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfasr.analysis.names import metric_label, target_label
from tfasr.analysis.watching import Watched
from tfasr.tta.forecast import Forecast
from tfasr.tta.metrics import metric_named

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_ROWS = 24


def forecast_text(found: Forecast, now_s: float, ends_s: float | None = None) -> str:
    """Returns "WER 20 % in 24-41 min (80 %)", or why that can't be said.

    ``ends_s`` is when the run will come to its last epoch, if that is known.
    """
    label = target_label(found.metric, found.target)
    if found.met_s is not None:
        return f"{label} met after {duration(found.met_s)}"
    if not found.known:
        return f"{label} not known yet ({found.reason})"
    low, high = max(0.0, found.low_s - now_s), found.high_s - now_s
    if high <= 0:
        return f"{label} due: it was expected by now"
    said = f"{label} in {_range(low, high)} (80 %)"
    if ends_s is not None and found.low_s > ends_s:
        said += f"; its last epoch comes before, in {duration(max(0.0, ends_s - now_s))}"
    elif ends_s is not None and found.high_s > ends_s:
        said += f"; its last epoch is in {duration(max(0.0, ends_s - now_s))}"
    return said


def ended_text(found: Forecast, watched: Watched) -> str:
    label = target_label(found.metric, found.target)
    if found.met_s is not None:
        return f"{label} met after {duration(found.met_s)}"
    return f"{label} never met (in {duration(watched.now_s)})"


def duration(seconds: float) -> str:
    """Returns a time in the unit that people would take: "40 s", "24 min", "3.1 h"."""
    number, unit = _unit(seconds)
    return f"{seconds / number:{_digits(seconds / number, unit)}} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    if seconds < 99.5:
        return 1.0, "s"
    return (60.0, "min") if seconds < 99.5 * 60 else (3600.0, "h")


def _digits(number: float, unit: str) -> str:
    return ".0f" if unit == "s" or (unit == "min" and number >= 9.5) else ".1f"


def _range(low_s: float, high_s: float) -> str:
    number, unit = _unit(high_s)
    digits = _digits(high_s / number, unit)
    low, high = (f"{end / number:{digits}}" for end in (low_s, high_s))
    return f"{high} {unit}" if low == high else f"{low}-{high} {unit}"


def targets_text(watched: Watched) -> list[str]:
    if watched.goes_on:
        return [forecast_text(one, watched.now_s, watched.ends_s) for one in watched.forecasts]
    return [ended_text(one, watched) for one in watched.forecasts]


def line(watched: Watched) -> str:
    parts = [f"{watched.name}: {watched.status}", *_standing(watched), *targets_text(watched)]
    return "; ".join([*parts, *([watched.note] if watched.note else [])])


def _standing(watched: Watched) -> list[str]:
    if not watched.epoch and not watched.now_s:
        return []
    of = f" of {watched.epochs}" if watched.epochs else ""
    latest = [
        f"{metric_label(metric)} {100 * value:.1f} %"
        for metric, value in watched.latest.items()
        if metric_named(metric).rate
    ]
    return [f"epoch {watched.epoch}{of}, {duration(watched.now_s)}", *latest]


def screen(runs: Sequence[Watched]) -> "RenderableType":
    """Returns a table of the runs for a terminal, those that go on first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{time.strftime('%H:%M:%S')}  {_counts(runs)}", title_justify="left")
    for heading in ("run", "status", "epoch", "time", "latest", "targets"):
        table.add_column(heading, no_wrap=heading == "epoch")
    shown = sorted(runs, key=lambda one: not one.goes_on)[:_MOST_ROWS]
    for one in shown:
        standing = _standing(one)
        cells = [
            one.name,
            one.status,
            f"{one.epoch}{f'/{one.epochs}' if one.epochs else ''}",
            duration(one.now_s),
            ", ".join(standing[1:]),
            "\n".join([*targets_text(one), *([one.note] if one.note else [])]),
        ]
        # Text, not str: a run's name may hold what would pass for markup.
        table.add_row(*map(Text, cells))
    if len(runs) > len(shown):
        table.caption = f"and {len(runs) - len(shown)} more"
    return table


def _counts(runs: Sequence[Watched]) -> str:
    counts: dict[str, int] = {}
    for one in runs:
        counts[one.status] = counts.get(one.status, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items())
