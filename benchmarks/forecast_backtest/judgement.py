"""What the forecasts of one half of the systems said, compared with what came."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from forecast_backtest.calibration import calibrated, given_up_at, inside
from forecast_backtest.curves import WINDOWS, Curve, Cut, cuts_of
from tfasr.tta.forecast import evaluations_left, rule_of

BUDGETS = (1.0, 1.2, 1.5, 2.0)
# These don't calibrate.
TESTED_ONLY = (
    "tfasr",
    "two falls",
    "step decay",
    "restarts",
    "longer restarts",
    "two plateaus",
    "divergence",
)
# The share of looks with an interval below which coverage isn't judged.
FEWEST_SPOKEN = 0.05
BAND = (0.73, 0.87)
_RESAMPLES = 400

Cuts = list[tuple[Curve, list[Cut]]]
"""Each run and target, with what was known of it after each evaluation."""


class Votes:
    """Looks with a value each; every run has one vote, however many looks and targets
    it has.
    """

    def __init__(self, looks: Sequence[tuple[Curve, float]]):
        runs: dict[tuple[str, str], list[float]] = {}
        for curve, value in looks:
            runs.setdefault((curve.group, curve.run), []).append(float(value))

        self.by_group: dict[str, list[float]] = {}

        for (group, _), values in runs.items():
            self.by_group.setdefault(group, []).append(float(np.mean(values)))

        self.runs = len(runs)

    @property
    def mean(self) -> float | None:
        return _mean([vote for votes in self.by_group.values() for vote in votes])

    def error(self, rng: np.random.Generator) -> float | None:
        """Returns the standard error of the mean, by a bootstrap over systems, then runs."""
        groups = list(self.by_group.values())
        if self.runs < 2:
            return None

        means = []

        for _ in range(_RESAMPLES):
            chosen = [groups[i] for i in rng.integers(len(groups), size=len(groups))]
            drawn = [
                votes[i]
                for votes in chosen
                for i in rng.integers(len(votes), size=len(votes))
            ]
            means.append(np.mean(drawn))

        return float(np.std(means))


def looked(curves: Sequence[Curve]) -> Cuts:
    return [(curve, list(cuts_of(curve))) for curve in curves]


def judged(
    own: Cuts, coefficients: dict[str, dict[str, np.ndarray]]
) -> list[dict[str, Any]]:
    """Returns what was said at each look at a run that met its target, and what came."""
    rows = []
    for curve, cuts in own:
        if not curve.hit:
            continue

        for cut in cuts:
            left = None
            if cut.present is not None:
                left = evaluations_left(
                    cut.present, cut.count, coefficients[rule_of(curve.window)]
                )

            row: dict[str, Any] = {"curve": curve, "tenth": cut.tenth, "left": left}
            if left:
                row["held"] = inside(cut, left)
                row["sooner"] = curve.hit - cut.count < left["low"]
                row["width"] = (cut.count + left["high"]) / (cut.count + left["low"])
                row["error"] = abs(cut.count + left["middle"] - curve.hit) / curve.hit
                row["naive"] = abs(cut.count + log_linear(cut) - curve.hit) / curve.hit

            rows.append(row)

    return rows


def log_linear(cut: Cut) -> float:
    """Returns the evaluations left by a line through the logarithms of the last five."""
    values = np.array([point.value for point in cut.curve.points[: cut.count]])[-5:]
    if not (values > 0).all() or not np.isfinite(values).all():
        return math.inf

    slope = np.polyfit(np.arange(values.size), np.log(values), 1)[0]

    if slope < 0:
        return max(1.0, math.log(cut.curve.target / values[-1]) / slope)

    return math.inf


def summary(rows: Sequence[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    """Returns how often looks had an interval, and how often it held."""
    spoken = [row for row in rows if row["left"]]
    held = Votes([(row["curve"], row["held"]) for row in spoken])
    return {
        "runs": held.runs,
        "spoke": Votes([(row["curve"], row["left"] is not None) for row in rows]).mean,
        "held": held.mean,
        "held_error": held.error(rng),
        "sooner": Votes([(row["curve"], row["sooner"]) for row in spoken]).mean,
        "width": _median([row["width"] for row in spoken]),
        "error": _median([row["error"] for row in spoken]),
        "naive_error": _median([row["naive"] for row in spoken]),
    }


def _by_source(
    rows: Sequence[dict[str, Any]],
    make: Callable[[list[dict[str, Any]]], dict[str, Any]],
) -> list[dict[str, Any]]:
    return [
        {"source": source, "window": window, **made}
        for window in WINDOWS
        for source in dict.fromkeys(row["curve"].source for row in rows)
        if (own := [r for r in rows
                    if (r["curve"].source, r["curve"].window) == (source, window)])
        and (made := make(own))
    ]  # fmt: skip


def by_tenth(own: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    tenths = [
        summary([row for row in own if row["tenth"] == tenth], rng)
        for tenth in range(10)
    ]
    return {"all": summary(own, rng), "tenths": tenths}


def by_system(own: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    """Returns how coverage is spread over systems, and how many are surely outside of
    the band.
    """
    systems: dict[str, list[dict[str, Any]]] = {}
    for row in own:
        systems.setdefault(row["curve"].group, []).append(row)

    each = [summary(rows, rng) for rows in systems.values()]
    each = [
        system
        for system in each
        if system["runs"] > 1 and system["spoke"] >= FEWEST_SPOKEN
    ]

    if not each:
        return {}

    held = [system["held"] for system in each]
    errors = [system["held_error"] for system in each]
    low, high = BAND

    return {
        "systems": len(each),
        **{name: float(np.quantile(held, q))
           for name, q in (("lowest", 0), ("tenth", 0.1), ("middle", 0.5), ("highest", 1))},
        "below": _mean([h + 2 * e < low for h, e in zip(held, errors, strict=True)]),
        "above": _mean([h - 2 * e > high for h, e in zip(held, errors, strict=True)]),
    }  # fmt: skip


def given_up(tested: Cuts, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Returns how many runs are given up that would have met their target within the budget.

    A run is looked at until its end. Half of the time it takes is a budget that it
    misses.
    """
    rows = []
    for window in WINDOWS:
        of_window = [(c, cuts) for c, cuts in tested if c.window == window and c.hit]
        for source in dict.fromkeys(curve.source for curve, _ in of_window):
            own = [(c, cuts) for c, cuts in of_window if c.source == source]
            row: dict[str, Any] = {"source": source, "window": window}
            for budget in (*BUDGETS, 0.5):
                at = [
                    (c, given_up_at(cuts, budget * c.points[c.hit - 1].elapsed_s))
                    for c, cuts in own
                ]
                votes = Votes([(curve, seconds is not None) for curve, seconds in at])
                row |= {
                    f"at_{budget}": votes.mean,
                    f"at_{budget}_error": votes.error(rng),
                }

            row["runs"] = votes.runs
            saved = [
                1 - s / (0.5 * c.points[c.hit - 1].elapsed_s)
                for c, s in at
                if s is not None
            ]
            row["saved"] = _median(saved)
            rows.append(row)

    return rows


