"""The keyword spotter as a figure: its confusions, and how fast it learns."""

from collections.abc import Sequence

import numpy as np

from tfasr.bench.keywords.training import error_rate
from tfasr.display.chart import Axis, Chart, Labels, Line, Mark, Panel, Points, Rects, Rule
from tfasr.display.style import INK, run_colour
from tfasr.tta.time_to_accuracy import AccuracyPoint

_LEVELS = 12
_HEIGHT_PX = 460
_NUMBER_PX = 7.5


def keyword_chart(
    words: Sequence[str], confusion: np.ndarray, points: Sequence[AccuracyPoint], target: float
) -> Chart:
    """Returns the confusion matrix of the test split beside the error rate over time.

    Args:
        words: names of rows and columns.
        confusion: how often the word of a row was taken for that of a column.
        points: the error rate on the validation split.
        target: the error rate to come down to.
    """
    seconds = [point.elapsed_s for point in points]
    errors = [100 * point.value for point in points]
    curve: list[Mark] = [
        Line(x=seconds, y=errors, colour=run_colour(0), width=2.2),
        Points(x=seconds, y=errors, colour=run_colour(0)),
        Rule(value=100 * target, label=f"target {100 * target:g} %"),
    ]
    top = max(100 * target * 1.3, *errors) * 1.05
    panels = [
        _matrix(words, confusion),
        Panel(
            curve,
            Axis("seconds since the model's creation", limits=(0, 1.02 * max(seconds))),
            Axis("wrong words, validation, %", limits=(0, top)),
            height=_HEIGHT_PX,
        ),
    ]
    caption = "What the keyword spotter takes for what, and how fast it learns"
    return Chart("keyword_spotting", caption, panels, columns=2, width=_HEIGHT_PX)


def _matrix(words: Sequence[str], confusion: np.ndarray) -> Panel:
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    levels = np.ceil(_LEVELS * shares).astype(int)
    marks: list[Mark] = []
    for level in range(1, _LEVELS + 1):
        rows, columns = np.nonzero(levels == level)
        marks.append(
            Rects(
                x0=columns - 0.5,
                x1=columns + 0.5,
                y0=rows - 0.5,
                y1=rows + 0.5,
                colour=run_colour(0),
                opacity=level / _LEVELS,
            )
        )
    for dark, colour in ((True, "#ffffff"), (False, INK)):
        rows, columns = np.nonzero((confusion > 0) & ((shares > 0.6) == dark))
        numbers = [str(confusion[at]) for at in zip(rows, columns, strict=True)]
        look = {"align": "center", "size": _NUMBER_PX, "colour": colour}
        marks.append(Labels(x=columns, y=rows, words=numbers, **look))
    places, count = range(len(words)), len(words)
    named = {"ticks": places, "tick_labels": list(words), "grid": False}
    accuracy = 100 * (1 - error_rate(confusion))
    x = Axis(
        f"taken for; {accuracy:.1f} % right", limits=(-0.5, count - 0.5), label_angle=-90, **named
    )
    y = Axis("spoken, test", limits=(count - 0.5, -0.5), **named)
    return Panel(
        [mark for mark in marks if len(mark.x0 if isinstance(mark, Rects) else mark.x)],
        x,
        y,
        height=_HEIGHT_PX,
    )
