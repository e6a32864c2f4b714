"""How well forecasts of times to accuracy hold: a backtest on logs of finished runs.

    python benchmarks/forecast.py --mlperf FOLDER --algoperf FOLDER [--tfasr FOLDER] [--seed 1]
        [--out FILE.json] [--figure FOLDER] [--coefficients FILE.py]

Each folder holds a folder for each group of runs (of one submission, system, workload). Every run
is cut after each evaluation, and what `tfasr.tta.forecast` says then is compared with what came.
Half of the groups of each source (drawn by the seed) calibrate the quantile regressions, the other
half test them; no run of a group is in both. Targets are the benchmark's own, and 1.25, 1.6 and 2.2
times that, so that a run has targets of early and of late.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfasr.display.chart import Area, Axis, Chart, Line, Mark, Panel, Points, Rule
from tfasr.display.style import INK, run_colour
from tfasr.tta.forecast import course, evaluations_left, pace_s, rule_of
from tfasr.tta.published import find_logs, load_log
from tfasr.tta.time_to_accuracy import AccuracyPoint, medians

TIMES_TARGET = (1.0, 1.25, 1.6, 2.2)
QUANTILES = {"not_before": 0.05, "low": 0.10, "middle": 0.50, "high": 0.90}
COVERAGE = 0.80
WINDOWS = (1, 3)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
COUNTS = ((4, 5), (6, 9), (10, 14), (15, 19), (20, 29), (30, 99))
BUDGETS = (1.0, 1.2, 2.0)
_ROUNDS = 80
_NEAR = 0.05
_FEWEST_DRAWN = 10
_MOST_WRONG = 0.04


@dataclass(frozen=True)
class Source:
    """Logs of one kind.

    Attributes:
        policy: whose clock they are read by.
        targets: by a word in the name of the group's folder, the word error rate to reach.
    """

    policy: str
    targets: dict[str, float]


SOURCES = {
    "mlperf": Source("mlperf", {"": 0.058}),
    "algoperf": Source("algoperf", {"deepspeech": 0.119936, "conformer": 0.085884}),
    "tfasr": Source("paper", {}),
}


@dataclass(frozen=True)
class Curve:
    """A run and a target.

    Attributes:
        source: of `SOURCES`.
        group: its folder.
        run: its log.
        points: all of its evaluations.
        window: the evaluations whose median must meet the target.
        times: the target over the benchmark's own.
        target: the value.
        hit: at which evaluation it was met, counted from 1; None where never.
    """

    source: str
    group: str
    run: str
    points: list[AccuracyPoint]
    window: int
    times: float
    target: float
    hit: int | None


@dataclass(frozen=True)
class Cut:
    """A curve as it was known after ``count`` evaluations."""

    curve: Curve
    count: int
    features: np.ndarray | None
    reason: str

    @property
    def share(self) -> float:
        """The share of the way to the target, or of the whole run where it never got there."""
        return self.count / (self.curve.hit or len(self.curve.points))


def read_curves(folders: dict[str, Path]) -> list[Curve]:
    """Returns every run with each of its targets.

    Logs end where a single evaluation met the benchmark's target; what the median of three would
    have done after that is not known, and left out.
    """
    found = []
    for source, folder in folders.items():
        for group in sorted(path for path in folder.iterdir() if path.is_dir()):
            for log in find_logs(group):
                run = load_log(log)
                points = run.accuracy_curve("wer", SOURCES[source].policy)
                for target in _targets(source, group.name, run):
                    for times, window in itertools.product(TIMES_TARGET, WINDOWS):
                        curve = _curve(source, group.name, log, points, times, target, window)
                        touched = any(point.value <= curve.target for point in points)
                        if curve.hit or not touched:
                            found.append(curve)
    return found


def _targets(source: str, group: str, run) -> list[float]:
    stated = [value for word, value in SOURCES[source].targets.items() if word in group]
    return stated[:1] or [value for metric, value in run.targets if metric == "wer"]


def _curve(source, group, log, points, times, target, window) -> Curve:
    value = min(1.0, times * target)
    found = list(medians([point.value for point in points], window))
    hit = next((n for n, median in enumerate(found, start=window) if median <= value), None)
    return Curve(source, group, log.name, points, window, times, value, hit)


def cuts_of(curve: Curve) -> Iterator[Cut]:
    """Yields the curve after each evaluation before the target was met."""
    for count in range(1, (curve.hit or len(curve.points) + 1)):
        features, reason = course(curve.points[:count], curve.target, curve.window)
        yield Cut(curve, count, features, reason)


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
                _given_up_at(cuts, c.points[c.hit - 1].elapsed_s, moved) is not None
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
    inside = [_inside(cut, evaluations_left(cut.features, cut.count, moved)) for cut in cuts]
    return float(np.average(inside, weights=weights))


def _inside(cut: Cut, left: dict[str, float]) -> bool:
    return left["low"] <= cut.curve.hit - cut.count <= left["high"]


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
        row["covered"] = _inside(cut, left)
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
            stopped = [_given_up_at(cuts, budget * took, coefficients) for cuts, took in arrived]
            wrong = _mean([at is not None for at in stopped])
            found.append({
                "source": source, "budget": budget, "runs": len(arrived), "wrongly": wrong,
            })  # fmt: skip
        # Half the time it took: a run that will miss its budget, and what stopping it saves.
        late = [(_given_up_at(cuts, took / 2, coefficients), took / 2) for cuts, took in arrived]
        saved = [1 - at / budget for at, budget in late if at is not None]
        found.append({
            "source": source, "budget": 0.5, "runs": len(late),
            "rightly": _mean([at is not None for at, _ in late]),
            "saved_of_budget": float(np.median(saved)) if saved else None,
        })  # fmt: skip
    return found


def _given_up_at(
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


_COVERAGE_COLUMNS = {
    "source": "source", "window": "median of", "times_target": "times the benchmark's target",
    "groups": "groups", "forecasts": "forecasts", "answered": "answered, %", "covered": "held, %",
    "sooner": "came sooner, %", "sooner_than_surely": "sooner than 95 % said, %",
    "width": "latest over earliest", "never": "cuts of runs that never met it",
    "never_answered": "of those answered, %", "never_promised": "of the answers disproved, %",
}  # fmt: skip
_ERROR_COLUMNS = {
    "source": "source", "share": "share of the way, %", "forecasts": "forecasts",
    "answered": "answered, %", "error": "median error, %", "linear_error": "last pace, %",
    "log_linear_error": "log-linear, %", "covered": "held, %", "width": "latest over earliest",
}  # fmt: skip
_COUNT_COLUMNS = {
    "source": "source", "window": "median of", "count": "evaluations so far",
    "forecasts": "forecasts", "covered": "held, %", "sooner": "came sooner, %",
    "error": "median error, %", "width": "latest over earliest",
}  # fmt: skip
_STOP_COLUMNS = {
    "source": "source", "budget": "budget over the time it took", "runs": "runs and targets",
    "wrongly": "wrongly given up, %", "rightly": "rightly given up, %",
    "saved_of_budget": "of the budget saved, %",
}  # fmt: skip
_TRANSPORT_COLUMNS = {
    "calibrated_on": "calibrated on", "tested_on": "tested on", "forecasts": "forecasts",
    "covered": "held, %",
}  # fmt: skip
_COUNTS = ("window", "times_target", "groups", "forecasts", "width", "never", "budget", "runs")


def markdown(found: dict[str, Any]) -> str:
    """Returns the results as tables."""
    parts = [
        f"{found['runs']} runs of {found['groups']} groups; seed {found['seed']}; half of each "
        "source's groups calibrate, what follows is of the other half.",
        "### How often the 80 % interval held",
        _table(found["coverage"], _COVERAGE_COLUMNS),
        "### The same by the evaluations so far",
        _table(found["by_count"], _COUNT_COLUMNS),
        "### Error of the time to the target by the share of the way that was passed",
        _table(found["errors"], _ERROR_COLUMNS),
        "### The same by the rule of the median of three",
        _table(found["errors_median_of_3"], _ERROR_COLUMNS),
        "### Runs given up for a budget",
        _table(found["given_up"], _STOP_COLUMNS),
        "### Calibrated on one source alone",
        _table(found["transported"], _TRANSPORT_COLUMNS),
    ]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    lines = [f"| {' | '.join(columns.values())} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    for row in rows:
        lines.append(f"| {' | '.join(_cell(name, row.get(name)) for name in columns)} |")
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "all" if name == "times_target" else ""
    if isinstance(value, str) or name in _COUNTS:
        return f"{value:.2f}" if name == "width" else str(value)
    return f"{100 * value:.0f}" if math.isfinite(value) else "never"


def chart(found: dict[str, Any]) -> Chart:
    """Returns errors and coverage over the share of the way that was passed."""
    rows = [row for row in found["errors"] if row["forecasts"] >= _FEWEST_DRAWN]
    sources = list(dict.fromkeys(row["source"] for row in rows))
    errors: list[Mark] = []
    held: list[Mark] = [Rule(value=80.0)]
    for number, source in enumerate(sources):
        own = [row for row in rows if row["source"] == source]
        x = [100 * row["share"] for row in own]
        for name, label, dash in (
            ("error", "forecast", "solid"),
            ("linear_error", "last pace", "dotted"),
            ("log_linear_error", "log-linear", "dashed"),
        ):
            y = [min(100 * row[name], 200.0) for row in own]
            errors.append(
                Line(x=x, y=y, dash=dash, colour=run_colour(number), series=f"{source}: {label}")
            )
        y = [100 * row["covered"] for row in own]
        held.append(Line(x=x, y=y, colour=run_colour(number)))
        held.append(Points(x=x, y=y, colour=run_colour(number)))
    held.append(Area(x=[0, 100], low=[73, 73], high=[87, 87], colour=INK, series="80 +- 7 %"))
    way = Axis("share of the way to the target that was passed, %", limits=(0.0, 100.0))
    bare = Axis("", limits=(0.0, 100.0))
    caption = "Median error of the time to the target, and how often the 80 % interval held"
    panels = [
        Panel(errors, bare, Axis("median error, %", limits=(0.0, 100.0)), 220),
        Panel(held, way, Axis("held, %", limits=(0.0, 100.0)), 140),
    ]
    return Chart("forecast", caption, panels, width=560)


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


def main() -> None:
    """Runs the backtest and prints its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for source in SOURCES:
        parser.add_argument(f"--{source}", type=Path, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write FILE.json and FILE.md")
    parser.add_argument("--figure", type=Path, help="also draw forecast.png and .svg here")
    parser.add_argument("--coefficients", type=Path, help="also write what tfasr reads")
    args = parser.parse_args()
    folders = {name: getattr(args, name) for name in SOURCES if getattr(args, name)}
    curves = read_curves(folders)
    found = {
        "seed": args.seed,
        "runs": len({(curve.source, curve.group, curve.run) for curve in curves}),
        "groups": len({(curve.source, curve.group) for curve in curves}),
        **backtest(curves, args.seed),
    }
    text = markdown(found)
    print(text, end="")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    if args.coefficients:
        write_coefficients(args.coefficients, found["coefficients"])
    if args.figure:
        from tfasr.display.pictures import write_chart

        write_chart(chart(found), args.figure)


if __name__ == "__main__":
    main()
