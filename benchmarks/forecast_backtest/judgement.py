"""What the forecasts of one half of the runs said, beside what came."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from forecast_backtest.calibration import calibrated, given_up_at, inside, surely_calibrated
from forecast_backtest.curves import TIMES_TARGET, Curve, Cut, cuts_of
from tfasr.tta.forecast import evaluations_left, rule_of

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
COUNTS = ((4, 5), (6, 9), (10, 14), (15, 19), (20, 29), (30, 99))
BUDGETS = (1.0, 1.2, 2.0)
_NEAR = 0.05


def naive_linear(cut: Cut) -> float:
    """Returns the evaluations left if the curve falls on as over the last two evaluations."""
    values = [point.value for point in cut.curve.points[: cut.count]][-3:]
    fall = (values[0] - values[-1]) / (len(values) - 1) if len(values) > 1 else 0.0
    return max(1.0, (values[-1] - cut.curve.target) / fall) if fall > 0 else math.inf


def naive_log_linear(cut: Cut) -> float:
    """Returns the same on a logarithmic scale, by a line through the last five evaluations."""
    values = np.array([point.value for point in cut.curve.points[: cut.count]])[-5:]
    if values.size < 2 or not (values > 0).all() or not np.isfinite(values).all():
        return math.inf
    slope = np.polyfit(np.arange(values.size), np.log(values), 1)[0]
    return max(1.0, math.log(cut.curve.target / values[-1]) / slope) if slope < 0 else math.inf


def judged(cut: Cut, coefficients: dict[str, dict[str, np.ndarray]]) -> dict[str, Any]:
    """Returns what was said of a cut and what came, in evaluations."""
    curve = cut.curve
    row: dict[str, Any] = {
        "source": curve.source, "group": curve.group, "window": curve.window,
        "times": curve.times, "share": cut.share, "count": cut.count,
        "known": cut.features is not None, "reason": cut.reason, "arrived": curve.hit is not None,
    }  # fmt: skip
    hit = curve.hit or math.inf
    for name, naive in (("linear", naive_linear), ("log_linear", naive_log_linear)):
        row[f"{name}_error"] = abs(cut.count + naive(cut) - hit) / hit if curve.hit else None
    if cut.features is None:
        return row
    own = coefficients[rule_of(curve.window)]
    left = evaluations_left(cut.features, cut.count, own)
    row["width"] = (cut.count + left["high"]) / (cut.count + left["low"])
    row["ratio_left"] = left["high"] / left["low"]
    if curve.hit:
        row["error"] = abs(cut.count + left["middle"] - hit) / hit
        row["covered"] = inside(cut, left)
        row["too_late"] = hit < cut.count + left["low"]
        row["sooner_than_surely"] = hit < cut.count + left["not_before"]
    else:
        row["promised_too_soon"] = cut.count + left["high"] < len(curve.points)
    return row


def coverage_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns by source and window how often the intervals held."""
    found = []
    for source, window in sorted({(row["source"], row["window"]) for row in rows}):
        own = [row for row in rows if (row["source"], row["window"]) == (source, window)]
        for times in (None, *TIMES_TARGET):
            of_target = [row for row in own if times is None or row["times"] == times]
            here = [row for row in of_target if row["arrived"]]
            said = [row for row in here if row["known"]]
            never = [row for row in of_target if not row["arrived"]]
            if not said:
                continue
            found.append({
                "source": source, "window": window, "times_target": times,
                "groups": len({row["group"] for row in said}), "forecasts": len(said),
                "answered": _mean([row["known"] for row in here]),
                "covered": _mean([row["covered"] for row in said]),
                "sooner": _mean([row["too_late"] for row in said]),
                "sooner_than_surely": _mean([row["sooner_than_surely"] for row in said]),
                "width": float(np.median([row["width"] for row in said])),
                "never": len(never), "never_answered": _mean([row["known"] for row in never]),
                "never_promised": _mean(
                    [row["promised_too_soon"] for row in never if row["known"]]
                ),
            })  # fmt: skip
    return found


