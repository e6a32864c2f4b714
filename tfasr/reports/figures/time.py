"""Figures that show where the time of runs went and why one group takes longer than
another.

Each public function ``..._chart`` is an entry of
`tfasr.reports.figures.registry.FIGURES`: it makes a `tfasr.display.chart.Chart` from a
report, or raises `NotDrawnError` with the reason. The figure of utilisation is the only
one that reads the runs again, as it needs their events.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import mul

import numpy as np

from tfasr.display import chart
from tfasr.display.chart import (
    Axis,
    Chart,
    Line,
    Mark,
    Panel,
    Points,
    Rects,
    Rule,
    Segments,
)
from tfasr.errors import UsageError
from tfasr.ledger.intervals import INTERVALS
from tfasr.reports.figures.curves import MOST_GROUPS, clock_label
from tfasr.reports.figures.registry import NotDrawnError
from tfasr.reports.groups import GroupResult, Results, group_members, of_single_runs
from tfasr.reports.numbers import Report, RunAnalysis, TimeUnit, time_unit
from tfasr.tta.decomposition import FACTORS, WARMUP_STEPS, Decomposition
from tfasr.tta.run import Run, load_run

# Seconds of a run that the figure of utilisation shows, as the paper's Figure 8 does.
WINDOW_S = 25.0
# Columns of ``cpu.csv``, in percent of all cores.
# columns of ``cpu.csv``, in percent of all cores
CPU_COLUMNS = {"cpu_percent": "CPU", "process_percent": "CPU, training process"}
# Seconds of a bin in the row that shows what a run was doing.
_PHASE_BIN_S = 0.1
# A window of fewer seconds has too few samples for a line.
_SHORTEST_S = 2.0
# Panels of more windows would not fit on a screen.
_MOST_WINDOWS = 3


@dataclass(frozen=True)
class UtilisationWindow:
    """The load of a run's processors for a while, and what the run was doing.

    Attributes:
        run: its name.
        start_s: seconds from the run's beginning to the window's.
        length_s: of the window, in seconds.
        devices: for each device, seconds into the window, and its load in percent.
        edges_s: edges of the bins of ``phases``, seconds into the window; one more than
            bins.
        phases: by interval, its share of each bin's time; they add up to 1.
    """

    run: str
    start_s: float
    length_s: float
    devices: dict[str, tuple[np.ndarray, np.ndarray]]
    edges_s: np.ndarray
    phases: dict[str, np.ndarray]


def utilisation_windows(report: Report) -> list[UtilisationWindow]:
    """Returns a window of each group's first run that sampled its processors.

    At most `_MOST_WINDOWS`, as the panels of more would not fit on a screen. The runs'
    ledgers are read again, which no other figure needs.
    """
    windows = []
    for indices in group_members(report.runs).values():
        runs = (report.runs[index] for index in indices)
        sampled = filter(None, map(_window_of, runs))
        windows += islice(sampled, 1)

        if len(windows) == _MOST_WINDOWS:
            break

    return windows


def _window_of(run: RunAnalysis) -> UtilisationWindow | None:
    """Returns a window of a run; None if it was not sampled, or has too few steps."""
    files = [run.path / f"{device}.csv" for device in ("cpu", "gpu")]
    if not any(file.is_file() for file in files):
        return None

    # A run may be deleted after the report's tables were made.
    with suppress(UsageError):
        return steady_window(load_run(run.path, run.name))

    return None


def steady_window(run: Run) -> UtilisationWindow | None:
    """Returns the first window after warm-up within a session.

    It has an evaluation in it if possible. None if no session has samples of enough
    steps.
    """
    for session in run.timeline.sessions:
        bounds = _bounds(run, session, round(WINDOW_S * 1e6))
        if bounds is None:
            continue

        start_us, stop_us = bounds
        devices = _devices(run, session, start_us, stop_us)
        if devices:
            edges_s, phases = _phases(run, start_us, stop_us)
            length_s = (stop_us - start_us) / 1e6

            return UtilisationWindow(
                run.name, start_us / 1e6, length_s, devices, edges_s, phases
            )

    return None


def _bounds(run: Run, session: range, length_us: int) -> tuple[int, int] | None:
    """Returns where a window of a session begins and ends, in microseconds of the run.

    Args:
        run: its whole ledger.
        session: the indices of the session's events.
        length_us: how long the window should be; it is shorter at the session's end.

    Returns:
        None if the session has too few steps after warm-up. If possible, the window has an
        evaluation in its middle.
    """
    clock = run.timeline.clock_us
    keys = run.timeline.keys
    ends = [clock[i] for i in session if keys[i] == "train_step"][WARMUP_STEPS - 1 :]
    last = clock[session.stop - 1]

    if not ends or last - ends[0] < _SHORTEST_S * 1e6:
        return None

    start = ends[0]
    began = None

    for index in session:
        if keys[index] == "eval_start" and clock[index] >= start:
            began = clock[index]
        elif keys[index] == "eval_stop" and began is not None:
            before = max(length_us // 4, (length_us - (clock[index] - began)) // 2)
            # Shows steps before and after the first evaluation, but nothing beyond the
            # session.
            wanted = min(began - before, last - length_us)
            start = max([start, *(end for end in ends if end <= wanted)])
            break

    return start, min(start + length_us, last)


def _devices(
    run: Run, session: range, start_us: int, stop_us: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the load of each sampled device in a window: seconds into it, and percent.

    Samples are timed by the wall clock, the window by the run's: the session's events,
    which have both, relate them.

    Args:
        run: the run.
        session: the indices of the session's events.
        start_us: the window's start, in microseconds of the run.
        stop_us: its end.
    """
    sampled = {}
    cpu = run.utilisation("cpu")

    for column, name in CPU_COLUMNS.items():
        if {"time_ms", column} <= cpu.keys():
            sampled[name] = (cpu["time_ms"], cpu[column])

    gpu = run.utilisation("gpu")
    if {"time_ms", "gpu", "utilisation_percent"} <= gpu.keys():
        for number in np.unique(gpu["gpu"][np.isfinite(gpu["gpu"])]):
            rows = gpu["gpu"] == number
            busy = gpu["utilisation_percent"][rows]
            sampled[f"GPU {number:g}"] = (gpu["time_ms"][rows], busy)

    walls = np.array([run.events[index]["time_ms"] for index in session], float)
    # The wall clock may have been set back.
    walls = np.maximum.accumulate(walls)
    clock = np.array([run.timeline.clock_us[index] for index in session], float)
    devices = {}

    for name, (time_ms, percent) in sampled.items():
        inside = (time_ms >= walls[0]) & (time_ms <= walls[-1]) & np.isfinite(percent)
        seconds = (np.interp(time_ms[inside], walls, clock) - start_us) / 1e6
        shown = (seconds >= 0) & (seconds <= (stop_us - start_us) / 1e6)

        # A line needs two points.
        if shown.sum() > 1:
            devices[name] = (seconds[shown], percent[inside][shown])

    return devices


