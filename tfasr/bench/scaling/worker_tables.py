"""A prediction for several numbers of workers, as a table and a figure."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tfasr.bench.scaling.worker_prediction import (
    SHARE,
    Interval,
    PredictedRun,
    WorkerPrediction,
)
from tfasr.display.chart import Area, Axis, Chart, Line, Panel, Points
from tfasr.display.style import run_colour
from tfasr.display.table import Table, records_of


def prediction_table(
    prediction: WorkerPrediction, rows: Sequence[PredictedRun], target: str, notes: Sequence[str]
) -> Table:
    """Returns the table of predicted runs.

    Args:
        prediction: that they are of.
        rows: the runs.
        target: as written, such as "cer=0.1"; "" for none.
        notes: on what it was made of.
    """
    columns = ["workers", "global\nbatch", "rows a\nworker", "steps/s", "interval", "exchange\n%"]
    columns += ["efficiency\n%", "interval"]
    if target:
        columns += ["utterances\nto target", "interval", "minutes", "interval"]
    return Table(
        f"Predicted runs{f' to {target}' if target else ''}",
        [*columns, "beyond what\nwas measured"],
        [_cells(row) for row in rows],
        [*_notes(prediction), *notes],
        records=records_of([record(row) for row in rows]),
    )


def _cells(row: PredictedRun) -> list[str]:
    share = 100 * row.exchange_s.middle / row.step_s.middle
    cells = [str(row.workers), str(row.global_batch), f"{row.global_batch / row.workers:.4g}"]
    cells += [*_both(row.steps_per_s), f"{share:.0f}", *_both(row.efficiency, 100, ".0f")]
    for interval, scale in ((row.utterances, 1), (row.target_s, 1 / 60)):
        if interval is not None:
            cells += _both(interval, scale)
    return [*cells, ", ".join(row.beyond) or "-"]


def _both(interval: Interval, scale: float = 1.0, form: str = ".3g") -> list[str]:
    def text(value: float) -> str:
        value *= scale
        return f"{value:,.0f}" if value >= 1000 else format(value, form)

    return [text(interval.middle), f"{text(interval.low)} to {text(interval.high)}"]


def _notes(prediction: WorkerPrediction) -> list[str]:
    fixed, per_row = prediction.coefficients()
    measured = prediction.measured
    rows = sorted({step.rows for step in measured.steps})
    listed = ", ".join(f"{one:.4g}" for one in rows)
    unknown = "; how much of it is fixed, one number of rows cannot tell" if len(rows) == 1 else ""
    notes = [
        f"Medians, and intervals meant to hold {100 * SHARE:.0f} % of new runs, by a parametric "
        f"bootstrap. A step: {1000 * fixed.middle:.3g} ms and {1000 * per_row.middle:.3g} ms a "
        f"row, from {listed} rows a worker{unknown}.",
        f"Exchange: a ring all-reduce of {measured.gradient_bytes / 1e6:.4g} MB, "
        f"{_link_text(prediction)}, {100 * measured.overlap:.0f} % overlapped.",
    ]
    if measured.targets:
        sizes = ", ".join(f"{point:.4g}" for point in sorted({p.batch for p in measured.targets}))
        said = "; how they grow with the batch, one size cannot tell"
        critical = prediction.critical_batch
        if critical is not None:
            low, middle, high = map(_number, (critical.low, critical.middle, critical.high))
            said = f"; twice the least are needed at a batch of {middle} ({low} to {high}), by the "
            said += "curve that has such a batch"
        runs = f"{len(measured.targets)} runs with batches of {sizes}"
        notes.append(f"Utterances: from {runs}{said}.")
    return notes


def _link_text(prediction: WorkerPrediction) -> str:
    link, exchanges = prediction.measured.link, prediction.measured.exchanges
    said = []
    if link is not None:
        gbit_s, latency_us = 8e-9 * link.bytes_per_s, 1e6 * link.latency_s
        said.append(f"a link of {gbit_s:.4g} Gbit/s and {latency_us:.4g} us a message")
    if exchanges:
        said.append(f"{len(exchanges)} measured exchanges")
    return " beside ".join(said)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value < 1e9 else "any"


def record(row: PredictedRun) -> dict[str, Any]:
    """Returns a predicted run for programs; bounds are columns of their own."""
    values: dict[str, Any] = {"workers": row.workers, "global_batch": row.global_batch}
    intervals = {
        "steps_per_s": row.steps_per_s,
        "step_s": row.step_s,
        "exchange_s": row.exchange_s,
        "efficiency": row.efficiency,
        "utterances": row.utterances,
        "target_s": row.target_s,
    }
    for name, interval in intervals.items():
        if interval is not None:
            bounds = asdict(interval)
            values[name] = bounds.pop("middle")
            values |= {f"{name}_{bound}": value for bound, value in bounds.items()}
    return {**values, "beyond": ",".join(row.beyond)}


def prediction_chart(rows: Sequence[PredictedRun], target: str) -> Chart:
    """Returns steps per second, and with a target the minutes, over the workers."""
    panels = [_panel(rows, lambda row: row.steps_per_s, 1.0, "steps per second")]
    if target:
        panels.append(_panel(rows, lambda row: row.target_s, 1 / 60, f"minutes to {target}"))
    caption = f"Predicted for N workers, with the interval of {100 * SHARE:.0f} % of new runs"
    return Chart("prediction", caption, panels, columns=2, width=420)


def _panel(
    rows: Sequence[PredictedRun],
    interval: Callable[[PredictedRun], Interval],
    scale: float,
    title: str,
) -> Panel:
    marks = []
    for number, batch in enumerate(_series(rows)):
        own = [row for row in rows if _key(row, rows) == batch]
        xs = [row.workers for row in own]
        found = [interval(row) for row in own]
        colour = run_colour(number)
        low, high = ([scale * getattr(one, end) for one in found] for end in ("low", "high"))
        ys = [scale * one.middle for one in found]
        marks.append(Area(x=xs, low=low, high=high, colour=colour))
        marks.append(Line(x=xs, y=ys, colour=colour, series=batch))
        marks.append(Points(x=xs, y=ys, colour=colour))
    counts = sorted({row.workers for row in rows})
    x = Axis("workers", log=True, limits=(counts[0] / 1.15, counts[-1] * 1.15), ticks=counts)
    return Panel(marks, x, Axis(title, log=True))


def _series(rows: Sequence[PredictedRun]) -> list[str]:
    return list(dict.fromkeys(_key(row, rows) for row in rows))


def _key(row: PredictedRun, rows: Sequence[PredictedRun]) -> str:
    """Returns which line a run belongs to: of one batch, or of one number of rows a worker."""
    batches = {other.global_batch for other in rows}
    per_workers = len(batches) > 1 and all(
        other.global_batch * row.workers == row.global_batch * other.workers for other in rows
    )
    if per_workers:
        return f"{row.global_batch / row.workers:.4g} rows a worker"
    return f"batch {row.global_batch}"
