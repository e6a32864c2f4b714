"""The backtest's tables."""

from typing import Any

from forecast_backtest.judgement import BAND, BUDGETS, FEWEST_SPOKEN


def markdown(found: dict[str, Any]) -> str:
    """Returns the results as tables."""
    parts = [
        f"{found['runs']} runs of {found['groups']} systems; seed {found['seed']}; half of each "
        "source's systems calibrate, the tables are of the other half.",
        "### How often the 80 % interval held, by the tenth of the way to the target",
        _tenths(found["coverage"]),
        _in_band(found["coverage"]),
        "### Widths and errors",
        _widths(found["coverage"]),
        "### By system",
        _systems(found["systems"]),
        "### Calibrated without the source",
        _tenths(found["left_out"]),
        "### Runs given up for a budget",
        _given_up(found["given_up"]),
        "### Runs that never met the target",
        _never(found["never"]),
    ]
    return "\n\n".join(parts) + "\n"


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _tenths(found: list[dict[str, Any]]) -> str:
    spoken = [
        [(cell["spoke"] or 0) >= FEWEST_SPOKEN for cell in row["tenths"]]
        for row in found
    ]
    first = min((flags.index(True) for flags in spoken if any(flags)), default=0)
    columns = ["source", "median of", *([f"0-{10 * first} %"] if first else [])]
    columns += [f"{10 * n}-{10 * n + 10} %" for n in range(first, 10)]
    rows = []
    for row in found:
        early = [cell["spoke"] or 0 for cell in row["tenths"][:first]]
        before = [f"({100 * max(early):.1f})" if max(early) else "-"] if first else []
        cells = [_held(cell) for cell in (*row["tenths"][first:], row["all"])]
        rows.append([row["source"], str(row["window"]), *before, *cells])

    return _table([*columns, "all"], rows)


def _in_band(found: list[dict[str, Any]]) -> str:
    """Returns how many tenths hold in 80 +- 7 %, and how many surely do not."""
    cells = [(cell["held"], 2 * (cell["held_error"] or 1.0)) for row in found
             for cell in row["tenths"] if (cell["spoke"] or 0) >= FEWEST_SPOKEN]  # fmt: skip
    low, high = BAND
    inside = sum(low <= held <= high for held, _ in cells)
    below = sum(held + twice < low for held, twice in cells)
    above = sum(held - twice > high for held, twice in cells)
    return (
        f"{inside} of {len(cells)} tenths are in 73 to 87 %. By more than two standard errors, "
        f"{below} are below that range and {above} above it."
    )


def _widths(found: list[dict[str, Any]]) -> str:
    columns = ["source", "median of", "runs", "latest over earliest", "came sooner, %", "error, %",
               "log-linear, %"]  # fmt: skip
    return _table(columns, [
        [row["source"], str(row["window"]), str(total["runs"]), f"{total['width']:.2f}",
         *(_percent(total[name]) for name in ("sooner", "error", "naive_error"))]
        for row in found if (total := row["all"])["width"] is not None
    ])  # fmt: skip


def _held(cell: dict[str, Any]) -> str:
    """Returns such as "81±4 (35)": held, its standard error, and how often it spoke."""
    if cell["spoke"] is None or cell["held"] is None:
        return "-"
    if cell["spoke"] < FEWEST_SPOKEN:
        return f"({100 * cell['spoke']:.1f})"
    return (
        f"{_with_error(cell['held'], cell['held_error'])} ({_percent(cell['spoke'])})"
    )


def _systems(found: list[dict[str, Any]]) -> str:
    columns = ["source", "median of", "systems", "lowest", "a tenth below", "middle",
               "highest", "surely below 73", "surely above 87"]  # fmt: skip
    names = ("lowest", "tenth", "middle", "highest", "below", "above")
    return _table(columns, [
        [row["source"], str(row["window"]), str(row["systems"]), *(_percent(row[n]) for n in names)]
        for row in found
    ])  # fmt: skip


def _given_up(found: list[dict[str, Any]]) -> str:
    columns = ["source", "median of", "runs"]
    columns += [f"wrongly at {budget:g}" for budget in BUDGETS]
    columns += ["rightly at 0.5", "saved"]
    return _table(columns, [
        [row["source"], str(row["window"]), str(row["runs"]),
         *(_with_error(row[f"at_{b}"], row[f"at_{b}_error"]) for b in (*BUDGETS, 0.5)),
         _percent(row["saved"])]
        for row in found
    ])  # fmt: skip


def _never(found: list[dict[str, Any]]) -> str:
    columns = [
        "source",
        "runs",
        "looks with an interval, %",
        "of these over before the log, %",
    ]
    return _table(columns, [
        [row["source"], str(row["runs"]), _percent(row["spoke"]), _percent(row["disproved"])]
        for row in found
    ])  # fmt: skip


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}"


def _with_error(value: float, error: float | None) -> str:
    return f"{100 * value:.0f}" + ("" if error is None else f"±{100 * error:.0f}")