def _phases(
    run: Run, start_us: int, stop_us: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns what a run was doing in a window, see `UtilisationWindow`.

    They are the edges of the bins and, by interval, its share of each bin.
    """
    bins = max(1, round((stop_us - start_us) / 1e6 / _PHASE_BIN_S))
    edges = np.linspace(start_us, stop_us, bins + 1)
    pieces: dict[str, list[tuple[int, int]]] = {}

    for name, begin, end in run.timeline.pieces:
        if end > start_us and begin < stop_us:
            pieces.setdefault(name, []).append((begin, end))

    shares = {}
    for name in INTERVALS:
        if name in pieces:
            # Time spent in the phase up to each edge grows within pieces and is
            # constant between.
            times = np.array(pieces[name], float)
            lengths = np.diff(times, axis=1).ravel()
            spent = np.repeat(np.cumsum(lengths), 2)
            spent[::2] -= lengths
            until_edge = np.interp(edges, times.ravel(), spent)
            shares[name] = np.diff(until_edge) / np.diff(edges)

    return (edges - start_us) / 1e6, shares


# Bars of the figure of intervals; with more it would be higher than two screens.
MOST_BARS = 40


def interval_chart(report: Report, results: Results) -> Chart:
    """Returns the figure of where each run's time went: a bar of intervals for each run.

    Bars are stacked in the order of `INTERVALS`; an interval that no run spent time on
    has no entry in the legend.
    """
    runs = report.runs[:MOST_BARS]
    rows = np.arange(len(runs))
    starts = np.zeros(len(runs))
    unit = time_unit(report)
    marks: list[Mark] = []

    for name in INTERVALS:
        spent = np.array([run.intervals_s[name] for run in runs]) / unit.seconds
        if not spent.any():
            continue

        label = _label(name)
        marks.append(
            Rects(
                x0=starts,
                x1=starts + spent,
                y0=rows - 0.33,
                y1=rows + 0.33,
                colour=chart.INTERVAL_COLOURS[name],
                series=label,
                texts=[
                    f"{run.name}\n{label}: {value:.3g} {unit.short}"
                    for run, value in zip(runs, spent, strict=True)
                ],
            )
        )
        starts = starts + spent

    if not marks:
        raise NotDrawnError("Where the time went: no run recorded any time.")

    caption = "Where the time of the whole run went"
    if len(report.runs) > MOST_BARS:
        caption += f", of the first {MOST_BARS} runs"

    x = Axis(unit.name, limits=(0.0, 1.03 * float(starts.max()) or 1.0))
    names = chart.rows_axis([chart.shortened(run.name, 20) for run in runs])
    panel = Panel(marks, x, names, 30.0 + 30 * len(runs))

    return Chart("intervals", caption, [panel])


def _label(interval: str) -> str:
    """Returns the name of an interval in legends, on one line."""
    return chart.INTERVAL_LABELS[interval].replace("\n", " ")


# Shares and logarithms of factors below this are not shown.
_SEEN = 0.005


def utilisation_chart(report: Report, results: Results) -> Chart:
    """Returns the figure of the load of processors: the CPU, and a line for each GPU.

    Source: the paper (arXiv 2003.12366), Figure 8, which shows 25 s.
    """
    windows = utilisation_windows(report)
    if not windows:
        raise NotDrawnError(
            "Utilisation: no run has a cpu.csv or gpu.csv with samples of steps after "
            "warm-up."
        )

    caption = (
        f"Sampled load of the processors in {windows[0].length_s:.3g} s after warm-up; the "
        "row below shows what the run was doing"
    )
    panels = [panel for window in windows for panel in _panels(window)]
    last = panels[-1]
    x = Axis("seconds into the window", limits=last.x.limits)
    panels[-1] = Panel(last.marks, x, last.y, last.height)

    return Chart("utilisation", caption, panels, wide=True, width=760)


def _panels(window: UtilisationWindow) -> list[Panel]:
    """Returns a window's panels: the CPUs, the GPUs, and what the run was doing."""
    # The moment is in seconds, or in minutes from 120 s on.
    moment = f"{window.start_s:.0f} s"
    if window.start_s >= 120:
        moment = f"minute {window.start_s / 60:.1f}"

    # It stands above the first panel only.
    title = f"{chart.shortened(window.run, 40)}, from {moment}"
    bare = Axis("", limits=(0.0, window.length_s), ticks=[])
    panels = []

    for kind in ("CPU", "GPU"):
        names = [name for name in window.devices if name.startswith(kind)]
        if names:
            marks = [_device(window, name, number) for number, name in enumerate(names)]
            busy = Axis(f"{kind}, %", limits=(0.0, 104.0), ticks=[0, 50, 100])
            panels.append(Panel(marks, bare, busy, 95, title))
            title = ""

    doing = Axis("doing", limits=(0.0, 1.0), ticks=[], grid=False)
    seconds = Axis("", limits=(0.0, window.length_s))

    return [*panels, Panel(_phase_rects(window), seconds, doing, 22)]


def _device(window: UtilisationWindow, name: str, number: int) -> Mark:
    """Returns the line of a device's load.

    GPUs have colours, the processors the text's ink; the training process, which is part
    of the processors' load, is dotted.
    """
    colour = chart.INK
    if name.startswith("GPU"):
        colour = chart.device_colour(number)

    dash = "dotted" if name == CPU_COLUMNS["process_percent"] else "solid"

    seconds, percent = window.devices[name]
    return Line(x=seconds, y=percent, colour=colour, dash=dash, width=1.2, series=name)


def _phase_rects(window: UtilisationWindow) -> list[Mark]:
    """Returns a run's activity in a window, as a row of stacked bars.

    Neighbouring bins with the same shares are one bar: a window has hundreds of bins, and
    usually a dozen phases.
    """
    marks: list[Mark] = []
    edges = window.edges_s
    reached = np.zeros(edges.size - 1)

    for name, share in window.phases.items():
        low = reached
        high = reached + share
        reached = high

        same = (np.abs(np.diff(low)) < _SEEN) & (np.abs(np.diff(high)) < _SEEN)
        first = np.flatnonzero(np.concatenate([[True], ~same]))
        last = np.append(first[1:], share.size)
        seen = share[first] > _SEEN
        first = first[seen]
        last = last[seen]

        if not first.size:
            continue

        label = _label(name)
        marks.append(
            Rects(
                x0=edges[first],
                x1=edges[last],
                y0=low[first],
                y1=high[first],
                colour=chart.INTERVAL_COLOURS[name],
                series=label,
                texts=[
                    f"{label}: {share[place]:.0%} from {edges[place]:.3g} s"
                    for place in first
                ],
            )
        )

    return marks


# Rows of the figure of brackets; it would otherwise be higher than a screen.
_MOST_ROWS = 32
# Of a row's height: what its bars fill.
_ROOM = 0.72
# Above this ratio of the longest time to the shortest, the axis is logarithmic.
_LOG_RATIO = 8
# Bars in a row from which on they get thinner.
_ROOMY = 12


def bracket_chart(report: Report, results: Results) -> Chart:
    """Returns the figure of all brackets: a row for each group and target, a bar for each run.

    A bar reaches from the last evaluation that missed the target to the first that met it.
    With hundreds of runs, bars get thinner; with many groups, only the first rows are
    drawn.
    """
    if not report.targets or not any(run.curves for run in report.runs):
        raise NotDrawnError("Times to accuracy: there is no target, or no evaluation.")

    caption = (
        "The evaluations between which each run's error curve crosses the target, and where "
        "a straight line does (dot); arrows are runs that never met the target"
    )
    if report.window > 1:
        caption += f"; the rule, a median of {report.window} evaluations, is met later"
    if any(len(group.members) > 1 for of_target in results for group in of_target):
        caption += "; tall lines are median times by the rule"

    rows = [
        (number, group)
        for of_target in results
        for number, group in enumerate(of_target[:MOST_GROUPS])
    ]
    rows = rows[:_MOST_ROWS]
    if len(rows) < sum(map(len, results)):
        caption += "; only the first rows are shown"

    unit = time_unit(report)
    x = _times_axis(report, [result for _, result in rows])
    marks: list[Mark] = []

    for row, (number, result) in enumerate(rows):
        # A line separates targets.
        if row and result.target != rows[row - 1][1].target:
            marks.append(Rule(value=row - 0.5, dash="solid"))

        names = [report.runs[run].name for run in result.members]
        marks += _brackets(row, chart.run_colour(number), result, names, x.limits, unit)
        median = result.statistics.median_s

        if median is not None and len(result.brackets) > 1:
            at = median / unit.seconds
            marks.append(
                Segments(
                    x0=[at],
                    x1=[at],
                    y0=[row - 0.44],
                    y1=[row + 0.44],
                    texts=[f"{result.group}\nmedian: {unit.text(median)}"],
                )
            )

    labels = [f"{group.label}  {chart.shortened(group.group, 20)}" for _, group in rows]
    panel = Panel(marks, x, chart.rows_axis(labels), 28.0 + 34 * len(rows))

    return Chart("brackets", caption, [panel])


def _times_axis(report: Report, results: Sequence[GroupResult]) -> Axis:
    """Returns an axis for all brackets, logarithmic if some are far longer than others.

    It begins a little before the shortest time and ends a little after the longest.
    """
    unit_s = time_unit(report).seconds
    times = []

    for result in results:
        for bracket in result.brackets:
            end = bracket.last_miss_s if bracket.censored else bracket.read_s
            if end > 0:
                times.append(end / unit_s)

    label = clock_label(report)
    if not times:
        return Axis(label, limits=(0.0, 1.0))
    if max(times) / min(times) > _LOG_RATIO:
        return Axis(label, log=True, limits=(min(times) / 1.6, max(times) * 1.25))

    return Axis(label, limits=(0.0, max(times) * 1.08))


def _brackets(
    row: int,
    colour: str,
    result: GroupResult,
    names: Sequence[str],
    span: tuple[float, float],
    unit: TimeUnit,
) -> list[Mark]:
    """Returns the marks of a group's row: a bar from miss to hit for each of its runs.

    Args:
        row: its number from the top.
        colour: of the group.
        result: the group's brackets.
        names: of its runs, for tooltips.
        span: both ends of the horizontal axis.
        unit: of that axis.
    """
    count = len(result.brackets)
    at = row + (np.arange(count) + 0.5) / count * _ROOM - _ROOM / 2
    # With many runs in a row, marks are smaller.
    scale = max(0.15, min(1.0, _ROOMY / count))
    never = []
    met = []

    for y, bracket, run in zip(at, result.brackets, names, strict=True):
        # On a logarithmic axis, a bracket that begins at time 0 begins at the axis's
        # left end.
        low = max(bracket.last_miss_s / unit.seconds, span[0])
        if bracket.censored:
            text = f"{run}\nafter {low:.4g} {unit.short}: never"
            never.append((low, span[1] / 1.025, y, text))
            continue

        high = bracket.first_hit_s / unit.seconds
        dot = high
        text = f"{run}\n{low:.4g} to {high:.4g} {unit.short}"

        if bracket.interpolated_s is not None:
            dot = bracket.interpolated_s / unit.seconds
            text += f", interpolated {dot:.4g}"

        met.append((low, high, y, text, dot))

    marks: list[Mark] = []
    if met:
        lows, highs, y, texts, dots = zip(*met, strict=True)
        width = 3 * scale
        marks.append(
            Segments(
                x0=lows, x1=highs, y0=y, y1=y, width=width, colour=colour, texts=texts
            )
        )
        # Short upright lines at both ends of each bar.
        half = 0.12 * scale
        below = [place - half for place in y]
        above = [place + half for place in y]

        for ends in (lows, highs):
            marks.append(
                Segments(x0=ends, x1=ends, y0=below, y1=above, colour=colour, width=1.5)
            )

        marks.append(Points(x=dots, y=y, size=6.5 * scale, colour=colour, texts=texts))

    if never:
        lows, highs, y, texts = zip(*never, strict=True)
        marks.append(
            Segments(
                x0=lows,
                x1=highs,
                y0=y,
                y1=y,
                width=1.6 * scale,
                dash="dotted",
                colour=colour,
                texts=texts,
            )
        )

        marks.append(
            Points(
                x=highs,
                y=y,
                symbol="arrow",
                size=8 * scale,
                colour=colour,
                texts=texts,
            )
        )

    return marks


# Colours of factors above 1, below 1, and of the ratio that they make.
SLOWER = "#d9660d"
FASTER = "#1f9e6e"
WHOLE = "#7d8794"
# Ticks of the axis of factors; finer ones if its ends differ by less than `_NARROW`,
# and the finest below `_FLAT`.
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_FINE = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5, 3)
_FINEST = (0.9, 0.95, 1, 1.05, 1.1)
_NARROW = 3
_FLAT = 1.25
# Figures of factors, each for one group.
_MOST = 3
# Half the height of a bar, in rows.
_HALF = 0.31


