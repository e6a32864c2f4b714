"""Curves of runs that differ in their seeds, drawn as one: their middle and their spread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tfasr.analysis.groups import group_members
from tfasr.analysis.report import Report, RunAnalysis
from tfasr.analysis.smoothing import thin
from tfasr.display.style import shortened

MOST_GROUPS = 16
"""Groups that have a line of their own; beyond it there is one band of all runs besides."""

FEWEST_FOR_QUANTILES = 20
_GRID_POINTS = 250
EVERYTHING = -1

Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Band:
    name: str  # the group's
    number: int  # of its colour, or `EVERYTHING` for the band of all runs
    runs: int  # how many
    x: np.ndarray  # ascending
    middle: np.ndarray  # the only run's values, or the median of the runs'
    low: np.ndarray | None = None  # the lowest value, or of 20 runs and more the 5 % quantile
    high: np.ndarray | None = None  # likewise

    @property
    def label(self) -> str:
        """The name in a legend, short, with the number of runs where there are several."""
        if self.runs == 1 or self.number == EVERYTHING:
            return shortened(self.name)
        return f"{shortened(self.name)} (n = {self.runs})"


def group_bands(report: Report, curve: Callable[[RunAnalysis], Curve | None]) -> list[Band]:
    """Returns the curve of each group, first those in the report's order."""
    found = []
    members = group_members(report.runs)
    for number, (name, own) in enumerate(members.items()):
        if number == MOST_GROUPS:
            everything = f"all {len(report.runs)} runs"
            found.append((everything, EVERYTHING, list(range(len(report.runs)))))
            break
        found.append((name, number, own))
    bands = []
    for name, number, own in found:
        curves = [one for one in (curve(report.runs[run]) for run in own) if one is not None]
        curves = [(x, y) for x, y in curves if x.size]
        if curves:
            bands.append(band(name, number, curves))
    return bands


def band(name: str, number: int, curves: Sequence[Curve]) -> Band:
    """Returns the middle and the spread of curves, as far as at least half of them go.

    Between its points a curve is a straight line.
    """
    if len(curves) == 1:
        return Band(name, number, 1, *curves[0])
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[thin(grid.size, _GRID_POINTS)]
    values = np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in curves])
    counts = np.isfinite(values).sum(axis=0)
    kept = counts >= len(curves) / 2
    ends = (0.05, 0.95) if len(curves) >= FEWEST_FOR_QUANTILES else (0.0, 1.0)
    ordered = np.sort(values[:, kept], axis=0)
    low, middle, high = (_quantile(ordered, counts[kept], at) for at in (ends[0], 0.5, ends[1]))
    return Band(name, number, len(curves), grid[kept], middle, low, high)


def _quantile(ordered: np.ndarray, counts: np.ndarray, share: float) -> np.ndarray:
    """Returns a quantile of each column's first ``counts`` values, which ascend.

    The same as ``numpy.nanquantile``, which takes the columns one by one.
    """
    place = share * (counts - 1)
    below = np.floor(place).astype(int)
    above = np.ceil(place).astype(int)
    first = np.take_along_axis(ordered, below[None], axis=0)[0]
    second = np.take_along_axis(ordered, above[None], axis=0)[0]
    return first + (second - first) * (place - below)


def spread_text(bands: Sequence[Band]) -> str:
    """Returns the sentence that says what the bands are; "" where there is none."""
    several = [one for one in bands if one.low is not None]
    if not several:
        return ""
    quantiles = any(one.runs >= FEWEST_FOR_QUANTILES for one in several)
    ranges = any(one.runs < FEWEST_FOR_QUANTILES for one in several)
    spread = "5–95 % of the runs" if quantiles else "all runs"
    spread += " (all runs of groups below 20)" if quantiles and ranges else ""
    return f"lines are medians of a group's runs, bands hold {spread}, while half of them go on"
