"""The picture of the imports: ``python -m tests.imports_picture`` writes docs/imports.svg.

Packages stand in the rows of LAYERS, and an arrow goes from each to what it imports; an
import that follows from a chain of others is left out. Where an arrow passes a row, it
has a place of its own there. The order within the rows is that with the fewest
crossings of arrows that was found.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from xml.sax.saxutils import escape

from tests.test_layers import FILES, LAYERS, RANKS, imports, room

PICTURE = Path(__file__).parents[1] / "docs/imports.svg"

Edge = tuple[str, str]
# A package, or the place at which an arrow passes a row.
Place = str | tuple[str, str, int]

_ROW = 80
_HEIGHT = 30
_GAP = 26
_MARGIN = 20
_STYLE = """
  text { font: 14px system-ui, sans-serif; text-anchor: middle; fill: #1b2733 }
  rect { fill: #e6eef7; stroke: #5b7da1 }
  path { fill: none; stroke: #6d7f91; stroke-width: 1.3 }
  marker path { fill: #6d7f91; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8eef4 } rect { fill: #24364a; stroke: #7fa3c7 }
    path { stroke: #9fb1c3 } marker path { fill: #9fb1c3 }
  }
"""


def package_imports() -> dict[str, set[str]]:
    """Returns which packages and top-level modules each of them imports."""
    packages: dict[str, set[str]] = {name: set() for name in RANKS}
    for name, others in imports(FILES).items():
        packages[room(name)] |= {room(other) for other in others} - {room(name)}
    return packages


def necessary(graph: dict[str, set[str]]) -> list[Edge]:
    """Returns the arrows from which all others follow; the graph must have no circle."""

    @functools.cache
    def reached(start: str) -> set[str]:
        return graph[start].union(*(reached(other) for other in graph[start]))

    return [
        (name, other)
        for name in graph
        for other in sorted(graph[name])
        if not any(other in reached(between) for between in graph[name])
    ]


def places_of(edge: Edge) -> list[Place]:
    """Returns the places that an arrow passes, from its foot down to its head."""
    upper, lower = edge
    between = range(RANKS[upper] - 1, RANKS[lower], -1)
    return [upper, *((upper, lower, rank) for rank in between), lower]


def crossings(
    rows: Sequence[Sequence[Place]], segments: Iterable[tuple[Place, Place]]
) -> int:
    at = {place: index for row in rows for index, place in enumerate(row)}
    by_row: dict[int, list[tuple[int, int]]] = {}
    for upper, lower in segments:
        by_row.setdefault(_rank(upper), []).append((at[upper], at[lower]))
    return sum(
        (a[0] - b[0]) * (a[1] - b[1]) < 0
        for pairs in by_row.values()
        for a, b in itertools.combinations(pairs, 2)
    )


def ordered(
    edges: Sequence[Edge],
) -> tuple[list[list[Place]], list[tuple[Place, Place]]]:
    """Returns the places of each row from left to right, and the pieces of the arrows."""
    segments = [pair for edge in edges for pair in itertools.pairwise(places_of(edge))]
    rows: list[list[Place]] = [list(row) for row in LAYERS]
    for edge in edges:
        for place in places_of(edge)[1:-1]:
            rows[_rank(place)].append(place)

    best = [list(row) for row in rows]
    for sweep in range(60):
        upwards = sweep % 2 == 0
        for rank in range(len(rows)) if upwards else reversed(range(len(rows))):
            at = {
                place: (index + 0.5) / len(row)
                for row in rows
                for index, place in enumerate(row)
            }
            ends = _neighbours(segments, below=upwards)
            rows[rank].sort(
                key=lambda p: mean([at[q] for q in ends.get(p, [])] or [at[p]])
            )

        if crossings(rows, segments) < crossings(best, segments):
            best = [list(row) for row in rows]

    return best, segments


def _neighbours(
    segments: Iterable[tuple[Place, Place]], *, below: bool | None = None
) -> dict[Place, list[Place]]:
    ends: dict[Place, list[Place]] = {}
    for upper, lower in segments:
        if below is not False:
            ends.setdefault(upper, []).append(lower)
        if below is not True:
            ends.setdefault(lower, []).append(upper)

    return ends


def placed(
    rows: Sequence[Sequence[Place]], segments: Sequence[tuple[Place, Place]]
) -> dict[Place, float]:
    """Returns each place's horizontal middle, near those of its neighbours in other rows."""
    ends = _neighbours(segments)
    x = {place: 60.0 * index for row in rows for index, place in enumerate(row)}
    for _ in range(60):
        for row in rows:
            wanted = [mean([x[q] for q in ends.get(place, [place])]) for place in row]
            x.update(zip(row, _apart(row, wanted), strict=True))

    left = min(x[place] - _width(place) / 2 for place in x)
    return {place: value - left + _MARGIN for place, value in x.items()}


def _apart(row: Sequence[Place], wanted: Sequence[float]) -> list[float]:
    """Returns the middles nearest to those wanted at which no two places of a row overlap."""
    steps = [(_width(a) + _width(b)) / 2 + _GAP for a, b in itertools.pairwise(row)]
    offsets = [0.0, *itertools.accumulate(steps)]
    blocks: list[list[float]] = []  # without the offsets, middles must not fall
    for value, offset in zip(wanted, offsets, strict=True):
        blocks.append([value - offset])
        while len(blocks) > 1 and mean(blocks[-2]) > mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]

    levels = [mean(block) for block in blocks for _ in block]
    return [level + offset for level, offset in zip(levels, offsets, strict=True)]


def _rank(place: Place) -> int:
    return RANKS[place] if isinstance(place, str) else place[2]


def _width(place: Place) -> float:
    return 8.2 * len(place) + 22 if isinstance(place, str) else 0.0


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Returns the path of a smooth curve downwards through points, vertical at both ends."""
    pieces = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(points)]
    slopes = [0.0, *(_between(a, b) for a, b in itertools.pairwise(pieces)), 0.0]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (upper, lower), (first, last) in zip(
        itertools.pairwise(points), itertools.pairwise(slopes), strict=True
    ):
        third = (lower[1] - upper[1]) / 3
        path += (
            f" C{upper[0] + first * third:.1f} {upper[1] + third:.1f} "
            f"{lower[0] - last * third:.1f} {lower[1] - third:.1f} {lower[0]:.1f} {lower[1]:.1f}"
        )

    return path


def _between(before: float, after: float) -> float:
    """Returns the slope where two pieces of a curve meet; steep enough to stay between
    boxes.
    """
    if before * after <= 0:
        return 0.0
    return max(-0.8, min(0.8, 2 * before * after / (before + after)))


def drawn() -> str:
    """Returns the picture as SVG."""
    edges = necessary(package_imports())
    rows, segments = ordered(edges)
    x = placed(rows, segments)

    def y(place: Place) -> float:
        return _MARGIN + (len(LAYERS) - 1 - _rank(place)) * _ROW + _HEIGHT / 2

    width = max(x[place] + _width(place) / 2 for place in x) + _MARGIN
    height = 2 * _MARGIN + (len(LAYERS) - 1) * _ROW + _HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        "<title>Which packages of tfasr import which</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for edge in edges:
        points = [(x[place], y(place)) for place in places_of(edge)]
        points[0] = points[0][0], points[0][1] + _HEIGHT / 2
        points[-1] = points[-1][0], points[-1][1] - _HEIGHT / 2
        title = escape(f"{edge[0]} imports {edge[1]}")
        path = f'<path d="{_curve(points)}" marker-end="url(#head)">'
        lines.append(f"{path}<title>{title}</title></path>")

    for name in RANKS:
        left = x[name] - _width(name) / 2
        top = y(name) - _HEIGHT / 2
        lines.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{_width(name):.1f}" height="{_HEIGHT}" '
            f'rx="6"/><text x="{x[name]:.1f}" y="{y(name) + 5:.1f}">{name}</text>'
        )

    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn())
