"""Where the time of whole runs went."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.display.chart import (
    INK,
    INTERVAL_COLOURS,
    INTERVAL_LABELS,
    Axis,
    Chart,
    Line,
    Mark,
    Panel,
    Points,
    Rects,
    device_colour,
    rows_axis,
    run_colour,
    run_dash,
    shortened,
)
from tfasr.errors import UsageError
from tfasr.ledger.intervals import INTERVALS
from tfasr.reports.figures.curves import (
    Curve,
    band_marks,
    bands_by_axis,
    chart_of_views,
    places,
    ratio,
    series_name,
    time_axis,
    value_limits,
    with_spread,
)
from tfasr.reports.figures.registry import NotDrawnError
from tfasr.reports.groups import Results, group_members
from tfasr.reports.numbers import Report, RunAnalysis
from tfasr.reports.series import RunSeries
from tfasr.tta.decomposition import WARMUP_STEPS
from tfasr.tta.run import Run, load_run

WINDOW_S = 25.0  # The paper's, Figure 8
# columns of ``cpu.csv``, in percent of all cores
CPU_COLUMNS = {"cpu_percent": "CPU", "process_percent": "CPU, training process"}
_PHASE_BIN_S = 0.1
_SHORTEST_S = 2.0
_MOST_WINDOWS = 3


@dataclass(frozen=True)
class UtilisationWindow:
    run: str  # its name
    start_s: float  # seconds from the run's beginning to the window's
    length_s: float  # of the window
    devices: dict[str, tuple[np.ndarray, np.ndarray]]  # seconds into the window, percent
    edges_s: np.ndarray  # of the bins of ``phases``, seconds into the window; one more than bins
    phases: dict[str, np.ndarray]  # share of each bin by interval; together 1


def utilisation_windows(report: Report) -> list[UtilisationWindow]:
    windows: list[UtilisationWindow] = []
    for own in group_members(report.runs).values():
        for run in (report.runs[index] for index in own):
            sampled = [f"{device}.csv" for device in ("cpu", "gpu")]
            if not any((Path(run.path) / name).is_file() for name in sampled):
                continue
            try:
                window = steady_window(load_run(run.path, run.name))
            except UsageError:
                # It went away since the report's tables were made.
                continue
            if window is not None:
                windows.append(window)
                break
        if len(windows) == _MOST_WINDOWS:
            break
    return windows


def steady_window(run: Run, length_s: float = WINDOW_S) -> UtilisationWindow | None:
    """Returns the first window after warm-up, with an evaluation in it if there is one. It begins
    at the end of a step and lies within one session; None without samples of steps after warm-up.
    """
    for session in run.timeline.sessions:
        found = _bounds(run, session, round(length_s * 1e6))
        if found is None:
            continue
        start_us, stop_us = found
        devices = _devices(run, session, start_us, stop_us)
        if devices:
            edges_s, phases = _phases(run, start_us, stop_us)
            length = (stop_us - start_us) / 1e6
            return UtilisationWindow(run.name, start_us / 1e6, length, devices, edges_s, phases)
    return None


def _bounds(run: Run, session: range, length_us: int) -> tuple[int, int] | None:
    clock = run.timeline.clock_us
    ends = [clock[i] for i in session if run.timeline.keys[i] == "train_step"][WARMUP_STEPS - 1 :]
    last = clock[session.stop - 1]
    if not ends or last - ends[0] < _SHORTEST_S * 1e6:
        return None
    start = ends[0]
    evaluation = _first_evaluation(run, session, start)
    if evaluation is not None:
        began, stopped = evaluation
        before = max(length_us // 4, (length_us - (stopped - began)) // 2)
        # Steps on both sides of the evaluation, and no seconds after the run's end.
        wanted = min(began - before, last - length_us)
        start = max([start, *(end for end in ends if end <= wanted)])
    return start, min(start + length_us, last)


def _first_evaluation(run: Run, session: range, after: int) -> tuple[int, int] | None:
    began = None
    for index in session:
        key, now = run.timeline.keys[index], run.timeline.clock_us[index]
        if key == "eval_start" and now >= after:
            began = now
        elif key == "eval_stop" and began is not None:
            return began, now
    return None


def _devices(
    run: Run, session: range, start_us: int, stop_us: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    found = {}
    cpu = run.utilisation("cpu")
    cpu = cpu if "time_ms" in cpu else {}
    for column, name in CPU_COLUMNS.items():
        if column in cpu:
            found[name] = (cpu["time_ms"], cpu[column])
    gpu = run.utilisation("gpu")
    if {"time_ms", "gpu", "utilisation_percent"} <= gpu.keys():
        for number in np.unique(gpu["gpu"][np.isfinite(gpu["gpu"])]):
            own = gpu["gpu"] == number
            found[f"GPU {number:g}"] = (gpu["time_ms"][own], gpu["utilisation_percent"][own])
    # Samples have the wall clock, which the session's events lead to the run's.
    walls = np.maximum.accumulate([run.events[i]["time_ms"] for i in session]).astype(float)
    clock = np.array([run.timeline.clock_us[i] for i in session], dtype=float)
    devices = {}
    for name, (time_ms, percent) in found.items():
        inside = (time_ms >= walls[0]) & (time_ms <= walls[-1]) & np.isfinite(percent)
        seconds = (np.interp(time_ms[inside], walls, clock) - start_us) / 1e6
        shown = (seconds >= 0) & (seconds <= (stop_us - start_us) / 1e6)
        if shown.sum() > 1:
            devices[name] = (seconds[shown], percent[inside][shown])
    return devices


def _phases(run: Run, start_us: int, stop_us: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    bins = max(1, round((stop_us - start_us) / 1e6 / _PHASE_BIN_S))
    edges = np.linspace(start_us, stop_us, bins + 1)
    shares = {}
    for name in INTERVALS:
        pieces = [
            (a, b)
            for own, a, b in run.timeline.pieces
            if own == name and b > start_us and a < stop_us
        ]
        if pieces:
            # Time spent in the phase up to each edge grows within pieces and rests between.
            times = np.array(pieces, dtype=float).ravel()
            spent = np.repeat(np.cumsum([b - a for a, b in pieces]), 2).astype(float)
            spent[::2] -= [b - a for a, b in pieces]
            shares[name] = np.diff(np.interp(edges, times, spent)) / np.diff(edges)
    return (edges - start_us) / 1e6, shares


MOST_BARS = 40


def interval_chart(report: Report, results: Results) -> Chart:
    runs = report.runs[:MOST_BARS]
    rows = np.arange(len(runs))
    left = np.zeros(len(runs))
    marks: list[Mark] = []
    for name in INTERVALS:
        minutes = np.array([run.intervals_s[name] for run in runs]) / 60
        if not minutes.any():
            continue
        label = INTERVAL_LABELS[name].replace("\n", " ")
        marks.append(
            Rects(
                x0=left, x1=left + minutes, y0=rows - 0.33, y1=rows + 0.33,
                colour=INTERVAL_COLOURS[name], series=label,
                texts=[
                    f"{run.name}\n{label}: {own:.3g} min"
                    for run, own in zip(runs, minutes, strict=True)
                ],
            )
        )  # fmt: skip
        left = left + minutes
    if not marks:
        raise NotDrawnError("Where the time went: no run has lasted any time.")
    more = f", of the first {MOST_BARS} runs" if len(report.runs) > MOST_BARS else ""
    x = Axis("minutes", limits=(0.0, 1.03 * float(left.max()) or 1.0))
    names = rows_axis([shortened(run.name, 20) for run in runs])
    panel = Panel(marks, x, names, 30.0 + 30 * len(runs))
    return Chart("intervals", f"Where the time of the whole run went{more}", [panel])


_MOST_RUNS = 6
_RATES = {
    "utterances_per_s": ("utterances/s", "Utterances"),
    "audio_s_per_s": ("audio s/s", "Seconds of audio"),
}
_GAP_SHARE = 0.02
_GAP_STEPS = 5


def throughput_charts(report: Report, results: Results) -> list[Chart]:
    """Returns the throughput of training steps, and that over the wall clock.

    Source: the paper (arXiv 2003.12366), equation 4 and Figure 9.
    """
    rate = _stated(report)
    if rate is None:
        raise NotDrawnError(
            "Throughput over time: not every log states the utterances or the audio of its steps."
        )
    label, what = _RATES[rate]

    def curve(run: RunAnalysis, axis: str) -> Curve | None:
        found = None if run.series is None else run.series.throughput[rate]
        if found is None or axis not in found.x:
            return None
        return _broken(found.x[axis], found.y)

    bands = bands_by_axis(report, curve)
    caption = (
        f"{what} trained on per second of training steps, waiting and compilation included, "
        "over the last 2 % of the steps"
    )
    rugs = _runs(report)
    if rugs:
        caption += "; beneath: when evaluations ran"
    medians = [float(np.nanmedian(band.middle)) for band in bands["minutes"]]
    log = ratio(medians) > 4
    low, high = value_limits(bands)
    y = Axis(f"throughput, {label}", log=log, limits=(low if log else 0.0, high))
    views = {}
    for axis, own in bands.items():
        x = time_axis(report, bands, axis)
        views[axis] = [Panel(band_marks(own), x, y)]
        marks = [mark for row, rug in enumerate(rugs) for mark in _rug(row, rug, axis)]
        if marks:
            views[axis] = _above(views[axis][0], marks, len(rugs))
    steady = chart_of_views("throughput", with_spread(caption, bands), views)
    return [steady, *_over_the_wall_clock(report)]


def _stated(report: Report) -> str | None:
    series = [run.series for run in report.runs if run.series is not None]
    stated = [
        rate for rate in _RATES if series and all(rate in of_run.throughput for of_run in series)
    ]
    return stated[0] if stated else None


def _above(panel: Panel, marks: list[Mark], rows: int) -> list[Panel]:
    top = Axis("", log=panel.x.log, limits=panel.x.limits, choose=True, tick_labels=[], ticks=[])
    beneath = Axis("evaluations", limits=(rows, 0.0), ticks=[], grid=False)
    return [
        Panel(panel.marks, top, panel.y, panel.height - 20),
        Panel(marks, panel.x, beneath, 16.0 * max(rows, 4)),
    ]


def _broken(x: np.ndarray, y: np.ndarray) -> Curve:
    # With a gap where nothing was trained for longer than an eye overlooks.
    if x.size < 3:
        return x, y
    pauses = np.diff(x)
    least = max(_GAP_SHARE * (x[-1] - x[0]), _GAP_STEPS * float(np.median(pauses)))
    after = np.flatnonzero(pauses > least)
    between = (x[after] + x[after + 1]) / 2
    return np.insert(x, after + 1, between), np.insert(y, after + 1, np.nan)


def _runs(report: Report) -> list[tuple[str, int, RunAnalysis, RunSeries]]:
    found = []
    for number, (group, own) in enumerate(group_members(report.runs).items()):
        run = report.runs[own[0]]
        if run.series is not None and run.series.evaluations:
            found.append((series_name(group, len(own), number), number, run, run.series))
    return found[:_MOST_RUNS]


def _rug(row: int, rug: tuple[str, int, RunAnalysis, RunSeries], axis: str) -> list[Mark]:
    name, number, run, series = rug
    own = series.evaluations
    texts = [
        f"{run.name}\nevaluation of epoch {evaluation.epoch}: "
        f"{60 * (evaluation.stop_min - evaluation.start_min):.3g} s"
        for evaluation in own
    ]
    about = {"series": name, "colour": run_colour(number), "texts": texts}
    if axis == "minutes":
        return [
            Rects(
                x0=[evaluation.start_min for evaluation in own],
                x1=[evaluation.stop_min for evaluation in own],
                y0=[row + 0.15] * len(own),
                y1=[row + 0.85] * len(own),
                # Keeps an evaluation of seconds visible in a run of hours.
                outline=1,
                **about,
            )
        ]
    at = [places(run, evaluation.epoch, 60 * evaluation.stop_min) for evaluation in own]
    if any(axis not in position for position in at):
        return []
    return [
        Points(
            x=[position[axis] for position in at],
            y=[row + 0.5] * len(at),
            symbol="tick",
            size=9,
            **about,
        )
    ]


def _over_the_wall_clock(report: Report) -> list[Chart]:
    marks: list[Mark] = []
    ends, highest = [1e-9], 0.0
    shown = [rug for rug in _runs(report) if rug[3].wall_throughput is not None]
    for name, number, _, series in shown:
        found = series.wall_throughput
        x, y = found.x["minutes"], found.y
        look = {"colour": run_colour(number), "dash": run_dash(number), "width": 1.2}
        marks.append(Line(x=x, y=y, series=name, **look))
        ends.append(float(x[-1]))
        highest = max(highest, float(y.max()))
    if not marks:
        return []
    caption = (
        "Utterances trained on per second of the wall clock, evaluations and all else included, "
        "so that what stops training is seen as a dip; of each group's first run"
    )
    log = ratio(ends[1:]) > 8
    x = Axis(
        "minutes since the creation of the model",
        limits=(min(ends[1:]) / 50 if log else 0.0, max(ends) * 1.03),
        log=log,
        choose=True,
    )
    y = Axis("throughput, utterances/s", limits=(0.0, 1.08 * highest or 1.0))
    return [Chart("throughput_wall", caption, [Panel(marks, x, y, 220)], wide=True, width=760)]


_SEEN = 0.005


def utilisation_chart(report: Report, results: Results) -> Chart:
    """Returns for each window the processors' utilisation above the phases of the run.

    Source: the paper (arXiv 2003.12366), Figure 8: 25 s, the CPU and a line for each GPU.
    """
    windows = utilisation_windows(report)
    if not windows:
        raise NotDrawnError(
            "Utilisation: no run has a cpu.csv or gpu.csv with samples of steps after warm-up."
        )
    caption = (
        f"Processors in {windows[0].length_s:.3g} s after warm-up, as sampled, and below what the "
        "run was doing"
    )
    panels: list[Panel] = []
    for window in windows:
        panels += _panels(window)
    panels[-1] = _labelled(panels[-1])
    return Chart("utilisation", caption, panels, wide=True, width=760)


def _panels(window: UtilisationWindow) -> list[Panel]:
    bare = Axis("", limits=(0.0, window.length_s), ticks=[])
    title = f"{shortened(window.run, 40)}, from {moment(window.start_s)}"
    panels = []
    for kind in ("CPU", "GPU"):
        own = {name: line for name, line in window.devices.items() if name.startswith(kind)}
        if own:
            marks = [_device(window, name, number) for number, name in enumerate(own)]
            busy = Axis(f"{kind}, %", limits=(0.0, 104.0), ticks=[0, 50, 100])
            panels.append(Panel(marks, bare, busy, 95, title))
            title = ""
    doing = Axis("doing", limits=(0.0, 1.0), ticks=[], grid=False)
    seconds = Axis("", limits=(0.0, window.length_s))
    return [*panels, Panel(_phase_rects(window), seconds, doing, 22)]


def _labelled(panel: Panel) -> Panel:
    x = Axis("seconds into the window", limits=panel.x.limits)
    return Panel(panel.marks, x, panel.y, panel.height)


def _device(window: UtilisationWindow, name: str, number: int) -> Mark:
    seconds, percent = window.devices[name]
    colour = device_colour(number) if name.startswith("GPU") else INK
    # The training process is part of what the machine does.
    dash = "dotted" if name == CPU_COLUMNS["process_percent"] else "solid"
    return Line(x=seconds, y=percent, colour=colour, dash=dash, width=1.2, series=name)


def _phase_rects(window: UtilisationWindow) -> list[Mark]:
    marks: list[Mark] = []
    reached = np.zeros(window.edges_s.size - 1)
    for name, share in window.phases.items():
        label = INTERVAL_LABELS[name].replace("\n", " ")
        low, high = reached, reached + share
        reached = high
        same = (np.abs(np.diff(low)) < _SEEN) & (np.abs(np.diff(high)) < _SEEN)
        first = np.flatnonzero(np.concatenate([[True], ~same]))
        last = np.append(first[1:], share.size)
        seen = share[first] > _SEEN
        first, last = first[seen], last[seen]
        if first.size:
            marks.append(
                Rects(
                    x0=window.edges_s[first], x1=window.edges_s[last],
                    y0=low[first], y1=high[first],
                    colour=INTERVAL_COLOURS[name], series=label,
                    texts=[
                        f"{label}: {share[one]:.0%} from {window.edges_s[one]:.3g} s"
                        for one in first
                    ],
                )
            )  # fmt: skip
    return marks


def moment(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"minute {seconds / 60:.1f}"
