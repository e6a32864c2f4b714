"""What a wider beam costs and what it gains, as a figure."""

import math
from collections.abc import Sequence

from tfasr.bench.decoder.rows import DecoderRow
from tfasr.display.chart import Axis, Chart, Labels, Line, Mark, Panel, Points, Segments
from tfasr.display.style import run_colour

_MOST_TICKS = 8
_HEIGHT_PX = 280.0
_LABEL_PX = 15.0
_ASIDE = 1.6


def decoder_chart(rows: Sequence[DecoderRow]) -> Chart:
    """Returns processor seconds per hour of audio and word error rate over beam widths.

    A decoder without a beam is a dashed line; the numbers at the right are those of the widest
    beam.
    """
    curves: dict[str, list[DecoderRow]] = {}
    for row in rows:
        curves.setdefault(row.label, []).append(row)
    widths = sorted({row.beam_width for row in rows if row.beam_width is not None}) or [1]
    seconds = {
        name: [row.measured.cpu_s_per_audio_hour for row in own] for name, own in curves.items()
    }
    wer = {name: [100 * row.measured.counts.wer for row in own] for name, own in curves.items()}
    most = max(max(values) for values in wer.values()) or 1.0
    cost = _panel(curves, seconds, widths, _whole_decades(seconds.values()), "{:.2g}", log=True)
    errors = _panel(curves, wer, widths, (0.0, 1.1 * most), "{:.1f}", log=False)
    caption = "What a wider beam costs, and what it gains"
    return Chart("decoder", caption, [cost, errors], columns=2, width=420)


def _panel(
    curves: dict[str, list[DecoderRow]],
    values: dict[str, list[float]],
    widths: Sequence[int],
    y: tuple[float, float],
    form: str,
    *,
    log: bool,
) -> Panel:
    x = (widths[0] / _ASIDE, widths[-1] * _ASIDE**2)
    marks: list[Mark] = []
    for index, (name, rows) in enumerate(curves.items()):
        colour, own = run_colour(index), values[name]
        if rows[0].beam_width is None:
            ends = {"x0": [x[0]], "x1": [x[1]], "y0": own, "y1": own}
            marks.append(Segments(**ends, colour=colour, dash="dashed", series=name))
        else:
            place = {"x": [row.beam_width for row in rows], "y": own}
            marks.append(Line(**place, colour=colour, series=name))
            marks.append(Points(**place, colour=colour))
    marks += _ends(values, x[1], y, form, log=log)
    step = -(-len(widths) // _MOST_TICKS)
    beam = Axis("beam width", log=True, limits=x, ticks=sorted(widths[::-1][::step]))
    label = "CPU seconds per hour of audio" if log else "word error rate, %"
    return Panel(marks, beam, Axis(label, log=log, limits=y), height=_HEIGHT_PX)


def _whole_decades(values) -> tuple[float, float]:
    """Returns whole powers of ten around all values: within one an axis would show no figure."""
    low, high = min(map(min, values)), max(map(max, values))
    bottom = math.floor(math.log10(low))
    return 10.0**bottom, 10.0 ** max(math.ceil(math.log10(high)), bottom + 1)


def _ends(
    values: dict[str, list[float]], x: float, y: tuple[float, float], form: str, *, log: bool
) -> list[Labels]:
    """Returns each curve's last value at the right end, no two over each other."""

    def height(value: float) -> float:
        low, high, value = map(math.log, (*y, value)) if log else (*y, value)
        return _HEIGHT_PX * (value - low) / (high - low)

    ends = sorted((height(own[-1]), own[-1], index) for index, own in enumerate(values.values()))
    labels, lowest_free = [], -math.inf
    for at, value, index in ends:
        place = max(at, lowest_free)
        lowest_free = place + _LABEL_PX
        look = {"colour": run_colour(index), "dy": at - place - _LABEL_PX / 2, "align": "right"}
        labels.append(Labels(x=[x], y=[value], words=[form.format(value)], **look))
    return labels
