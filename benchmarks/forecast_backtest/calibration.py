"""The forecast's quantile regressions, fitted to runs that are known to their ends."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forecast_backtest.curves import WINDOWS, Cut
from tfasr.tta.forecast import LONGEST, evaluations_left, pace_s, rule_of

# The first decides whether there is an interval; the others are fitted to the cuts that have one.
QUANTILES = {"latest": 0.95, "low": 0.10, "middle": 0.50, "high": 0.90}
# Of the calibrating half: a system that nobody has seen holds less often than those.
COVERAGE = 0.85
_ROUNDS = 60


def weights_of(cuts: Sequence[Cut]) -> np.ndarray:
    """Returns weights: each tenth of the way of each source counts alike, in it each run."""
    runs = [(c.curve.source, c.tenth, c.curve.group, c.curve.run) for c in cuts]
    _, run_of, looks = np.unique(runs, axis=0, return_inverse=True, return_counts=True)
    weights = 1 / looks[run_of]
    _, cell_of = np.unique([run[:2] for run in runs], axis=0, return_inverse=True)
    return weights / np.bincount(cell_of, weights)[cell_of]


def regression(x: np.ndarray, y: np.ndarray, weights: np.ndarray, quantile: float) -> np.ndarray:
    """Returns coefficients of a quantile regression, by reweighted least squares."""
    own = weights
    for _ in range(_ROUNDS):
        root = np.sqrt(own)
        found = np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]
        rest = y - x @ found
        own = weights * np.where(rest > 0, quantile, 1 - quantile) / np.maximum(abs(rest), 2e-3)
    return found


def calibrated(cuts: Sequence[Cut]) -> dict[str, dict[str, np.ndarray]]:
    """Returns coefficients by rule, ends moved about the median until `COVERAGE` is covered.

    Source: Romano, Patterson, Candes 2019, Conformalized Quantile Regression; the ends are moved by
    a common factor rather than by a common term.
    """
    return {
        rule_of(window): _calibrated([cut for cut in cuts if cut.curve.window == window])
        for window in WINDOWS
        if any(cut.curve.window == window for cut in cuts)
    }


def _calibrated(cuts: Sequence[Cut]) -> dict[str, np.ndarray]:
    known = [cut for cut in cuts if cut.present is not None and cut.curve.hit is not None]
    x, y = _regressed(known)
    latest = regression(x, y, weights_of(known), QUANTILES["latest"])
    known = [cut for cut, ratio in zip(known, x @ latest, strict=True) if ratio < math.log(LONGEST)]
    (x, y), weights = _regressed(known), weights_of(known)
    raw = {name: regression(x, y, weights, QUANTILES[name]) for name in ("low", "middle", "high")}
    factors = np.arange(0.5, 1.6, 0.05)
    off = []
    for factor in factors:
        moved = {"latest": latest, **_moved(raw, factor)}
        held = [inside(cut, evaluations_left(cut.present, cut.count, moved)) for cut in known]
        off.append(abs(np.average(held, weights=weights) - COVERAGE))
    return {"latest": latest, **_moved(raw, float(factors[int(np.argmin(off))]))}


def _regressed(cuts: Sequence[Cut]) -> tuple[np.ndarray, np.ndarray]:
    x = np.array([cut.present.features for cut in cuts])
    return x, np.log([(cut.curve.hit - cut.count) / cut.count for cut in cuts])


def _moved(raw: dict[str, np.ndarray], factor: float) -> dict[str, np.ndarray]:
    return {name: raw["middle"] + factor * (own - raw["middle"]) for name, own in raw.items()}


def inside(cut: Cut, left: dict[str, float]) -> bool:
    """Whether the target was met within the interval."""
    return left["low"] <= cut.curve.hit - cut.count <= left["high"]


def given_up_at(cuts: Sequence[Cut], budget_s: float) -> float | None:
    """Returns when a run would be given up: two evaluations in a row say that it is too late."""
    before = False
    for cut in cuts:
        points = cut.curve.points
        now = points[cut.count - 1].elapsed_s
        if now >= budget_s:
            return None
        pace = pace_s(points[: cut.count]) if cut.present else math.nan
        late = pace > 0 and now + pace * cut.present.surely > budget_s
        if late and before:
            return now
        before = late
    return None


def write_coefficients(path: Path, found: dict[str, dict[str, Sequence[float]]]) -> None:
    """Writes the constant of `tfasr.tta.forecast`."""
    rows = ""
    for rule, coefficients in found.items():
        rows += f'    "{rule}": {{\n'
        for name, own in coefficients.items():
            rows += f'        "{name}": ({", ".join(map(str, own))}),\n'
        rows += "    },\n"
    path.write_text(f"COEFFICIENTS = {{\n{rows}}}\n", encoding="utf-8")