def waterfall_charts(report: Report, results: Results) -> list[Chart]:
    """Returns a figure of the factors for each group but the first.

    They are of the first target that both have reached. At most `_MOST`, as each has its
    own panel; all factors are in the table "Why".
    """
    decomposed = (
        [result for result in row if result.decomposition is not None]
        for row in results
    )
    of_target = next(filter(None, decomposed), [])
    first, first_members = next(iter(group_members(report.runs).items()), ("", []))
    charts = []

    for number, result in enumerate(of_target[:_MOST], start=1):
        product = result.decomposition
        caption = (
            f"Why {result.group} takes {product.ratio:.2f} times as long as {first} to "
            f"{result.label}: the factors multiply to this ratio"
        )
        caveat = of_single_runs([len(first_members), len(result.members)])

        if caveat:
            caption += f". Of these times {caveat}"

        charts.append(waterfall_chart(f"why_{number}", caption, product))

    return charts


def waterfall_chart(name: str, caption: str, product: Decomposition) -> Chart:
    """Returns the figure of one ratio as a product of factors.

    Args:
        name: of its files.
        caption: what is compared, and by what ratio.
        product: the factors; each bar begins where the one above it ends, on a logarithmic
            axis, so lengths are comparable and the last bar is the ratio.
    """
    factors = list(product.factors.values())
    reached = [1.0, *accumulate(factors, mul)]
    starts = [*reached[:-1], 1.0]
    stops = [*reached[1:], product.ratio]

    words = []
    for factor in factors:
        seen = abs(math.log(factor)) >= _SEEN
        words.append(f"×{factor:.2f}" if seen else "–")

    words.append(f"×{product.ratio:.2f}")
    names = [*FACTORS.values(), "together"]
    marks: list[Mark] = [Rule(value=1.0, axis="x", dash="solid")]

    for colour, series, rows in (
        (SLOWER, "slower", [row for row, factor in enumerate(factors) if factor > 1]),
        (FASTER, "faster", [row for row, factor in enumerate(factors) if factor <= 1]),
        (WHOLE, "together", [len(factors)]),
    ):
        if rows:
            marks.append(
                Rects(
                    x0=[starts[row] for row in rows],
                    x1=[stops[row] for row in rows],
                    y0=[row - _HALF for row in rows],
                    y1=[row + _HALF for row in rows],
                    colour=colour,
                    series=series,
                    texts=[f"{names[row]}: {words[row]}" for row in rows],
                )
            )

    # Thin lines join the end of each bar with the start of the next.
    joints = range(len(factors))
    marks.append(
        Segments(
            x0=reached[1:],
            x1=reached[1:],
            y0=[row - _HALF for row in joints],
            y1=[row + 1 + _HALF for row in joints],
            width=0.8,
        )
    )
    ends = list(map(max, starts, stops))
    marks.append(chart.Labels(x=ends, y=range(len(names)), words=words))

    # Room for the labels, which stand at the right of the bars.
    low = min(reached)
    high = max(reached)
    margin = max(1.05, (high / low) ** 0.12)
    bottom = low / margin
    top = high * margin**3

    # Over a narrow range a logarithmic axis is almost linear.
    if top / bottom >= _NARROW:
        ticks = _TICKS
    elif top / bottom > _FLAT:
        ticks = _FINE
    else:
        ticks = _FINEST

    shown = [tick for tick in ticks if bottom <= tick <= top]
    x = Axis("times as long", log=True, limits=(bottom, top), ticks=shown)

    return Chart(name, caption, [Panel(marks, x, chart.rows_axis(names), 270)])