def _mean(values: Sequence[float]) -> float | None:
    if not len(values):
        return None

    return float(np.mean(values))


def _median(values: Sequence[float]) -> float | None:
    if not len(values):
        return None

    return float(np.median(values))


def backtest(curves: Sequence[Curve], seed: int) -> dict[str, Any]:
    """Returns coefficients of one half of the systems, and how they did on the other."""
    rng = np.random.default_rng(seed)
    calibrating: set[tuple[str, str]] = set()
    for source in sorted({curve.source for curve in curves} - set(TESTED_ONLY)):
        groups = sorted(
            {(source, curve.group) for curve in curves if curve.source == source}
        )
        calibrating |= {
            groups[i] for i in rng.permutation(len(groups))[: len(groups) // 2]
        }

    own = looked(curves)
    fitted = [item for item in own if (item[0].source, item[0].group) in calibrating]
    tested = [
        item for item in own if (item[0].source, item[0].group) not in calibrating
    ]
    coefficients = {
        rule: {name: np.round(values, 4) for name, values in of_rule.items()}
        for rule, of_rule in calibrated(
            [cut for _, cuts in fitted for cut in cuts]
        ).items()
    }
    rows = judged(tested, coefficients)

    return {
        "coefficients": {
            rule: {name: values.tolist() for name, values in of_rule.items()}
            for rule, of_rule in coefficients.items()
        },
        "calibrated_on": sorted("/".join(group) for group in calibrating),
        "coverage": _by_source(rows, lambda own_rows: by_tenth(own_rows, rng)),
        "systems": _by_source(rows, lambda own_rows: by_system(own_rows, rng)),
        "never": never_rows(tested, coefficients),
        "given_up": given_up(tested, rng),
        "left_out": left_out(own, rng),
    }


def never_rows(
    tested: Cuts, coefficients: dict[str, dict[str, np.ndarray]]
) -> list[dict[str, Any]]:
    """Returns what was said of runs that never met the target while they were logged."""
    rows = []
    for source in dict.fromkeys(curve.source for curve, _ in tested):
        looks = []
        over = []
        for curve, cuts in tested:
            if curve.hit or curve.source != source:
                continue

            for cut in cuts:
                own = coefficients[rule_of(curve.window)]
                left = cut.present and evaluations_left(cut.present, cut.count, own)
                looks.append((curve, left is not None))

                if left:
                    over.append((curve, cut.count + left["high"] < len(curve.points)))

        if looks:
            votes = Votes(looks)
            rows.append({
                "source": source, "runs": votes.runs, "spoke": votes.mean,
                "disproved": Votes(over).mean,
            })  # fmt: skip

    return rows


def left_out(own: Cuts, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Returns how intervals hold on a source that had no part in their calibration."""
    rows = []
    sources = dict.fromkeys(curve.source for curve, _ in own)
    for source in [name for name in sources if name not in TESTED_ONLY]:
        others = [
            cut for curve, cuts in own
            if curve.source not in (source, *TESTED_ONLY) for cut in cuts
        ]  # fmt: skip
        if not others:
            continue

        rest = [item for item in own if item[0].source == source]
        rows += judged(rest, calibrated(others))

    return _by_source(rows, lambda own_rows: by_tenth(own_rows, rng))
