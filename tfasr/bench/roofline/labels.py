"""Names beside points on logarithmic axes, no two over each other and none over a point."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A label's room in pixels for each pixel of the font, and how far it may step aside.
_LINE, _CHARACTER = 1.3, 0.58
_AWAY = 5
_HEIGHTS = (0, -13, 13, -26, 26)
_SAME_PLACE_PX = 16
_BLOCK = "recurrent"

Box = tuple[float, float, float, float]
Ends = tuple[float, float]


@dataclass(frozen=True)
class Placed:
    """A label that found room.

    Attributes:
        words: what it says.
        x: of its point, as of the data.
        y: of its point.
        align: "left" stands at the right of the point, "right" at its left.
        dy: pixels that it stands lower.
    """

    words: str
    x: float
    y: float
    align: str
    dy: float


def place_labels(
    named: Sequence[tuple[str, str, float, float]], x: Ends, y: Ends, size: Ends, font_px: float
) -> list[Placed]:
    """Returns the labels that have room.

    Args:
        named: group, name and place of each point; neighbouring recurrent blocks of a group that
            stand in one place get one label, such as "recurrent 2–5".
        x: the ends of the logarithmic horizontal axis.
        y: of the vertical one.
        size: of the panel in pixels.
        font_px: the font's size.
    """
    entries = [
        (_pixel(across, x, size[0]), size[1] - _pixel(up, y, size[1]), group, name, across, up)
        for group, name, across, up in named
    ]
    taken: list[Box] = [(px - 5, py - 5, px + 5, py + 5) for px, py, *_ in entries]
    found = []
    for px, py, words, across, up in _merged(entries):
        width, half = _CHARACTER * font_px * len(words), _LINE * font_px / 2
        for dy, align in ((dy, align) for dy in _HEIGHTS for align in ("left", "right")):
            begin = px + _AWAY if align == "left" else px - _AWAY - width
            box = (begin, py + dy - half, begin + width, py + dy + half)
            inside = box[0] > 0 and box[2] < size[0] and box[1] > 0 and box[3] < size[1]
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                found.append(Placed(words, across, up, align, dy))
                break
    return found


def _pixel(value: float, ends: Ends, length: float) -> float:
    return length * math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def _merged(entries: list[tuple]) -> list[tuple[float, float, str, float, float]]:
    kept: list[list] = []
    for px, py, group, name, across, up in entries:
        near = next(
            (
                one
                for one in kept
                if name.startswith(_BLOCK)
                and one[3].startswith(_BLOCK)
                and group == one[2]
                and math.hypot(px - one[0], py - one[1]) < _SAME_PLACE_PX
            ),
            None,
        )
        if near is None:
            kept.append([px, py, group, name, across, up])
        else:
            begin = near[3].split()[-1].partition("–")[0]
            near[3] = f"{_BLOCK} {begin}–{name.split()[-1]}"
    return [(px, py, name + group, across, up) for px, py, group, name, across, up in kept]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
