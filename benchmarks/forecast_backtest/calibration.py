"""The forecast's quantile regressions, fitted to runs that are known to their ends."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forecast_backtest.curves import WINDOWS, Cut
from tfasr.tta.forecast import LONGEST, ends_grid, pace_s, rule_of

LATEST = 0.95
MIDDLE = 0.50
# With one evaluation left no estimate is too low: all 20 % that miss lie above.
ENDS = {"low": 0.10, "high": 0.90, "next": 0.80}
_ROUNDS = 60


def weights_of(cuts: Sequence[Cut]) -> np.ndarray:
    """Returns weights: each tenth of the way of each source counts alike, in it each run."""
    cells = [(c.curve.source, c.tenth) for c in cuts]
    runs = [
        (*cell, c.curve.group, c.curve.run) for cell, c in zip(cells, cuts, strict=True)
    ]
    looks = Counter(runs)
    voters = Counter(run[:2] for run in set(runs))

    return np.array([1 / looks[run] / voters[run[:2]] for run in runs])


def regression(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, quantile: float
) -> np.ndarray:
    """Returns coefficients of a quantile regression, by reweighted least squares."""
    own = weights
    for _ in range(_ROUNDS):
        root = np.sqrt(own)
        result = np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]
        rest = y - x @ result
        own = (
            weights
            * np.where(rest > 0, quantile, 1 - quantile)
            / np.maximum(abs(rest), 2e-3)
        )

    return result


def calibrated(cuts: Sequence[Cut]) -> dict[str, dict[str, np.ndarray]]:
    """Returns coefficients by rule: see `tfasr.tta.forecast.evaluations_left`."""
    return {
        rule_of(window): _calibrated(
            [cut for cut in cuts if cut.curve.window == window]
        )
        for window in WINDOWS
        if any(cut.curve.window == window for cut in cuts)
    }


def _calibrated(cuts: Sequence[Cut]) -> dict[str, np.ndarray]:
    known = [
        cut for cut in cuts if cut.present is not None and cut.curve.hit is not None
    ]
    x, y = _regressed(known)
    latest = regression(x, y, weights_of(known), LATEST)
    known = [
        cut
        for cut, ratio in zip(known, x @ latest, strict=True)
        if ratio < math.log(LONGEST)
    ]
    (x, y), weights = _regressed(known), weights_of(known)
    middle = regression(x, y, weights, MIDDLE)
    grid = ends_grid(np.array([cut.present.traits for cut in known]), y)
    result = {"latest": latest, "middle": middle}

    for name, quantile in ENDS.items():
        fitted = [name != "next" or cut.curve.hit - cut.count == 1 for cut in known]
        own = weights_of(
            [cut for cut, is_fitted in zip(known, fitted, strict=True) if is_fitted]
        )
        result[name] = regression(grid[fitted], (x @ middle)[fitted], own, quantile)

    return result


def _regressed(cuts: Sequence[Cut]) -> tuple[np.ndarray, np.ndarray]:
    x = np.array([cut.present.features for cut in cuts])
    return x, np.log([(cut.curve.hit - cut.count) / cut.count for cut in cuts])


def inside(cut: Cut, left: dict[str, float]) -> bool:
    """Whether the target was met within the interval."""
    return left["low"] <= cut.curve.hit - cut.count <= left["high"]


def given_up_at(cuts: Sequence[Cut], budget_s: float) -> float | None:
    """Returns when a run would be given up: two evaluations in a row say that it is too
    late.
    """
    before = False
    for cut in cuts:
        points = cut.curve.points
        now = points[cut.count - 1].elapsed_s
        if now >= budget_s:
            return None

        late = False
        if cut.present:
            pace = pace_s(points[: cut.count])
            late = pace > 0 and now + pace * cut.present.surely > budget_s

        if late and before:
            return now

        before = late

    return None


def write_coefficients(
    path: Path, found: dict[str, dict[str, Sequence[float]]]
) -> None:
    """Writes the constant of `tfasr.tta.forecast`."""
    rows = ""
    for rule, coefficients in found.items():
        rows += f'    "{rule}": {{\n'
        for name, own in coefficients.items():
            rows += f'        "{name}": ({", ".join(map(str, own))}),\n'

        rows += "    },\n"

    path.write_text(f"COEFFICIENTS = {{\n{rows}}}\n", encoding="utf-8")
