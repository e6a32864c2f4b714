"""Training steps on Keras's backends, and in PyTorch alone, as a figure."""

from collections.abc import Sequence

from tfasr.bench.backends.table import LABELS
from tfasr.bench.backends.times import BackendTimes
from tfasr.display.chart import Axis, Chart, Labels, Panel, Rects, rows_axis
from tfasr.display.style import run_colour

_HALF_BAR = 0.36
_ROW_PX, _MARGIN_PX = 30, 20


def backends_chart(times: Sequence[BackendTimes]) -> Chart:
    """Returns a panel for each model with a bar for each backend: forward, then the rest."""
    models = list(dict.fromkeys(row.model for row in times))
    caption = "One training step on Keras's backends, and in PyTorch alone"
    panels = [_panel([row for row in times if row.model == model]) for model in models]
    return Chart("backends", caption, panels, columns=len(models), width=420)


def _panel(rows: Sequence[BackendTimes]) -> Panel:
    ran = [row for row in rows if not row.reason]
    places = list(range(len(ran)))
    forward = [row.median_forward_ms for row in ran]
    whole = [row.median_step_ms for row in ran]
    y = {"y0": [n - _HALF_BAR for n in places], "y1": [n + _HALF_BAR for n in places]}
    ends = [max(pair) for pair in zip(forward, whole, strict=True)]
    words = [f"{ms:{'.3g' if ms < 100 else '.0f'}} ms · {ms / min(whole):.2f}×" for ms in whole]
    marks = [
        Rects(x0=[0.0] * len(ran), x1=forward, **y, colour=run_colour(0), series="forward"),
        Rects(x0=forward, x1=ends, **y, colour=run_colour(1), series="backward and update"),
        Labels(x=ends, y=places, words=words),
    ]
    names = [" ".join((LABELS.get(row.backend, row.backend), row.layout)).strip() for row in ran]
    label = f"ms per training step, {rows[0].model}, batch of {rows[0].batch_size}"
    x = Axis(label, limits=(0, 1.35 * max(ends)))
    return Panel(marks, x, rows_axis(names), height=_MARGIN_PX + _ROW_PX * len(ran))
