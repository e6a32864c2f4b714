"""Latency and throughput over batch sizes, a curve for each precision."""

from collections.abc import Callable, Sequence

from tfasr.bench.sweep.rows import SweepRow
from tfasr.bench.sweep.tables import SweepAnalysis
from tfasr.display.chart import Axis, Chart, Line, Mark, Panel, Points, Segments
from tfasr.display.style import CLIFF_COLOUR, run_colour
from tfasr.precision import PRECISIONS

_ASIDE = 0.05


def sweep_chart(analysis: SweepAnalysis) -> Chart:
    """Returns inference latency, and beside it training throughput where it was measured.

    Bars reach from the median latency to the 99th percentile; a red ring is a cliff.
    """
    modes = ["inference", *(["training"] if analysis.of("training") else [])]
    panels = [_panel(analysis, mode) for mode in modes]
    caption = "Batch sizes and precisions, in inference and in training"
    return Chart("hardware_sweep", caption, panels, columns=len(modes), width=420)


def _panel(analysis: SweepAnalysis, mode: str) -> Panel:
    training = mode == "training"
    value = _utterances_per_s if training else _latency_ms
    precisions = list(dict.fromkeys(row.precision for row in analysis.rows))
    rows = [row for row in analysis.of(mode) if row.p50_s is not None]
    places = {id(row): _place(row, precisions.index(row.precision)) for row in rows}
    marks: list[Mark] = []
    for index, precision in enumerate(precisions):
        own = [row for row in rows if row.precision == precision]
        if own:
            marks += _curve(own, places, value, run_colour(index), _legend(analysis, precision))
    cliffs = [row for row in rows if row.cliff]
    if cliffs:
        marks.append(
            Points(
                x=[places[id(row)] for row in cliffs],
                y=[value(row) for row in cliffs],
                symbol="ring",
                size=15,
                colour=CLIFF_COLOUR,
                series="cliff: slower than in a smaller batch",
            )
        )
    batches = sorted({row.batch for row in rows}) or [1]
    ends = (batches[0] / 1.15, batches[-1] * 1.15)
    if not training:
        ends = (batches[0] - 0.5, batches[-1] + 0.5)
    highest = [value(row) if training else 1000 * row.p99_s for row in rows] or [1.0]
    label = "utterances per second" if training else "latency of a batch, ms: p50, bar to p99"
    x = Axis("batch, utterances", log=training, limits=ends, ticks=batches)
    return Panel(marks, x, Axis(label, limits=(0, 1.08 * max(highest))), title=mode)


def _curve(
    rows: Sequence[SweepRow],
    places: dict[int, float],
    value: Callable[[SweepRow], float],
    colour: str,
    name: str,
) -> list[Mark]:
    at = {"x": [places[id(row)] for row in rows], "y": [value(row) for row in rows]}
    marks: list[Mark] = []
    if rows[0].mode == "inference":
        ends = {"y0": [1000 * row.p50_s for row in rows], "y1": [1000 * row.p99_s for row in rows]}
        marks.append(Segments(x0=at["x"], x1=at["x"], **ends, colour=colour, width=1.4))
    return [*marks, Line(**at, colour=colour, series=name), Points(**at, colour=colour)]


def _place(row: SweepRow, index: int) -> float:
    # Side by side, so that no bar hides another's.
    return row.batch + (_ASIDE * (index - 1.5) if row.mode == "inference" else 0)


def _latency_ms(row: SweepRow) -> float:
    return 1000 * row.p50_s


def _utterances_per_s(row: SweepRow) -> float:
    return 1 / row.utterance_s


def _legend(analysis: SweepAnalysis, name: str) -> str:
    label = PRECISIONS[name].label
    if analysis.errors is not None:
        return f"{label}: WER {analysis.cost(name)} %"
    error = 100 * analysis.logit_errors[name]
    return label if name == "float32" else f"{label}: logits ±{error:.2g} %"
