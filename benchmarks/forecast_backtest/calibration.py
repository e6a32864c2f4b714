"""The forecast's quantile regressions, fitted to runs that are known to their ends."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forecast_backtest.curves import WINDOWS, Curve, Cut, cuts_of
from tfasr.tta.forecast import evaluations_left, pace_s, rule_of

QUANTILES = {"not_before": 0.05, "low": 0.10, "middle": 0.50, "high": 0.90}
COVERAGE = 0.80
_ROUNDS = 80
_MOST_WRONG = 0.04


def weights_of(cuts: Sequence[Cut]) -> np.ndarray:
    """Returns weights by which sources count alike, and within them groups by their roots."""
    keys = [(cut.curve.source, cut.curve.group, cut.curve.window) for cut in cuts]
    numbers = {key: keys.count(key) for key in set(keys)}
    weights = np.array([numbers[key] ** -0.5 for key in keys])
    sources = np.array([key[0] for key in keys])
    for source in set(sources):
        weights[sources == source] /= weights[sources == source].sum()
    return weights


def regression(x: np.ndarray, y: np.ndarray, weights: np.ndarray, quantile: float) -> np.ndarray:
    """Returns coefficients of a quantile regression, by reweighted least squares."""
    own = weights
    for _ in range(_ROUNDS):
        root = np.sqrt(own)
        found = np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0]
        rest = y - x @ found
        own = weights * np.where(rest > 0, quantile, 1 - quantile) / np.maximum(abs(rest), 1e-3)
    return found


def calibrated(cuts: Sequence[Cut]) -> dict[str, dict[str, np.ndarray]]:
    """Returns the coefficients by rule, ends moved about the median until 80 % are covered.

    Source: Romano, Patterson, Candes 2019, Conformalized Quantile Regression; the ends are moved by
    a common factor rather than by a common term.
    """
    return {
        rule_of(window): _calibrated([cut for cut in cuts if cut.curve.window == window])
        for window in WINDOWS
        if any(cut.curve.window == window for cut in cuts)
    }


def _calibrated(cuts: Sequence[Cut]) -> dict[str, np.ndarray]:
    known = [cut for cut in cuts if cut.features is not None and cut.curve.hit is not None]
    x = np.array([cut.features for cut in known])
    y = np.log([(cut.curve.hit - cut.count) / cut.count for cut in known])
    weights = weights_of(known)
    raw = {name: regression(x, y, weights, own) for name, own in QUANTILES.items()}
    factors = np.arange(0.5, 1.6, 0.02)
    off = [abs(_covered(known, weights, raw, factor) - COVERAGE) for factor in factors]
    return _moved(raw, float(factors[int(np.argmin(off))]))


def surely_calibrated(
    coefficients: dict[str, dict[str, np.ndarray]], curves: Sequence[Curve]
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the coefficients with a lower end that hardly gives up a run wrongly.

    A run is looked at many times, so that 5 % at each look would be more by its end. The end is
    moved until, of each source, at most 4 % of the runs are given up at any look that arrive just
    within their budget.
    """
    own = [(c, list(cuts_of(c))) for c in curves if c.hit]
    return {
        rule: _surely(of_rule, [(c, cuts) for c, cuts in own if rule_of(c.window) == rule])
        for rule, of_rule in coefficients.items()
    }


def _surely(
    coefficients: dict[str, np.ndarray], own: Sequence[tuple[Curve, list[Cut]]]
) -> dict[str, np.ndarray]:
    middle, raw = coefficients["middle"], coefficients["not_before"]
    for factor in np.arange(1.0, 4.0, 0.2):
        moved = {**coefficients, "not_before": middle + factor * (raw - middle)}
        wrong = {
            source: [
                given_up_at(cuts, c.points[c.hit - 1].elapsed_s, moved) is not None
                for c, cuts in own
                if c.source == source
            ]
            for source in {c.source for c, _ in own}
        }
        if all(np.mean(stopped) <= _MOST_WRONG for stopped in wrong.values()):
            break
    return moved


def _moved(raw: dict[str, np.ndarray], factor: float) -> dict[str, np.ndarray]:
    middle = raw["middle"]
    ends = {name: middle + factor * (raw[name] - middle) for name in ("low", "high")}
    return {"not_before": raw["not_before"], **ends, "middle": middle}


def _covered(cuts, weights, raw, factor) -> float:
    moved = _moved(raw, factor)
    held = [inside(cut, evaluations_left(cut.features, cut.count, moved)) for cut in cuts]
    return float(np.average(held, weights=weights))


def inside(cut: Cut, left: dict[str, float]) -> bool:
    """Whether what came lies within the interval that was said."""
    return left["low"] <= cut.curve.hit - cut.count <= left["high"]


def given_up_at(
    cuts: Sequence[Cut], budget_s: float, coefficients: dict[str, np.ndarray]
) -> float | None:
    """Returns when a run would be given up: two evaluations in a row say that it is too late."""
    before = False
    for cut in cuts:
        points = cut.curve.points
        now = points[cut.count - 1].elapsed_s
        if now >= budget_s:
            return None
        late = False
        if cut.features is not None:
            left = evaluations_left(cut.features, cut.count, coefficients)
            late = now + pace_s(points[: cut.count]) * left["not_before"] > budget_s
        if late and before:
            return now
        before = late
    return None


def write_coefficients(path: Path, found: dict[str, dict[str, Sequence[float]]]) -> None:
    """Writes the module that tfasr reads."""
    rows = ""
    for rule, coefficients in found.items():
        rows += f'    "{rule}": {{\n'
        for name, own in coefficients.items():
            rows += f'        "{name}": ({", ".join(map(str, own))}),\n'
        rows += "    },\n"
    path.write_text(
        '"""Coefficients of the forecast\'s quantile regressions, fitted to published runs.\n\n'
        "By the rule, one evaluation or a median of several. Each row is of the logarithm of the\n"
        "evaluations left over those so far, on the features of `tfasr.tta.forecast.course`: the\n"
        "quantiles of 10, 50 and 90 %, and one for runs that are given up. Written by\n"
        '``benchmarks/forecast.py --coefficients``.\n"""\n\n'
        f"COEFFICIENTS = {{\n{rows}}}\n",
        encoding="utf-8",
    )
