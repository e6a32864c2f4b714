"""A history of runs as text, as a chart and for programs."""

import statistics
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tfasr.analysis.history import SERIES, Entry, History, date_text
from tfasr.analysis.names import target_label
from tfasr.display.chart import Axis, Chart, Line, Mark, Panel, Points, Rule
from tfasr.display.json_text import to_json_text
from tfasr.display.style import INK, run_colour
from tfasr.display.table import NEVER, UNKNOWN, Column, Table, table_of
from tfasr.tta.change_points import FEWEST_AFTER, FEWEST_BEFORE, Change

SLOWER, FASTER = "#d9660d", "#1f9e6e"
_UNITS = {
    "time_s": (1 / 60, "min"),
    "utterances": (1.0, ""),
    "step_s": (1000.0, "ms"),
    "rest": (1.0, "times the steps"),
}


def history_table(history: History) -> Table:
    """Returns a row for each commit or date, medians over its runs, and what changed."""
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
        """Returns the column of a series: medians over the runs that have it."""

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
    """Returns a panel for each series: a dot a run, medians between changes, and the changes."""
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
    """Returns the runs and the changes for a program; times in seconds."""
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
