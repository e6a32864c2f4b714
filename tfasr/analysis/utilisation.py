"""A window of some seconds within a run: use of the processors, and what the run was doing."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfasr.analysis.groups import group_members
from tfasr.analysis.report import Report
from tfasr.errors import UsageError
from tfasr.tta.intervals import INTERVALS
from tfasr.tta.load import load_run
from tfasr.tta.run import Run
from tfasr.tta.throughput import WARMUP_STEPS

WINDOW_S = 25.0
"""The paper's, Figure 8."""

CPU_COLUMNS = {"cpu_percent": "CPU", "process_percent": "CPU, training process"}
"""Columns of ``cpu.csv``, both in percent of all cores, and what they are called."""

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
    """Returns windows of the first runs that were sampled, of no two runs of one group."""
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
    """Returns the first window after warm-up, with an evaluation in it where there is one.

    It begins at the end of a step and lies within one session; it is shorter than ``length_s``
    where the run is. None where there are no steps after warm-up, or no samples of them.
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
