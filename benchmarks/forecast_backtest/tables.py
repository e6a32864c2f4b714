"""The backtest's tables."""

from typing import Any

from forecast_backtest.judgement import BAND, BUDGETS, FEWEST_SPOKEN


def markdown(found: dict[str, Any]) -> str:
    """Returns the results as tables."""
    parts = [
        f"{found['runs']} runs of {found['groups']} systems; seed {found['seed']}; "
        "half of each source's systems calibrate, the tables are of the other half.",
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
    columns = ["source", "median of"]

    if first:
        columns.append(f"0-{10 * first} %")

    columns += [f"{10 * n}-{10 * n + 10} %" for n in range(first, 10)]
    rows = []
    for row in found:
        early = [cell["spoke"] or 0 for cell in row["tenths"][:first]]
        cells = [row["source"], str(row["window"])]
        if any(early):
            cells.append(f"({100 * max(early):.1f})")
        elif early:
            cells.append("-")

        cells += [_held(cell) for cell in row["tenths"][first:]]
        rows.append([*cells, _held(row["all"])])

    return _table([*columns, "all"], rows)


def _in_band(found: list[dict[str, Any]]) -> str:
    """Returns how many tenths hold in 80 +- 7 %, and how many surely do not."""
    cells = [
        (cell["held"], 2 * (cell["held_error"] or 1.0))
        for row in found
        for cell in row["tenths"]
        if (cell["spoke"] or 0) >= FEWEST_SPOKEN
    ]
    low, high = BAND
    inside = sum(low <= held <= high for held, _ in cells)
    below = sum(held + twice < low for held, twice in cells)
    above = sum(held - twice > high for held, twice in cells)

    return (
        f"{inside} of {len(cells)} tenths are in 73 to 87 %. By more than two standard "
        f"errors, {below} are below that range and {above} above it."
    )


def _widths(found: list[dict[str, Any]]) -> str:
    columns = ["source", "median of", "runs", "latest over earliest"]
    columns += ["came sooner, %", "error, %", "log-linear, %"]
    rows = []

    for row in found:
        total = row["all"]
        if total["width"] is None:
            continue

        cells = [row["source"], str(row["window"]), str(total["runs"])]
        cells.append(f"{total['width']:.2f}")
        cells += [_percent(total[name]) for name in ("sooner", "error", "naive_error")]
        rows.append(cells)

    return _table(columns, rows)


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
    columns = ["source", "median of", "systems", "lowest", "a tenth below", "middle"]
    columns += ["highest", "surely below 73", "surely above 87"]
    names = ("lowest", "tenth", "middle", "highest", "below", "above")
    rows = []

    for row in found:
        cells = [row["source"], str(row["window"]), str(row["systems"])]
        rows.append(cells + [_percent(row[name]) for name in names])

    return _table(columns, rows)


def _given_up(found: list[dict[str, Any]]) -> str:
    columns = ["source", "median of", "runs"]
    columns += [f"wrongly at {budget:g}" for budget in BUDGETS]
    columns += ["rightly at 0.5", "saved"]
    rows = []

    for row in found:
        cells = [row["source"], str(row["window"]), str(row["runs"])]
        for budget in (*BUDGETS, 0.5):
            cells.append(_with_error(row[f"at_{budget}"], row[f"at_{budget}_error"]))

        rows.append([*cells, _percent(row["saved"])])

    return _table(columns, rows)


def _never(found: list[dict[str, Any]]) -> str:
    columns = [
        "source",
        "runs",
        "looks with an interval, %",
        "of these over before the log, %",
    ]
    rows = []
    for row in found:
        shares = [_percent(row["spoke"]), _percent(row["disproved"])]
        rows.append([row["source"], str(row["runs"]), *shares])

    return _table(columns, rows)


def _percent(value: float | None) -> str:
    if value is None:
        return ""

    return f"{100 * value:.0f}"


def _with_error(value: float, error: float | None) -> str:
    if error is None:
        return f"{100 * value:.0f}"

    return f"{100 * value:.0f}±{100 * error:.0f}"