def count_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns by the evaluations so far, which a user knows, how often the intervals held."""
    found = []
    for source, window in sorted({(row["source"], row["window"]) for row in rows}):
        for low, high in COUNTS:
            said = [
                row for row in rows
                if (row["source"], row["window"]) == (source, window)
                and low <= row["count"] <= high and row["arrived"] and row["known"]
            ]  # fmt: skip
            if not said:
                continue
            found.append({
                "source": source, "window": window, "count": f"{low} to {high}",
                "forecasts": len(said), "covered": _mean([row["covered"] for row in said]),
                "sooner": _mean([row["too_late"] for row in said]),
                "error": float(np.median([row["error"] for row in said])),
                "width": float(np.median([row["width"] for row in said])),
            })  # fmt: skip
    return found


def error_rows(rows: Sequence[dict[str, Any]], window: int) -> list[dict[str, Any]]:
    """Returns median errors of the time to the target by the share of the way that was passed."""
    found = []
    for source in sorted({row["source"] for row in rows}):
        for share in SHARES:
            own = [
                row for row in rows
                if row["source"] == source and row["arrived"] and row["window"] == window
                and abs(row["share"] - share) < _NEAR
            ]  # fmt: skip
            said = [row for row in own if row["known"]]
            if not said:
                continue
            found.append({
                "source": source, "share": share, "forecasts": len(said),
                "answered": _mean([row["known"] for row in own]),
                **{name: float(np.median([row[name] for row in said]))
                   for name in ("error", "linear_error", "log_linear_error", "width")},
                "covered": _mean([row["covered"] for row in said]),
            })  # fmt: skip
    return found


def stop_rows(curves: Sequence[Curve], coefficients: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Returns how often a run is given up that would have arrived within its budget, and not."""
    found = []
    own = [(c, list(cuts_of(c)), c.points[c.hit - 1].elapsed_s) for c in curves
           if c.window == 1 and c.hit]  # fmt: skip
    for source in sorted({curve.source for curve, _, _ in own}):
        arrived = [(cuts, took) for c, cuts, took in own if c.source == source]
        for budget in BUDGETS:
            stopped = [given_up_at(cuts, budget * took, coefficients) for cuts, took in arrived]
            wrong = _mean([at is not None for at in stopped])
            found.append({
                "source": source, "budget": budget, "runs": len(arrived), "wrongly": wrong,
            })  # fmt: skip
        # Half the time it took: a run that will miss its budget, and what stopping it saves.
        late = [(given_up_at(cuts, took / 2, coefficients), took / 2) for cuts, took in arrived]
        saved = [1 - at / budget for at, budget in late if at is not None]
        found.append({
            "source": source, "budget": 0.5, "runs": len(late),
            "rightly": _mean([at is not None for at, _ in late]),
            "saved_of_budget": float(np.median(saved)) if saved else None,
        })  # fmt: skip
    return found


def _mean(values: Sequence[bool]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def backtest(curves: Sequence[Curve], seed: int) -> dict[str, Any]:
    """Returns coefficients of one half, and how they did on the other."""
    rng = np.random.default_rng(seed)
    groups = sorted({(curve.source, curve.group) for curve in curves})
    calibrating = set()
    for source in sorted({source for source, _ in groups}):
        own = [group for group in groups if group[0] == source]
        chosen = rng.permutation(len(own))[: len(own) // 2]
        calibrating |= {own[index] for index in chosen} if source != "tfasr" else set()
    halves: tuple[list[Cut], list[Cut]] = ([], [])
    for curve in curves:
        halves[(curve.source, curve.group) not in calibrating].extend(cuts_of(curve))
    chosen_curves = [c for c in curves if (c.source, c.group) in calibrating]
    coefficients = surely_calibrated(calibrated(halves[0]), chosen_curves)
    rows = [judged(cut, coefficients) for cut in halves[1]]
    tested = [c for c in curves if (c.source, c.group) not in calibrating]
    return {
        "coefficients": {
            rule: {name: [round(float(v), 4) for v in values] for name, values in own.items()}
            for rule, own in coefficients.items()
        },
        "calibrated_on": sorted("/".join(group) for group in calibrating),
        "coverage": coverage_rows(rows),
        "by_count": count_rows(rows),
        "errors": error_rows(rows, 1),
        "errors_median_of_3": error_rows(rows, 3),
        "given_up": stop_rows(tested, coefficients["single"]),
        "transported": transported(curves),
    }


def transported(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Returns how one source's coefficients do on another source."""
    found = []
    sources = sorted({curve.source for curve in curves} - {"tfasr"})
    for source in sources:
        cuts = [cut for c in curves if c.source == source for cut in cuts_of(c)]
        coefficients = calibrated(cuts)
        for other in sorted({curve.source for curve in curves} - {source}):
            rows = [
                judged(cut, coefficients)
                for c in curves
                if c.source == other and c.window == 1
                for cut in cuts_of(c)
            ]
            said = [row["covered"] for row in rows if row["known"] and row["arrived"]]
            found.append(
                {
                    "calibrated_on": source,
                    "tested_on": other,
                    "forecasts": len(said),
                    "covered": _mean(said),
                }
            )
    return found
