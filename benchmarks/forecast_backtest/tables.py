"""The backtest's tables and figure."""

import math
from collections.abc import Sequence
from typing import Any

from tfasr.display.chart import INK, Area, Axis, Chart, Line, Mark, Panel, Points, Rule, run_colour

_FEWEST_DRAWN = 10

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
